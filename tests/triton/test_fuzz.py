"""Any small call of the Triton kernels, interpreted, by Hypothesis; see `tests.fuzz`."""

from tests.fuzz import found
from tests.fuzz.budget import fuzz
from tests.fuzz.layers import OPTIONS, Call, calls
from tests.fuzz.oracle import check
from tests.fuzz.problem import run
from tests.triton.conftest import skip_unless_available


def check_interpreted(call: Call) -> None:
    problem = call.problem()
    check(problem, run(problem))


def test_calls() -> None:
    skip_unless_available("cpu")
    layers = tuple(name for name in OPTIONS if name not in ("nau", "nac"))  # which are plain torch
    small = calls(
        layers, routes=("triton",), isas=(None,), threads=(1,), greatest=20, max_work=1500
    )
    fuzz(check_interpreted, small, 2, found.INTERPRETED, at_once=5)
