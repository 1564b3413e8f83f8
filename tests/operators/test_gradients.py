"""First, second and third derivatives through autograd."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from npu_kernels import functional, reference
from tests.conftest import needs_library
from tests.support.compare import assert_equal, assert_near
from tests.support.samples import LAYOUTS, RECORDS, Sample, normwise_error, with_layout
from tests.support.vmapped import check_batched_gradients

SETTINGS = [(None, False), (2, False), (2, True)]  # models, whether they share x
GRADIENT_ROUNDING = 5e-13


def _away_from_kinks(sample: Sample) -> Sample:
    """Leaves without x near 0, and without gate and weights near their clips."""
    sample = sample.requires_grad()
    with torch.no_grad():
        sample.x.add_(0.25 * sample.x.sign())
        for tensor in sample.tensors.values():
            if tensor is not None:
                for clip in (-1, 0, 1):
                    near = (tensor - clip).abs() < 0.05
                    tensor.add_(0.1 * near * (tensor - clip).sign())
    return sample


def _function(sample: Sample, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The sample's function of its leaves only."""
    names = [name for name, tensor in sample.tensors.items() if tensor is not None]

    def call(x: Tensor, *tensors: Tensor) -> Tensor:
        present = dict(zip(names, tensors, strict=True))
        return function(x, *(present.get(name) for name in sample.tensors), **sample.options)

    return call


def _fused_samples() -> list[Sample]:
    samples = []
    for name in ("npu", "nmu", "nmru"):
        record = RECORDS[name]
        for (num_models, shared), without in itertools.product(SETTINGS, record.variants()):
            samples.append(
                record.sample(3, 3, 2, num_models=num_models, shared=shared, without=without)
            )
    return samples


@pytest.mark.parametrize("sample", _fused_samples(), ids=lambda sample: sample.name)
def test_gradcheck(sample: Sample, backend: str) -> None:
    """Two derivatives against differences, with batched and with undefined upstream gradients."""
    sample = _away_from_kinks(sample)
    function = _function(sample, RECORDS[sample.name.partition("-")[0]].function)
    assert gradcheck(function, sample.leaves(), check_batched_grad=True)
    assert gradgradcheck(function, sample.leaves(), check_batched_grad=False)


@pytest.mark.parametrize("name", ["nau", "nac", "nalu", "inalu"])
def test_gradcheck_of_siblings(name: str, backend: str) -> None:
    for num_models, shared in SETTINGS:
        sample = _away_from_kinks(
            RECORDS[name].sample(3, 3, 2, num_models=num_models, shared=shared)
        )
        function = _function(sample, RECORDS[name].function)
        assert gradcheck(function, sample.leaves())
        assert gradgradcheck(function, sample.leaves())


def test_straight_through_second_derivative(backend: str) -> None:
    """Where the gate is inside [0, 1] straight-through is the clip, to every order."""
    sample = _away_from_kinks(RECORDS["npu"].sample(4, 3, 2))
    with torch.no_grad():
        sample.tensors["gate"].clamp_(0.1, 0.9)

    def second(gate_gradient: str) -> list[Tensor]:
        y = functional.npu(sample.x, *sample.tensors.values(), gate_gradient=gate_gradient)
        grads = torch.autograd.grad(y.square().sum(), sample.leaves(), create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in grads), sample.leaves()))

    for clip, straight in zip(second("clip"), second("straight_through"), strict=True):
        assert normwise_error(straight, clip) < GRADIENT_ROUNDING


