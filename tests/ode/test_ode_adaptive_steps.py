"""Adaptive steps: their control, step by step, against one of plain numbers; the first step,
rejections, the ends."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from npu_kernels import reference
from npu_kernels.ode import _adaptive as adaptive
from npu_kernels.ode._methods import PAIRS
from tests.conftest import needs_library
from tests.ode.test_ode_adaptive import EXPLICIT, tableau_rows
from tests.support.kernels import ops

DONE, TOO_MANY, STUCK, NOT_FINITE = range(4)  # how a trajectory ends, as the operator counts it
EPS = 2.0**-52
State = list[float]


class Case(NamedTuple):
    """An equation u_d' = sum_h rates[d][h] prod_j u_j^powers[h][j], a start, times and options."""

    powers: list[State]
    rates: list[State]
    start: State
    times: State
    rtol: float = 1e-6
    atol: float = 1e-6
    max_steps: int = 1000
    eps: float = 1e-300


class Run(NamedTuple):
    """Result of the control: times and numbers of steps, status, last time, next step's size."""

    times: State
    rejected: int
    at_bound: int
    status: int
    time: float
    size: float
    first_at_bound: float


def power(x: float, exponent: float, eps: float) -> float:
    """The NPU's, real: a negative x turns by exponent half circles."""
    try:
        return (abs(x) + eps) ** exponent * (math.cos(math.pi * exponent) if x < 0 else 1.0)
    except OverflowError:
        return math.inf


def rhs(case: Case, u: State) -> State:
    products = [
        math.prod(power(x, p, case.eps) for x, p in zip(u, row, strict=True)) for row in case.powers
    ]
    return [sum(rate * y for rate, y in zip(row, products, strict=True)) for row in case.rates]


def rms(values: State) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values))


def first_size(case: Case, u: State, k: State, sign: int, span: float) -> float:
    unit = [case.atol + case.rtol * abs(x) for x in u]
    d0, d1 = (
        rms([x / s for x, s in zip(u, unit, strict=True)]),
        rms([x / s for x, s in zip(k, unit, strict=True)]),
    )
    h0 = min(1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1, span)
    bent = rhs(case, [x + sign * h0 * y for x, y in zip(u, k, strict=True)])
    d2 = rms([(b - y) / s for b, y, s in zip(bent, k, unit, strict=True)]) / h0
    if not math.isfinite(d2):
        return min(100 * h0, h0 * 1e-3)
    h1 = max(1e-6, h0 * 1e-3) if max(d1, d2) <= 1e-15 else (0.01 / max(d1, d2)) ** 0.2
    return min(100 * h0, h1)


def step(case: Case, pair: Any, u: State, h: float) -> tuple[State, State, list[State]]:
    """The new state, the one before it, all derivatives."""
    v, before, k = u, u, [rhs(case, u)]
    for row in tableau_rows(pair.tableau):
        before = v
        v = [x + h * sum(a * s[d] for a, s in zip(row, k, strict=True)) for d, x in enumerate(u)]
        k.append(rhs(case, v))
    return v, before, k


