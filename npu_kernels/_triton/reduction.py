"""The last launch of a backward pass, sums of partial results in a fixed order.

Programs that share an output write one row of partial sums each; this kernel adds the rows. It has
no atomics, and the number of rows depends only on shapes and configuration, so results are bitwise
equal from run to run.

Up to four sums go into one launch: weight_re, weight_im, x (shared by several models) and gate.
Each has a source ``[rows, n]`` in the accumulation dtype and a destination ``[n]`` in the
parameter's dtype. With CLIP the gradient of the gate is 0 where the gate is outside [0, 1] (the
paper's clip; ``torch.clamp`` at the ends). The layers of `nalu` pass other tensors under these
names; the sum of a weight ``tanh(weight) sigmoid(mask)`` becomes the gradients of weight and mask
(`nac`).
"""

# ruff: noqa: SIM102 (an `if` on a compile-time constant must not be merged with one on a value)

import torch
import triton
import triton.language as tl

from npu_kernels._triton import tuning
from npu_kernels._triton.device_math import loop_end
from npu_kernels._triton.nac import store_nac_gradients
from npu_kernels._triton.tape import start

# The gate's sums have tiles with fewer columns and more rows than the others.
NARROWER, TALLER = 4, 8
_NARROWER, _TALLER = tl.constexpr(NARROWER), tl.constexpr(TALLER)


