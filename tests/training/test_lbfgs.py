"""Batched L-BFGS: torch's iterates one model at a time, independence of the batch, rules, walls,
resuming."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.optim.lbfgs import _strong_wolfe

from npu_kernels.optim.lbfgs import LBFGS, Closure, Status, lbfgs
from tests.support.compare import assert_equal


def rosenbrock(x: Tensor) -> Tensor:
    return (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(1)


def differentiated(function: Callable[[Tensor], Tensor]) -> Closure:
    def closure(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            f = function(x)
            (gradient,) = torch.autograd.grad(f.sum(), x)
        return f.detach(), gradient

    return closure


def starts(models: int = 12, size: int = 6) -> Tensor:
    return 1.5 * torch.randn(
        models, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


def with_torch(
    function: Callable[[Tensor], Tensor], x0: Tensor, iterations: int, evaluations: int = 10_000
) -> Tensor:
    results = []
    for row in x0:
        parameter = torch.nn.Parameter(row.clone().unsqueeze(0))
        optimizer = torch.optim.LBFGS(
            [parameter], max_iter=iterations, max_eval=evaluations, tolerance_grad=1e-8,
            tolerance_change=0, history_size=10, line_search_fn="strong_wolfe",
        )  # fmt: skip

        def closure(parameter: Tensor = parameter) -> Tensor:
            parameter.grad = None
            value = function(parameter).sum()
            value.backward()
            return value.detach()

        optimizer.step(closure)
        results.append(parameter.detach()[0])
    return torch.stack(results)


@pytest.mark.parametrize("iterations", [1, 2, 5, 12, 20])
def test_iterates_are_torchs(iterations: int) -> None:
    x0 = starts()
    expected = with_torch(rosenbrock, x0, iterations)
    result = lbfgs(differentiated(rosenbrock), x0, max_iterations=iterations)
    # Twenty iterations amplify the last digit, differently with every order of summation.
    torch.testing.assert_close(result.x, expected, rtol=0, atol=1e-14 * 3.0**iterations)
    assert set(result.status.tolist()) == {Status.ITERATIONS}
    assert set(result.n_iterations.tolist()) == {iterations}


def test_the_first_step_is_at_most_the_gradient() -> None:
    """The first trial is as short as torch's where the gradient's absolute values add up to < 1."""

    def flat(x: Tensor) -> Tensor:
        return 1e-3 * rosenbrock(x)

    x0 = 0.1 * starts()
    _, gradient = differentiated(flat)(x0, torch.arange(len(x0)))
    assert (gradient.abs().sum(1) < 0.6).all()
    result = lbfgs(differentiated(flat), x0, max_iterations=2)
    torch.testing.assert_close(result.x, with_torch(flat, x0, 2), rtol=0, atol=1e-12)


def wavy(x: Tensor) -> Tensor:
    """Many waves: line searches that extrapolate, zoom, hesitate."""
    return (0.1 * x**2 + torch.sin(3 * x) + 0.3 * torch.cos(11 * x)).sum(1)


def test_line_searches_are_torchs() -> None:
    x0 = 3 * starts(40, 2)
    result = lbfgs(differentiated(wavy), x0, max_iterations=6)
    moved = result.status == Status.ITERATIONS
    assert moved.sum() >= 20
    assert (result.n_evaluations - result.n_iterations).max() >= 5
    torch.testing.assert_close(result.x[moved], with_torch(wavy, x0[moved], 6), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rosenbrock_is_solved(dtype: torch.dtype) -> None:
    tolerance = 1e-8 if dtype == torch.float64 else 1e-3
    result = lbfgs(
        differentiated(rosenbrock), starts(12, 2).to(dtype), gradient_tolerance=tolerance
    )
    assert set(result.status.tolist()) == {Status.CONVERGED}
    assert (result.gradient_norm <= tolerance).all()
    torch.testing.assert_close(result.x, torch.ones_like(result.x), rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("size", [1, 2, 7, 33])
def test_no_model_depends_on_the_others(size: int, compact: bool) -> None:
    function = rosenbrock if size > 1 else wavy
    x0 = starts(9, size)
    together = lbfgs(differentiated(function), x0, max_iterations=60, compact=compact)
    assert len(set(together.n_evaluations.tolist())) > 1
    for k in range(9):
        single = lbfgs(differentiated(function), x0[k : k + 1], max_iterations=60)
        for ours, theirs in zip(together, single, strict=True):
            assert torch.equal(ours[k], theirs[0])


def test_only_running_models_are_evaluated() -> None:
    seen = []

    def closure(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(active.tolist())
        curvature = torch.tensor([1.0, 1.0, 400.0], dtype=x.dtype)[active]
        offset = x - torch.tensor([0.0, 1.0, 1.0], dtype=x.dtype)[active].unsqueeze(1)
        scale = torch.stack([torch.ones_like(curvature), curvature], 1)
        return (offset.square() * scale).sum(1), 2 * offset * scale

    result = lbfgs(closure, torch.zeros(3, 2, dtype=torch.float64))
    assert set(result.status.tolist()) == {Status.CONVERGED}
    assert result.n_iterations[0] == 0
    assert seen[0] == [0, 1, 2]
    assert seen[1] == [1, 2]
    assert seen[-1] == [2]


def test_finished_models_stay_where_they_are() -> None:
    """The closure without `compact` sees finished models too, at their result."""
    seen = []

    def closure(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(x.clone())
        return differentiated(rosenbrock)(x, active)

    result = lbfgs(closure, starts(6, 2), compact=False)
    ended = result.n_evaluations
    assert ended.min() + 2 < ended.max()
    for k in range(6):
        for points in seen[int(ended[k]) :]:
            assert torch.equal(points[k], result.x[k])


def log_barrier(x: Tensor) -> Tensor:
    """Finite for x > 0 only; minimum at 1."""
    return (x - x.log()).sum(1)


def test_non_finite_steps_are_taken_back() -> None:
    x0 = torch.tensor([[3.0, 0.2], [8.0, 5.0], [0.01, 30.0]], dtype=torch.float64)
    values = []

    def closure(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        f, gradient = differentiated(log_barrier)(x, active)
        values.append(f)
        return f, gradient

    result = lbfgs(closure, x0)
    assert torch.cat(values).isnan().any()
    assert result.x.isfinite().all()
    torch.testing.assert_close(result.x, torch.ones_like(x0), rtol=0, atol=1e-7)


@pytest.mark.parametrize("walls", [(None, math.nan), (math.nan, None), (-math.inf, None)])
def test_f_or_a_gradient_that_is_not_finite_is_a_wall(walls: tuple[float | None, ...]) -> None:
    def closure(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        parts = (x - 1.9).square(), 2 * (x - 1.9)
        f, gradient = (
            part if wall is None else torch.where(x > 2, wall, part)
            for part, wall in zip(parts, walls, strict=True)
        )
        return f.sum(1), gradient

    result = lbfgs(closure, torch.full((1, 1), -30.0, dtype=torch.float64))
    assert float(result.x) == pytest.approx(1.9, abs=1e-7)
    closure, points = table((0.0, -1.0), (-0.5, math.nan), (-0.3, -0.1))
    lbfgs(closure, ZERO, max_iterations=1)
    assert 0 < points[2] < points[1] == 1


def test_rules() -> None:
    x0 = starts(4, 3)
    closure = differentiated(rosenbrock)
    assert set(lbfgs(closure, x0, max_iterations=3).n_iterations.tolist()) == {3}
    assert set(lbfgs(closure, x0, gradient_tolerance=1e9).status.tolist()) == {Status.CONVERGED}
    assert set(lbfgs(closure, x0, x_tolerance=1e-3).status.tolist()) == {Status.SMALL_STEP}
    assert set(lbfgs(closure, x0, f_tolerance=1e9).status.tolist()) == {Status.SMALL_CHANGE}
    spent = lbfgs(closure, x0, max_evaluations=7)
    assert set(spent.status.tolist()) == {Status.EVALUATIONS}
    assert ((spent.n_evaluations >= 7) & (spent.n_evaluations < 7 + 25)).all()
    x0[1, 0] = math.nan
    assert lbfgs(closure, x0, max_iterations=3).status.tolist() == [5, Status.NOT_FINITE, 5, 5]

    def uphill(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        return x.square().sum(1), -2 * x

    start = torch.ones(1, 2, dtype=torch.float64)
    result = lbfgs(uphill, start)
    assert result.status.item() == Status.NO_DECREASE
    assert torch.equal(result.x, start)


def test_the_ends_of_the_rules() -> None:
    closure, x0 = differentiated(rosenbrock), starts(1, 3)
    five = lbfgs(closure, x0, max_iterations=5)
    assert lbfgs(closure, x0, max_evaluations=int(five.n_evaluations)).n_iterations.tolist() == [5]
    # A step is as long as its longest part: the second variable is at its minimum and never moves.
    x0 = torch.tensor([[30.0, 1.0]], dtype=torch.float64)
    result = lbfgs(differentiated(log_barrier), x0, x_tolerance=1e-3)
    torch.testing.assert_close(result.x, torch.ones_like(x0), rtol=0, atol=1e-2)
    # Downhill for ever: x0, the first trial point, and as many more as a line search may have.
    line = differentiated(lambda x: -x.sum(1))
    assert lbfgs(line, x0, max_iterations=1, max_line_search=3).n_evaluations.tolist() == [5]


def table(*rows: tuple[float, float]) -> tuple[Closure, list[float]]:
    """A closure that gives f and its slope along the first variable from a table, one row for each
    call; and the first variables of the points that it was asked for."""
    points: list[float] = []

    def closure(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        f, slope = rows[len(points)]
        points.append(x[0, 0].item())
        gradient = torch.zeros_like(x)
        gradient[0, 0] = slope
        return torch.full((1,), f, dtype=x.dtype), gradient

    return closure, points


ZERO = torch.zeros(1, 1, dtype=torch.float64)


def test_rules_hold_at_their_bounds() -> None:
    """A step of 1, f lower by 0.75, a gradient of 1/2; the later rule counts."""
    for options, status in (
        ({"f_tolerance": 0.75}, Status.SMALL_CHANGE),
        ({"x_tolerance": 1.0}, Status.SMALL_STEP),
        ({"gradient_tolerance": 0.5}, Status.CONVERGED),
        ({"x_tolerance": 1.0, "f_tolerance": 0.75}, Status.SMALL_STEP),
        ({"x_tolerance": 1.0, "gradient_tolerance": 0.5}, Status.CONVERGED),
        ({"gradient_tolerance": 0.5, "max_iterations": 1}, Status.CONVERGED),
        ({"gradient_tolerance": 0.5, "max_evaluations": 2}, Status.CONVERGED),
        ({"max_iterations": 1, "max_evaluations": 2}, Status.ITERATIONS),
        ({"max_evaluations": 2}, Status.EVALUATIONS),
    ):
        closure, _ = table((0.0, -1.0), (-0.75, -0.5))
        result = lbfgs(closure, ZERO, **options)  # type: ignore[arg-type]
        assert (result.status.item(), result.x.item()) == (status, 1.0)
    at_its_minimum = lbfgs(table((0.0, 0.0))[0], ZERO, gradient_tolerance=0.0)
    assert at_its_minimum.status.item() == Status.CONVERGED
    # The square of the gradient is 0: no descent that can be measured.
    flat = lbfgs(table((0.0, 1e-200))[0], ZERO, gradient_tolerance=0.0)
    assert flat.status.item() == Status.NO_DECREASE


def torchs_line_search(
    rows: Sequence[tuple[float, float]], max_trials: int
) -> tuple[list[float], float]:
    """The points of torch's line search with that table, and its end."""
    points: list[float] = []

    def function(x: Tensor, t: float, d: Tensor) -> tuple[float, Tensor]:
        points.append(float(t))
        f, slope = rows[len(points)]
        return f, torch.tensor([slope], dtype=torch.float64)

    start, direction = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    f, slope = rows[0][0], torch.full((1,), rows[0][1], dtype=torch.float64)
    options = {"tolerance_change": 0.0, "max_ls": max_trials}
    _, _, end, _ = _strong_wolfe(function, start, 1.0, direction, f, slope, slope[0], **options)
    return points, float(end)


