"""NALU and iNALU, siblings of the Neural Power Unit layer: the backward on matrix tiles.

Notation, sources, precision and error: `nalu_forward_kernels`. From ``grad_y [B, O]``::

    dA = grad_y g                        dT = grad_y (1 - g) t where no factor is 0
    dH = grad_y g (1 - g) (a - t)        d1 = grad_y (1 - g) t where one factor is 0
                                         dE = dT where omega does not bound
    grad_x = dA A + dH G + (dE W) dL/dx                                   kernel nalu_backward_x
    dA' x, dH' x, sum_b dH, dE' L, and with c = -2 for the mask of x < 0, -1 for that of x = 0
        sign(W) c ((dT' mask) / f where f = 1 + c |W| is not 0, else d1' mask)
                                                                          kernel nalu_backward_w

A product without one of its factors is the product divided by it, or, if no other factor is 0, the
product of the others: gradients are right where a factor is 0.

Two launches, and one more that adds partial sums (`reduction`) when rows are split, models share x,
weights have another dtype than the sums, products take several planes, or an iNALU is no small one.
The NALU takes the same kernels with fewer operands.
"""

# ruff: noqa: SIM102, SIM108 (an `if` on a compile-time constant stands alone, see device_math)

import triton
import triton.language as tl

from npu_kernels._triton.device_math import (
    add_product,
    exact_plane,
    loop_end,
    signum,
    split,
)
from npu_kernels._triton.nac import logarithm, nac, sigmoid, store_nac_gradients


@triton.jit
def _upstream(pointers, offs, mask, INALU: tl.constexpr, ACC: tl.constexpr):
    """``dA, dH, dE, dT, d1``, 0 beyond the last row or output."""
    grad_y_ptr, h_ptr, a_ptr, t_ptr, flags_ptr = pointers
    grad_y = tl.load(grad_y_ptr + offs, mask=mask, other=0.0).to(ACC)
    h = tl.load(h_ptr + offs, mask=mask, other=0.0).to(ACC)
    a = tl.load(a_ptr + offs, mask=mask, other=0.0).to(ACC)
    t = tl.load(t_ptr + offs, mask=mask, other=0.0).to(ACC)
    d_a = grad_y * sigmoid(h)
    rest = sigmoid(-h)
    d_product = grad_y * rest
    if INALU:
        flags = tl.load(flags_ptr + offs, mask=mask, other=0).to(tl.int32)
        product = tl.where(flags < 2, t, 0.0)
        d_t = d_product * product
        d_one = tl.where((flags >> 1) == 1, d_product * t, 0.0)
        d_e = tl.where((flags & 1) != 0, 0.0, d_t)
    else:
        product = t
        d_t = d_product * t
        d_one = d_t
        d_e = d_t
    return d_a, d_a * rest * (a - product), d_e, d_t, d_one


