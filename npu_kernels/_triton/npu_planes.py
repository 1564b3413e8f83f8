"""Operands of the large layers' matrix products: planes of float16, and their scales.

A float32 value times a power of two is the sum of two float16 planes to 22 bits, ``hi + lo``. Three
of the four products of two sums, ``hi hi + lo hi + hi lo``, carry the error of one float32 product
(`npu_large` adds them up). A value below ``2**-39`` of the largest that shares its scale counts as
0.

====================== ============= ============================================================
planes                 shape of each scale
====================== ============= ============================================================
``log r``, hi and lo   [K Bp, Ip]    2**8, because ``|log r| < 104`` in float32
mask of ``x < 0``      [K Bp, Ip]    2**8: 0 or 256
weights, hi and lo     [K N, Ip]     forward one for each output, backward one for each input
their phase, hi and lo [K N, Ip]     the weights' scale: the phase is ``pi ghat`` times the weights
dP and dQ by rows      [K Bp, N]     one for each row of a block of TILE columns
dP and dQ by columns   [K Bp, N]     one for each column of a block of TILE rows
====================== ============= ============================================================

A scale is at most 2**109.

Bp, Ip, N are B, I and the packed outputs, padded with zeros to a multiple of TILE, so that products
need no masks. Packed outputs: with an imaginary weight a tile of TILE alternates between P and Q of
TILE / 2 outputs: one product makes both, and a kernel has them apart without moving anything
between threads. Without an imaginary weight a tile has TILE outputs, and its four quarters
alternate (0, 64, 32, 96, 1, 65, ...), so that a kernel can finish them one after the other. dP and
dQ are ``grad_y y`` and ``-grad_y s`` (`npu`).

The hi of an infinite or NaN value is that value, its lo is 0, and no scale depends on it. Nor does
one of the forward depend on weights of inputs whose gate is closed: log r is 0 there.
"""

# ruff: noqa: SIM102 (an `if` on a compile-time constant stands alone, see device_math)

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from npu_kernels._triton.device_math import PI, clamp_gate, loop_end, magnitude
from npu_kernels._triton.launch import Sizes
from npu_kernels._triton.tape import start

Tensor = torch.Tensor

