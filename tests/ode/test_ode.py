"""Trajectories of neural ODEs, their gradients, options and errors."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, NPU, NaiveNPU, RealNPU, debug, ode, use_backend
from tests.support.time_series import equations_of
from tests.support.vmapped import check_batched_gradients

D, H = 3, 5
LAYERS = {"NPU": NPU, "RealNPU": RealNPU, "NaiveNPU": NaiveNPU}
TORCHDIFFEQ = {"euler": "euler", "midpoint": "midpoint", "rk4_38": "rk4"}


def make(
    layer: str = "NPU",
    models: int | None = None,
    dtype: torch.dtype = torch.float64,
    h: int = H,
    d: int = D,
    **nau: Any,
) -> nn.Sequential:
    """A model whose trajectories stay moderate, with gates and weights on both sides of clips."""
    model = nn.Sequential(
        LAYERS[layer](d, h, num_models=models, dtype=dtype),
        NAU(h, d, num_models=models, dtype=dtype, **nau),
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gate"):
                parameter.uniform_(-0.2, 1.2)
            elif name == "1.weight":
                parameter.uniform_(-1.3, 1.3)
            else:  # exponents of e grow with the number of negative inputs
                bound = (0.15 if name.endswith("im") else 0.6) / max(1.0, d / 3)
                parameter.uniform_(-bound, bound)
    return model


def starts(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return (torch.rand(*shape, dtype=torch.float64) * 2 - 0.5).to(dtype)


def away_from_zero(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Starts of both signs where the right side is smooth, so that rounding errors do not grow."""
    signs = torch.randint(0, 2, shape) * 2 - 1
    return ((torch.rand(*shape, dtype=torch.float64) + 1) * signs).to(dtype)


# ---- what it returns -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "shape", "expected"),
    [(None, (D,), (7, D)), (None, (4, D), (4, 7, D)), (2, (D,), (2, 7, D)), (2, (2, D), (2, 7, D)),
     (2, (2, 4, D), (2, 4, 7, D)), (2, (1, 4, D), (2, 4, 7, D))],
)  # fmt: skip
def test_shapes(models: int | None, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    u0 = starts(*shape)
    trajectory = ode.rollout(make(models=models), u0, steps=6, dt=0.1)
    assert trajectory.shape == expected
    first = u0.expand((*expected[:-2], D)) if len(shape) != 3 else u0.expand(2, 4, D)
    assert torch.equal(trajectory[..., 0, :], first)


def test_order_of_the_methods() -> None:
    """Half the step, half the error to the power of the order."""
    model = make(d=1, h=1, layer="RealNPU")
    with torch.no_grad():
        model[0].weight_re.fill_(1.0)
        model[0].gate.fill_(1.0)
        model[1].weight.fill_(-0.9)
    u0 = torch.ones(1, dtype=torch.float64)
    exact = torch.tensor(-0.9, dtype=torch.float64).exp()  # u' = -0.9 u
    for method, order in (("euler", 1), ("midpoint", 2), ("rk4", 4), ("rk4_38", 4)):
        error = [
            (ode.rollout(model, u0, steps=n, dt=1 / n, method=method)[-1, 0] - exact).abs().item()
            for n in (16, 32)
        ]
        assert error[0] / error[1] == pytest.approx(2**order, rel=0.1), method


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("method", TORCHDIFFEQ)
def test_equals_torchdiffeq(layer: str, method: str) -> None:
    torchdiffeq = pytest.importorskip("torchdiffeq")
    model, u0 = make(layer, models=3), away_from_zero(3, 2, D).requires_grad_()
    times = torch.arange(31, dtype=torch.float64) / 64
    parameters = [u0, *model.parameters()]
    theirs = torchdiffeq.odeint(
        lambda t, u: model(u), u0, times, method=TORCHDIFFEQ[method]
    ).movedim(0, -2)
    ours = ode.rollout(model, u0, steps=30, dt=1 / 64, method=method)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    grad = torch.randn_like(ours)
    for our, their in zip(
        torch.autograd.grad(ours, parameters, grad),
        torch.autograd.grad(theirs, parameters, grad),
        strict=True,
    ):
        torch.testing.assert_close(our, their, rtol=1e-9, atol=1e-9 * float(their.abs().max()))


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [None, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"steps": 2, "dt": 0.05, "return_derivatives": True},
        {"steps": 2, "dt": 0.05, "memory": "checkpointed"},
        {"t": (0.0, 0.1), "method": "tsit5", "rtol": 1e-2},
    ],
    ids=["full", "checkpointed", "adaptive"],
)
def test_batched_upstream_gradients(
    options: dict[str, Any], models: int | None, backend: str
) -> None:
    model, u0 = (
        make("NPU", models, h=2),
        away_from_zero(*(() if models is None else (models,)), 2, D),
    )

    def function(*tensors: Tensor) -> Tensor:
        result = ode.integrate(*tensors, **options)
        return torch.stack(result) if isinstance(result, tuple) else result

    check_batched_gradients(function, [u0.requires_grad_(), *model.parameters()])


