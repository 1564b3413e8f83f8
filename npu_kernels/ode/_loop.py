"""The ODE solver of ``u' = NAU(NPU(u))`` with explicit Runge-Kutta steps: its formulas, and fused.

The formulas are in eager torch: the specification and the oracle of the fused loop, like
`npu_kernels.reference` for the layers. `explicit_steps` is the plain loop over any f,
differentiable to any order, and the functions after it have the operators' signatures. `_methods`
has the tableaus and the formula of a step.

Shapes: ``u [B, D]`` with weights without, ``[K, B, D]`` with weights with a model dimension.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.compiler import is_compiling, is_exporting
from torch.utils.checkpoint import checkpoint

from npu_kernels import functional, reference
from npu_kernels._operators import dispatch, fast_path, ops
from npu_kernels._operators.autograd import (
    apply_alone,
    differentiate,
    eager_only,
    outside_of_transforms,
    undifferentiated,
)
from npu_kernels.layers import NAU, PowerLayer
from npu_kernels.layers._chains import replaced_method
from npu_kernels.reference import CLIP, STRAIGHT_THROUGH


def right_of_zero(u: Tensor) -> Tensor:
    """Return u, where it is 0 plus the smallest normal number.

    A power layer has the same value there, but the derivative from the right, which is exact for
    integer powers. The layer's own derivative at 0 is 0.
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
    for derivative, coefficient in zip(k[1:], coefficients[1:], strict=True):
        if coefficient != 0:
            total = total + derivative * coefficient
    return total


def _advance(u: Tensor, dt: float, row: Sequence[float], k: Sequence[Tensor]) -> Tensor:
    for coefficient, derivative in zip(row, k, strict=True):
        if coefficient != 0:
            u = u + reference.constant(dt * coefficient, u) * derivative
    return u


def _stages(
    f: Callable[[Tensor], Tensor], u: Tensor, dt: float, triangle: Sequence[Sequence[float]]
) -> tuple[list[Tensor], list[Tensor]]:
    """The states and derivatives of a step's stages."""
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
    triangle, states, derivatives = stage_rows(tableau), [u0], []
    for _ in range(steps):
        _, k = _stages(f, states[-1], dt, triangle)
        derivatives.append(k[0])
        states.append(_advance(states[-1], dt, triangle[-1], k))
    if with_last:
        derivatives.append(f(states[-1]))
    return states, derivatives


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

    states, du_dt = explicit_steps(f, u0, tableau, steps, dt, derivatives)
    none = u0.new_empty(0)
    return torch.stack(states, -2), torch.stack(du_dt, -2) if derivatives else none, none


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

    def vjp(v: Tensor, dk: Tensor) -> Tensor:
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
                dv[i] = vjp(v[i], dk)
        elif grad_derivatives is not None:
            dv[0] = vjp(u, grad_derivatives[..., n, :])
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


# ---- the ODE solver ------------------------------------------------------------------------------
#
# Fixed steps and their gradient: one call of a backend, or a call for each step.
#
# The first derivative is the discrete adjoint, one call; second and higher ones are those of the
# eager adjoint.

Weights = tuple[Tensor, Tensor | None, Tensor | None, Tensor]  # weight_re, weight_im, gate, weight


class Loop(NamedTuple):
    """The options of an ODE solver, all checked."""

    tableau: tuple[float, ...]  # the method's, a lower triangle by rows
    steps: int
    dt: float
    eps: float | None  # added to |u|; None for the dtype's in the fast path
    gate_gradient: str  # "clip" or "straight_through"
    clip: bool  # the NAU's weight, to [-1, 1]
    memory: str  # "full" keeps the stages for the backward pass; "checkpointed" does not
    derivatives: bool  # return the right-hand side at every state too
    has_starts: bool  # u0 has a dimension of starts

    @property
    def straight_through(self) -> bool:
        return self.gate_gradient == STRAIGHT_THROUGH


