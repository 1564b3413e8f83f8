"""The values of a saved state, each checked when it is read: a file may hold anything.

Errors are ValueErrors that name the entry; `checkpoint.Checkpoint` puts the name of the file
before them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from npu_kernels._common.checks import MOST_WHOLE, as_number
from npu_kernels._jobs import files

_PLAIN = (bool, int, float, str, bytes, type(None))


def _wrong(name: str, rule: str, value: Any) -> ValueError:
    shown = isinstance(value, (bool, int, float, str, type(None)))
    text = repr(value) if shown else type(value).__name__
    text = text if len(text) < 100 else text[:100] + "..."
    return ValueError(f"its {name} must be {rule}, got {text}")


def plain(value: Any, name: str) -> Any:
    """Return a state with numbers of other libraries, such as NumPy's, as Python's.

    Raises TypeError, which names the entry, for what would not be loaded again.
    """
    if type(value) in _PLAIN or isinstance(value, Tensor):
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


def record(value: Any, name: str, names: Collection[Any]) -> dict[Any, Any]:
    """A dict with these keys and no others."""
    if not isinstance(value, dict):
        raise _wrong(name, "a dict", value)
    absent, strange = set(names) - value.keys(), value.keys() - set(names)
    for wrong, word in ((absent, "without"), (strange, "with")):
        if wrong:
            entries = ", ".join(sorted(map(str, wrong))[:3])
            raise ValueError(f"its {name} is another one: {word} {entries}")
    return value


def mapping(value: Any, name: str) -> dict[str, Any]:
    """A dict whose keys are text."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _wrong(name, "a dict of names", value)
    return value


def sequence(value: Any, name: str, length: int | None = None) -> Sequence[Any]:
    """A list or tuple of that length; None: of any."""
    if not isinstance(value, (list, tuple)) or length not in (None, len(value)):
        size, got = "" if length is None else f" of {length}", type(value).__name__
        got += f" of {len(value)}" if isinstance(value, (list, tuple)) else ""
        raise ValueError(f"its {name} must be a list{size}, got {got}")
    return value


def integer(value: Any, name: str, low: int = 0, high: int = MOST_WHOLE) -> int:
    """An integer within these bounds."""
    if type(value) is not int or not low <= value <= high:
        limit = "" if high == MOST_WHOLE else f", at most {high}"
        raise _wrong(name, f"an integer of at least {low}{limit}", value)
    return value


def number(value: Any, name: str, low: float = -math.inf, finite: bool = True) -> Any:
    """A number of at least `low` that a float can hold; unless `finite`, also inf or nan."""
    plain = type(value) is float or (type(value) is int and not math.isnan(as_number(value)))
    if not plain or value < low or (finite and not math.isfinite(value)):
        finer = " that is finite" if low == -math.inf else f" of at least {low}"
        raise _wrong(name, f"a number{finer if finite else ''}", value)
    return value


def tensor(
    value: Any,
    name: str,
    shape: Sequence[int | None],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    low: float = -math.inf,
    high: float = math.inf,
) -> Tensor:
    """Return a contiguous copy, on the device, of a tensor of that shape and dtype.

    shape: None allows any size.

    low, high: the bounds of its numbers; with bounds nan is refused.
    """
    sizes_text = ", ".join("any" if n is None else str(n) for n in shape)
    rule = f"a tensor of {dtype} and shape ({sizes_text})"
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        raise _wrong(name, rule, value)
    if value.is_nested or value.is_meta:
        raise _wrong(name, rule, value)
    pairs = zip(shape, value.shape)  # noqa: B905  # of tensors with other dimensions too
    sizes = len(value.shape) == len(shape) and all(n in (None, m) for n, m in pairs)
    if value.dtype is not dtype or not sizes:
        got = f"{value.dtype} and shape {tuple(value.shape)}"
        raise ValueError(f"its {name} must be {rule}, got {got}")
    if (low, high) != (-math.inf, math.inf) and not ((value >= low) & (value <= high)).all():
        raise ValueError(f"its {name} must lie within [{low}, {high}]")
    return value.detach().to(device).clone(memory_format=torch.contiguous_format)
