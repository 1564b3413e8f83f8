"""NMU and NMRU, siblings of the Neural Power Unit layer: forward and backward.

Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, equation 4, after Madsen and
Johansen, "Neural Arithmetic Units", ICLR 2020. The weight is not clipped here. For every model k of
K, ``x [B, I]``, ``weight [O, I]``::

    f_boi = weight_oi x_bi + (1 - weight_oi)              y_bo = prod_i f_boi              [B, O]

Backward, from ``grad_y [B, O]``, with the cofactor ``E_boi = prod_{j != i} f_boj``::

    grad_x_bi      = sum_o grad_y_bo E_boi weight_oi
    grad_weight_oi = sum_b grad_y_bo E_boi (x_bi - 1)

Nothing is saved but the inputs. A program has a tile of rows and outputs and goes through the
inputs twice. First it forms the product of all factors that are not 0, as mantissa and exponent, so
that neither underflow nor overflow corrupts a part of it, and counts the zeros. Then it divides one
factor out for every ``E``: without a zero among the other factors that quotient is ``E``, else
``E`` is 0. So gradients are right where factors are 0. The sums over the tile are partial sums,
which are added in a fixed order (`reduction`): two launches, one where a single tile covers the
layer and the weight has the dtype of the sums.

Eager torch needs several ``[B, O, I]`` tensors; here the partial sums take
``B O I (1 / BLOCK_O + 1 / BLOCK_B)`` elements, none where one tile suffices.

The Neural Multiplicative Reciprocal Unit (Mistry, Farrahi, Hare 2022) takes ``x' = [x, r]``, ``r =
1 / (x + eps)``, in registers: a step of a loop has two factors. Its weight ``[O, 2 I]`` is clipped
here. With separate signs the factors are of ``|x'|``, and ``y_bo`` is their product times ``cos(pi
sum_i n_i weight_oi)``, n_i = 1 where x'_i < 0.

Valid range: all finite factors. An infinite or NaN factor makes the gradients that it enters
infinite or NaN. Error: that of I float32 products (``I 2**-24``), and a division in the backward.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from npu_kernels._triton import launch, tuning
from npu_kernels._triton.device_math import PI, clamp_gate, loop_end, signum, sincos
from npu_kernels._triton.launch import Sizes
from npu_kernels._triton.reduction import sum_partials
from npu_kernels._triton.tape import start

Tensor = torch.Tensor

UNROLL = tl.constexpr(4)  # inputs per step of a loop


@triton.jit
def _tile(B, O, BLOCK_B: tl.constexpr, BLOCK_O: tl.constexpr):
    """This program's model k, its tiles of rows and outputs, their indices and masks."""
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
    """x ``[BLOCK_B, 1]``, weight ``[1, BLOCK_O]``, the factors of input i; 1 beyond the layer."""
    x = tl.load(x_ptr + offs_b * I + i, mask=mask_b & (i + 0 * offs_b < I), other=1.0)
    x = x.to(ACC)[:, None]
    w = tl.load(w_ptr + offs_o * I + i, mask=mask_o & (i + 0 * offs_o < I), other=0.0)
    w = w.to(ACC)[None, :]
    return x, w, w * x + (1.0 - w)


