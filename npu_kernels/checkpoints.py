"""Long work that may be interrupted: Ctrl-C, and a file from which it continues."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

import npu_kernels
from npu_kernels import files
from npu_kernels.notices import warn
from npu_kernels.progress import Progress

CHECKPOINT_SECONDS = 30.0  # between two savings
SLICE_SECONDS = 0.2  # of work, between which progress, Ctrl-C and checkpoints have their turn
LONG = 200  # characters: values that are longer are not shown


@contextmanager
def interruptible() -> Iterator[list[bool]]:
    """A list that is not empty after the first Ctrl-C; the second one raises KeyboardInterrupt as usual."""
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


class Resumable(Protocol):
    """Work with a state of tensors and numbers, a dict that has a "fingerprint"."""

    function: str  # what the user has called

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state; ValueError, which says what differs, for that of other work."""


class Checkpoint:
    """The file of some work, checked before the work begins; the work continues from it if it exists.

    Raises TypeError if it is no path, OSError if it cannot be written, ValueError if it is damaged or of other work.
    """

    def __init__(self, work: Resumable, path: str | os.PathLike[str]) -> None:
        function = work.function
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{function}: checkpoint must be a path, got {type(path).__name__}")
        self.work, self.path, self._saved = work, Path(path), time.monotonic()
        try:
            files.check_writable(self.path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise type(error)(
                f"{function}: checkpoint must be a file that can be written, got {str(path)!r}: {reason}"
            ) from None
        if self.path.exists():
            try:
                work.restore(files.load(self.path, ["fingerprint"]))
            except (OSError, ValueError) as error:
                raise type(error)(
                    f"{function}: checkpoint must be a new file or one of this same {function}, got {str(path)!r}: "
                    f"{error}"
                ) from None

    def keep(self) -> None:
        """Save if the last time is long ago."""
        if time.monotonic() - self._saved > CHECKPOINT_SECONDS:
            self._write()

    def save(self) -> None:
        """Save the work. If the disk is full or gone, it continues without a checkpoint."""
        self._write()

    def _write(self) -> None:
        self._saved = time.monotonic()
        try:
            files.save(self.path, self.work.state())
        except OSError as error:
            warn(
                f"{self.work.function}: checkpoint {str(self.path)!r} could not be written "
                f"({error.strerror or error}); the {self.work.function} goes on without",
                RuntimeWarning,
            )


class Job(Resumable, Protocol):
    """Work in steps."""

    done: int
    total: int

    def advance(self, steps: int) -> None: ...


def drive(
    job: Job,
    progress: bool | None,
    checkpoint: str | os.PathLike[str] | None,
    *,
    note: Callable[[], str] = str,
    limit: Callable[[], int] | None = None,
    ended: Callable[[], bool] = bool,
) -> None:
    """Do a job to its end, or until Ctrl-C, a fraction of a second at a time.

    Args:
        job: the work.
        progress: show it on stderr; None: if that is a terminal.
        checkpoint: the file from which it continues and in which it is kept.
        note: what the progress says beside the share that is done.
        limit: the most steps of the next slice.
        ended: called after each slice; True ends the job.
    """
    file = None if checkpoint is None else Checkpoint(job, checkpoint)
    steps, before = 1, job.done
    shown = sys.stderr.isatty() if progress is None else progress
    with interruptible() as pressed, Progress(job.function, job.total, sys.stderr, shown) as bar:
        while job.done < job.total and not pressed:
            steps = min(steps, job.total - job.done, job.total if limit is None else limit())
            begin = time.monotonic()
            job.advance(steps)
            bar.update(job.done, note(), before)
            if ended():
                break
            if file is not None:
                file.keep()
            seconds = max(time.monotonic() - begin, 1e-6)
            steps = max(1, min(8 * steps, int(steps * SLICE_SECONDS / seconds)))
        if file is not None:
            file.save()


def fingerprint(**facts: str) -> dict[str, str]:
    """What decides the numbers of some work: these facts, and the versions."""
    return {"npu_kernels": npu_kernels.__version__, "torch": str(torch.__version__), **facts}


def check_same(saved: Any, own: dict[str, str], what: str = "fit") -> None:
    """Raise ValueError, which says what differs, for the fingerprint of another `what`."""
    if not isinstance(saved, dict):
        raise ValueError("it is of an earlier version of npu_kernels")
    said = []
    for name in {**own, **saved}:
        if saved.get(name) != own.get(name):
            values = f"{saved.get(name)}, here {own.get(name)}"
            said.append(name if name in ("model", "data") or len(values) > LONG else f"{name} ({values})")
    if said:
        raise ValueError(f"it is of another {what}: other {', '.join(said)}")


def digest(*parts: Any) -> str:
    """Of tensors, records of such, and other values by their `repr`."""
    found = hashlib.blake2b(digest_size=16)

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            part = part.detach().cpu()
            found.update(f"{part.dtype} {tuple(part.shape)} ".encode() + part.contiguous().numpy().tobytes())
        elif is_dataclass(part):
            found.update(type(part).__name__.encode())
            for field in fields(part):
                add(getattr(part, field.name))
        else:
            found.update(repr(part).encode())

    for part in parts:
        add(part)
    return found.hexdigest()
