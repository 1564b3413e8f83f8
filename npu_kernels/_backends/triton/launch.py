"""What all launchers share: sizes, checks, allocation, the device."""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import triton.language as tl

Tensor = torch.Tensor

TORCH_DTYPE = {tl.float32: torch.float32, tl.float64: torch.float64}
MOST_FEATURES = 2**24  # offsets within a tile, of at most 128 rows, are 32-bit numbers
_IN_FLOAT32 = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
)  # computed in float32; a call may mix them
_NO_GUARD: AbstractContextManager[None] = nullcontext()


class Sizes(NamedTuple):
    """K models, B rows, I inputs, O outputs, and whether all models read the same rows of x."""

    K: int
    B: int
    I: int
    O: int
    shared_x: bool


def model_sizes(name: str, x: Tensor, weight: Tensor) -> Sizes:
    """Sizes of ``weight [O, I]`` with ``x [B, I]``, or ``weight [K, O, I]`` with ``x [K, B, I]`` or ``[B, I]``."""
    w, rows = weight.shape, x.shape
    if len(w) > 1 and max(w[-1], w[-2]) >= MOST_FEATURES:
        raise ValueError(
            f"{name}: at most {MOST_FEATURES - 1} inputs and outputs, got weight {tuple(w)}"
        )
    if len(w) == 2 and len(rows) == 2 and rows[1] == w[1]:
        return Sizes(1, rows[0], w[1], w[0], True)
    if len(w) == 3 and rows[-1] == w[2]:
        if len(rows) == 2:
            return Sizes(w[0], rows[0], w[2], w[1], True)
        if len(rows) == 3 and rows[0] == w[0]:
            return Sizes(w[0], rows[1], w[2], w[1], False)
    raise ValueError(
        f"{name}: x must have shape (B, I) with a weight of shape (O, I), or (K, B, I) or (B, I) with (K, O, I), "
        f"got x {tuple(rows)} and weight {tuple(w)}"
    )


def check_operands(name: str, x: Tensor, **tensors: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Kernels compute addresses from sizes: a wrong shape, dtype or device must not reach them.

    What is computed in float32 may be stored in any of its three dtypes, also beside one another.
    """
    for label, (tensor, shape) in tensors.items():
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise ValueError(
                f"{name}: {label} must have shape {tuple(shape)}, got shape {tuple(tensor.shape)}"
            )
        if tensor.dtype is not x.dtype and not (
            tensor.dtype in _IN_FLOAT32 and x.dtype in _IN_FLOAT32
        ):
            raise TypeError(
                f"{name}: {label} must have the dtype of x, {x.dtype}, got {tensor.dtype}"
            )
        if tensor.device != x.device:
            raise ValueError(
                f"{name}: {label} must be on the device of x, {x.device}, got {tensor.device}"
            )


def accumulator(dtype: torch.dtype) -> tl.dtype:
    """The type that a storage dtype is computed in."""
    if dtype in _IN_FLOAT32:
        return tl.float32
    if dtype is torch.float64:
        return tl.float64
    raise TypeError(f"npu_kernels: x must be float16, bfloat16, float32 or float64, got {dtype}")


def empty(like: Tensor, shape: tuple[int, ...], acc: tl.dtype | None = None) -> Tensor:
    """A new contiguous tensor, in the accumulation dtype if given."""
    return like.new_empty(shape) if acc is None else like.new_empty(shape, dtype=TORCH_DTYPE[acc])


def gradients(x: Tensor, needed: tuple[tuple[Tensor | None, bool], ...]) -> tuple[Tensor, ...]:
    """A new tensor for the gradient of each tensor, of its shape and dtype; without elements where it is not needed."""
    return tuple(
        [
            (x if t is None else t).new_empty(t.shape if t is not None and need else (0,))
            for t, need in needed
        ]
    )


def result_type(x: Tensor, weight: Tensor) -> tl.dtype | None:
    """For :func:`empty`: None where the result has the dtype of x, float32 where x and the weights differ."""
    return None if x.dtype is weight.dtype else tl.float32


def device_of(x: Tensor) -> AbstractContextManager[object]:
    """Makes the device of x current for a launch; costs nothing where it is already."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return _NO_GUARD
    return torch.cuda.device(x.device)


def row_splits(rows: int, block: int, tiles: int, programs: int) -> tuple[int, int]:
    """The number of parts that the rows are split into, for about `programs` programs, and the rows of a part.

    block: rows that a program takes at a time. tiles: programs that every part has.
    """
    blocks = -(-rows // block)
    of_a_part = -(-blocks // max(1, programs // tiles))
    return -(-blocks // of_a_part), of_a_part * block
