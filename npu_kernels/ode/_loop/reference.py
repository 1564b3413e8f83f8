"""The time loop ``u' = NAU(NPU(u))`` by explicit Runge-Kutta steps, in eager torch.

The specification and the oracle of the fused loop, like `npu_kernels.reference` for the layers:
`explicit_steps` is the plain loop over any f, differentiable to any order, and the functions after
it have the operators' signatures. `methods` has the tableaus and the formula of a step.

Shapes: ``u [B, D]`` with weights without, ``[K, B, D]`` with weights with a model dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from npu_kernels import reference


def right_of_zero(u: Tensor) -> Tensor:
    """Return u, where it is 0 plus the smallest normal number.

    A power layer has the same value there, but the slope from the right, which is the exact one of
    whole powers. Its own slope at 0 is 0.
    """
    return torch.where(u == 0, u + torch.finfo(u.dtype).tiny, u)


def stage_rows(tableau: Sequence[float]) -> list[Sequence[float]]:
    """The triangle's rows: one per stage, the last one the step's."""
    triangle: list[Sequence[float]] = []
    first = 0
    while first < len(tableau):
        triangle.append(tableau[first : first + len(triangle) + 1])
        first += len(triangle)
    return triangle


def combine(k: Sequence[Tensor], coefficients: Sequence[float]) -> Tensor:
    """``sum_j c_j k_j``."""
    total = k[0] * coefficients[0]
    for slope, coefficient in zip(k[1:], coefficients[1:], strict=True):
        if coefficient != 0:
            total = total + slope * coefficient
    return total


def _advance(u: Tensor, dt: float, row: Sequence[float], k: Sequence[Tensor]) -> Tensor:
    for coefficient, slope in zip(row, k, strict=True):
        if coefficient != 0:
            u = u + reference.constant(dt * coefficient, u) * slope
    return u


def _stages(
    f: Callable[[Tensor], Tensor], u: Tensor, dt: float, triangle: Sequence[Sequence[float]]
) -> tuple[list[Tensor], list[Tensor]]:
    """The states and slopes of a step's stages."""
    v, k = [u], [f(u)]
    for row in triangle[:-1]:
        v.append(_advance(u, dt, row, k))
        k.append(f(v[-1]))
    return v, k


def explicit_steps(
    f: Callable[[Tensor], Tensor],
    u0: Tensor,
    tableau: Sequence[float],
    steps: int,
    dt: float,
    with_last: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """The states at 0 .. steps, and f at these states, f at the last one only `with_last`."""
    triangle, states, slopes = stage_rows(tableau), [u0], []
    for _ in range(steps):
        _, k = _stages(f, states[-1], dt, triangle)
        slopes.append(k[0])
        states.append(_advance(states[-1], dt, triangle[-1], k))
    if with_last:
        slopes.append(f(states[-1]))
    return states, slopes


# ---- the operators' signatures -----------------------------------------------------------------


def ode_forward(
    u0: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    tableau: Sequence[float],
    steps: int,
    dt: float,
    eps: float,
    clip: bool,
    derivatives: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``(trajectory, derivatives, stages)``: ``[..., steps + 1, D]`` twice, and no stages.

    `derivatives`: return f at every state too, else an empty tensor. The fused forward returns the
    stages that its backward reuses; this one has none.
    """

    def f(u: Tensor) -> Tensor:
        y = reference.npu(right_of_zero(u), weight_re, weight_im, gate, eps=eps)
        return reference.nau(y, weight, clip=clip)

    states, slopes = explicit_steps(f, u0, tableau, steps, dt, derivatives)
    none = u0.new_empty(0)
    return torch.stack(states, -2), torch.stack(slopes, -2) if derivatives else none, none


def ode_backward(
    grad_trajectory: Tensor | None,
    grad_derivatives: Tensor | None,
    trajectory: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    stages: Tensor,
    tableau: Sequence[float],
    dt: float,
    eps: float,
    clip: bool,
    straight_through: bool,
    needs: int = 31,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the discrete adjoint, by hand: gradients of u0, weight_re, weight_im, gate, weight.

    `needs` is a bit mask in that order; what is not needed, or absent, comes back as an empty
    tensor. Backwards over the steps, g the gradient of u_{n+1}, and per stage, last one first:

        dk_i = dt a_si g + dt sum_{j > i} a_{j-1,i} dv_j  (+ that of derivatives, i = 1)
        dv_i = J(v_i)' dk_i
        the gradient of u_n = g + sum_i dv_i + that of trajectory
    """
    triangle = stage_rows(tableau)
    bounded = weight.clamp(-1.0, 1.0) if clip else weight
    weights = weight_re, weight_im, gate, weight
    grads = [None if t is None else torch.zeros_like(t) for t in weights]

    def f(u: Tensor) -> Tensor:
        y = reference.npu(right_of_zero(u), weight_re, weight_im, gate, eps=eps)
        return reference.nau(y, bounded, clip=False)

    def pull(v: Tensor, dk: Tensor) -> Tensor:
        """J' dk; adds to the parameters' gradients."""
        v = right_of_zero(v)
        y, s = reference.npu_forward(v, weight_re, weight_im, gate, eps, True)
        dv, *of_npu = reference.npu_backward(
            dk @ bounded, v, weight_re, weight_im, gate, y, s, eps, straight_through, 15
        )
        for index, part in enumerate([*of_npu, dk.mT @ y]):
            total = grads[index]
            grads[index] = None if total is None else total + part
        return dv

    steps = trajectory.shape[-2] - 1
    g = torch.zeros_like(trajectory[..., 0, :])
    for n in range(steps, -1, -1):
        u = trajectory[..., n, :]
        dv: dict[int, Tensor] = {}
        if n < steps:
            v, _ = _stages(f, u, dt, triangle)
            for i in reversed(range(len(triangle))):
                dk = (dt * triangle[-1][i]) * g
                for j in range(i + 1, len(triangle)):
                    dk = dk + (dt * triangle[j - 1][i]) * dv[j]
                if i == 0 and grad_derivatives is not None:
                    dk = dk + grad_derivatives[..., n, :]
                dv[i] = pull(v[i], dk)
        elif grad_derivatives is not None:
            dv[0] = pull(u, grad_derivatives[..., n, :])
        for part in dv.values():
            g = g + part
        if grad_trajectory is not None:
            g = g + grad_trajectory[..., n, :]
    if clip:
        grads[3] = grads[3].where((weight >= -1) & (weight <= 1), 0)  # type: ignore[union-attr]
    return tuple(  # type: ignore[return-value]
        grad if grad is not None and needs >> bit & 1 else trajectory.new_empty(0)
        for bit, grad in enumerate([g, *grads])
    )