@triton.jit
def _sum_rows(
    src_ptr, offs, mask, n, rows, ACC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Column sums of ``src [rows, n]``: ROWS strided sums first, then a tree over them."""
    offs_r = tl.arange(0, ROWS).to(tl.int64)
    ptrs = src_ptr + offs_r[:, None] * n + offs[None, :]
    acc = tl.zeros([ROWS, BLOCK], dtype=ACC)
    for r in range(0, loop_end(rows), ROWS):
        acc += tl.load(ptrs, mask=(offs_r < rows - r)[:, None] & mask[None, :], other=0.0)
        ptrs += ROWS * n.to(tl.int64)  # these rows may be more than 2**31 elements
    return tl.sum(acc, axis=0)


_SIZES = ["n_w", "n_x", "n_gate", "rows_w", "rows_x", "rows_gate", "end_re", "end_im", "end_x"]


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=["gate_ptr"])
def sum_partials_kernel(
    src_re_ptr,  # [rows_w, n_w]
    dst_re_ptr,  # [n_w]
    src_im_ptr, dst_im_ptr,
    src_x_ptr,  # [rows_x, n_x]
    dst_x_ptr,
    src_gate_ptr,  # [rows_gate, n_gate]
    dst_gate_ptr,
    gate_ptr,  # [n_gate]
    re_weight_ptr,  # [n_w], given where the sum is of tanh(weight) sigmoid(mask)
    re_mask_ptr, dst_re_mask_ptr, im_weight_ptr, im_mask_ptr, dst_im_mask_ptr, n_w, n_x, n_gate,
    rows_w, rows_x, rows_gate,
    end_re,  # program ids below this sum weight_re, then weight_im, x, gate
    end_im, end_x,
    ACC: tl.constexpr, CLIP: tl.constexpr, HAS_RE: tl.constexpr, HAS_IM: tl.constexpr,
    HAS_X: tl.constexpr, HAS_GATE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    offs_block = tl.arange(0, BLOCK).to(tl.int64)
    if HAS_RE:
        if pid < end_re:
            offs = pid.to(tl.int64) * BLOCK + offs_block
            mask = offs < n_w
            total = _sum_rows(src_re_ptr, offs, mask, n_w, rows_w, ACC, ROWS, BLOCK)
            if re_weight_ptr is not None:
                store_nac_gradients(
                    total, re_weight_ptr, re_mask_ptr, dst_re_ptr, dst_re_mask_ptr, offs, mask, ACC
                )
            else:
                tl.store(dst_re_ptr + offs, total.to(dst_re_ptr.dtype.element_ty), mask=mask)
    if HAS_IM:
        if (pid >= end_re) & (pid < end_im):
            offs = (pid - end_re).to(tl.int64) * BLOCK + offs_block
            mask = offs < n_w
            total = _sum_rows(src_im_ptr, offs, mask, n_w, rows_w, ACC, ROWS, BLOCK)
            if im_weight_ptr is not None:
                store_nac_gradients(
                    total, im_weight_ptr, im_mask_ptr, dst_im_ptr, dst_im_mask_ptr, offs, mask, ACC
                )
            else:
                tl.store(dst_im_ptr + offs, total.to(dst_im_ptr.dtype.element_ty), mask=mask)
    if HAS_X:
        if (pid >= end_im) & (pid < end_x):
            offs = (pid - end_im).to(tl.int64) * BLOCK + offs_block
            mask = offs < n_x
            total = _sum_rows(src_x_ptr, offs, mask, n_x, rows_x, ACC, ROWS, BLOCK)
            tl.store(dst_x_ptr + offs, total.to(dst_x_ptr.dtype.element_ty), mask=mask)
    if HAS_GATE:
        if pid >= end_x:
            # few columns, and as many rows as there are tiles of rows
            NARROW: tl.constexpr = BLOCK // _NARROWER
            offs = (pid - end_x).to(tl.int64) * NARROW + tl.arange(0, NARROW).to(tl.int64)
            mask = offs < n_gate
            total = _sum_rows(
                src_gate_ptr, offs, mask, n_gate, rows_gate, ACC, ROWS * _TALLER, NARROW
            )
            if CLIP:
                gate = tl.load(gate_ptr + offs, mask=mask, other=0.0).to(ACC)
                total = tl.where((gate >= 0) & (gate <= 1), total, 0.0)
            tl.store(dst_gate_ptr + offs, total.to(dst_gate_ptr.dtype.element_ty), mask=mask)


# Partial sums [rows, ...], destination [...], which may be absent where that of a mask is not.
# Without partial sums nothing is added: the kernel is the one that other batches launch.
Sum = tuple[torch.Tensor | None, torch.Tensor | None]
# Weight, mask, destination of the mask's gradient.
Nac = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def sum_partials(
    acc: tl.dtype,
    re: Sum | None = None,
    im: Sum | None = None,
    x: Sum | None = None,
    gate: Sum | None = None,
    gate_value: torch.Tensor | None = None,
    clip: bool = False,
    re_nac: Nac | None = None,
    im_nac: Nac | None = None,
) -> None:
    """Write ``destination = partial.sum(0)`` for every sum, in one launch; none without a sum."""
    all_sums = re, im, x, gate
    partial = next((s[0] for s in all_sums if s is not None and s[0] is not None), None)
    if partial is None:
        return
    options = tuning.REDUCTION
    block = options["BLOCK"]

    def size(summands: Sum | None) -> tuple[int, int, int]:
        if summands is None or summands[0] is None:
            return 0, 0, 0
        rows = summands[0].shape[0]
        n = summands[0].numel() // rows
        return n, rows, -(-n // block)

    n_re, rows_re, blocks_re = size(re)
    n_im, rows_im, blocks_im = size(im)
    n_x, rows_x, blocks_x = size(x)
    n_gate, rows_gate, _ = size(gate)
    blocks_gate = -(-n_gate * NARROWER // block)
    end_im = blocks_re + blocks_im
    end_x = end_im + blocks_x
    # Some address of the same type stands for partial sums that are absent.
    tensors = [(partial if s[0] is None else s[0], s[1]) if s else (None, None) for s in all_sums]
    start(
        sum_partials_kernel, end_x + blocks_gate, options,
        *(tensor for pair in tensors for tensor in pair), gate_value if clip else None,
        *(re_nac or (None, None, None)), *(im_nac or (None, None, None)), n_re or n_im, n_x, n_gate,
        rows_re or rows_im, rows_x, rows_gate, blocks_re, end_im, end_x, acc, clip,
        re is not None, im is not None, x is not None, gate is not None,
    )  # fmt: skip
