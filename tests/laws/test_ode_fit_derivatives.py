"""The derivatives of the trajectories of `ode.fit`, and the minimisation that they serve."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from npu_kernels._laws.series.data import Series, read
from npu_kernels._laws.series.job import Job
from npu_kernels._laws.series.laws import Law, limits, minimise
from npu_kernels._laws.series.sensitivity import Shape, Stretches, Trajectories, chained
from npu_kernels._laws.series.simplify import pruned
from npu_kernels.optim import least_squares
from tests.support.time_series import T, known, noise, numbers, predators, solution


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(
    "times", [[0.0, 0.3, 1.0, 1.2, 3.0, 3.1, 4.0], [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]]
)
def test_jacobians_are_those_of_the_residuals(times: list[float], relative: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    t, u = numbers(*times), torch.rand(7, 2, generator=generator, dtype=torch.float64) + 0.5
    u[3, 1] = math.nan
    data = read(
        [t, t[:5] + 1], [u, u[:5]], "fit", "relative" if relative else None, None, None, 2
    ).scaled()
    shape = Shape(3, 2, 2)
    x = 0.5 * torch.rand(2, shape.size, generator=generator, dtype=torch.float64) + 0.2
    for problem in (Trajectories(data, shape, 8), Stretches(data, shape, 8, data.values + 1)):
        r, jacobian = problem.jacobian(x)
        torch.testing.assert_close(r, problem.residual(x))
        columns = [
            (problem.residual(x + 1e-6 * e) - problem.residual(x - 1e-6 * e)) / 2e-6
            for e in torch.eye(len(x[0]))
        ]
        torch.testing.assert_close(jacobian, torch.stack(columns, -1), rtol=1e-5, atol=1e-7)


def test_the_path_is_that_of_rollout() -> None:
    data = read(T, predators(T), "fit", None, None, None, 2)
    law = known()
    x = torch.cat([law[0].weight_re.flatten(), law[1].weight.flatten(), numbers(2.0, 1.0)]).detach()
    for series in (
        data,
        Series(**{**data.__dict__, "times": data.times + 1e-6 * torch.rand(data.times.shape)}),
    ):
        states = Trajectories(series, Shape(3, 2, 1), 16).states(x.unsqueeze(0))
        torch.testing.assert_close(states[0, 0], predators(T), rtol=1e-4, atol=1e-4)


def test_derivatives_along_the_nodes_follow_the_chain_rule() -> None:
    generator = torch.Generator().manual_seed(0)
    for stretches in (1, 2, 7, 16):
        for_law = torch.randn(2, 3, stretches, 2, 4, generator=generator, dtype=torch.float64)
        for_u = torch.randn(2, 3, stretches, 2, 2, generator=generator, dtype=torch.float64)
        result = chained(for_law, for_u)
        chain = torch.cat([torch.zeros(2, 3, 2, 4), torch.eye(2).expand(2, 3, 2, 2)], 3).double()
        for m in range(stretches):
            torch.testing.assert_close(result[:, :, m], chain)
            chain = for_u[:, :, m] @ chain
            chain[..., :4] += for_law[:, :, m]
        torch.testing.assert_close(result[:, :, stretches], chain)


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e200])
def test_derivatives_that_are_not_finite_tell_nothing(value: float) -> None:
    """LAPACK ends with an assertion where the information is not finite."""

    class Steep(Trajectories):
        def jacobian(self, x: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
            r, j = super().jacobian(x, states)
            j[:, 3:5] = value
            return r, j

    data = read(T, solution([[1.0]], [[-0.5]], [2.0], T), "fit", None, None, None, 1).scaled()
    x = torch.cat([numbers(1, 1), numbers(-1.5, -1.5), data.values[0, 0]])
    law = Law(Steep(data, Shape(2, 1, 1), 4), x, torch.ones(5, dtype=torch.bool))
    assert law.information().isfinite().all()
    (simpler,) = pruned([law], Job("test", 1, {}))
    assert simpler.x.isfinite().all()


def counted(name: str, method: Any, lanes: Counter[str]) -> Any:
    """Return a method of a problem that counts its laws."""

    def counting(problem: Any, x: Tensor, *options: Any, **named: Any) -> Any:
        lanes[name] += len(x)
        return method(problem, x, *options, **named)

    return counting


def test_laws_that_stay_keep_their_normal_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps are those of `least_squares.step`, and laws that did not move need no derivatives.

    Neither are the states of a trial that became the law computed twice.
    """
    data = read(T, noise(predators(T), 0.05), "fit", None, None, None, 2).scaled()
    shape, generator = Shape(3, 2, 1), torch.Generator().manual_seed(0)
    steps, parts = 6, [parameter.flatten() for parameter in known().parameters()]
    law = torch.cat([parts[0], parts[-1], data.values[0, 0]]).detach()
    start = law + 0.3 * torch.randn(5, shape.size, generator=generator, dtype=torch.float64)
    free = (law != 0).expand(5, -1)
    for problem in (Trajectories(data, shape, 4), Stretches(data, shape, 4, data.values)):
        x, damping = start, torch.full_like(start[:, 0], least_squares.FIRST_DAMPING)
        moves = torch.zeros(steps, 5, dtype=torch.bool)
        for n in range(steps):
            before, bounds = x, limits(problem)
            x, damping, error = least_squares.step(
                x, damping, free, problem.residual, problem.jacobian, bounds
            )
            moves[n] = (x != before).any(1)
        lanes: Counter[str] = Counter()
        for name in ("states", "jacobian"):
            method = counted(name, getattr(type(problem), name), lanes)
            monkeypatch.setattr(type(problem), name, method)
        results = minimise(problem, start, free, steps, -math.inf)
        for result, expected in zip(results, (x, error), strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-8, atol=1e-8)
        assert 5 < int(moves.sum()) < 5 * steps - 5
        assert lanes["jacobian"] == 5 + int(moves[:-1].sum())
        assert lanes["states"] == 5 * steps + 5 * isinstance(problem, Trajectories)
