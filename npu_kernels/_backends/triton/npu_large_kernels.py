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
    step = tl.zeros([BLOCK, BLOCK], tl.float32)
    if PRODUCTS == 3:
        step = tl.dot(left_lo, right_hi, step)
        step = tl.dot(left_hi, right_lo, step)
    return tl.dot(left_hi, right_hi, step)


@triton.jit
def _forward_sums(
    logs, weights, blocks_ptr, count,
    row,  # the tile's first in a plane of x
    packed,  # the tile's first in a plane of the weights
    steps,
    rows_x,  # of a plane of x
    rows_w, pitch,
    PLANES: tl.constexpr,  # of a value: hi, lo or hi
    HAS_IM: tl.constexpr, PRODUCTS: tl.constexpr, DEPTH: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """The scaled sums with log r and with the mask; with HAS_IM the second has both, packed."""
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for step in range(loop_end(steps)):
        i = step * DEPTH
        left_hi = _load(logs, row, i, pitch, BLOCK, DEPTH, DESCRIPTORS)
        right_hi = tl.trans(_load(weights, packed, i, pitch, BLOCK, DEPTH, DESCRIPTORS))
        if PRODUCTS == 3:
            left_lo = _load(logs, rows_x + row, i, pitch, BLOCK, DEPTH, DESCRIPTORS)
            right_lo = _load(weights, rows_w + packed, i, pitch, BLOCK, DEPTH, DESCRIPTORS)
            right_lo = tl.trans(right_lo)
            acc += _multiply(left_hi, left_lo, right_hi, right_lo, 3)
        else:
            acc += _multiply(left_hi, left_hi, right_hi, right_hi, 1)
    if HAS_IM:
        other = acc
    else:
        other = tl.zeros([BLOCK, BLOCK], tl.float32)
    STEP: tl.constexpr = _FLAG_INPUTS if DEPTH < _FLAG_INPUTS else DEPTH
    PARTS: tl.constexpr = STEP // DEPTH  # steps of the loop for a listed step
    for turn in range(loop_end(count * PARTS)):
        i = (tl.load(blocks_ptr + turn // PARTS) - turn // PARTS) * STEP + turn * DEPTH
        mask = _load(logs, PLANES * rows_x + row, i, pitch, BLOCK, DEPTH, DESCRIPTORS)
        right_hi = _load(weights, PLANES * rows_w + packed, i, pitch, BLOCK, DEPTH, DESCRIPTORS)
        right_hi = tl.trans(right_hi)
        product = tl.zeros([BLOCK, BLOCK], tl.float32)
        if PRODUCTS == 3:
            w_row = 3 * rows_w + packed
            right_lo = _load(weights, w_row, i, pitch, BLOCK, DEPTH, DESCRIPTORS)
            product = tl.dot(mask, tl.trans(right_lo), product)
        other += tl.dot(mask, right_hi, product)
    return acc, other


@triton.jit
def _alternate(packed, COLS: tl.constexpr):
    """The even and the odd columns of COLS."""
    return tl.split(tl.reshape(packed, [BLOCK, COLS // 2, 2]))


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
    blocks_ptr, counts_ptr,
    scale_ptr,  # [K, tiles_n OUTPUTS]
    y_ptr,  # [K, B, O]
    s_ptr, B, O,
    steps,  # of DEPTH inputs
    rows_x, rows_w, pitch, tiles, tiles_b, tiles_n, programs,
    OWN_X: tl.constexpr,  # every model has rows of x of its own
    HAS_IM: tl.constexpr, SAVE_SIN: tl.constexpr,
    PRODUCTS: tl.constexpr,  # 0: `logs` has the library's sums, [rows_x, rows_w]
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
            tl.load(counts_ptr + x_tile), x_tile * BLOCK, w_tile * BLOCK, steps, rows_x, rows_w,
            pitch, PLANES, HAS_IM,
        )  # fmt: skip
        first_b = b_tile.to(tl.int64) * BLOCK
        start = (k * B.to(tl.int64) + first_b) * O
        offs_b = tl.arange(0, BLOCK)
        mask_b = offs_b < B - first_b
        first_o = n_tile * OUTPUTS
        if PRODUCTS == 0:
            other = _load(logs, x_tile * BLOCK, w_tile * BLOCK, rows_w, BLOCK, BLOCK, False)
            acc = other
        else:
            acc, other = _forward_sums(*operands, PRODUCTS, DEPTH, DESCRIPTORS)
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
                acc, other = _forward_sums(*operands, 1, DEPTH, DESCRIPTORS)
                start += zero
                _store_tile(
                    acc, other, scales, y_ptr + start, s_ptr + start, first_o + zero,
                    offs_b + zero, mask_b, O, HAS_IM, SAVE_SIN, True,
                )  # fmt: skip


@triton.jit
def _ghat(gate_ptr, first, offs_i, mask_i, HAS_GATE: tl.constexpr):
    """``ghat [1, BLOCK]``."""
    if HAS_GATE:
        gate = tl.load(gate_ptr + first + offs_i, mask=mask_i, other=0.0)
        ghat = clamp_gate(gate.to(tl.float32))
    else:
        ghat = tl.full([BLOCK], 1.0, tl.float32)
    return ghat[None, :]


@triton.jit
def _halves_of_rows(acc):
    """The two halves ``[BLOCK / 2, BLOCK]`` of alternating rows."""
    pairs = tl.permute(tl.reshape(acc, [BLOCK // 2, 2, BLOCK]), [0, 2, 1])
    return tl.split(pairs)


@triton.jit
def _sums_with_weights(
    upstream, weights, row_scale, row, w_row, first_i, packed, rows, rows_w, pitch, tiles_b,
    PRODUCTS: tl.constexpr, DEPTH: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """``dL``, the gradient of log r, of a tile, scaled, and the greatest inverse scale of a row."""
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    greatest = tl.zeros([BLOCK], tl.float32)
    for step in range(loop_end(packed // DEPTH)):
        n = step * DEPTH
        scale = tl.load(row_scale + n // BLOCK * (tiles_b.to(tl.int64) * BLOCK))
        greatest = tl.maximum(greatest, scale)
        left_hi = _load(upstream, row, n, packed, BLOCK, DEPTH, DESCRIPTORS)
        right_hi = _load(weights, w_row + n, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
        if PRODUCTS == 3:
            left_lo = _load(upstream, rows + row, n, packed, BLOCK, DEPTH, DESCRIPTORS)
            low_row = rows_w + w_row + n
            right_lo = _load(weights, low_row, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
            product = _multiply(left_hi, left_lo, right_hi, right_lo, 3)
        else:
            product = _multiply(left_hi, left_hi, right_hi, right_hi, 1)
        acc = tl.fma(product, (scale * _DOWN)[:, None], acc)
    return acc, greatest


@triton.jit(do_not_specialize=["K", "B", "rows", "tiles", "tiles_b", "tiles_i", "programs"])
def npu_large_backward_x_kernel(
    upstream,  # by rows, [2 rows, packed]; the library's sums [rows, pitch] where PRODUCTS is 0
    weights,  # [2 rows_w, pitch]
    row_scale_ptr,  # [K, tiles_n, tiles_b BLOCK]
    scale_ptr,  # [K, pitch]
    bound_ptr,  # [K, pitch]: a sum below this, times the row's inverse scale, may be inaccurate
    x_ptr, gate_ptr,
    grad_x_ptr,  # [K, B, I]
    gate_partial_ptr,  # [tiles_b or more, K, I]
    flags_ptr,  # [K tiles_b, tiles_i]: 1 for a tile with a sum that may be inaccurate, else 0
    K, B, I, packed,
    rows,  # of a plane
    rows_w, pitch, tiles, tiles_b, tiles_i, programs,
    EPS: tl.constexpr, SHARED_X: tl.constexpr, HAS_GATE: tl.constexpr, NEED_X: tl.constexpr,
    NEED_GATE: tl.constexpr, PRODUCTS: tl.constexpr, DEPTH: tl.constexpr, DESCRIPTORS: tl.constexpr,
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
        row = (k * tiles_b + b_tile) * BLOCK
        row_scale = row_scale_ptr + (k * tiles_n).to(tl.int64) * tiles_b * BLOCK
        row_scale = row_scale + b_tile * BLOCK + tl.arange(0, BLOCK)
        if PRODUCTS == 0:
            greatest = tl.load(row_scale)
            acc = _load(upstream, row, first_i, pitch, BLOCK, BLOCK, False)
            acc *= (greatest * _DOWN)[:, None]
        else:
            acc, greatest = _sums_with_weights(
                upstream, weights, row_scale, row, k * packed, first_i, packed, rows, rows_w, pitch,
                tiles_b, PRODUCTS, DEPTH, DESCRIPTORS,
            )  # fmt: skip
        offs = k * pitch + first_i + offs_i
        # Rows of zeros have the least scale, and inputs without a weight 0 in `bound_ptr`.
        bound = tl.where(greatest > LEAST_INVERSE, greatest, 0.0)[:, None]
        small = tl.abs(acc) < bound * tl.load(bound_ptr + offs)[None, :]
        tl.store(flags_ptr + tile, tl.max(small.to(tl.int32)))
        acc *= (tl.load(scale_ptr + offs) * (1.0 / _DOWN))[None, :]

        first_b = b_tile.to(tl.int64) * BLOCK
        mask_i = offs_i < I - first_i
        ghat = _ghat(gate_ptr, k * I + first_i, offs_i, mask_i, HAS_GATE)
        start_x = (k * B.to(tl.int64) + first_b) * I + first_i
        if SHARED_X:
            tile_ptr = x_ptr + first_b * I + first_i
        else:
            tile_ptr = x_ptr + start_x
        part = tl.zeros([BLOCK], tl.float32)
        halves = _halves_of_rows(acc)
        for half in tl.static_range(2):
            tl.debug_barrier()  # or both halves' registers are in use at once
            offs_b = 2 * tl.arange(0, BLOCK // 2) + half
            mask = (offs_b < B - first_b)[:, None] & mask_i[None, :]
            offs_x = offs_b[:, None] * I + offs_i[None, :]
            x = tl.load(tile_ptr + offs_x, mask=mask, other=1.0).to(tl.float32)
            d_r = halves[half] / magnitude(x, ghat, EPS)
            if NEED_X:
                grad_x = d_r * ghat * signum(x)
                ptrs = grad_x_ptr + start_x + offs_x
                tl.store(ptrs, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
            if NEED_GATE:
                part += tl.sum(tl.where(mask, d_r * (tl.abs(x) + (EPS - 1.0)), 0.0), axis=0)
        if NEED_GATE:
            ptrs = gate_partial_ptr + (b_tile.to(tl.int64) * K + k) * I + first_i + offs_i
            tl.store(ptrs, part, mask=mask_i)


@triton.jit
def _sums_with_logs(
    upstream, logs, column_scale_ptr, row, x_row, col, first_i, tiles, packed, rows, rows_x, pitch,
    PRODUCTS: tl.constexpr, DEPTH: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """``dP' log r`` and ``dQ' log r`` of a tile, in packed rows, over `tiles` tiles of rows."""
    PARTS: tl.constexpr = BLOCK // DEPTH
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for step in range(loop_end(tiles * PARTS)):
        b = step * DEPTH
        scale = tl.load(column_scale_ptr + step // PARTS * packed.to(tl.int64)) * (1.0 / LOG_SCALE)
        left_hi = tl.trans(_load(upstream, row + b, col, packed, DEPTH, BLOCK, DESCRIPTORS))
        right_hi = _load(logs, x_row + b, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
        if PRODUCTS == 3:
            left_lo = _load(upstream, rows + row + b, col, packed, DEPTH, BLOCK, DESCRIPTORS)
            left_lo = tl.trans(left_lo)
            right_lo = _load(logs, rows_x + x_row + b, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
            acc = tl.fma(_multiply(left_hi, left_lo, right_hi, right_lo, 3), scale[:, None], acc)
        else:
            acc = tl.fma(_multiply(left_hi, left_hi, right_hi, right_hi, 1), scale[:, None], acc)
    return acc


@triton.jit
def _sums_with_mask(
    upstream, logs, column_scale_ptr, row, x_row, col, first_i, tiles, packed, rows, pitch,
    PRODUCTS: tl.constexpr, DEPTH: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """``dP' m`` and ``dQ' m`` of a tile, with the mask m, which is exact in one plane."""
    PARTS: tl.constexpr = BLOCK // DEPTH
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for step in range(loop_end(tiles * PARTS)):
        b = step * DEPTH
        scale = tl.load(column_scale_ptr + step // PARTS * packed.to(tl.int64)) * (1.0 / LOG_SCALE)
        left_hi = tl.trans(_load(upstream, row + b, col, packed, DEPTH, BLOCK, DESCRIPTORS))
        mask = _load(logs, x_row + b, first_i, pitch, DEPTH, BLOCK, DESCRIPTORS)
        product = tl.zeros([BLOCK, BLOCK], tl.float32)
        if PRODUCTS == 3:
            left_lo = _load(upstream, rows + row + b, col, packed, DEPTH, BLOCK, DESCRIPTORS)
            product = tl.dot(tl.trans(left_lo), mask, product)
        acc = tl.fma(tl.dot(left_hi, mask, product), scale[:, None], acc)
    return acc


@triton.jit
def _negatives(flags_ptr, x_tile, i_tile, tiles, pitch, DEPTH: tl.constexpr):
    """The number of tiles of rows with a negative input in a tile of inputs."""
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
    # By columns, [2 rows, packed]; without an imaginary weight [4 rows, packed]. Where PRODUCTS is
    # 0, the library's sums with log r, [packed, pitch], and then those with the mask.
    upstream,
    logs,  # [3 rows_x, pitch]
    column_scale_ptr,  # [1 or 2, K tiles_b, packed]
    flags_ptr,  # [models of x tiles_b, pitch / FLAG_INPUTS]
    wre_ptr, wim_ptr, gate_ptr,
    grad_re_ptr,  # [splits, K, O, I]
    grad_im_ptr,
    gate_partial_ptr,  # [rows, K, I]
    gate_row,  # the first row of gate_partial that this kernel writes
    K, O, I, packed,
    rows,  # of a plane
    rows_x, pitch, scale_plane, tiles_b,
    tiles_of_split,  # of rows
    OWN_X: tl.constexpr, HAS_IM: tl.constexpr, HAS_GATE: tl.constexpr, NEED_RE: tl.constexpr,
    NEED_IM: tl.constexpr, NEED_GATE: tl.constexpr, PRODUCTS: tl.constexpr, DEPTH: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    tiles_n, tiles_i = packed // BLOCK, pitch // BLOCK
    pid = tl.program_id(0)  # all tiles of one split read the same rows and run next to each other
    i_tile = pid % tiles_i
    n_tile = pid // tiles_i % tiles_n
    k = pid // (tiles_i * tiles_n) % K
    pid_s = pid // (tiles_i * tiles_n) // K
    first_i, col = i_tile * BLOCK, n_tile * BLOCK
    first_tile = pid_s * tiles_of_split
    tiles = tl.minimum(tiles_b - first_tile, tiles_of_split)
    row_tile = k * tiles_b + first_tile
    x_tile = first_tile
    if OWN_X:
        x_tile += k * tiles_b
    offs = tl.arange(0, BLOCK)
    column_scale_ptr += row_tile.to(tl.int64) * packed + col + offs
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    if PRODUCTS == 0:
        scale = tl.load(column_scale_ptr) * (1.0 / LOG_SCALE)
        acc = scale[:, None] * _load(upstream, col, first_i, pitch, BLOCK, BLOCK, False)
    elif NEED_RE or NEED_IM:
        acc = _sums_with_logs(
            upstream, logs, column_scale_ptr, row_tile * BLOCK, x_tile * BLOCK, col, first_i, tiles,
            packed, rows, rows_x, pitch, PRODUCTS, DEPTH, DESCRIPTORS,
        )  # fmt: skip
    # Products with the mask, if an input of this tile is negative.
    any_negative = _negatives(flags_ptr, x_tile, i_tile, tiles, pitch, DEPTH)
    PLANES: tl.constexpr = 2 if PRODUCTS == 3 else 1
    row = row_tile * BLOCK
    if not HAS_IM:  # planes of dQ follow those of dP
        row += PLANES * rows
        column_scale_ptr += scale_plane
    if PRODUCTS == 0:
        masked = scale[:, None] * _load(logs, col, first_i, pitch, BLOCK, BLOCK, False)
    else:
        masked = _sums_with_mask(
            upstream, logs, column_scale_ptr, row, PLANES * rows_x + x_tile * BLOCK, col, first_i,
            tl.where(any_negative > 0, tiles, 0), packed, rows, pitch, PRODUCTS, DEPTH, DESCRIPTORS,
        )  # fmt: skip

    mask_i = offs < I - first_i
    ghat = _ghat(gate_ptr, k * I + first_i, offs, mask_i, HAS_GATE)
    OUTPUTS: tl.constexpr = BLOCK // 2 if HAS_IM else BLOCK
    sums = _halves_of_rows(acc)
    phases = _halves_of_rows(masked)
    HALVES: tl.constexpr = 1 if HAS_IM else 2  # each has a row of the gate's partial sums
    offs_o = tl.arange(0, BLOCK // 2)
    if not HAS_IM:  # quarters alternate
        offs_o = offs_o % 2 * (BLOCK // 4) + offs_o // 2
    for half in tl.static_range(HALVES):
        start_o = n_tile * OUTPUTS + half * (BLOCK // 2)
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
