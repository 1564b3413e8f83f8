"""Forward and backward of large layers: operands made once (`npu_planes`), then products of planes.

The formulas are those of `npu`. Its kernels compute logarithms, masks and splits again for every
tile of outputs; here they are made once, and the loops of the three product kernels only load and
multiply:

==================== ================== ==================== ============== ======================
kernel               left               right                sums over      result
==================== ================== ==================== ============== ======================
npu_large_forward    log r, mask        weights, their phase inputs         P, Q: y, s of a tile
npu_large_backward_x dP, dQ, by rows    weights              packed outputs dL: grad_x, gate part
npu_large_backward_w dP, dQ, by columns log r, mask          rows           weights' and gate part
==================== ================== ==================== ============== ======================

A product of two values is three of planes with PRODUCTS = 3, and two with the mask, which is exact
in one plane; PRODUCTS = 1 takes hi alone. Matrix units truncate when they add, and a long sum in
them would drift. So products hi hi start from zero in each step of depth DEPTH, and are added to
the tile's sum in float32, in the backward times an inverse scale. The forward adds the others, with
a factor lo, in one long sum on the matrix units, whose steps overlap. A step has one product of
planes; in backward_x it has all three.

A row of dP and dQ has one scale, so that values far below the row's largest keep few bits or none
(`npu_planes`). In dL this matters where all of the largest values meet weights that are 0 or
small. So backward_x flags a tile that has a sum below ``2**8`` units, products of the inverse
scales; a value near the largest times a weight near the largest is ``2**28`` units or more, and
what is lost about ``2**-11`` for each term. A fused kernel computes flagged tiles again. An
input is exempt if no weight of it is below ``2**-14`` of its largest one, nor, if its gate is
closed, a real weight: then the largest value of a row meets a weight, and a small sum is one of
large terms that cancel, which costs float32 as many bits. (Where that value is a dQ and the weight
a real one, dP is tiny because of its cosine, whose rounding error is as large as what is lost.
Where it is a dP and the weight an imaginary one, dQ could be tiny only if ``Q`` is about 0, in
spite of this weight.) In layers of random weights one sum in a million is so small, and of inputs
to O outputs a part of about ``2**-14.5 O`` is not exempt without an imaginary weight, ``2**-29 O``
with one: up to 2048 outputs, a sum flags its tile needlessly with a probability of at most 1e-7. A
sum just above the threshold has an error of up to ``2**-16``.

The forward multiplies no mask for tiles of inputs without a negative input in the tile's rows, and
backward_w none for those without one in the program's rows.

Where the chip copies tiles itself (compute capability 9.0 and more) tensor descriptors read the
operands, elsewhere pointers. The forward and backward_x start as many programs as fit the chip at
once, which take one tile after the other: one on each multiprocessor, or two with tiles of 64 rows.

The planes are freed after each pass; the backward makes those of x and the weights again. They take
6 bytes for each input and 8 for each weight in the forward, and in the backward 16 more for each
output.

Valid range: see `npu_planes` for what is too small; an infinite input gives NaN in the forward
where its weight is too small. The gradient of a weight keeps fewer bits if the rows of a tile
whose dP or dQ exceed ``2**17`` times those of the others add exactly 0 to it, and is 0 beyond
``2**39``. They do where log r of its input is 0 (``|x| + eps`` is 1) and, in the gradient of an
imaginary weight, where no input of the row is negative while all imaginary weights are 0: the sine
is 0 there, and so is the mask. A gradient of x overflows where a row's sum of dP and dQ times the
weights, each divided by the input's largest weight, exceeds 1.7e38. Everything else as in `npu`.
"""

# ruff: noqa: SIM102, SIM108 (an `if` on a compile-time constant stands alone, see device_math)

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from npu_kernels._operators.precision import float32_matmul_precision
from npu_kernels._triton import for_graph, tuning
from npu_kernels._triton.costs import large_is_faster
from npu_kernels._triton.device_math import (
    clamp_gate,
    exp_accurate,
    loop_end,
    magnitude,
    signum,
    sincos,
)
from npu_kernels._triton.launch import Sizes, needed
from npu_kernels._triton.npu_planes import (
    BLOCK,
    FLAG_ROWS,
    FLAGS_OF_PROGRAM,
    HI,
    HI_LO,
    LOG_SCALE,
    MIN_INVERSE,
    TILE,
    input_planes,
    load_tile,
    padded,
    upstream_planes,
    weight_planes,
)
from npu_kernels._triton.reduction import Gradients, store_weight_gradients
from npu_kernels._triton.tape import start

# ---- the forward ----

_FLAG_ROWS = tl.constexpr(FLAG_ROWS)
MIN_FLAGS = 32  # read at once: so layers of up to 4096 inputs share a kernel of the forward
_MIN_FLAGS = tl.constexpr(MIN_FLAGS)


