"""Tensors of any strides over memory that is filled whole, with special values in it."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

DTYPES = ("float32", "float64", "float16", "bfloat16")
# "overlapping": strides of 1 or 2 in every dimension; "negated": torch's lazy negation.
LAYOUTS = ("contiguous", "permuted", "stepped", "offset", "expanded", "overlapping", "negated")
KINDS = ("whole", "tiny", "huge", "infinite", "nan", "any")


def special_values(name: str, kind: str, dtype: torch.dtype) -> list[float]:
    """Special values of a tensor; the greatest only in x: sums of them depend on the order."""
    info = torch.finfo(dtype)
    root = math.sqrt(info.max)
    tiny, subnormal = info.smallest_normal, info.smallest_normal * info.eps
    values = {
        "whole": [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0],
        "tiny": [0.0, -0.0, subnormal, -subnormal, 100 * subnormal, tiny, -tiny],
        "huge": [root, -root, root / 8,
                 *([info.max, info.min, info.max / 8] if name == "x" else [])],
        "infinite": [math.inf, -math.inf],
        "nan": [math.nan],
    }  # fmt: skip
    return [v for numbers in values.values() for v in numbers] if kind == "any" else values[kind]


class Memory:
    """Makes the tensors of one case, and keeps what they are views of.

    special: pairs of a tensor's name and the kind of special values in a tenth of its memory.
    """

    def __init__(self, dtype: str, seed: int, special: Sequence[tuple[str, str]] = ()) -> None:
        self.dtype, self.special = getattr(torch, dtype), special
        self.generator = torch.Generator().manual_seed(seed)
        self.storages: list[Tensor] = []

    def tensor(
        self, name: str, shape: tuple[int, ...], layout: str, low: float, high: float
    ) -> Tensor:
        strides, offset = self._strides(layout, shape)
        size = (
            offset
            + 1
            + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if n > 1)
        )
        values = (
            torch.rand(size, generator=self.generator, dtype=torch.float64) * (high - low) + low
        )
        for kind in (kind for where, kind in self.special if where == name):
            special = torch.tensor(special_values(name, kind, self.dtype), dtype=torch.float64)
            positions = torch.randint(size, (max(1, size // 10),), generator=self.generator)
            values[positions] = special[
                torch.randint(len(special), positions.shape, generator=self.generator)
            ]
        storage = values.to(self.dtype)
        self.storages.append(storage)
        view = storage.as_strided(shape, strides, offset)
        return torch._neg_view(view) if layout == "negated" else view

    def _whole(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def _strides(self, layout: str, shape: tuple[int, ...]) -> tuple[list[int], int]:
        order = list(range(len(shape)))
        if layout == "permuted":
            order = torch.randperm(len(shape), generator=self.generator).tolist()
        strides, size = [0] * len(shape), 1
        for d in reversed(order):
            step = self._whole(1, 3) if layout == "stepped" else 1
            strides[d] = size * step
            size *= max(shape[d], 1) * step
        if layout == "expanded":
            strides = [stride * self._whole(0, 1) for stride in strides]
        elif layout == "overlapping":
            strides = [self._whole(1, 2) for _ in shape]
        return strides, self._whole(0, 5) if layout in ("stepped", "offset") else 0


def changed(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The tensor over changed memory: what an expanded one repeats, changes together."""
    memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    view = change(memory).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return (-view if tensor.is_neg() else view).contiguous()


def bits(tensor: Tensor) -> Tensor:
    """Whole numbers that tell 0 from -0, and no nan from another."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.masked_fill(tensor.isnan(), torch.nan).resolve_neg().contiguous().view(integer)
