"""The products of planes of large layers: kernels; `npu_large` has the design and the launchers."""

# ruff: noqa: SIM102, SIM108 (an `if` on a compile-time constant stands alone, see device_math)

import triton
import triton.language as tl

from npu_kernels._backends.triton.device_math import (
    clamp_gate,
    exp_accurate,
    loop_end,
    magnitude,
    signum,
    sincos,
)
from npu_kernels._backends.triton.npu_planes import FLAG_INPUTS, LEAST_INVERSE, LOG_SCALE, TILE
from npu_kernels._backends.triton.weight_gradients import store_weight_gradients

BLOCK = tl.constexpr(TILE)
_FLAG_INPUTS = tl.constexpr(FLAG_INPUTS)
# Weights in float16 are numbers up to 2**15. This brings sums with them near to the upstream's
# size, so that only results that are too large or small are so on the way.
_DOWN = tl.constexpr(2.0**-14)


@triton.jit
def _load(
    planes, row, col, pitch, ROWS: tl.constexpr, COLS: tl.constexpr, DESCRIPTORS: tl.constexpr
):
    """``planes[row : row + ROWS, col : col + COLS]``."""
    if DESCRIPTORS:
        tile = planes.load([row.to(tl.int32), col])
    else:
        offs = tl.arange(0, ROWS)[:, None] * pitch + tl.arange(0, COLS)[None, :]
        tile = tl.load(planes + row.to(tl.int64) * pitch + col + offs)
    return tile


@triton.jit
def _multiply(left_hi, left_lo, right_hi, right_lo, PRODUCTS: tl.constexpr):
    """The product of two sums of planes, smallest terms first."""
    step = tl.zeros([left_hi.shape[0], right_hi.shape[1]], tl.float32)
    if PRODUCTS == 3:
        step = tl.dot(left_lo, right_hi, step)
        step = tl.dot(left_hi, right_lo, step)
    return tl.dot(left_hi, right_hi, step)