@triton.jit
def _flagged(flags_ptr, tiles_i, FLAGS: tl.constexpr, ROWS: tl.constexpr):
    """The place of each tile of inputs among those with a negative one, -1 for others; how many.

    The tile has ROWS rows; `flags_ptr` points to the first flag of its first row.
    """
    offs = tl.arange(0, FLAGS)
    flagged = tl.zeros([FLAGS], tl.int32)
    for part in tl.static_range(ROWS // _FLAG_ROWS):
        ptrs = flags_ptr + part * tiles_i + offs
        flagged = tl.maximum(flagged, tl.load(ptrs, mask=offs < tiles_i, other=0))
    return tl.where(flagged > 0, tl.cumsum(flagged) - 1, -1), tl.sum(flagged)


@triton.jit
def _add_terms(
    acc,
    logs,
    weights,
    places,  # of tiles of inputs among those that the mask is multiplied for
    begin,
    end,
    row,  # the tile's first in a plane of x
    packed,  # the tile's first in a plane of the weights
    steps,
    rows_x,  # of a plane of x
    rows_w,
    pitch,
    PLANES: tl.constexpr,  # of a value: hi, lo or hi
    LOW: tl.constexpr,
    FRESH: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """Add products of planes to a tile, one of depth DEPTH in each turn from `begin` to `end`.

    `steps` turns multiply hi by hi of all inputs, further ones the mask by hi of the tiles of
    inputs that have a place.
    With LOW `steps` turns multiply lo by hi, as many hi by lo, further ones the mask by lo.
    FRESH: matrix units truncate when they add, so each product starts from zero.
    """
    PARTS: tl.constexpr = BLOCK // DEPTH  # turns for a tile of inputs
    offs = tl.arange(0, places.shape[0])
    first = 2 * steps if LOW else steps  # turn with the mask
    unit = tl.where(steps > 0, 1.0, 0.0)  # 1, unknown to the compiler, which would join the sums
    for turn in range(loop_end(begin), loop_end(end)):
        place = turn - first
        masked = (place >= 0).to(tl.int32)
        plane_x, plane_w = masked * PLANES, masked * PLANES
        tile = tl.sum(tl.where(places == place // PARTS, offs, 0))
        i = (1 - masked) * turn * DEPTH + masked * (tile * BLOCK + place % PARTS * DEPTH)
        if LOW:
            second = (turn >= steps).to(tl.int32)
            plane_x, plane_w = plane_x + (1 - second), plane_w + second
            i -= (second - masked) * steps * DEPTH
        x = load_tile(logs, row + plane_x * rows_x, i, pitch, ROWS, DEPTH, DESCRIPTORS)
        w = tl.trans(
            load_tile(weights, packed + plane_w * rows_w, i, pitch, BLOCK, DEPTH, DESCRIPTORS)
        )
        if FRESH:
            acc = tl.fma(tl.dot(x, w), unit, acc)
        else:
            acc = tl.dot(x, w, acc)
    return acc


@triton.jit
def _forward_sums(
    logs,
    weights,
    places,
    count,
    row,
    packed,
    steps,
    rows_x,
    rows_w,
    pitch,
    PLANES: tl.constexpr,
    HAS_IM: tl.constexpr,
    ROWS: tl.constexpr,
    PRODUCTS: tl.constexpr,
    DEPTH: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """The scaled sums with log r and with the mask; with HAS_IM the second has both, packed.

    First the small terms, which have a factor lo, in one long sum: what it loses is smaller still.
    """
    turns = count * (BLOCK // DEPTH)  # with the mask
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    other = tl.zeros([ROWS, BLOCK], tl.float32)
    for low in tl.static_range(1 if PRODUCTS == 3 else 0, -1, -1):
        first = (1 + low) * steps
        acc = _add_terms(
            acc, logs, weights, places, 0 * steps, first + turns if HAS_IM else first, row,
            packed, steps, rows_x, rows_w, pitch, PLANES, low == 1, PRODUCTS == 3 and low == 0,
            ROWS, DEPTH, DESCRIPTORS,
        )  # fmt: skip
        if not HAS_IM:
            other = _add_terms(
                other, logs, weights, places, first, first + turns, row, packed, steps, rows_x,
                rows_w, pitch, PLANES, low == 1, PRODUCTS == 3 and low == 0, ROWS, DEPTH,
                DESCRIPTORS,
            )  # fmt: skip
    if HAS_IM:
        other = acc
    return acc, other


@triton.jit
def _alternate(packed, COLS: tl.constexpr):
    """The even and the odd columns of COLS."""
    return tl.split(tl.reshape(packed, [packed.shape[0], COLS // 2, 2]))


@triton.jit
def _store_outputs(
    p,
    q,
    scale_ptr,
    y_ptr,
    s_ptr,
    first_o,
    offs_b,
    mask_b,
    O,
    OUTPUTS: tl.constexpr,
    SAVE_SIN: tl.constexpr,
    REPAIR: tl.constexpr,
):
    """Store y and s from scaled sums, with REPAIR where y is NaN; return whether NaN was stored."""
    offs_o = first_o + tl.arange(0, OUTPUTS)
    mask = mask_b[:, None] & (offs_o < O)[None, :]
    offs = offs_b[:, None] * O + offs_o[None, :]
    scale = (tl.load(scale_ptr + offs_o) * (1.0 / LOG_SCALE))[None, :]
    e = exp_accurate(p * scale)
    sin_q, cos_q = sincos(q * scale)
    if REPAIR:
        before = tl.load(y_ptr + offs, mask=mask, other=0.0)
        mask = mask & (before != before)
    y = e * cos_q
    tl.store(y_ptr + offs, y.to(y_ptr.dtype.element_ty), mask=mask)
    if SAVE_SIN:
        tl.store(s_ptr + offs, (e * sin_q).to(s_ptr.dtype.element_ty), mask=mask)
    return tl.max((mask & (y != y)).to(tl.int32))


@triton.jit
def _store_half(
    p,
    q,
    scale_ptr,
    y_ptr,
    s_ptr,
    first_o,
    offs_b,
    mask_b,
    O,
    SAVE_SIN: tl.constexpr,
    REPAIR: tl.constexpr,
):
    """Store y and s of half a tile whose quarters alternate: one by one, which saves registers."""
    QUARTER: tl.constexpr = BLOCK // 4
    p_0, p_1 = _alternate(p, BLOCK // 2)
    q_0, q_1 = _alternate(q, BLOCK // 2)
    bad = _store_outputs(
        p_0, q_0, scale_ptr, y_ptr, s_ptr, first_o, offs_b, mask_b, O, QUARTER, SAVE_SIN, REPAIR
    )
    tl.debug_barrier()
    bad += _store_outputs(
        p_1,
        q_1,
        scale_ptr,
        y_ptr,
        s_ptr,
        first_o + QUARTER,
        offs_b,
        mask_b,
        O,
        QUARTER,
        SAVE_SIN,
        REPAIR,
    )
    tl.debug_barrier()
    return bad


@triton.jit
def _store_tile(
    acc,
    other,
    scale_ptr,
    y_ptr,
    s_ptr,
    first_o,
    offs_b,
    mask_b,
    O,
    HAS_IM: tl.constexpr,
    SAVE_SIN: tl.constexpr,
    REPAIR: tl.constexpr,
):
    """Store y and s of a tile from :func:`_forward_sums`; return whether NaN was stored."""
    if HAS_IM:
        p, q = _alternate(other, BLOCK)
        bad = _store_outputs(
            p, q, scale_ptr, y_ptr, s_ptr, first_o, offs_b, mask_b, O, BLOCK // 2, SAVE_SIN, REPAIR
        )
    else:
        p_0, p_1 = _alternate(acc, BLOCK)
        q_0, q_1 = _alternate(other, BLOCK)
        bad = _store_half(
            p_0, q_0, scale_ptr, y_ptr, s_ptr, first_o, offs_b, mask_b, O, SAVE_SIN, REPAIR
        )
        first_o += BLOCK // 2
        bad += _store_half(
            p_1, q_1, scale_ptr, y_ptr, s_ptr, first_o, offs_b, mask_b, O, SAVE_SIN, REPAIR
        )
    return bad


# Sizes in tiles: whether 16 divides them must not compile a kernel for one more layer or batch.
@triton.jit(do_not_specialize=["B", "steps", "rows_x", "tiles", "tiles_b", "tiles_n", "programs"])
def npu_large_forward_kernel(
    logs,  # [3 rows_x, pitch]
    weights,  # [4 rows_w, pitch]
    flags_ptr,  # [models of x tiles_b ROWS / FLAG_ROWS, pitch / BLOCK]
    scale_ptr,  # [K, tiles_n OUTPUTS]
    y_ptr,  # [K, B, O]
    s_ptr,
    B,
    O,
    steps,  # of DEPTH inputs
    rows_x,
    rows_w,
    pitch,
    tiles,
    tiles_b,  # tiles of ROWS rows
    tiles_n,
    programs,
    OWN_X: tl.constexpr,  # every model has rows of x of its own
    FLAGS: tl.constexpr,  # at least pitch / BLOCK
    HAS_IM: tl.constexpr,
    SAVE_SIN: tl.constexpr,
    ROWS: tl.constexpr,
    PRODUCTS: tl.constexpr,
    DEPTH: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    OUTPUTS: tl.constexpr = BLOCK // 2 if HAS_IM else BLOCK
    PLANES: tl.constexpr = 2 if PRODUCTS == 3 else 1
    tiles_i = pitch // BLOCK
    for tile in tl.range(
        loop_end(tl.program_id(0)), loop_end(tiles), loop_end(programs), disable_licm=True
    ):
        # programs that share rows of x run next to each other
        k = tile // (tiles_b * tiles_n)
        b_tile = tile // tiles_n % tiles_b
        n_tile = tile % tiles_n
        x_tile = b_tile
        if OWN_X:
            x_tile += k * tiles_b
        w_tile = k * tiles_n + n_tile
        flags_of_tile = flags_ptr + x_tile.to(tl.int64) * (ROWS // _FLAG_ROWS) * tiles_i
        places, count = _flagged(flags_of_tile, tiles_i, FLAGS, ROWS)
        operands = (
            logs,
            weights,
            places,
            count,
            x_tile * ROWS,
            w_tile * BLOCK,
            steps,
            rows_x,
            rows_w,
            pitch,
            PLANES,
            HAS_IM,
        )
        first_b = b_tile.to(tl.int64) * ROWS
        start = (k * B.to(tl.int64) + first_b) * O
        offs_b = tl.arange(0, ROWS)
        mask_b = offs_b < B - first_b
        first_o = n_tile * OUTPUTS
        acc, other = _forward_sums(*operands, ROWS, PRODUCTS, DEPTH, DESCRIPTORS)
        scales = scale_ptr + k * tiles_n * OUTPUTS
        bad = _store_tile(
            acc, other, scales, y_ptr + start, s_ptr + start, first_o, offs_b, mask_b, O,
            HAS_IM, SAVE_SIN, False,
        )  # fmt: skip
        if PRODUCTS > 1:
            # An infinite operand left NaN in the sums; one plane tells infinity from NaN like IEEE.
            if bad > 0:
                tl.debug_barrier()  # what was stored is read again
                # Unknown to the compiler, which else holds all addresses for this rare case.
                zero = bad >> 8
                acc, other = _forward_sums(*operands, ROWS, 1, DEPTH, DESCRIPTORS)
                start += zero
                _store_tile(
                    acc, other, scales, y_ptr + start, s_ptr + start, first_o + zero,
                    offs_b + zero, mask_b, O, HAS_IM, SAVE_SIN, True,
                )  # fmt: skip


# ---- the backward ----

# Weights in float16 are numbers up to 2**15. This brings sums with them near to the upstream's
# size, so that only results that are too large or small are so on the way.
_DOWN = tl.constexpr(2.0**-14)


@triton.jit
def _multiply(left_hi, left_lo, right_hi, right_lo, PRODUCTS: tl.constexpr):
    """The product of two sums of planes, smallest terms first."""
    step = tl.zeros([left_hi.shape[0], right_hi.shape[1]], tl.float32)
    if PRODUCTS == 3:
        step = tl.dot(left_lo, right_hi, step)
        step = tl.dot(left_hi, right_lo, step)
    return tl.dot(left_hi, right_hi, step)


@triton.jit
def _ghat(gate_ptr, first, offs_i, mask_i, HAS_GATE: tl.constexpr):
    """``ghat`` of these inputs, as a row."""
    if HAS_GATE:
        gate = tl.load(gate_ptr + first + offs_i, mask=mask_i, other=0.0)
        ghat = clamp_gate(gate.to(tl.float32))
    else:
        ghat = tl.full([offs_i.shape[0]], 1.0, tl.float32)
    return ghat[None, :]


@triton.jit
def _halves_of_rows(acc):
    """The two halves ``[ROWS / 2, BLOCK]`` of alternating rows."""
    pairs = tl.permute(tl.reshape(acc, [acc.shape[0] // 2, 2, BLOCK]), [0, 2, 1])
    return tl.split(pairs)


@triton.jit
def _sums_with_weights(
    upstream,
    weights,
    row_scale,
    row,
    w_row,
    first_i,
    packed,
    rows,
    rows_w,
    pitch,
    block_scales,  # the scales of a model's rows, of one block of columns
    ROWS: tl.constexpr,
    PRODUCTS: tl.constexpr,
    DEPTH: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """``dL``, the gradient of log r, of a tile, scaled, and the largest inverse scale of a row."""
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    largest = tl.zeros([ROWS], tl.float32)
    following = tl.load(row_scale)
    for step in range(loop_end(packed // DEPTH)):
        n = step * DEPTH
        scale = following
        # one step ahead: the products must not wait for it
        following = tl.load(row_scale + tl.minimum(n + DEPTH, packed - 1) // BLOCK * block_scales)
        left_hi = load_tile(upstream, row, n, packed, ROWS, DEPTH, DESCRIPTORS)
        right_hi = load_tile(weights, w_row + n, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
        if PRODUCTS == 3:
            left_lo = load_tile(upstream, rows + row, n, packed, ROWS, DEPTH, DESCRIPTORS)
            low_row = rows_w + w_row + n
            right_lo = load_tile(weights, low_row, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
            product = _multiply(left_hi, left_lo, right_hi, right_lo, 3)
        else:
            product = _multiply(left_hi, left_hi, right_hi, right_hi, 1)
        largest = tl.maximum(largest, scale)
        acc = tl.fma(product, (scale * _DOWN)[:, None], acc)
    return acc, largest


@triton.jit(do_not_specialize=["K", "B", "rows", "tiles", "tiles_b", "tiles_i", "programs"])
def npu_large_backward_x_kernel(
    upstream,  # by rows, [2 rows, packed]
    weights,  # [2 rows_w, pitch]
    row_scale_ptr,  # [K, tiles_n, tiles_b ROWS]
    scale_ptr,  # [K, pitch]
    bound_ptr,  # [K, pitch]: a sum below this, times the row's inverse scale, may be inaccurate
    x_ptr,
    gate_ptr,
    grad_x_ptr,  # [K, B, I]
    gate_partial_ptr,  # [tiles_b or more, K, I]
    flags_ptr,  # [K tiles_b, tiles_i]: 1 for a tile with a sum that may be inaccurate, else 0
    K,
    B,
    I,
    packed,
    rows,  # of a plane
    rows_w,
    pitch,
    tiles,
    tiles_b,  # tiles of ROWS rows
    tiles_i,
    programs,
    EPS: tl.constexpr,
    SHARED_X: tl.constexpr,
    HAS_GATE: tl.constexpr,
    NEED_X: tl.constexpr,
    NEED_GATE: tl.constexpr,
    ROWS: tl.constexpr,
    PRODUCTS: tl.constexpr,
    DEPTH: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    offs_i = tl.arange(0, BLOCK)
    tiles_n = packed // BLOCK
    for tile in tl.range(
        loop_end(tl.program_id(0)), loop_end(tiles), loop_end(programs), disable_licm=True
    ):
        k = tile // (tiles_b * tiles_i)
        b_tile = tile // tiles_i % tiles_b
        i_tile = tile % tiles_i
        first_i = i_tile * BLOCK
        row = (k * tiles_b + b_tile) * ROWS
        block_scales = tiles_b.to(tl.int64) * ROWS
        row_scale = row_scale_ptr + k * tiles_n * block_scales
        row_scale = row_scale + b_tile * ROWS + tl.arange(0, ROWS)
        acc, largest = _sums_with_weights(
            upstream, weights, row_scale, row, k * packed, first_i, packed, rows, rows_w, pitch,
            block_scales, ROWS, PRODUCTS, DEPTH, DESCRIPTORS,
        )  # fmt: skip
        offs = k * pitch + first_i + offs_i
        # Rows of zeros have the smallest scale, and inputs without a weight 0 in `bound_ptr`.
        bound = tl.where(largest > MIN_INVERSE, largest, 0.0)[:, None]
        small = tl.abs(acc) < bound * tl.load(bound_ptr + offs)[None, :]
        tl.store(flags_ptr + tile, tl.max(small.to(tl.int32)))
        acc *= (tl.load(scale_ptr + offs) * (1.0 / _DOWN))[None, :]

        first_b = b_tile.to(tl.int64) * ROWS
        start_x = (k * B.to(tl.int64) + first_b) * I + first_i
        if SHARED_X:
            tile_ptr = x_ptr + first_b * I + first_i
        else:
            tile_ptr = x_ptr + start_x
        offs_b = tl.arange(0, ROWS)
        halves = tl.split(tl.permute(tl.reshape(acc, [ROWS, 2, BLOCK // 2]), [0, 2, 1]))
        for half in tl.static_range(2):
            tl.debug_barrier()  # or both halves' registers are in use at once
            offs_h = half * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
            mask_i = offs_h < I - first_i
            mask = (offs_b < B - first_b)[:, None] & mask_i[None, :]
            offs_x = offs_b[:, None] * I + offs_h[None, :]
            ghat = _ghat(gate_ptr, k * I + first_i, offs_h, mask_i, HAS_GATE)
            x = tl.load(tile_ptr + offs_x, mask=mask, other=1.0).to(tl.float32)
            d_r = halves[half] / magnitude(x, ghat, EPS)
            if NEED_X:
                grad_x = d_r * ghat * signum(x)
                ptrs = grad_x_ptr + start_x + offs_x
                tl.store(ptrs, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
            if NEED_GATE:
                part = tl.sum(tl.where(mask, d_r * (tl.abs(x) + (EPS - 1.0)), 0.0), axis=0)
                ptrs = gate_partial_ptr + (b_tile.to(tl.int64) * K + k) * I + first_i + offs_h
                tl.store(ptrs, part, mask=mask_i)


@triton.jit
def _sums_over_rows(
    upstream,
    right_planes,
    column_scale_ptr,
    row,
    x_row,
    col,
    first_i,
    tiles,
    packed,
    rows,
    rows_x,  # from hi to lo of the right operand
    pitch,
    KINDS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    """``dP' right`` and ``dQ' right`` of a tile, in packed rows, over `tiles` tiles of rows.

    A turn has one product of planes, KINDS turns those of two values: 3 with log r, 2 with the
    mask, which is exact in one plane, 1 of hi alone.
    """
    PARTS: tl.constexpr = BLOCK // DEPTH
    TURNS: tl.constexpr = PARTS * KINDS  # of a tile of rows
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    last = tl.maximum(tiles * TURNS - 1, 0)
    following = tl.load(column_scale_ptr)
    for turn in range(loop_end(tiles * TURNS)):
        b = turn // KINDS * DEPTH
        kind = turn - turn // KINDS * KINDS + 0 * row  # a tensor in the interpreter too
        scale = following
        # one turn ahead: the products must not wait for it
        after = tl.minimum(turn + 1, last) // TURNS
        following = tl.load(column_scale_ptr + after * packed.to(tl.int64))
        row_d, right = row + b, x_row + b
        if KINDS > 1:
            row_d += (kind == 0).to(tl.int32) * rows
        if KINDS == 3:
            right += (kind == 1).to(tl.int32) * rows_x
        d = tl.trans(load_tile(upstream, row_d, col, packed, DEPTH, ROWS, DESCRIPTORS))
        x = load_tile(right_planes, right, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
        acc = tl.fma(tl.dot(d, x), (scale * (1.0 / LOG_SCALE))[:, None], acc)
    return acc


@triton.jit
def _negatives(flags_ptr, x_tile, i_tile, tiles, tiles_i):
    """The number of flagged tiles of rows with a negative input in a tile of inputs."""
    flags_ptr += x_tile.to(tl.int64) * tiles_i + i_tile
    offs = tl.arange(0, _MIN_FLAGS)
    number = 0
    for step in range(loop_end(tl.cdiv(tiles, _MIN_FLAGS))):
        tile = step * _MIN_FLAGS + offs
        ptrs = flags_ptr + tile.to(tl.int64) * tiles_i
        number += tl.sum(tl.load(ptrs, mask=tile < tiles, other=0))
    return number


_SIZES = ["gate_row", "K", "rows", "rows_x", "scale_plane", "tiles_b", "tiles_of_split"]


@triton.jit(do_not_specialize=_SIZES)
def npu_large_backward_w_kernel(
    upstream,  # by columns, [2 rows, packed]; without an imaginary weight [4 rows, packed]
    logs,  # [3 rows_x, pitch]
    column_scale_ptr,  # [1 or 2, K tiles_b, packed]
    flags_ptr,  # [models of x tiles_b BLOCK / FLAG_ROWS, pitch / BLOCK]
    wre_ptr,
    wim_ptr,
    gate_ptr,
    grad_re_ptr,  # [splits, K, O, I]
    grad_im_ptr,
    gate_partial_ptr,  # [rows, K, I]
    gate_row,  # the first row of gate_partial that this kernel writes
    K,
    O,
    I,
    packed,
    rows,  # of a plane
    rows_x,
    pitch,
    scale_plane,
    tiles_b,  # tiles of BLOCK rows
    tiles_of_split,
    OWN_X: tl.constexpr,
    HAS_IM: tl.constexpr,
    HAS_GATE: tl.constexpr,
    NEED_RE: tl.constexpr,
    NEED_IM: tl.constexpr,
    NEED_GATE: tl.constexpr,
    ROWS: tl.constexpr,  # packed outputs of a tile
    PRODUCTS: tl.constexpr,
    DEPTH: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    tiles_n, tiles_i = packed // ROWS, pitch // BLOCK
    pid = tl.program_id(0)  # all tiles of one split read the same rows and run next to each other
    i_tile = pid % tiles_i
    n_tile = pid // tiles_i % tiles_n
    k = pid // (tiles_i * tiles_n) % K
    pid_s = pid // (tiles_i * tiles_n) // K
    first_i, col = i_tile * BLOCK, n_tile * ROWS
    first_tile = pid_s * tiles_of_split
    tiles = tl.minimum(tiles_b - first_tile, tiles_of_split)
    row_tile = k * tiles_b + first_tile
    x_tile = first_tile
    if OWN_X:
        x_tile += k * tiles_b
    column_scale_ptr += row_tile.to(tl.int64) * packed + col + tl.arange(0, ROWS)
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    if NEED_RE or NEED_IM:
        acc = _sums_over_rows(
            upstream, logs, column_scale_ptr, row_tile * BLOCK, x_tile * BLOCK, col, first_i, tiles,
            packed, rows, rows_x, pitch, PRODUCTS, ROWS, DEPTH, DESCRIPTORS,
        )  # fmt: skip
    # Products with the mask, if an input of this tile is negative.
    FLAGS: tl.constexpr = BLOCK // _FLAG_ROWS
    any_negative = _negatives(flags_ptr, x_tile * FLAGS, i_tile, tiles * FLAGS, tiles_i)
    PLANES: tl.constexpr = 2 if PRODUCTS == 3 else 1
    row = row_tile * BLOCK
    if not HAS_IM:  # planes of dQ follow those of dP
        row += PLANES * rows
        column_scale_ptr += scale_plane
    masked = _sums_over_rows(
        upstream, logs, column_scale_ptr, row, PLANES * rows_x + x_tile * BLOCK, col, first_i,
        tl.where(any_negative > 0, tiles, 0), packed, rows, rows_x, pitch, PLANES, ROWS, DEPTH,
        DESCRIPTORS,
    )  # fmt: skip

    offs = tl.arange(0, BLOCK)
    mask_i = offs < I - first_i
    ghat = _ghat(gate_ptr, k * I + first_i, offs, mask_i, HAS_GATE)
    OUTPUTS: tl.constexpr = ROWS // 2 if HAS_IM else ROWS
    sums = _halves_of_rows(acc)
    phases = _halves_of_rows(masked)
    HALVES: tl.constexpr = 1 if HAS_IM else 2  # each has a row of the gate's partial sums
    offs_o = tl.arange(0, ROWS // 2)
    if not HAS_IM:  # quarters of BLOCK outputs alternate
        offs_o = offs_o % 2 * (BLOCK // 4) + offs_o // 2
    for half in tl.static_range(HALVES):
        start_o = n_tile * OUTPUTS + half * (ROWS // 2)
        part_row = gate_row + (pid_s * tiles_n + n_tile) * HALVES + half
        store_weight_gradients(
            sums[half], sums[half + HALVES % 2],  # of P and of Q
            phases[half], phases[half + HALVES % 2],
            ghat, wre_ptr, wim_ptr, grad_re_ptr, grad_im_ptr,
            gate_partial_ptr + (part_row.to(tl.int64) * K + k) * I + first_i,
            (k * O + start_o).to(tl.int64) * I + first_i, (pid_s * K).to(tl.int64) * O * I,
            offs_o, offs, offs_o < O - start_o, mask_i, I,
            HAS_IM, NEED_RE, NEED_IM, NEED_GATE, tl.float32,
        )  # fmt: skip


# ---- plans and launches ----

Tensor = torch.Tensor


class Tiles(NamedTuple):
    """The tiles of a kernel's results, which have TILE columns, and the steps of its loops."""

    rows: int  # TILE or half of it
    depth: int  # of a step
    stages: int  # steps whose operands shared memory holds

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of Triton's compiler."""
        warps = self.rows // 16
        return {"num_warps": warps, "num_stages": self.stages, "enable_fp_fusion": True}


class Plan(NamedTuple):
    """The launch of a call's products."""

    products: int  # of planes, for a product of two values: 3 or 1
    descriptors: bool  # the chip copies tiles itself
    multiprocessors: int
    forward: Tiles
    backward_x: Tiles
    backward_w: Tiles

    @property
    def planes(self) -> int:
        """The planes of a value."""
        return HI_LO if self.products > 1 else HI

    def scheme(self, depth: int) -> tuple[int, int, bool]:
        """Return a kernel's last constants: the scheme of its products, in steps of this depth."""
        return self.products, depth, self.descriptors

    def programs(self, tiles: Tiles) -> int:
        """The number of programs that fit the chip at once."""
        return self.multiprocessors * (TILE // tiles.rows)


# Steps of the forward and of backward_w have one plane of each operand, those of backward_x two.
# sm_90's are the fastest of five on an H200 (of four with one product), others not measured. Two
# stages must fit the 99 KiB of shared memory of the other chips with sm_80's table.
PLANS = {
    "sm_80": Plan(3, False, 108, Tiles(TILE, 64, 3), Tiles(TILE, 32, 3), Tiles(TILE, 32, 2)),
    "sm_90": Plan(3, True, 132, Tiles(TILE, 128, 3), Tiles(TILE, 64, 3), Tiles(TILE, 128, 3)),
    "sm_100": Plan(3, True, 148, Tiles(TILE, 128, 2), Tiles(TILE, 64, 3), Tiles(TILE, 128, 2)),
}
# With one product, at `high` and `medium`.
HIGH_PLANS = {
    "sm_80": Plan(1, False, 108, Tiles(TILE, 64, 3), Tiles(TILE, 32, 3), Tiles(TILE, 32, 2)),
    "sm_90": Plan(1, True, 132, Tiles(TILE, 64, 6), Tiles(64, 64, 4), Tiles(TILE, 128, 3)),
    "sm_100": Plan(1, True, 148, Tiles(TILE, 64, 3), Tiles(TILE, 64, 3), Tiles(TILE, 64, 3)),
}
# Of the fused kernel that computes inaccurate tiles again; all of float32's range and bits.
REPAIR = {"BLOCK_O": 16, "BLOCK_I": 32, "PASSES": 6, "num_warps": 8}
REPAIR |= {"num_stages": 2, "maxnreg": 255, "enable_fp_fusion": True}
# Triton 3.6 makes the forward without an imaginary weight spill, and longer loops for sm_100.
_OLD_TRITON = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
_ONE_PASS = ("npu_forward", "npu_backward_x", "npu_backward_w")  # kernels that the tuner times
_forced: list[Plan | None] = []  # plans of `use_plan`, the innermost last


class use_plan:
    """Make all layers in the block, but those for `npu_small`, take the large kernels by this plan.

    With None none takes them. For timing and for tests.
    """

    def __init__(self, plan: Plan | None) -> None:
        self.plan = plan

    def __enter__(self) -> None:
        _forced.append(self.plan)
        tuning.changed()

    def __exit__(self, *error: object) -> None:
        _forced.pop()
        tuning.changed()


def plan_for(architecture: str, precision: str) -> Plan | None:
    """The plan of an architecture at a float32 matmul precision."""
    return (PLANS if precision == "highest" else HIGH_PLANS).get(architecture)


@functools.cache
def _plan(architecture: str, device: torch.device, imaginary: bool, precision: str) -> Plan | None:
    plan = plan_for(architecture, precision)
    if plan is None or (_OLD_TRITON and (architecture == "sm_100" or not imaginary)):
        return None
    if device.type == "cuda" and not triton.knobs.runtime.interpret:
        properties = torch.cuda.get_device_properties(device)
        plan = plan._replace(multiprocessors=properties.multi_processor_count)
    return plan


def plan_of(x: Tensor, imaginary: bool, sizes: Sizes) -> Plan | None:
    """The plan of a layer for the large kernels, whatever its number of rows; else None."""
    if x.dtype is torch.float64 or tuning.overridden(_ONE_PASS):
        return None
    if _forced:
        return _forced[-1]
    architecture = tuning.architecture_of(x.device)
    if not large_is_faster(architecture, sizes.I, sizes.O, sizes.K, for_graph.active()):
        return None
    return _plan(architecture, x.device, imaginary, float32_matmul_precision())


def _operand(planes: Tensor, rows: int, cols: int, plan: Plan) -> Any:
    """Planes as a kernel takes them, which reads tiles of `rows` x `cols`."""
    return TensorDescriptor.from_tensor(planes, [rows, cols]) if plan.descriptors else planes


@functools.lru_cache(maxsize=1024)
def row_splits(tiles_b: int, tiles_w: int, programs: int) -> tuple[int, int]:
    """The number of parts into which tiles of rows are split for backward_w, and a part's tiles.

    The smallest number of parts that leaves less than a tenth of the multiprocessors' time unused,
    else the number that leaves least. A multiprocessor has one of the `tiles_w` programs of a part
    at a time.
    """
    best, max_used = (1, tiles_b), 0.0
    for splits in range(1, min(tiles_b, programs) + 1):
        tiles = -(-tiles_b // splits)
        parts = -(-tiles_b // tiles)
        used = tiles_w * tiles_b / (-(-tiles_w * parts // programs) * programs * tiles)
        if used > max_used:
            best, max_used = (parts, tiles), used
        if used > 0.9:
            break
    return best


def large_forward(
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    eps: float,
    save_sin: bool,
    y: Tensor,
    s: Tensor,
    sizes: Sizes,
    plan: Plan,
) -> None:
    """Fill y, and s if `save_sin`; operands contiguous, sizes positive. Three launches."""
    shape = padded(sizes, weight_im is not None, gate is not None)
    rows, depth, _ = plan.forward
    logs = input_planes(x, gate, eps, sizes, shape, plan.planes)
    weights, scale, _ = weight_planes(
        weight_re, weight_im, gate, sizes, shape, phase=True, count=plan.planes
    )
    rows_x, rows_w = shape.models_x * shape.tiles_b * TILE, sizes.K * shape.packed
    tiles_b = shape.tiles_b * (TILE // rows)
    tiles = sizes.K * tiles_b * shape.tiles_n
    programs = min(tiles, plan.programs(plan.forward))
    operands = _operand(logs.planes, rows, depth, plan), _operand(weights, TILE, depth, plan)
    grid = tiles, tiles_b, shape.tiles_n, programs
    flags = max(MIN_FLAGS, triton.next_power_of_2(shape.tiles_i))
    start(
        npu_large_forward_kernel,
        programs,
        plan.forward.options,
        (*operands, logs.flags, scale, y, s),
        (sizes.B, sizes.O, -(-sizes.I // depth), rows_x, rows_w, shape.pitch, *grid),
        (shape.models_x > 1, flags, weight_im is not None, save_sin, rows, *plan.scheme(depth)),
    )


def large_backward(
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
    plan: Plan,
    repair: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four gradients; operands contiguous, sizes positive. At most seven launches.

    repair: the kernel `npu_repair_x` of `npu`, which computes inaccurate tiles again.
    """
    K, B, I, O, shared_x = sizes
    imaginary, gated, planes = weight_im is not None, gate is not None, plan.planes
    need_x, need_re, need_im, need_gate = needed(needs, [x, weight_re, weight_im, gate])
    by_row, by_column = need_x or need_gate, need_re or need_im or need_gate
    shape = padded(sizes, imaginary, gated)
    upstream = upstream_planes(grad_y, y, s, imaginary, sizes, shape, by_row, by_column, planes)

    tiles_of_x, tiles_of_w = plan.backward_x, plan.backward_w
    if not imaginary:  # the quarters of whole tiles alternate
        tiles_of_w = tiles_of_w._replace(rows=TILE)
    tiles_b = shape.tiles_b * (TILE // tiles_of_x.rows)
    tiles_n = shape.packed // tiles_of_w.rows
    tiles_w = K * tiles_n * shape.tiles_i
    splits, tiles_of_split = row_splits(shape.tiles_b, tiles_w, plan.programs(tiles_of_w))
    gate_rows = tiles_b + splits * tiles_n * (1 if imaginary else 2)
    gradients = Gradients(
        x, weight_re, weight_im, gate, needs, sizes, splits, gate_rows, tl.float32
    )
    part_x, part_re, part_im, part_gate = gradients.parts
    rows, rows_x = K * shape.tiles_b * TILE, shape.models_x * shape.tiles_b * TILE

    if by_row:
        weights, scale, bound = weight_planes(
            weight_re, weight_im, gate, sizes, shape, phase=False, count=planes
        )
        tiles = K * tiles_b * shape.tiles_i
        programs = min(tiles, plan.programs(tiles_of_x))
        row_tile, depth, _ = tiles_of_x
        flags = x.new_empty((tiles,), dtype=torch.int32)
        left = _operand(upstream.by_row, row_tile, depth, plan)
        right = _operand(weights, depth, TILE, plan)
        grid = tiles, tiles_b, shape.tiles_i, programs
        scales = upstream.row_scale, scale, bound
        tensors: Any = left, right, *scales, x, gate, part_x, part_gate, flags
        numbers: Any = K, B, I, shape.packed, rows, K * shape.packed, shape.pitch, *grid
        constants: Any = eps, shared_x, gated, need_x, need_gate, row_tile, *plan.scheme(depth)
        start(
            npu_large_backward_x_kernel, programs, tiles_of_x.options, tensors, numbers, constants
        )

        tensors = grad_y, x, weight_re, weight_im, gate, y, s, part_x, part_gate, flags
        numbers = K, B, I, O, tiles, tiles_b
        constants = eps, shared_x, imaginary, gated, need_x, need_gate, tl.float32
        options, programs = REPAIR | {"BLOCK_B": row_tile}, -(-tiles // FLAGS_OF_PROGRAM)
        start(repair, programs, options, tensors, numbers, constants)
    if by_column:
        row_tile, depth, _ = tiles_of_w
        logs = input_planes(x, gate, eps, sizes, shape, planes)
        left = _operand(upstream.by_column, depth, row_tile, plan)
        right = _operand(logs.planes, depth, TILE, plan)
        tensors = left, right, upstream.column_scale, logs.flags, weight_re, weight_im, gate
        tensors = *tensors, part_re, part_im, part_gate
        numbers = tiles_b, K, O, I, shape.packed, rows, rows_x, shape.pitch
        numbers = *numbers, rows // TILE * shape.packed, shape.tiles_b, tiles_of_split
        constants = shape.models_x > 1, imaginary, gated, need_re, need_im, need_gate
        constants = *constants, row_tile, *plan.scheme(depth)
        programs, options = tiles_w * splits, tiles_of_w.options
        start(npu_large_backward_w_kernel, programs, options, tensors, numbers, constants)
    return gradients.finish(straight_through)
