"""Sums over rows: of none, and of other sizes 0, of a great many, and overflowing ones."""

import functools
import itertools
import math
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from npu_kernels import functional, ode, reference
from npu_kernels.optim import Adam
from npu_kernels.training import mse_loss
from tests.conftest import needs_library
from tests.support.samples import RECORDS, Sample, fill_uninitialized_with_nan

EPS = torch.finfo(torch.float32).eps
FUSED = ("npu", "nmu", "nmru", "nalu", "inalu")
LAYERS: dict[str, tuple[str, tuple[str, ...]]] = {  # the record, and what is left out
    "NPU": ("npu", ()),
    "RealNPU": ("npu", ("weight_im",)),
    "NaiveNPU": ("npu", ("gate",)),
    "NMU": ("nmu", ()),
    "NMRU": ("nmru", ()),
    "NAU": ("nau", ()),
    "NALU": ("nalu", ()),
    "NALU without a bias": ("nalu", ("gate_bias",)),
    "iNALU": ("inalu", ()),
}
# Narrow layers; wide ones, once of whole tiles. NPU_KERNELS_TEST_ROWS=10000000 adds so many rows.
ROWS = [
    *((rows, (1, 1)) for rows in (1, 1000, 100_000, 1_000_000)),
    *((rows, (6, 2)) for rows in (1000, 100_000)),
    (3200, (40, 20)),
    (3200, (64, 32)),
    *((int(rows), (1, 1)) for rows in os.environ.get("NPU_KERNELS_TEST_ROWS", "").split()),
]
MIN_ERROR = 6.0  # in ulp of 1


def _outcome(sample: Sample, function: Callable[..., Tensor]) -> list[Tensor]:
    """The result and all gradients of its sum."""
    leaves = sample.requires_grad()
    y = leaves.call(function)
    return [y.detach(), *torch.autograd.grad(y.sum(), leaves.leaves())]


def _same(actuals: list[Tensor], expected: list[Tensor]) -> None:
    for actual, want in zip(actuals, expected, strict=True):
        torch.testing.assert_close(actual, want, rtol=1e-5, atol=1e-6, equal_nan=True)


