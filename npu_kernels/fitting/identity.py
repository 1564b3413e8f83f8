"""What determines a fit's numbers. Two fits in which it is the same may continue from each other's checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

import npu_kernels
from npu_kernels.fitting.batch import Template
from npu_kernels.fitting.recipe import Recipe

FORMAT = 2  # of a saved state


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
