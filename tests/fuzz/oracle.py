"""What an outcome must be, by the formula in float64 and in the call's own dtype.

Where all is finite an error is measured in ulp of what the formula itself can keep: an element's
own magnitude plus how much it changes, in float64, when the inputs change by a relative 2^-24
(divided by that). In this unit a kernel may have `TIMES` the eager formula's greatest error in that
tensor plus `ULPS`. (Twice and a few ulp is what holds over many samples, and is tested so
elsewhere; of two programs' greatest errors in one sample luck decides.) Elements that such a change
turns into something else altogether (the cosine of 1e20; a part of the change is not that part of
the difference) have no right value.

Where the eager formula, in the call's own dtype, gives inf or nan, so must the kernel; but a number
is right where the formula in float64 gives that number (an intermediate value of the eager formula
overflows, a kernel's does not).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.fuzz.memory import changed
from tests.fuzz.problem import Outcome, Problem, Tensors, gradients

TIMES = 4.0
# what float64 is measured against has errors too
ULPS = {torch.float32: 128.0, torch.float64: 16384.0}
CHANGE = 2.0**-24
HUGE = 1e6  # a phase of this size still changes by much less than 1


@dataclass
class Expected:
    """The errors of one tensor of an outcome."""

    exact: Tensor  # in float64
    eager: Tensor  # in the dtype that is computed in
    magnitude: Tensor  # that an ulp is relative to
    settled: Tensor  # where there is a right value


def _formula(
    problem: Problem,
    change: Callable[[Tensor], Tensor],
    formula: Callable[[Tensors], tuple[Tensor, ...]],
) -> Outcome:
    """The outcome by a formula, of changed operands."""
    leaves = {
        n: changed(t.detach(), change).requires_grad_(n in problem.needs)
        for n, t in problem.tensors.items()
    }
    return gradients(
        problem, leaves, formula(leaves), [changed(t, change) for t in problem.upstream]
    )


def expect(problem: Problem) -> dict[str, Expected]:
    dtype = problem.dtype
    exact = _formula(problem, Tensor.double, problem.exact)
    eager = _formula(problem, lambda t: t.to(dtype, copy=True), problem.eager)
    subnormal = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps

    def near(size: float, seed: int) -> Outcome:
        """The results of inputs nearer to 0 by up to this part of them, so that no clip is
        crossed; of a subnormal input by up to half of the least subnormal number."""
        generator = torch.Generator().manual_seed(seed)

        def nearer(t: Tensor) -> Tensor:
            t = t.double()
            part = size * torch.rand(t.shape, generator=generator, dtype=torch.float64)
            less = part * t.sign() * t.abs().clamp(min=subnormal / (2 * CHANGE))
            return torch.where(t.isfinite(), t - less, t)

        inexact = problem.inexact
        return _formula(
            problem, nearer, (lambda leaves: inexact(leaves, nearer)) if inexact else problem.exact
        )

    # The changes of a sum's terms may cancel. This counts where results are rounded to half
    # precision: more draws.
    draws = 6 if problem.route == "triton" else 2
    once, *other_draws = (near(CHANGE, seed) for seed in range(1, draws + 1))
    # One smaller change may happen to look linear where the phase is huge, for all elements of an
    # output at once.
    huge = any((t.abs().nan_to_num(0, 0, 0) > HUGE).any() for t in problem.tensors.values())
    parts = (1 / 2, 2.0**-12) if huge else (1 / 2,)
    smaller = [(part, near(part * CHANGE, 1)) for part in parts]
    magnified = max([
        1e9,
        *(t.double().abs().nan_to_num(0, 0).max().item() for t in problem.upstream if t.numel()),
    ])  # fmt: skip
    expected = {}
    for name, want in exact.items():
        moved = torch.stack([(draw[name] - want).abs() for draw in (once, *other_draws)]).amax(0)
        usual = (
            want[want.isfinite()].abs().median() if want.isfinite().any() else want.new_zeros(())
        )
        small = moved <= 1e-3 * want.abs().clamp(min=usual)
        for part, less in smaller:  # so small a change is linear
            bend = (less[name] - want - part * (once[name] - want)).abs()
            small &= bend <= (0.2 * part + 1e-5) * moved + 1e-9 * want.abs()
        same_pattern = torch.stack(
            [_pattern(draw[name]) == _pattern(want) for draw in (once, *other_draws)]
        ).all(0)
        settled = torch.where(want.isfinite(), small & same_pattern, same_pattern)
        # A gradient magnifies what rounding left of a result at the edge of underflow.
        floor = torch.finfo(dtype).smallest_normal * (magnified if name in problem.tensors else 1)
        expected[name] = Expected(
            want, eager[name], (want.abs() + moved / CHANGE).clamp(min=floor), settled
        )
    return expected


def _pattern(tensor: Tensor) -> Tensor:
    """0 where finite, else a number for each of inf, -inf and nan."""
    return torch.where(tensor.isnan(), 2, torch.where(tensor.isinf(), tensor.sign(), 0))


def check(problem: Problem, outcome: Outcome) -> None:
    """Assert that the outcome is right."""
    expected = expect(problem)
    excused = _excused(problem, expected)
    overflows = _overflows(expected)
    for name, want in expected.items():
        in_storage = problem.route == "triton" and name in problem.tensors
        if in_storage and _underflows(problem, expected, outcome[name].dtype):
            continue
        wrong = _wrong(outcome[name], want, problem.dtype, excused, in_storage)
        if problem.overflows or (overflows and name in problem.tensors):
            wrong &= outcome[name].isfinite()
        if problem.trajectories and name not in problem.tensors:
            wrong &= outcome[name].isfinite() | ~_after_infinite(expected["y0"].eager)
        if wrong.any():
            index = tuple(wrong.nonzero()[0].tolist())
            raise AssertionError(
                f"{name if name[0] == 'y' else f'gradient of {name}'} is wrong at {index}, one of {int(wrong.sum())}: "
                f"{outcome[name][index].item()!r}, eager {want.eager[index].item()!r}, exact {want.exact[index].item()!r}, "
                f"magnitude {want.magnitude[index].item():.3g}"
            )


def _overflows(expected: dict[str, Expected]) -> bool:
    """Whether something is infinite or near the greatest number: then gradients may be inf or nan.

    A gradient is computed from the results, and sums and products on the way to it are larger.
    """
    return any(
        (want.eager.isinf() | (want.eager.abs() > torch.finfo(want.eager.dtype).max / 64)).any()
        for want in expected.values()
    )


def _after_infinite(states: Tensor) -> Tensor:
    """Whether a trajectory's state is infinite or nan at a step or before it."""
    return (~states.isfinite()).any(-1, keepdim=True).cummax(-2).values


