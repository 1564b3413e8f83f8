"""Large layers of the NPU family: planes made once, products of planes, and which layers take
them."""

import math
import mmap
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from npu_kernels import reference
from tests.support.kernels import EPS, errors, forward, outputs
from tests.support.samples import RECORDS, Sample, error_bound, normwise_error

pytest.importorskip("triton")
import triton.language as tl

from npu_kernels._triton import (
    for_graph,
    npu_large,
    npu_planes,
    reduction,
    tuning,
)
from npu_kernels._triton.launch import Sizes
from tests.support.compare import assert_near
from tests.triton.conftest import Launches

HIGH_PLANS, PLANS, use_plan = npu_large.HIGH_PLANS, npu_large.PLANS, npu_large.use_plan
HI_LO, TILE, WEIGHTS = npu_planes.HI_LO, npu_planes.TILE, npu_planes.FORWARD_WEIGHTS

# Few programs, so that each takes several tiles. The interpreter reads by descriptors as a GPU of
# the newer kind does.
PLAN = PLANS["sm_90"]._replace(multiprocessors=2)
POINTERS = PLANS["sm_80"]._replace(multiprocessors=3)
HIGH = HIGH_PLANS["sm_90"]._replace(multiprocessors=2)


def _with(plan: Any, **changes: int) -> Any:
    """The plan with these changes of all its tiles."""
    tiles = {name: tiles._replace(**changes) for name, tiles in plan._asdict().items()
             if isinstance(tiles, npu_large.Tiles)}  # fmt: skip
    return plan._replace(**tiles)


def _on(device: str, plan: Any = PLAN) -> Any:
    """The plan for tests; on a GPU the one of its kind."""
    if device == "cuda":
        plans = PLANS if plan.products > 1 else HIGH_PLANS
        plan_of_gpu = plans.get(tuning.architecture_of(torch.device("cuda", 0)))
        if plan_of_gpu is None:
            pytest.skip("no plan for this GPU")
        return plan_of_gpu._replace(multiprocessors=plan.multiprocessors)
    return plan


# Rows, inputs and outputs: of one tile, and a little more than one or two.
CASES: dict[str, tuple[tuple[int, int, int], dict[str, Any], Any]] = {
    "NPU": ((130, 70, 65), {}, PLAN),
    "NPU by pointers": ((130, 33, 65), {}, POINTERS),
    "RealNPU": ((33, 150, 130), {"without": ("weight_im",)}, PLAN),
    "NaiveNPU of models, shared x": ((33, 130, 17),
                                     {"without": ("gate",), "num_models": 2, "shared": True}, PLAN),
    "NPU of models, shared x": ((17, 33, 17), {"num_models": 2, "shared": True}, PLAN),
    "RealNPU of models by pointers": ((129, 20, 17), {"without": ("weight_im",), "num_models": 2},
                                      POINTERS),
}  # fmt: skip


def test_the_plan_is_that_of_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels may be compiled for several targets in one process."""
    x, sizes = torch.empty(0, 512), Sizes(1, 4096, 512, 512, True)
    monkeypatch.setattr(npu_large, "large_is_faster", lambda *_: True)
    for architecture in ("sm_80", "sm_90", "sm_80"):
        monkeypatch.setattr(tuning, "architecture_of", lambda device: architecture)  # noqa: B023
        assert npu_large.plan_of(x, True, sizes) == PLANS[architecture]


@pytest.mark.parametrize("case", CASES)
def test_parity(case: str, device: str, kernels: Any) -> None:
    """Errors of y, s and all gradients are at most twice the eager ones."""
    sizes, options, plan = CASES[case]
    torch.manual_seed(0)
    sample = RECORDS["npu"].sample(*sizes, dtype=torch.float32, device=device, **options)
    with use_plan(_on(device, plan)):
        for which, (error, eager) in enumerate(errors(sample, kernels)):
            assert error <= error_bound(eager, torch.float32, 1.0), (
                f"output {which}: {error:.1e}, eager {eager:.1e}"
            )


@pytest.mark.parametrize("plan", [PLAN, POINTERS])
def test_sums_of_one_term(plan: Any, device: str, kernels: Any) -> None:
    """The error of an exponent is at most 2^-21 of it; eager's is smaller."""
    torch.manual_seed(0)
    sample = RECORDS["npu"].sample(
        40, 130, 130, dtype=torch.float32, device=device, without=("weight_im", "gate")
    )
    weight, x = sample.tensors["weight_re"], sample.x
    weight.copy_(torch.diag(torch.randn(130, device=device) * 3)[torch.randperm(130)])
    x.copy_(torch.exp(torch.randn(40, 130, device=device)))
    grad_y = torch.ones(40, 130, device=device)
    with use_plan(_on(device, plan)):
        actuals = outputs(sample, kernels, grad_y)
    exact = outputs(sample.map(Tensor.double), reference, grad_y.double())
    bound = (exact[0].log().abs() + 1) * 2**-21
    assert ((actuals[0] / exact[0] - 1).abs() <= bound).all()
    for actual, expected in zip(actuals[2:4], exact[2:4], strict=True):
        assert normwise_error(actual, expected) <= 2 * float(bound.max())


