"""Adaptive steps: check, choose, call, and say what went wrong."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.jit import is_tracing

from npu_kernels import functional
from npu_kernels._common.checks import check_number, check_tensor, check_whole
from npu_kernels._common.notices import warn
from npu_kernels._operators import dispatch
from npu_kernels._operators.autograd import eager_only
from npu_kernels.ode import _accuracy as accuracy
from npu_kernels.ode import _adaptive_reference as reference
from npu_kernels.ode import _checks as checks
from npu_kernels.ode._adaptive_function import AdaptiveFunction, Call, forward
from npu_kernels.ode._function import as_rows
from npu_kernels.ode._pairs import PAIRS
from npu_kernels.ode._reference import METHODS

RTOL, ATOL, MAX_STEPS = 1e-6, 1e-9, 10_000
Weights = tuple[Tensor, Tensor | None, Tensor | None, Tensor]  # weight_re, weight_im, gate, weight
NAMES = " and ".join(map(repr, PAIRS))


class Statistics(NamedTuple):
    """What a trajectory took, ``[(K,) (B,)]`` each.

    accepted, rejected: steps. evaluations: of the model; six for each step, and two for the size of the first one.
    """

    accepted: Tensor
    rejected: Tensor
    evaluations: Tensor


def is_asked_for(t: Any, method: Any) -> bool:
    return t is not None or (isinstance(method, str) and method in PAIRS)


def refuse(
    function: str, method: Any, rtol: Any, atol: Any, max_steps: Any, statistics: Any
) -> None:
    """ValueError for an argument of the adaptive steps beside a method of fixed ones."""
    given = (("rtol", rtol, RTOL), ("atol", atol, ATOL), ("max_steps", max_steps, MAX_STEPS))
    for name, value, default in (*given, ("statistics", statistics, False)):
        if value != default:
            raise ValueError(
                f"{function}: {name} is for method={' or '.join(map(repr, PAIRS))}, got {name}={value!r} with "
                f"method={method!r}"
            )


def check_options(
    function: str, t: Any, method: Any, of_fixed: dict[str, Any], **options: Any
) -> None:
    """ValueError or TypeError for what does not fit together, or is no valid value.

    of_fixed: the arguments that only methods of fixed steps take, as they were given.
    """
    checks.check_choice(function, "method", method, (*METHODS, *PAIRS))
    if method not in PAIRS:
        raise ValueError(
            f"{function}: t is for the methods that choose their own steps, {NAMES}; method {method!r} takes steps and "
            "dt"
        )
    for name, value in of_fixed.items():
        if value is not None and value is not False:
            raise ValueError(
                f"{function}: {name} is for methods of fixed steps; method {method!r} chooses its own and takes t, the "
                f"times of the result, rtol and atol; got {name}={value!r}"
            )
    if t is None:
        raise ValueError(
            f"{function}: t must be given for method {method!r}: the times of the result, u0's first"
        )
    for name in ("rtol", "atol"):
        check_number(function, name, options[name], above=0)
    check_whole(function, "max_steps", options["max_steps"])
    checks.check_choice(function, "memory", options["memory"], ("full", "checkpointed"))
    checks.check_choice(function, "nonfinite", options["nonfinite"], ("raise", "keep"))
    for name in ("statistics", "clip"):
        if not isinstance(options[name], bool):
            raise TypeError(f"{function}: {name} must be True or False, got {options[name]!r}")


def check_times(function: str, t: Any) -> Tensor:
    """`t` as a tensor, float64 unless it is one already; ValueError unless it rises or falls all the way."""
    if isinstance(t, Tensor):
        check_tensor(function, "t", t)
        found = t if t.is_floating_point() or t.is_complex() else t.double()
    else:
        try:
            found = torch.tensor(t, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"{function}: t must be a tensor or numbers, got {t!r}: {error}"
            ) from None
    if found.is_complex():
        raise TypeError(f"{function}: t must be real, got {found.dtype}")
    if found.dim() != 1 or len(found) < 2:
        raise ValueError(
            f"{function}: t must have one dimension and at least two times, got shape {tuple(found.shape)}"
        )
    steps = found.detach().to("cpu", torch.float64).diff()
    if not steps.isfinite().all() or not ((steps > 0).all() or (steps < 0).all()):
        wrong = (~(steps * steps[0].sign() > 0)).nonzero()
        at = int(wrong[0]) if len(wrong) else 0
        pair = ", ".join(f"{float(time):g}" for time in found[at : at + 2])
        raise ValueError(
            f"{function}: t must be finite and rise, or fall, from each time to the next, got {pair}"
        )
    return found


def integrate(
    function: str,
    u0: Tensor,
    weights: Weights,
    t: Any,
    method: Any,
    of_fixed: dict[str, Any],
    *,
    rtol: float,
    atol: float,
    max_steps: int,
    memory: str,
    nonfinite: str,
    statistics: bool,
    eps: float | None,
    gate_gradient: str,
    clip: bool,
) -> Any:
    """What `solver.integrate` returns with adaptive steps."""
    options = {
        "rtol": rtol,
        "atol": atol,
        "max_steps": max_steps,
        "memory": memory,
        "nonfinite": nonfinite,
    }
    check_options(function, t, method, of_fixed, **options, statistics=statistics, clip=clip)
    if is_compiling() or is_tracing() or any(map(_is_mapped, (u0, *weights))):
        raise RuntimeError(
            f"{function}: method {method!r} has to look at the values to choose its steps, which torch.compile, "
            "torch.func.vmap and torch.jit.trace cannot"
        )
    eps, many = checks.check_operands(function, u0, weights, eps, gate_gradient)
    if rtol < (least := 4 * torch.finfo(u0.dtype).eps):
        raise ValueError(
            f"{function}: rtol must be at least {least:.2g} in {u0.dtype}, got {rtol!r}"
        )
    times = check_times(function, t)
    call = Call(
        method, float(rtol), float(atol), int(max_steps), eps, gate_gradient, clip, memory, many
    )
    run = _fused if dispatch.backend_for(weights[0]) == "cpu" and not eager_only() else _eager
    found, counts, clock, last = run(call, times, u0, *weights)
    report(function, call, found, counts, clock, last, weights, nonfinite == "raise")
    if not statistics:
        return found
    accepted, rejected, _, _ = (counts if many else counts.squeeze(-2)).unbind(-1)
    return found, Statistics(accepted.clone(), rejected.clone(), 6 * (accepted + rejected) + 2)


def _is_mapped(tensor: Any) -> bool:
    """Whether it has other values for every element of a `torch.func.vmap`."""
    while isinstance(tensor, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        if torch._C._functorch.is_batchedtensor(tensor):
            return True
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return False


def _fused(call: Call, *tensors: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One call of the C++ operator. What it gives: the trajectory, and counts, clock and last of `reference.Steps`."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        found: tuple[Tensor, Tensor, Tensor, Tensor] = AdaptiveFunction.apply(call, *tensors)  # type: ignore[no-untyped-call]
        return found
    return forward(call, False, *tensors)[:4]  # type: ignore[arg-type]


def _eager(
    call: Call,
    t: Tensor,
    u0: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same, stage by stage through the layers' functions: any device, any mode of differentiation."""

    def f(u: Tensor) -> Tensor:
        y = functional.npu(
            u, weight_re, weight_im, gate, eps=call.eps, gate_gradient=call.gate_gradient
        )
        return functional.nau(y, weight, clip=call.clip)

    rows = as_rows(u0, weight_re, call.many)
    at = t.detach().to("cpu", torch.float64)
    with torch.autocast(u0.device.type, enabled=False):
        steps = reference.find_steps(f, rows, at, call.pair, call.rtol, call.atol, call.max_steps)
        saves_memory = (
            call.memory == "checkpointed" and torch.is_grad_enabled() and not eager_only()
        )
        length = math.isqrt(max(steps.times.shape[-1], 1) - 1) + 1 if saves_memory else None
        found = reference.replay(f, rows, t, steps.times, call.pair, length)
    return found if call.many else found.squeeze(-3), steps.counts, steps.clock, steps.last


