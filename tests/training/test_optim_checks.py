"""Adam in one call: what it refuses. It answers NotImplemented and changes nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor

from npu_kernels._operators import fast_path
from tests.conftest import needs_library
from tests.support.plain import Wrapped, negated, plain_adam

pytestmark = needs_library


def refused(groups: Any, states: Any, parameter: Tensor) -> bool:
    """Whether a step answers NotImplemented and leaves the parameter as it is."""
    before = parameter.detach().clone()
    answer = fast_path.adam(groups, states)
    return answer is NotImplemented and torch.equal(parameter.detach(), before)


GROUP_CASES: list[tuple[str, Any]] = [
    ("lr", torch.tensor(1e-2)), ("lr", "1e-2"), ("lr", True), ("lr", None),
    ("eps", torch.tensor(1e-8)), ("weight_decay", None), ("maximize", 1), ("maximize", None),
    ("decoupled_weight_decay", 1), ("amsgrad", True), ("amsgrad", 1), ("capturable", True),
    ("differentiable", True), ("differentiable", 0), ("betas", [0.9, 0.999]), ("betas", (0.9,)),
    ("betas", (0.9, 0.999, 0.5)), ("betas", (torch.tensor(0.9), 0.999)), ("betas", (0.9, 0)),
    ("params", ()), ("params", [None]), ("params", [1.0]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), GROUP_CASES)
def test_a_step_refuses_a_group(name: str, value: Any) -> None:
    parameter, group, states = plain_adam()
    assert fast_path.adam([dict(group)], states) is None
    assert refused([{**group, name: value}], states, parameter)


@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay", "betas", "params"])
def test_a_step_refuses_a_group_without(name: str) -> None:
    parameter, group, states = plain_adam()
    assert refused([{key: value for key, value in group.items() if key != name}], states, parameter)


def test_a_missing_flag_is_false() -> None:
    """States of older torches have none."""
    _, group, states = plain_adam()
    flags = ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay")
    assert (
        fast_path.adam([{key: value for key, value in group.items() if key not in flags}], states)
        is None
    )


STATE_CASES: list[tuple[str, Any]] = [
    *(
        (name, torch.zeros(shape))
        for name in ("exp_avg", "exp_avg_sq")
        for shape in ((1,), (6,), (3, 2), (2, 4))
    ),
    *((name, torch.zeros(3, 2).T) for name in ("exp_avg", "exp_avg_sq")),
    *((name, torch.zeros(2, 3, dtype=torch.float64)) for name in ("exp_avg", "exp_avg_sq")),
    *((name, None) for name in ("exp_avg", "exp_avg_sq", "step")),
    *((name, 1.0) for name in ("exp_avg", "exp_avg_sq", "step")),
    ("exp_avg", torch.zeros(2, 3).as_subclass(Wrapped)),
    ("step", torch.ones(2)),
    ("step", torch.ones(0)),
    ("step", torch.ones((), dtype=torch.float64)),
    ("step", torch.ones((), dtype=torch.int64)),
]


@pytest.mark.parametrize(("name", "value"), STATE_CASES)
def test_a_step_refuses_a_state(name: str, value: Any) -> None:
    """One of another size would be read and written beyond its end."""
    parameter, group, states = plain_adam()
    assert refused([group], {parameter: {**states[parameter], name: value}}, parameter)


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq", "step"])
def test_a_step_refuses_a_state_without(name: str) -> None:
    parameter, group, states = plain_adam()
    state = {key: value for key, value in states[parameter].items() if key != name}
    assert refused([group], {parameter: state}, parameter)


def test_a_step_refuses_states_of_other_kinds() -> None:
    parameter, group, states = plain_adam()
    for groups, state in (
        ((group,), states),
        ([None], states),
        ([[]], states),
        ([group], [states]),
        ([group], {}),
        ([group], {parameter: None}),
        ([group], {parameter: list(states[parameter].values())}),
    ):
        assert refused(groups, state, parameter)
    for arguments in ((), ([group],), ([group], states, None)):
        assert fast_path.adam(*arguments) is NotImplemented


def test_a_step_refuses_inference_tensors_outside_of_the_mode() -> None:
    """Torch refuses to change them there, and says so."""
    parameter, group, states = plain_adam()
    with torch.inference_mode():
        state = {key: value.clone() for key, value in states[parameter].items()}
    for name in state:
        assert refused([group], {parameter: {**states[parameter], name: state[name]}}, parameter)


def test_a_step_refuses_gradients_and_parameters_that_are_not_plain() -> None:
    parameter, group, states = plain_adam()
    plain = parameter.grad
    for grad in (
        torch.ones(2, 3).to_sparse(),
        torch.ones(2, 3).requires_grad_(),
        negated(2, 3),
    ):
        parameter.grad = grad
        assert refused([group], states, parameter)
    parameter.grad = plain
    assert fast_path.adam([group], states) is None
    parameter.data = torch.zeros(2, 4)  # torch checks a gradient's size only where it is set
    zeros = {"exp_avg": torch.zeros(2, 4), "exp_avg_sq": torch.zeros(2, 4), "step": torch.ones(())}
    assert refused([group], {parameter: zeros}, parameter)
    for other in (
        torch.zeros(3, 2).T.requires_grad_(),
        torch.zeros(2, 3, dtype=torch.float16).requires_grad_(),
        torch.zeros(2, 3, dtype=torch.complex64).requires_grad_(),
    ):
        other.grad = torch.ones_like(other)
        zeros = {
            "exp_avg": torch.zeros_like(other),
            "exp_avg_sq": torch.zeros_like(other),
            "step": torch.ones(()),
        }
        assert refused([{**group, "params": [other]}], {other: zeros}, other)


def test_nothing_changes_where_a_later_parameter_is_refused() -> None:
    parameter, group, states = plain_adam()
    second, *_ = plain_adam()
    step = states[parameter]["step"].clone()
    assert refused([{**group, "params": [parameter, second]}], states, parameter)
    assert torch.equal(states[parameter]["step"], step)


def test_a_rate_that_is_no_float_is_an_error_and_changes_nothing() -> None:
    """An integer beyond the floats: the sign of the step must not be that of C's error value."""
    parameter, group, states = plain_adam()
    before = parameter.detach().clone()
    with pytest.raises(OverflowError):
        fast_path.adam([{**group, "lr": 10**400}], states)
    assert torch.equal(parameter.detach(), before)
