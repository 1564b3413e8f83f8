"""The interpreted kernels as the registered operators, in `use_backend` and only there."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NALU, NMU, NPU, functional, iNALU, use_backend
from tests.conftest import compiles
from tests.support.compare import assert_equal, assert_near
from tests.support.samples import normwise_error
from tests.support.vmapped import check_one_call
from tests.triton.conftest import Launches, skip_unless_available


@pytest.fixture(autouse=True)
def _interpreted() -> None:
    skip_unless_available("cpu")


@pytest.fixture
def device() -> str:
    return "cpu"


def _model() -> nn.Module:
    return nn.Sequential(
        NPU(3, 4, init_im=0.3, dtype=torch.float64), NMU(4, 2, dtype=torch.float64)
    )


def _step(model: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))


def test_only_inside_use_backend(launched: Launches) -> None:
    """Operators called directly too; outside they are the C++ kernels or the formulas."""
    model, x = _model(), torch.randn(5, 3, dtype=torch.float64)
    nmu_forward = torch.ops.npu_kernels.nmu_forward
    with use_backend("triton"):
        inside = _step(model, x)
        assert len(launched) == 4  # forward and backward of both layers
        direct = nmu_forward(x, x[:2].abs())
        assert len(launched) == 5
    outside = _step(model, x)
    assert normwise_error(nmu_forward(x, x[:2].abs()), direct) < 1e-12
    assert len(launched) == 5
    assert_near(inside, outside, 1e-11)


@compiles
@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch's, about itself
def test_compiled_graphs_and_exported_programs(launched: Launches) -> None:
    model, x = _model(), torch.randn(5, 3, dtype=torch.float64)
    expected = _step(model, x)
    with use_backend("triton"):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        results = _step(compiled, x)
        assert len(launched) == 4
        program = torch.export.export(model, (x,), strict=False).module()
        launched.clear()
        y = program(x)
        assert len(launched) == 2
    assert_near(results, expected, 1e-11)
    assert normwise_error(y, model(x)) < 1e-11


@pytest.mark.parametrize(
    "layer",
    [NPU, NMU, NALU, functools.partial(NALU, bias=True), iNALU],
    ids=["NPU", "NMU", "NALU", "NALU with bias", "iNALU"],
)  # fmt: skip
def test_vmap_over_stacked_modules_is_one_launch(
    layer: Callable[..., nn.Module], launched: Launches
) -> None:
    """The gradient by plain autograd, inside and outside."""
    modules = [layer(3, 2, dtype=torch.float64) for _ in range(4)]
    state, _ = torch.func.stack_module_state(modules)
    frozen = {key: value.detach() for key, value in state.items()}
    x = torch.randn(5, 3, dtype=torch.float64)

    def loss(s: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(modules[0], s, x).square().sum()

    def plain() -> dict[str, Tensor]:
        torch.func.vmap(loss)(state).sum().backward()
        return {key: value.grad for key, value in state.items() if value.grad is not None}

    with use_backend("triton"):
        torch.autograd.grad(modules[0](x).sum(), list(modules[0].parameters()))
    of_one = launched.names()
    single_grads = [torch.autograd.grad(m(x).square().sum(), list(m.parameters())) for m in modules]
    expected = {
        key: torch.stack(grads)
        for key, grads in zip(state, zip(*single_grads, strict=True), strict=True)
    }
    calls: tuple[Callable[[], dict[str, Tensor]], ...] = (
        plain,
        lambda: torch.func.vmap(torch.func.grad(loss))(frozen),
        lambda: torch.func.grad(lambda s: torch.func.vmap(loss)(s).sum())(frozen),
    )
    for call in calls:
        launched.clear()
        with use_backend("triton"):
            actual = call()
        assert launched.names() == of_one
        assert actual.keys() == expected.keys()
        assert all(normwise_error(actual[key], expected[key]) < 1e-11 for key in expected)


def test_vmap_over_anything_is_one_call() -> None:
    """The layer without a C++ kernel; `tests/operators/test_transforms.py` has the others."""
    with use_backend("triton"):
        check_one_call("nalu")


def test_python_threads() -> None:
    """The interpreter keeps its state in globals: calls take turns."""
    inputs = [torch.randn(rows, 3) for rows in range(1, 9)]
    weight = torch.rand(2, 3)

    def call(x: Tensor) -> Tensor:
        with use_backend("triton"):
            return functional.nmu(x, weight)

    expected = [call(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert_equal(pool.map(call, inputs), expected)
