"""Any call of any layer, by Hypothesis: sizes, strides, dtypes, options, special values."""

import random

import pytest
from hypothesis import strategies as st

from tests.conftest import needs_library
from tests.fuzz import found
from tests.fuzz.budget import fuzz
from tests.fuzz.layers import Call, calls
from tests.fuzz.oracle import check
from tests.fuzz.problem import backward, computed_by, forward, run, same_bits

pytestmark = needs_library


def check_call(call: Call) -> None:
    problem = call.problem()
    check(problem, run(problem))


def check_calls_in_turns(calls: list[Call]) -> None:
    """Calls leave nothing behind: all forward, then all backward in another order."""
    problems = [call.problem() for call in calls]
    singles = []
    for problem in problems:
        with computed_by(problem.route, problem.isa):
            singles.append(backward(problem, *forward(problem)))
    halves = []
    for problem in problems:
        with computed_by(problem.route, problem.isa, problem.threads):
            halves.append(forward(problem))
    order = list(range(len(problems)))
    random.Random(calls[0].seed).shuffle(order)
    for n in order:
        with computed_by(problems[n].route, problems[n].isa, problems[-1].threads):
            assert same_bits(backward(problems[n], *halves[n]), singles[n]), calls[n]


@pytest.mark.parametrize(
    ("layers", "seconds"),
    [(("npu",), 2), (("nmu", "nmru", "nalu", "inalu"), 2), (("nau", "nac"), 1)],
)
def test_calls(layers: tuple[str, ...], seconds: float) -> None:
    fuzz(
        check_call,
        calls(layers),
        seconds,
        [call for call in found.here(found.CALLS) if call.layer in layers],
    )


def test_calls_in_turns() -> None:
    fused = calls(("npu", "nmu", "nmru", "nalu", "inalu"), greatest=130, max_work=30_000)
    fuzz(check_calls_in_turns, st.lists(fused, min_size=2, max_size=5), 1, found.TURNS)