@triton.jit(do_not_specialize=["K", "B"])
def nalu_backward_x_kernel(
    grad_y_ptr,  # [K, B, O]
    x_ptr, wa_ptr, ma_ptr, wm_ptr, mm_ptr, gw_ptr, h_ptr, a_ptr, t_ptr, flags_ptr,
    grad_x_ptr,  # [K, B, I]
    K, B, I, O,
    EPS: tl.constexpr, INALU: tl.constexpr, SHARED_X: tl.constexpr, ACC: tl.constexpr,
    PASSES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    tiles_b = tl.cdiv(B, BLOCK_B)
    tiles_i = tl.cdiv(I, BLOCK_I)
    pid = tl.program_id(0)
    k = (pid // (tiles_b * tiles_i)).to(tl.int64)
    first_b = ((pid // tiles_i) % tiles_b).to(tl.int64) * BLOCK_B
    first_i = (pid % tiles_i).to(tl.int64) * BLOCK_I
    offs_b = tl.arange(0, BLOCK_B)
    offs_i = tl.arange(0, BLOCK_I)
    offs_o = tl.arange(0, BLOCK_O)
    mask_b = offs_b < tl.minimum(B - first_b, BLOCK_B).to(tl.int32)
    mask_i = offs_i < tl.minimum(I - first_i, BLOCK_I).to(tl.int32)

    start_y = (k * B + first_b) * O
    start_w = k * O * I + first_i
    offs_y = offs_b[:, None] * O + offs_o[None, :]
    offs_w = offs_o[:, None] * I + offs_i[None, :]
    acc_x = tl.zeros([BLOCK_B, BLOCK_I], dtype=ACC)
    acc_log = tl.zeros([BLOCK_B, BLOCK_I], dtype=ACC)
    for o in range(0, loop_end(O), BLOCK_O):
        mask_o = offs_o < O - o
        mask_w = mask_o[:, None] & mask_i[None, :]
        d_a, d_h, d_e, _, _ = _upstream(
            (grad_y_ptr, h_ptr, a_ptr, t_ptr, flags_ptr), start_y + offs_y,
            mask_b[:, None] & mask_o[None, :], INALU, ACC,
        )  # fmt: skip
        gate = tl.load(gw_ptr + start_w + offs_w, mask=mask_w, other=0.0).to(ACC)
        acc_x = add_product(acc_x, split(d_h, PASSES), split(gate, PASSES), PASSES)
        w = nac(wa_ptr, ma_ptr, start_w + offs_w, mask_w, ACC)
        acc_x = add_product(acc_x, split(d_a, PASSES), split(w, PASSES), PASSES)
        if INALU:
            w = nac(wm_ptr, mm_ptr, start_w + offs_w, mask_w, ACC)
        acc_log = add_product(acc_log, split(d_e, PASSES), split(w, PASSES), PASSES)
        start_y += BLOCK_O
        start_w += BLOCK_O * I

    mask = mask_b[:, None] & mask_i[None, :]
    offs_x = offs_b[:, None] * I + offs_i[None, :]
    start_x = (k * B + first_b) * I + first_i
    if SHARED_X:
        x = tl.load(x_ptr + first_b * I + first_i + offs_x, mask=mask, other=1.0).to(ACC)
    else:
        x = tl.load(x_ptr + start_x + offs_x, mask=mask, other=1.0).to(ACC)
    if INALU:
        slope = tl.where(tl.abs(x) < EPS, 0.0, acc_log * signum(x) / tl.abs(x))
    else:
        slope = acc_log * signum(x) / (tl.abs(x) + EPS)
    ptrs = grad_x_ptr + start_x + offs_x
    tl.store(ptrs, (acc_x + slope).to(grad_x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _sign_gradient(total, rest, w, f, FACTOR: tl.constexpr):
    """The gradient of W through the factors ``f = 1 + FACTOR |W|`` of s.

    total: ``dT' mask``, divided by f where f is not 0. rest: ``d1' mask``, for f = 0.
    """
    return FACTOR * signum(w) * tl.where(f == 0, rest, total / tl.where(f == 0, 1.0, f))


@triton.jit
def _rare_sign_gradients(acc, x, d_t, d_one, w, ACC: tl.constexpr, PASSES: tl.constexpr):
    """Add the terms of inputs that are 0, and of factors that are 0, to acc."""
    zeros = tl.zeros_like(acc)
    d_planes = split(tl.trans(d_one), PASSES)
    mask = (exact_plane(x < 0, ACC, PASSES),)
    rest = add_product(zeros, d_planes, mask, PASSES, MASK_B=True)
    acc += _sign_gradient(zeros, rest, w, 1.0 - 2.0 * tl.abs(w), -2.0)
    mask = (exact_plane(x == 0, ACC, PASSES),)
    rest = add_product(zeros, d_planes, mask, PASSES, MASK_B=True)
    total = add_product(zeros, split(tl.trans(d_t), PASSES), mask, PASSES, MASK_B=True)
    return acc + _sign_gradient(total, rest, w, 1.0 - tl.abs(w), -1.0)


@triton.jit
def _all_rare_sign_gradients(
    acc, w, x_ptr, pointers, start_x, start_y, offs_i, offs_o, mask_i, mask_o, rows, O, I,
    INALU: tl.constexpr, ACC: tl.constexpr, PASSES: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """Add `_rare_sign_gradients` of all rows: a second loop, which saves registers in the first."""
    offs_b = tl.arange(0, BLOCK_B)
    offs_x = offs_b[:, None] * I + offs_i[None, :]
    offs_y = offs_b[:, None] * O + offs_o[None, :]
    for b in range(0, loop_end(rows), BLOCK_B):
        mask_b = offs_b < rows - b
        x = tl.load(x_ptr + start_x + offs_x, mask=mask_b[:, None] & mask_i[None, :], other=1.0)
        _, _, _, d_t, d_one = _upstream(
            pointers, start_y + offs_y, mask_b[:, None] & mask_o[None, :], INALU, ACC
        )  # fmt: skip
        acc = _rare_sign_gradients(acc, x, d_t, d_one, w, ACC, PASSES)
        start_x += BLOCK_B * I
        start_y += BLOCK_B * O
    return acc


@triton.jit
def _sums_over_rows(
    x_ptr, pointers, start_x, start_y, offs_i, offs_o, mask_i, mask_o, rows, O, I,
    EPS: tl.constexpr, INALU: tl.constexpr, NEED_ADD: tl.constexpr, NEED_MUL: tl.constexpr,
    NEED_GATE: tl.constexpr, NEED_BIAS: tl.constexpr, ACC: tl.constexpr, PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Sums ``dA' x`` (NALU: plus ``dE' L``), ``dE' L``, ``dH' x``, ``dT' (x < 0)``, ``sum_b dH``.

    And a number above 0 if `_all_rare_sign_gradients` has terms to add.
    """
    offs_b = tl.arange(0, BLOCK_B)
    offs_x = offs_b[:, None] * I + offs_i[None, :]
    offs_y = offs_b[:, None] * O + offs_o[None, :]
    acc_add = tl.zeros([BLOCK_O, BLOCK_I], dtype=ACC)
    acc_mul = tl.zeros([BLOCK_O, BLOCK_I], dtype=ACC)
    acc_gate = tl.zeros([BLOCK_O, BLOCK_I], dtype=ACC)
    acc_negative = tl.zeros([BLOCK_O, BLOCK_I], dtype=ACC)
    acc_bias = tl.zeros([BLOCK_O], dtype=ACC)
    any_rare = 0  # x = 0 and factors that are 0
    for b in range(0, loop_end(rows), BLOCK_B):
        mask_b = offs_b < rows - b
        x = tl.load(x_ptr + start_x + offs_x, mask=mask_b[:, None] & mask_i[None, :], other=1.0)
        x = x.to(ACC)
        d_a, d_h, d_e, d_t, d_one = _upstream(
            pointers, start_y + offs_y, mask_b[:, None] & mask_o[None, :], INALU, ACC
        )  # fmt: skip
        x_planes = split(x, PASSES)
        if NEED_GATE:
            acc_gate = add_product(acc_gate, split(tl.trans(d_h), PASSES), x_planes, PASSES)
        if NEED_BIAS:
            acc_bias += tl.sum(d_h, axis=0)
        if NEED_ADD:
            acc_add = add_product(acc_add, split(tl.trans(d_a), PASSES), x_planes, PASSES)
        if NEED_MUL or (NEED_ADD and not INALU):
            logs = split(logarithm(x, EPS, INALU), PASSES)
            d_planes = split(tl.trans(d_e), PASSES)
            if INALU:
                acc_mul = add_product(acc_mul, d_planes, logs, PASSES)
                if tl.max((x < 0).to(tl.int32)) > 0:
                    d_planes = split(tl.trans(d_t), PASSES)
                    mask = (exact_plane(x < 0, ACC, PASSES),)
                    acc_negative = add_product(acc_negative, d_planes, mask, PASSES, MASK_B=True)
                any_rare |= tl.max((x == 0).to(tl.int32)) | tl.max((d_one != 0).to(tl.int32))
            else:
                acc_add = add_product(acc_add, d_planes, logs, PASSES)
        start_x += BLOCK_B * I
        start_y += BLOCK_B * O
    return acc_add, acc_mul, acc_gate, acc_negative, acc_bias, any_rare


@triton.jit
def _store_sum(
    acc, weight_ptr, mask_ptr, grad_ptr, grad_mask_ptr, offs_w, out, mask_w, final,
    ACC: tl.constexpr,
):  # fmt: skip
    """Store a sum over rows: if it is final gradients of weight and mask, else a partial sum."""
    if final:
        store_nac_gradients(acc, weight_ptr, mask_ptr, grad_ptr, grad_mask_ptr, offs_w, mask_w, ACC)
    else:
        tl.store(grad_ptr + out, acc, mask=mask_w)


@triton.jit(do_not_specialize=["K", "B"])
def nalu_backward_w_kernel(
    grad_y_ptr,  # [K, B, O]
    x_ptr, wa_ptr, ma_ptr, wm_ptr, mm_ptr, h_ptr, a_ptr, t_ptr, flags_ptr,
    add_ptr,  # gradient of A [splits, K, O, I]; with one split and FINAL of weight [K, O, I]
    add_mask_ptr,  # with one split and FINAL, of mask
    mul_ptr,  # of W, iNALU
    mul_mask_ptr,
    gate_ptr,  # of G
    bias_ptr,  # [splits, K, O]
    K, B, O, I, rows_per_split,
    EPS: tl.constexpr, INALU: tl.constexpr, SHARED_X: tl.constexpr, NEED_ADD: tl.constexpr,
    NEED_MUL: tl.constexpr, NEED_GATE: tl.constexpr, NEED_BIAS: tl.constexpr, FINAL: tl.constexpr,
    ACC: tl.constexpr, PASSES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):  # fmt: skip
    tiles_o = tl.cdiv(O, BLOCK_O)
    tiles_i = tl.maximum(tl.cdiv(I, BLOCK_I), 1)
    pid = tl.program_id(0)
    pid_i = pid % tiles_i
    first_i = pid_i.to(tl.int64) * BLOCK_I
    first_o = ((pid // tiles_i) % tiles_o).to(tl.int64) * BLOCK_O
    k = ((pid // (tiles_i * tiles_o)) % K).to(tl.int64)
    pid_s = (pid // (tiles_i * tiles_o) // K).to(tl.int64)
    first_b = pid_s * rows_per_split
    offs_o = tl.arange(0, BLOCK_O)
    offs_i = tl.arange(0, BLOCK_I)
    mask_o = offs_o < tl.minimum(O - first_o, BLOCK_O).to(tl.int32)
    mask_i = offs_i < tl.minimum(I - first_i, BLOCK_I).to(tl.int32)
    rows = tl.minimum(B - first_b, rows_per_split).to(tl.int32)
    if SHARED_X:
        start_x = first_b * I + first_i
    else:
        start_x = (k * B + first_b) * I + first_i
    start_y = (k * B + first_b) * O + first_o
    mask_w = mask_o[:, None] & mask_i[None, :]
    offs_w = (k * O + first_o) * I + first_i + (offs_o[:, None] * I + offs_i[None, :])

    pointers = (grad_y_ptr, h_ptr, a_ptr, t_ptr, flags_ptr)
    acc_add, acc_mul, acc_gate, acc_negative, acc_bias, any_rare = _sums_over_rows(
        x_ptr, pointers, start_x, start_y, offs_i, offs_o, mask_i, mask_o, rows, O, I,
        EPS, INALU, NEED_ADD, NEED_MUL, NEED_GATE, NEED_BIAS, ACC, PASSES,
        BLOCK_B, BLOCK_O, BLOCK_I,
    )  # fmt: skip
    out = pid_s * K * O * I + offs_w
    final = FINAL & (rows_per_split >= B)  # at run time: last batches compile nothing
    if NEED_ADD:
        _store_sum(acc_add, wa_ptr, ma_ptr, add_ptr, add_mask_ptr, offs_w, out, mask_w, final, ACC)
    if NEED_GATE:
        tl.store(gate_ptr + out, acc_gate.to(gate_ptr.dtype.element_ty), mask=mask_w)
    if NEED_BIAS:
        if pid_i == 0:
            offs_bias = (pid_s * K + k) * O + first_o + offs_o
            tl.store(bias_ptr + offs_bias, acc_bias.to(bias_ptr.dtype.element_ty), mask=mask_o)
    if NEED_MUL:
        w = nac(wm_ptr, mm_ptr, offs_w, mask_w, ACC)
        zeros = tl.zeros_like(acc_negative)
        acc_mul += _sign_gradient(acc_negative, zeros, w, 1.0 - 2.0 * tl.abs(w), -2.0)
        if any_rare > 0:
            acc_mul = _all_rare_sign_gradients(
                acc_mul, w, x_ptr, pointers, start_x, start_y, offs_i, offs_o, mask_i, mask_o,
                rows, O, I, INALU, ACC, PASSES, BLOCK_B,
            )  # fmt: skip
        _store_sum(acc_mul, wm_ptr, mm_ptr, mul_ptr, mul_mask_ptr, offs_w, out, mask_w, final, ACC)
