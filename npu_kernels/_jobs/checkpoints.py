"""Long work that may be interrupted: Ctrl-C, and a file from which it continues."""

from __future__ import annotations

import ctypes
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
from torch import Tensor, nn

import npu_kernels
from npu_kernels._common.notices import warn
from npu_kernels._jobs import files
from npu_kernels._jobs.progress import Progress

CHECKPOINT_SECONDS = 30.0  # between two savings
SLICE_SECONDS = 0.2  # of work, between which progress, Ctrl-C and checkpoints have their turn
PIECE = 2**24  # elements hashed at once
LONG = 200  # characters: values that are longer are not shown


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


class Resumable(Protocol):
    """Work with a state of tensors and numbers, a dict that has its fingerprint."""

    function: str  # what the user has called

    @property
    def fingerprint(self) -> dict[str, str]:
        """What decides its numbers, as it was before the first step."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state, all of which is checked before anything changes.

        ValueError, which says what differs, for a wrong state or one of other work.
        """


class Checkpoint:
    """The file of some work, checked before the work begins.

    If the file exists, the work continues from it.

    Raises TypeError if it is no path, OSError if it cannot be written, ValueError if it is damaged
    or of other work.
    """

    def __init__(self, job: Resumable, path: str | os.PathLike[str]) -> None:
        function = job.function
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{function}: checkpoint must be a path, got {type(path).__name__}")
        # A fingerprint that cannot be had fails before any step; later settings are not in it.
        job.fingerprint  # noqa: B018
        self.work, self.path, self._saved = job, Path(path), time.monotonic()
        try:
            files.check_writable(self.path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            rule = "checkpoint must be a file that can be written"
            raise _kind(error)(f"{function}: {rule}, got {str(path)!r}: {reason}") from None
        if self.path.exists():
            try:
                job.restore(files.load(self.path, ["fingerprint"]))
            except (OSError, ValueError) as error:
                raise self.refused(error) from None

    def refused(self, error: OSError | ValueError) -> Exception:
        """The error of a file that cannot be read or is not this work's."""
        function = self.work.function
        rule = f"checkpoint must be a new file or one of this same {function}"
        return _kind(error)(f"{function}: {rule}, got {str(self.path)!r}: {error}")

    def keep(self) -> None:
        """Save if the last time is long ago."""
        if time.monotonic() - self._saved > CHECKPOINT_SECONDS:
            self.save()

    def save(self) -> None:
        """Save the work. If the disk is full or gone, it continues without a checkpoint."""
        self._saved = time.monotonic()
        try:
            files.save(self.path, self.work.state())
        except OSError as error:
            warn(
                f"{self.work.function}: checkpoint {str(self.path)!r} could not be written "
                f"({error.strerror or error}); the {self.work.function} goes on without",
                RuntimeWarning,
            )


def _kind(error: OSError | ValueError) -> type[Exception]:
    """Return the class to raise instead: ValueErrors of Unicode take more than a message."""
    return type(error) if isinstance(error, OSError) else ValueError


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
    first: int = 1,
    note: Callable[[], str] = str,
    limit: Callable[[], int] | None = None,
    ended: Callable[[], bool] = bool,
) -> None:
    """Do a job to its end, or until Ctrl-C, a fraction of a second at a time.

    Args:
        job: the work.
        progress: show it on stderr; None: if that is a terminal.
        checkpoint: the file from which it continues and in which it is kept.
        first: steps of the first slice; later ones take `SLICE_SECONDS`.
        note: what the progress says beside the share that is done.
        limit: the most steps of the next slice.
        ended: called after each slice; True ends the job.
    """
    file = None if checkpoint is None else Checkpoint(job, checkpoint)
    steps, before = first, job.done
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
    """Return what decides the numbers of some work: these facts, and the versions."""
    return {"npu_kernels": npu_kernels.__version__, "torch": str(torch.__version__), **facts}


def check_same(saved: Any, current: dict[str, str], title: str = "fit") -> None:
    """Raise ValueError, which says what differs, for the fingerprint of another `what`."""
    if not isinstance(saved, dict):
        raise ValueError("it is of an earlier version of npu_kernels")
    said = []
    for name in {**current, **saved}:
        if saved.get(name) != current.get(name):
            values = f"{saved.get(name)}, here {current.get(name)}"
            short = name not in ("model", "data") and len(values) <= LONG
            said.append(f"{name} ({values})" if short else name)
    if said:
        raise ValueError(f"it is of another {title}: other {', '.join(said)}")


def described(model: nn.Module, units: type[nn.Module]) -> str:
    """Describe what of a model decides its numbers beside the values of its tensors.

    units: the class of modules whose `repr` does not show all settings.
    """
    tensors = [
        (name, tuple(t.shape)) for name, t in (*model.named_parameters(), *model.named_buffers())
    ]
    options = [(name, part.training, _options(part, units)) for name, part in model.named_modules()]
    return f"{model}, {tensors}, {options}"


def _options(part: nn.Module, units: type[nn.Module]) -> dict[str, Any]:
    settings = vars(part).items() if isinstance(part, units) else ()
    return {
        name: value for name, value in settings if isinstance(value, (str, int, float, type(None)))
    }


def digest(*parts: Any) -> str:
    """Return the digest of tensors, of records of tensors, and of other values by their `repr`."""
    total = hashlib.blake2b(digest_size=16)

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            total.update(f"{part.dtype} {tuple(part.shape)} ".encode())
            for piece in _pieces(part):
                total.update(piece)
        elif is_dataclass(part):
            total.update(type(part).__name__.encode())
            for field in fields(part):
                add(getattr(part, field.name))
        else:
            text = repr(part).encode()
            total.update(f"{len(text)} ".encode() + text)

    for part in parts:
        add(part)
    return total.hexdigest()


def _pieces(tensor: Tensor) -> Iterator[ctypes.Array[ctypes.c_uint8]]:
    """Yield a tensor's bytes, some at a time, without NumPy, which lacks dtypes."""
    flat = tensor.detach().reshape(-1)
    for part in flat.split(PIECE) if len(flat) else ():
        plain = part.resolve_conj().resolve_neg().cpu().contiguous().view(torch.uint8)
        yield (ctypes.c_uint8 * len(plain)).from_address(plain.data_ptr())
