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

A step of a loop has depth DEPTH. Its products (three with PRODUCTS = 3, two for the mask, which is
exact in one plane) start from zero, smallest first, and are added to the tile's sum in float32,
times the inverse scales of the operands: matrix units truncate when they add, and a long sum in
them would drift. PRODUCTS = 1 takes hi alone.

The forward multiplies no mask for steps of inputs without a negative input in the tile's rows, and
backward_w none for tiles of inputs without one in the program's rows.

Where the chip copies tiles itself (compute capability 9.0 and more) tensor descriptors read the
operands, elsewhere pointers. The forward and backward_x start one program for each multiprocessor,
which takes one tile after the other.

The planes are freed after each pass; the backward makes those of x and the weights anew. They take
6 bytes for each input and 8 for each weight in the forward, and in the backward 16 more for each
output.

Valid range: see `npu_planes` for what is too small; an infinite input gives NaN in the forward
where its weight is too small. Everything else as in `npu`.
"""

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from npu_kernels._backends.triton import tuning
from npu_kernels._backends.triton.costs import large_is_faster
from npu_kernels._backends.triton.launch import Sizes, needed
from npu_kernels._backends.triton.npu_large_kernels import (
    npu_large_backward_w_kernel,
    npu_large_backward_x_kernel,
    npu_large_forward_kernel,
)
from npu_kernels._backends.triton.npu_planes import (
    TILE,
    input_planes,
    padded,
    upstream_planes,
    weight_planes,
)
from npu_kernels._backends.triton.tape import start
from npu_kernels._backends.triton.weight_gradients import Gradients
from npu_kernels._operators.precision import float32_matmul_precision

Tensor = torch.Tensor


class Plan(NamedTuple):
    """The launch of a call's products."""

    products: int  # of planes in a step: 3 or 1
    depth: int  # of a step
    descriptors: bool  # the chip copies tiles itself
    programs: int  # multiprocessors
    options: dict[str, Any]  # of Triton's compiler


_OPTIONS = {"num_warps": 8, "num_stages": 3, "enable_fp_fusion": True}
# Two stages of a loop must fit the 99 KiB of shared memory of the other chips with sm_80's table.
PLANS = {
    "sm_80": Plan(3, 32, False, 108, _OPTIONS),
    "sm_90": Plan(3, 64, True, 132, _OPTIONS),
    "sm_100": Plan(3, 64, True, 148, _OPTIONS),
}
HIGH_DEPTHS = {"sm_80": 32, "sm_90": 128, "sm_100": 64}  # with one product, at `high`
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
    plan = PLANS.get(architecture)
    if plan is None or precision == "highest":
        return plan
    return plan._replace(products=1, depth=HIGH_DEPTHS[architecture])


@functools.cache
def _plan(device: torch.device, imaginary: bool, precision: str) -> Plan | None:
    architecture = tuning.architecture_of(device)
    plan = plan_for(architecture, precision)
    if plan is None or (_OLD_TRITON and (architecture == "sm_100" or not imaginary)):
        return None
    if device.type == "cuda" and not triton.knobs.runtime.interpret:
        properties = torch.cuda.get_device_properties(device)
        plan = plan._replace(programs=properties.multi_processor_count)
    return plan


def plan_of(x: Tensor, imaginary: bool, sizes: Sizes) -> Plan | None:
    """The plan of a layer for the large kernels, whatever its number of rows; else None."""
    if x.dtype is torch.float64 or tuning.overridden(_ONE_PASS):
        return None
    if _forced:
        return _forced[-1]
    if not large_is_faster(tuning.architecture_of(x.device), sizes.I, sizes.O, sizes.K):
        return None
    return _plan(x.device, imaginary, float32_matmul_precision())


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
    shape, low = padded(sizes, weight_im is not None, gate is not None), plan.products > 1
    logs = input_planes(x, gate, eps, sizes, shape, low, plan.depth)
    weights, scale = weight_planes(weight_re, weight_im, gate, sizes, shape, phase=True, low=low)
    tiles = sizes.K * shape.tiles_b * shape.tiles_n
    programs = min(tiles, plan.programs)
    start(
        npu_large_forward_kernel, programs, plan.options,
        _operand(logs.planes, TILE, plan.depth, plan), _operand(weights, TILE, plan.depth, plan),
        logs.blocks, logs.counts, scale, y, s, sizes.B, sizes.O, -(-sizes.I // plan.depth),
        logs.planes.shape[0] // 3, weights.shape[0] // 4, shape.pitch, tiles, shape.tiles_b,
        shape.tiles_n, programs, shape.models_x > 1, weight_im is not None, save_sin,
        plan.products, plan.depth, plan.descriptors,
    )  # fmt: skip


def large_backward(
    grad_y: Tensor, x: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None,
    y: Tensor, s: Tensor, eps: float, straight_through: bool, needs: int, sizes: Sizes, plan: Plan,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The four gradients; operands contiguous, sizes positive. At most six launches."""
    K, B, I, O, shared_x = sizes
    imaginary, gated, low = weight_im is not None, gate is not None, plan.products > 1
    need_x, need_re, need_im, need_gate = needed(needs, x, weight_re, weight_im, gate)
    by_row, by_column = need_x or need_gate, need_re or need_im or need_gate
    shape = padded(sizes, imaginary, gated)
    upstream = upstream_planes(grad_y, y, s, imaginary, sizes, shape, by_row, by_column, low)

    tiles_w = K * shape.tiles_n * shape.tiles_i
    splits, tiles_of_split = row_splits(shape.tiles_b, tiles_w, plan.programs)
    gate_rows = shape.tiles_b + splits * shape.tiles_n * (1 if imaginary else 2)
    gradients = Gradients(
        x, weight_re, weight_im, gate, needs, sizes, splits, gate_rows, tl.float32
    )
    part_x, part_re, part_im, part_gate = gradients.parts
    rows = K * shape.tiles_b * TILE
    last = (plan.products, plan.depth, plan.descriptors)
    if by_row:
        weights, scale = weight_planes(
            weight_re, weight_im, gate, sizes, shape, phase=False, low=low
        )
        tiles = K * shape.tiles_b * shape.tiles_i
        programs = min(tiles, plan.programs)
        start(
            npu_large_backward_x_kernel, programs, plan.options,
            _operand(upstream.by_row, TILE, plan.depth, plan),
            _operand(weights, plan.depth, TILE, plan),
            upstream.row_scale, scale, x, gate, part_x, part_gate, K, B, I, shape.packed, rows,
            weights.shape[0] // 2, shape.pitch, tiles, shape.tiles_b, shape.tiles_i, programs,
            eps, shared_x, gated, need_x, need_gate, *last,
        )  # fmt: skip
    if by_column:
        logs = input_planes(x, gate, eps, sizes, shape, low, plan.depth)
        start(
            npu_large_backward_w_kernel, tiles_w * splits, plan.options,
            _operand(upstream.by_column, plan.depth, TILE, plan),
            _operand(logs.planes, plan.depth, TILE, plan),
            upstream.column_scale, logs.flags, weight_re, weight_im, gate,
            part_re, part_im, part_gate, shape.tiles_b, K, O, I, shape.packed, rows,
            logs.planes.shape[0] // 3, shape.pitch, rows // TILE * shape.packed, shape.tiles_b,
            tiles_of_split, shape.models_x > 1, imaginary, gated,
            need_re, need_im, need_gate, *last,
        )  # fmt: skip
    return gradients.finish(straight_through)