@triton.jit
def _add_terms(
    acc, logs, weights, blocks_ptr, begin, end,
    row,  # the tile's first in a plane of x
    packed,  # the tile's first in a plane of the weights
    steps,
    rows_x,  # of a plane of x
    rows_w, pitch,
    PLANES: tl.constexpr,  # of a value: hi, lo or hi
    LOW: tl.constexpr, FRESH: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Add products of planes to a tile, one of depth DEPTH in each turn from `begin` to `end`.

    `steps` turns multiply hi by hi of all inputs, further ones the mask by hi of the listed inputs.
    With LOW `steps` turns multiply lo by hi, as many hi by lo, further ones the mask by lo.
    FRESH: matrix units truncate when they add, so each product starts from zero.
    """
    STEP: tl.constexpr = _FLAG_INPUTS if DEPTH < _FLAG_INPUTS else DEPTH
    PARTS: tl.constexpr = STEP // DEPTH  # turns for a listed step
    first = 2 * steps if LOW else steps  # turn with the mask
    unit = tl.where(steps > 0, 1.0, 0.0)  # 1, unknown to the compiler, which would join the sums
    last = pitch // STEP - 1
    # one turn ahead: the copy of a tile must not wait for its address
    block = tl.load(blocks_ptr + tl.minimum(tl.maximum(begin - first, 0) // PARTS, last))
    for turn in range(loop_end(begin), loop_end(end)):
        listed = turn - first
        part = listed // PARTS
        masked = (listed >= 0).to(tl.int32)
        left, right = masked * PLANES, masked * PLANES  # planes
        i = (1 - masked) * turn * DEPTH + masked * ((block - part) * STEP + listed * DEPTH)
        if LOW:
            second = (turn >= steps).to(tl.int32)
            left, right = left + (1 - second), right + second
            i -= (second - masked) * steps * DEPTH
        block = tl.load(blocks_ptr + tl.minimum(tl.maximum(listed + 1, 0) // PARTS, last))
        x = _load(logs, row + left * rows_x, i, pitch, ROWS, DEPTH, DESCRIPTORS)
        w = tl.trans(_load(weights, packed + right * rows_w, i, pitch, BLOCK, DEPTH, DESCRIPTORS))
        if FRESH:
            acc = tl.fma(tl.dot(x, w), unit, acc)
        else:
            acc = tl.dot(x, w, acc)
    return acc


@triton.jit
def _forward_sums(
    logs, weights, blocks_ptr, count, row, packed, steps, rows_x, rows_w, pitch,
    PLANES: tl.constexpr, HAS_IM: tl.constexpr, ROWS: tl.constexpr, PRODUCTS: tl.constexpr,
    DEPTH: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """The scaled sums with log r and with the mask; with HAS_IM the second has both, packed.

    First the small terms, which have a factor lo, in one long sum: what it loses is smaller still.
    """
    STEP: tl.constexpr = _FLAG_INPUTS if DEPTH < _FLAG_INPUTS else DEPTH
    turns = count * (STEP // DEPTH)  # with the mask
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    other = tl.zeros([ROWS, BLOCK], tl.float32)
    for low in tl.static_range(1 if PRODUCTS == 3 else 0, -1, -1):
        first = (1 + low) * steps
        acc = _add_terms(
            acc, logs, weights, blocks_ptr, 0 * steps, first + turns if HAS_IM else first, row,
            packed, steps, rows_x, rows_w, pitch, PLANES, low == 1, PRODUCTS == 3 and low == 0,
            ROWS, DEPTH, DESCRIPTORS,
        )  # fmt: skip
        if not HAS_IM:
            other = _add_terms(
                other, logs, weights, blocks_ptr, first, first + turns, row, packed, steps, rows_x,
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
    p, q, scale_ptr, y_ptr, s_ptr, first_o, offs_b, mask_b, O,
    OUTPUTS: tl.constexpr, SAVE_SIN: tl.constexpr, REPAIR: tl.constexpr,
):  # fmt: skip
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
    p, q, scale_ptr, y_ptr, s_ptr, first_o, offs_b, mask_b, O,
    SAVE_SIN: tl.constexpr, REPAIR: tl.constexpr,
):  # fmt: skip
    """Store y and s of half a tile whose quarters alternate: one by one, which saves registers."""
    QUARTER: tl.constexpr = BLOCK // 4
    p_0, p_1 = _alternate(p, BLOCK // 2)
    q_0, q_1 = _alternate(q, BLOCK // 2)
    bad = _store_outputs(
        p_0, q_0, scale_ptr, y_ptr, s_ptr, first_o, offs_b, mask_b, O, QUARTER, SAVE_SIN, REPAIR
    )
    tl.debug_barrier()
    bad += _store_outputs(
        p_1, q_1, scale_ptr, y_ptr, s_ptr, first_o + QUARTER, offs_b, mask_b, O,
        QUARTER, SAVE_SIN, REPAIR,
    )  # fmt: skip
    tl.debug_barrier()
    return bad


@triton.jit
def _store_tile(
    acc, other, scale_ptr, y_ptr, s_ptr, first_o, offs_b, mask_b, O,
    HAS_IM: tl.constexpr, SAVE_SIN: tl.constexpr, REPAIR: tl.constexpr,
):  # fmt: skip
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
    blocks_ptr,  # [models of x tiles_b, pitch / max(FLAG_INPUTS, DEPTH)]
    counts_ptr,
    scale_ptr,  # [K, tiles_n OUTPUTS]
    y_ptr,  # [K, B, O]
    s_ptr, B, O,
    steps,  # of DEPTH inputs
    rows_x, rows_w, pitch, tiles,
    tiles_b,  # tiles of ROWS rows
    tiles_n, programs,
    OWN_X: tl.constexpr,  # every model has rows of x of its own
    HAS_IM: tl.constexpr, SAVE_SIN: tl.constexpr, ROWS: tl.constexpr, PRODUCTS: tl.constexpr,
    DEPTH: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    OUTPUTS: tl.constexpr = BLOCK // 2 if HAS_IM else BLOCK
    PLANES: tl.constexpr = 2 if PRODUCTS == 3 else 1
    STEP: tl.constexpr = _FLAG_INPUTS if DEPTH < _FLAG_INPUTS else DEPTH
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
        operands = (
            logs, weights, blocks_ptr + x_tile.to(tl.int64) * (pitch // STEP),
            tl.load(counts_ptr + x_tile), x_tile * ROWS, w_tile * BLOCK, steps, rows_x, rows_w,
            pitch, PLANES, HAS_IM,
        )  # fmt: skip
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
        left_hi = _load(upstream, row, n, packed, ROWS, DEPTH, DESCRIPTORS)
        right_hi = _load(weights, w_row + n, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
        if PRODUCTS == 3:
            left_lo = _load(upstream, rows + row, n, packed, ROWS, DEPTH, DESCRIPTORS)
            low_row = rows_w + w_row + n
            right_lo = _load(weights, low_row, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
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
        d = tl.trans(_load(upstream, left, col, packed, DEPTH, ROWS, DESCRIPTORS))
        x = _load(right_planes, right, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
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
