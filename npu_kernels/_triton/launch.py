"""What all launchers share: sizes, checks, allocation, the device."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import triton.language as tl

Tensor = torch.Tensor

TORCH_DTYPE = {tl.float32: torch.float32, tl.float64: torch.float64}
# Offsets within a tile, of at most 128 rows of two values for each feature, are 32-bit numbers.
MAX_FEATURES = 2**23
# Computed in float32; a call may mix these.
_IN_FLOAT32 = (torch.float32, torch.bfloat16, torch.float16)
_NO_GUARD: AbstractContextManager[None] = nullcontext()


class Sizes(NamedTuple):
    """The sizes of a layer's call."""

    K: int  # models
    B: int  # rows
    I: int  # inputs
    O: int  # outputs
    shared_x: bool  # all models read the same rows of x


def model_sizes(name: str, x: Tensor, weight: Tensor) -> Sizes:
    """Sizes of ``[O, I]`` with ``[B, I]``, or ``[K, O, I]`` with ``[K, B, I]`` or ``[B, I]``."""
    w, rows = weight.shape, x.shape
    if len(w) > 1 and max(w[-1], w[-2]) >= MAX_FEATURES:
        limit = f"at most {MAX_FEATURES - 1} inputs and outputs"
        raise ValueError(f"{name}: {limit}, got weight {tuple(w)}")
    if len(w) == 2 and len(rows) == 2 and rows[1] == w[1]:
        return Sizes(1, rows[0], w[1], w[0], True)
    if len(w) == 3 and rows[-1] == w[2]:
        if len(rows) == 2:
            return Sizes(w[0], rows[0], w[2], w[1], True)
        if len(rows) == 3 and rows[0] == w[0]:
            return Sizes(w[0], rows[1], w[2], w[1], False)
    raise ValueError(
        f"{name}: x must have shape (B, I) with a weight of shape (O, I), or (K, B, I) or (B, I) "
        f"with (K, O, I), got x {tuple(rows)} and weight {tuple(w)}"
    )


def check_operands(name: str, x: Tensor, **tensors: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Raise where a tensor's shape, dtype or device is wrong: kernels compute addresses from sizes.

    Tensors that are computed in float32 may differ in dtype.
    """
    for label, (tensor, shape) in tensors.items():
        if tensor is None:
            continue
        must = f"{name}: {label} must"
        if tensor.shape != shape:
            raise ValueError(f"{must} have shape {tuple(shape)}, got shape {tuple(tensor.shape)}")
        in_float32 = tensor.dtype in _IN_FLOAT32 and x.dtype in _IN_FLOAT32
        if tensor.dtype is not x.dtype and not in_float32:
            raise TypeError(f"{must} have the dtype of x, {x.dtype}, got {tensor.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"{must} be on the device of x, {x.device}, got {tensor.device}")


def accumulator(dtype: torch.dtype) -> tl.dtype:
    """The type in which tensors of that dtype are computed."""
    if dtype in _IN_FLOAT32:
        return tl.float32
    if dtype is torch.float64:
        return tl.float64
    raise TypeError(f"npu_kernels: x must be float16, bfloat16, float32 or float64, got {dtype}")


def empty(like: Tensor, shape: tuple[int, ...], acc: tl.dtype | None = None) -> Tensor:
    """A new contiguous tensor of the dtype acc, or of that of `like`."""
    return like.new_empty(shape) if acc is None else like.new_empty(shape, dtype=TORCH_DTYPE[acc])


def contiguous(tensors: Iterable[Tensor | None]) -> list[Any]:
    """The tensors, copied where they are not contiguous; None stays None."""
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def needed(needs: int, tensors: Iterable[Tensor | None]) -> list[bool]:
    """Return for each tensor whether its gradient is needed: bit n of `needs` is tensor n's."""
    return [t is not None and bool(needs >> bit & 1) for bit, t in enumerate(tensors)]


def gradients(needs: list[bool], tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """New tensors for the gradients, of the tensors' shapes and dtypes, or empty if not needed."""
    like: list[Any] = [tensors[0] if tensor is None else tensor for tensor in tensors]
    return [t.new_empty(t.shape if n else (0,)) for t, n in zip(like, needs, strict=True)]


def is_partial(result: Tensor, splits: int, acc: tl.dtype) -> bool:
    """Return whether programs write partial sums: where rows are split, or in another dtype.

    A kernel that writes both is then the same for every number of rows.
    """
    return splits > 1 or result.dtype is not TORCH_DTYPE[acc]


def result_type(x: Tensor, weight: Tensor) -> tl.dtype | None:
    """The result's dtype for :func:`empty`: that of x, float32 where the weights have another."""
    return None if x.dtype is weight.dtype else tl.float32


def device_of(x: Tensor) -> AbstractContextManager[object]:
    """A context in which the device of x is the current one; costs nothing where it is already."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return _NO_GUARD
    return torch.cuda.device(x.device)


def row_splits(rows: int, block: int, tiles: int, programs: int) -> tuple[int, int]:
    """The number of parts into which rows are split, for about `programs` programs; rows of a part.

    block: rows that a program takes at a time. tiles: programs of each part.
    """
    blocks = -(-rows // block)
    part_blocks = -(-blocks // max(1, programs // tiles))
    return -(-blocks // part_blocks), part_blocks * block
