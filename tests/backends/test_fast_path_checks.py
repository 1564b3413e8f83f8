"""What the fast path refuses: it answers NotImplemented, reads and writes nothing, and the caller
goes the general way.

Every case differs from a plain call, which is taken, in one respect.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from npu_kernels._operators import fast_path
from tests.conftest import needs_library
from tests.support.compare import assert_equal
from tests.support.plain import (
    B,
    D,
    I,
    K,
    O,
    Wrapped,
    changed,
    negated,
    plain_adam,
    plain_layer,
    plain_ode,
)

pytestmark = needs_library


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return function(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return function(*args, **(kwargs or {}))


def with_tangent(*shape: int) -> Tensor:
    return forward_ad.make_dual(torch.ones(*shape), torch.ones(*shape))


def of_layer(name: str, arguments: list[Any]) -> Any:
    return getattr(fast_path, name)(*arguments)


# Layer, index of the argument, values that the fast path leaves to the operators.
LAYER_CASES: dict[str, dict[int, list[Any]]] = {
    "npu": {
        0: [None, "x", [[1.0] * I], torch.ones(B, I).half(), torch.ones(B, I).double(),
            torch.ones(B, I).as_subclass(Wrapped), torch.ones(B, I).to_sparse(), torch.ones(0, I),
            torch.ones(()), torch.ones(B, I - 1), negated(B, I)],
        1: [None, torch.ones(I), torch.ones(1, 1, O, I), torch.ones(0, I), torch.ones(O, I).double()],
        2: [torch.ones(O, I + 1), torch.ones(O + 1, I), torch.ones(I, O), torch.ones(O * I),
            torch.ones(O, I).double(), negated(O, I), 1.0],
        3: [torch.ones(I + 1), torch.ones(I - 1), torch.ones(1, I), torch.ones(()),
            torch.ones(I).double()],
        # 1e-320 and 1e-39 are no normal numbers in float32.
        4: [0.0, -1.0, 1e-320, 1e-39, 1e39, float("inf"), float("nan"), 1, "1e-7"],
        5: ["none", True, None, b"clip"],
    },
    "nau": {1: [torch.ones(O, I - 1)], 2: [None, 1, "True"]},
    "nac": {1: [None, torch.ones(O, I - 1)], 2: [None, torch.ones(O + 1, I), negated(O, I)]},
    "nmu": {1: [None], 2: [None, 1, 0.0]},
    "nalu": {2: [None, torch.ones(O, I - 1)], 3: [torch.ones(O + 1, I)],
             4: [torch.ones(O + 1), torch.ones(I), torch.ones(1, O), torch.ones(O).double(), 1.0],
             5: [None, 0.0, -1.0, 1e-39, 1]},
    "inalu": {2: [None, torch.ones(O, I - 1)], 3: [torch.ones(O + 1, I)], 5: [torch.ones(1, O, I)],
              6: [None, 0.0], 7: [None, float("inf"), 20]},
    "nmru": {1: [torch.ones(O, I), torch.ones(O, 2 * I + 1), torch.ones(O, 2 * I - 1)],
             2: [None, 0, -1e-7, "0.0", False], 3: [1], 4: ["products"]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "index", "value"),
    [
        (name, index, value)
        for name, cases in LAYER_CASES.items()
        for index, values in cases.items()
        for value in values
    ],
    ids=lambda value: f"{tuple(value.shape)}-{value.dtype}" if isinstance(value, Tensor) else None,
)
def test_a_layer_refuses(name: str, index: int, value: Any) -> None:
    arguments = plain_layer(name)
    assert isinstance(of_layer(name, arguments), Tensor)
    assert of_layer(name, changed(arguments, index, value)) is NotImplemented


@pytest.mark.parametrize("name", list(LAYER_CASES))
def test_a_layer_refuses_another_number_of_arguments(name: str) -> None:
    arguments = plain_layer(name)
    for wrong in ([], arguments[:1], arguments[:-1], [*arguments, None]):
        assert of_layer(name, wrong) is NotImplemented


@pytest.mark.parametrize(("index", "value"), [
    (0, torch.ones(K - 1, B, I)), (0, torch.ones(I)), (0, torch.ones(1, B, I)),
    (2, torch.ones(O, I)), (2, torch.ones(K - 1, O, I)), (3, torch.ones(I)),
    (3, torch.ones(K - 1, I)), (3, torch.ones(K, I - 1)), (3, torch.ones(K, 1, I)),
])  # fmt: skip
def test_an_ensemble_refuses(index: int, value: Tensor) -> None:
    arguments = plain_layer("npu", K)
    assert of_layer("npu", arguments).shape == (K, B, O)
    assert of_layer("npu", changed(arguments, index, value)) is NotImplemented


def test_an_ensemble_of_one_refuses_x_of_one_dimension() -> None:
    """Its length alone could be that of one model's rows."""
    arguments = plain_layer("npu", 1)
    assert of_layer("npu", changed(arguments, 0, torch.ones(I))) is NotImplemented
    one_by_one = [torch.ones(1), torch.ones(1, 1, 1), None, None, None, "clip"]
    assert of_layer("npu", one_by_one) is NotImplemented


