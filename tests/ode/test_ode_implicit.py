"""The implicit method: its coefficients, stiff equations, exact gradients, and what `auto` chooses."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from npu_kernels import ode, use_backend
from npu_kernels.ode import _adaptive as adaptive
from npu_kernels.ode._methods import PAIRS
from tests.conftest import needs_library
from tests.ode.test_ode_accuracy import linear
from tests.ode.test_ode_adaptive import PREDATOR, gradients, tableau_rows
from tests.support.time_series import equations_of

PAIR = PAIRS["kvaerno5"]


def triangle() -> Any:
    """Return the coefficients ``[7, 7]``, with the diagonal."""
    a = np.zeros((7, 7))
    for i, row in enumerate(tableau_rows(PAIR.tableau), 1):
        a[i, :i], a[i, i] = row, PAIR.diagonal
    return a


# Robertson's reaction; the Oregonator; van der Pol with mu = 1000, all sums of power laws.
S, W, Q = 77.27, 0.161, 8.375e-6
ROBERTSON = [[1.0, 0, 0], [0, 1, 1], [0, 2, 0]], [[-0.04, 1e4, 0], [0.04, -1e4, -3e7], [0, 0, 3e7]]
OREGONATOR = (
    [[1.0, 0, 0], [0, 1, 0], [1, 1, 0], [2, 0, 0], [0, 0, 1]],
    [[S, S, -S, -S * Q, 0], [0, -1 / S, -1 / S, 0, 1 / S], [W, 0, 0, 0, -W]],
)
VAN_DER_POL = [[0.0, 1], [2, 1], [1, 0]], [[1.0, 0, 0], [1e3, -1e3, -1]]
# Start, end, and the state there of the Test Set for IVP Solvers (Mazzia and Magherini, 2008).
STIFF = {
    "robertson": (
        *(ROBERTSON, [1.0, 0, 0], 1e11),
        [0.2083340149701255e-7, 0.8333360770334713e-13, 0.9999999791665050],
    ),
    "oregonator": (
        *(OREGONATOR, [1.0, 2, 3], 360.0),
        [0.1000814870318523e1, 0.1228178521549917e4, 0.1320554942846706e3],
    ),
    "van der Pol": (
        *(VAN_DER_POL, [2.0, 0], 2000.0),
        [0.1706167732170469e1, -0.8928097010248125e-3],
    ),
}


# ---- the method ----------------------------------------------------------------------------------


def test_coefficients() -> None:
    """Order 5 and 4, stage order 2, both stiffly accurate, damping whatever is stiff."""
    a = triangle()
    c, b, error = a.sum(1), a[6], np.array(PAIR.error)
    assert a[6] - a[5] == pytest.approx(error, abs=1e-15)
    assert a @ c == pytest.approx(c**2 / 2, abs=1e-15)
    assert (c[5], c[6]) == pytest.approx((1, 1), abs=1e-15)
    for weights, order in ((b, 5), (a[5], 4)):
        for q in range(order):
            assert weights @ c**q == pytest.approx(1 / (q + 1), abs=1e-15)
        assert weights @ a @ c**2 == pytest.approx(1 / 12, abs=1e-15)
    for result, expected in (
        ((b * c) @ a @ c**2, 1 / 15),
        (b @ a @ c**3, 1 / 20),
        (b @ a @ a @ c**2, 1 / 60),
        (b @ a @ a @ a @ c, 1 / 120),
        ((b * (a @ c)) @ (a @ c), 1 / 20),
    ):
        assert result == pytest.approx(expected, abs=1e-15)
    assert abs(a[5] @ c**4 - 1 / 5) > 1e-4

    def growth(z: complex, weights: Any) -> float:
        return abs(1 + z * (weights @ np.linalg.solve(np.eye(7) - z * a, np.ones(7))))

    for y in np.geomspace(1e-3, 1e4, 200):
        assert growth(1j * y, b) <= 1 + 1e-12
        assert growth(1j * y, a[5]) <= 1 + 1e-12
    assert growth(-1e8, b) < 1e-6


def test_stage_within_a_step() -> None:
    """Order 4 at every x, and the step's own state at both ends."""
    a, g = triangle(), PAIR.diagonal
    c, dense = a.sum(1), np.array(PAIR.dense).reshape(7, 4)
    for x in (0.0, 0.2, 0.7, 1.0):
        weights = dense @ x ** np.arange(1, 5)
        weights[0] -= g
        for q in range(4):
            assert weights @ c**q + g * x**q == pytest.approx(x ** (q + 1) / (q + 1), abs=1e-14)
        assert weights @ a @ c**2 + g * x**3 / 3 == pytest.approx(x**4 / 12, abs=1e-14)
    assert weights == pytest.approx([*a[6, :6], 0], abs=1e-14)


