"""The backward of large layers by products of planes; `npu_large` has the design."""

# ruff: noqa: SIM108 (an `if` on a compile-time constant stands alone, see device_math)

import triton
import triton.language as tl

from npu_kernels._triton.device_math import clamp_gate, loop_end, magnitude, signum
from npu_kernels._triton.npu_planes import (
    BLOCK,
    FLAG_INPUTS,
    LEAST_INVERSE,
    LOG_SCALE,
    load_tile,
)
from npu_kernels._triton.weight_gradients import store_weight_gradients

_FLAG_INPUTS = tl.constexpr(FLAG_INPUTS)
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
    upstream, weights, row_scale, row, w_row, first_i, packed, rows, rows_w, pitch,
    block_scales,  # the scales of a model's rows, of one block of columns
    ROWS: tl.constexpr, PRODUCTS: tl.constexpr, DEPTH: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """``dL``, the gradient of log r, of a tile, scaled, and the greatest inverse scale of a row."""
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    greatest = tl.zeros([ROWS], tl.float32)
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
        greatest = tl.maximum(greatest, scale)
        acc = tl.fma(product, (scale * _DOWN)[:, None], acc)
    return acc, greatest


@triton.jit(do_not_specialize=["K", "B", "rows", "tiles", "tiles_b", "tiles_i", "programs"])
def npu_large_backward_x_kernel(
    upstream,  # by rows, [2 rows, packed]
    weights,  # [2 rows_w, pitch]
    row_scale_ptr,  # [K, tiles_n, tiles_b ROWS]
    scale_ptr,  # [K, pitch]
    bound_ptr,  # [K, pitch]: a sum below this, times the row's inverse scale, may be inaccurate
    x_ptr, gate_ptr,
    grad_x_ptr,  # [K, B, I]
    gate_partial_ptr,  # [tiles_b or more, K, I]
    flags_ptr,  # [K tiles_b, tiles_i]: 1 for a tile with a sum that may be inaccurate, else 0
    K, B, I, packed,
    rows,  # of a plane
    rows_w, pitch, tiles,
    tiles_b,  # tiles of ROWS rows
    tiles_i, programs,
    EPS: tl.constexpr, SHARED_X: tl.constexpr, HAS_GATE: tl.constexpr, NEED_X: tl.constexpr,
    NEED_GATE: tl.constexpr, ROWS: tl.constexpr, PRODUCTS: tl.constexpr, DEPTH: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
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
        acc, greatest = _sums_with_weights(
            upstream, weights, row_scale, row, k * packed, first_i, packed, rows, rows_w, pitch,
            block_scales, ROWS, PRODUCTS, DEPTH, DESCRIPTORS,
        )  # fmt: skip
        offs = k * pitch + first_i + offs_i
        # Rows of zeros have the least scale, and inputs without a weight 0 in `bound_ptr`.
        bound = tl.where(greatest > LEAST_INVERSE, greatest, 0.0)[:, None]
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
    upstream, right_planes, column_scale_ptr, row, x_row, col, first_i, tiles, packed, rows,
    rows_x,  # from hi to lo of the right operand
    pitch, KINDS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
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
        left, right = row + b, x_row + b
        if KINDS > 1:
            left += (kind == 0).to(tl.int32) * rows
        if KINDS == 3:
            right += (kind == 1).to(tl.int32) * rows_x
        d = tl.trans(load_tile(upstream, left, col, packed, DEPTH, ROWS, DESCRIPTORS))
        x = load_tile(right_planes, right, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
        acc = tl.fma(tl.dot(d, x), (scale * (1.0 / LOG_SCALE))[:, None], acc)
    return acc


@triton.jit
def _negatives(flags_ptr, x_tile, i_tile, tiles, pitch, DEPTH: tl.constexpr):
    """The number of flagged tiles of rows with a negative input in a tile of inputs."""
    STEP: tl.constexpr = _FLAG_INPUTS if DEPTH < _FLAG_INPUTS else DEPTH
    FLAGS: tl.constexpr = BLOCK // STEP
    flags_ptr += x_tile.to(tl.int64) * (pitch // STEP) + i_tile * FLAGS + tl.arange(0, FLAGS)
    number = 0
    for tile in range(loop_end(tiles)):
        number += tl.max(tl.load(flags_ptr + tile * (pitch.to(tl.int64) // STEP)))
    return number


_SIZES = ["gate_row", "K", "rows", "rows_x", "scale_plane", "tiles_b", "tiles_of_split"]


@triton.jit(do_not_specialize=_SIZES)
def npu_large_backward_w_kernel(
    upstream,  # by columns, [2 rows, packed]; without an imaginary weight [4 rows, packed]
    logs,  # [3 rows_x, pitch]
    column_scale_ptr,  # [1 or 2, K tiles_b, packed]
    flags_ptr,  # [models of x tiles_b BLOCK / FLAG_ROWS, pitch / max(FLAG_INPUTS, DEPTH)]
    wre_ptr, wim_ptr, gate_ptr,
    grad_re_ptr,  # [splits, K, O, I]
    grad_im_ptr,
    gate_partial_ptr,  # [rows, K, I]
    gate_row,  # the first row of gate_partial that this kernel writes
    K, O, I, packed,
    rows,  # of a plane
    rows_x, pitch, scale_plane,
    tiles_b,  # tiles of BLOCK rows
    tiles_of_split,
    OWN_X: tl.constexpr, HAS_IM: tl.constexpr, HAS_GATE: tl.constexpr, NEED_RE: tl.constexpr,
    NEED_IM: tl.constexpr, NEED_GATE: tl.constexpr, FLAG_ROWS: tl.constexpr,
    ROWS: tl.constexpr,  # packed outputs of a tile
    PRODUCTS: tl.constexpr, DEPTH: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
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
    FLAGS: tl.constexpr = BLOCK // FLAG_ROWS
    any_negative = _negatives(flags_ptr, x_tile * FLAGS, i_tile, tiles * FLAGS, pitch, DEPTH)
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