def control(case: Case, pair: Any) -> Run:
    """The control of Hairer, Norsett and Wanner, one branch for each of its rules."""
    u, time, end = case.start, case.times[0], case.times[-1]
    span, sign, before = abs(end - time), 1 if end > time else -1, 1e-4
    size = first_size(case, u, rhs(case, u), sign, span)
    times: State = []
    rejected = at_bound = 0
    first_at_bound, shrunk, broken = math.nan, False, False
    while True:
        if len(times) + rejected >= case.max_steps:
            return Run(times, rejected, at_bound, TOO_MANY, time, sign * size, first_at_bound)
        if size <= 10 * EPS * max(abs(time), EPS * span):
            return Run(
                times, rejected, at_bound, NOT_FINITE if broken else STUCK, time, sign * size,
                first_at_bound,
            )  # fmt: skip
        last = 1.01 * size >= abs(end - time)
        new_time = end if last else time + sign * size
        h = new_time - time
        new, v6, k = step(case, pair, u, h)
        unit = [case.atol + case.rtol * max(abs(x), abs(y)) for x, y in zip(u, new, strict=True)]
        error = rms(
            [
                h * sum(e * s[d] for e, s in zip(pair.error, k, strict=True)) / unit[d]
                for d in range(len(u))
            ]
        )
        broken = not math.isfinite(error)
        if not error <= 1:
            rejected, shrunk = rejected + 1, True
            size = abs(h) / (5 if broken else min(5, error**0.17 / 0.9))
            continue
        apart = rms([x - y for x, y in zip(new, v6, strict=True)])
        turn = rms([x - y for x, y in zip(k[6], k[5], strict=True)])
        if apart > 0 and turn * abs(h) > 0.98 * pair.stable * apart:
            first_at_bound = time if at_bound == 0 else first_at_bound
            at_bound += 1
        size = abs(h) / max(0.1, error**0.17 / before**0.04 / 0.9)
        size = min(size, abs(h)) if shrunk else size
        shrunk, before, u, time = False, max(error, 1e-4), new, new_time
        times.append(time)
        if last:
            return Run(times, rejected, at_bound, DONE, time, sign * size, first_at_bound)


def tensors(case: Case) -> tuple[Any, ...]:
    """u0 ``[1, 1, D]``, weights of a model, times."""
    return tuple(
        torch.tensor(values, dtype=torch.float64)
        for values in (
            [[case.start]],
            [case.powers],
            [[1.0] * len(case.start)],
            [case.rates],
            case.times,
        )
    )


def fused(case: Case, pair: Any) -> Run:
    u0, powers, gate, rates, t = tensors(case)
    options = case.rtol, case.atol, case.max_steps, case.max_steps, case.eps, False, 1
    _, _, counts, clock, times, _ = ops.ode_adaptive_forward(
        u0, powers, None, gate, rates, t, pair.numbers, *options
    )
    return run_of(times.tolist(), counts[0, 0].tolist(), clock[0, 0].tolist())


def eager(case: Case, pair: Any) -> Run:
    u0, powers, gate, rates, t = tensors(case)

    def f(u: torch.Tensor) -> torch.Tensor:
        return reference.nau(reference.npu(u, powers, None, gate, eps=case.eps), rates, clip=False)

    bounds = adaptive.Control(case.rtol, case.atol, case.max_steps, case.max_steps)
    steps = adaptive.find_steps(f, u0, t, pair, bounds)
    return run_of(
        steps.times[0, 0].tolist(), steps.counts[0, 0].tolist(), steps.clock[0, 0].tolist()
    )


def run_of(times: State, counts: list[int], clock: State) -> Run:
    assert len(times) == counts[0]
    return Run(times, *counts[1:4], *clock)


