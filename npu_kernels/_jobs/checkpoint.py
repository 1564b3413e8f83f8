"""The file from which long work continues, and the fingerprint that identifies the work."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import npu_kernels
from npu_kernels._common.checks import warn
from npu_kernels._jobs import files

CHUNK = 2**24  # elements hashed at once
LONG = 200  # characters: values that are longer are not shown
PLAIN = bool, int, float, str, bytes, type(None)  # values that a file has as they are
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
    """Describe what of a model decides its numbers, apart from the values of its tensors.

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
            for chunk in _chunks(part):
                total.update(chunk)
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


def _chunks(tensor: Tensor) -> Iterator[ctypes.Array[ctypes.c_uint8]]:
    """Yield a tensor's bytes, some at a time, without NumPy, which lacks dtypes."""
    flat = tensor.detach().reshape(-1)
    for part in flat.split(CHUNK) if len(flat) else ():
        plain = part.resolve_conj().resolve_neg().cpu().contiguous().view(torch.uint8)
        yield (ctypes.c_uint8 * len(plain)).from_address(plain.data_ptr())


# ---- what a file holds ---------------------------------------------------------------------------
# Its checksum tells damage, its fingerprint other work, and torch reads no code from it.


def plain(value: Any, name: str) -> Any:
    """Return a state with numbers of other libraries, such as NumPy's, as Python's.

    Raises TypeError, which names the entry, for what would not be loaded again.
    """
    if type(value) in PLAIN or isinstance(value, Tensor):
        return value
    if isinstance(value, dict) and type(value) in (dict, OrderedDict):
        return {plain(k, f"a key of {name}"): plain(v, f"{name}[{k!r}]") for k, v in value.items()}
    if type(value) in (list, tuple):
        entries = [plain(entry, f"{name}[{number}]") for number, entry in enumerate(value)]
        return type(value)(entries)
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, str):
        return str(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain(value.item(), name)  # NumPy's bool
    try:
        files.loaded(files.dumped(value))
    except Exception as error:  # of any kind, by the class of the value
        kind = type(value).__name__
        raise TypeError(f"{name} is a {kind}, which a checkpoint cannot hold") from error
    return value


def like(value: Any, template: Any, name: str = "content") -> Any:
    """Return a saved value of a template's form, its tensors as copies on the template's devices.

    template: dicts with the keys, lists and tuples with the lengths, tensors with the dtypes and
    sizes that the value must have; a size 0 stands for any, and None for any value.

    Raises ValueError, which names the entry, for a value of another form.
    """
    if template is None:
        template = value
    if isinstance(template, Tensor):
        return _tensor_like(value, template, name)
    kind: Any = Real if isinstance(template, Real) else type(template)
    if not isinstance(value, kind):
        rule = f"must be of type {type(template).__name__}"
        raise ValueError(f"its {name} {rule}, got {type(value).__name__}")
    if isinstance(template, dict):
        if value.keys() != template.keys():
            differing = ", ".join(sorted(map(str, value.keys() ^ template.keys()))[:3])
            raise ValueError(f"its {name} is another one: it differs in {differing}")
        return {key: like(value[key], template[key], f"{name}, {key}") for key in template}
    if isinstance(template, (list, tuple)):
        if len(value) != len(template):
            raise ValueError(f"its {name} must have length {len(template)}, got {len(value)}")
        pairs = zip(value, template, strict=True)
        return type(template)(
            [like(part, of, f"{name}, {n}") for n, (part, of) in enumerate(pairs)]
        )
    return value


def _tensor_like(value: Any, template: Tensor, name: str) -> Tensor:
    form = f"{template.dtype} and shape {tuple(template.shape)}"
    if not isinstance(value, Tensor):
        raise ValueError(f"its {name} must be a tensor of {form}, got {type(value).__name__}")
    sizes = len(value.shape) == len(template.shape) and all(
        size in (0, got) for size, got in zip(template.shape, value.shape, strict=True)
    )
    if value.dtype is not template.dtype or not sizes:
        got = f"{value.dtype} and shape {tuple(value.shape)}"
        raise ValueError(f"its {name} must be a tensor of {form}, got {got}")
    return value.detach().to(template.device).clone(memory_format=torch.contiguous_format)


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
            plain(job.state(), "state")
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
            files.save(self.path, plain(self.work.state(), "state"))
        except (OSError, TypeError) as error:  # the disk is full or gone; a new kind of value
            warn(
                f"{self.work.function}: checkpoint {str(self.path)!r} could not be written "
                f"({getattr(error, 'strerror', None) or error}); "
                f"the {self.work.function} goes on without",
                RuntimeWarning,
            )


class Memo:
    """Results of long work by their keys: what its checkpoint holds is not computed again.

    Each result must be determined by the fingerprint and the results before it.

    Args:
        function: what the user has called.
        facts: what decides the work's numbers, by name.
    """

    def __init__(self, function: str, facts: dict[str, str]) -> None:
        self.function, self.fingerprint = function, fingerprint(**facts)
        self.kept: dict[str, Any] = {}
        self.checkpoint: Checkpoint | None = None

    def __call__(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return the result of a key, in tensors, numbers and text; computed if it is new."""
        if key not in self.kept:
            self.keep(key, compute())
        return self.kept[key]

    def keep(self, key: str, result: Any) -> None:
        """Take a result, and write the checkpoint from time to time."""
        self.kept[key] = result
        if self.checkpoint is not None:
            self.checkpoint.keep()

    def save(self) -> None:
        """Write the checkpoint, if there is one."""
        if self.checkpoint is not None:
            self.checkpoint.save()

    def state(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, "kept": self.kept}

    def restore(self, state: dict[str, Any]) -> None:
        check_same(state["fingerprint"], self.fingerprint)
        self.kept = like(state, dict.fromkeys(self.state()))["kept"]


def _kind(error: OSError | ValueError) -> type[Exception]:
    """Return the class to raise instead: ValueErrors of Unicode take more than a message."""
    return type(error) if isinstance(error, OSError) else ValueError
