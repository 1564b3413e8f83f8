"""torch.compile, torch.export, and the rest of a training loop."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

from npu_kernels import NAU, NMU, NPU, iNALU, reference, use_backend
from tests.conftest import compiled_backends, compiles, needs_library
from tests.support.compare import assert_near
from tests.support.samples import normwise_error

# torch's own warnings about itself: when it traces an autograd.Function, loads forward mode, and
# saves a program.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
]


# ---- torch.compile --------------------------------------------------------------------------


def _model(dtype: torch.dtype = torch.float32) -> nn.Module:
    options: Any = {"dtype": dtype}
    return nn.Sequential(
        NPU(3, 6, **options), NAU(6, 4, **options), NMU(4, 3, **options), iNALU(3, 2, **options)
    )


def _step(model: Callable[[Tensor], Tensor], parameters: list[Tensor], x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    loss = model(x).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *parameters])]


@compiles
@compiled_backends
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_train_step(dynamic: bool, backend: str) -> None:
    """One graph with the eager numbers; a dynamic batch needs no new compilation."""
    model = _model(torch.float64)
    parameters = list(model.parameters())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    sizes = (9, 17, 33) if dynamic else (9,)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in sizes:
            x = torch.randn(rows, 3, dtype=torch.float64)
            for actual, expected in zip(
                _step(compiled, parameters, x), _step(model, parameters, x), strict=True
            ):
                # Not the same bits: a small NAU has its own kernel, but in a compiled graph torch's
                # product.
                assert normwise_error(actual, expected) < 1e-12


@compiles
@needs_library
def test_compiled_graph_has_the_operators() -> None:
    """The fused operators stay in forward and backward; nothing falls back in silence."""
    graphs: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph.code)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    model = nn.Sequential(NPU(3, 6), NMU(6, 2))
    torch.compile(model, fullgraph=True, backend=backend)(torch.randn(4, 3)).sum().backward()
    forward, backward = graphs
    assert forward.count("ops.npu_kernels.npu_forward.") == 1
    assert forward.count("ops.npu_kernels.nmu_forward.") == 1
    assert backward.count("ops.npu_kernels.npu_backward.") == 1
    assert backward.count("ops.npu_kernels.nmu_backward.") == 1


@compiles
@compiled_backends
def test_compiled_models(backend: str) -> None:
    """K models and shared rows."""
    model = nn.Sequential(NPU(3, 6, num_models=4), NAU(6, 2, num_models=4))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for x in (torch.randn(9, 3), torch.randn(4, 7, 3)):
        assert_near(
            _step(compiled, list(model.parameters()), x),
            _step(model, list(model.parameters()), x),
            1e-6,
        )


@compiles
def test_switching_the_backend_recompiles() -> None:
    """A compiled function sees use_backend; it does not keep the choice of its first call."""
    model, x = NPU(3, 2, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    first = compiled(x)
    with use_backend("reference"):
        second = compiled(x)
        assert torch.equal(second, reference.npu(x, *model.parameters()))
    assert torch.equal(compiled(x), first)

    def elsewhere() -> torch.Tensor:
        with use_backend("reference"):
            return compiled(x)

    with ThreadPoolExecutor(1) as pool, use_backend("cpu"):  # each thread has its own choice
        assert torch.equal(pool.submit(elsewhere).result(), second)
        assert torch.equal(compiled(x), first)
        assert torch.equal(pool.submit(compiled, x).result(), first)


@compiles
@compiled_backends
def test_compiled_autocast(backend: str) -> None:
    model, x = _model(), torch.randn(9, 3)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = compiled(x), model(x)
    assert actual.dtype == expected.dtype == torch.float32
    assert normwise_error(actual, expected) < 1e-6


@compiles
def test_double_backward_of_a_compiled_function_is_torchs_error() -> None:
    model, x = NPU(3, 2), torch.randn(5, 3, requires_grad=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.sum().backward()


@compiles
@needs_library
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own dependencies
def test_inductor() -> None:
    """The default compiler: a train step, and two sizes of a dynamic batch without recompiling."""
    model = _model()
    parameters = list(model.parameters())
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (9, 21):
            x = torch.randn(rows, 3)
            assert_near(_step(compiled, parameters, x), _step(model, parameters, x), 5e-5)


# ---- the rest of a training loop ------------------------------------------------------------


def test_reentrant_checkpoints(backend: str) -> None:
    """`test_checkpoints` has the others."""
    model = _model(torch.float64)
    parameters = list(model.parameters())
    x = torch.randn(9, 3, dtype=torch.float64)
    expected = _step(model, parameters, x)

    x = x.clone().requires_grad_()
    loss = checkpoint(model, x, use_reentrant=True).square().mean()
    loss.backward()
    for parameter, want in zip([x, *parameters], expected[1:], strict=True):
        assert torch.equal(parameter.grad, want)


def test_gradient_scaler(backend: str) -> None:
    model, x = _model(), torch.randn(9, 3)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = [p.clone() for p in model.parameters()]
    with torch.autocast("cpu", torch.float16):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(p.isfinite().all() for p in model.parameters())
    assert any(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