@pytest.mark.parametrize("without", [(), ("weight_im",)])
def test_blocks_of_smaller_weights(without: tuple[str, ...], device: str, kernels: Any) -> None:
    sample = RECORDS["npu"].sample(20, 270, 17, dtype=torch.float32, device=device, without=without)
    for weight in (sample.tensors["weight_re"], sample.tensors["weight_im"]):
        if weight is not None:
            weight[:, 128:] /= 64
    with use_plan(_on(device)):
        for error, eager in errors(sample, kernels):
            assert error <= error_bound(eager, torch.float32, 1.0)


@pytest.mark.parametrize(("plan", "gated"), [(PLAN, True), (POINTERS, False)])
def test_a_huge_weight_touches_its_output_alone(
    plan: Any, gated: bool, device: str, kernels: Any
) -> None:
    """Nothing at all where its gate is closed; else its output is 0 in this case."""
    torch.manual_seed(0)
    sample = RECORDS["npu"].sample(9, 140, 70, dtype=torch.float32, device=device)
    sample.x[:, 3] = 2.5
    sample.tensors["gate"].fill_(1.0)
    sample.tensors["weight_re"][5, 3], sample.tensors["weight_im"][5, 3] = -1e12, 0.0
    if gated:
        sample.tensors["gate"][3] = 0.0
    grad_y = torch.randn(9, 70, device=device)
    exact = sample.map(Tensor.double)
    with use_plan(_on(device, plan)):
        actuals = outputs(sample, kernels, grad_y)
    expected = outputs(exact, reference, grad_y.double())
    assert_near(actuals, expected, 1e-4)
    open_gates = torch.arange(140) != 3  # by far the largest gradient, where its gate is closed
    assert_near([actuals[2][:, open_gates]], [expected[2][:, open_gates]], 1e-4)


def _far_output(imaginary: bool, far: int, device: str, rows: int = 130) -> tuple[Sample, Tensor]:
    """A sparse layer, and a gradient that is far smaller for the output that input `far` feeds.

    Of inputs 0 and 150, which feed outputs 0 and 140 alone. Where 0 is far, the gradients of all
    outputs of the last tile are smaller still.
    """
    torch.manual_seed(0)
    weight_re, weight_im = torch.zeros(2, 150, 200, device=device)
    diagonal = torch.arange(150, device=device)
    weight_re[diagonal, diagonal] = torch.rand(150, device=device) + 0.5
    weight_re[140, 150] = 0.25
    if imaginary:
        weight_im[diagonal, diagonal] = -0.5
    x = torch.rand(rows, 200, device=device) + 0.5
    tensors = {"weight_re": weight_re, "weight_im": weight_im if imaginary else None,
               "gate": torch.full((200,), 0.75, device=device)}  # fmt: skip
    grad_y = torch.rand(rows, 150, device=device) + 0.5
    grad_y[:, min(far, 140)] *= 2.0**-30
    if far == 0:
        grad_y[:, 128:] *= 2.0**-60
    return Sample("npu", x, tensors), grad_y


@pytest.mark.parametrize("far", [0, 150])
@pytest.mark.parametrize(("imaginary", "plan"), [(True, PLAN), (False, POINTERS), (True, HIGH)])
def test_inputs_of_outputs_far_below_others(
    imaginary: bool, plan: Any, far: int, device: str, kernels: Any
) -> None:
    """Gradients of x and of the gate are right for every input, and in every row."""
    rows = 130 if plan is PLAN else 40  # two tiles of rows, or one
    sample, grad_y = _far_output(imaginary, far, device, rows)
    exact, formula = sample.map(Tensor.double), cast(Any, reference)
    with use_plan(_on(device, plan)):
        grad_x, _, _, grad_gate = kernels.npu_backward(
            grad_y, *_saved(sample, formula), EPS, False, 15
        )
    want = formula.npu_backward(grad_y.double(), *_saved(exact, formula), EPS, False, 15)
    bound = 3e-6 if plan.products == 3 else 3e-3
    torch.testing.assert_close(grad_x.double(), want[0], rtol=bound, atol=0.0)
    torch.testing.assert_close(grad_gate[far].double(), want[3][far], rtol=bound, atol=0.0)


