"""The formulas against literal arithmetic, the explicit gradients against autograd."""

import pytest
import torch
from mpmath import mp
from torch import Tensor

from npu_kernels import functional, reference
from tests.support import exact, kernels
from tests.support.compare import assert_near
from tests.support.kernels import with_zero_factors
from tests.support.samples import RECORDS, Sample, normwise_error

FORMULA_ROUNDING = 1e-14
VARIANTS = RECORDS["npu"].variants()


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


def test_complex_arithmetic(backend: str) -> None:
    """Re(exp(W log z)) in complex128 with W complex and z = x moved away from 0 by eps."""
    eps = torch.finfo(torch.float64).eps
    x = torch.empty(200, 7, dtype=torch.float64).uniform_(-3, 3)
    weight_re, weight_im = torch.randn(2, 5, 7, dtype=torch.float64) / 2
    z = torch.where(x < 0, x - eps, x + eps).to(torch.complex128)
    expected = (z.log() @ torch.complex(weight_re, weight_im).T).exp().real
    assert normwise_error(functional.npu(x, weight_re, weight_im), expected) < FORMULA_ROUNDING


def test_whole_powers(backend: str) -> None:
    """Products, quotients and powers of signed numbers come out with their signs."""
    x = torch.tensor([[3.0, -2.0], [-3.0, -2.0], [-0.5, 4.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 1.0], [1.0, -1.0], [2.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    a, b = x.T
    expected = torch.stack([a * b, a / b, a**2, b**3], 1)
    assert normwise_error(functional.npu(x, weight), expected) < 1e-14
    assert (
        normwise_error(functional.npu(x, weight, gate=torch.ones(2, dtype=torch.float64)), expected)
        < 1e-14
    )


def test_gate_zero_ignores_the_input(backend: str) -> None:
    x = torch.tensor([[3.0, -2.0], [3.0, 1e30]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 5.0]], dtype=torch.float64)
    y = functional.npu(
        x, weight, torch.ones_like(weight), torch.tensor([1.0, -7.0], dtype=torch.float64)
    )
    torch.testing.assert_close(y[0], y[1], rtol=0, atol=0)


@pytest.mark.parametrize("gate_gradient", ["clip", "straight_through"])
def test_gate_gradient_convention(gate_gradient: str, backend: str) -> None:
    """The slope is torch.clamp's: none outside [0, 1] unless it is straight-through."""
    gate = torch.tensor([-0.1, 0.0, 0.5, 1.0, 1.1], dtype=torch.float64, requires_grad=True)
    x = torch.full((1, 5), 2.0, dtype=torch.float64)
    functional.npu(
        x, torch.ones(1, 5, dtype=torch.float64), None, gate, gate_gradient=gate_gradient
    ).sum().backward()
    assert gate.grad is not None
    passes = [False, True, True, True, False] if gate_gradient == "clip" else [True] * 5
    assert (gate.grad != 0).tolist() == passes


def test_straight_through_has_the_clipped_value() -> None:
    gate = torch.tensor([-3.0, 0.1, 0.7, 5.0])
    assert torch.equal(reference.clip_gate(gate, "straight_through"), gate.clamp(0, 1))


@pytest.mark.parametrize("without", VARIANTS)
@pytest.mark.parametrize("straight_through", [False, True])
@pytest.mark.parametrize(("num_models", "shared"), [(None, False), (3, False), (3, True)])
def test_explicit_npu_gradient(
    without: tuple[str, ...], straight_through: bool, num_models: int | None, shared: bool
) -> None:
    record = RECORDS["npu"]
    sample = record.sample(
        9, 4, 3, num_models=num_models, shared=shared, without=without
    ).requires_grad()
    gate_gradient = "straight_through" if straight_through else "clip"
    y = reference.npu(sample.x, *sample.tensors.values(), eps=1e-3, gate_gradient=gate_gradient)
    grad_y = torch.randn_like(y)
    expected = torch.autograd.grad(y, sample.leaves(), grad_y)
    actual = reference.npu_backward(
        grad_y, sample.x, *sample.tensors.values(), None, None, 1e-3, straight_through
    )  # type: ignore[call-arg]
    assert_near([g for g in actual if g.numel()], expected, FORMULA_ROUNDING)


@pytest.mark.parametrize(("num_models", "shared"), [(None, False), (3, False), (3, True)])
def test_explicit_nmu_gradient(num_models: int | None, shared: bool) -> None:
    sample = RECORDS["nmu"].sample(9, 4, 3, num_models=num_models, shared=shared).requires_grad()
    with torch.no_grad():
        sample.x[..., 0, 1] = 0
        sample.tensors["weight"][..., 0, 1] = 1
        sample.x[..., 1, :2] = 0
        sample.tensors["weight"][..., 1, :2] = 1
    weight = sample.tensors["weight"]
    assert weight is not None
    y = reference.nmu(sample.x, weight, clip=False)
    grad_y = torch.randn_like(y)
    expected = torch.autograd.grad(y, (sample.x, weight), grad_y)
    assert_near(reference.nmu_backward(grad_y, sample.x, weight), expected, FORMULA_ROUNDING)


@pytest.mark.parametrize("name", ["nalu", "inalu"])
@pytest.mark.parametrize(("num_models", "shared"), [(None, False), (3, False), (3, True)])
def test_explicit_nalu_gradients(name: str, num_models: int | None, shared: bool) -> None:
    """The operators' formulas are the layer and its gradients, also with factors of 0."""
    record = RECORDS[name]
    for without in record.variants():
        sample = with_zero_factors(
            record.sample(9, 4, 3, num_models=num_models, shared=shared, without=without)
        )
        sample = sample.requires_grad()
        options = {"eps": 1e-3} | ({"omega": 0.1} if name == "inalu" else {})
        y = record.reference(sample.x, *sample.tensors.values(), **options)
        grad_y = torch.randn_like(y)
        expected = torch.autograd.grad(y, sample.leaves(), grad_y)
        output, *saved = getattr(reference, f"{name}_forward")(
            sample.x, *sample.tensors.values(), *options.values(), True
        )
        assert normwise_error(output, y) < FORMULA_ROUNDING
        if name == "inalu":
            assert set(saved[3].flatten().tolist()) == {0, 1, 2, 3, 4, 5}
        actual = getattr(reference, f"{name}_backward")(
            grad_y, sample.x, *sample.tensors.values(), *saved, *options.values()
        )
        assert_near([g for g in actual if g.numel()], expected, FORMULA_ROUNDING)


@pytest.mark.parametrize("name", list(RECORDS))
def test_models_are_independent(name: str) -> None:
    """K models in one call are K single models, with rows of their own and with shared rows."""
    record = RECORDS[name]
    for shared in (False, True):
        for sample in (
            record.sample(6, 5, 3, num_models=3, shared=shared, without=w)
            for w in record.variants()
        ):
            for formula in (record.reference, record.function):
                together = sample.call(formula)
                for k in range(3):
                    tensors = {n: None if t is None else t[k] for n, t in sample.tensors.items()}
                    single = Sample(
                        "", sample.x if shared else sample.x[k], tensors, sample.options
                    ).call(formula)
                    assert normwise_error(together[k], single) < FORMULA_ROUNDING


def test_nau_is_a_clipped_product(backend: str) -> None:
    x, weight = torch.randn(8, 4), 2 * torch.randn(3, 4)
    torch.testing.assert_close(functional.nau(x, weight), x @ weight.clamp(-1, 1).T)
    torch.testing.assert_close(functional.nau(x, weight, clip=False), x @ weight.T)


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