@needs_library
@pytest.mark.parametrize("name", ["npu", "nmu", "nmru", "nalu", "inalu"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, GRADIENT_ROUNDING), (torch.float32, 2e-4)]
)
def test_parity_with_autograd_of_the_reference(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Every sample and upstream layout in float64, where a wrong formula shows."""
    for sample, layout in zip(RECORDS[name].samples(dtype), itertools.cycle(LAYOUTS)):
        leaves = sample.map(lambda t: t.detach().requires_grad_())
        y, expected_y = leaves.call(RECORDS[name].function), leaves.call(RECORDS[name].reference)
        grad_y = with_layout(torch.randn_like(y), layout)
        actual = torch.autograd.grad(y, leaves.leaves(), grad_y)
        expected = torch.autograd.grad(expected_y, leaves.leaves(), grad_y)
        for grad, want in zip(actual, expected, strict=True):
            assert grad.shape == want.shape
            assert normwise_error(grad, want) < tolerance, sample.name


@pytest.mark.parametrize("name", ["npu", "nmu"])
def test_every_subset_of_inputs(name: str, backend: str) -> None:
    """A tensor gets a gradient if it requires one, and it is the same as with all."""
    record = RECORDS[name]
    sample = record.sample(6, 4, 3, num_models=2, shared=True)
    full = sample.requires_grad()
    full.call(record.function).square().sum().backward()
    count = len(sample.leaves())
    for flags in itertools.product((False, True), repeat=count):
        some = sample.map(Tensor.clone)
        for leaf, flag in zip(some.leaves(), flags, strict=True):
            leaf.requires_grad_(flag)
        y = some.call(record.function)
        assert y.requires_grad == any(flags)
        if any(flags):
            y.square().sum().backward()
        for leaf, flag, reference_leaf in zip(some.leaves(), flags, full.leaves(), strict=True):
            if flag:
                torch.testing.assert_close(leaf.grad, reference_leaf.grad)
            else:
                assert leaf.grad is None


@pytest.mark.parametrize("name", ["npu", "nmu"])
def test_upstream_gradients(name: str, backend: str) -> None:
    """Expanded by sum, transposed, sliced out of cat, zero: all are those of a contiguous copy."""
    record = RECORDS[name]
    sample = record.sample(6, 4, 3).requires_grad()

    def gradients(of: Callable[[Tensor], Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(of(sample.call(record.function)), sample.leaves()))

    weights = torch.randn(6, 3, dtype=torch.float64)
    plain = gradients(lambda y: (y * weights).sum())
    for of in (
        lambda y: (y.t() * weights.t()).sum(),
        lambda y: (torch.cat([y, y], 1) * torch.cat([weights, 0 * weights], 1)).sum(),
        lambda y: (y[:, ::2] * weights[:, ::2]).sum() + (y[:, 1] * weights[:, 1]).sum(),
    ):
        for grad, want in zip(gradients(of), plain, strict=True):
            torch.testing.assert_close(grad, want)
    for grad, want in zip(
        gradients(Tensor.sum), gradients(lambda y: (y * torch.ones_like(y)).sum()), strict=True
    ):
        torch.testing.assert_close(grad, want)
    for grad in gradients(lambda y: (0 * y).sum()):
        assert torch.equal(grad, torch.zeros_like(grad))


class _Undefined(torch.autograd.Function):
    """Gives no gradient at all, not even zeros."""

    @staticmethod
    def forward(ctx: object, y: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> None:
        return None


@pytest.mark.parametrize("name", ["npu", "nmu"])
def test_undefined_upstream_gradient(name: str, backend: str) -> None:
    record = RECORDS[name]
    sample = record.sample(6, 4, 3).requires_grad()
    _Undefined.apply(sample.call(record.function)).sum().backward()
    for leaf in sample.leaves():
        assert leaf.grad is None or not leaf.grad.any()


@pytest.mark.parametrize("name", ["npu", "nmu", "nmru", "nalu", "inalu"])
@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize("num_models", [None, 2])
def test_second_derivative_of_any_rows(
    name: str, batch: tuple[int, ...], num_models: int | None, backend: str
) -> None:
    """A graph of the gradient, where x has no batch dimension or more than one."""
    if num_models and not batch:
        pytest.skip("models have rows")
    record = RECORDS[name]
    sample = _away_from_kinks(record.sample(6 if batch else 1, 3, 3, num_models=num_models))
    shape = (*sample.x.shape[:-2], *batch, 3)

    def second(function: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
        y = function(x, *sample.tensors.values(), **sample.options)
        grads = torch.autograd.grad(y.square().sum(), sample.leaves(), create_graph=True)
        return [*grads, *torch.autograd.grad(sum(g.square().sum() for g in grads), sample.leaves())]

    expected = second(record.reference, sample.x)
    assert_near(second(record.function, sample.x.reshape(shape)), expected, GRADIENT_ROUNDING)


@pytest.mark.parametrize("name", ["npu", "nmu"])
def test_third_derivative(name: str) -> None:
    """Derivatives of one input through three backward passes, against the reference."""
    record = RECORDS[name]
    sample = _away_from_kinks(record.sample(2, 3, 2))

    def third(function: Callable[..., Tensor]) -> list[Tensor]:
        value = sample.call(function).sum()
        for _ in range(2):
            grads = torch.autograd.grad(value, sample.leaves(), create_graph=True)
            value = sum((g.square().sum() for g in grads), torch.zeros(()))
        return list(torch.autograd.grad(value, sample.leaves()))

    assert_near(third(record.function), third(record.reference), 1e-11)


def test_second_derivative_with_dependent_inputs(backend: str) -> None:
    """x computed from the weight: nothing is counted twice."""

    def penalty(function: Callable[..., Tensor]) -> Tensor:
        weight = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
        x = (weight.sum(0, keepdim=True) + 2) * torch.tensor([[1.0], [-0.7]], dtype=torch.float64)
        (grad,) = torch.autograd.grad(function(x, weight).square().sum(), weight, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), weight)[0]

    assert normwise_error(penalty(functional.npu), penalty(reference.npu)) < GRADIENT_ROUNDING
    assert normwise_error(penalty(functional.nmu), penalty(reference.nmu)) < GRADIENT_ROUNDING


def test_second_derivative_in_training(backend: str) -> None:
    """A gradient penalty's own gradient, accumulated by backward into the parameters."""
    sample = _away_from_kinks(RECORDS["npu"].sample(8, 3, 2))
    grads = {}
    for function in (functional.npu, reference.npu):
        leaves = sample.requires_grad()
        (slope,) = torch.autograd.grad(leaves.call(function).sum(), leaves.x, create_graph=True)
        (slope.square().sum() + leaves.call(function).square().sum()).backward()
        grads[function] = [leaf.grad for leaf in leaves.leaves()]
    assert_near(grads[functional.npu], grads[reference.npu], GRADIENT_ROUNDING)


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize(("num_models", "shared"), SETTINGS)
def test_batched_upstream_gradients(
    name: str, num_models: int | None, shared: bool, backend: str
) -> None:
    """torch.autograd.grad(is_grads_batched=True) runs the backward under vmap."""
    for without in RECORDS[name].variants():
        sample = (
            RECORDS[name]
            .sample(3, 4, 2, num_models=num_models, shared=shared, without=without)
            .requires_grad()
        )
        check_batched_gradients(_function(sample, RECORDS[name].function), sample.leaves())


@needs_library
def test_output_changed_in_place_is_noticed() -> None:
    """The output is saved for the backward: writing to it is an error, not a wrong gradient."""
    sample = RECORDS["npu"].sample(4, 3, 2).requires_grad()
    y = sample.call(functional.npu)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_retained_graph(backend: str) -> None:
    """Two backward passes over one graph give the same bits: nothing saved is overwritten."""
    for name in ("npu", "nmu"):
        sample = RECORDS[name].sample(9, 5, 3, num_models=2).requires_grad()
        loss = sample.call(RECORDS[name].function).square().sum()
        first = torch.autograd.grad(loss, sample.leaves(), retain_graph=True)
        second = torch.autograd.grad(loss, sample.leaves())
        assert_equal(first, second)
