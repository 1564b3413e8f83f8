"""The last launch of a backward pass, sums of partial results in a fixed order.

Programs that share an output write one row of partial sums each; this kernel adds the rows. It has
no atomics, and the number of rows depends only on shapes and configuration, so results are bitwise
equal from run to run.

Up to four sums go into one launch: weight_re, weight_im, x (shared by several models) and gate.
Each has a source ``[rows, n]`` in the accumulation dtype and a destination ``[n]`` in the
parameter's dtype. With CLIP the gradient of the gate is 0 where the gate is outside [0, 1] (the
paper's clip; ``torch.clamp`` at the ends). The layers of `nalu` pass other tensors under these
names; the sum of a weight ``tanh(weight) sigmoid(mask)`` becomes the gradients of weight and mask
(`device_math`).

:class:`Gradients` and :func:`store_weight_gradients` are the end of an NPU's backward: a tile's
gradients, and the partial sums that programs write.
"""

# ruff: noqa: SIM102 (an `if` on a compile-time constant must not be merged with one on a value)

import torch
import triton
import triton.language as tl

from npu_kernels._triton import tuning
from npu_kernels._triton.device_math import PI, loop_end, store_nac_gradients
from npu_kernels._triton.launch import Sizes, empty, gradients, is_partial, needed
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
    src_im_ptr,
    dst_im_ptr,
    src_x_ptr,  # [rows_x, n_x]
    dst_x_ptr,
    src_gate_ptr,  # [rows_gate, n_gate]
    dst_gate_ptr,
    gate_ptr,  # [n_gate]
    re_weight_ptr,  # [n_w], given where the sum is of tanh(weight) sigmoid(mask)
    re_mask_ptr,
    dst_re_mask_ptr,
    im_weight_ptr,
    im_mask_ptr,
    dst_im_mask_ptr,
    n_w,
    n_x,
    n_gate,
    rows_w,
    rows_x,
    rows_gate,
    end_re,  # program ids below this sum weight_re, then weight_im, x, gate
    end_im,
    end_x,
    ACC: tl.constexpr,
    CLIP: tl.constexpr,
    HAS_RE: tl.constexpr,
    HAS_IM: tl.constexpr,
    HAS_X: tl.constexpr,
    HAS_GATE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
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
NO_NAC = None, None, None


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
    tensors: list[torch.Tensor | None] = []
    for pair in all_sums:
        source, destination = pair or (None, None)
        tensors += [partial if pair and source is None else source, destination]
    rows = rows_re or rows_im, rows_x, rows_gate
    start(
        sum_partials_kernel,
        end_x + blocks_gate,
        options,
        (*tensors, gate_value if clip else None, *(re_nac or NO_NAC), *(im_nac or NO_NAC)),
        (n_re or n_im, n_x, n_gate, *rows, blocks_re, end_im, end_x),
        (acc, clip, re is not None, im is not None, x is not None, gate is not None),
    )


# ---- the end of an NPU's backward ----

Tensor = torch.Tensor


class Gradients:
    """The gradients of x, weight_re, weight_im and gate, and the partial sums that programs write.

    `parts` holds what the kernels fill: a gradient itself, or partial sums that `finish` adds.
    """

    def __init__(
        self,
        x: Tensor,
        weight_re: Tensor,
        weight_im: Tensor | None,
        gate: Tensor | None,
        needs: int,
        sizes: Sizes,
        splits: int,
        gate_rows: int,
        acc: tl.dtype,
    ) -> None:
        """splits: parts of the rows. gate_rows: rows of the gate's partial sums, 0 for `splits`."""
        K, B, I, O, shared_x = sizes
        self.gate, self.acc = gate, acc
        self.needed = needed(needs, [x, weight_re, weight_im, gate])
        self.results = gradients(self.needed, [x, weight_re, weight_im, gate])
        need_x, need_re, need_im, need_gate = self.needed
        part_x, part_re, part_im, part_gate = self.results
        if need_x and K > 1 and shared_x:
            part_x = empty(x, (K, B, I), acc)
        if need_re and is_partial(part_re, splits, acc):
            part_re = empty(x, (splits, K, O, I), acc)
        if need_im and is_partial(part_im, splits, acc):
            part_im = empty(x, (splits, K, O, I), acc)
        if gate_rows > 0 or (need_gate and is_partial(part_gate, splits, acc)):
            part_gate = empty(x, (gate_rows or splits, K, I) if need_gate else (0,), acc)
        self.parts = part_x, part_re, part_im, part_gate

    def finish(self, straight_through: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Add the partial sums, in at most one launch, and return the gradients."""
        x, re, im, gate = (
            (None if part is result else part, result) if need else None
            for need, part, result in zip(self.needed, self.parts, self.results, strict=True)
        )
        if x is not None and x[0] is None:  # whatever the number of rows
            x = None
        sum_partials(self.acc, re, im, x, gate, self.gate, clip=not straight_through)
        grad_x, grad_re, grad_im, grad_gate = self.results
        return grad_x, grad_re, grad_im, grad_gate


@triton.jit
def store_weight_gradients(
    acc_sp,  # SP, SQ, MP, MQ [BLOCK_O, BLOCK_I]
    acc_sq,
    acc_mp,
    acc_mq,
    ghat,  # [1, BLOCK_I]
    wre_ptr,
    wim_ptr,
    grad_re_ptr,
    grad_im_ptr,
    gate_partial_ptr,  # the tile's first input
    start_w,  # the tile's first weight
    split,  # the number of weights before this split
    offs_o,
    offs_i,
    mask_o,
    mask_i,
    I,
    HAS_IM: tl.constexpr,
    NEED_RE: tl.constexpr,
    NEED_IM: tl.constexpr,
    NEED_GATE: tl.constexpr,
    ACC: tl.constexpr,
):
    """Store the tile's gradients from its sums over rows."""
    mask_w = mask_o[:, None] & mask_i[None, :]
    offs_w = offs_o[:, None] * I + offs_i[None, :]
    out = split + start_w + offs_w
    if NEED_RE:
        grad_re = acc_sp + acc_mq * (ghat * PI)
        tl.store(grad_re_ptr + out, grad_re.to(grad_re_ptr.dtype.element_ty), mask=mask_w)
    if NEED_IM:
        grad_im = acc_sq - acc_mp * (ghat * PI)
        tl.store(grad_im_ptr + out, grad_im.to(grad_im_ptr.dtype.element_ty), mask=mask_w)
    if NEED_GATE:
        phase = acc_mq * tl.load(wre_ptr + start_w + offs_w, mask=mask_w, other=0.0).to(ACC)
        if HAS_IM:
            phase -= acc_mp * tl.load(wim_ptr + start_w + offs_w, mask=mask_w, other=0.0).to(ACC)
        part = tl.sum(phase, axis=0) * PI
        tl.store(gate_partial_ptr + offs_i, part, mask=mask_i)