@pytest.mark.parametrize("method", ["tsit5", "dopri5", "kvaerno5"])
def test_convergence(method: str) -> None:
    """The error estimate has order 5 in a step: ten times the steps for a 100,000th of it."""
    equation, u0 = equations_of(*PREDATOR), torch.tensor([3.0, 1.0]).double()
    options: dict[str, Any] = {"t": [0, 4.0], "method": method, "return_statistics": True}
    statistics: list[Any] = [
        ode.rollout(equation, u0, rtol=rtol, atol=rtol, **options)[1] for rtol in (1e-6, 1e-11)
    ]
    assert 8 < int(statistics[1].n_accepted) / int(statistics[0].n_accepted) < 12


# ---- stiff equations ----------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize("name", STIFF)
@pytest.mark.parametrize("method", ["kvaerno5", "auto"])
def test_published_states(name: str, method: str) -> None:
    equation, u0, end, expected = STIFF[name]
    small = {"robertson": 1e-8, "oregonator": 1e-6, "van der Pol": 1e-6}[name]
    result, statistics = ode.rollout(
        equations_of(*equation),
        torch.tensor(u0).double(),
        t=[0, end],
        method=method,
        rtol=1e-8,
        atol=1e-8 * small,
        return_statistics=True,
    )
    reference_value = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(result[-1], reference_value, rtol=1e-6, atol=1e-13)
    assert int(statistics.n_accepted) < 2000


@needs_library
@pytest.mark.parametrize("name", STIFF)
def test_states_between_the_steps(name: str) -> None:
    """States within steps are as exact as at the ends, also what is bound to others."""
    equation, u0, end, _ = STIFF[name]
    model, start = equations_of(*equation), torch.tensor(u0).double()
    t = np.linspace(0, min(end, 400.0), 30)
    options: dict[str, Any] = {"method": "kvaerno5", "rtol": 1e-7, "atol": 1e-11}
    with torch.no_grad():
        path = ode.rollout(model, start, t=t, **options)
        for time, state in zip(t[1:], path[1:], strict=True):
            end_state = ode.rollout(model, start, t=[0, time], **options)[-1]
            exact = ode.rollout(model, start, t=[0, time], **{**options, "rtol": 1e-10})[-1]
            error, bound = (state - exact).abs(), (end_state - exact).abs()
            assert (error <= 10 * bound + 1e-6 * exact.abs() + 1e-10).all()


def enzyme(rate: float) -> tuple[list[list[float]], list[list[float]]]:
    """S + E <-> C -> E + P; states S, E, C, P."""
    rates = [[-rate, 1e3], [-rate, 1e3 + 1e2], [rate, -1e3 - 1e2], [0, 1e2]]
    return [[1.0, 1, 0, 0], [0, 0, 1, 0]], rates


def decay(rate: float) -> tuple[list[list[float]], list[list[float]]]:
    return [[1.0]], [[-rate]]


def becomes(rate: float) -> tuple[list[list[float]], list[list[float]]]:
    """A -> B."""
    return [[1.0, 0]], [[-rate], [rate]]


CHAIN = [[1.0, 0, 0], [0, 1, 0]], [[-1e4, 0], [1e4, -1], [0, 1]]
# Equation, start, end, rtol, atol: states that decay to 0 long before the end.
DECAYED: dict[str, tuple[Any, list[float], float, float, float]] = {
    "decay": (decay(1e3), [1.0], 1.0, 1e-8, 1e-12),
    "fast decay": (decay(1e10), [1.0], 1.0, 1e-8, 1e-12),
    "A -> B": (becomes(1e7), [1.0, 0], 1.0, 1e-8, 1e-12),
    "small atol": (decay(1e6), [1.0], 1.0, 1e-6, 1e-14),
    "atol below eps": (decay(1e6), [1.0], 1.0, 1e-6, 1e-20),
    "enzyme": (enzyme(1e6), [1.0, 0.1, 0, 0], 100.0, 1e-8, 1e-12),
    "enzyme in mol/l": (enzyme(1e12), [1e-6, 1e-7, 0, 0], 100.0, 1e-8, 1e-15),
}
DECAYED_FLOAT32: dict[str, tuple[Any, list[float], float, float, float]] = {
    "float32, default atol": (decay(100), [1.0], 1.0, 1e-5, 1e-9),
    "float32, 100": (decay(100), [1.0], 1.0, 1e-5, 1e-7),
    "float32, 1e4": (decay(1e4), [1.0], 1.0, 1e-5, 1e-7),
    "float32, A -> B -> C": (CHAIN, [1.0, 0, 0], 5.0, 1e-5, 1e-7),
}


