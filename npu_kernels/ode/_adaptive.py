"""Adaptive steps in eager torch: the specification and the oracle of the fused steps.

`find_steps` chooses the steps, every trajectory its own; `replay` repeats them, differentiable to
any order, with their sizes as constants. They run where no fused steps do. Shapes: ``u0 [..., D]``,
and ``[...]`` for one number of each trajectory.

Step control: Hairer, Norsett and Wanner, "Solving Ordinary Differential Equations I", II.4 and
IV.2. With q the root mean square of error / (atol + rtol max(|u|, |u_new|)), a step is accepted
where q <= 1. The next step's size is

    h / max(0.1, q^0.17 / q_before^0.04 / 0.9)    after an accepted step
    h / min(5, q^0.17 / 0.9)                      after a rejected one
    h / 2                                         after one whose stages have no solution

The last is for the steps of an implicit pair, which are in `_implicit`.

A power layer sees |u| + eps. So u' = -a u jumps by 2 a eps at u = 0, and a state that
has decayed goes to and fro there, whatever h is. A step in which a state of at most 10 eps changes
its sign is allowed an error of 10 eps, in all states: those that depend on it jump, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.compiler import is_compiling
from torch.jit import is_tracing
from torch.utils.checkpoint import checkpoint

from npu_kernels import functional
from npu_kernels._common.checks import NonFiniteError, warn
from npu_kernels._operators import dispatch, ops
from npu_kernels._operators.autograd import (
    apply_alone,
    differentiate,
    eager_only,
    outside_of_transforms,
)
from npu_kernels._operators.operands import EPS
from npu_kernels._operators.transforms import is_vmapped
from npu_kernels.ode import _checks as checks
from npu_kernels.ode import _implicit as implicit
from npu_kernels.ode import _methods as methods
from npu_kernels.ode._implicit import Attempt, detached
from npu_kernels.ode._implicit import Control as Control
from npu_kernels.ode._loop import Weights, as_rows, combine, right_hand_side, stage_rows
from npu_kernels.ode._methods import PAIRS, STAGES, Method
from npu_kernels.reference import STRAIGHT_THROUGH

# How a trajectory ended. STUCK: its steps became too small for its time to move. NOT_FINITE: the
# same because its next state or its first derivative is not finite. STIFF: so many of its steps
# were at the bound of stability that another method should take it.
DONE, TOO_MANY, STUCK, NOT_FINITE, STIFF = range(5)
BETA = 0.04  # exponent of the error of the step before, in the control
ROUNDING = torch.finfo(torch.float64).eps
# Shares of the bound of stability from which a step is at it; the second where a state goes to and
# fro at 0, which keeps steps below the bound.
NEAR, NEAR_AT_ZERO = 0.98, 0.5
SHORTEST = 10 * ROUNDING  # of the time: shorter steps do not move it well
RightSide = Callable[[Tensor], Tensor]


class Steps(NamedTuple):
    """The steps that the control chose; on the CPU, but for `last`.

    times: the ends of the accepted steps ``[..., N]``, in float64; a trajectory of fewer repeats
        its last one.
    counts: ``[..., 5]``: accepted and rejected steps, accepted ones at the bound of stability, how
        the trajectory ended, evaluations of f.
    clock: ``[..., 3]`` in float64: time reached, size of the step that would come next, time of the
        first step at the bound of stability (nan: none).
    last: the state reached ``[..., D]``, on u0's device.
    """

    times: Tensor
    counts: Tensor
    clock: Tensor
    last: Tensor


def step(
    f: RightSide, u: Tensor, k1: Tensor, h: Tensor, pair: Method
) -> tuple[list[Tensor], list[Tensor]]:
    """Step by h ``[..., 1]``: the states after u, the last being the new one; all derivatives."""
    states, k = [], [k1]
    for row in stage_rows(pair.tableau):
        states.append(u + h * combine(k, row))
        k.append(f(states[-1]))
    return states, k


def _attempt(
    f: RightSide, u: Tensor, k1: Tensor, h: Tensor, runs: Tensor, pair: Method, control: Control
) -> Attempt:
    """Try a step of size h ``[..., 1]`` where `runs` ``[...]``."""
    if pair.diagonal:
        return implicit.attempt(f, u, k1, h, runs, pair, control)
    states, k = step(detached(f), u, k1, h, pair)
    return Attempt(states, k, runs, torch.zeros_like(runs), (STAGES - 1) * runs.long())


def _rms(x: Tensor) -> Tensor:
    return x.square().mean(-1).sqrt().cpu().double()


def _first_size(
    f: RightSide, u: Tensor, k: Tensor, span: float, rtol: float, atol: float
) -> Tensor:
    """Hairer's starting step (II.4), positive."""
    scale = atol + rtol * u.abs()
    d0, d1 = _rms(u / scale), _rms(k / scale)
    h0 = torch.where((d0 < 1e-5) | (d1 < 1e-5), 1e-6, 0.01 * d0 / d1).clamp(max=abs(span))
    signed = h0.copysign(torch.tensor(span)).unsqueeze(-1).to(u)
    d2 = _rms((f(u + signed * k) - k) / scale) / h0
    rate = torch.maximum(d1, d2)
    h1 = torch.where(rate <= 1e-15, torch.clamp(h0 * 1e-3, min=1e-6), (0.01 / rate) ** 0.2)
    h1 = torch.where(d2.isfinite(), h1, h0 * 1e-3)
    return torch.minimum(100 * h0, h1)