@triton.jit
def _decompose(f):
    """``mantissa, exponent`` with ``f = mantissa 2**exponent`` and 1 <= |mantissa| < 2.

    Infinity and NaN are their own mantissas; zero gives ``(1, 0)``.
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
        cofactor = _scale(mantissa / m, exponent - e)
        cofactor = tl.where(zeros == (f == 0).to(tl.int32), cofactor, 0.0)
        d_f = tl.where(mask, grad_y * cofactor, 0.0)
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
    """``x, 1 / (x + eps) [BLOCK_B, 1]``, and the weight's columns of both ``[1, BLOCK_O]``.

    Beyond the last row, output or input x is 1 and the weight 0.
    """
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
    """The input (with SEPARATE its size), the weight (with CLIP within [0, 1]) and their factor."""
    w = clamp_gate(weight) if CLIP else weight
    size = tl.abs(x) if SEPARATE else x
    return size, w, w * size + (1.0 - w)


@triton.jit(do_not_specialize=["B"])
def nmru_forward_kernel(
    x_ptr,  # [K, B, I], or [B, I] with SHARED_X
    w_ptr,  # [K, O, 2 I]
    y_ptr,  # [K, B, O]
    B,
    O,
    I,
    EPS: tl.constexpr,
    CLIP: tl.constexpr,
    SEPARATE: tl.constexpr,
    SHARED_X: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
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
    """The gradient of a column of the weight ``[BLOCK_O]``, summed over the rows of a tile."""
    total = tl.sum(d_f * (size - 1.0), axis=0)[None, :]
    if CLIP:
        total = tl.where((weight >= 0) & (weight <= 1), total, 0.0)
    if SEPARATE:
        total += tl.sum(d_turns * (x < 0).to(ACC), axis=0)[None, :]
    return tl.sum(total, axis=0)


@triton.jit
def _product_of_pairs(
    x_ptr,
    w_ptr,
    I,
    offs_b,
    offs_o,
    mask_b,
    mask_o,
    EPS: tl.constexpr,
    CLIP: tl.constexpr,
    SEPARATE: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
    """``mantissa, exponent`` of the product of nonzero factors, the number of zeros, and turns.

    turns: the argument of the cosine, over pi.
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
    K,
    B,
    O,
    I,
    EPS: tl.constexpr,
    CLIP: tl.constexpr,
    SEPARATE: tl.constexpr,
    SHARED_X: tl.constexpr,
    NEED_X: tl.constexpr,
    NEED_W: tl.constexpr,
    ACC: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_O: tl.constexpr,
):
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
        product = tl.where(zeros == 0, _scale(mantissa, exponent), 0.0)
        turns = tl.where(mask, upstream * product * sine * -PI, 0.0)  # their gradient
        upstream *= cosine

    for i in range(loop_end(I)):
        x, r, weight_x, weight_r = _pair(
            x_ptr, w_ptr, i, I, offs_b, offs_o, mask_b, mask_o, EPS, ACC
        )
        size_x, w_x, f = _factor_of(x, weight_x, CLIP, SEPARATE)
        size_r, w_r, g = _factor_of(r, weight_r, CLIP, SEPARATE)
        m_f, e_f = _decompose(f)
        m_g, e_g = _decompose(g)
        cofactor = _scale(mantissa / m_f, exponent - e_f)
        cofactor = tl.where(zeros == (f == 0).to(tl.int32), cofactor, 0.0)
        d_f = tl.where(mask, upstream * cofactor, 0.0)
        cofactor = _scale(mantissa / m_g, exponent - e_g)
        cofactor = tl.where(zeros == (g == 0).to(tl.int32), cofactor, 0.0)
        d_g = tl.where(mask, upstream * cofactor, 0.0)
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


