"""Neural Multiplication Unit, a sibling of the Neural Power Unit layer: forward and backward kernels.

Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, equation 4, after Madsen and Johansen, "Neural
Arithmetic Units", ICLR 2020. The weight is used as it is; clipping happens outside. For every model k of K,
``x [B, I]``, ``weight [O, I]``::

    f_boi = weight_oi x_bi + (1 - weight_oi)              y_bo = prod_i f_boi                    [B, O]

Backward, given ``grad_y [B, O]``, with ``E_boi = prod_{j != i} f_boj``, the product of the others::

    grad_x_bi      = sum_o grad_y_bo E_boi weight_oi       grad_weight_oi = sum_b grad_y_bo E_boi (x_bi - 1)

Nothing is saved but the inputs. A program has a tile of rows and outputs and goes through the inputs twice: first for
the product of all factors that are not 0 (as mantissa and exponent, so that neither underflow nor overflow of the whole
product spoils a part of it) and the number of zeros, then for every ``E`` by dividing one factor out: with no zero
among the others it is that quotient, else 0. So it is right where factors are 0. The sums over the tile are written as
partial sums and added in a fixed order (`reduction`): two launches, one where a single tile covers the layer.

Eager torch needs several ``[B, O, I]`` tensors; here the partial sums take ``B O I (1 / BLOCK_O + 1 / BLOCK_B)``
elements, none where one tile suffices.

Valid range: all finite factors. An infinite or NaN factor makes the gradients that it enters infinite or NaN.
Error: that of I float32 products (``I 2**-24``), and a division in the backward.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from npu_kernels.backends.triton import tuning
from npu_kernels.backends.triton.device_math import loop_end
from npu_kernels.backends.triton.launch import accumulator, check_operands, device_of, empty, model_sizes
from npu_kernels.backends.triton.reduction import sum_partials

Tensor = torch.Tensor

UNROLL = tl.constexpr(4)  # inputs per step of a loop


@triton.jit
def _factor(x_ptr, w_ptr, i, I, offs_b, offs_o, mask_b, mask_o, ACC: tl.constexpr):
    """``x [BLOCK_B, 1], weight [1, BLOCK_O]`` and the factors of input i; 1 beyond the last row, output or input."""
    x = tl.load(x_ptr + offs_b * I + i, mask=mask_b & (i + 0 * offs_b < I), other=1.0).to(ACC)[:, None]
    w = tl.load(w_ptr + offs_o * I + i, mask=mask_o & (i + 0 * offs_o < I), other=0.0).to(ACC)[None, :]
    return x, w, w * x + (1.0 - w)


@triton.jit
def _decompose(f):
    """``mantissa, exponent`` with ``f = mantissa 2**exponent`` and 1 <= |mantissa| < 2; inf and NaN are mantissas.

    Zero gives ``(1, 0)``.
    """
    if f.dtype == tl.float64:
        small = tl.abs(f) < 2.2250738585072014e-308
        bits = tl.where(small, f * 1.8014398509481984e16, f).to(tl.int64, bitcast=True)
        field = ((bits >> 52) & 0x7FF).to(tl.int32)
        mantissa = ((bits & -0x7FF0000000000001) | 0x3FF0000000000000).to(tl.float64, bitcast=True)
        exponent = field - tl.where(small, 1023 + 54, 1023)
        special = field == 0x7FF
    else:
        small = tl.abs(f) < 1.1754943508222875e-38
        bits = tl.where(small, f * 16777216.0, f).to(tl.int32, bitcast=True)
        field = (bits >> 23) & 0xFF
        mantissa = ((bits & -0x7F800001) | 0x3F800000).to(tl.float32, bitcast=True)
        exponent = field - tl.where(small, 127 + 24, 127)
        special = field == 0xFF
    mantissa = tl.where(special, f, tl.where(f == 0, 1.0, mantissa))
    return mantissa, tl.where(special | (f == 0), 0, exponent)


@triton.jit
def _scale(v, exponent):
    """``v 2**exponent`` for 0.5 < |v| < 2, rounded once, down to subnormal results."""
    if v.dtype == tl.float64:
        n = tl.minimum(tl.maximum(exponent, -2044), 2046).to(tl.int64)
        half = n >> 1
        first = ((half + 1023) << 52).to(tl.float64, bitcast=True)
        second = ((n - half + 1023) << 52).to(tl.float64, bitcast=True)
    else:
        n = tl.minimum(tl.maximum(exponent, -252), 254)
        half = n >> 1
        first = ((half + 127) << 23).to(tl.float32, bitcast=True)
        second = ((n - half + 127) << 23).to(tl.float32, bitcast=True)
    return v * first * second


@triton.jit(do_not_specialize=["B"])
def nmu_forward_kernel(
    x_ptr,  # [K, B, I], or [B, I] with SHARED_X
    w_ptr,  # [K, O, I]
    y_ptr,  # [K, B, O]
    B,
    O,
    I,
    SHARED_X: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    tiles_b = tl.cdiv(B, BLOCK_B)
    tiles_o = tl.cdiv(O, BLOCK_O)
    pid = tl.program_id(0)
    k = (pid // (tiles_b * tiles_o)).to(tl.int64)
    offs_b = ((pid // tiles_o) % tiles_b).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    offs_o = (pid % tiles_o).to(tl.int64) * BLOCK_O + tl.arange(0, BLOCK_O)
    mask_b = offs_b < B
    mask_o = offs_o < O
    if not SHARED_X:
        x_ptr += k * B * I
    w_ptr += k * O * I
    product = tl.full([BLOCK_B, BLOCK_O], 1.0, ACC)
    for first in range(0, loop_end(I), UNROLL):
        for j in tl.static_range(UNROLL):
            _, _, f = _factor(x_ptr, w_ptr, first + j, I, offs_b, offs_o, mask_b, mask_o, ACC)
            product *= f
    offs_y = (k * B + offs_b)[:, None] * O + offs_o[None, :]
    tl.store(y_ptr + offs_y, product.to(y_ptr.dtype.element_ty), mask=mask_b[:, None] & mask_o[None, :])


@triton.jit(do_not_specialize=["K", "B"])
def nmu_backward_kernel(
    grad_y_ptr,  # [K, B, O]
    x_ptr,  # [K, B, I], or [B, I] with SHARED_X
    w_ptr,  # [K, O, I]
    grad_x_ptr,  # [tiles_o, K, B, I]
    grad_w_ptr,  # [tiles_b, K, O, I]
    K,
    B,
    O,
    I,
    SHARED_X: tl.constexpr,
    NEED_X: tl.constexpr,
    NEED_W: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    tiles_b = tl.cdiv(B, BLOCK_B)
    tiles_o = tl.cdiv(O, BLOCK_O)
    pid = tl.program_id(0)
    k = (pid // (tiles_b * tiles_o)).to(tl.int64)
    pid_b = ((pid // tiles_o) % tiles_b).to(tl.int64)
    pid_o = (pid % tiles_o).to(tl.int64)
    offs_b = pid_b * BLOCK_B + tl.arange(0, BLOCK_B)
    offs_o = pid_o * BLOCK_O + tl.arange(0, BLOCK_O)
    mask_b = offs_b < B
    mask_o = offs_o < O
    if not SHARED_X:
        x_ptr += k * B * I
    w_ptr += k * O * I
    mask = mask_b[:, None] & mask_o[None, :]
    offs_y = (k * B + offs_b)[:, None] * O + offs_o[None, :]
    grad_y = tl.load(grad_y_ptr + offs_y, mask=mask, other=0.0).to(ACC)

    mantissa = tl.full([BLOCK_B, BLOCK_O], 1.0, ACC)
    exponent = tl.zeros([BLOCK_B, BLOCK_O], dtype=tl.int32)
    zeros = tl.zeros([BLOCK_B, BLOCK_O], dtype=tl.int32)
    for first in range(0, loop_end(I), UNROLL):
        for j in tl.static_range(UNROLL):
            _, _, f = _factor(x_ptr, w_ptr, first + j, I, offs_b, offs_o, mask_b, mask_o, ACC)
            m, e = _decompose(f)
            mantissa *= m
            exponent += e
            zeros += (f == 0).to(tl.int32)
        mantissa, e = _decompose(mantissa)
        exponent += e

    for i in range(loop_end(I)):
        x, w, f = _factor(x_ptr, w_ptr, i, I, offs_b, offs_o, mask_b, mask_o, ACC)
        m, e = _decompose(f)
        others = _scale(mantissa / m, exponent - e)
        others = tl.where(zeros == (f == 0).to(tl.int32), others, 0.0)
        d_f = tl.where(mask, grad_y * others, 0.0)
        if NEED_X:
            grad_x = tl.sum(d_f * w, axis=1)
            offs_x = ((pid_o * K + k) * B + offs_b) * I + i
            tl.store(grad_x_ptr + offs_x, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask_b)
        if NEED_W:
            grad_w = tl.sum(d_f * (x - 1.0), axis=0)
            offs_w = ((pid_b * K + k) * O + offs_o) * I + i
            tl.store(grad_w_ptr + offs_w, grad_w.to(grad_w_ptr.dtype.element_ty), mask=mask_o)


def _options(kernel: str, x: Tensor, K: int, B: int, I: int, O: int) -> dict[str, Any]:
    """The configuration, its tile no wider than the layer."""
    options = tuning.lookup(kernel, x, B, I, O, K).options
    return options | {"BLOCK_O": min(options["BLOCK_O"], triton.next_power_of_2(O))}


def nmu_forward(x: Tensor, weight: Tensor) -> Tensor:
    """``y [B, O]`` or ``[K, B, O]`` from x ``[B, I]`` or ``[K, B, I]``, weight ``[O, I]`` or ``[K, O, I]``."""
    K, B, I, O, shared_x = model_sizes("nmu_forward", x, weight)
    check_operands("nmu_forward", x, weight=(weight, weight.shape))
    acc = accumulator(x.dtype)
    y = empty(x, (*weight.shape[:-2], B, O))
    if y.numel() == 0:
        return y
    x, weight = x.contiguous(), weight.contiguous()
    with device_of(x):
        options = _options("nmu_forward", x, K, B, I, O)
        grid = K * -(-B // options["BLOCK_B"]) * -(-O // options["BLOCK_O"])
        nmu_forward_kernel[(grid,)](x, weight, y, B, O, I, shared_x, acc, **options)
    return y


def nmu_backward(grad_y: Tensor, x: Tensor, weight: Tensor, needs: int) -> tuple[Tensor, Tensor]:
    """``(grad_x, grad_weight)``, those in `needs` (1, 2), else empty; a shared x has its models' gradients added."""
    K, B, I, O, shared_x = model_sizes("nmu_backward", x, weight)
    check_operands(
        "nmu_backward", x, weight=(weight, weight.shape), grad_y=(grad_y, (*weight.shape[:-2], B, O))
    )  # fmt: skip
    acc = accumulator(x.dtype)
    need_x, need_w = bool(needs & 1), bool(needs & 2)
    if K * B * I * O == 0 or not needs & 3:
        return x.new_zeros(x.shape if need_x else (0,)), x.new_zeros(weight.shape if need_w else (0,))
    grad_y, x, weight = grad_y.contiguous(), x.contiguous(), weight.contiguous()
    with device_of(x):
        options = _options("nmu_backward", x, K, B, I, O)
        tiles_b, tiles_o = -(-B // options["BLOCK_B"]), -(-O // options["BLOCK_O"])
        copies_x = tiles_o * K if shared_x else tiles_o  # that have to be added
        grad_x = empty(x, x.shape if need_x else (0,))
        grad_w = empty(x, weight.shape if need_w else (0,))
        part_x = empty(x, (copies_x, *x.shape), acc) if need_x and copies_x > 1 else grad_x
        part_w = empty(x, (tiles_b, K, O, I), acc) if need_w and tiles_b > 1 else grad_w
        nmu_backward_kernel[(K * tiles_b * tiles_o,)](
            grad_y, x, weight, part_x, part_w, K, B, O, I, shared_x, need_x, need_w, acc, **options
        )  # fmt: skip
        sum_partials(
            acc,
            re=(part_w, grad_w) if need_w and tiles_b > 1 else None,
            x=(part_x, grad_x) if need_x and copies_x > 1 else None,
        )
    return grad_x, grad_w
