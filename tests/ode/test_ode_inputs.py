"""Time loops with inputs: known columns that are linear between their times."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, NPU, RealNPU, ode, use_backend

A, B = 0.8, 1.5
KNOTS = torch.tensor([0.0, 0.5, 1.25, 3.0], dtype=torch.float64)
VALUES = torch.tensor([1.0, 2.0, 0.5, 0.5], dtype=torch.float64)
T = torch.tensor([0.0, 0.2, 0.5, 0.9, 2.0], dtype=torch.float64)


def forced() -> nn.Sequential:
    """Return ``x' = -A x + B v``."""
    model = nn.Sequential(RealNPU(2, 2), NAU(2, 1, clip=False)).double()
    with torch.no_grad():
        model[0].weight_re.copy_(torch.eye(2))  # type: ignore[operator]
        model[0].gate.fill_(1)  # type: ignore[operator]
        model[1].weight.copy_(torch.tensor([[-A, B]]))  # type: ignore[operator]
    return model


def linear_response(u0: Tensor, t: Tensor, values: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the exact x of ``x' = -a x + b v``, ``x(t[0]) = u0``, moment times t ``[M]``."""

    def integral(begin: Tensor, end: Tensor, moment: Tensor, k: int) -> Tensor:
        """Integrate exp(-a (moment - s)) v(s) over a part of the piece k."""
        slope = (values[k + 1] - values[k]) / (KNOTS[k + 1] - KNOTS[k])

        def primitive(s: Tensor) -> Tensor:
            v = values[k] + slope * (s - KNOTS[k])
            return (-a * (moment - s)).exp() * (v / a - slope / a**2)

        return primitive(end) - primitive(begin)

    states = []
    for moment in t:
        total = u0 * (-a * (moment - t[0])).exp()
        for k in range(len(KNOTS) - 1):
            begin = t[0] if t[0] >= KNOTS[k] else KNOTS[k]
            end = moment if moment <= KNOTS[k + 1] else KNOTS[k + 1]
            if begin < end:
                total = total + b * integral(begin, end, moment, k)
        states.append(total)
    return torch.stack(states, -1).unsqueeze(-1)


@pytest.mark.parametrize("begin", [0.0, 0.3])
@pytest.mark.parametrize("method", ["tsit5", "dopri5", "kvaerno5", "auto"])
def test_the_response_to_an_input_is_exact(method: str, begin: float) -> None:
    """For states and all gradients: of the start, the model, the times, and the inputs."""
    model, u0 = forced(), torch.tensor([[0.5], [2.0]], dtype=torch.float64, requires_grad=True)
    values, t = VALUES.clone().requires_grad_(), (T + begin).requires_grad_()
    options: dict[str, Any] = {"t": t, "inputs": (KNOTS, values), "rtol": 1e-10, "atol": 1e-12}
    path = ode.rollout(model, u0, method=method, **options)
    coefficients = model[1].weight
    exact = linear_response(u0[:, 0], t, values, -coefficients[0, 0], coefficients[0, 1])
    torch.testing.assert_close(path, exact, rtol=1e-7, atol=1e-8)
    leaves = [u0, coefficients, values, t]
    ours = torch.autograd.grad(path.square().sum(), leaves)
    for gradient, true in zip(ours, torch.autograd.grad(exact.square().sum(), leaves), strict=True):
        torch.testing.assert_close(gradient, true, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("method", ["tsit5", "kvaerno5", "rk4"])
def test_gradients_at_inputs_of_0(method: str, backend: str) -> None:
    """The model is linear: the gradient of the values does not depend on them."""
    options: dict[str, Any] = {"t": T, "rtol": 1e-8, "atol": 1e-10}
    if method == "rk4":
        options = {"steps": 16, "dt": 0.125}
    results = []
    for scale in (1.0, 0.0, -0.0):
        values = (scale * VALUES).requires_grad_()
        with use_backend(backend):
            path = ode.rollout(
                forced(), torch.ones(1).double(), method=method, inputs=(KNOTS, values), **options
            )
            results += torch.autograd.grad(path[-1].sum(), values)
    assert (results[0] != 0).all()
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-7)


def test_times_that_need_more_digits_than_states() -> None:
    """Inputs that change within .01 at 1e6, which float32 cannot say."""
    begin = 1e6
    knots = begin + torch.tensor([0.0, 0.01, 0.02, 3.0], dtype=torch.float64)
    values = torch.tensor([100.0, 100.0, 0.0, 0.0])
    model = forced()
    exact = ode.rollout(
        model, torch.zeros(1).double(), t=[0, 1, 2], inputs=(knots - begin, values.double())
    ).float()
    model = model.float()
    for t in (knots.new_tensor([0, 1, 2]) + begin, torch.tensor([0.0, 1, 2]) + begin):
        path = ode.rollout(model, torch.zeros(1), t=t, inputs=(knots, values))
        torch.testing.assert_close(path, exact, rtol=1e-5, atol=1e-5)


def test_fixed_steps_with_their_derivatives() -> None:
    model, u0 = forced(), torch.tensor([0.5], dtype=torch.float64)
    path, derivatives = ode.rollout(
        model, u0, steps=24, dt=0.125, method="rk4", inputs=(KNOTS, VALUES), return_derivatives=True
    )
    t = torch.arange(25, dtype=torch.float64) / 8
    exact = linear_response(u0, t, VALUES, torch.tensor(A), torch.tensor(B)).squeeze(0)
    torch.testing.assert_close(path, exact, rtol=1e-5, atol=1e-6)
    v = torch.from_numpy(np.interp(t, KNOTS, VALUES)).unsqueeze(1)
    torch.testing.assert_close(derivatives, -A * path + B * v)
    said = r"inputs must have their times at steps of dt=0.3 with method 'rk4', got 0.5, nearest to"
    said += r" the step at 0.6; t= with adaptive steps"
    with pytest.raises(ValueError, match="^rollout: " + said):
        ode.rollout(model, u0, steps=10, dt=0.3, method="rk4", inputs=(KNOTS, VALUES))


def test_times_at_steps_in_their_own_dtype() -> None:
    """0.2 and 0.7 in float32 are no multiples of 0.05 in float64, and neither is a sum of 0.05."""
    model, u0 = forced(), torch.tensor([0.5], dtype=torch.float64)
    options: dict[str, Any] = {"steps": 14, "dt": 0.05, "method": "rk4"}
    values, times = VALUES, [0.0, 0.2, 0.5, 0.7]
    exact = ode.rollout(model, u0, inputs=(times, values), **options)
    summed = torch.full((14,), 0.05).cumsum(0)[[3, 9, 13]]
    for rounded in (
        torch.tensor(times),
        np.array(times, dtype=np.float32),
        torch.cat([torch.zeros(1), summed]),
    ):
        assert torch.equal(ode.rollout(model, u0, inputs=(rounded, values), **options), exact)
    with pytest.raises(ValueError, match=r"got 0\.200002, nearest to the step at 0\.2;"):
        ode.rollout(model, u0, inputs=(torch.tensor([0, 0.200002, 0.5, 0.7]), values), **options)


def test_models_starts_falling_times_and_clipped_weights() -> None:
    """K models at once are each alone, backwards in time they come back."""
    torch.manual_seed(0)
    model = nn.Sequential(NPU(4, 3, num_models=3), NAU(3, 2, num_models=3)).double()
    with torch.no_grad():
        model[0].weight_re.abs_().mul_(0.3)  # type: ignore[operator]
        model[0].weight_im.mul_(0.1)  # type: ignore[operator]
        model[1].weight.abs_()[:, 0, 0] = 1.5  # type: ignore[operator,index]
    u0 = torch.rand(3, 5, 2, dtype=torch.float64) + 0.5
    inputs = KNOTS, torch.stack([VALUES, VALUES.flip(0)], 1)
    options: dict[str, Any] = {"inputs": inputs, "rtol": 1e-9, "atol": 1e-11}
    path, statistics = ode.rollout(model, u0, t=T, return_statistics=True, **options)
    assert path.shape == (3, 5, 5, 2)
    assert statistics.n_accepted.shape == (3, 5)
    single = nn.Sequential(NPU(4, 3), NAU(3, 2)).double()
    state = {name: weight[1] for name, weight in model.state_dict().items()}
    single.load_state_dict(state)
    torch.testing.assert_close(ode.rollout(single, u0[1, 2], t=T, **options), path[1, 2])
    back = ode.rollout(model, path[:, :, -1].detach(), t=T.flip(0), **options)
    torch.testing.assert_close(back.flip(2), path, rtol=1e-6, atol=1e-7)