CYCLE = [[1.0, 1, 0], [0, 1, 1], [1, 0, 1]], [[-1.0, 0, 1], [1, -1, 0], [0, 1, -1]], [1.0, 2.0, 0.5]
PREDATOR = [[1.0, 0], [1, 1], [0, 1]], [[1.1, -0.4, 0], [0, 0.1, -0.4]], [10.0, 5.0]
CASES = {
    # The first guess: no state, no derivative, neither; longer than all of the time; nothing finite
    # behind it.
    "no state": Case([[0.0]], [[1.0]], [1e-12], [0, 1], atol=1e-3, max_steps=4),
    "no derivative": Case([[0.0]], [[1e-9]], [1.0], [0, 1], atol=1e-3, max_steps=4),
    "nothing happens": Case([[0.0]], [[0.0]], [1.0], [0, 1]),
    "one step at most": Case([[0.0]], [[0.0]], [1.0], [0, 1], max_steps=1),
    "guess beyond the end": Case([[2.0], [0.0]], [[1e7, 5 - 1e7]], [1.0], [0, 1e-3], max_steps=3),
    "guess beyond the end, falling": Case(
        [[2.0], [0.0]], [[1e7, 5 - 1e7]], [1.0], [1e-3, 0], max_steps=3
    ),
    "not finite behind the guess": Case(
        [[0.0], [4.0]], [[1e100, 1.0]], [1e-12], [0, 1], atol=1e-3, max_steps=12
    ),
    # Sizes: rejected steps, growth behind them, the last step a little longer, none longer than
    # asked for.
    "cycle": Case(*CYCLE, [0, 8]),
    "cycle, falling": Case(*CYCLE, [0, -2]),
    "predator": Case(*PREDATOR, [0, 40], rtol=1e-4),
    "predator, coarse": Case(*PREDATOR, [0, 60], rtol=0.03, atol=0.03),
    "predator, few steps": Case(*PREDATOR, [0, 40], rtol=1e-4, max_steps=17),
    "a little longer": Case([[0.0]], [[0.0]], [1.0], [0, 1.11e-4 + 1.005e-3]),
    "not so much longer": Case([[0.0]], [[0.0]], [1.0], [0, 1.11e-4 + 1.02e-3]),
    # The ends: a pole, a stiff equation, nothing finite from the start's own neighbourhood on.
    "pole": Case([[2.0]], [[1.0]], [1.0], [0, 1.5], max_steps=40),
    "stiff": Case([[1.0]], [[-1000.0]], [1.0], [0, 3], rtol=1e-3, atol=1e-3),
    "stiff from somewhere on": Case([[1.0]], [[-10.0]], [1e4], [2, 30], rtol=1e-3, atol=1e-3),
    "not finite at once": Case([[0.0], [4.0]], [[1e200, 1.0]], [1e-12], [0, 1], atol=1e60),
    "states whose squares vanish": Case([[1.0]], [[-1e10]], [1e-165], [0, 1e-9]),
}


@pytest.mark.parametrize("pair", EXPLICIT.values(), ids=EXPLICIT)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("steps_of", [pytest.param(fused, marks=needs_library), eager])
def test_steps_are_those_of_the_control(
    steps_of: Callable[[Case, Any], Run], case: Case, pair: Any
) -> None:
    ours, want = steps_of(case, pair), control(case, pair)
    assert ours[1:4] == want[1:4]
    assert ours.times == pytest.approx(want.times, rel=1e-6, abs=0)
    assert ours[4:] == pytest.approx(want[4:], rel=1e-5, abs=0, nan_ok=True)


@needs_library
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_implicit_steps_are_those_of_the_formulas(case: Case) -> None:
    pair = PAIRS["kvaerno5"]
    ours, reference = fused(case, pair), eager(case, pair)
    assert ours[1:4] == reference[1:4]
    assert ours.times == pytest.approx(reference.times, rel=1e-6, abs=0)
    assert ours[4:] == pytest.approx(reference[4:], rel=1e-5, abs=0, nan_ok=True)


@pytest.mark.parametrize("steps_of", [pytest.param(fused, marks=needs_library), eager])
def test_a_start_without_a_finite_derivative_takes_no_step(
    steps_of: Callable[[Case, Any], Run],
) -> None:
    run = steps_of(Case([[2.0]], [[1.0]], [1e200], [0, 1]), PAIRS["dopri5"])
    assert (run.times, run.rejected, run.status, run.time) == ([], 0, NOT_FINITE, 0)


def test_the_cases_are_of_every_kind() -> None:
    """What has no example is not tested."""
    runs = {name: control(case, PAIRS["dopri5"]) for name, case in CASES.items()}
    assert {run.status for run in runs.values()} == {DONE, TOO_MANY, NOT_FINITE}
    assert runs["predator, coarse"].rejected > 0
    assert runs["stiff"].at_bound > runs["stiff from somewhere on"].at_bound > 0
    assert runs["stiff from somewhere on"].first_at_bound > 2
    assert len(runs["a little longer"].times) < len(runs["not so much longer"].times)
