"""The operators of NALU and iNALU, siblings of the Neural Power Unit layer, on matrix tiles.

Sources: Trask et al., "Neural Arithmetic Logic Units", NeurIPS 2018; Schloer, Ring, Hotho, "iNALU",
Frontiers in AI 2020; in the form of Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020,
definition 1. Forward, for every model k of K, ``x [B, I]``, weights ``[O, I]``, bias ``[O]``, with
``nac(w, m) = tanh(w) sigmoid(m)``::

           NALU                       iNALU
    A      nac(weight, mask)          nac(weight_add, mask_add)
    W      nac(weight, mask)          nac(weight_mul, mask_mul)
    a      A x                        A x                                              [B, O]
    L      log(|x| + eps)             log max(|x|, eps)                                [B, I]
    e      W L                        min(W L, omega)                                  [B, O]
    s      1                          prod_i (sign(x_i) |W_oi| + 1 - |W_oi|)           [B, O]
    h      G x + bias                 G x                                              [B, O]
    y      g a + (1 - g) t            t = s exp(e)           g = 1 / (1 + exp(-h))

A factor of s is 1 where x > 0, ``1 - 2 |W|`` where x < 0 and ``1 - |W|`` where x = 0. So the
logarithm of their product, its sign and the number of its zeros are products of 0/1 masks with
matrices: no ``[B, O, I]`` tensor, and nothing to do for a tile of positive x. Next to the inputs h,
a, and t without its factors that are 0 are saved; for the iNALU also flags, an integer per output:
the number of factors that are 0, at most 2, times 2, plus 1 where omega bounds W L.

Backward, from ``grad_y [B, O]``::

    dA = grad_y g                        dT = grad_y (1 - g) t where no factor is 0
    dH = grad_y g (1 - g) (a - t)        d1 = grad_y (1 - g) t where one factor is 0
                                         dE = dT where omega does not bound
    grad_x = dA A + dH G + (dE W) dL/dx                                   kernel nalu_backward_x
    dA' x, dH' x, sum_b dH, dE' L, and with c = -2 for the mask of x < 0, -1 for that of x = 0
        sign(W) c ((dT' mask) / f where f = 1 + c |W| is not 0, else d1' mask)
                                                                          kernel nalu_backward_w

A product without one of its factors is the product divided by it, or, if no other factor is 0, the
product of the others: gradients are right where a factor is 0. The NALU takes the same kernels with
fewer operands.

Launches: forward 1; backward 2, and one more that adds partial sums (`reduction`) when rows are
split, models share x, weights have another dtype than the sums, products take several planes, or an
iNALU is no small one. Valid range and precision schemes: those of `npu`. Error: that of float32
sums of the same length, also in log s.

x is ``[B, I]`` or ``[K, B, I]``, weights and masks ``[O, I]`` or ``[K, O, I]``, gate_bias ``[O]``
or ``[K, O]``, all else ``[B, O]`` or ``[K, B, O]``; any strides. At most four launches for forward
and backward, three where rows are not split, models do not share x and weights are float32 or
float64, in small layers and medium NALUs.
"""

# ruff: noqa: SIM102, SIM108 (an `if` on a compile-time constant stands alone, see device_math)

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from npu_kernels._triton import launch, tuning
from npu_kernels._triton.device_math import (
    add_product,
    exact_plane,
    exp_accurate,
    logarithm,
    loop_end,
    nac,
    sigmoid,
    signum,
    split,
    store_nac_gradients,
)
from npu_kernels._triton.reduction import sum_partials
from npu_kernels._triton.tape import start

# ---- the forward ----


@triton.jit
def _count(plane, mask, acc, ACC: tl.constexpr, PASSES: tl.constexpr):
    """The product of two 0/1 matrices, of the shape of acc, as integers."""
    right = exact_plane(mask, ACC, PASSES)
    zeros = tl.zeros_like(acc)
    return tl.dot(plane, right, zeros, input_precision="ieee", out_dtype=ACC).to(tl.int32)