def test_line_searches_over_drawn_numbers_are_torchs() -> None:
    """f and slopes of no function: the search extrapolates, zooms and hesitates in every order."""
    draw, searched = random.Random(5), set()
    for _ in range(150):
        drift, steepness = draw.choice((0.0, -1.0, -3.0)), draw.choice((1.0, 3.0))
        rows = [(0.0, -1.0)]
        for n in range(1, 11):
            rows.append((draw.gauss(n * drift, 1.0), draw.gauss(0.0, steepness)))
        closure, points = table(*rows)
        result = lbfgs(closure, ZERO, max_iterations=1, max_line_search=8)
        theirs, end = torchs_line_search(rows, 8)
        if any(map(math.isnan, theirs)):  # where torch's cubic is none, ours is the middle
            continue
        assert points[1:] == pytest.approx(theirs, rel=1e-9)
        assert result.x.item() == pytest.approx(end, rel=1e-9)
        searched.add(len(theirs))
    assert searched == set(range(1, 10))


@pytest.mark.parametrize("f", [5.0, 0.0, -0.5])
def test_a_line_search_that_is_exhausted(f: float) -> None:
    """It ends at its last point, where that is lower than the start, and otherwise at the start."""
    closure, points = table((0.0, -1.0), (-1.0, -2.0), (f, -2.0))
    result = lbfgs(closure, ZERO, max_line_search=1, max_iterations=1)
    assert points[1] == 1 < points[2]
    if f < 0:
        assert (result.status.item(), result.x.item()) == (Status.ITERATIONS, points[2])
    else:
        assert (result.status.item(), result.x.item()) == (Status.NO_DECREASE, 0.0)


