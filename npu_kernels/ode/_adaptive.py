"""Adaptive steps: check, choose, call, and say what went wrong."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.jit import is_tracing

from npu_kernels import functional
from npu_kernels._common.errors import NonFiniteError
from npu_kernels._common.notices import warn
from npu_kernels._operators import dispatch
from npu_kernels._operators.autograd import eager_only, outside_of_transforms
from npu_kernels._operators.checks import EPS
from npu_kernels._operators.transforms import is_vmapped
from npu_kernels.ode import _accuracy as accuracy
from npu_kernels.ode import _checks as checks
from npu_kernels.ode._loop import adaptive_reference as reference
from npu_kernels.ode._loop import methods
from npu_kernels.ode._loop.adaptive import Call, run
from npu_kernels.ode._loop.loop import Weights, as_rows, slope_function


class Statistics(NamedTuple):
    """The steps of each trajectory, ``[(K,) (B,)]`` each.

    Attributes:
        accepted: steps.
        rejected: steps.
        evaluations: of the model: two for the size of the first step; six for a step of an explicit
            method, and for one of an implicit method Newton's iterations and its Jacobian.
    """

    accepted: Tensor
    rejected: Tensor
    evaluations: Tensor


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
        options.method, options.rtol, atol, options.max_steps, options.max_steps + 1, eps,
        options.gate_gradient, options.clip, options.memory, has_starts,
    )  # fmt: skip
    if options.method == methods.AUTO:
        result = _auto(call, times, u0, weights)
        call = call._replace(method=methods.IMPLICIT)  # whose ends the result has
    else:
        result = _solve(call, times, u0, weights)
    _report(options, call, result, weights)
    if not options.statistics:
        return result.path
    counts = result.counts if has_starts else result.counts.squeeze(-2)
    accepted, rejected, _, _, evaluations = counts.clone().unbind(-1)
    return result.path, Statistics(accepted, rejected, evaluations)


class _Result(NamedTuple):
    """A trajectory, and the control's counts, clock and last state, as in `reference.Steps`."""

    path: Tensor
    counts: Tensor
    clock: Tensor
    last: Tensor


def _solve(call: Call, times: Tensor, u0: Tensor, weights: Weights) -> _Result:
    fused = not eager_only() or outside_of_transforms((times, u0, *weights)) is not None
    if fused and dispatch.backend_for(weights[0]) == "cpu":
        return _Result(*run(call, times, u0, weights))
    return _eager(call, times, u0, weights)


def _auto(call: Call, times: Tensor, u0: Tensor, weights: Weights) -> _Result:
    """Return explicit steps, and implicit steps of the trajectories that are too stiff for them.

    Too stiff: as many steps at the bound of stability as `_report` would warn of, or an end that is
    not reached. Such a trajectory is computed anew from its start: a stiff model is stiff most of
    the time, and a path of one method has the interpolant and the derivative of that method.
    """
    explicit = call._replace(method=methods.EXPLICIT, max_at_bound=accuracy.MIN_STIFF_STEPS)
    by_implicit = call._replace(method=methods.IMPLICIT)
    first = _solve(explicit, times, u0, weights)
    index = (first.counts[..., 3] != reference.DONE).nonzero(as_tuple=True)
    if not len(index[0]):
        return first
    if len(index[0]) * first.counts.shape[-1] == first.counts.numel():
        second = _solve(by_implicit, times, u0, weights)
        return second._replace(counts=_with_evaluations(second.counts, first.counts))
    rows = as_rows(u0, weights[0], call.has_starts)
    device_index = tuple(part.to(u0.device) for part in index)
    has_models = len(index) == 2
    laws = tuple(w[device_index[0]] if has_models and w is not None else w for w in weights)
    second = _solve(
        by_implicit._replace(has_starts=not has_models),
        times,
        rows[device_index],
        laws,  # type: ignore[arg-type]
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
    slope = slope_function(weights, call, functional)
    rows = as_rows(u0, weights[0], call.has_starts)
    plain_times = times.to("cpu", torch.float64)
    with torch.autocast(u0.device.type, enabled=False):
        steps = reference.find_steps(slope, rows, plain_times, call.pair, call.control)
        saves = call.memory == "checkpointed" and not eager_only()
        length = math.isqrt(max(steps.times.shape[-1], 1) - 1) + 1 if saves else None
        path = reference.replay(slope, rows, times, steps.times, call.pair, call.control, length)
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
        slope = accuracy.right_side(weights, index[0] if has_models else None, call)
        return accuracy.at_the_bound(slope, result.last[index], float(clock[index][1]), call.method)

    failed = status != reference.DONE
    if options.nonfinite == "raise" and failed.any():
        index, name, rest = first_of(failed)
        reached = f"{float(clock[index][0]):.9g}"
        keep = "nonfinite='keep' returns it as it is, with nan from there on"
        if status[index] == reference.NOT_FINITE:
            raise NonFiniteError(
                f"{options.function}: {name} is not finite from t = {reached} on{rest}; {keep}",
                checks.first_nonfinite(result.path),
            )
        reason = (
            f"needs more than max_steps={call.max_steps} steps: it has reached t = {reached}, with "
            f"{int(rejected[index])} steps rejected{hint(index)}"
            if status[index] == reference.TOO_MANY
            else f"stops at t = {reached}: its steps became too small for the time to change, as "
            "they do before a pole or at a jump"
        )
        times = clock[..., 0] if call.has_starts else clock[..., 0].squeeze(-1)
        raise accuracy.StepSizeError(f"{options.function}: {name} {reason}{rest}; {keep}", times)
    is_bound = (stiff >= accuracy.MIN_STIFF_STEPS) & (2 * stiff >= accepted)
    bound = (status == reference.DONE) & is_bound
    if bound.any():
        index, name, rest = first_of(bound)
        if advice := hint(index):
            message = (
                f"{options.function}: {int(stiff[index])} of {int(accepted[index])} steps of "
                f"{name} are as long as its stability allows, whatever the tolerance, the first at "
                f"t = {float(clock[index][2]):g}{rest}{advice}"
            )
            steps = stiff.clone() if call.has_starts else stiff.squeeze(-1)
            warn(accuracy.StiffWarning(message, steps))
