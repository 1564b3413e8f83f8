"""Forward and backward for fewer than 16 inputs and outputs, many models at once.

The formulas are those of `npu`. Matrix units would pad such a layer to 16 x 16, so each program
takes some rows of one model and multiplies on the vector units: input by input, a column of x times
a column of the weights. I and O are compile-time constants (one compilation per layer size), the
loop over the inputs is unrolled, and only O is padded, to a power of two.

The whole backward is one launch: every program accumulates its rows' part of all gradients. If a
model's rows take more than one program (`tuning`: BLOCK_B rows at a time, about `programs`
programs), models share x or weights have another dtype than the sums, partial sums go to the launch
of `reduction`. Sums have a fixed order.

Valid range and errors: those of `npu` with IEEE products; infinite and NaN inputs give what the
formula gives.
"""

import torch
import triton
import triton.language as tl

from npu_kernels._triton import tuning
from npu_kernels._triton.device_math import (
    PI,
    clamp_gate,
    exp_accurate,
    loop_end,
    magnitude,
    signum,
    sincos,
)
from npu_kernels._triton.launch import Sizes, accumulator
from npu_kernels._triton.reduction import Gradients
from npu_kernels._triton.tape import start

Tensor = torch.Tensor

# They may be views of one flat vector, at addresses that 16 does not divide, and nothing is read
# from them in vectors: the kernels for other addresses would be the same.
_PARAMETERS = ["wre_ptr", "wim_ptr", "gate_ptr"]


