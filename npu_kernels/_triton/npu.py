"""Forward and backward on tiles of matrix products.

Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020: definition 4 (NPU; RealNPU without
weight_im) and definition 3 (NaiveNPU, without gate).

Forward, for every model k of K, ``x [B, I]``, ``weight_re, weight_im [O, I]``, ``gate [I]``::

    ghat = clamp(gate, 0, 1)                    1 without gate
    r    = ghat (|x| + eps) + (1 - ghat)        L = log r        m = 1 where x < 0, else 0   [B, I]
    P    = L Wr' - pi m (Wi ghat)'              [B, O]
    Q    = L Wi' + pi m (Wr ghat)'              [B, O]
    y    = exp(P) cos(Q)        s = exp(P) sin(Q)

Backward, from ``grad_y [B, O]``, the inputs and the saved y and s (s is the only extra memory; L,
r, m and the upstream products are recomputed)::

    dP   = grad_y y             dQ = -grad_y s
    dL   = dP Wr + dQ Wi        dr = dL / r         grad_x = dr ghat sign(x)    kernel _backward_x
    SP   = dP' L    SQ = dQ' L    MP = dP' m    MQ = dQ' m                      kernel _backward_w
    grad_weight_re = SP + pi MQ ghat                grad_weight_im = SQ - pi MP ghat
    grad_gate = sum_b dr (|x| + eps - 1) + pi sum_o (Wr MQ - Wi MP)    where 0 <= gate <= 1, else 0

The product with the mask is skipped for tiles without a negative input. Launches: forward 1;
backward 2, and one more that adds partial sums (`reduction`) when rows are split, a gate has a
gradient, or models share x. Layers with fewer than 16 inputs and outputs go to `npu_small`, those
for which `costs` says so to `npu_large`.

Valid range: all finite inputs. With infinite and NaN inputs the forward gives what the formula
gives; in the backward the split precisions give NaN where the formula gives an infinity or NaN. An
infinite weight, in a tile without negative inputs, gives what the sum without the mask product
gives.

Error: with PASSES 0 and 6 (`device_math`), P and Q carry the error of a float32 sum of the same
length; exp, sin and cos add 3 ulp. PASSES 3 and 1 make the error of P and Q about ``2**-16`` and
``2**-8`` of the largest terms.

float64 computes in float64, all other dtypes in float32; partial sums have that type.
"""

# ruff: noqa: SIM102 (an `if` on a compile-time constant must not be merged with one on a value)

from typing import Any

import torch
import triton
import triton.language as tl

from npu_kernels._triton import launch, tuning
from npu_kernels._triton.device_math import (
    PI,
    add_product,
    clamp_gate,
    exact_plane,
    exp_accurate,
    loop_end,
    magnitude,
    signum,
    sincos,
    split,
)
from npu_kernels._triton.npu_large import large_backward, large_forward, plan_of
from npu_kernels._triton.npu_planes import FLAGS_OF_PROGRAM, TILE
from npu_kernels._triton.npu_small import small_backward, small_forward
from npu_kernels._triton.reduction import Gradients, store_weight_gradients
from npu_kernels._triton.tape import start

Tensor = torch.Tensor
_TILE = tl.constexpr(TILE)
_FLAGS = tl.constexpr(FLAGS_OF_PROGRAM)


