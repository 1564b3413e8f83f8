"""First, second and third derivatives through autograd."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from npu_kernels import functional, reference
from tests.conftest import needs_library
from tests.support.compare import assert_near
from tests.support.samples import RECORDS, Sample, normwise_error
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


@pytest.mark.parametrize("name", list(RECORDS))
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
