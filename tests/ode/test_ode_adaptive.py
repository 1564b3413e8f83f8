"""Adaptive steps: their results, gradients, numbers of evaluations, and errors."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from npu_kernels import ode, use_backend
from npu_kernels.ode._methods import PAIRS
from tests.ode.test_ode_accuracy import linear
from tests.support.time_series import equations_of

EXPLICIT = {name: pair for name, pair in PAIRS.items() if not pair.diagonal}
METHODS = tuple(EXPLICIT)  # test_ode_implicit.py has the other's
TIMES = [0.0, 0.3, 1.0, 1.05, 4.0, 7.5]


# Lotka and Volterra's predator and prey; an epidemic; a cycle of three; each with a start.
PREDATOR = [[1.0, 0], [1, 1], [0, 1]], [[1.1, -0.4, 0], [0, 0.1, -0.4]]
EPIDEMIC = [[1.0, 1, 0], [0, 1, 0]], [[-2.0, 0], [2, -0.5], [0, 0.5]]
CYCLE = [[1.0, 1, 0], [0, 1, 1], [1, 0, 1]], [[-1.0, 0, 1], [1, -1, 0], [0, 1, -1]]
PROBLEMS = [
    (equations_of(*PREDATOR), [10.0, 5.0], 20.0),
    (equations_of(*EPIDEMIC), [0.99, 0.01, 1e-3], 15.0),
    (equations_of(*CYCLE), [1.0, 2.0, 0.5], 8.0),
]


def scipy_path(model: nn.Module, u0: Sequence[float], t: Any, tolerance: float) -> Any:
    """SciPy's RK45 with its interpolant."""
    integrate = pytest.importorskip("scipy.integrate")

    def f(_: float, u: Any) -> Any:
        with torch.no_grad():
            return model(torch.from_numpy(u)[None])[0].numpy()

    options = {"rtol": tolerance, "atol": tolerance * 1e-3, "t_eval": t}
    return integrate.solve_ivp(f, (t[0], t[-1]), np.array(u0), method="RK45", **options)


def tableau_rows(tableau: Sequence[float]) -> list[Sequence[float]]:
    """The rows of 1, 2, .. coefficients that the numbers are."""
    return [tableau[i * (i + 1) // 2 :][: i + 1] for i in range(6)]


# ---- results -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", EXPLICIT.values(), ids=METHODS)
def test_coefficients(pair: Any) -> None:
    """Order 5 at the end, 4 of the estimate and between the ends; the bound of stability."""
    triangle = np.zeros((7, 7))
    for i, row in enumerate(tableau_rows(pair.tableau)):
        triangle[i + 1, : len(row)] = row
    nodes, error = triangle.sum(1), np.array(pair.error)
    weights, dense = triangle[-1], np.array(pair.dense).reshape(7, 4)
    for q in range(5):
        assert weights @ nodes**q == pytest.approx(1 / (q + 1), abs=1e-13)
    assert np.abs([error @ nodes**q for q in range(4)]).max() < 1e-13
    assert abs(error @ nodes**4) > 1e-5
    for x in (0.25, 0.6, 1.0):
        weights_at_x = dense @ x ** np.arange(1, 5)
        for q in range(4):
            assert weights_at_x @ nodes**q == pytest.approx(x ** (q + 1) / (q + 1), abs=1e-13)
        assert weights_at_x @ triangle @ nodes == pytest.approx(x**3 / 6, abs=1e-13)
        assert weights_at_x @ triangle @ nodes**2 == pytest.approx(x**4 / 12, abs=1e-13)
        assert weights_at_x @ triangle @ triangle @ nodes == pytest.approx(x**4 / 24, abs=1e-13)
    assert dense.sum(1) == pytest.approx(weights, abs=1e-13)
    # the derivative at the end: smooth
    assert dense @ np.arange(1, 5) == pytest.approx(np.eye(7)[6], abs=1e-13)

    def growth(z: float) -> float:
        k = np.linalg.solve(np.eye(7) - z * triangle, np.ones(7))
        return abs(1 + z * float(weights @ k))

    assert growth(-pair.stable) < 1 < growth(-pair.stable - 2e-4)


@pytest.mark.parametrize("problem", range(3))
@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-8])
def test_equals_scipy(problem: int, tolerance: float) -> None:
    """The error is within the tolerance, with at most 1.3 times scipy's evaluations."""
    model, u0, end = PROBLEMS[problem]
    t = np.linspace(0, end, 23)
    theirs, best = scipy_path(model, u0, t, tolerance), scipy_path(model, u0, t, 1e-12).y.T
    for method in METHODS:
        trajectory, statistics = ode.rollout(
            model, torch.tensor(u0).double(), t=t, method=method, rtol=tolerance,
            atol=tolerance * 1e-3, return_statistics=True,
        )  # fmt: skip
        ours = np.abs(trajectory.detach().numpy() - best).max()
        assert ours < 3 * np.abs(theirs.y.T - best).max() + 100 * tolerance
        assert int(statistics.n_evaluations) <= 1.3 * theirs.nfev