@pytest.mark.parametrize("far", [0, 150])
def test_outputs_far_below_others_in_one_of_two_models(far: int, device: str, kernels: Any) -> None:
    """Padding to 128 rows makes a tile of 64 rows more than the rows need."""
    sample, grad_y = _far_output(True, far, device, rows=40)
    tensors = {name: cast(Tensor, tensor).expand(2, *cast(Tensor, tensor).shape).contiguous()
               for name, tensor in sample.tensors.items()}  # fmt: skip
    sample = Sample("npu", torch.stack([sample.x, sample.x]), tensors)
    grad_y = torch.stack([torch.ones_like(grad_y), grad_y])
    exact, formula = sample.map(Tensor.double), cast(Any, reference)
    with use_plan(_on(device, _with(PLAN, rows=64))):
        grad_x, _, _, grad_gate = kernels.npu_backward(
            grad_y, *_saved(sample, formula), EPS, False, 15
        )
    want = formula.npu_backward(grad_y.double(), *_saved(exact, formula), EPS, False, 15)
    torch.testing.assert_close(grad_x.double(), want[0], rtol=3e-6, atol=0.0)
    torch.testing.assert_close(grad_gate[1, far].double(), want[3][1, far], rtol=3e-6, atol=0.0)


@pytest.mark.parametrize("plan", [PLAN, POINTERS])
def test_the_greatest_value_meets_an_imaginary_weight_alone(
    plan: Any, device: str, kernels: Any
) -> None:
    """Where the gate is closed its sine may be 0: the gradient consists of far smaller values."""
    sample = RECORDS["npu"].sample(16, 32, 64, dtype=torch.float32, device=device)
    sample.x.abs_().add_(0.1)  # no negative input, and no sine
    weight_re, weight_im = sample.tensors["weight_re"], sample.tensors["weight_im"]
    weight_im.zero_()
    weight_re[:, 3] = 1 + torch.rand(64, device=device)
    weight_re[7, 3], weight_im[7, 3], sample.tensors["gate"][3] = 0.0, 1.0, 0.0
    grad_y = torch.randn(16, 64, device=device) / forward(sample, reference)[0]
    grad_y[:, 7] *= 2.0**30
    exact, formula = sample.map(Tensor.double), cast(Any, reference)
    with use_plan(_on(device, plan)):
        grad_gate = kernels.npu_backward(grad_y, *_saved(sample, formula), EPS, True, 15)[3]
    want = formula.npu_backward(grad_y.double(), *_saved(exact, formula), EPS, True, 15)[3]
    torch.testing.assert_close(grad_gate[3].double(), want[3], rtol=1e-5, atol=0.0)


