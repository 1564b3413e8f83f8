"""Adaptive steps fused, and their derivative.

The first derivative is the discrete adjoint of the accepted steps, one call; second and higher ones
are those of the eager steps of the same sizes. Each trajectory keeps the times of its accepted
steps, and every state, or every 32nd one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from npu_kernels._operators import ops
from npu_kernels._operators.autograd import (
    apply_alone,
    differentiate,
    eager_only,
    outside_of_transforms,
)
from npu_kernels.ode._loop.adaptive_reference import Control, replay
from npu_kernels.ode._loop.loop import Weights, as_rows, slope_function
from npu_kernels.ode._loop.methods import PAIRS, Method
from npu_kernels.reference import STRAIGHT_THROUGH

SAVED_EVERY = {"full": 1, "checkpointed": 32}  # steps from one saved state to the next


class Call(NamedTuple):
    """The options of adaptive steps, all checked."""

    method: str
    rtol: float
    atol: float
    max_steps: int
    max_at_bound: int  # steps at the bound of stability, before the trajectory ends
    eps: float  # added to |u|
    gate_gradient: str  # "clip" or "straight_through"
    clip: bool  # the NAU's weight, to [-1, 1]
    memory: str  # "full" or "checkpointed"
    has_starts: bool  # u0 has a dimension of starts

    @property
    def pair(self) -> Method:
        return PAIRS[self.method]

    @property
    def control(self) -> Control:
        return Control(self.rtol, self.atol, self.max_steps, self.max_at_bound, self.eps)


def _as_models(
    call: Call, u0: Tensor, weights: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Return u0 ``[K, B, D]`` and the weights with a dimension of models, contiguous."""
    weight_re = weights[0]
    assert weight_re is not None
    tensors = as_rows(u0, weight_re, call.has_starts), *weights
    if weight_re.dim() == 2:
        tensors = tuple(None if t is None else t.unsqueeze(0) for t in tensors)
    return tuple(None if t is None else t.contiguous() for t in tensors)


def _from_models(call: Call, has_models: bool, result: Tensor, starts_dim: int) -> Tensor:
    """Return ``[K, B, ..]`` without the dimensions that the caller's tensors lack."""
    result = result if call.has_starts else result.squeeze(starts_dim)
    return result if has_models else result.squeeze(0)


def run(call: Call, t: Tensor, u0: Tensor, weights: Weights) -> tuple[Tensor, ...]:
    """Return the trajectory, counts, clock and last state, differentiable if asked for."""
    tensors = t, u0, *weights
    if plain := outside_of_transforms(tensors):
        return apply_alone(AdaptiveFunction, call, *plain)  # type: ignore[no-any-return]
    if torch.is_grad_enabled() and any(w is not None and w.requires_grad for w in tensors):
        return AdaptiveFunction.apply(call, *tensors)  # type: ignore[no-untyped-call,no-any-return]
    return forward(call, False, *tensors)[:4]


def forward(
    call: Call, keep: bool, t: Tensor, u0: Tensor, *weights: Tensor | None
) -> tuple[Tensor, ...]:
    """Call the operator.

    Returns the caller's trajectory; counts, clock and the last state ``[(K,) B, ..]``; the saved
    times and states, none unless `keep`; the trajectory ``[K, B, M, D]`` where the backward reads
    it, none for an explicit method.
    """
    times = t.detach().to("cpu", torch.float64).contiguous()
    path, last, counts, clock, saved_times, states = ops.ode_adaptive_forward(
        *_as_models(call, u0, weights),
        times,
        call.pair.numbers,
        *call.control,  # its last one is eps
        call.clip,
        SAVED_EVERY[call.memory] if keep else 0,
    )
    has_models = weights[0].dim() == 3  # type: ignore[union-attr]
    state = (counts, clock, last) if has_models else (counts[0], clock[0], last[0])
    result = _from_models(call, has_models, path, -3)
    return result, *state, saved_times, states, path if call.pair.diagonal else path.new_empty(0)


class AdaptiveFunction(Function):
    """The trajectory, counts, clock and last state of a `Call`, t, u0 and the weights."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        path, counts, clock, last, *saved = forward(call, True, *tensors)  # type: ignore[arg-type]
        ctx.save_for_backward(*tensors, counts, clock, *saved)
        ctx.call = call
        ctx.mark_non_differentiable(counts, clock, last)
        return path, counts, clock, last

    @staticmethod
    def backward(ctx: Any, grad_path: Tensor, *_: Any) -> tuple[Any, ...]:
        call, needed = ctx.call, ctx.needs_input_grad[1:]
        *operands, counts, clock, times, states, path = ctx.saved_tensors
        if torch.is_grad_enabled() or eager_only():
            step_ends = _step_ends(counts[..., 0], clock, times)
            return None, *_by_formula(call, needed, grad_path, operands, step_ends)
        return None, *_fused(call, needed, grad_path, operands, counts, times, states, path)


def _fused(
    call: Call,
    needed: tuple[bool, ...],
    grad_path: Tensor,
    operands: list[Tensor],
    counts: Tensor,
    times: Tensor,
    states: Tensor,
    path: Tensor,
) -> tuple[Tensor | None, ...]:
    t, u0, *weights = operands
    has_models = counts.dim() == 3
    grad_rows = grad_path if call.has_starts else grad_path.unsqueeze(-3)
    needs = sum(bool(need) << bit for bit, need in enumerate((*needed[1:], needed[0])))
    is_straight_through = call.gate_gradient == STRAIGHT_THROUGH
    *grads, grad_t = ops.ode_adaptive_backward(
        path,
        (grad_rows if has_models else grad_rows.unsqueeze(0)).contiguous(),
        *_as_models(call, u0, weights),
        t.detach().to("cpu", torch.float64).contiguous(),
        *(counts, times, states, call.pair.numbers, call.rtol, call.atol, call.eps, call.clip),
        *(SAVED_EVERY[call.memory], is_straight_through, needs),
    )
    of_times = grad_t.sum(0)
    of_times[0] = -of_times.sum()
    results: list[Tensor | None] = [of_times.to(t), *[None] * 5]
    if needed[1]:
        results[1] = _from_models(call, has_models, grads[0], -2).sum_to_size(u0.shape)
    for index, grad in enumerate(grads[1:], 2):
        if needed[index]:
            results[index] = grad if has_models else grad.squeeze(0)
    return tuple(results)


def _step_ends(accepted: Tensor, clock: Tensor, times: Tensor) -> Tensor:
    """Return the ends of the steps ``[.., N]``; after a trajectory's last step its end again."""
    number = torch.arange(int(accepted.max())) if accepted.numel() else accepted.new_empty(0)
    is_step = number < accepted.unsqueeze(-1)
    return clock[..., :1].expand(is_step.shape).masked_scatter(is_step, times)


def _by_formula(
    call: Call,
    needed: tuple[bool, ...],
    grad_path: Tensor,
    operands: list[Tensor],
    step_ends: Tensor,
) -> list[Tensor | None]:
    """Return the gradients of the eager steps of the same sizes, differentiable."""

    def formula(t: Tensor, u0: Tensor, *weights: Tensor | None) -> tuple[Tensor]:
        rows = as_rows(u0, weights[0], call.has_starts)  # type: ignore[arg-type]
        path = replay(slope_function(weights, call), rows, t, step_ends, call.pair, call.control)
        return (path if call.has_starts else path.squeeze(-3),)

    return differentiate(formula, tuple(operands), needed, (grad_path,))
