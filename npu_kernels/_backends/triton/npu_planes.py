"""Operands of the large layers' matrix products: planes of float16, and their scales.

A float32 value times a power of two is the sum of two float16 planes to 22 bits, ``hi + lo``. Three
of the four products of two sums, ``hi hi + lo hi + hi lo``, carry the error of one float32 product
(`npu_large` adds them up). A value below ``2**-39`` of the largest that shares its scale counts as
0.

====================== ============= ============================================================
planes                 shape of each scale
====================== ============= ============================================================
``log r``, hi and lo   [K Bp, Ip]    2**8, because ``|log r| < 104`` in float32
mask of ``x < 0``      [K Bp, Ip]    none: 0 or 1
weights, hi and lo     [K N, Ip]     one for each block of TILE x TILE, at most 2**40
their phase, hi and lo [K N, Ip]     the weights' scale: the phase is ``pi ghat`` times the weights
dP and dQ by rows      [K Bp, N]     one for each row of a block of TILE columns, at most 2**109
dP and dQ by columns   [K Bp, N]     one for each column of a block of TILE rows, at most 2**109
====================== ============= ============================================================

Bp, Ip, N are B, I and the packed outputs, padded with zeros to a multiple of TILE, so that products
need no masks. Packed outputs: with an imaginary weight a tile of TILE alternates between P and Q of
TILE / 2 outputs: one product makes both, and a kernel has them apart without moving anything
between threads. Without an imaginary weight a tile has TILE outputs, and its four quarters
alternate (0, 64, 32, 96, 1, 65, ...), so that a kernel can finish them one after the other. dP and
dQ are ``grad_y y`` and ``-grad_y s`` (`npu`).

The hi of an infinite or NaN value is that value, its lo is 0, and no scale depends on it.
"""

# ruff: noqa: SIM102 (an `if` on a compile-time constant must not be merged with one on a value)

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from npu_kernels._backends.triton.device_math import PI, clamp_gate, loop_end, magnitude
from npu_kernels._backends.triton.launch import Sizes
from npu_kernels._backends.triton.tape import start

Tensor = torch.Tensor

