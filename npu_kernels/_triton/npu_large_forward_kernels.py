"""The forward of large layers by products of planes; `npu_large` has the design."""

# ruff: noqa: SIM102, SIM108 (an `if` on a compile-time constant stands alone, see device_math)

import triton
import triton.language as tl

from npu_kernels._triton.device_math import exp_accurate, loop_end, sincos
from npu_kernels._triton.npu_planes import BLOCK, FLAG_INPUTS, LOG_SCALE, load_tile

_FLAG_INPUTS = tl.constexpr(FLAG_INPUTS)


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
        x = load_tile(logs, row + left * rows_x, i, pitch, ROWS, DEPTH, DESCRIPTORS)
        w = tl.trans(
            load_tile(weights, packed + right * rows_w, i, pitch, BLOCK, DEPTH, DESCRIPTORS)
        )
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
