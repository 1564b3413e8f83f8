"""Rows from tensors or batches, split into training and held-out ones, and the loss's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from npu_kernels._common.checks import check_tensor
from npu_kernels._common.seeds import stream
from npu_kernels.fitting._recipe import Recipe

MOST_HELD_OUT = 8192  # rows: more of them cost more and help little

Batches = Callable[[torch.Generator], tuple[Tensor, Tensor]] | Iterable[tuple[Tensor, Tensor]]


def collect(function: str, batches: Any, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows ``[N, I]`` and ``[N, O]`` from batches until there are `rows`, or the batches end."""
    generator = stream("batches", seed)
    if isinstance(batches, Iterable):
        source = iter(batches)
    elif callable(batches):
        source = iter(lambda: batches(generator), None)
    else:
        raise TypeError(
            f"{function}: x must be a tensor, batches (x, y), or a function of a torch.Generator that gives one, "
            f"got {type(batches).__name__}"
        )
    found: list[tuple[Tensor, Tensor]] = []
    while sum(len(x) for x, _ in found) < rows:
        try:
            batch = next(source)
        except StopIteration:
            break
        if not (
            isinstance(batch, (tuple, list))
            and len(batch) == 2
            and all(isinstance(t, Tensor) for t in batch)
        ):
            parts = (
                ", ".join(type(part).__name__ for part in batch)
                if isinstance(batch, (tuple, list))
                else ""
            )
            got = type(batch).__name__ + (f" of {parts}" if parts and len(batch) < 5 else "")
            raise TypeError(f"{function}: a batch must be two tensors (x, y), got {got}")
        x, y = batch
        check_tensor(function, "x of a batch", x)
        check_tensor(function, "y of a batch", y)
        if x.dim() != 2 or y.dim() != 2 or len(x) != len(y) or not len(x):
            raise ValueError(
                f"{function}: a batch must have shapes (B, I) and (B, O) with B of at least 1, "
                f"got {tuple(x.shape)} and {tuple(y.shape)}"
            )
        found.append((x, y))
    if not found:
        raise ValueError(f"{function}: x must give at least one batch")
    for name, tensors in (("x", [x for x, _ in found]), ("y", [y for _, y in found])):
        kinds = {(t.shape[1], t.dtype, t.device) for t in tensors}
        if len(kinds) > 1:
            said = " and ".join(
                f"{columns} columns of {dtype} on {device}" for columns, dtype, device in kinds
            )
            raise ValueError(
                f"{function}: {name} of all batches must have the same columns, dtype and device, got {said}"
            )
    return torch.cat([x for x, _ in found])[:rows], torch.cat([y for _, y in found])[:rows]


def table(function: str, name: str, value: Any) -> Any:
    """An array, DataFrame or Series as a float64 tensor, a vector as one column; anything else as it is."""
    if isinstance(value, Tensor) or not hasattr(value, "__array__"):
        return value
    import numpy

    try:
        found = torch.from_numpy(numpy.array(value, dtype=numpy.float64))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{function}: {name} must be an array of numbers, got {type(value).__name__}: {error}"
        ) from None
    return found.unsqueeze(1) if found.dim() == 1 else found


def check(function: str, x: Tensor, y: Tensor, dimensions: int) -> None:
    """Raise for data that cannot be fitted: ``[N, I]`` and ``[N, O]``, with problems in front where there are three."""
    letters = "(problems, N, {})" if dimensions == 3 else "(N, {})"
    for name, tensor, letter in (("x", x, "in_features"), ("y", y, "out_features")):
        check_tensor(function, name, tensor)
        if tensor.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{function}: {name} must be float32 or float64, got {tensor.dtype}")
        if tensor.dim() != dimensions:
            wanted = letters.format(letter)
            raise ValueError(
                f"{function}: {name} must have shape {wanted}, got shape {tuple(tensor.shape)}"
            )
        if not tensor.isfinite().all():
            raise ValueError(
                f"{function}: {name} must be finite, got {int((~tensor.isfinite()).sum())} that are not"
            )
    if x.shape[:-1] != y.shape[:-1]:
        raise ValueError(
            f"{function}: x and y must have the same rows, got shapes {tuple(x.shape)}, {tuple(y.shape)}"
        )
    for name, tensor in (("x", x), ("y", y)):
        if not tensor.shape[-1] or not len(tensor):
            raise ValueError(
                f"{function}: {name} must not be empty, got shape {tuple(tensor.shape)}"
            )
    if x.shape[-2] < 2:
        raise ValueError(
            f"{function}: x must have at least 2 rows (one is held out), got {x.shape[-2]}"
        )


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


def _weights(known: Tensor, y: Tensor, recipe: Recipe) -> Tensor:
    """The loss's weights of y, from training targets ``[problems, N, O]``."""
    square = known.square().mean(1, keepdim=True)
    square = square.where(square > 0, 1.0)
    if recipe.loss == "relative":
        middle = known.abs().median(1, keepdim=True).values.square()
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
        """A problem's held-out rows depend on its seed alone; the weights on its training rows alone."""
        count = x.shape[1]
        held = min(count - 1, MOST_HELD_OUT, max(1, round(recipe.holdout * count)))
        order = torch.stack(
            [torch.randperm(count, generator=stream("split", seed)) for seed in seeds]
        ).unsqueeze(2)
        x = x.double().cpu().gather(1, order.expand(-1, -1, x.shape[2])).to(device)
        y = y.double().cpu().gather(1, order.expand(-1, -1, y.shape[2])).to(device)
        known = y[:, held:]
        weight = _weights(known, y, recipe)
        return cls(
            Rows(x[:, held:].contiguous(), known.contiguous(), weight[:, held:].contiguous()),
            Rows(x[:, :held].contiguous(), y[:, :held].contiguous(), weight[:, :held].contiguous()),
        )

    def weighted(self, x: Tensor, y: Tensor, recipe: Recipe) -> Rows:
        """Other rows with the weights that they would have beside the training rows."""
        return Rows(x, y, _weights(self.training.y, y, recipe))
