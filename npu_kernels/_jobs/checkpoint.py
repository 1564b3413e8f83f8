"""The file from which long work continues, and the fingerprint by which it knows its work."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import npu_kernels
from npu_kernels._common.notices import warn
from npu_kernels._jobs import files, saved

PIECE = 2**24  # elements hashed at once
LONG = 200  # characters: values that are longer are not shown
DIGEST = re.compile("[0-9a-f]{32}")  # of `digest`, which is not shown either


def fingerprint(**facts: str) -> dict[str, str]:
    """Return the facts that decide the numbers of some work, with the versions added."""
    return {"npu_kernels": npu_kernels.__version__, "torch": str(torch.__version__), **facts}


def check_same(saved: Any, current: dict[str, str], title: str = "fit") -> None:
    """Raise ValueError, which says what differs, for the fingerprint of another `title`."""
    if not isinstance(saved, dict):
        raise ValueError("it is of an earlier version of npu_kernels")
    if not all(isinstance(text, str) for pair in saved.items() for text in pair):
        raise ValueError("its fingerprint must be a dict of text by names")
    said = []
    for name in {**current, **saved}:
        if saved.get(name) != current.get(name):
            values = f"{saved.get(name)}, here {current.get(name)}"
            is_digest = any(map(DIGEST.fullmatch, (saved.get(name, ""), current.get(name, ""))))
            short = name not in ("model", "data") and len(values) <= LONG and not is_digest
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


# ---- the file ------------------------------------------------------------------------------------
#
# The file from which long work continues after an interruption.

FIRST_SECONDS, CHECKPOINT_SECONDS = 3.0, 30.0  # until the first saving, and between two


class Resumable(Protocol):
    """Work that can be saved: its state is a dict of tensors and numbers, with its fingerprint."""

    function: str  # what the user has called

    @property
    def fingerprint(self) -> dict[str, str]:
        """Return the facts that decide the work's numbers, as they were before the first step."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state, all of which is checked before anything changes.

        ValueError, which says what differs, for a wrong state or one of other work.
        """


class Checkpoint:
    """The file of some work, checked before the work begins.

    If the file exists, the work continues from it.

    Raises TypeError if it is no path, or for a state that it cannot hold, OSError if it cannot be
    written, ValueError if it is damaged or of other work.
    """

    def __init__(self, job: Resumable, path: str | os.PathLike[str]) -> None:
        function = job.function
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{function}: checkpoint must be a path, got {type(path).__name__}")
        self.work, self.path, self._saved = job, Path(path), time.monotonic()
        self._seconds = FIRST_SECONDS  # until the next saving
        try:
            files.check_writable(self.path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            rule = "checkpoint must be a file that can be written"
            raise _kind(error)(f"{function}: {rule}, got {str(path)!r}: {reason}") from None
        try:
            # What cannot be saved fails before any step; later settings are not in the fingerprint.
            saved.plain(job.state(), "state")
        except TypeError as error:
            raise TypeError(f"{function}: {error}") from None
        if self.path.exists():
            try:
                job.restore(files.load(self.path, ["fingerprint"]))
            except (OSError, ValueError) as error:
                raise self.refused(error) from None

    def refused(self, error: OSError | ValueError) -> Exception:
        """Return the error for a file that cannot be read or belongs to other work."""
        function = self.work.function
        rule = f"checkpoint must be a new file or one of this same {function}"
        return _kind(error)(f"{function}: {rule}, got {str(self.path)!r}: {error}")

    def keep(self) -> None:
        """Save the work if it was last saved long ago."""
        if time.monotonic() - self._saved > min(self._seconds, CHECKPOINT_SECONDS):
            self.save()

    def save(self) -> None:
        """Save the work; where this fails, warn, keep the former file and let the work go on."""
        self._saved, self._seconds = time.monotonic(), CHECKPOINT_SECONDS
        try:
            files.save(self.path, saved.plain(self.work.state(), "state"))
        except (OSError, TypeError) as error:  # the disk is full or gone; a new kind of value
            warn(
                f"{self.work.function}: checkpoint {str(self.path)!r} could not be written "
                f"({getattr(error, 'strerror', None) or error}); "
                f"the {self.work.function} goes on without",
                RuntimeWarning,
            )


def _kind(error: OSError | ValueError) -> type[Exception]:
    """Return the class to raise instead: ValueErrors of Unicode take more than a message."""
    return type(error) if isinstance(error, OSError) else ValueError