TILE = 128  # rows and columns of the products' tiles
FLAG_ROWS = 64  # rows and TILE inputs share a flag: whether one of them is negative
BLOCK = tl.constexpr(TILE)
_HALF = tl.constexpr(TILE // 2)
_QUARTER = tl.constexpr(TILE // 4)
_FLAG_ROWS = tl.constexpr(FLAG_ROWS)
FLAGS_OF_PROGRAM = 16  # tiles that a program looks at, and computes again where they are flagged
LOG_SCALE = tl.constexpr(256.0)
_LIMIT = tl.constexpr(109)  # exponent of the largest scale
MIN_INVERSE = tl.constexpr(2.0**-109)  # of a scale: all values are 0 or below 2**-94
_MIN_SUM = tl.constexpr(2.0**-6)  # 2**8 units, times 2**-14: see `npu_large`
# With 8 warps the upstream planes take so many registers that a multiprocessor holds one program.
OPTIONS = {"num_warps": 16, "num_stages": 1, "enable_fp_fusion": True}


class WeightTiles(NamedTuple):
    """The tiles of weights that a program reads at once."""

    narrow: int  # that do not share a scale
    wide: int  # that do
    warps: int

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of Triton's compiler."""
        return OPTIONS | {"num_warps": self.warps}


FORWARD_WEIGHTS = WeightTiles(8, 128, 4)
BACKWARD_WEIGHTS = WeightTiles(16, 128, 4)
HI, HI_LO = 1, 2  # the planes of a value


@triton.jit
def scales(largest):
    """Powers of two ``t, 1 / t`` with ``largest t < 2**15``; t is at most ``2**109``."""
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.minimum(tl.maximum(exponent, 141 - _LIMIT), 254)
    scale = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale, ((exponent - 14) << 23).to(tl.float32, bitcast=True)


@triton.jit
def load_tile(
    planes, row, col, pitch, ROWS: tl.constexpr, COLS: tl.constexpr, DESCRIPTORS: tl.constexpr
):
    """Return ``planes[row : row + ROWS, col : col + COLS]``."""
    if DESCRIPTORS:
        tile = planes.load([row.to(tl.int32), col])
    else:
        offs = tl.arange(0, ROWS)[:, None] * pitch + tl.arange(0, COLS)[None, :]
        tile = tl.load(planes + row.to(tl.int64) * pitch + col + offs)
    return tile


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
def _store_planes(v, ptrs, plane, COUNT: tl.constexpr, mask=None):
    """Store hi of a scaled tile, and with 2 planes lo, `plane` elements after hi."""
    hi, lo = two_planes(v)
    tl.store(ptrs, hi, mask=mask)
    if COUNT == 2:
        tl.store(ptrs + plane, lo, mask=mask)


@triton.jit
def _wide(plane):
    """The elements of a plane in 64 bits; offsets of several planes exceed 32.

    The compiler joins stores if a divisor of their offsets is known.
    """
    return tl.multiple_of(plane.to(tl.int64), BLOCK)


@triton.jit(do_not_specialize=["B", "tiles_b", "tiles_i", "plane"])
def npu_x_planes_kernel(
    x_ptr,  # [K, B, I], or [B, I] with SHARED_X
    gate_ptr,  # [K, I]
    planes_ptr,  # [3, K Bp, Ip]: hi and lo of log r, mask; [2, ...] without lo
    flags_ptr,  # [K tiles_b, tiles_i]: 1 for a tile with a negative input, else 0
    B,
    I,
    tiles_b,  # tiles of FLAG_ROWS rows
    tiles_i,  # tiles of BLOCK inputs
    plane,  # elements of a plane
    EPS: tl.constexpr,
    SHARED_X: tl.constexpr,
    HAS_GATE: tl.constexpr,
    PLANES: tl.constexpr,
):
    """Make the planes of FLAG_ROWS rows and BLOCK inputs of a model."""
    plane = _wide(plane)
    pid = tl.program_id(0)
    row_tile = (pid // tiles_i).to(tl.int64)
    i = pid % tiles_i * BLOCK
    k = row_tile // tiles_b
    first_b = row_tile % tiles_b * _FLAG_ROWS
    offs_b, offs_i = tl.arange(0, _FLAG_ROWS), tl.arange(0, BLOCK)
    x_ptr += first_b * I + i
    if not SHARED_X:
        x_ptr += k * B * I
    mask_i = offs_i < I - i
    mask = (offs_b < B - first_b)[:, None] & mask_i[None, :]
    x = tl.load(x_ptr + offs_b[:, None] * I + offs_i[None, :], mask=mask, other=1.0)
    x = x.to(tl.float32)
    if HAS_GATE:
        gate = tl.load(gate_ptr + k * I + i + offs_i, mask=mask_i, other=0.0)
        ghat = clamp_gate(gate.to(tl.float32))
    else:
        ghat = tl.full([BLOCK], 1.0, tl.float32)
    logs = tl.log(magnitude(x, ghat[None, :], EPS))
    negative = x < 0
    pitch = tiles_i * BLOCK
    to = planes_ptr + row_tile * _FLAG_ROWS * pitch + i
    to += offs_b[:, None] * pitch + offs_i[None, :]
    _store_planes(tl.where(mask, logs, 0.0) * LOG_SCALE, to, plane, PLANES)
    tl.store(to + PLANES * plane, tl.where(negative, LOG_SCALE, 0.0).to(tl.float16))
    tl.store(flags_ptr + pid, tl.max(negative.to(tl.int32)))


@triton.jit
def _weights(
    wre_ptr,
    wim_ptr,
    gate_ptr,
    k,
    offs_o,
    offs_i,
    O,
    I,
    HAS_IM: tl.constexpr,
    HAS_GATE: tl.constexpr,
):
    """Real and imaginary weights of a tile, their sizes, and ``ghat``.

    Finite weights of an input whose gate is closed are 0: their sums are 0, whatever their size.
    """
    mask_i = offs_i < I
    mask = (offs_o < O)[:, None] & mask_i[None, :]
    offs = (k * O + offs_o)[:, None] * I + offs_i[None, :]
    w_re = tl.load(wre_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    if HAS_IM:
        w_im = tl.load(wim_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    else:
        w_im = tl.zeros_like(w_re)
    ghat = tl.full([offs_i.shape[0]], 1.0, tl.float32)
    if HAS_GATE:
        gate = tl.load(gate_ptr + k * I + offs_i, mask=mask_i, other=0.0).to(tl.float32)
        ghat = clamp_gate(gate)
        closed = (ghat == 0)[None, :]
        w_re = tl.where(closed, w_re - w_re, w_re)
        w_im = tl.where(closed, w_im - w_im, w_im)
    size = tl.maximum(finite_size(w_re), finite_size(w_im))
    return w_re, w_im, size, ghat


@triton.jit(do_not_specialize=["plane"])
def npu_weight_planes_kernel(
    wre_ptr,  # [K, O, I]
    wim_ptr,  # [K, O, I]
    gate_ptr,  # [K, I]
    planes_ptr,  # [4, K N, Ip]: hi, lo of the weights, of their phase; [2, K N, Ip] without PHASE
    scale_ptr,  # 1 / scale: with PHASE of each output, [K, outputs], else of each input, [K, Ip]
    bound_ptr,  # [K, Ip], without PHASE: sums that may be inaccurate, see `npu_large`
    O,
    I,
    pitch,
    outputs,  # O, padded
    plane,  # elements of a plane
    HAS_IM: tl.constexpr,
    HAS_GATE: tl.constexpr,
    PHASE: tl.constexpr,
    PLANES: tl.constexpr,
    NARROW: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Make the planes of NARROW outputs and all inputs (PHASE), or NARROW inputs and all outputs.

    So a program has all weights that share a scale: it reads them twice, in steps of WIDE.
    """
    plane = _wide(plane)
    OUTPUTS: tl.constexpr = NARROW if PHASE else WIDE
    INPUTS: tl.constexpr = WIDE if PHASE else NARROW
    AXIS: tl.constexpr = 1 if PHASE else 0
    length = pitch if PHASE else outputs
    strips = (outputs if PHASE else pitch) // NARROW
    pid = tl.program_id(0)
    k = (pid // strips).to(tl.int64)
    first = pid % strips * NARROW
    largest = tl.zeros([NARROW], tl.float32)
    smallest = tl.full([NARROW], 3.4028234663852886e38, tl.float32)
    for step in range(loop_end(tl.cdiv(length, WIDE))):
        offs_o = (first if PHASE else step * WIDE) + tl.arange(0, OUTPUTS)
        offs_i = (step * WIDE if PHASE else first) + tl.arange(0, INPUTS)
        w_re, w_im, size, ghat = _weights(
            wre_ptr, wim_ptr, gate_ptr, k, offs_o, offs_i, O, I, HAS_IM, HAS_GATE and PHASE
        )
        largest = tl.maximum(largest, tl.max(size, axis=AXIS))
        if not PHASE:
            if HAS_GATE:  # what a closed input adds to Q is 0, so its dQ may be 0 where dP is not
                gate = tl.load(gate_ptr + k * I + offs_i, mask=offs_i < I, other=1.0)
                closed = clamp_gate(gate.to(tl.float32)) == 0
                size = tl.where(closed[None, :], finite_size(w_re), size)
            size = tl.where((offs_o < O)[:, None], size, 3.4028234663852886e38)
            smallest = tl.minimum(smallest, tl.min(size, axis=0))
    # pi times a weight must fit too
    scale, inverse = scales(largest * 4.0 if PHASE else largest)
    offs = k * (strips * NARROW) + first + tl.arange(0, NARROW)
    tl.store(scale_ptr + offs, inverse)
    if not PHASE:
        uneven = (smallest * scale < 1.0) & (largest > 0)  # else an input is exempt
        tl.store(bound_ptr + offs, tl.where(uneven, _MIN_SUM, 0.0))
    scale = tl.expand_dims(scale, AXIS)
    packed = outputs * 2 if HAS_IM else outputs
    for step in range(loop_end(tl.cdiv(length, WIDE))):
        offs_o = (first if PHASE else step * WIDE) + tl.arange(0, OUTPUTS)
        offs_i = (step * WIDE if PHASE else first) + tl.arange(0, INPUTS)
        w_re, w_im, size, ghat = _weights(
            wre_ptr, wim_ptr, gate_ptr, k, offs_o, offs_i, O, I, HAS_IM, HAS_GATE and PHASE
        )
        if HAS_IM:
            row = 2 * offs_o
        else:
            row = offs_o % _QUARTER * 4 + offs_o // _QUARTER % 2 * 2 + offs_o // _HALF % 2
            row += offs_o // BLOCK * BLOCK
        to = (k * packed + row)[:, None] * pitch + offs_i[None, :]
        mask = (offs_i < pitch)[None, :] if PHASE else (offs_o < outputs)[:, None]
        _store_planes(w_re * scale, planes_ptr + to, plane, PLANES, mask)
        if HAS_IM:
            _store_planes(w_im * scale, planes_ptr + pitch + to, plane, PLANES, mask)
        if PHASE:
            turn = (ghat * PI)[None, :]
            phase_ptr = planes_ptr + PLANES * plane
            if HAS_IM:  # P takes -pi ghat Wi, Q takes pi ghat Wr
                _store_planes(-w_im * turn * scale, phase_ptr + to, plane, PLANES, mask)
                phase_ptr += pitch
            _store_planes(w_re * turn * scale, phase_ptr + to, plane, PLANES, mask)


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
    y_ptr,
    s_ptr,
    row_planes_ptr,  # [1 or 2, K Bp, N]: hi, lo of dP and dQ; without HAS_IM of dP
    row_scale_ptr,  # 1 / scale, [K, N / BLOCK, Bp]
    column_planes_ptr,  # the same; without HAS_IM dP, then dQ
    column_scale_ptr,  # [1 or 2, K Bp / BLOCK, N]
    B,
    O,
    packed,  # N
    tiles_b,
    plane,  # elements of a plane
    scale_plane,  # elements of the scales of dP
    HAS_IM: tl.constexpr,
    BY_ROW: tl.constexpr,
    BY_COLUMN: tl.constexpr,
    PLANES: tl.constexpr,
):
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
    to = row_tile * BLOCK * packed + n_tile * BLOCK
    to += offs_b[:, None] * packed + tl.arange(0, BLOCK)[None, :]
    if BY_ROW:
        if part == 0:
            ptrs = row_scale_ptr + ((k * tiles_n + n_tile) * tiles_b + row_tile % tiles_b) * BLOCK
            _store_upstream(d, row_planes_ptr + to, ptrs, plane, 1, PLANES)
    if BY_COLUMN:
        ptrs = column_scale_ptr + part.to(tl.int64) * scale_plane
        ptrs += row_tile * packed + n_tile * BLOCK
        if not HAS_IM:
            to += PLANES * part.to(tl.int64) * plane
        _store_upstream(d, column_planes_ptr + to, ptrs, plane, 0, PLANES)


@triton.jit
def _store_upstream(d, ptrs, scale_ptr, plane, AXIS: tl.constexpr, PLANES: tl.constexpr):
    """Store a tile's planes and inverse scales; elements along AXIS share a scale."""
    scale, inverse = scales(tl.max(finite_size(d), axis=AXIS))
    tl.store(scale_ptr + tl.arange(0, BLOCK), inverse)
    _store_planes(d * tl.expand_dims(scale, AXIS), ptrs, plane, PLANES)


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
    """The planes of log r and of the mask, and which tiles have negative inputs."""

    planes: Tensor  # [3 models_x tiles_b TILE, pitch] at HI_LO
    flags: Tensor  # [models_x tiles_b TILE / FLAG_ROWS, tiles_i]


def _planes(like: Tensor, count: int, rows: int, cols: int) -> Tensor:
    """Return new planes, one after the other."""
    return like.new_empty((count * rows, cols), dtype=torch.float16)


def input_planes(
    x: Tensor, gate: Tensor | None, eps: float, sizes: Sizes, shape: Padded, count: int
) -> InputPlanes:
    """Make the mask and HI or HI_LO planes of log r in one launch; operands contiguous."""
    tiles = shape.models_x * shape.tiles_b * (TILE // FLAG_ROWS)
    rows = tiles * FLAG_ROWS
    planes = _planes(x, count + 1, rows, shape.pitch)
    flags = x.new_empty((tiles, shape.tiles_i), dtype=torch.int32)
    start(
        npu_x_planes_kernel,
        tiles * shape.tiles_i,
        OPTIONS,
        (x, gate, planes, flags),
        (sizes.B, sizes.I, tiles // shape.models_x, shape.tiles_i, rows * shape.pitch),
        (eps, sizes.shared_x, gate is not None, count),
    )
    return InputPlanes(planes, flags)


class WeightPlanes(NamedTuple):
    """The planes of the weights, their scales, and where results may be inaccurate."""

    planes: Tensor  # [2 K N, pitch] at HI_LO, with their phase [4 K N, pitch]
    scale: Tensor  # 1 / scale, of outputs with their phase, else of inputs
    bound: Tensor | None  # of inputs, without their phase


def weight_planes(
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    sizes: Sizes,
    shape: Padded,
    phase: bool,
    count: int,
) -> WeightPlanes:
    """Make the planes in one launch: with `phase` for the forward, else for the backward."""
    rows = sizes.K * shape.packed
    planes = _planes(weight_re, (1 + phase) * count, rows, shape.pitch)
    outputs = shape.packed if weight_im is None else shape.packed // 2
    length = outputs if phase else shape.pitch
    scale = weight_re.new_empty((sizes.K, length), dtype=torch.float32)
    bound = None if phase else weight_re.new_empty((sizes.K, length), dtype=torch.float32)
    tiles = FORWARD_WEIGHTS if phase else BACKWARD_WEIGHTS
    start(
        npu_weight_planes_kernel,
        sizes.K * length // tiles.narrow,
        tiles.options,
        (weight_re, weight_im, gate, planes, scale, bound),
        (sizes.O, sizes.I, shape.pitch, outputs, rows * shape.pitch),
        (weight_im is not None, gate is not None, phase, count, tiles.narrow, tiles.wide),
    )
    return WeightPlanes(planes, scale, bound)


class UpstreamPlanes(NamedTuple):
    """The planes of dP and dQ, scaled by rows and by columns; empty where not needed."""

    by_row: Tensor  # [2 K tiles_b TILE, packed] at HI_LO
    row_scale: Tensor  # [K, tiles_n, tiles_b TILE]
    by_column: Tensor  # [2 or 4 K tiles_b TILE, packed] at HI_LO
    column_scale: Tensor  # [1 or 2, K tiles_b, packed]


def upstream_planes(
    grad_y: Tensor,
    y: Tensor,
    s: Tensor,
    imaginary: bool,
    sizes: Sizes,
    shape: Padded,
    by_row: bool,
    by_column: bool,
    count: int,
) -> UpstreamPlanes:
    """Make planes by row and by column in one launch; tensors contiguous."""
    tiles, parts = sizes.K * shape.tiles_b, 1 if imaginary else 2
    rows = tiles * TILE
    by_rows = _planes(y, count * by_row, rows, shape.packed)
    columns = _planes(y, count * parts * by_column, rows, shape.packed)
    row_scale = y.new_empty(
        (sizes.K, shape.tiles_n, rows // sizes.K) if by_row else (0, 0), dtype=torch.float32
    )
    column_scale = y.new_empty(
        (parts, tiles, shape.packed) if by_column else (0, 0), dtype=torch.float32
    )
    result = UpstreamPlanes(by_rows, row_scale, columns, column_scale)
    if by_row or by_column:
        start(
            npu_upstream_planes_kernel,
            tiles * shape.tiles_n * (parts if by_column else 1),
            OPTIONS,
            (grad_y, y, s, *result),
            (
                sizes.B,
                sizes.O,
                shape.packed,
                shape.tiles_b,
                *(n * shape.packed for n in (rows, tiles)),
            ),
            (imaginary, by_row, by_column, count),
        )
    return result
