"""NALU and iNALU, siblings of the Neural Power Unit layer: the forward on tiles of matrix products.

Sources: Trask et al., "Neural Arithmetic Logic Units", NeurIPS 2018; Schloer, Ring, Hotho, "iNALU",
Frontiers in AI 2020; in the form of Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020,
definition 1. For every model k of K, ``x [B, I]``, weights ``[O, I]``, bias ``[O]``, with
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
matrices: no ``[B, O, I]`` tensor, and nothing to do for a tile of positive x. Beside the inputs h,
a, and t without its factors that are 0 are saved; for the iNALU also flags, an integer per output:
the number of factors that are 0, at most 2, times 2, plus 1 where omega bounds W L.

One launch. Valid range and precision schemes: those of `npu`. Error: that of float32 sums of the
same length, also in log s.
"""

# ruff: noqa: SIM102 (an `if` on a compile-time constant must not be merged with one on a value)

import triton
import triton.language as tl

from npu_kernels._triton.device_math import (
    add_product,
    exact_plane,
    exp_accurate,
    loop_end,
    split,
)
from npu_kernels._triton.nac import logarithm, nac, sigmoid


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
    ma_ptr, wm_ptr, mm_ptr, gw_ptr,
    rows,  # of the tile that exist
    outputs, I,
    EPS: tl.constexpr, INALU: tl.constexpr, SIGNS: tl.constexpr, ACC: tl.constexpr,
    PASSES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
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
    acc_s, state, x_ptr, wm_ptr, mm_ptr, rows, outputs, I,
    ACC: tl.constexpr, PASSES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
    BLOCK_I: tl.constexpr,
):  # fmt: skip
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
    e, log_s, state, flags_ptr, out, mask,
    OMEGA: tl.constexpr, INALU: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
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
    h_ptr, a_ptr, t_ptr, flags_ptr, B, O, I,
    EPS: tl.constexpr, OMEGA: tl.constexpr, INALU: tl.constexpr, HAS_BIAS: tl.constexpr,
    SHARED_X: tl.constexpr, SAVE: tl.constexpr, ACC: tl.constexpr, PASSES: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
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