def layers_of(
    model: Any,
    function: str = "rollout",
    units: str = "NPU, RealNPU or NaiveNPU",
    advice: str = "; torchdiffeq's odeint takes any model",
    inputs: int = 0,
) -> tuple[PowerLayer, NAU]:
    """Return the two layers of a model that the fused loop supports; raise TypeError or ValueError.

    units: what the messages call the first layer. advice: the end of the messages. inputs: features
    of the first layer that are no states.
    """
    rule = f"{function}: model must be an nn.Sequential of {units} and NAU"
    names = ""
    if isinstance(model, nn.Sequential):
        names = f"({', '.join(type(layer).__name__ for layer in model)})"
    if not isinstance(model, nn.Sequential) or len(model) != 2:
        raise TypeError(f"{rule}, got {type(model).__name__}{names}{advice}")
    power, nau = model
    for layer, base in ((power, PowerLayer), (nau, NAU)):
        fits = isinstance(layer, base) and type(layer).forward is base.forward
        # A compiler cannot trace the comparison with methods that were noted before.
        if not fits or not (is_compiling() or replaced_method(layer) is None):
            raise TypeError(f"{rule} with their own forward, got Sequential{names}{advice}")
    hooks = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
    for part in (model, power, nau):
        if any(getattr(part, name) for name in hooks):
            raise ValueError(
                f"{function}: model must have no hooks, one call computes all of its steps; "
                f"{type(part).__name__} has some{advice}"
            )
    states = power.in_features - inputs  # type: ignore[operator]
    sizes = power.out_features, states, power.num_models
    if (nau.in_features, nau.out_features, nau.num_models) != sizes:
        first = f"D + {inputs} (states and inputs)" if inputs else "D"
        raise ValueError(
            f"{function}: model must map {first} to h to D features for the same models, got "
            f"{power} and {nau}"
        )
    return power, nau  # type: ignore[return-value]


def as_rows(u0: Tensor, weight_re: Tensor, has_starts: bool) -> Tensor:
    """Return u0 as ``[B, D]``, or ``[K, B, D]`` with models."""
    if weight_re.dim() == 2:
        return u0 if has_starts else u0.unsqueeze(0)
    k, d = weight_re.shape[0], weight_re.shape[2]
    return u0.expand(k, -1, -1) if has_starts else u0.expand(k, d).unsqueeze(1)


def right_hand_side(
    weights: Sequence[Tensor | None], options: Any, layers: Any = reference
) -> Callable[[Tensor], Tensor]:
    """Return the right-hand side ``u' = NAU(NPU(u))``, by the functions of `layers`.

    options: eps, gate_gradient and clip, as a `Loop` has them.
    """
    weight_re, weight_im, gate, weight = weights
    eps, gate_gradient, clip = options.eps, options.gate_gradient, options.clip

    def rhs(u: Tensor) -> Tensor:
        v = right_of_zero(u)
        y = layers.npu(v, weight_re, weight_im, gate, eps=eps, gate_gradient=gate_gradient)
        derivative: Tensor = layers.nau(y, weight, clip=clip)
        return derivative

    return rhs


# ---- the operators -----------------------------------------------------------------------------


@dispatch.constant_in_graphs
def _fits_one_launch(d: int, h: int, dtype: torch.dtype) -> bool:
    return bool(dispatch.triton().ode_fits(d, h, dtype))


def _has_time_loop(weight_re: Tensor) -> bool:
    """Return whether the backend solves the ODE of such models in one call."""
    backend = dispatch.backend_for(weight_re)
    h, d = weight_re.shape[-2:]
    return backend == "cpu" or (backend == "triton" and _fits_one_launch(d, h, weight_re.dtype))


def _run_operator(name: str, *args: Any) -> Any:
    """Solve an ODE off the CPU, or interpreted: by Triton's kernel where the model fits."""
    weight_re = args[1 if name == "ode_forward" else 3]
    if dispatch.backend_for(weight_re) == "triton" and _has_time_loop(weight_re):
        return dispatch.launch(name, *args)
    formula = ode_forward if name == "ode_forward" else ode_backward
    return tuple(output.contiguous() for output in formula(*args))


for _name in ops.TIME_LOOPS:
    ops.library.impl(_name, functools.partial(_run_operator, _name), "CompositeExplicitAutograd")
    dispatch.interpreted_by[_name] = _run_operator


# ---- the loop ----------------------------------------------------------------------------------


def by_fast_path(loop: Loop, u0: Tensor, weights: Weights) -> tuple[Tensor, Tensor, bool] | None:
    """Return trajectory, derivatives and whether all is finite; None where `run` must compute them.

    It checks the tensors itself, and finds `Loop.has_starts` by their shapes.
    """
    if fast_path.ode is None or is_compiling() or dispatch.forced() not in dispatch.FAST_PATH:
        return None
    arguments = (u0, *weights, *loop[:-1])
    result = fast_path.ode(*arguments)
    return None if result is NotImplemented else result