def _zero_sizes(name: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> list[Sample]:
    """Every combination with a size 0: of rows, inputs, outputs and models."""
    record, cases = RECORDS[name], []
    for batch, in_features, out_features, models in itertools.product(
        sizes, sizes, sizes, (None, 0, 2)
    ):
        if 0 not in (batch, in_features, out_features, models):
            continue
        for shared in (False, True) if models is not None else (False,):
            for without in record.variants():
                cases.append(record.sample(
                    batch, in_features, out_features, num_models=models, shared=shared,
                    without=without, dtype=dtype,
                ))  # fmt: skip
    return cases


@pytest.mark.parametrize("name", list(RECORDS))
def test_sizes_of_zero(name: str, backend: str) -> None:
    """Results are the formula's (an empty product is 1); gradients are 0, not old memory."""
    for sample in _zero_sizes(name, torch.float64, (0, 3)):
        with fill_uninitialized_with_nan():
            outcome = _outcome(sample, RECORDS[name].function)
        _same(outcome, _outcome(sample, RECORDS[name].reference))


@needs_library
@pytest.mark.parametrize("name", FUSED)
def test_sizes_of_zero_on_every_instruction_set(isa: str, name: str) -> None:
    """70 rows and 40 features take other kernels than a few."""
    for sample in _zero_sizes(name, torch.float32, (0, 1, 70 if name == "npu" else 40)):
        _same(_outcome(sample, RECORDS[name].function), _outcome(sample, RECORDS[name].reference))


@pytest.mark.parametrize(("hidden", "features"), [(0, 0), (0, 3), (3, 0), (3, 3)])
@pytest.mark.parametrize("models", [None, 0, 2])
@pytest.mark.parametrize("starts", [None, 0, 2, 9])
def test_time_loop_of_sizes_of_zero(
    hidden: int, features: int, models: int | None, starts: int | None, backend: str
) -> None:
    """No starts, no features, or no hidden units, which leave every start where it is."""
    k = () if models is None else (models,)
    shapes = (
        (features,) if starts is None else (starts, features),
        (hidden, features),
        (hidden, features),
    )
    operands = [torch.rand(*k, *shape) for shape in (*shapes, (features,), (features, hidden))]

    def fused(u0: Tensor, re: Tensor, im: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        path = ode.integrate(u0, re, im, gate, weight, steps=2, dt=0.1, method="midpoint")
        assert isinstance(path, Tensor)
        return path

    def eager(u0: Tensor, re: Tensor, im: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        def rhs(u: Tensor) -> Tensor:
            return reference.nau(reference.npu(u, re, im, gate), weight)

        states = [u0.unsqueeze(-2) if starts is None else u0]
        for _ in range(2):
            states.append(states[-1] + 0.1 * rhs(states[-1] + 0.05 * rhs(states[-1])))
        path = torch.stack(states, -2)
        return path.squeeze(-3) if starts is None else path

    def run(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in operands]
        path = function(*leaves)
        return [path.detach(), *torch.autograd.grad(path.sum(), leaves, materialize_grads=True)]

    _same(run(fused), run(eager))


def test_loss_and_step_of_nothing(backend: str) -> None:
    for shape, models in (((0,), None), ((0, 3), None), ((0, 3), 0), ((2, 0), 2), ((0, 0), 0)):
        y = torch.rand(shape).requires_grad_()
        loss = mse_loss(y, torch.rand(shape), num_models=models)
        assert loss.isnan().all()
        assert loss.shape == (() if models is None else (models,))
        assert torch.autograd.grad(loss.sum(), y)[0].shape == shape
    parameters = [torch.nn.Parameter(torch.rand(0, 3)), torch.nn.Parameter(torch.rand(2))]
    optimizer = Adam(parameters, 0.1)
    for _ in range(2):
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert parameters[0].shape == (0, 3)
    assert parameters[1].isfinite().all()


@pytest.mark.parametrize("size", [(3, 2), (40, 20)])
@pytest.mark.parametrize("name", FUSED)
def test_no_rows_and_weights_of_nan(name: str, size: tuple[int, int], backend: str) -> None:
    """Nothing is added up: the gradients are the formula's, also where 0 * nan could come in."""
    sample = (
        RECORDS[name]
        .sample(0, *size, dtype=torch.float32)
        .map(lambda t: torch.full_like(t, math.nan))
    )
    _same(_outcome(sample, RECORDS[name].function), _outcome(sample, RECORDS[name].reference))


@needs_library
@pytest.mark.parametrize("in_features", [2, 5, 40])
@pytest.mark.parametrize("imaginary", [False, True])
def test_overflowing_phase_sum(isa: str, in_features: int, imaginary: bool) -> None:
    """The sum over rows of dQ overflows; where its factor is 0, a gate or a weight, so is every
    term, and the sum.

    In the formula the factor stands within the sum.
    """
    rows, outs = 70, 20
    x = torch.full((rows, in_features), -1.0)
    gate = torch.zeros(in_features)  # of 0, but for the last input
    gate[0], gate[-1] = -0.5, 1
    weight = torch.zeros(outs, in_features)
    weight[:, -1] = 0.5  # Q = pi / 2
    sample = Sample(
        "", x, {"weight_re": weight, "weight_im": 0 * weight if imaginary else None, "gate": gate}
    )

    def gradients(function: Callable[..., Tensor]) -> list[Tensor]:
        leaves = sample.requires_grad()
        y = leaves.call(function)
        # y is 0 but for rounding: dP is none of what overflows.
        return list(torch.autograd.grad(y, leaves.leaves(), torch.full_like(y, 5e37)))

    actuals, expected = gradients(functional.npu), gradients(reference.npu)
    for actual, want in zip(actuals[1:], expected[1:], strict=True):
        # of the inputs that the gate leaves out
        actual_closed, want_closed = actual[..., :-1], want[..., :-1]
        assert torch.equal(want_closed, torch.zeros_like(want_closed))
        assert torch.equal(actual_closed, want_closed)


def _row_sums(sample: Sample, function: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
    """All gradients of the sum over rows, with an upstream gradient of 1."""
    eps = {"eps": EPS} if "weight_re" in sample.tensors else {}
    leaves = sample.map(lambda t: t.detach().to(dtype).requires_grad_())
    return list(
        torch.autograd.grad(
            function(leaves.x, *leaves.tensors.values(), **eps).sum(), leaves.leaves()[1:]
        )
    )


def _error(actual: Tensor, want: Tensor) -> float:
    return ((actual.double() - want).norm() / want.norm()).nan_to_num().item()


@functools.cache
def _many_rows(
    layer: str, rows: int, size: tuple[int, int], equal: bool
) -> tuple[Sample, list[Tensor], list[float]]:
    """A sample, its gradients in float64, the eager layer's errors; kept for all tests."""
    name, without = LAYERS[layer]
    record = RECORDS[name]
    torch.manual_seed(0)
    sample = record.sample(1 if equal else rows, *size, without=without).map(Tensor.float)
    if equal:
        exact = [rows * grad for grad in _row_sums(sample, record.reference, torch.float64)]
        sample = Sample("", sample.x.expand(rows, -1), sample.tensors)
    else:
        # Sums without cancellation, which would be another matter.
        sample = Sample("", sample.x + 1.5 * sample.x.sign(), sample.tensors)
        parts = (Sample("", x, sample.tensors) for x in sample.x.split(1 << 17))
        sums = zip(
            *(_row_sums(part, record.reference, torch.float64) for part in parts), strict=True
        )
        exact = [torch.stack(grads).sum(0) for grads in sums]
    actual_sums = _row_sums(sample, record.reference, torch.float32)
    return sample, exact, [_error(*pair) for pair in zip(actual_sums, exact, strict=True)]


@needs_library
@pytest.mark.parametrize("equal", [False, True], ids=["random", "equal"])
@pytest.mark.parametrize(("rows", "size"), ROWS, ids=str)
@pytest.mark.parametrize("layer", list(LAYERS))
def test_error_of_many_rows(
    isa: str, layer: str, rows: int, size: tuple[int, int], equal: bool
) -> None:
    """Rounding errors do not grow with the number of rows, also where those of equal rows do not
    cancel.

    The eager layer's may be none by luck, as of powers of two: so much more than twice it counts as
    none.
    """
    sample, exact, eager = _many_rows(layer, rows, size, equal)
    sums = _row_sums(sample, RECORDS[LAYERS[layer][0]].function, torch.float32)
    for actual, want, other in zip(sums, exact, eager, strict=True):
        assert _error(actual, want) <= max(2 * other, MIN_ERROR * EPS)
