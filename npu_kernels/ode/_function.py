"""The fused time loop and its derivative.

The first derivative is the discrete adjoint, one call; second and higher ones are those of the eager adjoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.compiler import is_compiling

from npu_kernels import reference as layers
from npu_kernels._operators import dispatch, ops
from npu_kernels._operators.autograd import differentiate, eager_only
from npu_kernels.ode import _reference as reference
from npu_kernels.reference import CLIP, STRAIGHT_THROUGH


class Loop(NamedTuple):
    """How a time loop is computed.

    Args:
        tableau: the method's, a lower triangle by rows (`npu_kernels.ode._reference`).
        steps, dt: how many steps of which size.
        eps: added to ``|u|``.
        gate_gradient: "clip" or "straight_through".
        clip: clip the NAU's weight.
        memory: "full" keeps the stages for the backward pass, "checkpointed" computes them again from the trajectory.
        derivatives: whether the right-hand side at every state is wanted too.
        many: whether u0 has a dimension of starts.
    """

    tableau: tuple[float, ...]
    steps: int
    dt: float
    eps: float
    gate_gradient: str
    clip: bool
    memory: str
    derivatives: bool
    many: bool

    @property
    def straight_through(self) -> bool:
        return self.gate_gradient == STRAIGHT_THROUGH


def as_rows(u0: Tensor, weight_re: Tensor, many: bool) -> Tensor:
    """u0 as ``[B, D]``, or ``[K, B, D]`` with models; `many`: it has a dimension of starts."""
    if weight_re.dim() == 2:
        return u0 if many else u0.unsqueeze(0)
    k, d = weight_re.shape[0], weight_re.shape[2]
    return u0.expand(k, -1, -1) if many else u0.expand(k, d).unsqueeze(1)


def forward(
    loop: Loop,
    keep: bool,
    u0: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """``(trajectory, derivatives, stages)`` by the operator, for the caller's u0; stages are empty unless `keep`."""
    trajectory, slopes, stages = ops.ode_forward(
        as_rows(u0, weight_re, loop.many),
        weight_re,
        weight_im,
        gate,
        weight,
        loop.tableau,
        loop.steps,
        loop.dt,
        loop.eps,
        loop.clip,
        loop.derivatives,
        keep,
    )
    if not loop.many:
        trajectory = trajectory.squeeze(-3)
        slopes = slopes.squeeze(-3) if loop.derivatives else slopes
    return trajectory, slopes, stages


class RolloutFunction(Function):
    """``(trajectory, derivatives)`` from a `Loop` and u0, weight_re, weight_im, gate, weight; derivatives may be empty.

    u0 is the caller's: a view for autograd would cost as much as a tenth of a single model's whole loop.
    """

    @staticmethod
    def forward(ctx: Any, loop: Loop, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        trajectory, slopes, stages = forward(loop, loop.memory == "full", *tensors)  # type: ignore[arg-type]
        u0, *parameters = tensors
        ctx.save_for_backward(u0, trajectory, *parameters, stages)
        ctx.loop = loop
        ctx.forced = None if is_compiling() else dispatch.forced()
        ctx.set_materialize_grads(False)
        if not loop.derivatives:
            ctx.mark_non_differentiable(slopes)
        return trajectory, slopes

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        needs = sum(bool(need) << bit for bit, need in enumerate(ctx.needs_input_grad[1:]))
        if ctx.forced is None:
            return None, *rollout_backward(ctx.loop, needs, *grads, *ctx.saved_tensors)
        with dispatch.as_forward(ctx.forced):  # on a GPU this is a thread of autograd's own
            return None, *rollout_backward(ctx.loop, needs, *grads, *ctx.saved_tensors)


def rollout_backward(
    loop: Loop,
    needs: int,
    grad_trajectory: Tensor | None,
    grad_derivatives: Tensor | None,
    u0: Tensor,
    trajectory: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    stages: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """Five gradients, None for those without their bit in `needs`, differentiable where grad mode asks for it."""
    if grad_derivatives is not None and grad_derivatives.numel() == 0:
        grad_derivatives = None
    if grad_trajectory is None and grad_derivatives is None:
        return (None,) * 5
    operands = (u0, weight_re, weight_im, gate, weight)
    needed = [bool(needs >> bit & 1) for bit in range(5)]
    if torch.is_grad_enabled() and not eager_only():
        return tuple(
            differentiate(_formula(loop), operands, needed, (grad_trajectory, grad_derivatives))
        )
    adjoint: Callable[..., tuple[Tensor, ...]] = (
        reference.ode_backward if eager_only() else ops.ode_backward
    )
    paths: tuple[Tensor | None, ...] = grad_trajectory, grad_derivatives, trajectory
    if not loop.many:
        paths = tuple(None if path is None else path.unsqueeze(-3) for path in paths)
    kept = trajectory.new_empty(0) if stages is None else stages
    options = list(loop.tableau), loop.dt, loop.eps, loop.clip, loop.straight_through
    grad_u0, *others = adjoint(*paths, *operands[1:], kept, *options, needs)
    if needed[0]:
        grad_u0 = (grad_u0 if loop.many else grad_u0.squeeze(-2)).sum_to_size(u0.shape)
    return tuple(
        grad if need else None for grad, need in zip((grad_u0, *others), needed, strict=True)
    )


def backward_of_the_fast_path(*arguments: Any) -> tuple[Tensor | None, ...]:
    """`rollout_backward` in the words of the fast path, which has no `Loop`."""
    tensors, (tableau, dt, eps, clip, straight_through, many, needs) = arguments[:9], arguments[9:]
    steps, gate_gradient = (
        arguments[3].shape[-2] - 1,
        STRAIGHT_THROUGH if straight_through else CLIP,
    )
    loop = Loop(
        tuple(tableau), steps, dt, eps, gate_gradient, clip, "full", arguments[1] is not None, many
    )
    return rollout_backward(loop, needs, *tensors)


def _formula(loop: Loop) -> Callable[..., tuple[Tensor, Tensor]]:
    def formula(
        u0: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        def f(u: Tensor) -> Tensor:
            y = layers.npu(
                u, weight_re, weight_im, gate, eps=loop.eps, gate_gradient=loop.gate_gradient
            )
            return layers.nau(y, weight, clip=loop.clip)

        rows = as_rows(u0, weight_re, loop.many)
        states, slopes = reference.solve(f, rows, loop.tableau, loop.steps, loop.dt, True)
        found = torch.stack(states, -2), torch.stack(slopes, -2)
        return found if loop.many else (found[0].squeeze(-3), found[1].squeeze(-3))

    return formula
