"""What determines a fit's numbers. Two fits in which it is the same may continue from each other's checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

import npu_kernels
from npu_kernels.fitting.batch import Template
from npu_kernels.fitting.recipe import Recipe

FORMAT = 2  # of a saved state
LONG = 200  # characters: values that are longer are not shown


def fingerprint(
    template: Template, data: Sequence[tuple[Tensor, Tensor]], dtypes: str, seeds: Sequence[int], recipe: Recipe
) -> dict[str, str]:
    """All of it, by name; data: pairs of x and y."""
    digest = hashlib.blake2b(digest_size=16)
    for pair in data:
        for tensor in pair:
            digest.update(repr(tuple(tensor.shape)).encode() + tensor.cpu().numpy().tobytes())
    return {
        "format": str(FORMAT),
        "npu_kernels": npu_kernels.__version__,
        "torch": str(torch.__version__),
        "model": f"{template.model}, {list(zip(template.names, template.shapes, strict=True))}",
        "dtypes": dtypes,
        "device": template.device.type,
        "seeds": repr(list(seeds)),
        "data": digest.hexdigest(),
        **{f"recipe.{name}": repr(value) for name, value in asdict(recipe).items()},
    }


def check_same(saved: Any, own: dict[str, str]) -> None:
    """Raise ValueError, which says what differs, for the fingerprint of another fit."""
    if not isinstance(saved, dict):
        raise ValueError("it is of an earlier version of npu_kernels")
    said = []
    for name in {**own, **saved}:
        if saved.get(name) != own.get(name):
            values = f"{saved.get(name)}, here {own.get(name)}"
            said.append(name if name in ("model", "data") or len(values) > LONG else f"{name} ({values})")
    if said:
        raise ValueError(f"it is of another fit: other {', '.join(said)}")