def test_a_third_point_as_high_as_the_second_is_too_far() -> None:
    rows = (0.0, -1.0), (-1.0, -2.0), (-2.0, -3.0), (-2.0, -0.5), (-2.5, -0.1)
    closure, points = table(*rows)
    lbfgs(closure, ZERO, max_iterations=1)
    assert points[2] < points[4] < points[3]


def test_a_point_within_a_bracket_that_hardly_descends_is_too_far() -> None:
    """Though it is the lowest so far, and its slope is small."""
    rows = (0.0, -1.0), (1.0, 1.0), (-1e-6, -0.5), (-0.05, -0.1)
    closure, points = table(*rows)
    lbfgs(closure, ZERO, max_iterations=1)
    assert 0 < points[3] < points[2] < points[1]
    closure, points = table(*rows[:3])  # where the search is exhausted there, it is the result
    assert lbfgs(closure, ZERO, max_iterations=1, max_line_search=1).x.item() == points[2]


def test_a_direction_that_is_not_finite_ends_a_problem() -> None:
    """No point is tried along it, as along one that does not descend."""

    def closure(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        assert x.isfinite().all()
        return differentiated(rosenbrock)(x, active)

    problems = LBFGS(closure, starts(1, 3))
    while not problems.pairs:
        problems.round()
    problems.scale.fill_(math.nan)
    while problems.round():
        problems.scale.fill_(math.nan)
    assert problems.status.item() == Status.NO_DECREASE


def test_closures_run_without_a_graph() -> None:
    """x0 and what the closure gives may have one: nothing keeps it."""
    x0 = starts(3, 2).requires_grad_()

    def closure(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        assert not torch.is_grad_enabled()
        assert not x.requires_grad
        f, gradient = differentiated(rosenbrock)(x, active)
        return f.requires_grad_(), gradient.requires_grad_()

    result = lbfgs(closure, x0, max_iterations=5)
    assert not any(part.requires_grad for part in result)
    expected = lbfgs(differentiated(rosenbrock), x0.detach(), max_iterations=5)
    assert_equal(result, expected)


def test_pairs_of_hardly_any_curvature_are_left_out() -> None:
    """They would be of rounding errors: the bound is torch's."""
    for size, pairs in ((1e-5, 0), (1e-4, 1)):
        closure, _ = table((0.0, -size), (-0.75 * size**2, -0.5 * size))
        problems = LBFGS(closure, ZERO)
        problems.round()
        problems.round()
        assert problems.x.item() == pytest.approx(size)
        assert problems.pairs.tolist() == [pairs]


def test_a_bracket_shorter_than_the_tolerance_ends_a_line_search() -> None:
    counts = []
    for tolerance in (0.0, 1e-6, 0.1):
        closure, points = table((0.0, -1.0), *[(1.0, 1.0)] * 40)
        result = lbfgs(closure, torch.zeros(1, 2, dtype=torch.float64), x_tolerance=tolerance)
        assert result.status.item() == Status.NO_DECREASE
        counts.append(len(points))
        # It is not ended before: the bracket is from 0 to the last point that was evaluated.
        assert tolerance == 0 or points[-1] < tolerance <= points[-2]
    assert counts[0] == 2 + 25
    assert counts[2] < counts[1] < counts[0]


def test_a_step_that_hardly_descends_is_too_long() -> None:
    """A trial with under 1e-4 of the promised descent is followed by a shorter one."""
    tried = []

    def closure(x: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        tried.append(x.item())
        behind = x != 0
        return torch.where(behind, -1e-6, 0.0)[:, 0], torch.where(behind, -0.95, -1.0)

    lbfgs(closure, torch.zeros(1, 1), max_evaluations=3)
    assert tried[:2] == [0, 1]
    assert 0 < tried[2] < 1


def test_f_never_increases() -> None:
    problems = LBFGS(differentiated(wavy), 3 * starts(30, 3), max_iterations=50)
    problems.round()
    before = problems.f.clone()
    while problems.round():
        assert (problems.f <= before).all()
        before = problems.f.clone()


def test_resumed_as_uninterrupted() -> None:
    x0 = starts()
    uninterrupted = LBFGS(differentiated(rosenbrock), x0)
    while uninterrupted.round():
        pass
    first = LBFGS(differentiated(rosenbrock), x0)
    for _ in range(37):
        first.round()
    second = LBFGS(differentiated(rosenbrock), torch.zeros_like(x0))
    second.load_state_dict(first.state_dict())
    first.round()  # the state is a copy
    while second.round():
        pass
    assert_equal(second.result(), uninterrupted.result())
    with pytest.raises(
        ValueError, match=r"lbfgs: its state, x must be .*shape \(3, 6\), got .*shape \(12, 6\)"
    ):
        LBFGS(differentiated(rosenbrock), x0[:3]).load_state_dict(uninterrupted.state_dict())


def test_empty_batch_and_unchanged_start() -> None:
    assert lbfgs(differentiated(rosenbrock), torch.zeros(0, 4)).x.shape == (0, 4)
    x0 = starts()
    before = x0.clone()
    lbfgs(differentiated(rosenbrock), x0, max_iterations=3)
    assert torch.equal(x0, before)


def kinked(x: Tensor) -> Tensor:
    """An absolute value across a curved valley, in whose kink line searches end."""
    return (x[:, 1:] - x[:, :-1] ** 2).abs().sum(1) + 0.1 * (1 - x[:, :-1]).square().sum(1)


def test_a_restart_begins_as_a_start_does() -> None:
    """Along the negative gradient, by at most 1 of it, without the pairs and their scale."""
    wall = [(9.0, 1.0)] * 4
    rows = [(0.0, -1.0), (-0.75, -0.5), *wall, (-0.8, -0.4), (-0.9, -0.1)]
    closure, points = table(*rows)
    problems = LBFGS(closure, ZERO, restart=True, max_line_search=3)
    for _ in range(len(rows) - 2):
        assert problems.round()
    assert points[1] == 1.0
    assert problems.pairs.tolist() == [0]
    assert problems.x.item() == 1.0
    problems.round()
    assert points[-1] == 1.0 + 0.5
    closure, points = table((0.0, -4.0), (-0.75, -2.0), *wall, (-0.8, -0.4))
    problems = LBFGS(closure, ZERO, restart=True, max_line_search=3)
    while len(points) < 7:
        problems.round()
    assert points[1] == 1.0
    assert points[6] == 2.0


def test_restarts_go_on_from_kinks() -> None:
    x0 = starts(20, 4)
    options = {"max_iterations": 300, "max_line_search": 10}
    stopped = lbfgs(differentiated(kinked), x0, **options)
    restarted = lbfgs(differentiated(kinked), x0, restart=True, **options)
    assert (stopped.status == Status.NO_DECREASE).sum() >= 10
    assert (restarted.f <= stopped.f).all()
    assert (restarted.f < stopped.f).sum() >= 10
    assert not (restarted.status == Status.RUNNING).any()
    single = lbfgs(differentiated(kinked), x0[3:4], restart=True, **options)
    assert torch.equal(single.x[0], restarted.x[3])