TILE = 128  # rows and columns of the products' tiles
BLOCK = tl.constexpr(TILE)
_HALF = tl.constexpr(TILE // 2)
_QUARTER = tl.constexpr(TILE // 4)
FLAG_INPUTS = 64  # the fewest inputs that share a flag: whether one of them is negative
LOG_SCALE = tl.constexpr(256.0)
_WEIGHT_LIMIT = tl.constexpr(40)  # exponents of the greatest scales
_UPSTREAM_LIMIT = tl.constexpr(109)
OPTIONS = {"num_warps": 8, "num_stages": 1, "enable_fp_fusion": True}


@triton.jit
def scales(largest, LIMIT: tl.constexpr):
    """Powers of two ``t, 1 / t`` with ``largest t < 2**15``; t is at most ``2**LIMIT``."""
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.minimum(tl.maximum(exponent, 141 - LIMIT), 254)
    scale = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale, ((exponent - 14) << 23).to(tl.float32, bitcast=True)


@triton.jit
def finite_size(v):
    """``|v|``, 0 where v is infinite or NaN."""
    size = tl.abs(v)
    return tl.where(size <= 3.4028234663852886e38, size, 0.0)


@triton.jit
def two_planes(v):
    """hi and lo of a scaled tile."""
    hi = v.to(tl.float16)
    rest = v - hi.to(tl.float32)
    return hi, tl.where(rest == rest, rest, 0.0).to(tl.float16)


@triton.jit
def _store_planes(v, ptrs, plane, LOW: tl.constexpr):
    """Store hi of a scaled tile, and lo a plane behind if it is read."""
    hi, lo = two_planes(v)
    tl.store(ptrs, hi)
    if LOW:
        tl.store(ptrs + plane, lo)


@triton.jit
def _wide(plane):
    """The elements of a plane in 64 bits; offsets of several planes exceed 32.

    The compiler joins stores where it knows a divisor of their offsets.
    """
    return tl.multiple_of(plane.to(tl.int64), BLOCK)


@triton.jit(do_not_specialize=["B", "tiles_b", "plane"])
def npu_x_planes_kernel(
    x_ptr,  # [K, B, I], or [B, I] with SHARED_X
    gate_ptr,  # [K, I]
    planes_ptr,  # [3, K Bp, Ip]: hi and lo of log r, mask
    blocks_ptr,  # [K tiles_b, Ip / STEP]: the steps with a negative input in a tile of rows
    counts_ptr,  # [K tiles_b]: the number of these steps
    flags_ptr,  # [K tiles_b, Ip / STEP]: 1 for a step with a negative input, else 0
    B, I,
    pitch,  # Ip
    tiles_b,
    plane,  # elements of one plane
    EPS: tl.constexpr, SHARED_X: tl.constexpr, HAS_GATE: tl.constexpr, LOW: tl.constexpr,
    STEP: tl.constexpr,  # inputs that share a flag
):  # fmt: skip
    """Make the planes of BLOCK rows of a model; the plane of lo only with LOW."""
    plane = _wide(plane)
    pid = tl.program_id(0).to(tl.int64)
    k = pid // tiles_b
    first_b = (pid % tiles_b) * BLOCK
    offs_b = tl.arange(0, BLOCK)
    offs_i = tl.arange(0, STEP)
    mask_b = offs_b < B - first_b
    x_ptr += first_b * I
    if not SHARED_X:
        x_ptr += k * B * I
    out_ptr = planes_ptr + pid * BLOCK * pitch
    steps = pitch // STEP
    count = 0
    for step in range(loop_end(steps)):
        i = step * STEP
        mask_i = offs_i < I - i
        mask = mask_b[:, None] & mask_i[None, :]
        x = tl.load(x_ptr + i + offs_b[:, None] * I + offs_i[None, :], mask=mask, other=1.0)
        x = x.to(tl.float32)
        if HAS_GATE:
            gate = tl.load(gate_ptr + k * I + i + offs_i, mask=mask_i, other=0.0)
            ghat = clamp_gate(gate.to(tl.float32))
        else:
            ghat = tl.full([STEP], 1.0, tl.float32)
        logs = tl.log(magnitude(x, ghat[None, :], EPS))
        negative = x < 0
        offs = i + offs_b[:, None] * pitch + offs_i[None, :]
        _store_planes(tl.where(mask, logs, 0.0) * LOG_SCALE, out_ptr + offs, plane, LOW)
        tl.store(out_ptr + 2 * plane + offs, negative.to(tl.float16))
        any_negative = tl.max(negative.to(tl.int32))
        tl.store(flags_ptr + pid * steps + step, any_negative)
        tl.store(blocks_ptr + pid * steps + count, step, mask=any_negative > 0)
        count += any_negative
    tl.store(counts_ptr + pid, count)


@triton.jit(do_not_specialize=["tiles_o", "plane"])
def npu_weight_planes_kernel(
    wre_ptr,  # [K, O, I]
    wim_ptr,  # [K, O, I]
    gate_ptr,  # [K, I]
    planes_ptr,  # [4, K N, Ip]: hi, lo of the weights, of their phase; [2, K N, Ip] without PHASE
    scale_ptr,  # [K N / BLOCK, Ip / BLOCK]: 1 / scale
    O, I, pitch, tiles_o, plane,
    HAS_IM: tl.constexpr, HAS_GATE: tl.constexpr, PHASE: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Make the planes of a block of BLOCK packed outputs and BLOCK inputs."""
    plane = _wide(plane)
    tiles_i = pitch // BLOCK
    pid = tl.program_id(0)
    row_tile = (pid // tiles_i).to(tl.int64)
    first_i = pid % tiles_i * BLOCK
    k = row_tile // tiles_o
    OUTPUTS: tl.constexpr = BLOCK // 2 if HAS_IM else BLOCK
    offs_o = (row_tile % tiles_o) * OUTPUTS + tl.arange(0, OUTPUTS)
    offs_i = first_i + tl.arange(0, BLOCK)
    mask_i = offs_i < I
    mask = (offs_o < O)[:, None] & mask_i[None, :]
    offs = (k * O + offs_o)[:, None] * I + offs_i[None, :]
    w_re = tl.load(wre_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    largest = tl.max(finite_size(w_re))
    if HAS_IM:
        w_im = tl.load(wim_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(finite_size(w_im)))
    scale, inverse = scales(largest * 4.0, _WEIGHT_LIMIT)  # pi times it still fits
    tl.store(scale_ptr + pid, inverse)
    output = tl.arange(0, OUTPUTS)
    if HAS_IM:
        row = 2 * output
    else:
        row = output % _QUARTER * 4 + output // _QUARTER % 2 * 2 + output // _HALF
    rows = row_tile * BLOCK + row
    to = rows[:, None] * pitch + offs_i[None, :]
    _store_planes(w_re * scale, planes_ptr + to, plane, LOW)
    if HAS_IM:
        _store_planes(w_im * scale, planes_ptr + pitch + to, plane, LOW)
    if PHASE:
        turn = tl.full([BLOCK], PI, tl.float32)
        if HAS_GATE:
            gate = tl.load(gate_ptr + k * I + offs_i, mask=mask_i, other=0.0).to(tl.float32)
            turn *= clamp_gate(gate)
        phase_ptr = planes_ptr + 2 * plane
        if HAS_IM:  # P takes -pi ghat Wi, Q takes pi ghat Wr
            _store_planes(-w_im * turn[None, :] * scale, phase_ptr + to, plane, LOW)
            phase_ptr += pitch
        _store_planes(w_re * turn[None, :] * scale, phase_ptr + to, plane, LOW)


@triton.jit
def _times(grad_y_ptr, factor_ptr, first_o, offs_b, mask_b, O, OUTPUTS: tl.constexpr):
    """The product of grad_y and y or s, of OUTPUTS outputs."""
    offs_o = first_o + tl.arange(0, OUTPUTS)
    mask = mask_b[:, None] & (offs_o < O)[None, :]
    offs = offs_b[:, None] * O + offs_o[None, :]
    grad_y = tl.load(grad_y_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    return grad_y * tl.load(factor_ptr + offs, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _times_by_quarters(grad_y_ptr, factor_ptr, first_o, offs_b, mask_b, O):
    """The product of grad_y and y or s, of a tile whose four quarters alternate."""
    first = _times(grad_y_ptr, factor_ptr, first_o, offs_b, mask_b, O, _QUARTER)
    second = _times(grad_y_ptr, factor_ptr, first_o + _QUARTER, offs_b, mask_b, O, _QUARTER)
    third = _times(grad_y_ptr, factor_ptr, first_o + 2 * _QUARTER, offs_b, mask_b, O, _QUARTER)
    fourth = _times(grad_y_ptr, factor_ptr, first_o + 3 * _QUARTER, offs_b, mask_b, O, _QUARTER)
    return tl.interleave(tl.interleave(first, second), tl.interleave(third, fourth))


@triton.jit(do_not_specialize=["B", "tiles_b", "plane", "scale_plane"])
def npu_upstream_planes_kernel(
    grad_y_ptr,  # [K, B, O]
    y_ptr, s_ptr,
    row_planes_ptr,  # [2, K Bp, N]: hi, lo of dP and dQ; without HAS_IM of dP
    row_scale_ptr,  # 1 / scale, [K, N / BLOCK, Bp]
    column_planes_ptr,  # the same; without HAS_IM dP, then dQ
    column_scale_ptr,  # [1 or 2, K Bp / BLOCK, N]
    B, O,
    packed,  # N
    tiles_b, plane,
    scale_plane,  # elements of the scales of dP
    HAS_IM: tl.constexpr, BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Make the planes of BLOCK rows and BLOCK packed outputs, with scales by row and by column.

    Without an imaginary weight, programs that make planes by column take turns with dP and dQ.
    """
    plane = _wide(plane)
    tiles_n = packed // BLOCK
    pid = tl.program_id(0)
    part = pid * 0
    if BY_COLUMN and not HAS_IM:
        part = pid % 2
        pid = pid // 2
    n_tile = pid % tiles_n
    row_tile = (pid // tiles_n).to(tl.int64)
    k = row_tile // tiles_b
    first_b = row_tile % tiles_b * BLOCK
    offs_b = tl.arange(0, BLOCK)
    mask_b = offs_b < B - first_b
    start = (k * B + first_b) * O
    grad_y_ptr += start
    y_ptr += start
    s_ptr += start
    if HAS_IM:
        d = _times(grad_y_ptr, y_ptr, n_tile * _HALF, offs_b, mask_b, O, _HALF)
        d = tl.interleave(d, -_times(grad_y_ptr, s_ptr, n_tile * _HALF, offs_b, mask_b, O, _HALF))
    else:
        factor_ptr = y_ptr
        sign = 1.0
        if part == 1:
            factor_ptr = s_ptr
            sign = -1.0
        d = sign * _times_by_quarters(grad_y_ptr, factor_ptr, n_tile * BLOCK, offs_b, mask_b, O)
    offs = row_tile * BLOCK * packed + n_tile * BLOCK
    offs = offs + offs_b[:, None] * packed + tl.arange(0, BLOCK)[None, :]
    if BY_ROW:
        if part == 0:
            to = ((k * tiles_n + n_tile) * tiles_b + row_tile % tiles_b) * BLOCK
            _store_upstream(d, row_planes_ptr + offs, row_scale_ptr + to, plane, 1, LOW)
    if BY_COLUMN:
        to = part.to(tl.int64) * scale_plane + row_tile * packed + n_tile * BLOCK
        offs = 2 * part.to(tl.int64) * plane + offs
        _store_upstream(d, column_planes_ptr + offs, column_scale_ptr + to, plane, 0, LOW)


@triton.jit
def _store_upstream(d, ptrs, scale_ptr, plane, AXIS: tl.constexpr, LOW: tl.constexpr):
    """Store a tile's planes and inverse scales; elements along AXIS share a scale."""
    scale, inverse = scales(tl.max(finite_size(d), axis=AXIS), _UPSTREAM_LIMIT)
    tl.store(scale_ptr + tl.arange(0, BLOCK), inverse)
    _store_planes(d * tl.expand_dims(scale, AXIS), ptrs, plane, LOW)


class Padded(NamedTuple):
    """Sizes in tiles."""

    tiles_b: int  # rows of a model
    tiles_n: int  # packed outputs of a model
    tiles_i: int  # inputs
    models_x: int  # models with separate planes of x

    @property
    def pitch(self) -> int:
        """Padded inputs."""
        return self.tiles_i * TILE

    @property
    def packed(self) -> int:
        """Packed outputs of a model, padded."""
        return self.tiles_n * TILE


def padded(sizes: Sizes, imaginary: bool, gated: bool) -> Padded:
    """The padded sizes; with `gated` log r differs between models that share x."""
    models_x = 1 if sizes.shared_x and not gated else sizes.K
    outputs = TILE // 2 if imaginary else TILE
    return Padded(-(-sizes.B // TILE), -(-sizes.O // outputs), -(-sizes.I // TILE), models_x)


class InputPlanes(NamedTuple):
    """The planes of log r and of the mask, and the steps with negative inputs."""

    planes: Tensor  # [3 models_x tiles_b TILE, pitch]
    blocks: Tensor  # [models_x tiles_b, pitch / max(FLAG_INPUTS, depth)]
    counts: Tensor  # [models_x tiles_b]
    flags: Tensor  # as blocks


def input_planes(
    x: Tensor, gate: Tensor | None, eps: float, sizes: Sizes, shape: Padded, low: bool, depth: int
) -> InputPlanes:
    """Make the planes of x in one launch; x and gate contiguous; `depth` of a product's step."""
    tiles = shape.models_x * shape.tiles_b
    planes = x.new_empty((3 * tiles * TILE, shape.pitch), dtype=torch.float16)
    step = max(FLAG_INPUTS, depth)
    # Tensors by themselves: each begins at a multiple of 16 bytes, whatever the sizes.
    blocks = x.new_empty((tiles, shape.pitch // step), dtype=torch.int32)
    flags = x.new_empty((tiles, shape.pitch // step), dtype=torch.int32)
    counts = x.new_empty((tiles,), dtype=torch.int32)
    start(
        npu_x_planes_kernel, tiles, OPTIONS, x, gate, planes, blocks, counts, flags, sizes.B,
        sizes.I, shape.pitch, shape.tiles_b, tiles * TILE * shape.pitch, eps, sizes.shared_x,
        gate is not None, low, step,
    )  # fmt: skip
    return InputPlanes(planes, blocks, counts, flags)


def weight_planes(
    weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None,
    sizes: Sizes, shape: Padded, phase: bool, low: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Planes ``[2 K N, Ip]``, with `phase` ``[4 K N, Ip]``, and inverse scales; one launch."""
    rows = sizes.K * shape.packed
    planes = weight_re.new_empty(((4 if phase else 2) * rows, shape.pitch), dtype=torch.float16)
    scale = weight_re.new_empty((sizes.K * shape.tiles_n, shape.tiles_i), dtype=torch.float32)
    start(
        npu_weight_planes_kernel, sizes.K * shape.tiles_n * shape.tiles_i, OPTIONS,
        weight_re, weight_im, gate, planes, scale, sizes.O, sizes.I, shape.pitch, shape.tiles_n,
        rows * shape.pitch, weight_im is not None, gate is not None, phase, low,
    )  # fmt: skip
    return planes, scale


class UpstreamPlanes(NamedTuple):
    """The planes of dP and dQ, scaled by rows and by columns; empty where not needed."""

    by_row: Tensor  # [2 K tiles_b TILE, packed]
    row_scale: Tensor  # [K, tiles_n, tiles_b TILE]
    by_column: Tensor  # [2 or 4 K tiles_b TILE, packed]
    column_scale: Tensor  # [1 or 2, K tiles_b, packed]


def upstream_planes(
    grad_y: Tensor, y: Tensor, s: Tensor, imaginary: bool, sizes: Sizes, shape: Padded,
    by_row: bool, by_column: bool, low: bool,
) -> UpstreamPlanes:  # fmt: skip
    """Make planes by row and by column in one launch; all tensors contiguous."""
    tiles = sizes.K * shape.tiles_b
    rows, parts = tiles * TILE, 1 if imaginary else 2

    def empty(needed: bool, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return y.new_empty(size if needed else (0,), dtype=dtype)

    result = UpstreamPlanes(
        empty(by_row, (2 * rows, shape.packed), torch.float16),
        empty(by_row, (sizes.K, shape.tiles_n, shape.tiles_b * TILE), torch.float32),
        empty(by_column, (2 * parts * rows, shape.packed), torch.float16),
        empty(by_column, (parts, tiles, shape.packed), torch.float32),
    )
    if by_row or by_column:
        start(
            npu_upstream_planes_kernel, tiles * shape.tiles_n * (parts if by_column else 1),
            OPTIONS, grad_y, y, s, *result, sizes.B, sizes.O, shape.packed, shape.tiles_b,
            rows * shape.packed, tiles * shape.packed, imaginary, by_row, by_column, low,
        )  # fmt: skip
    return result
