"""Long work, a slice at a time: progress, Ctrl-C and checkpoints have their turn between slices."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from npu_kernels._jobs.checkpoint import Checkpoint, Resumable

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


# ---- the driver ----------------------------------------------------------------------------------

SLICE_SECONDS = 0.2  # of work, between which progress, signals and checkpoints have their turn
_Pause = Callable[[], None]


@contextmanager
def interruptible() -> Iterator[list[bool]]:
    """Yield a list that the first Ctrl-C fills; the second one raises KeyboardInterrupt."""
    pressed: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    before = signal.getsignal(signal.SIGINT)

    def press(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    if before is None:  # not installed from Python: leave it
        yield pressed
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def terminable(save: Callable[[], object] | None, at_once: bool = False) -> Iterator[_Pause]:
    """Call `save` before SIGTERM has its effect, which mostly is the end of the process.

    Yields a function for the moments at which the work can be saved. at_once: it always can. A
    second SIGTERM does not wait for such a moment, and after an error nothing is saved. None for
    `save` leaves the signal as it is.
    """
    before = signal.getsignal(signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    if save is None or not is_main or before in (None, signal.SIG_IGN):
        yield lambda: None
        return
    asked: list[bool] = []
    process = os.getpid()

    def ask(number: int, frame: Any) -> None:
        waits = not asked and os.getpid() == process  # a fork has the handler and not the work
        asked.append(True)
        if at_once and waits:
            pause()
        elif not waits:
            act()

    def pause() -> None:
        if asked:
            asked.clear()
            save()
            act()

    def act() -> None:
        if callable(before):
            before(signal.SIGTERM, None)
        else:
            signal.signal(signal.SIGTERM, before)
            signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, ask)
    try:
        yield pause
        pause()
    finally:
        signal.signal(signal.SIGTERM, before)
        if asked:
            act()


class Job(Resumable, Protocol):
    """Work that is done in steps and can be saved between them."""

    done: int
    total: int

    def advance(self, steps: int) -> None: ...


def drive(
    job: Job,
    progress: bool | None,
    checkpoint: str | os.PathLike[str] | Checkpoint | None,
    *,
    first: int = 1,
    note: Callable[[], str] = str,
    limit: Callable[[], int] | None = None,
    ended: Callable[[], bool] = bool,
) -> None:
    """Do a job to its end, or until Ctrl-C or SIGTERM, a fraction of a second at a time.

    Args:
        job: the work.
        progress: show it on stderr; None: if that is a terminal.
        checkpoint: the file from which it continues and in which it is kept; a `Checkpoint` has
            continued it, or other work that holds its state.
        first: steps of the first slice; later ones take `SLICE_SECONDS`.
        note: what the progress shows after the share that is done.
        limit: the most steps of the next slice.
        ended: called after each slice; True ends the job.
    """
    file = checkpoint
    if file is not None and not isinstance(file, Checkpoint):
        file = Checkpoint(job, file)
    steps, before = first, job.done
    shown = sys.stderr.isatty() if progress is None else progress
    with (
        interruptible() as pressed,
        Progress(job.function, job.total, sys.stderr, shown) as bar,
        terminable(None if file is None else file.save) as pause,
    ):
        while job.done < job.total and not pressed:
            steps = min(steps, job.total - job.done, job.total if limit is None else limit())
            begin = time.monotonic()
            job.advance(steps)
            if shown:
                bar.update(job.done, note(), before)
            if ended():
                break
            pause()
            if file is not None:
                file.keep()
            seconds = max(time.monotonic() - begin, 1e-6)
            steps = max(1, min(8 * steps, int(steps * SLICE_SECONDS / seconds)))
        if file is not None:
            file.save()
