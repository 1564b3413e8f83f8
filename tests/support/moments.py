"""A moment of a fit: an action, such as Ctrl-C, at a line of its progress or at a share of its
calls; and how many calls a fit makes. All of it works with whatever a fit is made of."""

import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def _ctrl_c() -> Iterator[Callable[[], None]]:
    """What presses it; a process in the background would ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield lambda: signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def at_line(number: int, act: Callable[[], object] | None = None) -> Iterator[None]:
    """Act, or press Ctrl-C, when the estimator logs the line with this number, from 1 on."""
    logger, lines = logging.getLogger("npu_kernels.equations"), []
    handler, level = logging.Handler(), logger.level

    def emit(line: logging.LogRecord) -> None:
        lines.append(line)
        if len(lines) == number:
            (act or press)()

    with _ctrl_c() as press:
        handler.emit = emit
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)


@contextlib.contextmanager
def at_call(number: float, act: Callable[[], object] | None = None) -> Iterator[list[int]]:
    """Act, or press Ctrl-C, at a call of a function of the package; yield how many there were."""
    calls = [0]

    def see(frame, event, argument) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith("npu_kernels."):
            calls[0] += 1
            if calls[0] == int(number):
                (act or press)()

    with _ctrl_c() as press:
        sys.setprofile(see)
        try:
            yield calls
        finally:
            sys.setprofile(None)


def calls_of(function: Callable[[], object]) -> int:
    """The number of calls of functions of the package: work that is the same on every machine."""
    with at_call(0) as calls:
        function()
    return calls[0]
