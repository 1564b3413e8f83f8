"""The formulas against literal arithmetic, the explicit gradients against autograd."""

import pytest
import torch
from mpmath import mp
from torch import Tensor

from npu_kernels import functional, reference
from tests.support import exact, kernels
from tests.support.samples import RECORDS, Sample, normwise_error

FORMULA_ROUNDING = 1e-14


def _literal(name: str, sample: Sample) -> Tensor:
    """The sample at 50 digits, rounded to float64: one model, or one after the other."""
    if sample.x.dim() == 3 or next(iter(sample.tensors.values())).dim() == 3:
        models = []
        for k in range(next(iter(sample.tensors.values())).shape[0]):
            tensors = {n: None if t is None else t[k] for n, t in sample.tensors.items()}
            models.append(
                _literal(
                    name, Sample("", sample.x[k] if sample.x.dim() == 3 else sample.x, tensors)
                )
            )
        return torch.stack(models)
    rows = []
    for x in sample.x.tolist():
        weights = {n: None if t is None else t.tolist() for n, t in sample.tensors.items()}
        row = []
        for o in range(next(iter(sample.tensors.values())).shape[0]):
            # a gate belongs to the inputs, all else to an output
            arguments = [w if n == "gate" or w is None else w[o] for n, w in weights.items()]
            if name == "npu":
                arguments.append(torch.finfo(torch.float64).eps)
            row.append(float(getattr(exact, name)(x, *arguments)))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), -1)


@pytest.mark.parametrize("name", [name for name in RECORDS if name != "nau"])
@pytest.mark.parametrize("num_models", [None, 2])
def test_50_digits(name: str, num_models: int | None, backend: str) -> None:
    record = RECORDS[name]
    for without in record.variants():
        sample = record.sample(6, 5, 3, num_models=num_models, without=without)
        assert (
            normwise_error(sample.call(record.function), _literal(name, sample)) < FORMULA_ROUNDING
        )
        assert (
            normwise_error(sample.call(record.reference), _literal(name, sample)) < FORMULA_ROUNDING
        )


def test_gradients_at_50_digits(backend: str) -> None:
    """Every entry of every gradient, by differentiating the literal formula at 50 digits."""
    sample = RECORDS["npu"].sample(1, 3, 1, seed=3).requires_grad()
    sample.tensors["gate"] = torch.tensor([0.3, 0.9, 0.6], dtype=torch.float64, requires_grad=True)
    leaves = sample.leaves()
    grads = torch.autograd.grad(sample.call(functional.npu).sum(), leaves)
    values = [leaf.detach().flatten().tolist() for leaf in leaves]
    for which, grad in enumerate(grads):
        for entry in range(3):

            def moved(value: float, which: int = which, entry: int = entry) -> mp.mpf:
                changed = [list(v) for v in values]
                changed[which][entry] = value
                return exact.npu(*changed, eps=torch.finfo(torch.float64).eps)

            assert float(grad.flatten()[entry]) == pytest.approx(
                float(mp.diff(moved, values[which][entry])), rel=1e-13
            )


@pytest.mark.parametrize("gate_gradient", ["clip", "straight_through"])
def test_gate_gradient_convention(gate_gradient: str, backend: str) -> None:
    """The derivative is torch.clamp's: none outside [0, 1] unless it is straight-through."""
    gate = torch.tensor([-0.1, 0.0, 0.5, 1.0, 1.1], dtype=torch.float64, requires_grad=True)
    x = torch.full((1, 5), 2.0, dtype=torch.float64)
    functional.npu(
        x, torch.ones(1, 5, dtype=torch.float64), None, gate, gate_gradient=gate_gradient
    ).sum().backward()
    assert gate.grad is not None
    passes = [False, True, True, True, False] if gate_gradient == "clip" else [True] * 5
    assert (gate.grad != 0).tolist() == passes


@pytest.mark.parametrize("create_graph", [False, True])
def test_nau_gradient_at_the_bounds(create_graph: bool, backend: str) -> None:
    """The clip lets the gradient of its bounds through, as torch.clamp does."""
    weight = torch.tensor([[-1.5, -1.0, 0.5, 1.0, 1.5]], requires_grad=True)
    y = functional.nau(torch.ones(1, 5), weight).sum()
    (grad,) = torch.autograd.grad(y, weight, create_graph=create_graph)
    assert grad.tolist() == [[0, 1, 1, 1, 0]]


@pytest.mark.parametrize("name", ["npu", "nmu", "nmru", "nalu", "inalu"])
def test_gradients_that_are_not_needed_are_empty(name: str) -> None:
    sample = RECORDS[name].sample(4, 3, 2)
    grad_y = torch.ones_like(kernels.forward(sample, reference)[0])
    full = kernels.backward(sample, reference, grad_y, kernels.ALL)
    for needs in range(1 << kernels.count(sample)):
        some = kernels.backward(sample, reference, grad_y, needs)
        for bit, (grad, want) in enumerate(zip(some, full, strict=True)):
            assert torch.equal(grad, want) if needs >> bit & 1 else grad.shape == (0,)
