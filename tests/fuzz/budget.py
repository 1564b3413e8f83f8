"""How long the drawn cases run, which ones, and what is left of one that fails.

In CI every test here has a second or two and draws the same cases each time. With
``NPU_KERNELS_FUZZ=SECONDS`` (``make fuzz``) each has that long and draws others; Hypothesis then
prints the least case that fails, to be added to `tests.fuzz.found`, whose cases are run first,
always. The case at work is in ``build/fuzz``, should it end the process.
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis.strategies import SearchStrategy

LONG = "NPU_KERNELS_FUZZ"
FOLDER = Path(__file__).resolve().parents[2] / "build" / "fuzz"
_Case = TypeVar("_Case")


def fuzz(
    check: Callable[[_Case], None],
    drawn: SearchStrategy[_Case],
    seconds: float,
    regressions: Iterable[_Case],
    at_once: int = 20,
) -> int:
    """Check the cases found before, then drawn ones for about so many seconds; returns how many
    were drawn.

    at_once: how many are drawn before the time is looked at.
    """
    for case in regressions:
        check(case)
    long = os.environ.get(LONG)
    first = time.time_ns() // 10**6 if long else 0
    end = time.monotonic() + (float(long) if long else seconds)
    count = 0

    def one(case: _Case) -> None:
        nonlocal count
        count += 1
        note(f"{case!r}")  # which is printed of the least case that fails
        if long:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / check.__name__).write_text(f"{case!r}\n")
        check(case)

    phases = [Phase.generate, Phase.shrink]
    options = settings(
        max_examples=at_once,
        phases=phases,
        derandomize=False,  # by the seed
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    while not count or time.monotonic() < end:
        seed(first)(options(given(drawn)(one)))()
        first += 1
    return count