def _shortest(time: Tensor, span: float) -> Tensor:
    """Return the size of a step that is too short, of trajectories at some times."""
    return SHORTEST * time.abs().clamp(min=ROUNDING * abs(span))


def _units(u: Tensor, tried: Attempt, control: Control) -> tuple[Tensor, Tensor]:
    """Return the units of a step's errors ``[..., D]``, and where it goes to and fro at 0.

    The latter is ``[...]``, on the CPU.
    """
    largest = torch.maximum(u.abs(), tried.states[-1].abs())
    units = control.atol + control.rtol * largest
    changes = torch.stack([(state < 0) != (u < 0) for state in tried.states]).any(0)
    jump = implicit.JUMP * control.eps
    at_zero = (changes & (largest <= jump)).any(-1, keepdim=True)
    units = torch.where(at_zero, units.clamp(min=jump), units)
    return units, at_zero.squeeze(-1).cpu()


def find_steps(f: RightSide, u0: Tensor, t: Tensor, pair: Method, control: Control) -> Steps:
    """The steps of every trajectory from t[0] to t[-1]; `t` in float64 on the CPU."""
    with torch.no_grad():
        return _find_steps(f, u0.detach(), t.detach(), pair, control)


def _find_steps(f: RightSide, u: Tensor, t: Tensor, pair: Method, control: Control) -> Steps:
    rtol, atol, max_steps, max_at_bound, _ = control
    values = detached(f)
    begin, end = float(t[0]), float(t[-1])
    span, sign = end - begin, 1 if end > begin else -1
    k1 = values(u)
    size = _first_size(values, u, k1, span, rtol, atol)
    time = torch.full_like(size, begin)
    size = torch.maximum(size, 2 * _shortest(time, span))
    before = torch.full_like(size, 1e-4)  # the error of the accepted step before
    counts = torch.zeros((*size.shape, 5), dtype=torch.int64)
    clock = torch.full((*size.shape, 3), torch.nan, dtype=torch.float64)
    accepted, rejected, stiff, status, evaluations = counts.unbind(-1)
    evaluations += 2
    status[...] = torch.where(k1.isfinite().all(-1).cpu(), -1, NOT_FINITE)
    shrunk = torch.zeros_like(status, dtype=torch.bool)  # the last step tried was rejected
    broken = shrunk.clone()  # and was not finite
    step_ends: list[Tensor] = []
    accepts: list[Tensor] = []
    while (active := status < 0).any():
        status.masked_fill_(active & (stiff >= max_at_bound) & (2 * stiff >= accepted), STIFF)
        status.masked_fill_((status < 0) & (accepted + rejected >= max_steps), TOO_MANY)
        stuck = (status < 0) & (size <= _shortest(time, span))
        status[...] = torch.where(stuck, torch.where(broken, NOT_FINITE, STUCK), status)
        active = status < 0
        last = 1.01 * size >= (end - time).abs()
        new_time = torch.where(last, end, time + sign * size)
        h = new_time - time
        h_column = h.unsqueeze(-1).to(u)
        tried = _attempt(f, u, k1, h_column, active, pair, control)
        new, k = tried.states[-1], tried.derivatives
        evaluations += tried.evaluations
        scale, at_zero = _units(u, tried, control)
        q = _rms(h_column * combine(k, pair.error) / scale)
        broken = torch.where(tried.solved, ~q.isfinite(), tried.broken)
        good = tried.solved & (q <= 1)
        factor = torch.where(tried.solved, q ** (0.2 - 0.75 * BETA) / 0.9, 2.0)
        factor = torch.where(broken, 5.0, factor)
        grown = h.abs() / (factor / before**BETA).clamp(min=0.1)
        grown = torch.where(shrunk, torch.minimum(grown, h.abs()), grown)
        size = torch.where(good, grown, torch.where(active, h.abs() / factor.clamp(max=5.0), size))
        before = torch.where(good, q.clamp(min=1e-4), before)
        apart, bend = _rms(new - tried.states[-2]), _rms(k[6] - k[5]) * h.abs()
        share = torch.where(at_zero, NEAR_AT_ZERO, NEAR)
        at_bound = good & (apart > 0) & (bend > share * pair.stable * apart)
        clock[..., 2] = torch.where(at_bound & (stiff == 0), time, clock[..., 2])
        accepted += good
        rejected += active & ~good
        stiff += at_bound
        evaluations += good if pair.diagonal else 0  # where the next step is linearised
        shrunk = ~good
        time = torch.where(good, new_time, time)
        status.masked_fill_(good & last, DONE)
        moved = good.unsqueeze(-1).to(u.device)
        u, k1 = torch.where(moved, new, u), torch.where(moved, k[6], k1)
        step_ends.append(time)
        accepts.append(good)
    clock[..., 0], clock[..., 1] = time, size * sign
    return Steps(_pack(step_ends, accepts, time, accepted), counts, clock, u)