@triton.jit(do_not_specialize=["B"], do_not_specialize_on_alignment=_PARAMETERS)
def npu_small_forward_kernel(
    x_ptr,  # [K, B, I], or [B, I] with SHARED_X
    wre_ptr,  # [K, O, I]
    wim_ptr,  # [K, O, I]
    gate_ptr,  # [K, I]
    y_ptr,  # [K, B, O]
    s_ptr,  # [K, B, O]
    B,
    I: tl.constexpr,
    O: tl.constexpr,
    SHARED_X: tl.constexpr,
    EPS: tl.constexpr,
    HAS_IM: tl.constexpr,
    HAS_GATE: tl.constexpr,
    SAVE_SIN: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    tiles_b = tl.cdiv(B, BLOCK_B)
    pid = tl.program_id(0)
    k = (pid // tiles_b).to(tl.int64)
    offs_b = (pid % tiles_b).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    offs_o = tl.arange(0, BLOCK_O)
    mask_b = offs_b < B
    mask_o = offs_o < O
    x_ptrs = x_ptr + offs_b * I
    if not SHARED_X:
        x_ptrs += k * B * I
    p = tl.zeros([BLOCK_B, BLOCK_O], dtype=ACC)
    q = tl.zeros([BLOCK_B, BLOCK_O], dtype=ACC)
    for i in tl.static_range(I):
        x = tl.load(x_ptrs + i, mask=mask_b, other=1.0).to(ACC)
        w_re = tl.load(wre_ptr + (k * O + offs_o) * I + i, mask=mask_o, other=0.0).to(ACC)[None, :]
        ghat = tl.full([], 1.0, ACC)
        if HAS_GATE:
            ghat = clamp_gate(tl.load(gate_ptr + k * I + i).to(ACC))
        log_r = tl.log(magnitude(x, ghat, EPS))[:, None]
        angle = tl.where(x < 0, ghat * PI, 0.0)[:, None]
        p += log_r * w_re
        q += angle * w_re
        if HAS_IM:
            w_im = tl.load(wim_ptr + (k * O + offs_o) * I + i, mask=mask_o, other=0.0)
            w_im = w_im.to(ACC)[None, :]
            p -= angle * w_im
            q += log_r * w_im
    e = exp_accurate(p)
    sin_q, cos_q = sincos(q)
    mask = mask_b[:, None] & mask_o[None, :]
    offs_y = (k * B + offs_b)[:, None] * O + offs_o[None, :]
    tl.store(y_ptr + offs_y, (e * cos_q).to(y_ptr.dtype.element_ty), mask=mask)
    if SAVE_SIN:
        tl.store(s_ptr + offs_y, (e * sin_q).to(s_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _store_sums(
    acc_re,  # [BLOCK_O, BLOCK_I]
    acc_im,
    acc_gate,  # [BLOCK_I]
    gate_ptr,
    grad_re_ptr,
    grad_im_ptr,
    grad_gate_ptr,
    k,
    split_model,  # which of the splits' models
    offs_o,
    offs_i,
    mask_o,
    I: tl.constexpr,
    O: tl.constexpr,
    NEED_RE: tl.constexpr,
    NEED_IM: tl.constexpr,
    NEED_GATE: tl.constexpr,
    CLIP: tl.constexpr,
    ACC: tl.constexpr,
):
    """Store the gradients of weights and gate, which are sums over this program's rows."""
    mask_i = offs_i < I
    offs_w = split_model * O * I + offs_o[:, None] * I + offs_i[None, :]
    mask_w = mask_o[:, None] & mask_i[None, :]
    if NEED_RE:
        tl.store(grad_re_ptr + offs_w, acc_re.to(grad_re_ptr.dtype.element_ty), mask=mask_w)
    if NEED_IM:
        tl.store(grad_im_ptr + offs_w, acc_im.to(grad_im_ptr.dtype.element_ty), mask=mask_w)
    if NEED_GATE:
        if CLIP:
            gate = tl.load(gate_ptr + k * I + offs_i, mask=mask_i, other=0.0).to(ACC)
            acc_gate = tl.where((gate >= 0) & (gate <= 1), acc_gate, 0.0)
        ptrs = grad_gate_ptr + split_model * I + offs_i
        tl.store(ptrs, acc_gate.to(grad_gate_ptr.dtype.element_ty), mask=mask_i)


@triton.jit(do_not_specialize=["K", "B", "tiles"], do_not_specialize_on_alignment=_PARAMETERS)
def npu_small_backward_kernel(
    grad_y_ptr,  # [K, B, O]
    x_ptr,
    wre_ptr,
    wim_ptr,
    gate_ptr,
    y_ptr,
    s_ptr,
    grad_x_ptr,  # [K, B, I]
    grad_re_ptr,  # [splits, K, O, I]
    grad_im_ptr,  # [splits, K, O, I]
    grad_gate_ptr,  # [splits, K, I]
    K,
    B,
    tiles,  # of BLOCK_B rows for one program
    I: tl.constexpr,
    O: tl.constexpr,
    SHARED_X: tl.constexpr,
    EPS: tl.constexpr,
    HAS_IM: tl.constexpr,
    HAS_GATE: tl.constexpr,
    NEED_X: tl.constexpr,
    NEED_RE: tl.constexpr,
    NEED_IM: tl.constexpr,
    NEED_GATE: tl.constexpr,
    CLIP: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    pid = tl.program_id(0)
    k = (pid % K).to(tl.int64)
    pid_s = (pid // K).to(tl.int64)
    offs_o = tl.arange(0, BLOCK_O)
    offs_i = tl.arange(0, BLOCK_I)
    mask_o = offs_o < O
    acc_re = tl.zeros([BLOCK_O, BLOCK_I], dtype=ACC)
    acc_im = tl.zeros([BLOCK_O, BLOCK_I], dtype=ACC)
    acc_gate = tl.zeros([BLOCK_I], dtype=ACC)
    if not SHARED_X:
        x_ptr += k * B * I
    for tile in range(loop_end(tiles)):
        offs_b = (pid_s * tiles + tile) * BLOCK_B + tl.arange(0, BLOCK_B)
        mask_b = offs_b < B
        mask = mask_b[:, None] & mask_o[None, :]
        offs_y = (k * B + offs_b)[:, None] * O + offs_o[None, :]
        grad_y = tl.load(grad_y_ptr + offs_y, mask=mask, other=0.0).to(ACC)
        d_p = grad_y * tl.load(y_ptr + offs_y, mask=mask, other=0.0).to(ACC)
        d_q = -grad_y * tl.load(s_ptr + offs_y, mask=mask, other=0.0).to(ACC)
        for i in tl.static_range(I):
            x = tl.load(x_ptr + offs_b * I + i, mask=mask_b, other=1.0).to(ACC)
            ghat = tl.full([], 1.0, ACC)
            if HAS_GATE:
                ghat = clamp_gate(tl.load(gate_ptr + k * I + i).to(ACC))
            r = magnitude(x, ghat, EPS)
            log_r = tl.log(r)[:, None]
            angle = tl.where(x < 0, ghat * PI, 0.0)[:, None]
            if NEED_RE:
                column = tl.sum(d_p * log_r + d_q * angle, axis=0)
                acc_re += tl.where((offs_i == i)[None, :], column[:, None], 0.0)
            if NEED_IM:
                column = tl.sum(d_q * log_r - d_p * angle, axis=0)
                acc_im += tl.where((offs_i == i)[None, :], column[:, None], 0.0)
            if NEED_X or NEED_GATE:
                w_re = tl.load(wre_ptr + (k * O + offs_o) * I + i, mask=mask_o, other=0.0)
                w_re = w_re.to(ACC)[None, :]
                d_log = d_p * w_re
                d_angle = d_q * w_re
                if HAS_IM:
                    w_im = tl.load(wim_ptr + (k * O + offs_o) * I + i, mask=mask_o, other=0.0)
                    w_im = w_im.to(ACC)[None, :]
                    d_log += d_q * w_im
                    d_angle -= d_p * w_im
                d_r = tl.sum(d_log, axis=1) / r
                if NEED_X:
                    grad_x = (d_r * ghat * signum(x)).to(grad_x_ptr.dtype.element_ty)
                    tl.store(grad_x_ptr + (k * B + offs_b) * I + i, grad_x, mask=mask_b)
                if NEED_GATE:
                    part = d_r * (tl.abs(x) + (EPS - 1.0))
                    part += tl.sum(d_angle, axis=1) * PI * (x < 0).to(ACC)
                    total = tl.sum(tl.where(mask_b, part, 0.0), axis=0)
                    acc_gate += tl.where(offs_i == i, total, 0.0)

    _store_sums(
        acc_re, acc_im, acc_gate, gate_ptr, grad_re_ptr, grad_im_ptr, grad_gate_ptr, k,
        pid_s * K + k, offs_o, offs_i, mask_o, I, O, NEED_RE, NEED_IM, NEED_GATE, CLIP, ACC,
    )  # fmt: skip


def small_forward(
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    eps: float,
    save_sin: bool,
    y: Tensor,
    s: Tensor,
    sizes: Sizes,
) -> None:
    """Fill y, and s if `save_sin`; operands contiguous, sizes positive."""
    K, B, I, O, shared_x = sizes
    acc, block_o = accumulator(x.dtype), triton.next_power_of_2(O)
    options = tuning.lookup("npu_small_forward", x, I, O, K).options
    start(
        npu_small_forward_kernel,
        K * -(-B // options["BLOCK_B"]),
        options,
        (x, weight_re, weight_im, gate, y, s),
        (B,),
        (I, O, shared_x, eps, weight_im is not None, gate is not None, save_sin, acc, block_o),
    )


def small_backward(
    grad_y: Tensor,
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    y: Tensor,
    s: Tensor,
    eps: float,
    straight_through: bool,
    needs: int,
    sizes: Sizes,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four gradients; operands contiguous, sizes positive."""
    K, B, I, O, shared_x = sizes
    acc = accumulator(x.dtype)
    options, programs = tuning.lookup("npu_small_backward", x, I, O, K)
    blocks = -(-B // options["BLOCK_B"])
    tiles = -(-blocks // max(1, programs // K))
    splits = -(-blocks // tiles)
    gradients = Gradients(x, weight_re, weight_im, gate, needs, sizes, splits, 0, acc)
    present = weight_im is not None, gate is not None
    tile = triton.next_power_of_2(I), triton.next_power_of_2(O)
    clip = not straight_through  # partial sums too, which are then sums of zeros
    start(
        npu_small_backward_kernel,
        K * splits,
        options,
        (grad_y, x, weight_re, weight_im, gate, y, s, *gradients.parts),
        (K, B, tiles),
        (I, O, shared_x, eps, *present, *gradients.needed, clip, acc, *tile),
    )
    return gradients.finish(straight_through)
