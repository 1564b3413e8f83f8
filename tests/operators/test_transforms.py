"""torch.func and forward mode, also compiled."""

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

from npu_kernels import NMU, NPU, use_backend
from tests.conftest import compiles, needs_library
from tests.support.compare import assert_near
from tests.support.samples import RECORDS, CountCalls, normwise_error
from tests.support.vmapped import ROUNDING, check_one_call

fused = pytest.mark.parametrize("name", ["npu", "nmu", "nmru", "nalu", "inalu"])

# torch's own warnings about itself: when it traces an autograd.Function, loads forward mode, and
# saves a program.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
]


def _loss(function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
    return function(*arguments).square().sum()


def _arguments(name: str, rows: int = 5) -> tuple[Tensor, ...]:
    sample = RECORDS[name].sample(rows, 3, 2)
    with torch.no_grad():
        sample.x.add_(0.25 * sample.x.sign())
    return tuple(sample.leaves())


# ---- torch.func -----------------------------------------------------------------------------


@needs_library
@fused
def test_one_level_of_grad_is_fused(name: str) -> None:
    """One call each of the forward and the backward, also for parameters that require gradients."""
    arguments = _arguments(name)
    positions = tuple(range(len(arguments)))
    once = {f"{name}_forward": 1, f"{name}_backward": 1}

    def loss(*tensors: Tensor) -> Tensor:
        return _loss(RECORDS[name].function, *tensors)

    def by_vjp(*tensors: Tensor) -> Any:
        value, vjp_of = vjp(loss, *tensors)
        return vjp_of(torch.ones_like(value))

    for tensors in (arguments, [a.clone().requires_grad_() for a in arguments]):
        for gradient in (
            grad(loss, positions),
            lambda *a: grad_and_value(loss, positions)(*a)[0],
            by_vjp,
        ):
            with CountCalls() as count:
                actual = gradient(*tensors)
            assert count.calls == once
            with use_backend("reference"):
                assert_near(actual, gradient(*tensors), ROUNDING)


@fused
def test_derivatives_of_one_level_of_grad(name: str, backend: str) -> None:
    """Second derivatives: in the same level, in plain autograd outside, under a vmap of the vjp."""
    x, weight, *rest = _arguments(name)
    function = RECORDS[name].function

    def loss(w: Tensor) -> Tensor:
        return _loss(function, x, w, *rest)

    leaf = weight.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    (expected,) = torch.autograd.grad(gradient.square().sum(), leaf)

    def same_level(w: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(loss(w), w, create_graph=True)
        return gradient.square().sum()

    assert normwise_error(grad(same_level)(weight), expected) < ROUNDING
    assert normwise_error(grad(lambda w: grad(loss)(w).square().sum())(weight), expected) < ROUNDING
    (outside,) = torch.autograd.grad(grad(loss)(leaf).square().sum(), leaf)
    assert normwise_error(outside, expected) < ROUNDING

    y, vjp_of = vjp(lambda w: function(x, w, *rest), weight)
    directions = torch.randn(3, *y.shape, dtype=y.dtype)
    (together,) = vmap(vjp_of)(directions)
    for direction, actual in zip(directions, together, strict=True):
        assert normwise_error(actual, vjp_of(direction)[0]) < ROUNDING
    (within,) = vjp(lambda g: vjp_of(g)[0], directions[0])[1](weight)  # the vjp of the vjp
    with use_backend("reference"):
        vjp_of = vjp(lambda w: function(x, w, *rest), weight)[1]
        assert normwise_error(within, vjp(lambda g: vjp_of(g)[0], directions[0])[1](weight)[0]) < (
            ROUNDING
        )


@fused
def test_no_grad_within_a_vmap_of_grad_holds_for_the_levels_outside(name: str) -> None:
    x, weight, *rest = _arguments(name)
    function = RECORDS[name].function
    weights = torch.stack([weight, 0.7 * weight + 0.1]).requires_grad_()

    def loss(w: Tensor) -> Tensor:
        with torch.no_grad():
            factor = function(x, w, *rest).sum()
        return w.square().sum() * factor

    vmap(grad(loss))(weights).sum().backward()
    factors = [function(x, w, *rest).sum().detach() for w in weights.detach()]
    for gradient, factor in zip(weights.grad, factors, strict=True):  # type: ignore[arg-type]
        assert normwise_error(gradient, 2 * factor.expand_as(gradient)) < ROUNDING


@fused
def test_a_second_backward_under_saved_tensor_hooks(name: str) -> None:
    x, weight, *rest = _arguments(name)
    leaf = weight.clone().requires_grad_()
    gradients = []
    for block in (contextlib.nullcontext(), torch.autograd.graph.save_on_cpu()):
        gradient = grad(lambda w: _loss(RECORDS[name].function, x, w, *rest))(leaf)
        with block:
            (second,) = torch.autograd.grad(gradient.square().sum(), leaf)
        gradients.append(second)
    assert normwise_error(*gradients) < ROUNDING


@fused
def test_the_vjp_of_a_vjp_over_stacked_weights(name: str) -> None:
    x, weight, *rest = _arguments(name)
    function = RECORDS[name].function
    weights = torch.stack([weight, 0.7 * weight + 0.1])
    results = []
    for backend in (None, "reference"):
        with use_backend(backend) if backend else contextlib.nullcontext():
            y, vjp_of = vjp(vmap(lambda w: function(x, w, *rest)), weights)
            outer = vjp(lambda g, vjp_of=vjp_of: vjp_of(g)[0], torch.ones_like(y))[1]
            results.append(outer(torch.ones_like(weights))[0])
    assert normwise_error(*results) < ROUNDING


@needs_library
def test_grad_of_a_functional_call_is_fused() -> None:
    module = nn.Sequential(NPU(3, 4, init_im=0.3), NMU(4, 2)).double()
    parameters, x = dict(module.named_parameters()), torch.randn(7, 3, dtype=torch.float64)
    with CountCalls() as count:
        grads = grad(lambda p: _square(module, p, x))(parameters)
    assert count.calls == ONE_STEP
    module(x).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert normwise_error(grads[name], parameter.grad) < ROUNDING
        with torch.no_grad():
            frozen = grad(lambda p: _square(module, p, x))(parameters)
        assert normwise_error(frozen[name], parameter.grad) < ROUNDING


@fused
def test_jvp_and_jacobians(name: str, backend: str) -> None:
    arguments = _arguments(name)
    tangents = tuple(torch.randn_like(a) for a in arguments)
    function = RECORDS[name].function
    _, tangent = jvp(function, arguments, tangents)
    positions = tuple(range(len(arguments)))
    reverse, forward = (
        jacrev(function, argnums=positions)(*arguments),
        jacfwd(function, argnums=positions)(*arguments),
    )
    expected = sum(torch.tensordot(j, t, t.dim()) for j, t in zip(reverse, tangents, strict=True))
    assert normwise_error(tangent, expected) < ROUNDING
    assert tangent.any()
    assert_near(forward, reverse, ROUNDING)


@fused
def test_per_sample_gradients(name: str, backend: str) -> None:
    x, weight, *rest = _arguments(name)
    function = RECORDS[name].function
    per_sample = vmap(grad(lambda w, row: _loss(function, row, w, *rest)), (None, 0))(weight, x)
    for row, actual in zip(x, per_sample, strict=True):
        leaf = weight.clone().requires_grad_()
        (expected,) = torch.autograd.grad(_loss(function, row[None], leaf, *rest), leaf)
        assert normwise_error(actual, expected) < ROUNDING


def _stacked(models: int, **options: Any) -> tuple[list[nn.Module], nn.Module, dict[str, Any]]:
    modules: list[nn.Module] = []
    for _ in range(models):
        modules.append(nn.Sequential(NPU(3, 4, init_im=0.3, **options), NMU(4, 2, **options)))
    state, _ = stack_module_state(modules)
    return modules, modules[0], state


def _square(module: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
    return functional_call(module, state, x).square().sum()


ONE_CALL = {"npu_forward": 1, "nmu_forward": 1}
ONE_STEP = {**ONE_CALL, "npu_backward": 1, "nmu_backward": 1}


@pytest.mark.parametrize("shared", [False, True])
def test_vmap_over_stacked_modules(shared: bool, backend: str) -> None:
    """Five modules take one call of each operator, wherever the gradient is taken."""
    modules, module, state = _stacked(5, dtype=torch.float64)
    x = torch.randn(*(() if shared else (5,)), 7, 3, dtype=torch.float64)
    dims = (0, None if shared else 0)
    rows = [x] * 5 if shared else list(x)
    expected = torch.stack([m(row) for m, row in zip(modules, rows, strict=True)])
    losses = [m(row).square().sum() for m, row in zip(modules, rows, strict=True)]
    gradients = [
        torch.autograd.grad(loss, list(m.parameters()))
        for loss, m in zip(losses, modules, strict=True)
    ]
    expected_grads = [torch.stack(gradient) for gradient in zip(*gradients, strict=True)]

    def together(state: dict[str, Tensor]) -> Tensor:
        return vmap(lambda s, r: functional_call(module, s, r), dims)(state, x)

    frozen = {name: value.detach() for name, value in state.items()}
    outcomes: dict[str, tuple[Counter[str], Any]] = {}
    with CountCalls() as count:
        y = together(frozen)
    assert normwise_error(y, expected) < ROUNDING
    outcomes["forward"] = (count.calls, None)
    with CountCalls() as count:
        inside = vmap(grad(lambda s, r: _square(module, s, r)), dims)(frozen, x)
    outcomes["inside"] = (count.calls, inside)
    with CountCalls() as count:
        outside = grad(lambda s: together(s).square().sum())(frozen)
    outcomes["outside"] = (count.calls, outside)
    with CountCalls() as count:
        together(state).square().sum().backward()
    outcomes["autograd"] = (count.calls, {name: value.grad for name, value in state.items()})
    for where, (calls, grads) in outcomes.items():
        if backend == "cpu":
            assert calls == (ONE_CALL if where == "forward" else ONE_STEP), where
        for actual, want in zip((grads or {}).values(), expected_grads, strict=grads is not None):
            assert normwise_error(actual, want) < ROUNDING, where


@needs_library
@pytest.mark.parametrize("name", ["npu", "nalu", "inalu"])
def test_vmap_over_anything_is_one_call(name: str) -> None:
    """Rows alone, some weights, other dimensions, modules that have models, two levels."""
    check_one_call(name)


def test_second_derivative_over_stacked_modules(backend: str) -> None:
    """Plain autograd through vmap, grad of grad inside and outside."""
    _, module, state = _stacked(3, dtype=torch.float64)
    x = torch.rand(4, 3, dtype=torch.float64) + 0.3

    def penalty(s: dict[str, Tensor]) -> Tensor:
        gradient = grad(lambda s: _square(module, s, x))(s)
        return sum((v.square().sum() for v in gradient.values()), x.new_zeros(()))

    with use_backend("reference"):
        expected = vmap(grad(penalty))({name: value.detach() for name, value in state.items()})
    inside = vmap(grad(penalty))({name: value.detach() for name, value in state.items()})
    outside = grad(lambda s: vmap(penalty)(s).sum())(
        {name: value.detach() for name, value in state.items()}
    )
    y = vmap(lambda s: functional_call(module, s, x))(state).square().sum()
    gradients = torch.autograd.grad(y, list(state.values()), create_graph=True)
    plain = torch.autograd.grad(
        sum((s.square().sum() for s in gradients), x.new_zeros(())), list(state.values())
    )
    for name, third in zip(state, plain, strict=True):
        for actual in (inside[name], outside[name], third):
            assert normwise_error(actual, expected[name]) < ROUNDING


@fused
def test_jacobian_of_autograd_functional(name: str, backend: str) -> None:
    """vectorize=True runs the backward under vmap; create_graph, its second derivative."""
    x, *rest = _arguments(name)
    function = RECORDS[name].function
    plain = torch.autograd.functional.jacobian(lambda x: function(x, *rest), x)
    fast = torch.autograd.functional.jacobian(lambda x: function(x, *rest), x, vectorize=True)
    assert normwise_error(fast, plain) < ROUNDING
    curve = torch.autograd.functional.hessian(
        lambda x: _loss(function, x, *rest), x, vectorize=True
    )
    assert normwise_error(curve, hessian(lambda x: _loss(function, x, *rest))(x)) < ROUNDING


# ---- forward mode ---------------------------------------------------------------------------


@fused
def test_forward_mode(name: str, backend: str) -> None:
    """A tangent is never lost, also not in an upstream gradient from outside the level."""
    arguments = _arguments(name)
    function = RECORDS[name].function
    for which, primal in enumerate(arguments):
        tangent = torch.randn_like(primal)
        jacobian = jacrev(function, argnums=which)(*arguments)
        with forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(a, tangent) if i == which else a
                for i, a in enumerate(arguments)
            ]
            _, actual = forward_ad.unpack_dual(function(*duals))
        assert normwise_error(actual, torch.tensordot(jacobian, tangent, tangent.dim())) < ROUNDING

    leaf = arguments[1].clone().requires_grad_()
    y = function(arguments[0], leaf, *arguments[2:])
    direction = torch.randn_like(y)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones_like(y), direction)
        (gradient,) = torch.autograd.grad(y, leaf, dual, retain_graph=True)
        _, actual = forward_ad.unpack_dual(gradient)
    assert normwise_error(actual, torch.autograd.grad(y, leaf, direction)[0]) < ROUNDING


@compiles
@pytest.mark.parametrize(
    ("name", "backend"),
    [("npu", "reference"),
     *(pytest.param(name, "cpu", marks=needs_library) for name in ("npu", "inalu"))],
    indirect=["backend"],
)  # fmt: skip
def test_compiled_transforms(name: str, backend: str) -> None:
    """Compiled grad, vmap(grad) and hessian; one level of grad keeps the fused operators."""
    x, weight, *rest = _arguments(name, rows=3)

    def loss(w: Tensor, row: Tensor) -> Tensor:
        return _loss(RECORDS[name].function, row, w, *rest)

    one_level = grad(loss)
    for transform, where in (
        (one_level, (weight, x)),
        (one_level, (weight.clone().requires_grad_(), x)),
        (vmap(grad(loss), (None, 0)), (weight, x)),
        (hessian(loss), (weight, x)),
        (grad(lambda w, r: grad(loss)(w, r).square().sum()), (weight, x)),
    ):
        torch._dynamo.reset()
        graphs: list[torch.fx.GraphModule] = []

        def keep(graph: torch.fx.GraphModule, _: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(graph)
            return make_boxed_func(graph.forward)

        backend_of_torch = aot_autograd(fw_compiler=keep)
        actual = torch.compile(transform, fullgraph=True, backend=backend_of_torch)(*where)
        assert actual.any()
        assert normwise_error(actual, transform(*where)) < ROUNDING
        if backend == "cpu" and transform is one_level:
            targets = {str(node.target) for node in graphs[-1].graph.nodes}
            names = {f"npu_kernels.{name}_{step}.default" for step in ("forward", "backward")}
            assert names <= targets