def powers_of_three(models: int | None = None) -> nn.Sequential:
    """x' = y + .3 z, y' = .5 x^2 - .2 y z, z' = .7 y^3 - .4 x."""
    exponents = [[0, 1, 0], [0, 0, 1], [2, 0, 0], [0, 1, 1], [0, 3, 0], [1, 0, 0]]
    rates = [[1, 0.3, 0, 0, 0, 0], [0, 0, 0.5, -0.2, 0, 0], [0, 0, 0, 0, 0.7, -0.4]]
    return equations_of(*((p if models is None else [p] * models) for p in (exponents, rates)))


def rhs_of_three(u: Tensor) -> Tensor:
    x, y, z = u.unbind(-1)
    rows = y + 0.3 * z, 0.5 * x**2 - 0.2 * y * z, 0.7 * y**3 - 0.4 * x
    return torch.stack(rows, -1)


@pytest.mark.parametrize("method", ["rk4", "tsit5", "kvaerno5"])
@pytest.mark.parametrize("memory", ["full", "checkpointed"])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)], ids=["one", "starts", "models"])
def test_gradients_at_states_of_0(
    method: str, memory: str, shape: tuple[int, ...], backend: str
) -> None:
    """Gradients of whole exponents are those of the polynomials."""
    u0 = torch.tensor([1.0, 0.0, -0.0], dtype=torch.float64).repeat(*shape, 1).requires_grad_()
    model = powers_of_three(models=shape[0] if len(shape) == 2 else None)
    options: dict[str, Any] = {"t": [0, 1.0], "rtol": 1e-7, "atol": 1e-8}
    if method == "rk4":
        options = {"steps": 4, "dt": 0.25}
    path = ode.rollout(model, u0, method=method, memory=memory, **options)
    exact, f, steps = u0, rhs_of_three, 4 if method == "rk4" else 50
    for _ in range(steps):
        k1 = f(exact)
        k2 = f(exact + 0.5 / steps * k1)
        k3 = f(exact + 0.5 / steps * k2)
        exact = exact + (k1 + 2 * k2 + 2 * k3 + f(exact + k3 / steps)) / (6 * steps)
    weighting = torch.tensor([1.0, 2.0, 3.0]).double()
    (ours,) = torch.autograd.grad((path[..., -1, :] * weighting).sum(), u0)
    (theirs,) = torch.autograd.grad((exact * weighting).sum(), u0)
    tolerance = 1e-12 if method == "rk4" else 1e-5
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# ---- between the steps ---------------------------------------------------------------------------


def test_hermite_is_exact_for_cubics_and_linear_for_lines() -> None:
    t = torch.arange(6, dtype=torch.float64) * 0.5
    cubic = torch.stack([t**3 - t, 2 - t**2], -1)
    derivatives = torch.stack([3 * t**2 - 1, -2 * t], -1)
    times = torch.tensor([0.0, 0.1, 2.5, 1.0, 1.7], dtype=torch.float64)
    values = ode.interpolate(cubic, times, dt=0.5, method="hermite", derivatives=derivatives)
    torch.testing.assert_close(
        values, torch.stack([times**3 - times, 2 - times**2], -1), rtol=1e-14, atol=1e-14
    )
    line = torch.stack([3 * t + 1, -t], -1)
    torch.testing.assert_close(
        ode.interpolate(line, times, dt=0.5), torch.stack([3 * times + 1, -times], -1)
    )
    assert torch.equal(ode.interpolate(cubic, t, dt=0.5), cubic)
    assert torch.equal(
        ode.interpolate(cubic, t, dt=0.5, method="hermite", derivatives=derivatives), cubic
    )


def test_hermite_backwards_in_time() -> None:
    t = torch.arange(6, dtype=torch.float64) * -0.5
    times = torch.tensor([-0.1, -1.7, -2.5, 0.0], dtype=torch.float64)
    values = ode.interpolate(
        (t**3 - t)[:, None], times, dt=-0.5, method="hermite", derivatives=(3 * t**2 - 1)[:, None]
    )
    torch.testing.assert_close(values, (times**3 - times)[:, None], rtol=1e-14, atol=1e-14)


def test_a_rounding_error_behind_the_end_is_the_end() -> None:
    trajectory = torch.arange(4, dtype=torch.float64)[:, None]
    assert 3 * 0.1 / 0.1 > 3
    assert float(ode.interpolate(trajectory, [3 * 0.1], dt=0.1)) == 3


