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

Neural Multiplicative Reciprocal Unit (Mistry, Farrahi, Hare 2022): the same of ``x' = [x, r]``, ``r = 1 / (x + eps)``,
in registers, so that a step of a loop has two factors; the weight ``[O, 2 I]`` is clipped here. With separate signs the
factors are of ``|x'|``, and ``y_bo`` is their product times ``cos(pi sum_i n_i weight_oi)``, n_i = 1 where x'_i < 0.

Valid range: all finite factors. An infinite or NaN factor makes the gradients that it enters infinite or NaN.
Error: that of I float32 products (``I 2**-24``), and a division in the backward.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from npu_kernels._backends.triton import tuning
from npu_kernels._backends.triton.device_math import PI, clamp_gate, loop_end, signum, sincos
from npu_kernels._backends.triton.launch import (
    Sizes,
    accumulator,
    check_operands,
    device_of,
    empty,
    model_sizes,
    result_type,
)
from npu_kernels._backends.triton.reduction import sum_partials
from npu_kernels._backends.triton.tape import start

Tensor = torch.Tensor

UNROLL = tl.constexpr(4)  # inputs per step of a loop


@triton.jit
def _tile(B, O, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr):
    """This program's model, the numbers of its tiles of rows and outputs, which these are, and whether they exist."""
    tiles_b = tl.cdiv(B, BLOCK_B)
    tiles_o = tl.cdiv(O, BLOCK_O)
    pid = tl.program_id(0)
    k = (pid // (tiles_b * tiles_o)).to(tl.int64)
    pid_b = ((pid // tiles_o) % tiles_b).to(tl.int64)
    pid_o = (pid % tiles_o).to(tl.int64)
    offs_b = pid_b * BLOCK_B + tl.arange(0, BLOCK_B)
    offs_o = pid_o * BLOCK_O + tl.arange(0, BLOCK_O)
    return k, pid_b, pid_o, offs_b, offs_o, offs_b < B, offs_o < O


@triton.jit
def _factor(x_ptr, w_ptr, i, I, offs_b, offs_o, mask_b, mask_o, ACC: tl.constexpr):
    """``x [BLOCK_B, 1], weight [1, BLOCK_O]`` and the factors of input i; 1 beyond the last row, output or input."""
    x = tl.load(x_ptr + offs_b * I + i, mask=mask_b & (i + 0 * offs_b < I), other=1.0).to(ACC)[
        :, None
    ]
    w = tl.load(w_ptr + offs_o * I + i, mask=mask_o & (i + 0 * offs_o < I), other=0.0).to(ACC)[
        None, :
    ]
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
    B, O, I,
    SHARED_X: tl.constexpr, ACC: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    k, _pid_b, _pid_o, offs_b, offs_o, mask_b, mask_o = _tile(B, O, BLOCK_B, BLOCK_O)
    if not SHARED_X:
        x_ptr += k * B * I
    w_ptr += k * O * I
    product = tl.full([BLOCK_B, BLOCK_O], 1.0, ACC)
    for first in range(0, loop_end(I), UNROLL):
        for j in tl.static_range(UNROLL):
            _, _, f = _factor(x_ptr, w_ptr, first + j, I, offs_b, offs_o, mask_b, mask_o, ACC)
            product *= f
    offs_y = (k * B + offs_b)[:, None] * O + offs_o[None, :]
    tl.store(
        y_ptr + offs_y, product.to(y_ptr.dtype.element_ty), mask=mask_b[:, None] & mask_o[None, :]
    )


@triton.jit(do_not_specialize=["K", "B"])
def nmu_backward_kernel(
    grad_y_ptr,  # [K, B, O]
    x_ptr,  # [K, B, I], or [B, I] with SHARED_X
    w_ptr,  # [K, O, I]
    grad_x_ptr,  # [tiles_o, K, B, I]
    grad_w_ptr,  # [tiles_b, K, O, I]
    K, B, O, I,
    SHARED_X: tl.constexpr, NEED_X: tl.constexpr, NEED_W: tl.constexpr, ACC: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    k, pid_b, pid_o, offs_b, offs_o, mask_b, mask_o = _tile(B, O, BLOCK_B, BLOCK_O)
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


@triton.jit
def _pair(x_ptr, w_ptr, i, I, offs_b, offs_o, mask_b, mask_o, EPS: tl.constexpr, ACC: tl.constexpr):
    """``x, 1 / (x + eps) [BLOCK_B, 1]``, the weight's columns of both ``[1, BLOCK_O]``; beyond the last 1 and 0."""
    inside_b = mask_b & (i + 0 * offs_b < I)
    inside_o = mask_o & (i + 0 * offs_o < I)
    x = tl.load(x_ptr + offs_b * I + i, mask=inside_b, other=1.0).to(ACC)[:, None]
    w = tl.load(w_ptr + offs_o * 2 * I + i, mask=inside_o, other=0.0).to(ACC)[None, :]
    v = tl.load(w_ptr + offs_o * 2 * I + I + i, mask=inside_o, other=0.0).to(ACC)[None, :]
    divisor = x if EPS == 0 else x + EPS
    r = 1.0 / divisor if tl.float64 == ACC else tl.div_rn(tl.full(divisor.shape, 1.0, ACC), divisor)
    return x, r, w, v


@triton.jit
def _factor_of(x, weight, CLIP: tl.constexpr, SEPARATE: tl.constexpr):
    """The factor of an input, itself in size where signs are separate, and the weight within [0, 1]."""
    w = clamp_gate(weight) if CLIP else weight
    size = tl.abs(x) if SEPARATE else x
    return size, w, w * size + (1.0 - w)


@triton.jit(do_not_specialize=["B"])
def nmru_forward_kernel(
    x_ptr,  # [K, B, I], or [B, I] with SHARED_X
    w_ptr,  # [K, O, 2 I]
    y_ptr,  # [K, B, O]
    B, O, I,
    EPS: tl.constexpr, CLIP: tl.constexpr, SEPARATE: tl.constexpr, SHARED_X: tl.constexpr,
    ACC: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    k, _pid_b, _pid_o, offs_b, offs_o, mask_b, mask_o = _tile(B, O, BLOCK_B, BLOCK_O)
    if not SHARED_X:
        x_ptr += k * B * I
    w_ptr += k * O * 2 * I
    product = tl.full([BLOCK_B, BLOCK_O], 1.0, ACC)
    turns = tl.zeros([BLOCK_B, BLOCK_O], dtype=ACC)
    for i in range(loop_end(I)):
        x, r, weight_x, weight_r = _pair(
            x_ptr, w_ptr, i, I, offs_b, offs_o, mask_b, mask_o, EPS, ACC
        )
        _, _, f = _factor_of(x, weight_x, CLIP, SEPARATE)
        _, _, g = _factor_of(r, weight_r, CLIP, SEPARATE)
        product = product * f * g
        if SEPARATE:
            turns += (x < 0).to(ACC) * weight_x + (r < 0).to(ACC) * weight_r
    if SEPARATE:
        _, cosine = sincos(turns * PI)
        product *= cosine
    offs_y = (k * B + offs_b)[:, None] * O + offs_o[None, :]
    tl.store(
        y_ptr + offs_y, product.to(y_ptr.dtype.element_ty), mask=mask_b[:, None] & mask_o[None, :]
    )


@triton.jit
def _sum_weight(
    d_f, size, d_turns, x, weight, CLIP: tl.constexpr, SEPARATE: tl.constexpr, ACC: tl.constexpr
):
    """The gradient of a column of the weight ``[BLOCK_O]``, of the rows of a tile."""
    total = tl.sum(d_f * (size - 1.0), axis=0)[None, :]
    if CLIP:
        total = tl.where((weight >= 0) & (weight <= 1), total, 0.0)
    if SEPARATE:
        total += tl.sum(d_turns * (x < 0).to(ACC), axis=0)[None, :]
    return tl.sum(total, axis=0)


@triton.jit
def _product_of_pairs(
    x_ptr, w_ptr, I, offs_b, offs_o, mask_b, mask_o,
    EPS: tl.constexpr, CLIP: tl.constexpr, SEPARATE: tl.constexpr, ACC: tl.constexpr,
    BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr,
):  # fmt: skip
    """``mantissa, exponent, zeros, turns``: the product of the factors that are not 0, the number of those that are 0,
    and the sum in the cosine over pi.
    """
    mantissa = tl.full([BLOCK_B, BLOCK_O], 1.0, ACC)
    exponent = tl.zeros([BLOCK_B, BLOCK_O], dtype=tl.int32)
    zeros = tl.zeros([BLOCK_B, BLOCK_O], dtype=tl.int32)
    turns = tl.zeros([BLOCK_B, BLOCK_O], dtype=ACC)
    for i in range(loop_end(I)):
        x, r, weight_x, weight_r = _pair(
            x_ptr, w_ptr, i, I, offs_b, offs_o, mask_b, mask_o, EPS, ACC
        )
        _, _, f = _factor_of(x, weight_x, CLIP, SEPARATE)
        _, _, g = _factor_of(r, weight_r, CLIP, SEPARATE)
        m_f, e_f = _decompose(f)
        m_g, e_g = _decompose(g)
        mantissa, e = _decompose(mantissa * m_f * m_g)
        exponent += e + e_f + e_g
        zeros += (f == 0).to(tl.int32) + (g == 0).to(tl.int32)
        if SEPARATE:
            turns += (x < 0).to(ACC) * weight_x + (r < 0).to(ACC) * weight_r
    return mantissa, exponent, zeros, turns


@triton.jit(do_not_specialize=["K", "B"])
def nmru_backward_kernel(
    grad_y_ptr,  # [K, B, O]
    x_ptr,  # [K, B, I], or [B, I] with SHARED_X
    w_ptr,  # [K, O, 2 I]
    grad_x_ptr,  # [tiles_o, K, B, I]
    grad_w_ptr,  # [tiles_b, K, O, 2 I]
    K, B, O, I,
    EPS: tl.constexpr, CLIP: tl.constexpr, SEPARATE: tl.constexpr, SHARED_X: tl.constexpr,
    NEED_X: tl.constexpr, NEED_W: tl.constexpr, ACC: tl.constexpr, BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
):  # fmt: skip
    k, pid_b, pid_o, offs_b, offs_o, mask_b, mask_o = _tile(B, O, BLOCK_B, BLOCK_O)
    if not SHARED_X:
        x_ptr += k * B * I
    w_ptr += k * O * 2 * I
    mask = mask_b[:, None] & mask_o[None, :]
    offs_y = (k * B + offs_b)[:, None] * O + offs_o[None, :]
    upstream = tl.load(grad_y_ptr + offs_y, mask=mask, other=0.0).to(ACC)

    mantissa, exponent, zeros, turns = _product_of_pairs(
        x_ptr, w_ptr, I, offs_b, offs_o, mask_b, mask_o, EPS, CLIP, SEPARATE, ACC, BLOCK_B, BLOCK_O
    )
    if SEPARATE:
        sine, cosine = sincos(turns * PI)
        turns = (
            upstream * tl.where(zeros == 0, _scale(mantissa, exponent), 0.0) * sine * -PI
        )  # the gradient of the sum
        turns = tl.where(mask, turns, 0.0)
        upstream *= cosine

    for i in range(loop_end(I)):
        x, r, weight_x, weight_r = _pair(
            x_ptr, w_ptr, i, I, offs_b, offs_o, mask_b, mask_o, EPS, ACC
        )
        size_x, w_x, f = _factor_of(x, weight_x, CLIP, SEPARATE)
        size_r, w_r, g = _factor_of(r, weight_r, CLIP, SEPARATE)
        m_f, e_f = _decompose(f)
        m_g, e_g = _decompose(g)
        others = _scale(mantissa / m_f, exponent - e_f)
        d_f = tl.where(mask, upstream * tl.where(zeros == (f == 0).to(tl.int32), others, 0.0), 0.0)
        others = _scale(mantissa / m_g, exponent - e_g)
        d_g = tl.where(mask, upstream * tl.where(zeros == (g == 0).to(tl.int32), others, 0.0), 0.0)
        if NEED_X:
            d_x = tl.sum(d_f * w_x, axis=1)[:, None]
            d_r = tl.sum(d_g * w_r, axis=1)[:, None]
            if SEPARATE:
                d_x *= signum(x)
                d_r *= signum(r)
            grad_x = tl.sum(d_x - d_r * (r * r), axis=1)
            offs_x = ((pid_o * K + k) * B + offs_b) * I + i
            tl.store(grad_x_ptr + offs_x, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask_b)
        if NEED_W:
            grad_w = _sum_weight(d_f, size_x, turns, x, weight_x, CLIP, SEPARATE, ACC)
            grad_v = _sum_weight(d_g, size_r, turns, r, weight_r, CLIP, SEPARATE, ACC)
            offs_w = ((pid_b * K + k) * O + offs_o) * 2 * I + i
            tl.store(grad_w_ptr + offs_w, grad_w.to(grad_w_ptr.dtype.element_ty), mask=mask_o)
            tl.store(grad_w_ptr + offs_w + I, grad_v.to(grad_w_ptr.dtype.element_ty), mask=mask_o)


def _options(kernel: str, x: Tensor, K: int, I: int, O: int) -> dict[str, Any]:
    """The configuration, its tile no wider than the layer."""
    options = tuning.lookup(kernel, x, I, O, K).options
    return options | {"BLOCK_O": min(options["BLOCK_O"], triton.next_power_of_2(O))}


def nmu_forward(x: Tensor, weight: Tensor) -> Tensor:
    """``y [B, O]`` or ``[K, B, O]`` from x ``[B, I]`` or ``[K, B, I]``, weight ``[O, I]`` or ``[K, O, I]``."""
    K, B, I, O, shared_x = model_sizes("nmu_forward", x, weight)
    check_operands("nmu_forward", x, weight=(weight, weight.shape))
    acc = accumulator(x.dtype)
    y = empty(x, (*weight.shape[:-2], B, O), result_type(x, weight))
    if y.numel() == 0:
        return y
    x, weight = x.contiguous(), weight.contiguous()
    with device_of(x):
        options = _options("nmu_forward", x, K, I, O)
        grid = K * -(-B // options["BLOCK_B"]) * -(-O // options["BLOCK_O"])
        start(nmu_forward_kernel, grid, options, x, weight, y, B, O, I, shared_x, acc)
    return y


Launch = Callable[[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor], tuple[Any, ...]], None]


def _backward(
    launch: Launch,
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    sizes: Sizes,
    factors: int,
    needs: int,
) -> tuple[Tensor, Tensor]:
    """``(grad_x, grad_weight)`` by a kernel and the sum of its parts; factors: columns of the weight."""
    K, B, I, O, shared_x = sizes
    acc = accumulator(x.dtype)
    need_x, need_w = bool(needs & 1), bool(needs & 2)
    if K * B * I * O == 0 or not needs & 3:
        return x.new_zeros(x.shape if need_x else (0,)), weight.new_zeros(
            weight.shape if need_w else (0,)
        )
    grad_y, x, weight = grad_y.contiguous(), x.contiguous(), weight.contiguous()
    with device_of(x):
        options = _options("nmu_backward", x, K, factors, O)
        if factors > I and options["BLOCK_B"] * options["BLOCK_O"] > 1024:
            options["BLOCK_B"] //= 2  # two factors a step: a whole tile spills registers on sm_100
        tiles_b, tiles_o = -(-B // options["BLOCK_B"]), -(-O // options["BLOCK_O"])
        copies_x = tiles_o * K if shared_x else tiles_o  # that have to be added
        grad_x = empty(x, x.shape if need_x else (0,))
        grad_w = empty(weight, weight.shape if need_w else (0,))
        part_x = empty(x, (copies_x, *x.shape), acc) if need_x and copies_x > 1 else grad_x
        part_w = empty(x, (tiles_b, K, O, factors), acc) if need_w and tiles_b > 1 else grad_w
        grid = K * tiles_b * tiles_o
        launch(
            (grad_y, x, weight),
            (part_x, part_w),
            (grid, K, B, O, I, shared_x, need_x, need_w, acc, options),
        )
        sum_partials(
            acc,
            re=(part_w, grad_w) if need_w and tiles_b > 1 else None,
            x=(part_x, grad_x) if need_x and copies_x > 1 else None,
        )
    return grad_x, grad_w


def nmu_backward(grad_y: Tensor, x: Tensor, weight: Tensor, needs: int) -> tuple[Tensor, Tensor]:
    """``(grad_x, grad_weight)``, those in `needs` (1, 2), else empty; a shared x has its models' gradients added."""
    sizes = model_sizes("nmu_backward", x, weight)
    check_operands(
        "nmu_backward", x, weight=(weight, weight.shape), grad_y=(grad_y, (*weight.shape[:-2], sizes.B, sizes.O))
    )  # fmt: skip

    def launch(
        operands: tuple[Tensor, Tensor, Tensor], parts: tuple[Tensor, Tensor], rest: tuple[Any, ...]
    ) -> None:
        start(nmu_backward_kernel, rest[0], rest[-1], *operands, *parts, *rest[1:-1])

    return _backward(launch, grad_y, x, weight, sizes, sizes.I, needs)


def _nmru_sizes(name: str, x: Tensor, weight: Tensor) -> Sizes:
    sizes = model_sizes(name, x, weight[..., : weight.shape[-1] // 2])
    check_operands(name, x, weight=(weight, (*weight.shape[:-1], 2 * sizes.I)))
    return sizes


def nmru_forward(x: Tensor, weight: Tensor, eps: float, clip: bool, separate: bool) -> Tensor:
    """``y [B, O]`` or ``[K, B, O]`` from x ``[B, I]`` or ``[K, B, I]``, weight ``[O, 2 I]`` or ``[K, O, 2 I]``."""
    K, B, I, O, shared_x = _nmru_sizes("nmru_forward", x, weight)
    acc = accumulator(x.dtype)
    y = empty(x, (*weight.shape[:-2], B, O), result_type(x, weight))
    if y.numel() == 0:
        return y
    x, weight = x.contiguous(), weight.contiguous()
    with device_of(x):
        options = _options("nmu_forward", x, K, 2 * I, O)
        grid = K * -(-B // options["BLOCK_B"]) * -(-O // options["BLOCK_O"])
        start(
            nmru_forward_kernel,
            grid,
            options,
            x,
            weight,
            y,
            B,
            O,
            I,
            eps,
            clip,
            separate,
            shared_x,
            acc,
        )
    return y


def nmru_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, eps: float, clip: bool, separate: bool, needs: int
) -> tuple[Tensor, Tensor]:
    """``(grad_x, grad_weight)``, those in `needs` (1, 2), else empty; a shared x has its models' gradients added."""
    K, B, I, O, shared_x = _nmru_sizes("nmru_backward", x, weight)
    check_operands("nmru_backward", x, grad_y=(grad_y, (*weight.shape[:-2], B, O)))

    def launch(
        operands: tuple[Tensor, Tensor, Tensor],
        parts: tuple[Tensor, Tensor],
        sizes: tuple[Any, ...],
    ) -> None:
        flags = (eps, clip, separate)
        start(
            nmru_backward_kernel,
            sizes[0],
            sizes[-1],
            *operands,
            *parts,
            *sizes[1:5],
            *flags,
            *sizes[5:-1],
        )

    return _backward(launch, grad_y, x, weight, Sizes(K, B, I, O, shared_x), 2 * I, needs)
