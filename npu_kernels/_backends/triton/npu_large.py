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
exact in one plane) start from zero, smallest first, and are added to the tile's sum in float32, in
the backward times an inverse scale: matrix units truncate when they add, and a long sum in them
would drift. PRODUCTS = 1 takes hi alone.

A row of dP and dQ has one scale, so that values far below the row's greatest keep few bits or none
(`npu_planes`). In dL this matters where all of the greatest values meet weights that are 0 or
small. So backward_x flags a tile that has a sum below ``2**8`` units, products of the inverse
scales; a value near the greatest times a weight near the greatest is ``2**28`` units or more, and
what is lost about ``2**-11`` for each term. The one-pass kernel computes flagged tiles again. An
input is exempt if no weight of it is below ``2**-14`` of its greatest one: then the greatest value
of a row meets a weight, and a small sum is one of large terms that cancel, which costs float32 as
many bits. (Where that value is a dQ and the weight a real one, dP is tiny because of its cosine,
whose rounding error is as large as what is lost.) In layers of random weights one sum in a million
is so small, and of inputs to O outputs a part of about ``2**-14.5 O`` is not exempt without an
imaginary weight, ``2**-29 O`` with one: up to 2048 outputs, a sum flags its tile in vain with a
probability of at most 1e-7.

A second way, :attr:`Plan.library`, is for chips on which these products disappoint. torch's library
multiplies float16 planes that lie side by side, so that one product adds up all terms, and writes
float32 sums; the kernels above, with PRODUCTS = 0, read them and do the rest. Its sums are as long
as three or five times the inputs, without a fresh start in every step, and a whole row or column of
dP and dQ has one scale.
No plan has it unless it was measured (`tuning.measured_plan`).

The forward multiplies no mask for steps of inputs without a negative input in the tile's rows, and
backward_w none for tiles of inputs without one in the program's rows.

Where the chip copies tiles itself (compute capability 9.0 and more) tensor descriptors read the
operands, elsewhere pointers. The forward and backward_x start one program for each multiprocessor,
which takes one tile after the other.

The planes are freed after each pass; the backward makes those of x and the weights anew. They take
6 bytes for each input and 8 for each weight in the forward, and in the backward 16 more for each
output; with the library 10 for each input and weight and 24 for each output, and its sums.

Valid range: see `npu_planes` for what is too small; an infinite input gives NaN in the forward
where its weight is too small. The gradient of a weight keeps fewer bits if log r of its input is
exactly 0 (``|x| + eps`` is 1) in all rows of a tile, by the library of all, whose dP or dQ exceed
``2**17`` times those of the others, and is 0 beyond ``2**39``. Everything else as in `npu`.
"""

import functools
from collections.abc import Callable
from functools import partial
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
    FLAG_INPUTS,
    HI,
    HI_LO,
    LEFT,
    RIGHT,
    TILE,
    input_planes,
    padded,
    upstream_planes,
    weight_planes,
)
from npu_kernels._backends.triton.tape import call, start
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
    library: bool = False  # torch's library makes the products, of planes side by side

    @property
    def in_kernels(self) -> int:
        """The products that kernels compute: none where the library does."""
        return 0 if self.library else self.products

    @property
    def orders(self) -> tuple[int, int]:
        """The orders of the planes of left and right operands."""
        if self.library:
            return (LEFT, RIGHT) if self.products > 1 else (HI, HI)
        return (HI_LO, HI_LO) if self.products > 1 else (HI, HI)


_OPTIONS = {"num_warps": 8, "num_stages": 3, "enable_fp_fusion": True}
# Two stages of a loop must fit the 99 KiB of shared memory of the other chips with sm_80's table.
PLANS = {
    "sm_80": Plan(3, 32, False, 108, _OPTIONS),
    "sm_90": Plan(3, 64, True, 132, _OPTIONS),
    "sm_100": Plan(3, 64, True, 148, _OPTIONS),
}
# Of the one-pass kernel that computes inaccurate tiles again; all of float32's range and bits.
REPAIR = {"BLOCK_B": TILE, "BLOCK_O": 16, "BLOCK_I": 32, "PASSES": 6, "num_warps": 8}
REPAIR |= {"num_stages": 2, "maxnreg": 255, "enable_fp_fusion": True}
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
    """The plan of a layer for the large kernels, whatever its number of rows; else None.

    It is the fastest one that was measured (`tuning.measured_plan`), else what `costs` says. The
    library multiplies for one model with an imaginary weight only.
    """
    if x.dtype is torch.float64 or tuning.overridden(_ONE_PASS):
        return None
    features, precision = (sizes.I, sizes.O, sizes.K), float32_matmul_precision()
    measured = tuning.measured_plan(x.device, precision, features)
    if _forced:
        plan = _forced[-1]
    elif measured is not None:
        plan = _plan(x.device, imaginary, precision) if measured["products"] else None
        if plan is not None and measured["library"]:
            plan = plan._replace(library=True)
        elif plan is not None:
            plan = plan._replace(depth=measured["depth"])
    elif large_is_faster(tuning.architecture_of(x.device), *features):
        plan = _plan(x.device, imaginary, precision)
    else:
        plan = None
    if plan is not None and plan.library:
        if sizes.K > 1 or not imaginary:
            return plan._replace(library=False)
        plan = plan._replace(depth=FLAG_INPUTS)  # no kernel multiplies; this takes few registers
    return plan


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


def _multiply(left: Tensor, right: Tensor, result: Tensor) -> None:
    """The library's product of float16 matrices, in float32."""
    # torch refuses this product where the user allows float16 sums, and has none on a CPU.
    if result.is_cuda and not torch.backends.cuda.matmul.allow_fp16_accumulation:
        torch.mm(left, right, out_dtype=torch.float32, out=result)
    else:
        torch.mm(left.float(), right.float(), out=result)


