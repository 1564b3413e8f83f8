"""Neural Power Unit, a layer, in a time loop: the fused loop and its derivative.

The first derivative is the discrete adjoint, one call; second and higher ones are those of the eager adjoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from npu_kernels import ops, reference, reference_ode
from npu_kernels.autograd import differentiate, eager_only
from npu_kernels.reference import CLIP, STRAIGHT_THROUGH


def as_rows(u0: Tensor, weight_re: Tensor, many: bool) -> Tensor:
    """u0 as ``[B, D]``, or ``[K, B, D]`` with models; `many`: it has a dimension of starts."""
    if weight_re.dim() == 2:
        return u0 if many else u0.unsqueeze(0)
    k, d = weight_re.shape[0], weight_re.shape[2]
    return u0.expand(k, -1, -1) if many else u0.expand(k, d).unsqueeze(1)


class RolloutFunction(Function):
    """``(trajectory, derivatives)`` from u0, weight_re, weight_im, gate, weight and options; derivatives may be empty.

    u0 is the caller's; `many` says whether it has a dimension of starts. A view for autograd would cost as much as a
    tenth of a single model's whole loop. keep: whether the stages stay for the backward pass, or are computed again
    from the trajectory.
    """

    @staticmethod
    def forward(
        ctx: Any,
        u0: Tensor,
        weight_re: Tensor,
        weight_im: Tensor | None,
        gate: Tensor | None,
        weight: Tensor,
        tableau: list[float],
        steps: int,
        dt: float,
        eps: float,
        clip: bool,
        straight_through: bool,
        derivatives: bool,
        keep: bool,
        many: bool,
    ) -> tuple[Tensor, Tensor]:
        trajectory, slopes, stages = ops.ode_forward(
            as_rows(u0, weight_re, many),
            weight_re,
            weight_im,
            gate,
            weight,
            tableau,
            steps,
            dt,
            eps,
            clip,
            derivatives,
            keep,
        )
        if not many:
            trajectory = trajectory.squeeze(-3)
            slopes = slopes.squeeze(-3) if derivatives else slopes
        ctx.save_for_backward(u0, trajectory, weight_re, weight_im, gate, weight, stages)
        ctx.options = tableau, dt, eps, clip, straight_through, many
        ctx.set_materialize_grads(False)
        if not derivatives:
            ctx.mark_non_differentiable(slopes)
        return trajectory, slopes

    @staticmethod
    def backward(ctx: Any, grad_trajectory: Tensor | None, grad_derivatives: Tensor | None) -> tuple[Any, ...]:
        needs = sum(bool(need) << bit for bit, need in enumerate(ctx.needs_input_grad[:5]))
        arguments = (grad_trajectory, grad_derivatives, *ctx.saved_tensors, *ctx.options, needs)
        return *rollout_backward(*arguments), *(None,) * 9


def rollout_backward(
    grad_trajectory: Tensor | None,
    grad_derivatives: Tensor | None,
    u0: Tensor,
    trajectory: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    stages: Tensor | None,
    tableau: Sequence[float],
    dt: float,
    eps: float,
    clip: bool,
    straight_through: bool,
    many: bool,
    needs: int,
) -> tuple[Tensor | None, ...]:
    """Five gradients, None for those without their bit in `needs`, differentiable where grad mode asks for it."""
    if grad_derivatives is not None and grad_derivatives.numel() == 0:
        grad_derivatives = None
    if grad_trajectory is None and grad_derivatives is None:
        return (None,) * 5
    operands = (u0, weight_re, weight_im, gate, weight)
    needed = [bool(needs >> bit & 1) for bit in range(5)]
    if torch.is_grad_enabled() and not eager_only():
        steps = trajectory.shape[-2] - 1
        formula = _formula(tableau, steps, dt, eps, clip, straight_through, many)
        return tuple(differentiate(formula, operands, needed, (grad_trajectory, grad_derivatives)))
    adjoint: Callable[..., tuple[Tensor, ...]] = reference_ode.ode_backward if eager_only() else ops.ode_backward
    paths: tuple[Tensor | None, ...] = grad_trajectory, grad_derivatives, trajectory
    if not many:
        paths = tuple(None if path is None else path.unsqueeze(-3) for path in paths)
    kept = trajectory.new_empty(0) if stages is None else stages
    grad_u0, *others = adjoint(*paths, *operands[1:], kept, list(tableau), dt, eps, clip, straight_through, needs)
    if needed[0]:
        grad_u0 = (grad_u0 if many else grad_u0.squeeze(-2)).sum_to_size(u0.shape)
    return tuple(grad if need else None for grad, need in zip((grad_u0, *others), needed, strict=True))


def _formula(
    tableau: Sequence[float], steps: int, dt: float, eps: float, clip: bool, straight_through: bool, many: bool
) -> Callable[..., tuple[Tensor, Tensor]]:
    gate_gradient = STRAIGHT_THROUGH if straight_through else CLIP

    def formula(
        u0: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        def f(u: Tensor) -> Tensor:
            y = reference.npu(u, weight_re, weight_im, gate, eps=eps, gate_gradient=gate_gradient)
            return reference.nau(y, weight, clip=clip)

        rows = as_rows(u0, weight_re, many)
        states, slopes = reference_ode.solve(f, rows, tableau, steps, dt, True)
        found = torch.stack(states, -2), torch.stack(slopes, -2)
        return found if many else (found[0].squeeze(-3), found[1].squeeze(-3))

    return formula