def _flags(sample: Sample, grad_y: Tensor, launched: Launches, plan: Any) -> list[list[int]]:
    """Which tiles of rows and inputs are computed again."""
    launched.clear()
    with use_plan(plan):
        torch.ops.npu_kernels.npu_backward(grad_y, *_saved(sample, reference), EPS, False, 15)
    (arguments,) = (a for k, a, _ in launched if k.__name__ == "npu_repair_x_kernel")
    (tiles,) = (a for a in arguments if getattr(a, "dtype", None) is torch.int32)
    return tiles.reshape(-(-sample.x.shape[-2] // TILE), -1).tolist()  # type: ignore[no-any-return]


def test_which_tiles_are_computed_again(device: str, kernels: Any, launched: Launches) -> None:
    """None of a dense layer, where terms cancel, nor for rows of zeros or inputs without a weight."""
    sample = RECORDS["npu"].sample(140, 270, 80, dtype=torch.float32, device=device)
    grad_y = torch.randn(140, 80, device=device)
    assert _flags(sample, grad_y, launched, _on(device)) == [[0] * 3] * 2
    weight_re, weight_im = sample.tensors["weight_re"], sample.tensors["weight_im"]
    real = {**sample.tensors, "weight_im": torch.zeros_like(weight_im)}
    cancelling = Sample("npu", sample.x.abs() + 0.1, real)
    weight_re[:2, 7] = 0.5
    y = forward(cancelling, reference)[0]
    grad_y[5] = 0.0
    grad_y[5, :2] = 1 / y[5, :2] * torch.tensor([1.0, -1.0], device=device)
    assert _flags(cancelling, grad_y, launched, _on(device)) == [[0] * 3] * 2
    grad_y[[3, 5, 139]] = 0.0
    for name in ("weight_re", "weight_im"):
        sample.tensors[name][:, [2, 260]] = 0.0
    assert _flags(sample, grad_y, launched, _on(device)) == [[0] * 3] * 2
    for name in ("weight_re", "weight_im"):
        sample.tensors[name][:79, 130] = 0.0
    grad_y[135, 79] = 0.0  # one row that this input does not reach
    assert _flags(sample, grad_y, launched, _on(device)) == [[0] * 3, [0, 1, 0]]


@pytest.mark.parametrize("plan", [HIGH, _with(HIGH, depth=64), HIGH_PLANS["sm_80"]])
def test_one_product(plan: Any, device: str, kernels: Any) -> None:
    """A product at `high` and `medium` has the error of float16's 11 bits."""
    sample = RECORDS["npu"].sample(40, 70, 17, dtype=torch.float32, device=device)
    with use_plan(_on(device, plan)):
        for error, eager in errors(sample, kernels):
            assert 2 * eager < error < 2e-3


@pytest.mark.parametrize("plan", [PLAN, _with(PLAN, depth=32, rows=64), POINTERS])
def test_negative_inputs_in_a_few_steps(plan: Any, device: str, kernels: Any) -> None:
    """Tiles without a negative input skip the product with the mask; those with one must not."""
    sample = RECORDS["npu"].sample(140, 200, 17, device=device, dtype=torch.float32)
    sample.x.abs_().add_(0.1)
    grad_y = torch.randn_like(forward(sample, reference)[0])
    changes = ((), ((129, 3),), ((5, 70), (139, 199)))
    for indices in changes if plan is PLAN else changes[1:2]:
        for index in indices:
            sample.x[index] *= -1
        sample.x[7, 100] = -0.0
        exact = sample.map(Tensor.double)
        with use_plan(_on(device, plan)):
            actuals = outputs(sample, kernels, grad_y)
        assert_near(actuals, outputs(exact, reference, grad_y.double()), 3e-5)


@pytest.mark.parametrize("imaginary", [True, False])
def test_gates_at_their_ends_and_zero_inputs(imaginary: bool, device: str, kernels: Any) -> None:
    sample = RECORDS["npu"].sample(20, 8, 17, device=device, dtype=torch.float32)
    gate = torch.tensor([-0.5, 0.0, 0.5, 1.0, 1.5, 1.0, 0.25, 0.0], device=device)
    sample = Sample(
        sample.name,
        sample.x,
        {**sample.tensors, "gate": gate} | ({} if imaginary else {"weight_im": None}),
    )
    sample.x[3:6] = 0
    grad_y = torch.randn_like(forward(sample, reference)[0])
    exact = sample.map(Tensor.double)
    with use_plan(_on(device)):
        actuals = outputs(sample, kernels, grad_y)
    assert_near(actuals, outputs(exact, reference, grad_y.double()), 3e-5)
    assert (actuals[-1] == 0).tolist() == [True, False, False, False, True, False, False, False]
    formula = cast(Any, reference)
    with use_plan(_on(device)):  # the gradient of the gate as if it were not clipped
        straight = kernels.npu_backward(grad_y, *_saved(sample, kernels), EPS, True, 15)[-1]
    want = formula.npu_backward(grad_y.double(), *_saved(exact, formula), EPS, True, 15)[-1]
    assert normwise_error(straight, want) < 3e-5
    assert (straight != 0).all()


@pytest.mark.parametrize(
    ("size", "plan"), [(1e-12, POINTERS), (1e-12, PLAN), (1e-6, PLAN), (1e3, PLAN)]
)
def test_sizes_of_weights_and_gradients(size: float, plan: Any, device: str, kernels: Any) -> None:
    """Rows of grad_x and grad_weight are as accurate as float32, whatever the sizes of rows."""
    sample = RECORDS["npu"].sample(40, 20, 70, device=device, dtype=torch.float32)
    sample.x.copy_(
        1 + 1e-3 * (sample.x if size > 1 else 1e3 * sample.x).abs().clamp(max=100 / size)
    )
    for name in ("weight_re", "weight_im"):
        sample.tensors[name].mul_(size)
    grad_y = (
        torch.randn(40, 70, device=device) * torch.logspace(-25, 12, 40, device=device)[:, None]
    )
    exact, formula = sample.map(Tensor.double), cast(Any, reference)
    with use_plan(_on(device, plan)):
        grads = kernels.npu_backward(grad_y, *_saved(sample, formula), EPS, True, 15)
        y = kernels.npu_forward(sample.x, *sample.tensors.values(), EPS, True)[0]
    eager = formula.npu_backward(grad_y, *_saved(sample, formula), EPS, True, 15)
    want = formula.npu_backward(grad_y.double(), *_saved(exact, formula), EPS, True, 15)
    assert (
        normwise_error(y, formula.npu_forward(exact.x, *exact.tensors.values(), EPS, True)[0])
        < 1e-3
    )
    for actual, plain, expected in zip(grads[:3], eager[:3], want[:3], strict=True):
        norm = expected.norm(dim=1)
        error, usual = (((t - expected).norm(dim=1) / norm).max().item() for t in (actual, plain))
        assert error <= 2 * usual + 1e-6


def _saved(sample: Sample, of: Any) -> tuple[Any, ...]:
    """x, the tensors, y and s."""
    return (
        sample.x,
        *sample.tensors.values(),
        *of.npu_forward(sample.x, *sample.tensors.values(), EPS, True),
    )


SPECIAL = (0.0, -0.0, 1e-45, -1e-40, 1e-38, 1e38, -1e38, 1.0, -1.0, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize(("imaginary", "plan"), [(True, PLAN), (False, PLAN), (True, POINTERS)])
def test_special_inputs_and_weights(imaginary: bool, plan: Any, device: str, kernels: Any) -> None:
    """Every row of y and s is the formula's, also of infinite and NaN inputs and weights."""
    torch.manual_seed(0)
    x = torch.rand(len(SPECIAL), 20, device=device) + 1.5
    x[:, 3] = torch.tensor(SPECIAL, device=device)
    weight_re, weight_im = torch.rand(2, 9, 20, device=device) / 8 + 0.03125
    weight_re[1] *= -1
    weight_re[4, 6], weight_re[5, 6], weight_re[6, 7] = math.inf, -math.inf, math.nan
    w_im = weight_im if imaginary else None
    with use_plan(_on(device, plan)):
        y, s = kernels.npu_forward(x, weight_re, w_im, None, EPS, True)
    want = reference.npu_forward(x, weight_re, w_im, None, EPS, True)
    finite = [output for output in range(9) if output not in (4, 5, 6)]
    for row, value in enumerate(SPECIAL):
        for computed, expected in zip((y, s), want, strict=True):
            assert normwise_error(computed[row, finite], expected[row, finite]) < 1e-4, value
    # An infinite weight meets a mask that is 0; the formula's product with it is NaN.
    positive = 7
    assert y[positive, 4].item() == math.inf or not imaginary or y[positive, 4].isnan()
    assert y[:, 6].isnan().all()


@pytest.mark.parametrize("plan", [PLAN, POINTERS])
def test_needs(plan: Any, device: str, kernels: Any) -> None:
    """Every subset has the bits of the full set, and empty tensors for the rest."""
    sample = RECORDS["npu"].sample(17, 5, 18, device=device, dtype=torch.float32)
    grad_y = torch.randn(17, 18, device=device)
    with use_plan(_on(device, plan)):
        saved = _saved(sample, kernels)
        full = kernels.npu_backward(grad_y, *saved, EPS, False, 15)
        for needs in (0, 1, 2, 4, 8, 10):
            some = kernels.npu_backward(grad_y, *saved, EPS, False, needs)
            for bit, (grad, want) in enumerate(zip(some, full, strict=True)):
                assert torch.equal(grad, want) if needs >> bit & 1 else grad.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_storage(dtype: torch.dtype, device: str, kernels: Any) -> None:
    sample = RECORDS["npu"].sample(20, 18, 17, dtype=dtype, device=device)
    sample.x.add_(sample.x.sign())  # or gradients do not fit float16
    for name in ("weight_re", "weight_im"):
        sample.tensors[name].mul_(0.25)
    exact = sample.map(Tensor.double)
    grad_y = torch.randn_like(forward(sample, reference)[0])
    with use_plan(_on(device)):
        actual = outputs(sample, kernels, grad_y)
    for stored, want in zip(actual, outputs(exact, reference, grad_y.double()), strict=True):
        assert stored.dtype is dtype
        assert normwise_error(stored, want) < 6 * torch.finfo(dtype).eps


# ---- sizes beyond 32 bits ---------------------------------------------------------------------


def _memory(elements: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Zeros, and what lies beyond their first 2**31, where an offset of 32 bits cannot lead.

    On the processor, pages that nobody touches take no memory.
    """
    size = elements + 2**31
    if device == "cuda":
        memory = torch.zeros(size, dtype=dtype, device=device)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, of Linux
        memory = torch.frombuffer(mmap.mmap(-1, size * dtype.itemsize, flags), dtype=dtype)
    return memory, memory[2**31 :]


@pytest.mark.parametrize("plane", [2**30, 2**31])
def test_planes_of_many_elements(plane: int, device: str) -> None:
    """The planes after the first are written where they lie, and nothing before them."""
    x = torch.tensor([[-2.0, 3.0, -0.5]], device=device)
    flags = torch.zeros(2, dtype=torch.int32, device=device)
    memory, planes = _memory(2 * plane + TILE * TILE, torch.float16, device)
    npu_planes.npu_x_planes_kernel[(1,)](
        x, None, planes, flags, 1, 3, 1, 1, plane, EPS, True, False, HI_LO, **npu_planes.OPTIONS,
    )  # fmt: skip
    assert planes[2 * plane : 2 * plane + 4].tolist() == [256, 0, 256, 0]
    sums = [(planes[n] + planes[n + plane].float()).item() / 256 for n in range(3)]
    assert sums == pytest.approx([math.log(2), math.log(3), math.log(0.5)], rel=1e-5)
    assert not memory[:8].any()
    memory, planes = _memory(3 * plane + TILE * TILE, torch.float16, device)
    scale = torch.empty(WEIGHTS.narrow, device=device)
    npu_planes.npu_weight_planes_kernel[(1,)](
        x, x, None, planes, scale, None, 1, 3, TILE, TILE // 2, plane, True, False, True,
        HI_LO, WEIGHTS.narrow, WEIGHTS.wide, **WEIGHTS.options,
    )  # fmt: skip
    weights, phases = (planes[n : n + 3].float() + planes[n + plane : n + plane + 3].float()
                       for n in (0, 2 * plane))  # fmt: skip
    assert_near([weights * scale[0], phases * scale[0]], [x[0], -math.pi * x[0]], 1e-5)
    assert not memory[:8].any()


def test_sums_of_many_numbers(device: str) -> None:
    """More rows than are added at once, whose offsets do not fit 32 bits."""
    options, n = tuning.REDUCTION, 2**31 // tuning.REDUCTION["ROWS"]
    _, source = _memory((options["ROWS"] + 1) * n, torch.float32, device)
    for row, value in ((0, 1.0), (1, 2.0), (options["ROWS"], 4.0)):
        source[row * n : row * n + 3] = value
    sums = torch.zeros(options["BLOCK"], device=device)
    counts = (n, 0, 0, options["ROWS"] + 1, 0, 0, 1, 1, 1)
    reduction.sum_partials_kernel[(1,)](
        source, sums, *[None] * 13, *counts, tl.float32, False, True, False, False, False, **options
    )
    assert sums[:4].tolist() == [7, 7, 7, 0]


# ---- which layers take them -----------------------------------------------------------------


def _large(i: int, o: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    sizes = Sizes(1, 7, i, o, True)
    return npu_large.plan_of(torch.empty(1, dtype=dtype, device=device), True, sizes)


def test_choice(device: str) -> None:
    """Large layers in float32 only, and the precision decides how many products."""
    assert _large(64, 64, device=device) is None
    assert _large(4096, 16, device=device) is None
    assert _large(1024, 1024, torch.float64, device) is None
    for precision, products in (("highest", 3), ("high", 1), ("medium", 1)):
        torch.set_float32_matmul_precision(precision)
        assert _large(1024, 1024, device=device).products == products
    with use_plan(None):
        assert _large(1024, 1024, device=device) is None
    with tuning.use_config("npu_backward_w", {}):  # the tuner times the one-pass kernels
        assert _large(1024, 1024, device=device) is None


def test_a_graph_takes_them_sooner(device: str) -> None:
    """Launches of a CUDA graph cost the host nothing, so smaller layers gain."""
    assert _large(192, 192, device=device) is None
    with for_graph():
        assert _large(192, 192, device=device) is not None
        assert _large(48, 192, device=device) is None
    assert _large(192, 192, device=device) is None