@needs_library
@pytest.mark.parametrize("name", [*DECAYED, *DECAYED_FLOAT32])
@pytest.mark.parametrize("method", ["kvaerno5", "auto"])
def test_decayed_states(name: str, method: str) -> None:
    """SciPy's Radau takes at least half the steps, though the derivative of |u| + eps jumps at 0."""
    integrate = pytest.importorskip("scipy.integrate", reason="scipy is not installed")
    equation, start, end, rtol, atol = {**DECAYED, **DECAYED_FLOAT32}[name]
    dtype = torch.float32 if name in DECAYED_FLOAT32 else torch.float64
    powers, rates = map(np.array, equation)

    def rhs(_: float, u: Any) -> Any:
        return rates @ np.prod(u**powers, 1)

    radau = integrate.solve_ivp(rhs, (0, end), start, method="Radau", rtol=rtol, atol=atol)
    u0, t = torch.tensor(start, dtype=dtype), [0, end / 3, end]
    options: dict[str, Any] = {"t": t, "rtol": rtol, "atol": atol, "return_statistics": True}
    with torch.no_grad():
        path, statistics = ode.rollout(
            equations_of(*equation).to(dtype), u0, method=method, **options
        )
    assert int(statistics.n_accepted + statistics.n_rejected) <= 2 * len(radau.t)
    exact = torch.from_numpy(radau.y[:, -1]).to(dtype)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(path[-1], exact, rtol=10 * rtol, atol=10 * (eps + atol))