def report(
    function: str,
    call: Call,
    found: Tensor,
    counts: Tensor,
    clock: Tensor,
    last: Tensor,
    weights: Weights,
    raises: bool,
) -> None:
    """Raises for a trajectory that did not reach its end, unless it is to be kept; warns of one that is stiff."""
    accepted, rejected, stiff, status = counts.unbind(-1)
    models = weights[0].dim() == 3

    def name(where: Tensor) -> tuple[tuple[int, ...], str, str]:
        """Of the first one: its index, its name, and how many others there are."""
        at = tuple(where.nonzero()[0].tolist())
        others = (
            f", the first of {int(where.sum())} of {where.numel()} trajectories"
            if int(where.sum()) > 1
            else ""
        )
        return at, checks.who(at if call.many else at[:-1], models, call.many), others

    def hint(at: tuple[int, ...]) -> str:
        f = accuracy.right_side(weights, at[0] if models else None, call.eps, call.clip)
        return accuracy.at_the_bound(f, last[at], float(clock[at][1]), call.method)

    failed = status != reference.DONE
    if raises and failed.any():
        at, who, others = name(failed)
        reached, kept = (
            f"{float(clock[at][0]):.9g}",
            "nonfinite='keep' returns it as it is, with nan from there on",
        )
        if status[at] == reference.NOT_FINITE:
            first = checks.first_nonfinite(found)
            raise checks.NonFiniteError(
                f"{function}: {who} is not finite from t = {reached} on{others}; {kept}", first
            )
        what = (
            f"needs more than max_steps={call.max_steps} steps: it has reached t = {reached}, with "
            f"{int(rejected[at])} steps rejected{hint(at)}"
            if status[at] == reference.TOO_MANY
            else f"stops at t = {reached}: its steps became too small for the time to change, as they do before a pole "
            "or at a jump"
        )
        times = clock[..., 0].clone() if call.many else clock[..., 0].squeeze(-1)
        raise accuracy.StepSizeError(f"{function}: {who} {what}{others}; {kept}", times)
    bound = (status == reference.DONE) & (stiff >= accuracy.MANY) & (2 * stiff >= accepted)
    if bound.any():
        at, who, others = name(bound)
        if why := hint(at):
            message = (
                f"{function}: {int(stiff[at])} of {int(accepted[at])} steps of {who} are as long as its stability "
                f"allows, whatever the tolerance, the first at t = {float(clock[at][2]):g}{others}{why}"
            )
            steps = stiff.clone() if call.many else stiff.squeeze(-1)
            warn(accuracy.StiffWarning(message, steps))
