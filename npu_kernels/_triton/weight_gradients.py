"""The end of an NPU's backward: a tile's gradients, and the partial sums that programs write."""

import torch
import triton
import triton.language as tl

from npu_kernels._triton.device_math import PI
from npu_kernels._triton.launch import Sizes, empty, gradients, is_partial, needed
from npu_kernels._triton.reduction import sum_partials

Tensor = torch.Tensor


class Gradients:
    """The gradients of x, weight_re, weight_im and gate, and the partial sums that programs write.

    `parts` holds what the kernels fill: a gradient itself, or partial sums that `finish` adds.
    """

    def __init__(
        self, x: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None,
        needs: int, sizes: Sizes, splits: int, gate_rows: int, acc: tl.dtype,
    ) -> None:  # fmt: skip
        """splits: parts of the rows. gate_rows: rows of the gate's partial sums, 0 for `splits`."""
        K, B, I, O, shared_x = sizes
        self.gate, self.acc = gate, acc
        self.needed = needed(needs, x, weight_re, weight_im, gate)
        self.results = gradients(self.needed, x, weight_re, weight_im, gate)
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
    acc_sq, acc_mp, acc_mq,
    ghat,  # [1, BLOCK_I]
    wre_ptr, wim_ptr, grad_re_ptr, grad_im_ptr,
    gate_partial_ptr,  # the tile's first input
    start_w,  # the tile's first weight
    split,  # the number of weights before this split
    offs_o, offs_i, mask_o, mask_i, I,
    HAS_IM: tl.constexpr, NEED_RE: tl.constexpr, NEED_IM: tl.constexpr, NEED_GATE: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
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