@needs_library
def test_decayed_states_of_some_of_many_models() -> None:
    """Models that have decayed and others in one call are as in calls of their own."""
    rates = [0.5, 1e3, 1e6, 1e9]
    models = equations_of([[[1.0]]] * 4, [[[-rate]] for rate in rates])
    options: dict[str, Any] = {"t": [0, 0.5, 1.0], "method": "kvaerno5", "rtol": 1e-8}
    path = ode.rollout(models, torch.ones(1).double(), atol=1e-15, **options)
    exact = torch.exp(-torch.tensor(rates).double()[:, None] * torch.tensor([0, 0.5, 1]))
    torch.testing.assert_close(path[..., 0], exact, rtol=1e-6, atol=1e-14)
    (gradient,) = torch.autograd.grad(path[:, -1].sum(), models[1].weight)
    first = torch.tensor([np.exp(-0.5), 0, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(gradient.flatten(), first, rtol=1e-6, atol=1e-9)
    for k, rate in enumerate(rates):
        single = ode.rollout(
            equations_of(*decay(rate)), torch.ones(1).double(), atol=1e-15, **options
        )
        assert torch.equal(path[k], single)


@needs_library
def test_decayed_states_in_eager_torch() -> None:
    """The formulas take the steps of the C++ code, but for rounding at 0."""
    options: dict[str, Any] = {
        "t": [0, 1.0],
        "rtol": 1e-4,
        "atol": 1e-14,
        "return_statistics": True,
    }
    counts = []
    for backend in ("cpu", "reference"):
        with use_backend(backend), torch.no_grad():
            path, statistics = ode.rollout(
                equations_of(*decay(1e6)), torch.ones(1).double(), method="kvaerno5", **options
            )
        assert abs(float(path[-1])) < 1e-15
        counts.append(int(statistics.n_accepted))
    assert counts[1] == pytest.approx(counts[0], rel=0.3)


@needs_library
@pytest.mark.parametrize("d", [2, 7, 32])
def test_many_states_and_pivots(d: int) -> None:
    """A ring of rotations and a stiff chain: the largest entry is not on the diagonal."""
    torch.manual_seed(d)
    powers = [[float(i == j) for j in range(d)] for i in range(d)]
    matrix = torch.randn(d, d, dtype=torch.float64) * 3 - torch.diag(torch.logspace(0, 5, d))
    matrix[0, 0], matrix[0, d - 1], matrix[d - 1, 0] = 0, 400, -400
    u0, t = torch.rand(3, d).double() + 1, torch.tensor([0, 0.01, 0.03]).double()
    result = ode.rollout(
        equations_of(powers, matrix.tolist()), u0, t=t, method="kvaerno5", rtol=1e-9, atol=1e-11
    )
    exact = torch.stack([u0 @ torch.matrix_exp(matrix.double() * float(s)).mT for s in t], 1)
    torch.testing.assert_close(result, exact, rtol=1e-6, atol=1e-7)


# ---- gradients -----------------------------------------------------------------------------------


def robertson_gradients(**options: Any) -> list[Tensor]:
    t = torch.tensor([0, 1e-3, 0.3, 4.0, 40.0], dtype=torch.float64)
    start = torch.tensor([[1.0, 1e-6, 1e-3], [0.5, 1e-5, 0.4]]).double()
    options = {"method": "kvaerno5", "rtol": 1e-8, "atol": 1e-12, **options}
    return gradients(equations_of(*ROBERTSON), start, t, **options)


@needs_library
def test_gradients_are_those_of_the_formulas() -> None:
    fused = robertson_gradients()
    for ours, other in zip(fused, robertson_gradients(memory="checkpointed"), strict=True):
        assert torch.equal(ours, other)
    with use_backend("reference"):
        eager = robertson_gradients()
    for ours, reference_value in zip(fused, eager, strict=True):
        torch.testing.assert_close(
            ours, reference_value, rtol=1e-8, atol=1e-8 * float(reference_value.abs().max())
        )


@needs_library
def test_gradients_are_differences_of_the_same_steps() -> None:
    """Gradients of the discrete path: its steps, weights and start moved by a little."""
    model, t = equations_of(*ROBERTSON), torch.tensor([0, 1e-3, 5e-3]).double()
    u0 = torch.tensor([[1.0, 1e-3, 1e-2]]).double().requires_grad_()
    path = ode.rollout(model, u0, t=t, method="kvaerno5", rtol=1e-6, atol=1e-10)
    assert isinstance(path, Tensor)
    *_, times, _, _ = path.grad_fn.saved_tensors  # type: ignore[union-attr]
    weighting = torch.tensor([1.0, 1e4, 1.0]).double()
    parameters = [u0, model[0].weight_re, model[1].weight]
    result = torch.autograd.grad((path[:, 1:] * weighting).sum(), parameters)
    control = adaptive.Control(1e-12, 1e-16, 1, 1)
    generator = torch.Generator().manual_seed(3)
    for parameter, grad in zip(parameters, result, strict=True):
        direction = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        direction = direction * parameter.detach().abs()
        values = {}
        for step in (-2, -1, 1, 2):
            with torch.no_grad():
                parameter += step * 1e-3 * direction
                again = adaptive.replay(model, u0, t, times[None], PAIR, control)
                parameter -= step * 1e-3 * direction
            values[step] = float((again[:, 1:] * weighting).sum())
        reference_value = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / 12e-3
        assert float((grad * direction).sum()) == pytest.approx(reference_value, rel=1e-6)


# ---- what does not reach its end -----------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_matrix_without_an_inverse_is_a_rejected_step(backend: str) -> None:
    """u' = u / (h g): the first step's matrix is 0. A smaller step follows."""
    rate = 1 / PAIR.diagonal
    # The first step is .26, a hundred times Hairer's first guess; the second one takes the rest.
    with use_backend(backend):
        result, statistics = ode.rollout(
            equations_of([[1.0]], [[rate]]), torch.ones(1).double(), t=[0, 1.26], return_statistics=True,
            method="kvaerno5", rtol=1e-6, atol=1e3,
        )  # fmt: skip
    assert int(statistics.n_rejected) > 0
    assert float(result[-1].detach()) == pytest.approx(np.exp(1.26 * rate), abs=300)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_ends_before_the_end(backend: str) -> None:
    """A pole, a state that is not finite, too few steps: named, or kept, as for explicit steps."""
    with use_backend(backend):
        message = (
            r"^rollout: the trajectory stops at t = (0\.99|1\.0)\d*: its steps became too small"
        )
        with pytest.raises(ode.StepSizeError, match=message):
            ode.rollout(
                equations_of([[2.0]], [[1.0]]),
                torch.ones(1).double(),
                t=[0, 1.5],
                method="kvaerno5",
                rtol=1e-3,
            )
        start = torch.tensor([[1.0], [torch.inf], [torch.nan]]).double()
        message = r"start 1 is not finite from t = 0 on, the first of 2 of 3 traj"
        with pytest.raises(ode.NonFiniteError, match=message):
            ode.rollout(linear(1.0), start, t=[0, 0.1], method="kvaerno5")
        few: dict[str, Any] = {"t": [0, 40.0], "method": "kvaerno5", "max_steps": 9}
        robertson, u0 = equations_of(*ROBERTSON), torch.tensor([1.0, 0, 0]).double()
        message = r"^rollout: the trajectory needs more than max_steps=9 steps: it has reached t = "
        with pytest.raises(ode.StepSizeError, match=message) as caught:
            ode.rollout(robertson, u0, **few)
        assert 0 < float(caught.value.reached) < 40
        assert "stiff" not in str(caught.value)
        kept = ode.rollout(robertson, u0, nonfinite="keep", **few)
        assert isinstance(kept, Tensor)
        assert kept[-1].isnan().all()
        kept[0].sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in robertson.parameters())


# ---- auto ----------------------------------------------------------------------------------------


def of(method: str, model: nn.Sequential, u0: Tensor, t: Any) -> tuple[list[Tensor], Any]:
    """Return the path and its gradients, and the statistics."""
    leaves = [u0.clone().requires_grad_(), *model.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ode.StiffWarning)
        options: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-9, "nonfinite": "keep"}
        path, statistics = ode.rollout(
            model, leaves[0], t=t, method=method, return_statistics=True, **options
        )
    return [path.detach(), *torch.autograd.grad(path.square().sum(), leaves)], statistics


