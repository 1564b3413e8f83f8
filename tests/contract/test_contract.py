"""The contract of the package: its public names, the results of seeded calls, its checkpoints."""

import inspect
import math
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from tests.contract import results, signatures
from tests.contract.cases import CASES, RESUMED

ANEW = "If this is what you want, `python -m tools.contract` writes the contract anew."
# The share of a call's functions after which it is interrupted; a run ends by itself.
INTERRUPTED = {
    "table, sum": 0.95,
    "table, ratio": 0.6,
    "table, groups": 0.2,
    "table, several outputs": 0.5,
    "series, searched": 0.3,
    "series, reactions": 0.9,
    "series, stiff": 0.6,
    "fit, coefficient": 0.07,
    "fit, sum of products": 0.05,
    "run, models": math.inf,
    "run, schedules": math.inf,
    "run, other layers": math.inf,
}


def test_signatures() -> None:
    lines = signatures.differences(signatures.read(), signatures.signatures())
    assert not lines, "\n".join(["Public names differ.", *lines, ANEW])


def test_every_case_has_its_results() -> None:
    assert results.read()["cases"].keys() == CASES.keys(), ANEW


@pytest.fixture(scope="module")
def is_same_processor() -> bool:
    return results.read()["processor"] == results.processor()


@pytest.mark.parametrize("name", CASES)
def test_results(name: str, is_same_processor: bool) -> None:
    before = results.read()["cases"].get(name, {})
    lines = results.differences(before, results.computed(name), is_same_processor)
    assert not lines, "\n".join([f"{name}: results differ.", *lines, ANEW])


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """A process in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def counted(call: Callable[[], Any], interrupted_at: float = math.inf) -> tuple[int, Any]:
    """Return the number of functions of the package that were called, and the result.

    Ctrl-C is pressed after that number of calls. A generator would swallow it where it is closed.
    """
    count, is_pressed = 0, False

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal count, is_pressed
        is_ours = str(frame.f_globals.get("__name__")).startswith("npu_kernels")
        if event == "call" and is_ours and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            count += 1
            if count >= interrupted_at and not is_pressed:
                is_pressed = True
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(watch)
    try:
        result = call()
    except KeyboardInterrupt:  # there is no result yet
        result = {"complete": False}
    finally:
        sys.setprofile(None)
    return count, result


@pytest.mark.usefixtures("_ctrl_c")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", INTERRUPTED)
def test_resumed(name: str, tmp_path: Path) -> None:
    """An interrupted call continues from its checkpoint to the same bits."""
    call, path = RESUMED[name], tmp_path / "checkpoint"
    count, expected = counted(lambda: call(None))
    _, interrupted = counted(lambda: call(path), INTERRUPTED[name] * count)
    assert not interrupted["complete"]
    assert path.exists()
    assert results.kept(call(path)) == results.kept(expected)