@pytest.mark.parametrize("direction", [1, -1])
def test_equals_torchdiffeq(direction: int) -> None:
    torchdiffeq = pytest.importorskip("torchdiffeq")
    model = equations_of(*CYCLE)
    u0 = torch.rand(4, 3, dtype=torch.float64) + 0.5
    t = direction * torch.tensor(TIMES[:4], dtype=torch.float64)
    options: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
    theirs = torchdiffeq.odeint(lambda _, u: model(u), u0, t, method="dopri5", **options).movedim(
        0, -2
    )
    for method in (*PAIRS, "auto"):
        trajectory = ode.rollout(model, u0, t=t, method=method, **options)
        torch.testing.assert_close(trajectory, theirs, rtol=1e-7, atol=1e-7)
        assert torch.equal(trajectory[:, 0], u0)


@pytest.mark.parametrize(("models", "shape", "expected"), [
    (None, (3,), (6, 3)), (None, (4, 3), (4, 6, 3)), (2, (3,), (2, 6, 3)), (2, (2, 3), (2, 6, 3)),
    (2, (2, 4, 3), (2, 4, 6, 3)), (2, (1, 4, 3), (2, 4, 6, 3)), (None, (0, 3), (0, 6, 3)),
])  # fmt: skip
def test_shapes(models: int | None, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    equations = [CYCLE] * (models or 1)
    model = equations_of(
        *(([list(part) for part in zip(*equations, strict=True)]) if models else CYCLE)
    )
    trajectory, statistics = ode.rollout(
        model, torch.ones(shape).double(), t=TIMES, method="tsit5", return_statistics=True
    )
    assert trajectory.shape == expected
    assert all(part.shape == expected[:-2] and part.dtype == torch.int64 for part in statistics)


@pytest.mark.parametrize("method", ["dopri5", "kvaerno5"])
@pytest.mark.parametrize(
    ("dtype", "backend"),
    [(torch.float32, "cpu"), (torch.float64, "cpu"), (torch.float64, "reference")],
)
def test_every_model_has_its_own_steps(dtype: torch.dtype, backend: str, method: str) -> None:
    """Rates from 1 to 60: each is what it is alone, and takes the steps that it takes alone."""
    rates = [1.0, 10.0, 60.0, 3.0]
    model = equations_of([[[1.0]]] * 4, [[[-r]] for r in rates]).to(dtype)
    u0, t = torch.ones(4, 2, 1, dtype=dtype), torch.tensor([0, 0.1, 0.2, 1.0])
    u0[:, 1] = 2
    # What is smaller than the layer's eps, where the equation jumps, is not to be resolved.
    atol = 1e-6 if dtype is torch.float32 else 1e-9
    options: dict[str, Any] = {
        "t": t,
        "method": method,
        "return_statistics": True,
        "rtol": 1e-5,
        "atol": atol,
    }
    with use_backend(backend):
        trajectory, statistics = ode.rollout(model, u0, **options)
        for k, rate in enumerate(rates):
            single, single_statistics = ode.rollout(
                equations_of([[1.0]], [[-rate]]).to(dtype), u0[k], **options
            )
            # Eager torch may compute a row among others with other rounding.
            bound = 1e-13 if (backend, method) == ("reference", "kvaerno5") else 0
            torch.testing.assert_close(trajectory[k], single, rtol=bound, atol=0)
            assert all(
                torch.equal(a[k], b) for a, b in zip(statistics, single_statistics, strict=True)
            )
    assert len(set(statistics.n_accepted[:, 0].tolist())) == 4
    exact = u0[:, :, None] * torch.exp(-torch.tensor(rates)[:, None, None, None] * t[:, None]).to(
        dtype
    )
    torch.testing.assert_close(trajectory, exact, rtol=0, atol=2e-4)


@pytest.mark.parametrize("method", [*METHODS, "kvaerno5"])
@pytest.mark.parametrize(
    ("begin", "day"),
    [(1.7e12, 86.4e6), (-1.7e18, -86.4e12), (0.0, 1e25)],
)
def test_units_of_time(begin: float, day: float, method: str, backend: str) -> None:
    """Milliseconds to nanoseconds since 1970: their spacings exceed Hairer's first step of 1e-6."""
    options: dict[str, Any] = {"method": method, "rtol": 1e-8, "atol": 1e-10}
    u0, t = torch.tensor([3.0, 1.0]).double(), torch.tensor([0, 0.5, 2.0]).double()
    powers, rates = PREDATOR
    slow = equations_of(powers, (torch.tensor(rates).double() / day).tolist())
    with torch.no_grad():
        exact = ode.rollout(equations_of(powers, rates), u0, t=t, **options)
        path = ode.rollout(slow, u0, t=begin + day * t, **options)
    torch.testing.assert_close(path, exact, rtol=1e-6, atol=1e-6)


# ---- gradients -----------------------------------------------------------------------------------


def gradients(model: nn.Sequential, u0: Tensor, t: Tensor, **options: Any) -> list[Tensor]:
    """The trajectory, and the gradients of everything from random gradients."""
    start, times = u0.clone().requires_grad_(), t.clone().requires_grad_()
    trajectory = ode.rollout(model, start, t=times, **options)
    assert isinstance(trajectory, Tensor)
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(trajectory.shape, generator=generator, dtype=torch.float64).to(
        trajectory
    )
    return [
        trajectory.detach(),
        *torch.autograd.grad(trajectory, [start, times, *model.parameters()], upstream),
    ]


def test_gradients_equal_torchdiffeq() -> None:
    torchdiffeq = pytest.importorskip("torchdiffeq")
    model, u0, _ = PROBLEMS[2]
    t = torch.tensor([0, 0.5, 1.3], dtype=torch.float64)
    ours = gradients(model, torch.tensor(u0).double(), t, method="dopri5", rtol=1e-10, atol=1e-10)
    start = torch.tensor(u0).double().requires_grad_()
    trajectory = torchdiffeq.odeint(
        lambda _, u: model(u[None])[0], start, t, method="dopri5", rtol=1e-10, atol=1e-10
    )
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(trajectory.shape, generator=generator, dtype=torch.float64)
    theirs = torch.autograd.grad(trajectory, [start, *model.parameters()], upstream)
    for our, their in zip([ours[1], *ours[3:]], theirs, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("backend", "method"), [("reference", "tsit5"), ("cpu", "tsit5"), ("reference", "kvaerno5")]
)
def test_checkpointed_is_the_same(backend: str, method: str) -> None:
    model, u0, end = PROBLEMS[0]
    t = torch.linspace(0, -end / 4, 9, dtype=torch.float64)
    start = torch.tensor([u0, [1.0, 9.0], [4.0, 4.0]], dtype=torch.float64)
    with use_backend(backend):
        full, less = (
            gradients(model, start, t, method=method, memory=memory)
            for memory in ("full", "checkpointed")
        )
    for actual, want in zip(full, less, strict=True):
        torch.testing.assert_close(actual, want, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("method", ["dopri5", "kvaerno5"])
def test_second_derivatives_and_transforms(method: str) -> None:
    model, u0, _ = PROBLEMS[2]
    t = torch.tensor([0, 0.05, 0.1], dtype=torch.float64)
    start = torch.tensor(u0).double()

    def run(u0: Tensor, t: Tensor) -> Any:
        return ode.rollout(model, u0, t=t, method=method, rtol=1e-7, atol=1e-7)

    inputs = start.clone().requires_grad_(), t.clone().requires_grad_()
    torch.autograd.gradgradcheck(run, inputs, atol=1e-3, rtol=1e-2)
    expected = torch.autograd.functional.jacobian(run, (start, t))
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        for actual, want in zip(transform(run, argnums=(0, 1))(start, t), expected, strict=True):
            torch.testing.assert_close(actual, want, rtol=1e-8, atol=1e-9)


# ---- what does not reach its end -----------------------------------------------------------------


@pytest.mark.parametrize(("backend", "max_steps"), [("reference", 40), ("cpu", 250)])
def test_a_stiff_model_is_named(backend: str, max_steps: int) -> None:
    model = linear(-1.0, -1.0, models=3)
    with torch.no_grad():
        model[1].weight[1, 0, 0] = -1000
    u0, t = torch.ones(3, 2).double(), torch.tensor([0, 0.1, 1.0])
    way_out = r"ode\.rollout\(model, u0, t=\.\.\., method='kvaerno5'\)"
    why = rf"the model is stiff \(an eigenvalue of its Jacobian there is -1e\+03\), and dopri5 needs steps .* {way_out}"
    options: dict[str, Any] = {"t": t, "method": "dopri5", "atol": 1e-6}
    with use_backend(backend):
        message = rf"^rollout: model 1 needs more than max_steps={max_steps} steps: it has reached t = 0\.\d+, with \d+ .*{why}"
        with pytest.raises(ode.StepSizeError, match=message) as caught:
            ode.rollout(model, u0, max_steps=max_steps, **options)
        assert caught.value.reached.tolist() == pytest.approx([1, 0.003 * max_steps, 1], abs=0.2)
        if backend == "reference":  # the rest takes it long
            return
        with pytest.warns(
            ode.StiffWarning, match=rf"^rollout: \d+ of \d+ steps of model 1 are as long .*{why}"
        ) as seen:
            ode.rollout(model, u0, **options)
        assert seen[0].filename == __file__
        assert seen[0].message.steps[[0, 2]].tolist() == [0, 0]  # type: ignore[union-attr]
        assert seen[0].message.steps[1] > 250  # type: ignore[union-attr]
        trajectory = ode.rollout(model, u0, max_steps=max_steps, nonfinite="keep", **options)
    assert isinstance(trajectory, Tensor)
    assert trajectory[1, :2].isfinite().all()
    assert trajectory[1, 2].isnan().all()
    torch.testing.assert_close(
        trajectory[::2, 2], torch.full((2, 2), -1.0).double().exp(), rtol=0, atol=1e-5
    )
    grads = torch.autograd.grad(
        trajectory[:, :2].sum() + trajectory[0, 2].sum(), list(model.parameters())
    )
    assert all(grad.isfinite().all() for grad in grads)


def test_many_steps_for_accuracy_are_not_called_stiff(recwarn: pytest.WarningsRecorder) -> None:
    model, u0, end = PROBLEMS[0]
    start, options = torch.tensor(u0).double(), {"method": "tsit5", "rtol": 1e-11, "atol": 1e-12}
    ode.rollout(model, start, t=[0, end], **options)  # type: ignore[arg-type]
    assert not recwarn.list
    with pytest.raises(
        ode.StepSizeError, match=r"needs more than max_steps=300 steps: .* rejected; nonfinite="
    ):
        ode.rollout(model, start, t=[0, end], max_steps=300, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_pole_and_an_overflow(backend: str) -> None:
    """u' = u^2 from 1 has no solution beyond t = 1; u' = 800 u overflows."""
    square = equations_of([[[2.0]], [[0.0]]], [[[1.0]], [[1.0]]])
    t = torch.tensor([0, 0.5, 0.9, 1.5])
    with use_backend(backend):
        message = r"^rollout: model 0 stops at t = 1\.0\d+: its steps became too small for the time to change, .* pole"
        with pytest.raises(ode.StepSizeError, match=message):
            ode.rollout(square, torch.ones(1).double(), t=t, method="dopri5", rtol=1e-4)
        start = torch.tensor([[1.0], [torch.inf], [torch.nan]]).double()
        with pytest.raises(
            ode.NonFiniteError,
            match=r"start 1 is not finite from t = 0 on, the first of 2 of 3 traj",
        ):
            ode.rollout(linear(1.0), start, t=[0, 0.1], method="tsit5")
        if backend == "reference":  # the rest takes it long
            return
        trajectory = ode.rollout(
            square, torch.ones(1).double(), t=t, method="dopri5", nonfinite="keep"
        )
        assert isinstance(trajectory, Tensor)
        torch.testing.assert_close(
            trajectory[0, :3, 0], 1 / (1 - t[:3].double()), rtol=1e-5, atol=0
        )
        assert trajectory[0, 3].isnan()
        torch.testing.assert_close(trajectory[1, :, 0], 1 + t.double())
        message = r"^rollout: start 1 is not finite from t = 0\.8\d+ on; nonfinite='keep' returns it as it is"
        with pytest.raises(ode.NonFiniteError, match=message) as caught:
            ode.rollout(
                linear(800.0),
                torch.tensor([[1e-20], [1.0]]).double(),
                t=[0, 0.8, 0.9],
                method="dopri5",
            )
        assert caught.value.first.tolist() == [-1, 2]


# ---- wrong arguments -----------------------------------------------------------------------------


def test_times_without_a_method_mean_adaptive_steps() -> None:
    u0, t = torch.ones(1).double(), [0.0, 0.5, 2.0]
    path = ode.rollout(linear(1.0), u0, t=t)
    assert torch.equal(path, ode.rollout(linear(1.0), u0, t=t, method="tsit5"))
    weights = torch.ones(1, 1).double(), None, None, -torch.ones(1, 1).double()
    by_t = ode.integrate(u0, *weights, t=t)
    assert torch.equal(by_t, ode.integrate(u0, *weights, t=t, method="tsit5"))
    steps = ode.rollout(linear(1.0), u0, steps=3, dt=0.1)
    assert torch.equal(steps, ode.rollout(linear(1.0), u0, steps=3, dt=0.1, method="euler"))


@pytest.mark.parametrize("method", ["tsit5", "dopri5", "kvaerno5"])
def test_times_may_be_dense(method: str) -> None:
    """Between the steps is the interpolant: a hundred times cost no step more, to the tolerance."""
    options: dict[str, Any] = {
        "method": method,
        "rtol": 1e-6,
        "atol": 1e-8,
        "return_statistics": True,
    }
    u0, dense = torch.ones(1).double(), torch.linspace(0, 3, 101, dtype=torch.float64)
    at_ends, few = ode.rollout(linear(1.0), u0, t=[0, 3], **options)
    path, of_dense = ode.rollout(linear(1.0), u0, t=dense, **options)
    assert of_dense.n_accepted == few.n_accepted < 60
    torch.testing.assert_close(path[-1], at_ends[-1], rtol=1e-12, atol=0)
    rate = math.log(float(at_ends[-1].detach())) / 3
    torch.testing.assert_close(path[:, 0], (rate * dense).exp(), rtol=1e-4, atol=1e-5)