def test_interpolation_is_differentiable() -> None:
    trajectory, derivatives = (
        torch.randn(2, 5, 3, dtype=torch.float64),
        torch.randn(2, 5, 3, dtype=torch.float64),
    )
    times = [0.0, 0.3, 0.3, 1.99, 2.0]
    torch.autograd.gradcheck(
        lambda u, k: ode.interpolate(u, times, dt=0.5, method="hermite", derivatives=k),
        (trajectory.requires_grad_(), derivatives.requires_grad_()),
    )
    torch.autograd.gradcheck(lambda u: ode.interpolate(u, times, dt=0.5), (trajectory,))


def test_interpolation_before_the_divergence() -> None:
    trajectory = torch.tensor([[1.0], [2.0], [float("inf")]])
    values = ode.interpolate(trajectory, [0.5, 1.0, 1.5], dt=1.0)
    assert values[:2, 0].tolist() == [1.5, 2.0]
    assert not values[2].isfinite()


# ---- what is not finite --------------------------------------------------------------------------


def diverging(models: int | None) -> nn.Sequential:
    model = make("RealNPU", models, clip=False)
    with torch.no_grad():
        model[0].weight_re[-1] = 40.0
        model[0].gate[-1] = 1.0
    return model


def test_nonfinite_derivatives_of_a_finite_trajectory() -> None:
    """u' = u^2 from 1e19: the next state is 1e38, whose square overflows."""
    model = equations_of([[2.0]], [[1.0]]).float()
    u0, options = torch.tensor([1e19]), {"steps": 1, "dt": 1.0}
    assert ode.rollout(model, u0, **options).isfinite().all()  # type: ignore[arg-type]
    with pytest.raises(
        ode.NonFiniteError, match=r"^rollout: the trajectory is not finite from step 1 on"
    ):
        ode.rollout(model, u0, return_derivatives=True, **options)  # type: ignore[arg-type]


def test_nonfinite_is_reported() -> None:
    model, u0 = diverging(3), torch.full((D,), 3.0, dtype=torch.float64)
    with pytest.raises(ode.NonFiniteError, match=r"^rollout: model 2 is not finite from step (\d+) on, the first of 1 "
                       r"of 3 trajectories; nonfinite='keep' returns it as it is$") as raised:  # fmt: skip
        ode.rollout(model, u0, steps=20, dt=1.0)
    path = ode.rollout(model, u0, steps=20, dt=1.0, nonfinite="keep")
    first = ode.first_nonfinite(path)
    assert first[:2].tolist() == [-1, -1]
    assert torch.equal(raised.value.first, first)
    step = int(first[2])
    assert f"from step {step} on" in str(raised.value)
    assert path[2, :step].isfinite().all()
    assert not path[2, step].isfinite().all()
    with pytest.raises(ode.NonFiniteError, match=r"^rollout: model 2 start 1 is not finite"):
        ode.rollout(
            model, torch.stack([torch.zeros_like(u0), u0]).unsqueeze(0) + 1e-3, steps=20, dt=1.0
        )


def test_divergence_does_not_spoil_the_others() -> None:
    model = diverging(3)
    u0 = torch.full((D,), 3.0, dtype=torch.float64)
    path = ode.rollout(model, u0, steps=20, dt=1.0, nonfinite="keep")
    grads = torch.autograd.grad(path[:2].square().sum(), list(model.parameters()))
    with torch.no_grad():
        model[0].weight_re[-1] = 0.1
    tame = ode.rollout(model, u0, steps=20, dt=1.0)
    assert torch.equal(tame[:2], path[:2])
    expected = torch.autograd.grad(tame[:2].square().sum(), list(model.parameters()))
    for grad, want in zip(grads, expected, strict=True):
        assert torch.equal(grad[:2], want[:2])


# ---- eager ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_eager_checkpointed_is_the_same(method: str) -> None:
    model, u0 = make(models=2), starts(2, D)
    runs = []
    with use_backend("reference"):
        for memory in ("full", "checkpointed"):
            out = ode.rollout(
                model, u0, steps=11, dt=0.1, method=method, memory=memory, return_derivatives=True
            )
            loss = sum(o.square().sum() for o in out)
            runs.append([*out, *torch.autograd.grad(loss, list(model.parameters()))])
    for actual, want in zip(*runs, strict=True):
        torch.testing.assert_close(actual, want, rtol=1e-12, atol=1e-14)


def test_one_error_for_values_that_are_not_finite() -> None:
    """`ode` and `trace` raise one class; whoever caught the base of either one still does."""
    assert ode.NonFiniteError is debug.NonFiniteError
    model = make("RealNPU")
    u0 = torch.full((1, D), float("inf"), dtype=torch.float64)
    with pytest.raises(ode.NonFiniteError) as caught:
        ode.rollout(model, u0, steps=1, dt=0.1)
    unpickled = pickle.loads(pickle.dumps(caught.value))
    assert str(unpickled) == str(caught.value)
    assert unpickled.first == caught.value.first == 0
    with pytest.raises(debug.NonFiniteError) as caught, debug.detect_nonfinite(model):
        model(u0)
    assert caught.value.first is None
    assert caught.value.found.module == "0"