def _product(left: Tensor, right: Tensor, result: Tensor) -> None:
    """Multiply operands whose rows are the results' rows and columns."""
    _multiply(left, right.t(), result)


def _products_over_rows(
    planes: int, left: Tensor, right: Tensor, logs: Tensor, mask: Tensor
) -> None:
    """Multiply planes that lie one behind the other: by log r, then hi and lo by the mask."""
    rows = left.shape[0] // planes
    _multiply(left.t(), right[: planes * rows], logs)
    _multiply(left[rows * (planes - 1) // 2 :].t(), right[planes * rows :], mask)


def _factors(
    plan: Plan, product: Callable[..., None], left: Tensor, right: Tensor,
    left_tile: tuple[int, int], right_tile: tuple[int, int], *sums: tuple[int, int],
) -> tuple[Any, Any]:  # fmt: skip
    """What a kernel reads: the planes of both factors, or the library's sums, of these sizes."""
    if plan.library:
        results = [left.new_empty(size, dtype=torch.float32) for size in sums]
        call(product, left, right, *results)
        return results[0], results[-1]
    return _operand(left, *left_tile, plan), _operand(right, *right_tile, plan)


def large_forward(
    x: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None,
    eps: float, save_sin: bool, y: Tensor, s: Tensor, sizes: Sizes, plan: Plan,
) -> None:  # fmt: skip
    """Fill y, and s if `save_sin`; operands contiguous, sizes positive.

    Three launches, with the library a product too.
    """
    shape, library = padded(sizes, weight_im is not None, gate is not None), plan.library
    left, right = plan.orders
    logs = input_planes(x, gate, eps, sizes, shape, left, plan.depth, library)
    weights, scale, _ = weight_planes(
        weight_re, weight_im, gate, sizes, shape, phase=True, order=right, library=library
    )
    rows_x, rows_w = shape.models_x * shape.tiles_b * TILE, sizes.K * shape.packed
    tile = TILE, plan.depth
    factors = _factors(plan, _product, logs.planes, weights, tile, tile, (rows_x, rows_w))
    tiles = sizes.K * shape.tiles_b * shape.tiles_n
    programs = min(tiles, plan.programs)
    start(
        npu_large_forward_kernel, programs, plan.options, *factors,
        logs.blocks, logs.counts, scale, y, s, sizes.B, sizes.O, -(-sizes.I // plan.depth),
        rows_x, rows_w, shape.pitch, tiles, shape.tiles_b,
        shape.tiles_n, programs, shape.models_x > 1, weight_im is not None, save_sin,
        plan.in_kernels, plan.depth, plan.descriptors,
    )  # fmt: skip


def large_backward(
    grad_y: Tensor, x: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None,
    y: Tensor, s: Tensor, eps: float, straight_through: bool, needs: int, sizes: Sizes, plan: Plan,
    one_pass: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The four gradients; operands contiguous, sizes positive.

    `one_pass`: the kernel `npu_backward_x` of `npu`, which computes inaccurate tiles again. At most
    seven launches, with the library eight and three products.
    """
    K, B, I, O, shared_x = sizes
    imaginary, gated, library = weight_im is not None, gate is not None, plan.library
    need_x, need_re, need_im, need_gate = needed(needs, x, weight_re, weight_im, gate)
    by_row, by_column = need_x or need_gate, need_re or need_im or need_gate
    shape, (left, right) = padded(sizes, imaginary, gated), plan.orders
    upstream = upstream_planes(
        grad_y, y, s, imaginary, sizes, shape, by_row, by_column, plan.orders, library
    )

    tiles_w = K * shape.tiles_n * shape.tiles_i
    splits, tiles_of_split = row_splits(shape.tiles_b, tiles_w, plan.programs)
    if library:
        splits, tiles_of_split = 1, shape.tiles_b
    gate_rows = shape.tiles_b + splits * shape.tiles_n * (1 if imaginary else 2)
    gradients = Gradients(
        x, weight_re, weight_im, gate, needs, sizes, splits, gate_rows, tl.float32
    )
    part_x, part_re, part_im, part_gate = gradients.parts
    rows, rows_x = K * shape.tiles_b * TILE, shape.models_x * shape.tiles_b * TILE
    last = (plan.in_kernels, plan.depth, plan.descriptors)

    tile, turned = (TILE, plan.depth), (plan.depth, TILE)
    if by_row:
        weights = weight_planes(weight_re, weight_im, gate, sizes, shape, phase=False, order=right)
        factors = _factors(
            plan, _multiply, upstream.by_row, weights.planes, tile, turned, (rows, shape.pitch)
        )
        tiles = K * shape.tiles_b * shape.tiles_i
        programs = min(tiles, plan.programs)
        flags = x.new_empty((tiles,), dtype=torch.int32)
        start(
            npu_large_backward_x_kernel, programs, plan.options, *factors,
            upstream.row_scale, weights.scale, weights.bound, x, gate, part_x, part_gate, flags,
            K, B, I, shape.packed, rows, K * shape.packed, shape.pitch, tiles, shape.tiles_b,
            shape.tiles_i, programs, eps, shared_x, gated, need_x, need_gate, *last,
        )  # fmt: skip
        start(
            one_pass, K * shape.tiles_b * -(-I // REPAIR["BLOCK_I"]), REPAIR,
            grad_y, x, weight_re, weight_im, gate, y, s, part_x, part_gate, flags, K, B, I, O,
            eps, shared_x, imaginary, gated, need_x, need_gate, tl.float32,
        )  # fmt: skip
    if by_column:
        logs = input_planes(x, gate, eps, sizes, shape, left, plan.depth)
        products, sums = partial(_products_over_rows, min(right, 3)), (shape.packed, shape.pitch)
        factors = _factors(
            plan, products, upstream.by_column, logs.planes, turned, turned, sums, sums
        )
        start(
            npu_large_backward_w_kernel, tiles_w * splits, plan.options, *factors,
            upstream.column_scale, logs.flags, weight_re, weight_im, gate,
            part_re, part_im, part_gate, shape.tiles_b, K, O, I, shape.packed, rows,
            rows_x, shape.pitch, rows // TILE * shape.packed, shape.tiles_b,
            tiles_of_split, shape.models_x > 1, imaginary, gated,
            need_re, need_im, need_gate, *last,
        )  # fmt: skip
    return gradients.finish(straight_through)
