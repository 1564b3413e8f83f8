"""The fast path from Python to the CPU kernels, beside the operators that it stands for.

What it computes is tested wherever the `backend` fixture is used; here, when it is taken, when not,
and how it behaves in the autograd engine.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import npu_kernels
from npu_kernels import NAC, NALU, NAU, NMU, NPU, env, functional, iNALU, reference
from tests.conftest import needs_library
from tests.support.compare import assert_equal, normwise_error
from tests.support.machine import without_fast_path
from tests.support.samples import RECORDS, Sample

pytestmark = needs_library


def taken(call: Callable[[], Tensor]) -> bool:
    """Whether a call that records its derivative took the fast path."""
    grad_fn = call().grad_fn
    return (
        grad_fn is not None and "FastPath<npu::NpuLayer>" in type(grad_fn).__name__ + grad_fn.name()
    )


def test_it_is_built() -> None:
    """The build that these tests run on must not have left it out."""
    assert env.environment()["fast path"].startswith(
        f"fast_path-torch{torch.__version__.partition('+')[0]}"
    )


@pytest.mark.parametrize(
    "sample",
    [
        sample
        for name in ("npu", "nalu", "inalu")
        for dtype in (torch.float32, torch.float64)
        for sample in RECORDS[name].samples(dtype)
    ],
    ids=lambda sample: f"{sample.name}-{sample.x.dtype}",
)
def test_same_bits_as_the_operators(sample: Sample) -> None:
    function = getattr(functional, sample.name.partition("-")[0])

    def results() -> list[Tensor]:
        with torch.no_grad():
            inference = sample.call(function)
        leaves = sample.requires_grad()
        y = leaves.call(function)
        upstream = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
        return [inference, y, *torch.autograd.grad(y, leaves.leaves(), upstream)]

    actuals = results()
    with without_fast_path():
        assert_equal(actuals, results())


@pytest.mark.parametrize("name", ["npu", "nau", "nac", "nmu", "nmru", "nalu", "inalu"])
def test_gradients_that_nobody_needs_are_not_made(name: str) -> None:
    """A backward allocates one tensor for every gradient that is asked for, and no other."""
    sample = RECORDS[name].sample(4, 5, 3).requires_grad()
    leaves = sample.leaves()
    for needed in (leaves, *([leaf] for leaf in leaves)):
        for leaf in leaves:
            leaf.requires_grad_(any(leaf is tensor for tensor in needed))
        y = sample.call(RECORDS[name].function)
        upstream = torch.ones_like(y)
        with torch.autograd.profiler.profile() as profile:
            torch.autograd.grad(y, needed, upstream)
        assert sum(event.name == "aten::empty" for event in profile.function_events) == len(needed)


def test_words_take_the_fast_path_too() -> None:
    layer = NPU(3, 4, gate_gradient="straight_through")
    assert taken(lambda: layer(torch.randn(5, 3)))


@pytest.mark.parametrize("leading", [(), (5,), (2, 5), (2, 1, 5)])
@pytest.mark.parametrize("models", [None, 2])
def test_leading_dimensions(leading: tuple[int, ...], models: int | None) -> None:
    layer = NPU(3, 4, num_models=models, init_im="uniform")
    x = torch.randn(*leading, 3)
    if models is not None and len(leading) != 1 and leading[:1] != (models,):
        pytest.skip("no shape of this layer")
    y = layer(x)
    assert taken(lambda: layer(x))
    with without_fast_path():
        assert torch.equal(y, layer(x))
        assert y.shape == layer(x).shape


class Wrapped(Tensor):
    pass


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(5, 3).half(),
        torch.randn(0, 3),
        torch.randn(5, 3).as_subclass(Wrapped),
        torch.randn(5, 3, dtype=torch.complex64)
        .conj()
        .imag,  # a view with its sign bit flipped when it is read
    ],
    ids=["half", "empty", "subclass", "negated"],
)
def test_not_for_what_is_not_plain(x: Tensor, request: pytest.FixtureRequest) -> None:
    assert x.is_neg() == ("negated" in request.node.name)
    layer = NPU(3, 2).to(x.dtype)
    assert not taken(lambda: layer(x))
    expected = reference.npu(
        x.clone().as_subclass(Tensor).float(), *(p.float() for p in layer.parameters())
    )
    torch.testing.assert_close(layer(x).as_subclass(Tensor).float(), expected, rtol=2e-3, atol=2e-3)


def test_freed_and_modified_graphs() -> None:
    x = torch.randn(5, 3, requires_grad=True)
    layer = NPU(3, 2)
    y = layer(x)
    y.sum().backward(retain_graph=True)
    first = x.grad.clone()
    y.sum().backward()
    assert torch.equal(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()
    y = layer(x)
    with torch.no_grad():
        layer.weight_re.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_saved_tensors_go_through_hooks() -> None:
    layer, x, packed = NPU(3, 2), torch.randn(5, 3), []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t.shape) or t.clone(), lambda t: t
    ):
        y = layer(x)
    assert len(packed) == 6  # x, two weights, the gate, y, s
    y.sum().backward()
    expected = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(x).sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(expected, layer.parameters(), strict=True))


def test_graphs_do_not_leak() -> None:
    layer, x = NPU(3, 2), torch.randn(5, 3)
    y = layer(x)
    alive = weakref.ref(y)
    y.sum().backward()
    del y
    gc.collect()
    assert alive() is None


# ---- layers with one weight -----------------------------------------------------------------


def one_weight(name: str) -> tuple[type[nn.Module], Callable[..., Tensor]]:
    return {"nau": (NAU, functional.nau), "nmu": (NMU, functional.nmu)}[name]


@pytest.mark.parametrize("name", ["nau", "nmu"])
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("models", [None, 3])
@pytest.mark.parametrize("leading", [(), (1,), (70,), (3, 50), (3, 2, 5)])
def test_one_weight(name: str, clip: bool, models: int | None, leading: tuple[int, ...]) -> None:
    """Value and gradients are the formula's, for weights within and outside the bounds."""
    if models is not None and len(leading) != 1 and leading[:1] != (models,):
        pytest.skip("no shape of this layer")
    layer = one_weight(name)[0](6, 4, num_models=models, clip=clip, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.mul_(4)
        layer.weight[..., 0, :2] = torch.tensor([1.0, -1.0])
    x = torch.randn(*leading, 6, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    assert "FastPath<npu::N" in y.grad_fn.name()
    grad_y = torch.randn_like(y)
    grads = torch.autograd.grad(y, (x, layer.weight), grad_y)
    with npu_kernels.use_backend("reference"):
        want = layer(x)
        expected = torch.autograd.grad(want, (x, layer.weight), grad_y)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(grads, expected)
    with torch.no_grad():
        assert torch.equal(layer(x), y)


def test_nau_special_values() -> None:
    weight = torch.tensor([[0.5, float("nan")], [2.0, float("inf")]], requires_grad=True)
    x = torch.tensor([[1.0, 2.0], [float("inf"), 1.0]])
    y = functional.nau(x, weight)
    y.sum().backward()
    expected = weight.detach().requires_grad_()
    z = reference.nau(x, expected)
    z.sum().backward()
    torch.testing.assert_close(y, z, equal_nan=True)
    torch.testing.assert_close(weight.grad, expected.grad, equal_nan=True)


def products_of_torch(call: Callable[[], Any]) -> int:
    """The number of torch's matrix products in a call."""
    with torch.profiler.profile(acc_events=True) as profile:
        call()
    return sum(event.name in ("aten::mm", "aten::bmm") for event in profile.events())


@pytest.mark.parametrize("name", ["nau", "nac"])
@pytest.mark.parametrize("models", [None, 3])
def test_large_products_are_torchs(name: str, models: int | None) -> None:
    """A step of a small layer has none of torch's products, one of a large layer three."""
    for rows, inputs, outputs, products in (
        (3, 64, 64, 0), (3, 65, 4, 3), (3, 4, 65, 3), (1000, 64, 64, 3),
    ):  # fmt: skip
        sample = RECORDS[name].sample(rows, inputs, outputs, num_models=models).requires_grad()

        def step(sample: Sample = sample) -> None:
            sample.call(RECORDS[name].function).sum().backward()

        assert products_of_torch(step) == products


@pytest.mark.parametrize("name", ["nau", "nac"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "models"),
    [
        ((40, 100), None), ((5, 8, 100), None), ((100,), None), ((3, 40, 100), 3),
        ((3, 5, 8, 100), 3), ((40, 100), 3), ((40, 100), 1), ((1, 40, 100), 1),
    ],
)  # fmt: skip
def test_large_products(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], models: int | None
) -> None:
    """Value, gradients, each of them alone, and second derivatives are the formula's."""
    record = RECORDS[name]
    weights = record.sample(2, 100, 70, num_models=models, dtype=dtype).tensors
    tensors = [torch.randn(shape, dtype=dtype), *(t for t in weights.values() if t is not None)]

    def derivatives(needed: Sequence[int]) -> list[Tensor]:
        leaves = [t.clone().requires_grad_(n in needed) for n, t in enumerate(tensors)]
        y = record.function(*leaves)
        grads = torch.autograd.grad(y.square().sum(), [leaves[n] for n in needed])
        again = torch.autograd.grad(
            record.function(*leaves).sin().sum(), [leaves[n] for n in needed], create_graph=True
        )
        second = torch.autograd.grad(
            sum(g.square().sum() for g in again), [leaves[n] for n in needed]
        )
        return [y.detach(), *grads, *second]

    for needed in (range(len(tensors)), *((n,) for n in range(len(tensors)))):
        actual = derivatives(needed)
        with npu_kernels.use_backend("reference"):
            expected = derivatives(needed)
        for a, b in zip(actual, expected, strict=True):
            assert a.shape == b.shape
            assert normwise_error(a, b) < 200 * torch.finfo(dtype).eps


def test_a_nac_that_saw_its_weights_change_raises() -> None:
    for features in (3, 100):
        layer = NAC(features, 4)
        y = layer(torch.randn(5, features))
        with torch.no_grad():
            layer.weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


# ---- NALU, iNALU ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [functools.partial(NALU, bias=True), iNALU])
@pytest.mark.parametrize("models", [None, 2])
def test_a_nalu_takes_it(kind: Callable[..., NALU | iNALU], models: int | None) -> None:
    """The fast path takes flat rows; further dimensions and bad options go the general way."""
    layer = kind(3, 4, num_models=models)
    name = "npu::InaluLayer" if isinstance(layer, iNALU) else "npu::NaluLayer"
    x = torch.randn(5, 3)
    assert f"FastPath<{name}>" in layer(x).grad_fn.name()
    assert layer(torch.randn(2, 2, 5, 3)).shape == (2, 2, 5, 4)
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    assert f"FastPath<{name}>" in layer(x.requires_grad_()).grad_fn.name()
    layer(x).sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in layer.parameters())