def _forward(
    kernel: Any,
    x: Tensor,
    weight: Tensor,
    sizes: Sizes,
    factors: int,
    layer_options: tuple[Any, ...],
) -> Tensor:
    """y, by one launch; factors: columns of the weight. layer_options: eps, clip, separate."""
    K, B, I, O, shared_x = sizes
    acc = launch.accumulator(x.dtype)
    y = launch.empty(x, (*weight.shape[:-2], B, O), launch.result_type(x, weight))
    if y.numel() == 0:
        return y
    x, weight = launch.contiguous([x, weight])
    with launch.device_of(x):
        options = _options("nmu_forward", x, K, factors, O)
        grid = K * -(-B // options["BLOCK_B"]) * -(-O // options["BLOCK_O"])
        start(
            kernel,
            grid,
            options,
            (x, weight, y),
            (B, O, I),
            (*layer_options, shared_x, acc),
        )
    return y


def _backward(
    kernel: Any,
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    sizes: Sizes,
    factors: int,
    layer_options: tuple[Any, ...],
    needs: int,
) -> tuple[Tensor, Tensor]:
    """``(grad_x, grad_weight)``, by a launch and the sum of its parts; arguments as in _forward."""
    K, B, I, O, shared_x = sizes
    acc = launch.accumulator(x.dtype)
    need_x, need_w = launch.needed(needs, [x, weight])
    grad_x, grad_w = launch.gradients([need_x, need_w], [x, weight])
    if K * B * I * O == 0 or not needs & 3:
        return grad_x.zero_(), grad_w.zero_()
    grad_y, x, weight = launch.contiguous([grad_y, x, weight])
    with launch.device_of(x):
        options = _options("nmu_backward", x, K, factors, O)
        if factors > I and options["BLOCK_B"] * options["BLOCK_O"] > 1024:
            options["BLOCK_B"] //= 2  # two factors a step: a whole tile spills registers on sm_100
        tiles_b, tiles_o = -(-B // options["BLOCK_B"]), -(-O // options["BLOCK_O"])
        copies_x = tiles_o * K if shared_x else tiles_o  # to be added
        part_x, part_w = grad_x, grad_w
        if need_x and copies_x > 1:
            part_x = launch.empty(x, (copies_x, *x.shape), acc)
        if need_w and launch.is_partial(grad_w, tiles_b, acc):
            part_w = launch.empty(x, (tiles_b, K, O, factors), acc)
        start(
            kernel,
            K * tiles_b * tiles_o,
            options,
            (grad_y, x, weight, part_x, part_w),
            (K, B, O, I),
            (*layer_options, shared_x, need_x, need_w, acc),
        )
        sum_partials(
            acc,
            re=(None if part_w is grad_w else part_w, grad_w) if need_w else None,
            x=None if part_x is grad_x else (part_x, grad_x),
        )
    return grad_x, grad_w


def _sizes(name: str, x: Tensor, weight: Tensor, grad_y: Tensor | None, parts: int) -> Sizes:
    """The sizes of operands that belong together; parts: columns of the weight for an input."""
    sizes = launch.model_sizes(name, x, weight[..., : weight.shape[-1] // parts])
    weight_shape = (*weight.shape[:-1], parts * sizes.I)
    shape = (*weight.shape[:-2], sizes.B, sizes.O)
    launch.check_operands(name, x, weight=(weight, weight_shape), grad_y=(grad_y, shape))
    return sizes


def nmu_forward(x: Tensor, weight: Tensor) -> Tensor:
    """``y [B, O]`` from x ``[B, I]``, weight ``[O, I]``; all but a shared x may begin with K."""
    sizes = _sizes("nmu_forward", x, weight, None, 1)
    return _forward(nmu_forward_kernel, x, weight, sizes, sizes.I, ())


def nmu_backward(grad_y: Tensor, x: Tensor, weight: Tensor, needs: int) -> tuple[Tensor, Tensor]:
    """``(grad_x, grad_weight)``, those in `needs` (1, 2), else empty.

    The gradient of a shared x is the sum of its models' gradients.
    """
    sizes = _sizes("nmu_backward", x, weight, grad_y, 1)
    return _backward(nmu_backward_kernel, grad_y, x, weight, sizes, sizes.I, (), needs)


def nmru_forward(x: Tensor, weight: Tensor, eps: float, clip: bool, separate: bool) -> Tensor:
    """``y [B, O]`` from x ``[B, I]``, weight ``[O, 2 I]``; all but a shared x may begin with K."""
    sizes = _sizes("nmru_forward", x, weight, None, 2)
    layer_options = (eps, clip, separate)
    return _forward(nmru_forward_kernel, x, weight, sizes, 2 * sizes.I, layer_options)


def nmru_backward(
    grad_y: Tensor, x: Tensor, weight: Tensor, eps: float, clip: bool, separate: bool, needs: int
) -> tuple[Tensor, Tensor]:
    """``(grad_x, grad_weight)`` as :func:`nmu_backward`."""
    sizes = _sizes("nmru_backward", x, weight, grad_y, 2)
    layer_options = (eps, clip, separate)
    kernel, factors = nmru_backward_kernel, 2 * sizes.I
    return _backward(kernel, grad_y, x, weight, sizes, factors, layer_options, needs)
