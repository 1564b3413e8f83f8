"""Forward and backward of large layers: operands made once (`npu_planes`), then products of planes.

The formulas are those of `npu`. Its kernels compute logarithms, masks and splits anew for every
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

A row of dP and dQ has one scale, so that values far below the row's greatest keep few bits or none
(`npu_planes`). In dL this matters where all of the greatest values meet weights that are 0 or
small. So backward_x flags a tile that has a sum below ``2**8`` units, products of the inverse
scales; a value near the greatest times a weight near the greatest is ``2**28`` units or more, and
what is lost about ``2**-11`` for each term. The one-pass kernel computes flagged tiles again. An
input is exempt if no weight of it is below ``2**-14`` of its greatest one, nor, if its gate is
closed, a real weight: then the greatest value of a row meets a weight, and a small sum is one of
large terms that cancel, which costs float32 as many bits. (Where that value is a dQ and the weight
a real one, dP is tiny because of its cosine, whose rounding error is as large as what is lost.
Where it is a dP and the weight an imaginary one, dQ could be tiny only if ``Q`` is about 0, in
spite of this weight.) In layers of random weights one sum in a million is so small, and of inputs
to O outputs a part of about ``2**-14.5 O`` is not exempt without an imaginary weight, ``2**-29 O``
with one: up to 2048 outputs, a sum flags its tile in vain with a probability of at most 1e-7. A sum
just above the threshold has an error of up to ``2**-16``.

The forward multiplies no mask for steps of inputs without a negative input in the tile's rows, and
backward_w none for tiles of inputs without one in the program's rows.

Where the chip copies tiles itself (compute capability 9.0 and more) tensor descriptors read the
operands, elsewhere pointers. The forward and backward_x start as many programs as fit the chip at
once, which take one tile after the other: one on each multiprocessor, or two with tiles of 64 rows.

The planes are freed after each pass; the backward makes those of x and the weights anew. They take
6 bytes for each input and 8 for each weight in the forward, and in the backward 16 more for each
output.

Valid range: see `npu_planes` for what is too small; an infinite input gives NaN in the forward
where its weight is too small. The gradient of a weight keeps fewer bits if the rows of a tile
whose dP or dQ exceed ``2**17`` times those of the others add exactly 0 to it, and is 0 beyond
``2**39``. They do where log r of its input is 0 (``|x| + eps`` is 1) and, in the gradient of an
imaginary weight, where no input of the row is negative while all imaginary weights are 0: the sine
is 0 there, and so is the mask. A gradient of x overflows where a row's sum of dP and dQ times the
weights, each divided by the input's greatest weight, exceeds 1.7e38. Everything else as in `npu`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from npu_kernels._operators.precision import float32_matmul_precision
from npu_kernels._triton import for_graph, tuning
from npu_kernels._triton.costs import large_is_faster
from npu_kernels._triton.launch import Sizes, needed
from npu_kernels._triton.npu_large_backward_kernels import (
    npu_large_backward_w_kernel,
    npu_large_backward_x_kernel,
)
from npu_kernels._triton.npu_large_forward_kernels import npu_large_forward_kernel
from npu_kernels._triton.npu_planes import (
    FLAG_INPUTS,
    FLAGS_OF_PROGRAM,
    HI,
    HI_LO,
    TILE,
    input_planes,
    padded,
    upstream_planes,
    weight_planes,
)
from npu_kernels._triton.tape import start
from npu_kernels._triton.weight_gradients import Gradients

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
# Of the one-pass kernel that computes inaccurate tiles again; all of float32's range and bits.
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

    The fewest parts that leave less than a tenth of the multiprocessors' time unused, else those
    that leave least. A multiprocessor has one of the `tiles_w` programs of a part at a time.
    """
    best, most_used = (1, tiles_b), 0.0
    for splits in range(1, min(tiles_b, programs) + 1):
        tiles = -(-tiles_b // splits)
        parts = -(-tiles_b // tiles)
        used = tiles_w * tiles_b / (-(-tiles_w * parts // programs) * programs * tiles)
        if used > most_used:
            best, most_used = (parts, tiles), used
        if used > 0.9:
            break
    return best


def large_forward(
    x: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None,
    eps: float, save_sin: bool, y: Tensor, s: Tensor, sizes: Sizes, plan: Plan,
) -> None:  # fmt: skip
    """Fill y, and s if `save_sin`; operands contiguous, sizes positive. Three launches."""
    shape = padded(sizes, weight_im is not None, gate is not None)
    rows, depth, _ = plan.forward
    logs = input_planes(x, gate, eps, sizes, shape, plan.planes, max(FLAG_INPUTS, depth), rows)
    weights, scale, _ = weight_planes(
        weight_re, weight_im, gate, sizes, shape, phase=True, count=plan.planes
    )
    rows_x, rows_w = shape.models_x * shape.tiles_b * TILE, sizes.K * shape.packed
    tiles_b = shape.tiles_b * (TILE // rows)
    tiles = sizes.K * tiles_b * shape.tiles_n
    programs = min(tiles, plan.programs(plan.forward))
    start(
        npu_large_forward_kernel, programs, plan.forward.options,
        _operand(logs.planes, rows, depth, plan), _operand(weights, TILE, depth, plan),
        logs.blocks, logs.counts, scale, y, s, sizes.B, sizes.O, -(-sizes.I // depth),
        rows_x, rows_w, shape.pitch, tiles, tiles_b, shape.tiles_n, programs, shape.models_x > 1,
        weight_im is not None, save_sin, rows, plan.products, depth, plan.descriptors,
    )  # fmt: skip


def large_backward(
    grad_y: Tensor, x: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None,
    y: Tensor, s: Tensor, eps: float, straight_through: bool, needs: int, sizes: Sizes, plan: Plan,
    repair: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The four gradients; operands contiguous, sizes positive. At most seven launches.

    repair: the kernel `npu_repair_x` of `npu`, which computes inaccurate tiles again.
    """
    K, B, I, O, shared_x = sizes
    imaginary, gated = weight_im is not None, gate is not None
    need_x, need_re, need_im, need_gate = needed(needs, x, weight_re, weight_im, gate)
    by_row, by_column = need_x or need_gate, need_re or need_im or need_gate
    shape = padded(sizes, imaginary, gated)
    upstream = upstream_planes(
        grad_y, y, s, imaginary, sizes, shape, by_row, by_column, plan.planes
    )

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
            weight_re, weight_im, gate, sizes, shape, phase=False, count=plan.planes
        )
        tiles = K * tiles_b * shape.tiles_i
        programs = min(tiles, plan.programs(tiles_of_x))
        row_tile, depth, _ = tiles_of_x
        flags = x.new_empty((tiles,), dtype=torch.int32)
        start(
            npu_large_backward_x_kernel, programs, tiles_of_x.options,
            _operand(upstream.by_row, row_tile, depth, plan), _operand(weights, depth, TILE, plan),
            upstream.row_scale, scale, bound, x, gate, part_x, part_gate, flags, K, B, I,
            shape.packed, rows, K * shape.packed, shape.pitch, tiles, tiles_b, shape.tiles_i,
            programs, eps, shared_x, gated, need_x, need_gate, row_tile,
            plan.products, depth, plan.descriptors,
        )  # fmt: skip
        start(
            repair, -(-tiles // FLAGS_OF_PROGRAM), REPAIR | {"BLOCK_B": row_tile},
            grad_y, x, weight_re, weight_im, gate, y, s, part_x, part_gate, flags, K, B, I, O,
            tiles, tiles_b, eps, shared_x, imaginary, gated, need_x, need_gate, tl.float32,
        )  # fmt: skip
    if by_column:
        row_tile, depth, _ = tiles_of_w
        flag_rows, step = TILE // 2, max(FLAG_INPUTS, depth)
        logs = input_planes(x, gate, eps, sizes, shape, plan.planes, step, flag_rows)
        start(
            npu_large_backward_w_kernel, tiles_w * splits, tiles_of_w.options,
            _operand(upstream.by_column, depth, row_tile, plan),
            _operand(logs.planes, depth, TILE, plan),
            upstream.column_scale, logs.flags, weight_re, weight_im, gate,
            part_re, part_im, part_gate, tiles_b, K, O, I, shape.packed, rows, rows_x, shape.pitch,
            rows // TILE * shape.packed, shape.tiles_b, tiles_of_split, shape.models_x > 1,
            imaginary, gated, need_re, need_im, need_gate, flag_rows, row_tile,
            plan.products, depth, plan.descriptors,
        )  # fmt: skip
    return gradients.finish(straight_through)