@triton.jit
def _factors(acc_s, state, chosen, f, ACC: tl.constexpr, PASSES: tl.constexpr):
    """Multiply by the factors f ``[BLOCK_I, BLOCK_O]`` where chosen ``[BLOCK_B, BLOCK_I]``.

    acc_s sums the logarithms of nonzero factors; bit 0 of state is the sign, the rest counts zeros.
    """
    plane = exact_plane(chosen, ACC, PASSES)
    is_zero = f == 0
    logs = split(tl.log(tl.where(is_zero, 1.0, tl.abs(f))), PASSES)
    acc_s = add_product(acc_s, (plane,), logs, PASSES, MASK_A=True)
    negative = _count(plane, f < 0, acc_s, ACC, PASSES)
    state = state ^ (negative & 1)
    if tl.max(is_zero.to(tl.int32)) > 0:
        state += _count(plane, is_zero, acc_s, ACC, PASSES) * 2
    return acc_s, state


@triton.jit
def _sums(
    x_ptr,  # the tile's first row
    wa_ptr,  # the tile's first output, as the other weights' pointers
    ma_ptr,
    wm_ptr,
    mm_ptr,
    gw_ptr,
    rows,  # of the tile that exist
    outputs,
    I,
    EPS: tl.constexpr,
    INALU: tl.constexpr,
    SIGNS: tl.constexpr,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """``a, h (without bias), W L, log |s|, state [BLOCK_B, BLOCK_O]``, and whether an x is 0.

    log |s| and state, those of the factors of x < 0, only with SIGNS.
    """
    offs_b = tl.arange(0, BLOCK_B)
    offs_o = tl.arange(0, BLOCK_O)
    offs_i = tl.arange(0, BLOCK_I)
    offs_x = offs_b[:, None] * I + offs_i[None, :]
    offs_w = offs_o[None, :] * I + offs_i[:, None]
    mask_b = offs_b < rows
    mask_o = offs_o < outputs
    acc_a = tl.zeros([BLOCK_B, BLOCK_O], dtype=ACC)
    acc_h = tl.zeros([BLOCK_B, BLOCK_O], dtype=ACC)
    acc_e = tl.zeros([BLOCK_B, BLOCK_O], dtype=ACC)
    acc_s = tl.zeros([BLOCK_B, BLOCK_O], dtype=ACC)
    state = tl.zeros([BLOCK_B, BLOCK_O], dtype=tl.int32)
    any_zero = 0
    for i in range(0, loop_end(I), BLOCK_I):
        mask_i = offs_i < I - i
        mask_w = mask_i[:, None] & mask_o[None, :]
        x = tl.load(x_ptr + i + offs_x, mask=mask_b[:, None] & mask_i[None, :], other=1.0).to(ACC)
        x_planes = split(x, PASSES)
        gate = tl.load(gw_ptr + i + offs_w, mask=mask_w, other=0.0).to(ACC)
        acc_h = add_product(acc_h, x_planes, split(gate, PASSES), PASSES)
        w = nac(wa_ptr + i, ma_ptr + i, offs_w, mask_w, ACC)
        acc_a = add_product(acc_a, x_planes, split(w, PASSES), PASSES)
        if INALU:
            w = nac(wm_ptr + i, mm_ptr + i, offs_w, mask_w, ACC)
        logs = split(logarithm(x, EPS, INALU), PASSES)
        acc_e = add_product(acc_e, logs, split(w, PASSES), PASSES)
        if SIGNS:
            if tl.max((x < 0).to(tl.int32)) > 0:
                acc_s, state = _factors(acc_s, state, x < 0, 1.0 - 2.0 * tl.abs(w), ACC, PASSES)
            any_zero |= tl.max((x == 0).to(tl.int32))
    return acc_a, acc_h, acc_e, acc_s, state, any_zero


@triton.jit
def _zero_factors(
    acc_s,
    state,
    x_ptr,
    wm_ptr,
    mm_ptr,
    rows,
    outputs,
    I,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Multiply by the factors of x = 0: in a second loop, which saves registers in the first."""
    offs_b = tl.arange(0, BLOCK_B)
    offs_o = tl.arange(0, BLOCK_O)
    offs_i = tl.arange(0, BLOCK_I)
    for i in range(0, loop_end(I), BLOCK_I):
        mask_i = offs_i < I - i
        mask_x = (offs_b < rows)[:, None] & mask_i[None, :]
        x = tl.load(x_ptr + i + offs_b[:, None] * I + offs_i[None, :], mask=mask_x, other=1.0)
        offs_w = offs_o[None, :] * I + offs_i[:, None]
        w = nac(wm_ptr + i, mm_ptr + i, offs_w, mask_i[:, None] & (offs_o < outputs)[None, :], ACC)
        acc_s, state = _factors(acc_s, state, x == 0, 1.0 - tl.abs(w), ACC, PASSES)
    return acc_s, state


@triton.jit
def _products(
    e,
    log_s,
    state,
    flags_ptr,
    out,
    mask,
    OMEGA: tl.constexpr,
    INALU: tl.constexpr,
    SAVE: tl.constexpr,
):
    """The product without its factors that are 0, and with them; store the iNALU's flags."""
    if INALU:
        bounded = e > OMEGA
        t = exp_accurate(tl.where(bounded, OMEGA, e) + log_s)
        t = tl.where((state & 1) != 0, -t, t)
        product = tl.where(state < 2, t, 0.0)
        if SAVE:
            flags = tl.minimum(state >> 1, 2) * 2 + bounded.to(tl.int32)
            tl.store(flags_ptr + out, flags, mask=mask)
    else:
        t = exp_accurate(e)
        product = t
    return t, product


@triton.jit(do_not_specialize=["B"])
def nalu_forward_kernel(
    x_ptr,  # [K, B, I], or [B, I] with SHARED_X
    wa_ptr,  # weight and mask of A [K, O, I], and of W in the NALU
    ma_ptr,
    wm_ptr,  # weight and mask of W [K, O, I], iNALU
    mm_ptr,
    gw_ptr,  # [K, O, I]
    bias_ptr,  # [K, O], NALU, or none
    y_ptr,  # [K, B, O]
    h_ptr,
    a_ptr,
    t_ptr,
    flags_ptr,
    B,
    O,
    I,
    EPS: tl.constexpr,
    OMEGA: tl.constexpr,
    INALU: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SHARED_X: tl.constexpr,
    SAVE: tl.constexpr,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    tiles_b = tl.cdiv(B, BLOCK_B)
    tiles_o = tl.cdiv(O, BLOCK_O)
    pid = tl.program_id(0)
    k = (pid // (tiles_b * tiles_o)).to(tl.int64)
    first_b = ((pid // tiles_o) % tiles_b).to(tl.int64) * BLOCK_B
    first_o = (pid % tiles_o).to(tl.int64) * BLOCK_O
    rows = tl.minimum(B - first_b, BLOCK_B).to(tl.int32)
    outputs = tl.minimum(O - first_o, BLOCK_O).to(tl.int32)
    if SHARED_X:
        x_ptr += first_b * I
    else:
        x_ptr += (k * B + first_b) * I
    start_w = (k * O + first_o) * I
    wa_ptr += start_w
    ma_ptr += start_w
    gw_ptr += start_w
    if INALU:
        wm_ptr += start_w
        mm_ptr += start_w
    a, h, e, log_s, state, any_zero = _sums(
        x_ptr, wa_ptr, ma_ptr, wm_ptr, mm_ptr, gw_ptr, rows, outputs, I,
        EPS, INALU, INALU, ACC, PASSES, BLOCK_B, BLOCK_O, BLOCK_I,
    )  # fmt: skip
    if INALU:
        if any_zero > 0:
            log_s, state = _zero_factors(
                log_s, state, x_ptr, wm_ptr, mm_ptr, rows, outputs, I,
                ACC, PASSES, BLOCK_B, BLOCK_O, BLOCK_I,
            )  # fmt: skip
    if PASSES > 1:
        # An infinite operand left NaN in the split sums; one plane tells infinity from NaN.
        if tl.max(tl.where((a != a) | (h != h) | (e != e), 1, 0)) > 0:
            a_one, h_one, e_one, _, _, _ = _sums(
                x_ptr, wa_ptr, ma_ptr, wm_ptr, mm_ptr, gw_ptr, rows, outputs, I,
                EPS, INALU, False, ACC, 1, BLOCK_B, BLOCK_O, BLOCK_I,
            )  # fmt: skip
            a = tl.where(a == a, a, a_one)
            h = tl.where(h == h, h, h_one)
            e = tl.where(e == e, e, e_one)

    offs_b = tl.arange(0, BLOCK_B)
    offs_o = tl.arange(0, BLOCK_O)
    mask_o = offs_o < outputs
    if HAS_BIAS:
        h += tl.load(bias_ptr + k * O + first_o + offs_o, mask=mask_o, other=0.0).to(ACC)[None, :]
    mask = (offs_b < rows)[:, None] & mask_o[None, :]
    out = (k * B + first_b) * O + first_o + (offs_b[:, None] * O + offs_o[None, :])
    t, product = _products(e, log_s, state, flags_ptr, out, mask, OMEGA, INALU, SAVE)
    y = sigmoid(h) * a + sigmoid(-h) * product
    tl.store(y_ptr + out, y.to(y_ptr.dtype.element_ty), mask=mask)
    if SAVE:
        tl.store(h_ptr + out, h.to(h_ptr.dtype.element_ty), mask=mask)
        tl.store(a_ptr + out, a.to(a_ptr.dtype.element_ty), mask=mask)
        tl.store(t_ptr + out, t.to(t_ptr.dtype.element_ty), mask=mask)


# ---- the backward ----


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
    x_ptr,
    wa_ptr,
    ma_ptr,
    wm_ptr,
    mm_ptr,
    gw_ptr,
    h_ptr,
    a_ptr,
    t_ptr,
    flags_ptr,
    grad_x_ptr,  # [K, B, I]
    K,
    B,
    I,
    O,
    EPS: tl.constexpr,
    INALU: tl.constexpr,
    SHARED_X: tl.constexpr,
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
            (grad_y_ptr, h_ptr, a_ptr, t_ptr, flags_ptr),
            start_y + offs_y,
            mask_b[:, None] & mask_o[None, :],
            INALU,
            ACC,
        )
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
        derivative = tl.where(tl.abs(x) < EPS, 0.0, acc_log * signum(x) / tl.abs(x))
    else:
        derivative = acc_log * signum(x) / (tl.abs(x) + EPS)
    ptrs = grad_x_ptr + start_x + offs_x
    tl.store(ptrs, (acc_x + derivative).to(grad_x_ptr.dtype.element_ty), mask=mask)


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
    acc,
    w,
    x_ptr,
    pointers,
    start_x,
    start_y,
    offs_i,
    offs_o,
    mask_i,
    mask_o,
    rows,
    O,
    I,
    INALU: tl.constexpr,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """Add `_rare_sign_gradients` of all rows: a second loop, which saves registers in the first."""
    offs_b = tl.arange(0, BLOCK_B)
    offs_x = offs_b[:, None] * I + offs_i[None, :]
    offs_y = offs_b[:, None] * O + offs_o[None, :]
    for b in range(0, loop_end(rows), BLOCK_B):
        mask_b = offs_b < rows - b
        x = tl.load(x_ptr + start_x + offs_x, mask=mask_b[:, None] & mask_i[None, :], other=1.0)
        _, _, _, d_t, d_one = _upstream(
            pointers, start_y + offs_y, mask_b[:, None] & mask_o[None, :], INALU, ACC
        )
        acc = _rare_sign_gradients(acc, x, d_t, d_one, w, ACC, PASSES)
        start_x += BLOCK_B * I
        start_y += BLOCK_B * O
    return acc


@triton.jit
def _sums_over_rows(
    x_ptr,
    pointers,
    start_x,
    start_y,
    offs_i,
    offs_o,
    mask_i,
    mask_o,
    rows,
    O,
    I,
    EPS: tl.constexpr,
    INALU: tl.constexpr,
    NEED_ADD: tl.constexpr,
    NEED_MUL: tl.constexpr,
    NEED_GATE: tl.constexpr,
    NEED_BIAS: tl.constexpr,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
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
        )
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
    acc,
    weight_ptr,
    mask_ptr,
    grad_ptr,
    grad_mask_ptr,
    offs_w,
    out,
    mask_w,
    final,
    ACC: tl.constexpr,
):
    """Store a sum over rows: if it is final gradients of weight and mask, else a partial sum."""
    if final:
        store_nac_gradients(acc, weight_ptr, mask_ptr, grad_ptr, grad_mask_ptr, offs_w, mask_w, ACC)
    else:
        tl.store(grad_ptr + out, acc, mask=mask_w)


@triton.jit(do_not_specialize=["K", "B"])
def nalu_backward_w_kernel(
    grad_y_ptr,  # [K, B, O]
    x_ptr,
    wa_ptr,
    ma_ptr,
    wm_ptr,
    mm_ptr,
    h_ptr,
    a_ptr,
    t_ptr,
    flags_ptr,
    add_ptr,  # gradient of A [splits, K, O, I]; with one split and FINAL of weight [K, O, I]
    add_mask_ptr,  # with one split and FINAL, of mask
    mul_ptr,  # of W, iNALU
    mul_mask_ptr,
    gate_ptr,  # of G
    bias_ptr,  # [splits, K, O]
    K,
    B,
    O,
    I,
    rows_per_split,
    EPS: tl.constexpr,
    INALU: tl.constexpr,
    SHARED_X: tl.constexpr,
    NEED_ADD: tl.constexpr,
    NEED_MUL: tl.constexpr,
    NEED_GATE: tl.constexpr,
    NEED_BIAS: tl.constexpr,
    FINAL: tl.constexpr,
    ACC: tl.constexpr,
    PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
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


# ---- launches ----

Tensor = torch.Tensor

SMALL_WARPS = 4  # of a program of a small layer; others have more


class _Weights(NamedTuple):
    """The weights of a layer, or their gradients, of which those not needed are None."""

    add: Tensor | None  # weight and mask of A
    add_mask: Tensor | None
    mul: Tensor | None  # weight and mask of W; None in the NALU, whose W is A
    mul_mask: Tensor | None
    gate: Tensor | None  # G


def _arrange(tensors: list[Any]) -> _Weights:
    """The three or five weights in their operators' order."""
    if len(tensors) == 5:
        return _Weights._make(tensors)
    weight, mask, gate = tensors
    return _Weights(weight, mask, None, None, gate)


def _forward(
    name: str,
    x: Tensor,
    weights: dict[str, Tensor],
    bias: Tensor | None,
    eps: float,
    omega: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``(y, h, a, t, flags)``; all but y are empty without `save`."""
    weight = next(iter(weights.values()))
    K, B, I, O, shared_x = launch.model_sizes(name, x, weight)
    operands = {label: (tensor, tuple(weight.shape)) for label, tensor in weights.items()}
    launch.check_operands(name, x, **operands, gate_bias=(bias, tuple(weight.shape[:-1])))
    acc = launch.accumulator(x.dtype)
    shape = (*weight.shape[:-2], B, O)
    saved_shape = shape if save else (0,)
    result_type = launch.result_type(x, weight)
    y = launch.empty(x, shape, result_type)
    h, a, t = (launch.empty(x, saved_shape, result_type) for _ in range(3))
    flags = x.new_empty(saved_shape, dtype=torch.int32)
    if y.numel() == 0:
        return y, h, a, t, flags
    x, bias, *tensors = launch.contiguous([x, bias, *weights.values()])
    arranged = _arrange(tensors)
    with launch.device_of(x):
        options = tuning.lookup("nalu_forward", x, I, O, K).options
        grid = K * -(-B // options["BLOCK_B"]) * -(-O // options["BLOCK_O"])
        start(
            nalu_forward_kernel,
            grid,
            options,
            (x, *arranged, bias, y, h, a, t, flags),
            (B, O, I),
            (eps, omega, arranged.mul is not None, bias is not None, shared_x, save, acc),
        )
    return y, h, a, t, flags


def nalu_forward(
    x: Tensor,
    weight: Tensor,
    mask: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor | None,
    eps: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``(y, h, a, t)``; all but y are empty without `save`. One launch."""
    weights = {"weight": weight, "mask": mask, "gate_weight": gate_weight}
    return _forward("nalu_forward", x, weights, gate_bias, eps, 0.0, save)[:4]


def _inalu_weights(*tensors: Tensor) -> dict[str, Tensor]:
    names = ("weight_add", "mask_add", "weight_mul", "mask_mul", "gate_weight")
    return dict(zip(names, tensors, strict=True))


def inalu_forward(
    x: Tensor,
    weight_add: Tensor,
    mask_add: Tensor,
    weight_mul: Tensor,
    mask_mul: Tensor,
    gate_weight: Tensor,
    eps: float,
    omega: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """``(y, h, a, t, flags)``; all but y are empty without `save`. One launch."""
    weights = _inalu_weights(weight_add, mask_add, weight_mul, mask_mul, gate_weight)
    return _forward("inalu_forward", x, weights, None, eps, omega, save)


def _check_backward(
    name: str,
    grad_y: Tensor,
    x: Tensor,
    weights: dict[str, Tensor],
    bias: Tensor | None,
    saved: dict[str, Tensor],
    flags: Tensor | None,
    shape: tuple[int, ...],
) -> None:
    """Raise for operands that do not belong together; shape: of the result."""
    weight_shape = tuple(next(iter(weights.values())).shape)
    operands = {"grad_y": (grad_y, shape)}
    operands |= {label: (weight, weight_shape) for label, weight in weights.items()}
    operands |= {label: (tensor, shape) for label, tensor in saved.items()}
    launch.check_operands(name, x, **operands, gate_bias=(bias, weight_shape[:-1]))
    if flags is not None and (
        flags.shape != shape or flags.dtype is not torch.int32 or flags.device != x.device
    ):
        raise ValueError(
            f"{name}: flags must be torch.int32 of shape {shape} on {x.device}, "
            f"got {flags.dtype} of shape {tuple(flags.shape)} on {flags.device}"
        )


def _partial_sums(
    weights: _Weights,
    parts: _Weights,
    results: _Weights,
    part_bias: Tensor | None,
    grad_bias: Tensor | None,
    final: bool,
) -> dict[str, Any]:
    """The arguments of `sum_partials` for the parts; where they are `final`, nothing is added."""
    sums: dict[str, Any] = {}
    if parts.add is not None:
        sums["re"] = parts.add, results.add
        sums["re_nac"] = weights.add, weights.add_mask, results.add_mask
    if parts.mul is not None:
        sums["im"] = parts.mul, results.mul
        sums["im_nac"] = weights.mul, weights.mul_mask, results.mul_mask
    if parts.gate is not None:
        sums["im" if weights.mul is None else "gate"] = parts.gate, results.gate
    if part_bias is not None:
        sums["gate"] = part_bias, grad_bias
    for name in sums.keys() & {"re", "im", "gate"} if final else ():
        sums[name] = None, sums[name][1]
    return sums


def _both_forms(
    options: dict[str, Any], inalu: bool, results: list[Tensor | None], acc: Any
) -> bool:
    """Return whether a kernel writes gradients or partial sums, as the number of rows asks.

    Those of large layers, and of iNALUs beyond small ones, only write partial sums: with both forms
    some spill registers.
    """
    spills = options["PASSES"] > 0 or (inalu and options["num_warps"] > SMALL_WARPS)
    grads = [grad for grad in results if grad is not None]
    return not spills and not any(launch.is_partial(grad, 1, acc) for grad in grads)


def _backward(
    name: str,
    grad_y: Tensor,
    x: Tensor,
    weights: dict[str, Tensor],
    bias: Tensor | None,
    saved: dict[str, Tensor],
    flags: Tensor | None,
    eps: float,
    needs: int,
) -> list[Tensor]:
    """Gradients of x, the weights in their order and the bias; empty where `needs` has no bit."""
    first = next(iter(weights.values()))
    K, B, I, O, shared_x = launch.model_sizes(name, x, first)
    _check_backward(name, grad_y, x, weights, bias, saved, flags, (*first.shape[:-2], B, O))
    acc = launch.accumulator(x.dtype)
    parameters = [x, *weights.values(), bias]
    needed = launch.needed(needs, parameters)
    grads = launch.gradients(needed, parameters)
    if K * B * O == 0:
        return [grad.zero_() for grad in grads]
    if not any(needed):
        return grads

    grad_y, x, *tensors = launch.contiguous([grad_y, x, *weights.values()])
    arranged = _arrange(tensors)
    inner = launch.contiguous([*saved.values(), flags])
    results = [grad if need else None for grad, need in zip(grads, needed, strict=True)]
    grad_x, grad_bias, grad_weights = results[0], results[-1], _arrange(results[1:-1])
    need_add = grad_weights.add is not None or grad_weights.add_mask is not None
    need_mul = grad_weights.mul is not None or grad_weights.mul_mask is not None
    need_gate, need_bias = grad_weights.gate is not None, grad_bias is not None
    common = (eps, arranged.mul is not None, shared_x)
    sums: dict[str, Any] = {}
    with launch.device_of(x):
        one_each = grad_x is not None and K > 1 and shared_x  # of the models, which are then summed
        part_x = launch.empty(x, (K, B, I), acc) if one_each else grad_x
        if grad_x is not None and I > 0:
            options = tuning.lookup("nalu_backward_x", x, I, O, K).options
            grid = K * -(-B // options["BLOCK_B"]) * -(-I // options["BLOCK_I"])
            operands = (grad_y, x, *arranged, *inner, part_x)
            start(nalu_backward_x_kernel, grid, options, operands, (K, B, I, O), (*common, acc))
        if grad_x is not None and part_x is not grad_x:
            sums["x"] = part_x, grad_x

        options, programs = tuning.lookup("nalu_backward_w", x, I, O, K)
        tiles_i = max(1, -(-I // options["BLOCK_I"]))  # a bias needs no input
        tiles = K * -(-O // options["BLOCK_O"]) * tiles_i
        splits, rows_per_split = launch.row_splits(B, options["BLOCK_B"], tiles, programs)
        both_forms = _both_forms(options, arranged.mul is not None, results[1:], acc)
        final, shape = splits == 1 and both_forms, (splits, K, O, I)

        def part(need: bool, grad: Tensor | None, shape: tuple[int, ...] = shape) -> Tensor | None:
            """What programs write; without a gradient of the weight, one of its mask is needed."""
            return launch.empty(x, shape, acc) if need and (grad is None or not final) else grad

        parts = grad_weights._replace(
            add=part(need_add, grad_weights.add),
            mul=part(need_mul, grad_weights.mul),
            gate=part(need_gate, grad_weights.gate),
        )
        part_bias = part(need_bias, grad_bias, shape[:-1])
        sums |= _partial_sums(arranged, parts, grad_weights, part_bias, grad_bias, final)
        if need_add or need_mul or need_gate or need_bias:
            operands = (grad_y, x, *arranged[:4], *inner, *parts, part_bias)
            numbers = (K, B, O, I, rows_per_split)
            constants = (*common, need_add, need_mul, need_gate, need_bias, both_forms, acc)
            start(nalu_backward_w_kernel, tiles * splits, options, operands, numbers, constants)
        sum_partials(acc, **sums)
    return grads


def nalu_backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    mask: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor | None,
    h: Tensor,
    a: Tensor,
    t: Tensor,
    eps: float,
    needs: int,
) -> tuple[Tensor, ...]:
    """Gradients of x, weight, mask, gate_weight, gate_bias; empty without a bit in `needs`."""
    weights = {"weight": weight, "mask": mask, "gate_weight": gate_weight}
    saved = {"h": h, "a": a, "t": t}
    return tuple(_backward("nalu_backward", grad_y, x, weights, gate_bias, saved, None, eps, needs))


def inalu_backward(
    grad_y: Tensor,
    x: Tensor,
    weight_add: Tensor,
    mask_add: Tensor,
    weight_mul: Tensor,
    mask_mul: Tensor,
    gate_weight: Tensor,
    h: Tensor,
    a: Tensor,
    t: Tensor,
    flags: Tensor,
    eps: float,
    omega: float,
    needs: int,
) -> tuple[Tensor, ...]:
    """Gradients of x and the five weights in their order; empty without a bit in `needs`."""
    weights = _inalu_weights(weight_add, mask_add, weight_mul, mask_mul, gate_weight)
    saved = {"h": h, "a": a, "t": t}
    grads = _backward("inalu_backward", grad_y, x, weights, None, saved, flags, eps, needs)
    return tuple(grads[:-1])
