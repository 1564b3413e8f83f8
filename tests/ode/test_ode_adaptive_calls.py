"""Adaptive steps: what a call keeps and refuses, and what it says of the steps that it took."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from npu_kernels import ode, use_backend
from tests.conftest import compiles, needs_library
from tests.ode.test_ode_accuracy import linear
from tests.ode.test_ode_adaptive import PREDATOR
from tests.support.time_series import equations_of

BACKENDS = [pytest.param("cpu", marks=needs_library), "reference"]


def start() -> Tensor:
    return torch.tensor([10.0, 5.0], dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_may_be_changed(backend: str) -> None:
    """They are no memory that a derivative needs."""
    u0 = torch.stack([start(), start()]).requires_grad_()
    with use_backend(backend):
        path, statistics = ode.rollout(
            equations_of(*PREDATOR), u0, t=[0, 0.5], method="dopri5", return_statistics=True
        )
        for part in statistics:
            part.zero_()
        path.sum().backward()
    assert u0.grad is not None


class _SavedStates(TorchDispatchMode):
    """The steps from one saved state to the next, of each forward; 0: none is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.strides: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.npu_kernels.ode_adaptive_forward.default:
            self.strides.append(args[-1])
        return func(*args, **(kwargs or {}))


@needs_library
def test_nothing_is_saved_without_a_gradient() -> None:
    model = equations_of(*PREDATOR)
    options: dict[str, Any] = {"t": [0, 0.5], "method": "dopri5"}
    with _SavedStates() as states:
        with torch.no_grad():
            ode.rollout(model, start(), **options)
        ode.rollout(model.requires_grad_(False), start(), **options)
        times = torch.tensor([0, 0.5], requires_grad=True)
        ode.rollout(model, start(), t=times, method="dopri5")
    assert states.strides == [0, 0, 1]


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
        path = ode.rollout(equations_of(*PREDATOR), u0, t=[0, 0.5], method="dopri5")
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
@compiles
def test_what_cannot_look_at_values_is_refused() -> None:
    model, u0 = linear(1.0), torch.ones(1, dtype=torch.float64)
    weights = [p.detach() for p in (model[0].weight_re, model[0].gate, model[1].weight)]

    def run(weight: Tensor) -> Any:
        return ode.integrate(u0, weights[0], None, weights[1], weight, t=[0, 1], method="tsit5")

    refused = pytest.raises(RuntimeError, match="has to look at the values to choose its steps")
    with refused:
        torch.func.vmap(run)(torch.stack([weights[2], weights[2]]))
    with refused:
        torch.jit.trace(run, (weights[2],))
    with refused:
        torch.compile(run, backend="eager", fullgraph=True)(weights[2])


# ---- what is said --------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize("max_steps", [10_000, 300])
@pytest.mark.parametrize(("power", "rtol"), [(1.0, 1e-3), (9.0, 1e-8)])
def test_when_a_trajectory_is_called_stiff(power: float, rtol: float, max_steps: int) -> None:
    """A hundred steps and half of all are at the bound of stability, and it reached its end.

    x' = -r x with r up to 400, beside z' = -z or z' = -z^9, which takes many steps of its own.
    """
    rates = torch.arange(40.0, 400.0).tolist()
    equation = equations_of([[[1.0, 0], [0, power]]] * 360, [[[-r, 0], [0, -1]] for r in rates])
    u0 = torch.tensor([100.0, 10.0]).double()
    options: dict[str, Any] = {"t": [0, 3], "method": "dopri5", "rtol": rtol, "atol": 1e-6}
    with pytest.warns(ode.StiffWarning) as caught:
        path, statistics = ode.rollout(
            equation, u0, return_statistics=True, max_steps=max_steps, nonfinite="keep", **options
        )
    warning: Any = caught[0].message
    accepted, ended = statistics.n_accepted, path[:, -1].isfinite().all(-1)
    stiff = (warning.steps >= 100) & (2 * warning.steps >= accepted) & ended
    first, count = int(stiff.nonzero()[0]), int(stiff.sum())
    said = f"rollout: {warning.steps[first]} of {accepted[first]} steps of model {first} are as "
    assert str(warning).startswith(said + "long as its stability allows, whatever the tolerance")
    assert f", the first of {count} of 360 trajectories; the model is stiff" in str(warning)
    if max_steps > 400:  # some lie around both borders
        assert set(warning.steps.tolist()) & set(range(95, 100))
        assert power == 1 or (~stiff & (warning.steps >= 100)).any()
    single, message = equations_of([[1.0, 0], [0, 1]], [[-400.0, 0], [0, -1]]), "steps of the traj"
    with pytest.warns(ode.StiffWarning, match=message):
        ode.rollout(single, u0, **options)