def run(loop: Loop, u0: Tensor, weights: Weights) -> tuple[Tensor, Tensor | None]:
    """Return trajectory and derivatives, in one call where the backend has the loop."""
    tensors = u0, *weights
    if plain := outside_of_transforms(tensors):  # without stages, whose layout is a backend's own
        loop = loop._replace(memory="checkpointed")
        trajectory, derivatives = apply_alone(RolloutFunction, (loop, *plain))
        return trajectory, derivatives if loop.derivatives else None
    is_lost = loop.straight_through and is_exporting()  # the operator does not know it
    if not _has_time_loop(weights[0]) or eager_only() or is_lost:
        return _eager(loop, u0, weights)
    if (
        not is_exporting()
        and torch.is_grad_enabled()
        and any(t is not None and t.requires_grad for t in tensors)
    ):
        weight_re, weight_im, gate, weight = weights
        trajectory, derivatives = RolloutFunction.apply(  # type: ignore[no-untyped-call]
            loop, u0, weight_re, weight_im, gate, weight
        )
    else:
        is_saved = is_exporting() and loop.memory == "full"
        trajectory, derivatives, _ = _forward(loop, is_saved, u0, weights)
    return trajectory, derivatives if loop.derivatives else None


def _eager(loop: Loop, u0: Tensor, weights: Weights) -> tuple[Tensor, Tensor | None]:
    """Call the layers' functions in every step: any device, any mode of differentiation."""
    rhs = right_hand_side(weights, loop, functional)
    rows = as_rows(u0, weights[0], loop.has_starts)
    saves_memory = loop.memory == "checkpointed" and torch.is_grad_enabled() and not eager_only()
    with torch.autocast(u0.device.type, enabled=False):
        solve = _checkpointed if saves_memory else explicit_steps
        states, du_dt = solve(rhs, rows, loop.tableau, loop.steps, loop.dt, loop.derivatives)
        trajectory = torch.stack(states, -2)
        derivatives = torch.stack(du_dt, -2) if loop.derivatives else None
    if not loop.has_starts:
        return trajectory.squeeze(-3), None if derivatives is None else derivatives.squeeze(-3)
    return trajectory, derivatives


