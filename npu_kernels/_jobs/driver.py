"""Long work, a slice at a time: progress, Ctrl-C and checkpoints have their turn between slices."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from npu_kernels._jobs.checkpoint import Checkpoint, Resumable
from npu_kernels._jobs.progress import Progress

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
        note: what the progress says beside the share that is done.
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
