"""Rows from tensors or batches, split into training and held-out ones, and the loss's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from npu_kernels._common.checks import check_real, check_tensor, stream
from npu_kernels.fitting._recipe import Recipe

HELD_OUT_ROWS = 8192  # of a problem at most: more of them cost more and help little

Batches = Callable[[torch.Generator], tuple[Tensor, Tensor]] | Iterable[tuple[Tensor, Tensor]]


def collect(function: str, batches: Any, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return `rows` rows ``[N, I]`` and ``[N, O]`` of batches, or fewer if the batches end."""
    generator = stream("batches", seed)
    if isinstance(batches, Iterable):
        source = iter(batches)
    elif callable(batches):
        source = iter(lambda: batches(generator), None)
    else:
        rule = (
            "x must be a tensor, batches (x, y), or a function of a torch.Generator that gives one"
        )
        raise TypeError(f"{function}: {rule}, got {type(batches).__name__}")
    xs: list[Tensor] = []
    ys: list[Tensor] = []
    while sum(map(len, xs)) < rows:
        try:
            x, y = _checked_batch(function, next(source))
        except StopIteration:
            break
        xs.append(x)
        ys.append(y)
    if not xs:
        raise ValueError(f"{function}: x must give at least one batch")
    for name, tensors in (("x", xs), ("y", ys)):
        kinds = dict.fromkeys((t.shape[1], t.dtype, t.device) for t in tensors)
        if len(kinds) > 1:
            got = " and ".join(f"{n} columns of {dtype} on {device}" for n, dtype, device in kinds)
            rule = f"{name} of all batches must have the same columns, dtype and device"
            raise ValueError(f"{function}: {rule}, got {got}")
    return torch.cat(xs)[:rows], torch.cat(ys)[:rows]


def _checked_batch(function: str, batch: Any) -> tuple[Tensor, Tensor]:
    """Return x and y of a batch."""
    several = isinstance(batch, (tuple, list))
    if not several or len(batch) != 2 or not all(isinstance(t, Tensor) for t in batch):
        parts = ", ".join(type(part).__name__ for part in batch) if several else ""
        got = type(batch).__name__ + (f" of {parts}" if parts and len(batch) < 5 else "")
        raise TypeError(f"{function}: a batch must be two tensors (x, y), got {got}")
    x, y = batch
    check_tensor(function, "x of a batch", x)
    check_tensor(function, "y of a batch", y)
    if x.dim() != 2 or y.dim() != 2 or len(x) != len(y) or not len(x):
        rule = "a batch must have shapes (B, I) and (B, O) with B of at least 1"
        raise ValueError(f"{function}: {rule}, got {tuple(x.shape)} and {tuple(y.shape)}")
    return x, y


def table(function: str, name: str, value: Any) -> Any:
    """Return an array, DataFrame or Series as a float64 tensor, a vector as one column.

    Any other value is returned as it is.
    """
    if isinstance(value, Tensor) or not hasattr(value, "__array__"):
        return value
    import numpy

    check_real(function, name, value)
    try:
        tensor = torch.from_numpy(numpy.array(value, dtype=numpy.float64))
    except (TypeError, ValueError) as error:
        got = f"{type(value).__name__}: {error}"
        raise TypeError(f"{function}: {name} must be an array of numbers, got {got}") from None
    return tensor.unsqueeze(1) if tensor.dim() == 1 else tensor


def check(function: str, x: Tensor, y: Tensor, dimensions: int) -> None:
    """Raise for data that cannot be fitted: ``[N, I]`` and ``[N, O]``, or 3 with problems first."""
    before = "problems, " if dimensions == 3 else ""
    for name, tensor, features in (("x", x, "in_features"), ("y", y, "out_features")):
        check_tensor(function, name, tensor)
        if tensor.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{function}: {name} must be float32 or float64, got {tensor.dtype}")
        if tensor.dim() != dimensions:
            rule, got = f"shape ({before}N, {features})", f"got shape {tuple(tensor.shape)}"
            raise ValueError(f"{function}: {name} must have {rule}, {got}")
        if not tensor.isfinite().all():
            count = int((~tensor.isfinite()).sum())
            raise ValueError(f"{function}: {name} must be finite, got {count} that are not")
    shapes = tuple(x.shape), tuple(y.shape)
    if shapes[0][:-1] != shapes[1][:-1]:
        got = f"{shapes[0]}, {shapes[1]}"
        raise ValueError(f"{function}: x and y must have the same rows, got shapes {got}")
    for name, sizes in zip("xy", shapes, strict=True):
        if not sizes[-1] or not sizes[0]:
            raise ValueError(f"{function}: {name} must not be empty, got shape {sizes}")
    if x.shape[-2] < 2:
        rule = "at least 2 rows (one is held out)"
        raise ValueError(f"{function}: x must have {rule}, got {x.shape[-2]}")


@dataclass
class Rows:
    """x, y and the loss's weights, ``[problems, N, ...]``."""

    x: Tensor
    y: Tensor
    weight: Tensor

    def to(self, dtype: torch.dtype) -> Rows:
        return Rows(self.x.to(dtype), self.y.to(dtype), self.weight.to(dtype))

    def first(self, count: int) -> Rows:
        return Rows(self.x[:, :count], self.y[:, :count], self.weight[:, :count])


def _weights(targets: Tensor, y: Tensor, recipe: Recipe) -> Tensor:
    """Return the loss's weights of y, from training targets ``[problems, N, O]``."""
    square = targets.square().mean(1, keepdim=True)
    square = square.where(square > 0, 1.0)
    if recipe.loss == "relative":
        middle = targets.abs().median(1, keepdim=True).values.square()
        return 1 / (y.square() + middle.where(middle > 0, square))
    return (1 / square).expand_as(y)


@dataclass
class Data:
    """Training and held-out rows of all problems, in float64."""

    training: Rows
    held_out: Rows

    @classmethod
    def split(
        cls, x: Tensor, y: Tensor, seeds: Sequence[int], recipe: Recipe, device: torch.device
    ) -> Data:
        """Return the split: held-out rows by a problem's seed, weights by its training rows."""
        count = x.shape[1]
        held = min(count - 1, HELD_OUT_ROWS, max(1, round(recipe.holdout * count)))
        orders = [torch.randperm(count, generator=stream("split", seed)) for seed in seeds]
        order = torch.stack(orders).unsqueeze(2)
        x = x.double().cpu().gather(1, order.expand(-1, -1, x.shape[2])).to(device)
        y = y.double().cpu().gather(1, order.expand(-1, -1, y.shape[2])).to(device)
        targets = y[:, held:]
        weight = _weights(targets, y, recipe)
        return cls(
            Rows(x[:, held:].contiguous(), targets.contiguous(), weight[:, held:].contiguous()),
            Rows(x[:, :held].contiguous(), y[:, :held].contiguous(), weight[:, :held].contiguous()),
        )

    def weighted(self, x: Tensor, y: Tensor, recipe: Recipe) -> Rows:
        """Return other rows with the weights that they would have among the training rows."""
        return Rows(x, y, _weights(self.training.y, y, recipe))