def _underflows(problem: Problem, expected: dict[str, Expected], dtype: torch.dtype) -> bool:
    """Whether a result that a backward begins with has lost digits in the tensors' dtype."""
    results = [want.exact.abs() for name, want in expected.items() if name not in problem.tensors]
    smallest_normal = torch.finfo(dtype).smallest_normal
    return dtype != problem.dtype and any(((y > 0) & (y < smallest_normal)).any() for y in results)


def _huge(tensors: Iterable[Tensor]) -> bool:
    """Whether something is infinite, or products of two overflow."""
    return any((t.abs() > math.sqrt(torch.finfo(t.dtype).max) / 2).any() for t in tensors)


def _excused(problem: Problem, expected: dict[str, Expected]) -> tuple[bool, bool]:
    """Whether inf and nan may be other than the formula's, and whether they may be numbers.

    The kernels leave out 0 * inf, as they say, and their order of operations decides what else
    becomes inf or nan. No wider arithmetic tells which numbers in float64 are right where the
    formula overflows.
    """
    parameters = [
        t for name, t in problem.tensors.items() if name not in ("x", "u0", "y", "target")
    ]
    results = [want.eager for name, want in expected.items() if name not in problem.tensors]
    numbers = problem.dtype is torch.float64 and (
        problem.overflows or _huge(t.masked_fill(t.isinf(), 0) for t in problem.tensors.values())
    )
    # Gradients of no results are sums of nothing: 0, where the formula's may be 0 * inf.
    nothing = not any(t.numel() for t in problem.upstream)
    return nothing or _huge((*parameters, *problem.upstream, *results)), numbers


def _wrong(
    result: Tensor, want: Expected, dtype: torch.dtype, excused: tuple[bool, bool], in_storage: bool
) -> Tensor:
    """Where the result is wrong; in_storage: computed from results in the tensors' dtype."""
    info, eps = torch.finfo(result.dtype), torch.finfo(dtype).eps
    actual, exact = result.double(), want.exact
    eager = want.eager.to(result.dtype).double()
    counted = want.settled & want.eager.isfinite() & exact.isfinite() & want.magnitude.isfinite()
    errors = ((want.eager.double() - exact).abs() / want.magnitude)[counted]
    worst = errors.max().item() if errors.numel() else 0.0
    allowed = (TIMES * worst + ULPS.get(dtype, ULPS[torch.float32]) * eps) * want.magnitude
    if result.dtype != dtype:  # rounded once more
        allowed = (
            allowed
            + info.eps * (4 * want.magnitude if in_storage else exact.abs())
            + info.smallest_normal * info.eps
        )
    good = (actual - exact).abs() <= allowed
    for reference in (eager, exact):
        good |= (actual == reference) | actual.isnan() & reference.isnan()
    good |= ~want.settled & (actual.isfinite() | ~eager.isfinite() | ~exact.isfinite())
    good |= actual.isinf() & (exact.abs() + allowed > 0.999 * info.max)
    good |= (torch.minimum(actual.abs(), exact.abs()) > info.max / 64) & (
        actual.sign() == exact.sign()
    )
    if in_storage and result.dtype != dtype:
        good |= ~actual.isfinite()
    # Sums of terms near the greatest number: their order decides what overflows.
    spills = ~(want.magnitude.nan_to_num(nan=0.0) < info.max / 64)
    good |= spills & (eager.isfinite() | exact.isfinite())
    excuses_others, numbers = excused
    if excuses_others:
        good |= ~want.settled  # one order of a sum overflows, another one does not
        good |= eager.isnan() | ~eager.isfinite() & ~actual.isfinite()
    if numbers:
        good |= ~eager.isfinite() & actual.isfinite()
    return ~good