@triton.jit
def _load_ghat(
    gate_ptr,
    first,
    offs_i,
    mask_i,
    HAS_GATE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """``ghat [BLOCK_I]``, 0 beyond the last input, so that r is 1 and L is 0 there."""
    if HAS_GATE:
        ghat = clamp_gate(tl.load(gate_ptr + first + offs_i, mask=mask_i, other=0.0).to(ACC))
    else:
        ghat = tl.where(mask_i, tl.full([BLOCK_I], 1.0, ACC), 0.0)
    return ghat


@triton.jit
def _exponents(
    x_ptr,  # the tile's first row
    wre_ptr,  # the tile's first output
    wim_ptr,
    gate_ptr,  # of this model
    rows,  # of the tile that exist
    outputs,
    I,
    EPS: tl.constexpr,
    HAS_IM: tl.constexpr,
    HAS_GATE: tl.constexpr,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """``P, Q [BLOCK_B, BLOCK_O]``."""
    offs_b = tl.arange(0, BLOCK_B)
    offs_o = tl.arange(0, BLOCK_O)
    offs_i = tl.arange(0, BLOCK_I)
    offs_x = offs_b[:, None] * I + offs_i[None, :]
    offs_w = offs_o[None, :] * I + offs_i[:, None]
    mask_b = offs_b < rows
    mask_o = offs_o < outputs
    acc_p = tl.zeros([BLOCK_B, BLOCK_O], dtype=ACC)
    acc_q = tl.zeros([BLOCK_B, BLOCK_O], dtype=ACC)
    for i in range(0, loop_end(I), BLOCK_I):
        mask_i = offs_i < I - i
        mask_w = mask_i[:, None] & mask_o[None, :]
        x = tl.load(x_ptr + i + offs_x, mask=mask_b[:, None] & mask_i[None, :], other=1.0).to(ACC)
        w_re = tl.load(wre_ptr + i + offs_w, mask=mask_w, other=0.0).to(ACC)
        ghat = _load_ghat(gate_ptr, i, offs_i, mask_i, HAS_GATE, ACC, BLOCK_I)
        logs = split(tl.log(magnitude(x, ghat[None, :], EPS)), PASSES)
        turn = ghat[:, None] * PI
        negative = x < 0
        any_negative = tl.max(negative.to(tl.int32)) > 0
        mask = (exact_plane(negative, ACC, PASSES),)
        acc_p = add_product(acc_p, logs, split(w_re, PASSES), PASSES)
        if any_negative:
            acc_q = add_product(acc_q, mask, split(w_re * turn, PASSES), PASSES, MASK_A=True)
        if HAS_IM:
            w_im = tl.load(wim_ptr + i + offs_w, mask=mask_w, other=0.0).to(ACC)
            acc_q = add_product(acc_q, logs, split(w_im, PASSES), PASSES)
            if any_negative:
                acc_p = add_product(acc_p, mask, split(-w_im * turn, PASSES), PASSES, MASK_A=True)
    return acc_p, acc_q


@triton.jit(do_not_specialize=["B"])
def npu_forward_kernel(
    x_ptr,  # [K, B, I], or [B, I] with SHARED_X
    wre_ptr,  # [K, O, I]
    wim_ptr,  # [K, O, I]
    gate_ptr,  # [K, I]
    y_ptr,  # [K, B, O]
    s_ptr,  # [K, B, O]
    B,
    O,
    I,
    EPS: tl.constexpr,
    SHARED_X: tl.constexpr,
    HAS_IM: tl.constexpr,
    HAS_GATE: tl.constexpr,
    SAVE_SIN: tl.constexpr,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    tiles_b = tl.cdiv(B, BLOCK_B)
    tiles_o = tl.cdiv(O, BLOCK_O)
    pid = tl.program_id(0)  # programs that share rows of x run next to each other
    k = (pid // (tiles_b * tiles_o)).to(tl.int64)
    first_b = ((pid // tiles_o) % tiles_b).to(tl.int64) * BLOCK_B
    first_o = (pid % tiles_o).to(tl.int64) * BLOCK_O
    rows = tl.minimum(B - first_b, BLOCK_B).to(tl.int32)
    outputs = tl.minimum(O - first_o, BLOCK_O).to(tl.int32)

    # 32-bit offsets from a 64-bit start take half the registers of 64-bit pointers.
    if SHARED_X:
        x_ptr += first_b * I
    else:
        x_ptr += (k * B + first_b) * I
    wre_ptr += (k * O + first_o) * I
    if HAS_IM:
        wim_ptr += (k * O + first_o) * I
    if HAS_GATE:
        gate_ptr += k * I
    p, q = _exponents(
        x_ptr, wre_ptr, wim_ptr, gate_ptr, rows, outputs, I,
        EPS, HAS_IM, HAS_GATE, ACC, PASSES, BLOCK_B, BLOCK_O, BLOCK_I,
    )  # fmt: skip
    if PASSES > 1:
        # An infinite operand left NaN in the split sums; one plane tells infinity from NaN.
        if tl.max(tl.where((p != p) | (q != q), 1, 0)) > 0:
            p_one, q_one = _exponents(
                x_ptr, wre_ptr, wim_ptr, gate_ptr, rows, outputs, I,
                EPS, HAS_IM, HAS_GATE, ACC, 1, BLOCK_B, BLOCK_O, BLOCK_I,
            )  # fmt: skip
            p = tl.where(p == p, p, p_one)
            q = tl.where(q == q, q, q_one)

    e = exp_accurate(p)
    sin_q, cos_q = sincos(q)
    offs_b = tl.arange(0, BLOCK_B)
    offs_o = tl.arange(0, BLOCK_O)
    mask = (offs_b < rows)[:, None] & (offs_o < outputs)[None, :]
    offs_y = offs_b[:, None] * O + offs_o[None, :]
    start = (k * B + first_b) * O + first_o
    tl.store(y_ptr + start + offs_y, (e * cos_q).to(y_ptr.dtype.element_ty), mask=mask)
    if SAVE_SIN:
        tl.store(s_ptr + start + offs_y, (e * sin_q).to(s_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _backward_x_tile(
    grad_y_ptr,
    x_ptr,
    wre_ptr,
    wim_ptr,
    gate_ptr,
    y_ptr,
    s_ptr,
    grad_x_ptr,
    gate_partial_ptr,
    k,
    pid_b,
    first_i,  # of the tile
    K,
    B,
    I,
    O,
    EPS: tl.constexpr,
    SHARED_X: tl.constexpr,
    HAS_IM: tl.constexpr,
    HAS_GATE: tl.constexpr,
    NEED_X: tl.constexpr,
    NEED_GATE: tl.constexpr,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Store the gradient of x of a tile, and its part of the gate's."""
    first_b = pid_b * BLOCK_B
    offs_b = tl.arange(0, BLOCK_B)
    offs_i = tl.arange(0, BLOCK_I)
    offs_o = tl.arange(0, BLOCK_O)
    mask_b = offs_b < tl.minimum(B - first_b, BLOCK_B).to(tl.int32)
    mask_i = offs_i < tl.minimum(I - first_i, BLOCK_I).to(tl.int32)

    start_y = (k * B + first_b) * O
    start_w = k * O * I + first_i
    offs_y = offs_b[:, None] * O + offs_o[None, :]
    offs_w = offs_o[:, None] * I + offs_i[None, :]
    acc = tl.zeros([BLOCK_B, BLOCK_I], dtype=ACC)  # dL
    for o in range(0, loop_end(O), BLOCK_O):
        mask_o = offs_o < O - o
        mask_y = mask_b[:, None] & mask_o[None, :]
        mask_w = mask_o[:, None] & mask_i[None, :]
        grad_y = tl.load(grad_y_ptr + start_y + offs_y, mask=mask_y, other=0.0).to(ACC)
        y = tl.load(y_ptr + start_y + offs_y, mask=mask_y, other=0.0).to(ACC)
        w_re = tl.load(wre_ptr + start_w + offs_w, mask=mask_w, other=0.0).to(ACC)
        acc = add_product(acc, split(grad_y * y, PASSES), split(w_re, PASSES), PASSES)
        if HAS_IM:
            s = tl.load(s_ptr + start_y + offs_y, mask=mask_y, other=0.0).to(ACC)
            w_im = tl.load(wim_ptr + start_w + offs_w, mask=mask_w, other=0.0).to(ACC)
            acc = add_product(acc, split(-grad_y * s, PASSES), split(w_im, PASSES), PASSES)
        start_y += BLOCK_O
        start_w += BLOCK_O * I

    mask = mask_b[:, None] & mask_i[None, :]
    offs_x = offs_b[:, None] * I + offs_i[None, :]
    start_x = (k * B + first_b) * I + first_i
    if SHARED_X:
        x = tl.load(x_ptr + first_b * I + first_i + offs_x, mask=mask, other=1.0).to(ACC)
    else:
        x = tl.load(x_ptr + start_x + offs_x, mask=mask, other=1.0).to(ACC)
    ghat = _load_ghat(gate_ptr, k * I + first_i, offs_i, mask_i, HAS_GATE, ACC, BLOCK_I)[None, :]
    d_r = acc / magnitude(x, ghat, EPS)
    if NEED_X:
        grad_x = d_r * ghat * signum(x)
        tl.store(grad_x_ptr + start_x + offs_x, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
    if NEED_GATE:
        part = tl.sum(tl.where(mask, d_r * (tl.abs(x) + (EPS - 1.0)), 0.0), axis=0)
        tl.store(gate_partial_ptr + (pid_b * K + k) * I + first_i + offs_i, part, mask=mask_i)


@triton.jit(do_not_specialize=["K", "B"])
def npu_backward_x_kernel(
    grad_y_ptr,  # [K, B, O]
    x_ptr,
    wre_ptr,
    wim_ptr,
    gate_ptr,
    y_ptr,
    s_ptr,
    grad_x_ptr,  # [K, B, I]
    gate_partial_ptr,  # [rows, K, I], of which this kernel writes the first tiles_b rows
    K,
    B,
    I,
    O,
    EPS: tl.constexpr,
    SHARED_X: tl.constexpr,
    HAS_IM: tl.constexpr,
    HAS_GATE: tl.constexpr,
    NEED_X: tl.constexpr,
    NEED_GATE: tl.constexpr,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    tiles_b = tl.cdiv(B, BLOCK_B)
    tiles_i = tl.cdiv(I, BLOCK_I)
    pid = tl.program_id(0)
    k = (pid // (tiles_b * tiles_i)).to(tl.int64)
    pid_b = ((pid // tiles_i) % tiles_b).to(tl.int64)
    first_i = (pid % tiles_i).to(tl.int64) * BLOCK_I
    _backward_x_tile(
        grad_y_ptr, x_ptr, wre_ptr, wim_ptr, gate_ptr, y_ptr, s_ptr, grad_x_ptr, gate_partial_ptr,
        k, pid_b, first_i, K, B, I, O,
        EPS, SHARED_X, HAS_IM, HAS_GATE, NEED_X, NEED_GATE, ACC, PASSES, BLOCK_B, BLOCK_O, BLOCK_I,
    )  # fmt: skip


@triton.jit(do_not_specialize=["K", "B", "tiles", "tiles_b"])
def npu_repair_x_kernel(
    grad_y_ptr,  # [K, B, O]
    x_ptr,
    wre_ptr,
    wim_ptr,
    gate_ptr,
    y_ptr,
    s_ptr,
    grad_x_ptr,  # [K, B, I]
    gate_partial_ptr,  # [rows, K, I], of which this kernel writes the first tiles_b rows
    flags_ptr,  # [K tiles_b, tiles of 128 inputs]: tiles whose flag is 0 stay as they are
    K,
    B,
    I,
    O,
    tiles,  # flags
    tiles_b,  # tiles of BLOCK_B rows of a model, padding included
    EPS: tl.constexpr,
    SHARED_X: tl.constexpr,
    HAS_IM: tl.constexpr,
    HAS_GATE: tl.constexpr,
    NEED_X: tl.constexpr,
    NEED_GATE: tl.constexpr,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Compute flagged tiles as `npu_backward_x_kernel` does, each program those of some flags."""
    tiles_i = tl.cdiv(I, _TILE)
    first = tl.program_id(0) * _FLAGS
    count = tl.minimum(tiles - first, _FLAGS)
    offs = tl.arange(0, _FLAGS)
    if tl.max(tl.load(flags_ptr + first + offs, mask=offs < count, other=0)) > 0:
        PARTS: tl.constexpr = _TILE // BLOCK_I
        for turn in range(loop_end(count * PARTS)):
            tile = first + turn // PARTS
            part = turn - turn // PARTS * PARTS
            first_i = (tile % tiles_i).to(tl.int64) * _TILE + part * BLOCK_I
            if (tl.load(flags_ptr + tile) > 0) & (first_i < I):
                _backward_x_tile(
                    grad_y_ptr, x_ptr, wre_ptr, wim_ptr, gate_ptr, y_ptr, s_ptr, grad_x_ptr,
                    gate_partial_ptr,
                    (tile // (tiles_b * tiles_i)).to(tl.int64),
                    (tile // tiles_i % tiles_b).to(tl.int64), first_i, K, B, I, O,
                    EPS, SHARED_X, HAS_IM, HAS_GATE, NEED_X, NEED_GATE, ACC, PASSES, BLOCK_B,
                    BLOCK_O, BLOCK_I,
                )  # fmt: skip


@triton.jit(do_not_specialize=["gate_row", "K", "B"])
def npu_backward_w_kernel(
    grad_y_ptr,  # [K, B, O]
    x_ptr,
    wre_ptr,
    wim_ptr,
    gate_ptr,
    y_ptr,
    s_ptr,
    grad_re_ptr,  # [splits, K, O, I]
    grad_im_ptr,  # [splits, K, O, I]
    gate_partial_ptr,  # [rows, K, I]
    gate_row,  # the first row of gate_partial that this kernel writes
    K,
    B,
    O,
    I,
    rows_per_split,
    EPS: tl.constexpr,
    SHARED_X: tl.constexpr,
    HAS_IM: tl.constexpr,
    HAS_GATE: tl.constexpr,
    NEED_RE: tl.constexpr,
    NEED_IM: tl.constexpr,
    NEED_GATE: tl.constexpr,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    tiles_o, tiles_i = tl.cdiv(O, BLOCK_O), tl.cdiv(I, BLOCK_I)
    pid = tl.program_id(0)  # all tiles of one split read the same rows and run next to each other
    first_i = (pid % tiles_i).to(tl.int64) * BLOCK_I
    pid_o = ((pid // tiles_i) % tiles_o).to(tl.int64)
    first_o = pid_o * BLOCK_O
    k = ((pid // (tiles_i * tiles_o)) % K).to(tl.int64)
    pid_s = (pid // (tiles_i * tiles_o) // K).to(tl.int64)
    first_b = pid_s * rows_per_split
    offs_b = tl.arange(0, BLOCK_B)
    offs_o = tl.arange(0, BLOCK_O)
    offs_i = tl.arange(0, BLOCK_I)
    mask_o = offs_o < tl.minimum(O - first_o, BLOCK_O).to(tl.int32)
    mask_i = offs_i < tl.minimum(I - first_i, BLOCK_I).to(tl.int32)
    rows = tl.minimum(B - first_b, rows_per_split).to(tl.int32)

    ghat = _load_ghat(gate_ptr, k * I + first_i, offs_i, mask_i, HAS_GATE, ACC, BLOCK_I)[None, :]
    start_x = first_b * I + first_i
    if not SHARED_X:
        start_x += k * B * I
    start_y = (k * B + first_b) * O + first_o
    offs_x = offs_b[:, None] * I + offs_i[None, :]
    offs_y = offs_b[:, None] * O + offs_o[None, :]
    acc_sp = tl.zeros([BLOCK_O, BLOCK_I], dtype=ACC)
    acc_sq = tl.zeros([BLOCK_O, BLOCK_I], dtype=ACC)
    acc_mp = tl.zeros([BLOCK_O, BLOCK_I], dtype=ACC)
    acc_mq = tl.zeros([BLOCK_O, BLOCK_I], dtype=ACC)
    for b in range(0, loop_end(rows), BLOCK_B):
        mask_b = offs_b < rows - b
        mask_y = mask_b[:, None] & mask_o[None, :]
        x = tl.load(x_ptr + start_x + offs_x, mask=mask_b[:, None] & mask_i[None, :], other=1.0)
        x = x.to(ACC)
        grad_y = tl.load(grad_y_ptr + start_y + offs_y, mask=mask_y, other=0.0).to(ACC)
        negative = x < 0
        any_negative = tl.max(negative.to(tl.int32)) > 0
        logs = split(tl.log(magnitude(x, ghat, EPS)), PASSES)
        mask = (exact_plane(negative, ACC, PASSES),)
        s = tl.load(s_ptr + start_y + offs_y, mask=mask_y, other=0.0).to(ACC)
        d_q = split(tl.trans(-grad_y * s), PASSES)
        if NEED_RE or NEED_GATE:
            if any_negative:
                acc_mq = add_product(acc_mq, d_q, mask, PASSES, MASK_B=True)
        if NEED_IM:
            acc_sq = add_product(acc_sq, d_q, logs, PASSES)
        if NEED_RE or HAS_IM:
            y = tl.load(y_ptr + start_y + offs_y, mask=mask_y, other=0.0).to(ACC)
            d_p = split(tl.trans(grad_y * y), PASSES)
            if NEED_RE:
                acc_sp = add_product(acc_sp, d_p, logs, PASSES)
            if HAS_IM and (NEED_IM or NEED_GATE):
                if any_negative:
                    acc_mp = add_product(acc_mp, d_p, mask, PASSES, MASK_B=True)
        start_x += BLOCK_B * I
        start_y += BLOCK_B * O

    store_weight_gradients(
        acc_sp, acc_sq, acc_mp, acc_mq, ghat, wre_ptr, wim_ptr, grad_re_ptr, grad_im_ptr,
        gate_partial_ptr + ((gate_row + pid_s * tiles_o + pid_o) * K + k) * I + first_i,
        (k * O + first_o) * I + first_i, pid_s * K * O * I, offs_o, offs_i, mask_o, mask_i, I,
        HAS_IM, NEED_RE, NEED_IM, NEED_GATE, ACC,
    )  # fmt: skip


def _check(
    name: str,
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    **results: tuple[Tensor, tuple[int, ...]],
) -> None:
    """Raise for operands of wrong shapes, dtypes or devices; `results` with their shapes."""
    shape = weight_re.shape
    weights = {"weight_re": (weight_re, shape), "weight_im": (weight_im, shape)}
    launch.check_operands(name, x, **weights, gate=(gate, shape[:-2] + shape[-1:]), **results)


def npu_forward(
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    eps: float,
    save_sin: bool,
) -> tuple[Tensor, Tensor]:
    """``(y, s)``, both ``[B, O]`` or ``[K, B, O]``; s is empty without `save_sin`. 1 or 3 launches.

    x ``[B, I]`` or ``[K, B, I]``, weights ``[O, I]`` or ``[K, O, I]``, gate ``[I]`` or ``[K, I]``;
    any strides.
    """
    sizes = K, B, I, O, shared_x = launch.model_sizes("npu_forward", x, weight_re)
    _check("npu_forward", x, weight_re, weight_im, gate)
    acc = launch.accumulator(x.dtype)
    shape = (*weight_re.shape[:-2], B, O)
    result_type = launch.result_type(x, weight_re)
    y = launch.empty(x, shape, result_type)
    s = launch.empty(x, shape if save_sin else (0,), result_type)
    if y.numel() == 0:
        return y, s
    x, weight_re, weight_im, gate = launch.contiguous([x, weight_re, weight_im, gate])
    with launch.device_of(x):
        if tuning.is_small(I, O):
            small_forward(x, weight_re, weight_im, gate, eps, save_sin, y, s, sizes)
            return y, s
        plan = plan_of(x, weight_im is not None, sizes)
        if plan is not None:
            large_forward(x, weight_re, weight_im, gate, eps, save_sin, y, s, sizes, plan)
            return y, s
        options = tuning.lookup("npu_forward", x, I, O, K).options
        grid = K * -(-B // options["BLOCK_B"]) * -(-O // options["BLOCK_O"])
        start(
            npu_forward_kernel,
            grid,
            options,
            (x, weight_re, weight_im, gate, y, s),
            (B, O, I),
            (eps, shared_x, weight_im is not None, gate is not None, save_sin, acc),
        )
    return y, s


def npu_backward(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of ``(x, weight_re, weight_im, gate)``, those in `needs` (1, 2, 4, 8), else empty.

    Shapes as in :func:`npu_forward`, grad_y of any strides. A shared x has the sum of its models'
    gradients. At most three launches, two for small layers, seven for large ones.
    """
    sizes = K, B, I, O, shared_x = launch.model_sizes("npu_backward", x, weight_re)
    shape = (*weight_re.shape[:-2], B, O)
    results = {"grad_y": (grad_y, shape), "y": (y, shape), "s": (s, shape)}
    _check("npu_backward", x, weight_re, weight_im, gate, **results)
    acc = launch.accumulator(x.dtype)
    if K * B * I * O == 0:
        needed = launch.needed(needs, [x, weight_re, weight_im, gate])
        grads = launch.gradients(needed, [x, weight_re, weight_im, gate])
        return tuple(grad.zero_() for grad in grads)  # type: ignore[return-value]
    operands = launch.contiguous([grad_y, x, weight_re, weight_im, gate, y, s])
    gate = operands[4]  # `Gradients` reads it as the kernels do
    settings: dict[str, Any] = {"eps": eps, "straight_through": straight_through}
    settings |= {"needs": needs, "sizes": sizes}
    with launch.device_of(x):
        if tuning.is_small(I, O):
            return small_backward(*operands, **settings)
        plan = plan_of(x, weight_im is not None, sizes)
        if plan is not None:
            settings |= {"plan": plan, "repair": npu_repair_x_kernel}
            return large_backward(*operands, **settings)
        flags = (eps, shared_x, weight_im is not None, gate is not None)
        config_x = tuning.lookup("npu_backward_x", x, I, O, K).options
        config_w, programs = tuning.lookup("npu_backward_w", x, I, O, K)
        tiles_b, tiles_o = -(-B // config_x["BLOCK_B"]), -(-O // config_w["BLOCK_O"])
        tiles_w = K * tiles_o * -(-I // config_w["BLOCK_I"])
        splits, rows_per_split = launch.row_splits(B, config_w["BLOCK_B"], tiles_w, programs)

        gate_rows = tiles_b + splits * tiles_o
        gradients = Gradients(x, weight_re, weight_im, gate, needs, sizes, splits, gate_rows, acc)
        need_x, need_re, need_im, need_gate = gradients.needed
        part_x, part_re, part_im, part_gate = gradients.parts
        if need_x or need_gate:
            start(
                npu_backward_x_kernel,
                K * tiles_b * -(-I // config_x["BLOCK_I"]),
                config_x,
                (*operands, part_x, part_gate),
                (K, B, I, O),
                (*flags, need_x, need_gate, acc),
            )
        if need_re or need_im or need_gate:
            start(
                npu_backward_w_kernel,
                tiles_w * splits,
                config_w,
                (*operands, part_re, part_im, part_gate),
                (tiles_b, K, B, O, I, rows_per_split),
                (*flags, need_re, need_im, need_gate, acc),
            )
        return gradients.finish(straight_through)
