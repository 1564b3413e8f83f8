"""Adaptive steps fused, and their derivative.

The first derivative is the discrete adjoint of the accepted steps, one call; second and higher ones are those of the
eager steps of the same sizes. What is kept of each trajectory: the times of its accepted steps, and every state, or
every 32nd one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from npu_kernels import reference as layers
from npu_kernels._operators import ops
from npu_kernels._operators.autograd import differentiate, eager_only
from npu_kernels.ode._adaptive_reference import replay
from npu_kernels.ode._function import as_rows
from npu_kernels.ode._pairs import PAIRS, Pair
from npu_kernels.reference import STRAIGHT_THROUGH

EVERY = {"full": 1, "checkpointed": 32}


class Call(NamedTuple):
    """How the steps are chosen and computed. many: whether u0 has a dimension of starts."""

    method: str
    rtol: float
    atol: float
    max_steps: int
    eps: float
    gate_gradient: str
    clip: bool
    memory: str
    many: bool

    @property
    def pair(self) -> Pair:
        return PAIRS[self.method]


def _as_models(
    call: Call, u0: Tensor, weights: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """u0 ``[K, B, D]`` and the weights with a dimension of models, contiguous."""
    weight_re = weights[0]
    assert weight_re is not None
    rows = as_rows(u0, weight_re, call.many)
    if weight_re.dim() == 2:
        rows, weights = (
            rows.unsqueeze(0),
            tuple(None if w is None else w.unsqueeze(0) for w in weights),
        )
    return rows.contiguous(), *(None if w is None else w.contiguous() for w in weights)


def _from_models(call: Call, models: bool, found: Tensor, at: int) -> Tensor:
    """`found` ``[K, B, ..]`` without the dimensions that the caller's tensors lack; `at`: B's, from the end."""
    found = found if call.many else found.squeeze(at)
    return found if models else found.squeeze(0)


def forward(
    call: Call, keep: bool, t: Tensor, u0: Tensor, *weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The caller's trajectory; counts, clock and the last state ``[(K,) B, ..]``; the times and states kept."""
    numbers, every = call.pair.numbers, EVERY[call.memory] if keep else 0
    at = t.detach().to("cpu", torch.float64).contiguous()
    path, last, counts, clock, times, states = ops.ode_adaptive_forward(
        *_as_models(call, u0, weights),
        at,
        numbers,
        call.rtol,
        call.atol,
        call.max_steps,
        call.eps,
        call.clip,
        every,
    )
    models = weights[0].dim() == 3  # type: ignore[union-attr]
    of_model = (counts, clock, last) if models else (counts[0], clock[0], last[0])
    return _from_models(call, models, path, -3), *of_model, times, states


class AdaptiveFunction(Function):
    """What `forward` gives first, from a `Call`, t, u0, weight_re, weight_im, gate, weight."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        path, counts, clock, last, times, states = forward(call, True, *tensors)  # type: ignore[arg-type]
        ctx.save_for_backward(*tensors, counts, clock, times, states)
        ctx.call = call
        ctx.mark_non_differentiable(counts, clock, last)
        return path, counts, clock, last

    @staticmethod
    def backward(ctx: Any, grad_path: Tensor, *_: Any) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[1:]
        t, u0, *weights, counts, clock, times, states = ctx.saved_tensors
        if torch.is_grad_enabled() or eager_only():
            return None, *_by_formula(
                ctx.call, needed, grad_path, (t, u0, *weights), counts, clock, times
            )
        return None, *_fused(
            ctx.call, needed, grad_path, t, u0, tuple(weights), counts, times, states
        )


def _fused(
    call: Call,
    needed: tuple[bool, ...],
    grad_path: Tensor,
    t: Tensor,
    u0: Tensor,
    weights: tuple[Tensor | None, ...],
    counts: Tensor,
    times: Tensor,
    states: Tensor,
) -> tuple[Tensor | None, ...]:
    models = counts.dim() == 3
    grad_rows = grad_path if call.many else grad_path.unsqueeze(-3)
    rows, *own = _as_models(call, u0, weights)
    needs = sum(bool(need) << bit for bit, need in enumerate((*needed[1:], needed[0])))
    *grads, grad_t = ops.ode_adaptive_backward(
        (grad_rows if models else grad_rows.unsqueeze(0)).contiguous(),
        rows,
        *own,
        t.detach().to("cpu", torch.float64).contiguous(),
        counts,
        times,
        states,
        call.pair.numbers,
        call.eps,
        call.clip,
        EVERY[call.memory],
        call.gate_gradient == STRAIGHT_THROUGH,
        needs,
    )
    found: list[Tensor | None] = [None] * 6
    if needed[0]:
        of_times = grad_t.sum(0)
        of_times[0] = -of_times.sum()
        found[0] = of_times.to(t)
    if needed[1]:
        found[1] = _from_models(call, models, grads[0], -2).sum_to_size(u0.shape)
    for index, grad in enumerate(grads[1:], 2):
        if needed[index]:
            found[index] = grad if models else grad.squeeze(0)
    return tuple(found)


def _by_formula(
    call: Call,
    needed: tuple[bool, ...],
    grad_path: Tensor,
    operands: tuple[Tensor | None, ...],
    counts: Tensor,
    clock: Tensor,
    times: Tensor,
) -> list[Tensor | None]:
    """The gradients of the eager steps of the same sizes, differentiable."""
    accepted = counts[..., 0]
    number = torch.arange(int(accepted.max())) if accepted.numel() else accepted.new_empty(0)
    there = number < accepted.unsqueeze(-1)
    ends = clock[..., :1].expand(there.shape).masked_scatter(there, times)

    def formula(
        t: Tensor,
        u0: Tensor,
        weight_re: Tensor,
        weight_im: Tensor | None,
        gate: Tensor | None,
        weight: Tensor,
    ) -> tuple[Tensor]:
        def f(u: Tensor) -> Tensor:
            y = layers.npu(
                u, weight_re, weight_im, gate, eps=call.eps, gate_gradient=call.gate_gradient
            )
            return layers.nau(y, weight, clip=call.clip)

        path = replay(f, as_rows(u0, weight_re, call.many), t, ends, call.pair)
        return (path if call.many else path.squeeze(-3),)

    return differentiate(formula, operands, needed, (grad_path,))