def test_an_option_that_may_be_zero() -> None:
    """The NMRU's eps may be 0."""
    arguments = plain_layer("nmru")
    assert isinstance(of_layer("nmru", changed(arguments, 2, 0.0)), Tensor)


# ---- mean squared error ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "y", "target"),
    [
        (False, torch.ones(3, 4), torch.ones(4, 3)),
        (False, torch.ones(3, 4), torch.ones(3)),
        (False, torch.ones(3, 4), torch.ones(4)),
        (False, torch.ones(3, 4), torch.ones(3, 1)),
        (False, torch.ones(3, 4), torch.ones(3, 4).double()),
        (False, torch.ones(3, 4), torch.ones(3, 4).requires_grad_()),
        (False, torch.ones(3, 4), torch.ones(3, 4).as_subclass(Wrapped)),
        (False, torch.ones(3, 4), negated(3, 4)),
        (False, torch.ones(3, 4), None),
        (False, torch.ones(3, 4), 1.0),
        (False, torch.ones(0, 4), torch.ones(0, 4)),
        (False, torch.ones(3, 4).half(), torch.ones(3, 4).half()),
        (False, torch.ones(3, 4, dtype=torch.int64), torch.ones(3, 4, dtype=torch.int64)),
        (False, torch.ones(3, 4).as_subclass(Wrapped), torch.ones(3, 4)),
        (False, None, torch.ones(3, 4)),
        (False, 1.0, torch.ones(3, 4)),
        (True, torch.ones(2, 3, 4), torch.ones(2, 4)),
        (True, torch.ones(2, 3, 4), torch.ones(4)),
        (True, torch.ones(2, 3, 4), torch.ones(4, 3)),
        (True, torch.ones(2, 3, 4), torch.ones(1, 3, 4)),
        (True, torch.ones(()), torch.ones(())),
    ],
)
def test_the_mean_squared_error_refuses(models: bool, y: Any, target: Any) -> None:
    assert isinstance(fast_path.mse(torch.ones(2, 3), torch.ones(2, 3), models), Tensor)
    assert fast_path.mse(y, target, models) is NotImplemented


def test_the_mean_squared_error_refuses_another_number_of_arguments() -> None:
    y = torch.ones(2, 3)
    for wrong in ((), (y,), (y, y), (y, y, False, None)):
        assert fast_path.mse(*wrong) is NotImplemented


def test_a_loss_without_gradients_has_no_graph() -> None:
    y = torch.ones(2, 3, requires_grad=True)
    assert fast_path.mse(y, y.detach(), False).grad_fn is not None
    with torch.no_grad():
        assert fast_path.mse(y, y.detach(), False).grad_fn is None


# ---- what watches ---------------------------------------------------------------------------


