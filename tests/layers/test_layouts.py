"""Shapes and strides that nobody thought of, by hypothesis."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.support.compare import assert_near
from tests.support.samples import RECORDS, OperatorRecord, Sample, normwise_error

sizes = st.integers(1, 40)
ROUNDING = 1e-11


@st.composite
def strided(draw: st.DrawFn, tensor: Tensor) -> Tensor:
    """The same values permuted, with steps, an offset, or broadcast along a dimension of size 1."""
    permutation = draw(st.permutations(range(tensor.dim())))
    inverse = [permutation.index(d) for d in range(tensor.dim())]
    steps = [draw(st.integers(1, 3)) for _ in range(tensor.dim())]
    offset = draw(st.integers(0, 2))
    source = tensor.permute(permutation)
    padded = source.new_full(
        [n * step + offset for n, step in zip(source.shape, steps, strict=True)], float("nan")
    )
    view = padded[
        tuple(slice(offset, offset + n * s, s) for n, s in zip(source.shape, steps, strict=True))
    ]
    view.copy_(source)
    return view.permute(inverse)


@st.composite
def samples(draw: st.DrawFn, record: OperatorRecord) -> Sample:
    num_models = draw(st.none() | st.integers(1, 4))
    shared = num_models is not None and draw(st.booleans())
    batch = draw(st.integers(0, 70))
    sample = record.sample(
        batch, draw(sizes), draw(sizes), num_models=num_models, shared=shared,
        without=draw(st.sampled_from(record.variants())),
        options=draw(st.sampled_from(record.option_sets)), seed=draw(st.integers(0, 2**16)),
    )  # fmt: skip
    tensors = {name: None if t is None else draw(strided(t)) for name, t in sample.tensors.items()}
    x = draw(strided(sample.x))
    # another batch dimension, before, after or in the middle
    if not shared and draw(st.booleans()):
        x = x.unsqueeze(draw(st.integers(0 if num_models is None else 1, x.dim() - 1)))
    if draw(st.booleans()) and x.shape[-2] > 1:
        x = x.narrow(-2, 1, 1).expand(x.shape)
    return Sample(sample.name, x, tensors, sample.options)


def _check(record: OperatorRecord, data: Any) -> None:
    sample = data.draw(samples(record)).map(lambda t: t.detach().requires_grad_())
    models = next(t for t in sample.tensors.values() if t is not None).dim() == 3
    flat = sample.x.flatten(1, -2) if models and sample.x.dim() > 3 else sample.x
    y = sample.call(record.function)
    expected = Sample("", flat, sample.tensors, sample.options).call(record.reference)
    assert y.shape == (
        *((expected.shape[0],) if models and sample.x.dim() == 2 else ()),
        *sample.x.shape[:-1],
        y.shape[-1],
    )
    assert normwise_error(y, expected.reshape(y.shape)) < ROUNDING

    grad_y = data.draw(strided(torch.randn(y.shape, dtype=y.dtype)))
    expected_grads = torch.autograd.grad(expected, sample.leaves(), grad_y.reshape(expected.shape))
    assert_near(torch.autograd.grad(y, sample.leaves(), grad_y), expected_grads, ROUNDING)


@given(st.data())
def test_npu(data: Any) -> None:
    _check(RECORDS["npu"], data)


@given(st.data())
def test_nmu(data: Any) -> None:
    _check(RECORDS["nmu"], data)


@given(st.data())
def test_siblings(data: Any) -> None:
    _check(RECORDS[data.draw(st.sampled_from(["nau", "nac", "nalu", "inalu"]))], data)
