"""Neural Power Unit, a layer, in a time loop: the fused loop and its derivative.

The first derivative is the discrete adjoint, one call; second and higher ones are those of the eager adjoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from npu_kernels import ops, reference, reference_ode
from npu_kernels.autograd import _differentiate, eager_only
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
        ctx.options = tableau, dt, eps, clip, straight_through
        ctx.steps, ctx.many = steps, many
        ctx.set_materialize_grads(False)
        if not derivatives:
            ctx.mark_non_differentiable(slopes)
        return trajectory, slopes

    @staticmethod
    def backward(ctx: Any, grad_trajectory: Tensor | None, grad_derivatives: Tensor | None) -> tuple[Any, ...]:
        u0, trajectory, *parameters, stages = ctx.saved_tensors
        needed = ctx.needs_input_grad[:5]
        nothing = (None,) * 9
        if grad_derivatives is not None and grad_derivatives.numel() == 0:
            grad_derivatives = None
        if grad_trajectory is None and grad_derivatives is None:
            return *(None,) * 5, *nothing
        if torch.is_grad_enabled() and not eager_only():
            operands = (u0, *parameters)
            return *_differentiate(_formula(ctx), operands, needed, (grad_trajectory, grad_derivatives)), *nothing
        needs = sum(bool(need) << bit for bit, need in enumerate(needed))
        adjoint: Callable[..., tuple[Tensor, ...]] = reference_ode.ode_backward if eager_only() else ops.ode_backward
        paths: tuple[Tensor | None, ...] = grad_trajectory, grad_derivatives, trajectory
        if not ctx.many:
            paths = tuple(None if path is None else path.unsqueeze(-3) for path in paths)
        grad_u0, *of_parameters = adjoint(*paths, *parameters, stages, *ctx.options, needs)
        if needed[0]:
            grad_u0 = (grad_u0 if ctx.many else grad_u0.squeeze(-2)).sum_to_size(u0.shape)
        grads = (grad_u0, *of_parameters)
        return *(grad if need else None for grad, need in zip(grads, needed, strict=True)), *nothing


def _formula(ctx: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    tableau, dt, eps, clip, straight_through = ctx.options
    gate_gradient = STRAIGHT_THROUGH if straight_through else CLIP

    def formula(
        u0: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        def f(u: Tensor) -> Tensor:
            y = reference.npu(u, weight_re, weight_im, gate, eps=eps, gate_gradient=gate_gradient)
            return reference.nau(y, weight, clip=clip)

        rows = as_rows(u0, weight_re, ctx.many)
        states, slopes = reference_ode.solve(f, rows, tableau, ctx.steps, dt, True)
        found = torch.stack(states, -2), torch.stack(slopes, -2)
        return found if ctx.many else (found[0].squeeze(-3), found[1].squeeze(-3))

    return formula