def _checkpointed(
    rhs: Callable[[Tensor], Tensor],
    u0: Tensor,
    tableau: Sequence[float],
    steps: int,
    dt: float,
    with_last: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """Solve in about sqrt(steps) segments, of which only the first states are saved."""
    length = math.isqrt(steps - 1) + 1
    states, derivatives = [u0], []
    for first in range(0, steps, length):
        count = min(length, steps - first)
        last = with_last and first + count == steps
        more, k = checkpoint(
            explicit_steps, rhs, states[-1], tableau, count, dt, last, use_reentrant=False
        )
        states += more[1:]
        derivatives += k
    return states, derivatives


def _forward(
    loop: Loop, keep: bool, u0: Tensor, weights: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, Tensor]:
    """Call the operator: ``(trajectory, derivatives, stages)``, stages empty unless `keep`."""
    rows = as_rows(u0, weights[0], loop.has_starts)  # type: ignore[arg-type]
    options = loop.tableau, loop.steps, loop.dt, loop.eps, loop.clip, loop.derivatives, keep
    arguments: Any = (rows, *weights, *options)
    trajectory, derivatives, stages = undifferentiated(ops.ode_forward, arguments, ode_forward)
    if not loop.has_starts:
        trajectory = trajectory.squeeze(-3)
        derivatives = derivatives.squeeze(-3) if loop.derivatives else derivatives
    return trajectory, derivatives, stages


class RolloutFunction(Function):
    """``(trajectory, derivatives)`` from a `Loop`, u0 and the weights; derivatives may be empty.

    u0 is the caller's: a view for autograd would cost a tenth of a single model's loop.
    """

    @staticmethod
    def forward(
        ctx: Any,
        loop: Loop,
        u0: Tensor,
        weight_re: Tensor,
        weight_im: Tensor | None,
        gate: Tensor | None,
        weight: Tensor,
    ) -> tuple[Tensor, Tensor]:
        weights = weight_re, weight_im, gate, weight
        trajectory, derivatives, stages = _forward(loop, loop.memory == "full", u0, weights)
        ctx.save_for_backward(u0, trajectory, weight_re, weight_im, gate, weight, stages)
        ctx.loop = loop
        ctx.choices = None if is_compiling() else dispatch.choices()
        ctx.set_materialize_grads(False)
        if not loop.derivatives:
            ctx.mark_non_differentiable(derivatives)
        return trajectory, derivatives

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        needs = sum(bool(need) << bit for bit, need in enumerate(ctx.needs_input_grad[1:]))
        if ctx.choices is None:
            return None, *_rollout_backward(ctx.loop, needs, grads, ctx.saved_tensors)
        with dispatch.as_forward(ctx.choices):
            return None, *_rollout_backward(ctx.loop, needs, grads, ctx.saved_tensors)


def _of_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save what the derivative of the operator itself takes, which exported programs call."""
    u0, weight_re, weight_im, gate, weight = inputs[:5]
    tableau, steps, dt, eps, clip, derivatives, save = inputs[5:]
    trajectory, du_dt, stages = output
    ctx.loop = Loop(
        tableau=tuple(tableau),
        steps=steps,
        dt=dt,
        eps=eps,
        gate_gradient=CLIP,
        clip=clip,
        memory="full" if save else "checkpointed",
        derivatives=derivatives,
        has_starts=True,
    )
    ctx.save_for_backward(u0, trajectory, weight_re, weight_im, gate, weight, stages)
    ctx.set_materialize_grads(False)
    if derivatives:
        ctx.mark_non_differentiable(stages)
    else:
        ctx.mark_non_differentiable(stages, du_dt)


def _operator_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    needs = sum(bool(need) << bit for bit, need in enumerate(ctx.needs_input_grad[:5]))
    options = (None,) * 7
    return *_rollout_backward(ctx.loop, needs, grads[:2], ctx.saved_tensors), *options


torch.library.register_autograd(
    ops.ode_forward, _operator_backward, setup_context=_of_operator, lib=ops.library
)


def _rollout_backward(
    loop: Loop, needs: int, grads: Sequence[Tensor | None], saved: Sequence[Any]
) -> tuple[Tensor | None, ...]:
    """Return five gradients, None for those without their bit in `needs`.

    They are differentiable where grad mode asks for it.

    grads: of the trajectory and of the derivatives. saved: u0, the trajectory, the weights, and the
    stages, None for none.
    """
    grad_trajectory, grad_derivatives = grads
    u0, trajectory, weight_re, weight_im, gate, weight, stages = saved
    if grad_derivatives is not None and grad_derivatives.numel() == 0:
        grad_derivatives = None
    if grad_trajectory is None and grad_derivatives is None:
        return (None,) * 5
    operands = (u0, weight_re, weight_im, gate, weight)
    needed = [bool(needs >> bit & 1) for bit in range(5)]
    if torch.is_grad_enabled() and not eager_only():
        paths_grads = grad_trajectory, grad_derivatives
        return tuple(differentiate(_formula(loop), operands, needed, paths_grads))
    by_formula = eager_only() or dispatch.forces_formulas()
    paths: tuple[Tensor | None, ...] = grad_trajectory, grad_derivatives, trajectory
    if not loop.has_starts:
        paths = tuple(None if path is None else path.unsqueeze(-3) for path in paths)
    stages = trajectory.new_empty(0) if stages is None else stages
    options = list(loop.tableau), loop.dt, loop.eps, loop.clip, loop.straight_through
    arguments: Any = (*paths, *operands[1:], stages, *options, needs)
    grad_u0, *grad_weights = (
        ode_backward(*arguments) if by_formula else undifferentiated(ops.ode_backward, arguments)
    )
    if needed[0]:
        grad_u0 = (grad_u0 if loop.has_starts else grad_u0.squeeze(-2)).sum_to_size(u0.shape)
    pairs = zip((grad_u0, *grad_weights), needed, strict=True)
    return tuple(grad if need else None for grad, need in pairs)


def _backward_of_the_fast_path(*arguments: Any) -> tuple[Tensor | None, ...]:
    """Call `_rollout_backward` with the fast path's arguments; the fast path has no `Loop`."""
    tableau, dt, eps, clip, straight_through, has_starts, needs = arguments[9:]
    loop = Loop(
        tableau=tuple(tableau),
        steps=arguments[3].shape[-2] - 1,
        dt=dt,
        eps=eps,
        gate_gradient=STRAIGHT_THROUGH if straight_through else CLIP,
        clip=clip,
        memory="full",
        derivatives=arguments[1] is not None,
        has_starts=has_starts,
    )
    return _rollout_backward(loop, needs, arguments[:2], arguments[2:9])


fast_path.set_backward("ode", _backward_of_the_fast_path)


def _formula(loop: Loop) -> Callable[[Sequence[Any]], tuple[Tensor, Tensor]]:
    def formula(inputs: Sequence[Any]) -> tuple[Tensor, Tensor]:
        u0, *weights = inputs
        rows = as_rows(u0, weights[0], loop.has_starts)
        rhs = right_hand_side(weights, loop)
        states, derivatives = explicit_steps(rhs, rows, loop.tableau, loop.steps, loop.dt, True)
        paths = torch.stack(states, -2), torch.stack(derivatives, -2)
        return paths if loop.has_starts else (paths[0].squeeze(-3), paths[1].squeeze(-3))

    return formula