def _pack(step_ends: list[Tensor], accepts: list[Tensor], time: Tensor, accepted: Tensor) -> Tensor:
    """Return the times of the accepted steps ``[..., N]``, one after the other."""
    if not step_ends or accepted.numel() == 0:
        return time.new_empty((*time.shape, 0))
    order = torch.stack(accepts, -1).logical_not().to(torch.int8).argsort(dim=-1, stable=True)
    times = torch.stack(step_ends, -1).gather(-1, order)[..., : int(accepted.max())]
    is_step = torch.arange(times.shape[-1]) < accepted.unsqueeze(-1)
    return torch.where(is_step, times, time.unsqueeze(-1))


def replay(
    f: RightSide,
    u0: Tensor,
    t: Tensor,
    times: Tensor,
    pair: Method,
    control: Control,
    length: int | None = None,
) -> Tensor:
    """Return the states ``[..., M, D]`` at t, from steps that end at `times` ``[..., N]``.

    Behind the last step they are nan. Differentiable with respect to u0, t and the weights of f.
    control: its tolerances are those of an implicit pair's stages.
    length: steps of a segment, of which only the first state is saved for a derivative; None
    saves all.
    """
    lead, steps = u0.shape[:-1], times.shape[-1]
    if steps == 0:
        outputs = u0.new_full((*lead, len(t) - 1, u0.shape[-1]), torch.nan)
        return torch.cat([u0.unsqueeze(-2), outputs], -2)
    exact = t.to("cpu", torch.float64)
    values = exact.detach()
    shift = (exact[1:] - values[1:]) - (exact[0] - values[0])  # zeros with t's derivative
    sign = 1.0 if values[-1] > values[0] else -1.0
    step_ends = torch.cat([values[0].expand((*lead, 1)), times], -1)
    sizes = step_ends.diff(dim=-1)
    sorted_ends, targets = sign * step_ends[..., 1:], (sign * values[1:]).expand((*lead, -1))
    index = torch.searchsorted(sorted_ends.contiguous(), targets.contiguous())
    reached = index < steps
    index = index.clamp(max=steps - 1)
    size = sizes.gather(-1, index)
    size = torch.where(reached, size, 1.0)
    x = ((values[1:] - step_ends.gather(-1, index) + shift) / size).to(u0.device)

    def segment(
        u: Tensor, k1: Tensor, x: Tensor, first: int, count: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        inside = reached & (index >= first) & (index < first + count)
        columns = inside.reshape(-1, inside.shape[-1]).any(0).nonzero().squeeze(-1)
        states, derivatives, end_states = [], [], []
        for n in range(first, first + count):
            new, k = _repeat(f, u, k1, sizes[..., n, None].to(u), pair, control)
            states.append(u)
            derivatives.append(torch.stack(k, -2))
            end_states.append(new)
            u, k1 = new, k[-1]
        step_index = (index - first).clamp(0, count - 1)[..., columns].to(u.device)
        # Elsewhere a step of size 0, whose state is finite.
        is_inside = inside[..., columns].to(u.device)
        share = torch.where(is_inside, x[..., columns], 1.0).to(u)
        h = torch.where(is_inside, size[..., columns].to(u.device), 0.0).to(u)
        outputs = _dense(
            f=f,
            states=torch.stack(states, -2),
            end_states=torch.stack(end_states, -2),
            derivatives=torch.stack(derivatives, -3),
            index=step_index,
            x=share,
            size=h,
            pair=pair,
            control=control,
        )
        outputs = torch.where(is_inside.unsqueeze(-1), outputs, 0)
        return u, k1, outputs, columns.to(u.device)

    u, k1, result = u0, f(u0), u0.new_zeros((*lead, len(values) - 1, u0.shape[-1]))
    length = length or steps
    saves = length < steps
    repeat = functools.partial(checkpoint, segment, use_reentrant=False) if saves else segment
    for first in range(0, steps, length):
        u, k1, outputs, columns = repeat(u, k1, x, first, min(length, steps - first))
        result = result.index_add(-2, columns, outputs)
    result = torch.where(reached.unsqueeze(-1).to(u.device), result, torch.nan)
    return torch.cat([u0.unsqueeze(-2), result], -2)


def _repeat(
    f: RightSide, u: Tensor, k1: Tensor, h: Tensor, pair: Method, control: Control
) -> tuple[Tensor, list[Tensor]]:
    """Return the new state and all derivatives of a step, differentiable."""
    if pair.diagonal:
        return implicit.step(f, u, k1, h, pair, control)
    states, k = step(f, u, k1, h, pair)
    return states[-1], k


def _dense(
    f: RightSide,
    states: Tensor,
    end_states: Tensor,
    derivatives: Tensor,
    index: Tensor,
    x: Tensor,
    size: Tensor,
    pair: Method,
    control: Control,
) -> Tensor:
    """The interpolant of step index ``[..., C]`` at x.

    states, end_states ``[..., N, D]``: of the steps. derivatives ``[..., N, 7, D]``.
    """
    d = states.shape[-1]
    columns = index.unsqueeze(-1).expand((*index.shape, d))
    u = states.gather(-2, columns)
    k = derivatives.gather(-3, index[..., None, None].expand((*index.shape, STAGES, d)))
    if pair.diagonal:
        rows = [part.flatten(-3, -2) for part in (u, *k.unbind(-2))]  # as f takes them
        h, share = (part.flatten(-2).unsqueeze(-1) for part in (size, x))
        within = implicit.output(f, rows[0], rows[1:], h, share, pair, control)
        # At the end the state itself; its derivatives for t are the solution's, as the next step's.
        shift, end = h * (share - 1), end_states.gather(-2, columns).flatten(-3, -2)
        end = end + shift * f(end + shift / 2 * rows[-1])
        return torch.where(share == 1, end, within).view_as(u)
    total = torch.zeros_like(u)
    for p in reversed(range(4)):
        q = combine(k.unbind(-2), pair.dense[p::4])
        total = (total + q) * x.unsqueeze(-1)
    return u + size.unsqueeze(-1) * total


# ---- fused steps ---------------------------------------------------------------------------------
#
# The first derivative is the discrete adjoint of the accepted steps, one call; second and higher
# ones are those of the eager steps of the same sizes. Each trajectory keeps the times of its
# accepted steps, and every state, or every 32nd one.

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


def _as_models(call: Call, u0: Tensor, weights: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return u0 ``[K, B, D]`` and the weights with a dimension of models, contiguous."""
    weight_re = weights[0]
    assert weight_re is not None
    tensors = [as_rows(u0, weight_re, call.has_starts), *weights]
    if weight_re.dim() == 2:
        tensors = [None if t is None else t.unsqueeze(0) for t in tensors]
    return [None if t is None else t.contiguous() for t in tensors]


def _from_models(call: Call, has_models: bool, result: Tensor, starts_dim: int) -> Tensor:
    """Return ``[K, B, ..]`` without the dimensions that the caller's tensors lack."""
    result = result if call.has_starts else result.squeeze(starts_dim)
    return result if has_models else result.squeeze(0)


def run(call: Call, t: Tensor, u0: Tensor, weights: Weights) -> tuple[Tensor, ...]:
    """Return the trajectory, counts, clock and last state, differentiable if asked for."""
    tensors = t, u0, *weights
    if plain := outside_of_transforms(tensors):
        return apply_alone(AdaptiveFunction, (call, *plain))  # type: ignore[no-any-return]
    if torch.is_grad_enabled() and any(w is not None and w.requires_grad for w in tensors):
        weight_re, weight_im, gate, weight = weights
        return AdaptiveFunction.apply(  # type: ignore[no-untyped-call,no-any-return]
            call, t, u0, weight_re, weight_im, gate, weight
        )
    return forward(call, False, t, u0, weights)[:4]


def forward(call: Call, keep: bool, t: Tensor, u0: Tensor, weights: Weights) -> tuple[Tensor, ...]:
    """Call the operator.

    Returns the caller's trajectory; counts, clock and the last state ``[(K,) B, ..]``; the saved
    times and states, none unless `keep`; the trajectory ``[K, B, M, D]`` where the backward reads
    it, none for an explicit method.
    """
    times = t.detach().to("cpu", torch.float64).contiguous()
    rows, weight_re, weight_im, gate, weight = _as_models(call, u0, weights)
    path, last, counts, clock, saved_times, states = ops.ode_adaptive_forward(
        rows,
        weight_re,
        weight_im,
        gate,
        weight,
        times,
        call.pair.numbers,
        call.rtol,
        call.atol,
        call.max_steps,
        call.max_at_bound,
        call.eps,
        call.clip,
        SAVED_EVERY[call.memory] if keep else 0,
    )
    has_models = weights[0].dim() == 3
    state = (counts, clock, last) if has_models else (counts[0], clock[0], last[0])
    result = _from_models(call, has_models, path, -3)
    return result, *state, saved_times, states, path if call.pair.diagonal else path.new_empty(0)


class AdaptiveFunction(Function):
    """The trajectory, counts, clock and last state of a `Call`, t, u0 and the weights."""

    @staticmethod
    def forward(
        ctx: Any,
        call: Call,
        t: Tensor,
        u0: Tensor,
        weight_re: Tensor,
        weight_im: Tensor | None,
        gate: Tensor | None,
        weight: Tensor,
    ) -> tuple[Tensor, ...]:
        weights = weight_re, weight_im, gate, weight
        path, counts, clock, last, *saved = forward(call, True, t, u0, weights)
        stored = (t, u0, *weights, counts, clock, *saved)
        ctx.save_for_backward(*stored)
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
    rows, weight_re, weight_im, gate, weight = _as_models(call, u0, weights)
    has_models = counts.dim() == 3
    grad_rows = grad_path if call.has_starts else grad_path.unsqueeze(-3)
    needs = sum(bool(need) << bit for bit, need in enumerate((*needed[1:], needed[0])))
    is_straight_through = call.gate_gradient == STRAIGHT_THROUGH
    *grads, grad_t = ops.ode_adaptive_backward(
        path,
        (grad_rows if has_models else grad_rows.unsqueeze(0)).contiguous(),
        rows,
        weight_re,
        weight_im,
        gate,
        weight,
        t.detach().to("cpu", torch.float64).contiguous(),
        counts,
        times,
        states,
        call.pair.numbers,
        call.rtol,
        call.atol,
        call.eps,
        call.clip,
        SAVED_EVERY[call.memory],
        is_straight_through,
        needs,
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

    def formula(inputs: Sequence[Any]) -> tuple[Tensor]:
        t, u0, *weights = inputs
        rows = as_rows(u0, weights[0], call.has_starts)
        path = replay(right_hand_side(weights, call), rows, t, step_ends, call.pair, call.control)
        return (path if call.has_starts else path.squeeze(-3),)

    return differentiate(formula, operands, needed, (grad_path,))


# ---- the calls -----------------------------------------------------------------------------------
#
# Adaptive steps: check, choose, call, and say what went wrong.


class Statistics(NamedTuple):
    """The steps of each trajectory, ``[(K,) (B,)]`` each.

    Attributes:
        n_accepted: number of steps that were accepted.
        n_rejected: number of steps that were tried and rejected.
        n_evaluations: number of evaluations of the model: two for the size of the first step, six
            for a step of an explicit method; for a step of an implicit method, Newton's iterations
            and the Jacobian. The steps of kvaerno5 to the times of t are not counted.
    """

    n_accepted: Tensor
    n_rejected: Tensor
    n_evaluations: Tensor


def integrate(options: checks.Options, u0: Tensor, weights: Weights) -> Any:
    """Return the trajectory, and statistics if they are asked for."""
    function = options.function
    if is_compiling() or is_tracing() or any(map(is_vmapped, (u0, *weights))):
        raise RuntimeError(
            f"{function}: method {options.method!r} has to look at the values to choose its steps, "
            "which torch.compile, torch.func.vmap and torch.jit.trace cannot"
        )
    eps, has_starts = checks.check_operands(options, u0, weights)
    if options.rtol < (minimum := 4 * torch.finfo(u0.dtype).eps):
        raise ValueError(
            f"{function}: rtol must be at least {minimum:.2g} in {u0.dtype}, got {options.rtol!r}"
        )
    times = checks.check_times(function, options.t)
    atol = options.atol
    if atol is None:
        atol = checks.ATOL * min(1.0, eps / EPS[u0.dtype])
    call = Call(
        method=options.method,
        rtol=options.rtol,
        atol=atol,
        max_steps=options.max_steps,
        max_at_bound=options.max_steps + 1,
        eps=eps,
        gate_gradient=options.gate_gradient,
        clip=options.clip,
        memory=options.memory,
        has_starts=has_starts,
    )
    if options.method == methods.AUTO:
        result = _auto(call, times, u0, weights)
        call = call._replace(method=methods.IMPLICIT)  # whose ends the result has
    else:
        result = _solve(call, times, u0, weights)
    _report(options, call, result, weights)
    if not options.return_statistics:
        return result.path
    counts = result.counts if has_starts else result.counts.squeeze(-2)
    accepted, rejected, _, _, evaluations = counts.clone().unbind(-1)
    return result.path, Statistics(accepted, rejected, evaluations)


class _Result(NamedTuple):
    """A trajectory, and the control's counts, clock and last state, as in `Steps`."""

    path: Tensor
    counts: Tensor
    clock: Tensor
    last: Tensor


def _solve(call: Call, times: Tensor, u0: Tensor, weights: Weights) -> _Result:
    fused = not eager_only() or outside_of_transforms((times, u0, *weights)) is not None
    if fused and dispatch.backend_for(weights[0]) == "cpu":
        return _Result._make(run(call, times, u0, weights))
    return _eager(call, times, u0, weights)


def _auto(call: Call, times: Tensor, u0: Tensor, weights: Weights) -> _Result:
    """Return explicit steps, and implicit steps of the trajectories that are too stiff for them.

    Too stiff: as many steps at the bound of stability as `_report` would warn of, or an end that is
    not reached. Such a trajectory is computed again from its start: a stiff model is stiff most of
    the time, and a path of one method has the interpolant and the derivative of that method.
    """
    explicit = call._replace(method=methods.EXPLICIT, max_at_bound=checks.MIN_STIFF_STEPS)
    by_implicit = call._replace(method=methods.IMPLICIT)
    first = _solve(explicit, times, u0, weights)
    index = (first.counts[..., 3] != DONE).nonzero(as_tuple=True)
    if not len(index[0]):
        return first
    if len(index[0]) * first.counts.shape[-1] == first.counts.numel():
        second = _solve(by_implicit, times, u0, weights)
        return second._replace(counts=_with_evaluations(second.counts, first.counts))
    rows = as_rows(u0, weights[0], call.has_starts)
    device_index = tuple(part.to(u0.device) for part in index)
    has_models = len(index) == 2
    second_weights = tuple(
        w[device_index[0]] if has_models and w is not None else w for w in weights
    )
    second = _solve(
        by_implicit._replace(has_starts=not has_models),
        times,
        rows[device_index],
        second_weights,  # type: ignore[arg-type]
    )
    counts = _with_evaluations(second.counts.reshape(len(index[0]), -1), first.counts[index])
    paths = first.path if call.has_starts else first.path.unsqueeze(-3)
    paths = paths.index_put(device_index, second.path)
    all_counts = first.counts.index_put(index, counts)
    clock = first.clock.index_put(index, second.clock.reshape(len(index[0]), -1))
    last = first.last.index_put(device_index, second.last.reshape(len(index[0]), -1))
    path = paths if call.has_starts else paths.squeeze(-3)
    return _Result(path, all_counts, clock, last)


def _with_evaluations(counts: Tensor, before: Tensor) -> Tensor:
    """Return the counts with the evaluations of an earlier attempt added."""
    return torch.cat([counts[..., :4], counts[..., 4:] + before[..., 4:]], -1)


def _eager(call: Call, times: Tensor, u0: Tensor, weights: Weights) -> _Result:
    """Call the layers' functions in every stage: any device, any mode of differentiation."""
    rhs = right_hand_side(weights, call, functional)
    rows = as_rows(u0, weights[0], call.has_starts)
    plain_times = times.to("cpu", torch.float64)
    with torch.autocast(u0.device.type, enabled=False):
        steps = find_steps(rhs, rows, plain_times, call.pair, call.control)
        saves = call.memory == "checkpointed" and not eager_only()
        length = math.isqrt(max(steps.times.shape[-1], 1) - 1) + 1 if saves else None
        path = replay(rhs, rows, times, steps.times, call.pair, call.control, length)
    path = path if call.has_starts else path.squeeze(-3)
    return _Result(path, steps.counts, steps.clock, steps.last)


def _report(options: checks.Options, call: Call, result: _Result, weights: Weights) -> None:
    """Raise for a trajectory that did not reach its end, unless it is kept; warn of a stiff one."""
    counts, clock = result.counts, result.clock
    accepted, rejected, stiff, status, _ = counts.unbind(-1)
    has_models = weights[0].dim() == 3

    def first_of(flags: Tensor) -> tuple[tuple[int, ...], str, str]:
        """Return the first trajectory's index and name, and how many others are like it."""
        index, count = tuple(flags.nonzero()[0].tolist()), int(flags.sum())
        rest = f", the first of {count} of {flags.numel()} trajectories" if count > 1 else ""
        position = index if call.has_starts else index[:-1]
        if options.starts is not None:
            position = *position[:-1], options.starts[position[-1]]
        return index, checks.trajectory_name(position, has_models, call.has_starts), rest

    def hint(index: tuple[int, ...]) -> str:
        rhs = checks.right_side(weights, index[0] if has_models else None, call)
        return checks.at_the_bound(rhs, result.last[index], float(clock[index][1]), call.method)

    failed = status != DONE
    if options.nonfinite == "raise" and failed.any():
        index, name, rest = first_of(failed)
        reached = f"{float(clock[index][0]):.9g}"
        keep = "nonfinite='keep' returns it as it is, with nan from there on"
        if status[index] == NOT_FINITE:
            raise NonFiniteError(
                f"{options.function}: {name} is not finite from t = {reached} on{rest}; {keep}",
                checks.first_nonfinite(result.path),
            )
        reason = (
            f"needs more than max_steps={call.max_steps} steps: it has reached t = {reached}, with "
            f"{int(rejected[index])} steps rejected{hint(index)}"
            if status[index] == TOO_MANY
            else f"stops at t = {reached}: its steps became too small for the time to change, as "
            "they do before a pole or at a jump"
        )
        times = clock[..., 0] if call.has_starts else clock[..., 0].squeeze(-1)
        raise checks.StepSizeError(f"{options.function}: {name} {reason}{rest}; {keep}", times)
    is_bound = (stiff >= checks.MIN_STIFF_STEPS) & (2 * stiff >= accepted)
    bound = (status == DONE) & is_bound
    if bound.any():
        index, name, rest = first_of(bound)
        if advice := hint(index):
            message = (
                f"{options.function}: {int(stiff[index])} of {int(accepted[index])} steps of "
                f"{name} are as long as its stability allows, whatever the tolerance, the first at "
                f"t = {float(clock[index][2]):g}{rest}{advice}"
            )
            steps = stiff.clone() if call.has_starts else stiff.squeeze(-1)
            warn(checks.StiffWarning(message, steps))