@needs_library
@pytest.mark.parametrize("has_models", [True, False])
@pytest.mark.parametrize("has_starts", [True, False])
def test_auto_takes_the_right_method_for_each_trajectory(
    has_models: bool, has_starts: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """x' = -r y x with y' = 0: the start decides how stiff it is, and the model's r."""
    equation = (
        equations_of([[[1.0, 1.0]]] * 3, [[[-rate], [0.0]] for rate in (1.0, 1e4, 0.5)])
        if has_models
        else equations_of([[1.0, 1.0]], [[-1.0], [0.0]])
    )
    u0 = torch.tensor([[1.0, 3.0], [60.0, 2e4], [0.5, 4.0], [2.0, 1.0]]).double()
    size = [1.0, 1e4, 0.5] if has_models else 1.0
    if has_models:
        u0 = u0.expand(3, 4, 2) if has_starts else u0[[0, 3, 2]]
        size = torch.tensor(size).double().view(3, 1) if has_starts else torch.tensor(size).double()
    elif not has_starts:
        u0 = u0[1]
    t = [0, 0.1, 1.0]
    result, statistics = of("auto", equation, u0, t)
    explicit, of_explicit = of("tsit5", equation, u0, t)
    stiff, of_stiff = of("kvaerno5", equation, u0, t)
    wrong = u0[..., 1] * size > 1000
    assert wrong.any()
    assert wrong.all() == (wrong.dim() == 0)
    reference_value = torch.where(wrong[..., None, None], stiff[0], explicit[0])
    assert torch.equal(result[0], reference_value)
    ours = torch.where(wrong, of_stiff.n_accepted, of_explicit.n_accepted)
    assert torch.equal(statistics.n_accepted, ours)
    assert (statistics.n_evaluations >= of_stiff.n_evaluations)[wrong].all()
    for gradient, one in zip(result[1:], stiff[1:], strict=True):
        torch.testing.assert_close(gradient, one, rtol=1e-4, atol=1e-4 * float(one.abs().max()))
    assert not recwarn.list


@needs_library
def test_auto_stops_the_explicit_method_early() -> None:
    model, u0 = equations_of(*ROBERTSON), torch.tensor([1.0, 0, 0]).double()
    options: dict[str, Any] = {"t": [0, 1e5], "atol": 1e-10, "return_statistics": True}
    result, statistics = ode.rollout(model, u0, method="auto", **options)
    single, ours = ode.rollout(model, u0, method="kvaerno5", **options)
    assert torch.equal(result, single)
    assert 0 < int(statistics.n_evaluations - ours.n_evaluations) < 3000


def test_auto_in_eager_torch() -> None:
    model = equations_of([[[1.0]]] * 2, [[[-1.0]], [[-3000.0]]])
    u0, t = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([0, 0.1, 0.4]).double()
    with use_backend("reference"):
        result, _ = of("auto", model, u0, t)
    torch.testing.assert_close(result[0][0, :, 0], torch.exp(-t), rtol=1e-5, atol=0)
    torch.testing.assert_close(result[0][1, 1:], torch.zeros(2, 1).double(), rtol=0, atol=1e-8)


def test_auto_reports_what_the_implicit_method_could_not() -> None:
    message = r"^rollout: the trajectory stops at t = (0\.99|1\.0)\d*: its steps became too small"
    with pytest.raises(ode.StepSizeError, match=message):
        ode.rollout(
            equations_of([[2.0]], [[1.0]]), torch.ones(1).double(), t=[0, 1.5], method="auto"
        )
