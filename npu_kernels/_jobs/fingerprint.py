"""The fingerprint by which a checkpoint knows its run: settings, models and data as digests."""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

import npu_kernels

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
