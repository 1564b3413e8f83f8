"""Adaptive steps: what a call keeps and refuses, and what it says of the steps that it took."""

import math
import types
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from npu_kernels import ode, use_backend
from npu_kernels._time_loop.adaptive import AdaptiveFunction
from npu_kernels._time_loop.adaptive_reference import DONE, STUCK, TOO_MANY
from npu_kernels.ode import _accuracy as accuracy
from npu_kernels.ode import _adaptive as adaptive
from tests.conftest import needs_library
from tests.ode.test_ode_accuracy import linear
from tests.ode.test_ode_adaptive import PREDATOR, power_law

BACKENDS = [pytest.param("cpu", marks=needs_library), "reference"]


def start() -> Tensor:
    return torch.tensor([10.0, 5.0], dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_may_be_changed(backend: str) -> None:
    """They are no memory that a derivative needs."""
    u0 = torch.stack([start(), start()]).requires_grad_()
    with use_backend(backend):
        path, statistics = ode.rollout(
            power_law(*PREDATOR), u0, t=[0, 0.5], method="dopri5", statistics=True
        )
        for part in statistics:
            part.zero_()
        path.sum().backward()
    assert u0.grad is not None


@needs_library
def test_nothing_is_kept_without_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a function with a derivative is called")

    monkeypatch.setattr(AdaptiveFunction, "apply", refuse)
    model = power_law(*PREDATOR)
    options: dict[str, Any] = {"t": [0, 0.5], "method": "dopri5"}
    with torch.no_grad():
        ode.rollout(model, start(), **options)
    ode.rollout(model.requires_grad_(False), start(), **options)
    times = torch.tensor([0, 0.5], requires_grad=True)
    with pytest.raises(AssertionError, match="with a derivative"):
        ode.rollout(model, start(), t=times, method="dopri5")


@pytest.mark.parametrize("memory", ["full", "checkpointed"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_trajectory_without_a_step(backend: str, memory: Any) -> None:
    u0 = torch.tensor([math.nan], dtype=torch.float64, requires_grad=True)
    options: dict[str, Any] = {"t": [0, 1], "method": "tsit5", "nonfinite": "keep"}
    with use_backend(backend):
        path = ode.rollout(linear(1.0), u0, memory=memory, **options)
    assert isinstance(path, Tensor)
    assert path.shape == (2, 1)
    assert path.isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_of_no_trajectories(backend: str) -> None:
    u0 = torch.zeros(0, 2, dtype=torch.float64, requires_grad=True)
    with use_backend(backend):
        path = ode.rollout(power_law(*PREDATOR), u0, t=[0, 0.5], method="dopri5")
        assert isinstance(path, Tensor)
        (grad,) = torch.autograd.grad(path.square().sum(), u0, create_graph=True)
        assert grad.shape == (0, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_least_tolerance_is_accepted(dtype: torch.dtype) -> None:
    least_rtol = 4 * torch.finfo(dtype).eps
    options: dict[str, Any] = {"t": [0, 1e-3], "method": "dopri5", "atol": 1.0}
    ode.rollout(linear(1.0).to(dtype), torch.ones(1, dtype=dtype), rtol=least_rtol, **options)
    with pytest.raises(ValueError, match="rtol must be at least"):
        ode.rollout(
            linear(1.0).to(dtype), torch.ones(1, dtype=dtype), rtol=0.99 * least_rtol, **options
        )


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_what_cannot_look_at_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, u0 = linear(1.0), torch.ones(1, dtype=torch.float64)
    weights = [p.detach() for p in (model[0].weight_re, model[0].gate, model[1].weight)]

    def run(weight: Tensor) -> Any:
        return ode.integrate(u0, weights[0], None, weights[1], weight, t=[0, 1], method="tsit5")

    refused = pytest.raises(RuntimeError, match="has to look at the values to choose its steps")
    with refused:
        torch.func.vmap(run)(torch.stack([weights[2], weights[2]]))
    with refused:
        torch.jit.trace(run, (weights[2],))
    monkeypatch.setattr(adaptive, "is_compiling", lambda: True)
    with refused:
        run(weights[2])


# ---- what is said --------------------------------------------------------------------------------


def report(
    *counts: tuple[int, int, int, int], advice: str = "; an advice", has_starts: bool = True
) -> list[str]:
    """What is said of trajectories of these numbers: accepted and rejected steps, those at the bound
    of stability, how they ended."""
    result = adaptive._Result(
        path=torch.full((len(counts), 2, 1), math.nan),
        counts=torch.tensor([(*numbers, 0) for numbers in counts]),  # nothing was evaluated
        clock=torch.tensor([0.25, 0.125, 0.0625]).double().expand(len(counts), 3),
        last=torch.zeros(len(counts), 1),
    )
    options: Any = types.SimpleNamespace(
        function="rollout", nonfinite="keep", method="dopri5", starts=None
    )
    call: Any = types.SimpleNamespace(has_starts=has_starts, max_steps=1000, method="dopri5")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(accuracy, "right_side", lambda *_: None)
        patch.setattr(accuracy, "at_the_bound", lambda *_: advice)
        adaptive._report(options, call, result, (torch.zeros(1, 1), None, None, torch.zeros(1, 1)))
    return [str(warning.message) for warning in caught]


def test_when_a_trajectory_is_called_stiff() -> None:
    """A hundred steps and half of all are at the bound; it ended; there is an advice."""
    assert report((200, 3, 100, DONE)) == [
        "rollout: 100 of 200 steps of start 0 are as long as its stability allows, whatever the "
        "tolerance, the first at t = 0.0625; an advice"
    ]
    for counts in ((198, 0, 99, DONE), (201, 0, 100, DONE)):
        assert report(counts) == []
    for status in (TOO_MANY, STUCK):
        assert report((200, 0, 100, status)) == []
    assert report((200, 0, 100, DONE), advice="") == []


def test_one_of_many_is_named() -> None:
    stiff, plain = (200, 3, 150, DONE), (200, 3, 0, DONE)
    (said,) = report(plain, stiff, stiff, stiff)
    assert "steps of start 1 are" in said
    assert "t = 0.0625, the first of 3 of 4 trajectories; an advice" in said
    (said,) = report(stiff, has_starts=False)
    assert "150 of 200 steps of the trajectory are" in said
