"""The end of a backward: a tile's gradients of weights and gate from its sums over rows."""

import triton
import triton.language as tl

from npu_kernels._backends.triton.device_math import PI


@triton.jit
def store_weight_gradients(
    acc_sp,  # SP, SQ, MP, MQ [BLOCK_O, BLOCK_I]
    acc_sq, acc_mp, acc_mq,
    ghat,  # [1, BLOCK_I]
    wre_ptr, wim_ptr, grad_re_ptr, grad_im_ptr,
    gate_partial_ptr,  # the tile's first input
    start_w,  # the tile's first weight
    split,  # weights before those of this split
    offs_o, offs_i, mask_o, mask_i, I,
    HAS_IM: tl.constexpr, NEED_RE: tl.constexpr, NEED_IM: tl.constexpr, NEED_GATE: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """The tile's gradients from its sums over rows."""
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