def calls() -> dict[str, Any]:
    """A plain call of each kind; the tensors exist before the call."""
    layer, loop, y, (_, group, states) = (
        plain_layer("npu"),
        plain_ode(),
        torch.ones(2, 3),
        plain_adam(),
    )
    return {
        "npu": lambda: of_layer("npu", layer),
        "mse": lambda: fast_path.mse(y, y, False),
        "ode": lambda: fast_path.ode(*loop),
        "adam": lambda: fast_path.adam([group], states),
    }


@pytest.mark.parametrize("name", ["npu", "mse", "ode", "adam"])
@pytest.mark.parametrize(
    "around",
    [Functions, Dispatches, lambda: torch.autocast("cpu"), torch.autograd.detect_anomaly],
    ids=["functions", "dispatches", "autocast", "anomaly"],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_nothing_is_taken_where_something_watches(name: str, around: Any) -> None:
    call = calls()[name]
    assert call() is not NotImplemented
    with around():
        assert call() is NotImplemented


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("transform", ["a tracer", "vmap"])
def test_nothing_is_taken_under_a_transform(transform: str) -> None:
    answers, plain = [], calls()

    def watched(x: Tensor) -> Tensor:
        answers.append([call() for call in plain.values()])
        return x + 1

    if transform == "vmap":
        torch.func.vmap(watched)(torch.ones(2))
    else:
        torch.jit.trace(watched, torch.ones(2), check_trace=False)
    assert answers[0] == [NotImplemented] * 4


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_tangents_are_refused() -> None:
    with forward_ad.dual_level():
        for name, index, shape in (("npu", 0, (B, I)), ("npu", 2, (O, I)), ("nau", 1, (O, I))):
            assert (
                of_layer(name, changed(plain_layer(name), index, with_tangent(*shape)))
                is NotImplemented
            )
        assert fast_path.mse(with_tangent(2, 3), torch.ones(2, 3), False) is NotImplemented
        assert fast_path.ode(*changed(plain_ode(), 0, with_tangent(B, D))) is NotImplemented


def test_inference_tensors_are_plain() -> None:
    with torch.inference_mode():
        assert all(call() is not NotImplemented for call in calls().values())
        arguments = plain_layer("npu")
    assert isinstance(of_layer("npu", arguments), Tensor)


# ---- gradients that are not plain -----------------------------------------------------------


def gradients(call: Any, inputs: list[Tensor], upstream: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(call(), inputs, upstream))


@pytest.mark.parametrize("name", ["npu", "nau", "nac", "nmu", "nmru", "nalu", "inalu"])
def test_a_gradient_of_another_layout_is_read_by_its_values(name: str) -> None:
    """Upstream gradients with a lazy sign, with strides, and expanded."""
    arguments = plain_layer(name)
    leaves = [a.requires_grad_() for a in arguments if isinstance(a, Tensor)]
    ones = gradients(lambda: of_layer(name, arguments), leaves, torch.ones(B, O))
    for upstream in (torch.ones(()).expand(B, O), torch.ones(O, B).T):
        assert_equal(gradients(lambda: of_layer(name, arguments), leaves, upstream), ones)
    for grad, expected in zip(
        gradients(lambda: of_layer(name, arguments), leaves, negated(B, O)), ones, strict=True
    ):
        torch.testing.assert_close(grad, -expected)


def test_an_upstream_gradient_that_is_negated_of_the_loss_and_the_time_loop() -> None:
    y = torch.rand(2, 3, requires_grad=True)
    (ones,) = gradients(lambda: fast_path.mse(y, torch.ones(2, 3), False), [y], torch.ones(()))
    (grad,) = gradients(lambda: fast_path.mse(y, torch.ones(2, 3), False), [y], negated())
    torch.testing.assert_close(grad, -ones)
    arguments = plain_ode()
    u0 = arguments[0].requires_grad_()
    shape = fast_path.ode(*arguments)[0].shape
    (ones,) = gradients(lambda: fast_path.ode(*arguments)[0], [u0], torch.ones(shape))
    (grad,) = gradients(lambda: fast_path.ode(*arguments)[0], [u0], negated(*shape))
    torch.testing.assert_close(grad, -ones)
