"""Progress of long work: tqdm's bar on a terminal, a line every half a minute elsewhere."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

__all__ = ["Progress"]

LINE_SECONDS = 30.0  # between lines where the output is no terminal
BAR = "{desc}: {percentage:3.0f} % |{bar}| {elapsed} passed, {remaining} left{postfix}"
LINE = "{desc}: {percentage:3.0f} %, {elapsed} passed, {remaining} left{postfix}"


@functools.cache
def _bar() -> Any:
    """Return tqdm's class, imported at first use: only the progress needs it."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        monitor_interval = 0  # without tqdm's monitor thread, which would wake up during a timing

    # tqdm's own lock also serves processes, with a semaphore that a kill leaves behind.
    Bar.set_lock(threading.RLock())
    return Bar


class _Lines:
    """A stream for tqdm that prints whole lines instead of overwriting one."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        line = text.strip("\r\n ")
        if line:
            self.stream.write(line + "\n")

    def flush(self) -> None:
        self.stream.flush()


class Progress:
    """The progress of long work, as a context manager.

    ``with Progress("training", 20_000) as progress: ... progress.update(n)``: n of the total are
    done.

    On a terminal it shows a bar, which disappears at the end; elsewhere a line every half a minute
    and one at the end.

    Args:
        label: what is done.
        total: how much, in any unit.
        stream: where to; stdout unless given.
        shown: false shows nothing.
    """

    def __init__(
        self, label: str, total: float, stream: TextIO | None = None, shown: bool = True
    ) -> None:
        self._bar: Any = None
        if not shown:  # for tqdm a bar that is not shown costs as much as a small training
            return
        stream = sys.stdout if stream is None else stream
        self.terminal = stream.isatty()
        seconds = 0.1 if self.terminal else LINE_SECONDS
        self._bar = _bar()(
            total=total,
            desc=label,
            file=stream if self.terminal else _Lines(stream),
            bar_format=BAR if self.terminal else LINE,
            mininterval=seconds,
            maxinterval=seconds,
            miniters=0,
            delay=0 if self.terminal else seconds,
            smoothing=0,  # the mean speed: steps differ
            leave=False,
            dynamic_ncols=self.terminal,
        )

    def __enter__(self) -> Progress:
        return self

    def update(self, done: float, note: str = "", before: float = 0) -> None:
        """Show that `done` of the total are done, `before` of them by an earlier process.

        It is cheap enough for every step.
        """
        if self._bar is not None:
            self._bar.initial = before
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(done - self._bar.n)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A block in which other lines are printed: the bar is cleared first."""
        terminal = self._bar is not None and self.terminal
        if terminal:
            self._bar.clear()
        yield
        if terminal:
            self._bar.refresh()

    def close(self) -> None:
        """Remove the bar from a terminal; elsewhere write the last line."""
        if self._bar is not None:
            if not self.terminal:
                self._bar.refresh()
            self._bar.close()

    def __exit__(self, *error: object) -> None:
        self.close()
