"""`ode.fit`: the search for the law with the best criterion."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from npu_kernels import ode
from npu_kernels._laws.series import search as searching
from npu_kernels._laws.series import sets
from npu_kernels._laws.series.criterion import FRACTION_NATS, criteria
from npu_kernels._laws.series.data import _nodes, read
from npu_kernels._laws.series.exchange import exchanged
from npu_kernels._laws.series.job import Job
from npu_kernels._laws.series.known import read_known
from npu_kernels._laws.series.laws import Law
from npu_kernels._laws.series.search import (
    SMALLEST_BATCH,
    Search,
    batches,
    hopeful,
    is_exact,
    simplest,
)
from npu_kernels._laws.series.sensitivity import Shape, Trajectories
from npu_kernels._laws.series.simplify import _fractions, _plan, changed, covariance, pruned
from npu_kernels._laws.series.starts import matched, smoothed
from npu_kernels._laws.series.steps import best_accurate
from tests.support.time_series import T, model, noise, numbers, solution

pytest.importorskip("scipy.optimize", reason="scipy is not installed")
pytest.importorskip("scipy.stats")


def hunters(seed: int) -> tuple[Tensor, Tensor]:
    """Lotka and Volterra's law at 40 times with errors of 5 %."""
    t = torch.linspace(0, 12, 40, dtype=torch.float64)
    u = solution([[1, 0], [1, 1], [0, 1]], [[1.3, -0.7, 0], [0, 0.35, -0.9]], [2, 1], t)
    return t, noise(u, 0.05, seed)


def test_no_alternative_is_better_than_the_law() -> None:
    t = torch.linspace(0, 6, 12, dtype=torch.float64)
    c = noise(solution([[1.5]], [[-0.5]], [1.0], t), 0.05, 11)
    result = ode.fit(model(1, 2, 12), t, c, names=["c"])
    assert all(other.bic > result.bic - 0.1 for other in result.alternatives())


@pytest.mark.parametrize("seed", range(20))
def test_more_starts_end_no_higher(seed: int) -> None:
    t = torch.linspace(0, 6, 12, dtype=torch.float64)
    c = noise(solution([[1.5]], [[-0.5]], [1.0], t), 0.05, seed)
    fewer, twice = (ode.fit(model(1, 2, starts), t, c).bic for starts in (12, 24))
    assert twice <= fewer


def test_intervals_of_a_law_that_was_searched_contain_the_truth() -> None:
    """`python -m benchmarks.time_series --methods search --seeds 200` has more draws."""
    inside = total = 0
    for seed in range(8):
        t = torch.linspace(0, 6, 25, dtype=torch.float64)
        u = noise(solution([[1], [2]], [[1.5, -0.5]], [0.4], t), 0.02, seed)
        result = ode.fit(model(1, 2, 12), t, u, names=["x"])
        powers = result.weights()[0]
        if sorted(powers.flatten().tolist()) != [1, 2]:
            continue
        true = {"coefficient of x in x'": 1.5, "coefficient of x**2 in x'": -0.5}
        for one in result.intervals():
            if one.name in true:
                inside += one.low <= true[one.name] <= one.high
                total += 1
    assert total >= 8
    assert inside >= 0.8 * total


@pytest.mark.parametrize("starts", [1, 5, 12, 23, 24, 25, 48, 100])
def test_the_batches_of_twice_as_many_starts_are_the_same_and_one_more(starts: int) -> None:
    parts = batches(starts)
    assert [n for part in parts for n in range(starts)[part]] == list(range(starts))
    if starts >= SMALLEST_BATCH:
        assert batches(2 * starts)[: len(parts)] == parts


def test_the_first_starts_do_not_depend_on_their_number() -> None:
    t, u = hunters(0)
    data = read(t, u, "fit", None, None, None, 2).scaled()
    none = torch.zeros(0, 2, dtype=torch.float64)
    states = smoothed(data)
    fewer, twice = (
        matched(data, *states, Shape(3, 2, 1), none, ~data.positive, count, 0) for count in (12, 24)
    )
    assert all(torch.equal(*pair) for pair in zip(fewer, [x[:12] for x in twice], strict=True))


def test_sets_of_whole_exponents_are_among_the_starts() -> None:
    """Fractions explain the states better where errors are 5 %: none of the best sets is whole."""
    t, u = hunters(0)
    data = read(t, u, "fit", None, None, None, 2).scaled()
    none = torch.zeros(0, 2, dtype=torch.float64)
    exponents, _, free, _ = matched(
        data, *smoothed(data), Shape(3, 2, 1), none, ~data.positive, 24, 0
    )
    whole = (exponents == exponents.round()).all((1, 2)) & (exponents >= 0).all((1, 2))
    assert int((whole & ~free.any((1, 2))).sum()) == 8


def test_a_law_that_is_not_finite_is_simplified_without_an_error() -> None:
    """LAPACK ends with an error where the information is not finite."""
    data = read(T, solution([[1.0]], [[-0.5]], [2.0], T), "fit", None, None, None, 1).scaled()
    x = torch.cat([numbers(1, 3, 5, 900), data.values[0, 0]])
    law = Law(Trajectories(data, Shape(2, 1, 1), 4), x, torch.ones(5, dtype=torch.bool))
    assert law.criterion() == math.inf
    assert law.information().isfinite().all()
    (simpler,) = pruned([law], Job("test", 1, {}))
    assert simpler.x.isfinite().all()


def test_laws_that_only_coarse_steps_solve_are_left_out() -> None:
    """A pole is no law, however small the residuals are of steps that jump over it."""
    data = read(T, solution([[1.0]], [[-0.5]], [2.0], T), "fit", None, None, None, 1).scaled()
    x, free = torch.cat([numbers(1, -1.5), data.values[0, 0]]), torch.ones(3, dtype=torch.bool)
    problem, job = Trajectories(data, Shape(1, 1, 1), 64), Job("test", 1, {})
    smooth = Law(problem, x, free)
    has_pole = Law(problem, torch.cat([numbers(2, 1.5), data.values[0, 0]]), free)
    assert best_accurate([has_pole, smooth], job) is smooth
    assert best_accurate([has_pole], job) is None


LORENZ_POWERS = [[0, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1], [1, 1, 0]]
LORENZ_RATES = [[10, -10, 0, 0, 0], [-1, 99.96, -1, 0, 0], [0, 0, 0, -8 / 3, 1]]


def lorenz() -> tuple[Tensor, Tensor]:
    """Lorenz's law, whose neighbouring trajectories part fast."""
    t = torch.linspace(0, 4.7, 70, dtype=torch.float64)
    return t, solution(LORENZ_POWERS, LORENZ_RATES, [10, 20, 30], t)


def test_numbers_that_were_fitted_with_coarse_steps() -> None:
    power, sums = start = model(3, 5)
    with torch.no_grad():
        power.gate.fill_(1.0)
        power.weight_re.copy_(torch.tensor(LORENZ_POWERS)).requires_grad_(False)
        sums.weight.copy_(1.02 * torch.tensor(LORENZ_RATES))
    law = ode.fit(start, *lorenz(), start="model", simplify=False)
    assert (law.weights()[1][0] - torch.tensor(LORENZ_RATES)).abs().max() < 1e-3


def test_pieces_begin_with_measured_states() -> None:
    data = read(*lorenz(), "fit", None, None, None, 3)
    rules = read_known(None, False, None, None, None, "any", data.names, 5, True)
    search = Search(data, rules, 5, 1, 0, Job("test", 1, {}), "rk4")
    powers = torch.tensor(LORENZ_POWERS, dtype=torch.float64)
    rates = torch.tensor(LORENZ_RATES, dtype=torch.float64)
    x = search.shape.join(powers, rates, 1.5 * data.values[:, 0]).unsqueeze(0)
    free = torch.arange(x.shape[1]) >= 15
    problem = replace(search.problem("rk4"), steps=32)
    _, x, _ = search.refit_in_pieces(problem, x, free.unsqueeze(0))
    assert (search.shape.split(x)[2] - data.values[:, 0]).abs().max() < 1e-3


def test_the_true_form_where_its_criterion_is_better() -> None:
    t, u = hunters(0)
    result = ode.fit(model(2, 3, 12), t, u, names=["x", "y"])
    powers, rates = (part[0] for part in result.weights())
    assert sorted(powers.tolist()) == [[0, 1], [1, 0], [1, 1]]
    assert int((rates != 0).sum()) == 4


def test_a_change_moves_the_other_numbers_along() -> None:
    """Without a number that matters the others as they are may be far from the best ones."""
    t = torch.linspace(0, 14, 60, dtype=torch.float64)
    u = solution([[1, 0], [1, 1], [0, 1]], [[1, -1, 0], [0, 0.6, -1.8]], [0.6, 1], t)
    data = read(t, noise(u, 0.01), "fit", None, None, None, 2).scaled()
    X, Y = data.size.tolist()
    rates = numbers(1, -Y, 0.1 * Y / X, 0, 0.6 * X, -1.8) * 14
    x = torch.cat([numbers(1, 0, 1, 1, 0, 1), rates, data.values[0, 0]])
    law = Law(Trajectories(data, Shape(3, 2, 1), 4), x, x != 0).refitted()
    matrix = covariance(law, law.information())
    changes = [((8,), 0.0)]
    (moved,) = changed([(law, changes, matrix)])
    still = replace(moved, x=law.x.where(moved.free, 0.0))
    assert float(moved.x[8]) == 0
    assert not moved.free[8]
    assert moved.criterion() < still.criterion() - 10


def test_a_coefficient_and_an_exponent_that_only_go_together() -> None:
    t = torch.linspace(0, 13.4, 68, dtype=torch.float64)
    rates = [[1, -1, 0], [0, 0.62, -1.81]]
    u = noise(solution([[1, 0], [1, 1], [0, 1]], rates, [10.8, 1.44], t), 0.05, 10)
    result = ode.fit(model(2, 3, 12), t, u, names=["x", "y"])
    powers, coefficients = result.weights()
    assert sorted(powers[0].tolist()) == [[0, 1], [1, 0], [1, 1]]
    assert int((coefficients != 0).sum()) == 4


def test_laws_that_fractions_cannot_make_the_best_are_not_rounded() -> None:
    t, u = hunters(0)
    data = read(t, u, "fit", None, None, None, 2).scaled()
    X, Y = data.size.tolist()
    rates = numbers(1.3, -0.7 * Y, 0, 0, 0.35 * X, -0.9) * 12
    good = torch.cat([numbers(1.05, 0, 1.05, 0.95, 0, 0.95), rates, data.values[0, 0]])
    problem, poor = Trajectories(data, Shape(3, 2, 1), 4), good.clone()
    poor[9:11] = poor[9:11] * 0.8
    laws = [Law(problem, x, good != 0) for x in (poor, good)]
    assert hopeful(laws, 4) == laws[1:]
    assert hopeful(laws[:1] * 2, 4) == laws[:1] * 2


def test_whole_powers_up_to_the_fifth_of_one_state() -> None:
    """A series of system 16 of ODEBench, whose free exponents would fit nearly as well."""
    t = torch.linspace(0, 10, 150, dtype=torch.float64)
    u = solution([[1], [3], [5]], [[0.1, 0.04, -0.001]], [0.94], t)
    result = ode.fit(model(1, 3, 12), t, u)
    exponents, _ = result.weights()
    assert sorted(exponents.flatten().tolist()) == [1, 3, 5]


def test_integrals_of_parabolas_are_exact() -> None:
    t = torch.tensor([0, 0.5, 0.7, 1.6, 2, 2], dtype=torch.float64)  # the last is a filler
    values = torch.stack([torch.ones_like(t), t, 3 * t**2], 1).unsqueeze(0)
    expected = torch.stack([t, t**2 / 2, t**3], 1)[1:].unsqueeze(0)
    result = sets.integrals(values, t.diff().unsqueeze(0))
    torch.testing.assert_close(result[:, :-1], expected[:, :-1])
    torch.testing.assert_close(result[:, -1], result[:, -2])
    chord = sets.integrals(values[:, :2], t[:2].diff().unsqueeze(0))
    torch.testing.assert_close(chord, torch.tensor([[[0.5, 0.125, 0.1875]]], dtype=torch.float64))
    values[:, -1] = math.inf  # of a filler: it moves nothing that lies before
    other = sets.integrals(values, t.diff().unsqueeze(0))
    torch.testing.assert_close(other[:, :-1], expected[:, :-1])


COMPETITION = [[1, 0], [2, 0], [1, 1], [0, 1], [0, 2]], [[3, -1, -2, 0, 0], [0, 0, -1, 2, -1]]


def competition() -> tuple[Tensor, Tensor]:
    """System 26 of ODEBench, which falls much within the first of its distances in time."""
    t = torch.linspace(0, 10, 150, dtype=torch.float64)
    return t, solution(*COMPETITION, [5, 4.3], t)


def search_of(t: Tensor, u: Tensor, terms: int, starts: int = 1, start: object = "fit") -> Search:
    data = read(t, u, start, None, None, None, u.shape[1])
    rules = read_known(None, False, None, None, None, "any", data.names, terms, True)
    return Search(data.scaled(), rules, terms, starts, 0, Job("test", 1, {}), "rk4")


def test_a_law_that_only_sets_along_a_trajectory_show() -> None:
    """The smoothing spline is too rough where the states fall: all of its sets are wrong."""
    result = ode.fit(model(2, 6, 12), *competition())
    powers, rates = (part[0] for part in result.weights())
    assert sorted(powers.tolist()) == sorted(COMPETITION[0])
    assert int((rates != 0).sum()) == 6


@pytest.mark.parametrize("start", ["fit", [2.0, 1.0]])
def test_the_best_set_along_the_true_trajectory(start: object) -> None:
    """The shares of the measurements that are errors say which sets have a term too many."""
    t = torch.linspace(0, 12, 80, dtype=torch.float64)
    powers, rates = [[1, 0], [1, 1], [0, 1]], [[1.3, -0.7, 0], [0, 0.35, -0.9]]
    u = noise(solution(powers, rates, [2, 1], t), 0.02, 0)
    search = search_of(t, u, 4, start=start)
    data, shape = search.data, replace(search.shape, terms=4)
    fine = torch.linspace(0, 12, 4 * 79 + 1, dtype=torch.float64)
    path = (solution(powers, rates, [2, 1], fine) / data.size).unsqueeze(0)
    fixed = torch.zeros(0, 2, dtype=torch.float64)
    best = sets.ranked(data, path, shape, fixed, ~data.positive, 0)
    assert bool((best.criteria.diff() >= 0).all())
    assert sorted(best.exponents[0, best.used[0]].tolist()) == sorted(powers)
    order = [best.exponents[0].tolist().index(row) for row in powers]
    sizes = torch.tensor([data.size[0], data.size.prod(), data.size[1]]) / data.size.unsqueeze(1)
    expected = 12 * torch.tensor(rates, dtype=torch.float64) * sizes
    torch.testing.assert_close(best.coefficients[0][:, order], expected, rtol=0.1, atol=0.3)


def test_a_constant_is_added_where_first_states_are_unknown() -> None:
    A = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64).view(1, 4, 1, 1)
    y, weight = 2 * A[:, :, 0, 0] + 5, torch.tensor([[1.0, 2, 1, 0]], dtype=torch.float64)
    c, square = sets.explained(A, y, weight, torch.tensor([True]))
    torch.testing.assert_close((c.item(), square.item()), (2.0, 0.0))
    assert sets.explained(A, y, weight, torch.tensor([False]))[1].item() > 1


def test_integrals_to_the_nodes_have_smaller_parts() -> None:
    t = torch.linspace(0, 2, 9, dtype=torch.float64)
    values = (3 * t**2).view(1, -1, 1)
    nodes = t[::4]
    course = sets.Course(t.diff().unsqueeze(0), values, values[:, 4::4], False)
    assert course.parts == 4
    torch.testing.assert_close(course.integrals(values)[0, :, 0], nodes[1:] ** 3)


def test_a_series_with_parts_of_its_distances() -> None:
    t = torch.tensor([0, 1, 2.5], dtype=torch.float64)
    data = read(t, torch.stack([t, 2 * t], 1), "fit", None, None, None, 2)
    fine = data.refined(2)
    assert fine.times.tolist() == [[0, 0.5, 1, 1.75, 2.5]]
    torch.testing.assert_close(fine.values[0, :, 1], 2 * fine.times[0])
    assert not fine.seen.any()


def logistic() -> tuple[Tensor, Tensor]:
    t = torch.linspace(0, 6, 40, dtype=torch.float64)
    return t, solution([[1], [2]], [[1.0, -0.4]], [0.3], t)


def test_an_exact_law_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    run = Search.run
    monkeypatch.setattr(Search, "run", lambda self, *rest: runs.append(0) or run(self, *rest))
    t, u = logistic()
    ode.fit(model(1, 3, 24), t, u)
    assert len(runs) == 1
    ode.fit(model(1, 3, 24), t, noise(u, 0.01))
    assert len(runs) == 3


def test_an_exact_law_of_too_many_terms_is_left() -> None:
    t, u = logistic()
    search = search_of(t, u, 3)
    data = search.data
    size = float(data.size[0])
    x = torch.cat([numbers(1, 2, 3, 6, -2.4 * size, 1e-9), data.values[0, 0]])
    law = Law(Trajectories(data, search.shape, 4), x, torch.arange(7) >= 3)
    assert is_exact(law)
    better, _ = search.improved((law, law), 4, True, {})
    assert better.criterion() < law.criterion() - 3
    assert int((search.shape.split(better.x)[1] != 0).sum()) == 2


def test_a_law_of_free_exponents_is_not_exact() -> None:
    t, u = logistic()
    search = search_of(t, u, 2)
    x = torch.cat([numbers(1, 2, 6, -2.4 * float(search.data.size[0])), search.data.values[0, 0]])
    law = Law(Trajectories(search.data, search.shape, 4), x, torch.arange(5) >= 2)
    assert is_exact(law)
    assert not is_exact(replace(law, free=torch.ones(5, dtype=torch.bool)))
    assert not is_exact(replace(law, x=law.x * 1.001))


def test_the_climb_from_law_to_law_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    climbs = []

    def little_better(best: Law, *_: object) -> list[tuple[Law, Law]]:
        climbs.append(best)
        return [(best, best)]

    monkeypatch.setattr(searching, "better_laws", little_better)
    monkeypatch.setattr(searching, "is_better", lambda *_: True)
    t, u = logistic()
    search = search_of(t, noise(u, 0.01), 2)
    x = torch.cat([numbers(1, 2, 6, -2.4 * float(search.data.size[0])), search.data.values[0, 0]])
    law = Law(Trajectories(search.data, search.shape, 4), x, torch.arange(5) >= 2)
    simplest([law], 4, True, {}, Job("test", 1, {}))
    assert len(climbs) == searching.MOST_CLIMBS


def test_a_state_that_passes_zero_has_no_negative_powers() -> None:
    """Its trajectory would go through a pole, which fixed steps may jump over."""
    t = torch.linspace(0, 6, 40, dtype=torch.float64)
    u = torch.stack([torch.sin(2 * t), 2 + torch.cos(t)], 1)
    search = search_of(t, u, 3, starts=24)
    exponents, _, _ = search.shape.split(search.drawn()[0])
    assert bool((exponents[..., 0] >= 0).all())
    assert bool((exponents[..., 1] < 0).any())


def test_states_of_one_sign_in_each_series_do_not_pass_zero() -> None:
    t = torch.linspace(0, 6, 10, dtype=torch.float64)
    u = (2 + torch.cos(t)).unsqueeze(1)
    both = read([t, t], [u, -u], "fit", None, None, None, 1)
    assert both.crossing.tolist() == [False]
    assert read(t, u - 2, "fit", None, None, None, 1).crossing.tolist() == [True]
    assert read(t, u, "fit", None, None, None, 1).crossing.tolist() == [False]


# ---- exchanges, and the description of exponents --------------------------------------------------

PREY = [[1, 0], [2, 0], [1, 1], [0, 1]], [[1.4, -0.2, -0.8, 0], [0, 0, 0.6, -0.7]]


@pytest.mark.parametrize(
    ("powers", "rates"),
    [
        ([[1, 0], [1, 1], [0, 1]], [[1.0, -0.8, 0], [0, 0.6, -0.7]]),
        ([[1, 0], [2, 0], [2, 1], [0, 1]], [[1.4, -0.2, -0.5, 0], [0, 0, 0.4, -0.7]]),
        ([[1, 0], [2, 0], [1, 1], [0, 2]], PREY[1]),
    ],
    ids=["a product more", "one of two equations", "one of an equation"],
)
def test_an_exchange_leads_to_the_true_products(
    powers: list[list[float]], rates: list[list[float]]
) -> None:
    t = torch.linspace(0, 12, 60, dtype=torch.float64)
    search = search_of(t, noise(solution(*PREY, [2, 0.5], t), 0.02, 0), 4)
    power, nau = model(2, 4).double()
    count = len(powers)
    with torch.no_grad():
        power.gate.fill_(1.0)
        power.weight_re[:count], power.weight_re[count:] = torch.tensor(powers), 0.0
        nau.weight[:, :count], nau.weight[:, count:] = torch.tensor(rates), 0.0
    power.weight_re.requires_grad_(False)
    x, free = search.begin(power, nau)
    law = Law(search.problem("rk4"), x[0], free[0]).refitted()
    best = exchanged(law, Job("test", 1, {}))[0]
    exponents, coefficients, _ = best.problem.shape.split(best.x)
    assert sorted(exponents[(coefficients != 0).any(0)].tolist()) == sorted(PREY[0])
    assert best.criterion() < law.criterion() - 10


def test_the_law_of_a_search_has_no_better_exchange() -> None:
    """The starts and the sets along their best law's trajectory miss the better law."""
    t = torch.linspace(0, 9.93, 149, dtype=torch.float64)[::2]
    result = ode.fit(model(2, 6, 12), t, noise(solution(*PREY, [2, 0.5], t), 0.05, 7))
    others = exchanged(result.law, Job("test", 1, {}))
    assert all(other.criterion() > result.bic - 0.05 for other in others)


def test_whole_numbers_within_the_errors_of_an_exponent_are_tried() -> None:
    data = read(T, solution([[1.0]], [[-0.5]], [2.0], T), "fit", None, None, None, 1).scaled()
    x = numbers(1.3, -0.5, 1.0)
    law = Law(Trajectories(data, Shape(1, 1, 1), 4), x, x != 0)
    for error, expected in ((0.05, [1, 1.25, 4 / 3, 1.5]), (0.6, [1, 1.25, 4 / 3, 1.5, 2])):
        tried = [value for _, value in _fractions(law, error**2 * torch.eye(3).numpy(), 4)]
        assert sorted(tried) == pytest.approx(expected)


def test_an_exponent_that_is_no_whole_number_has_a_price() -> None:
    data = read(T, solution([[1.0]], [[-0.5]], [2.0], T), "fit", None, None, None, 1).scaled()
    x, y = numbers(1.0, -2.0, 1.0), numbers(1.0 + 1e-9, -2.0, 1.0)
    fixed = torch.tensor([[False, True, True]] * 2)
    values = criteria(Trajectories(data, Shape(1, 1, 1), 4), torch.stack([x, y]), fixed)
    assert float(values[1] - values[0]) == pytest.approx(2 * FRACTION_NATS, abs=1e-3)


def test_which_state_a_factor_is_a_power_of_has_a_price() -> None:
    """The second state is 1: a power of it changes no trajectory."""
    u = torch.stack([(-0.5 * T).exp(), torch.ones_like(T)], 1)
    data = read(T, u, "fit", None, None, None, 2).scaled()
    rest = [-3.0, 0.0, 1.0, 1.0]
    laws = torch.stack([numbers(1.0, 0.0, *rest), numbers(1.0, 1.0, *rest)])
    fixed = torch.tensor([[False, False, True, False, True, False]] * 2)
    values = criteria(Trajectories(data, Shape(1, 2, 1), 4), laws, fixed)
    assert float(values[1] - values[0]) == pytest.approx(2 * math.log(2), abs=1e-6)


def test_the_price_of_a_factor_is_foreseen() -> None:
    t, u = hunters(0)
    data = read(t, u, "fit", None, None, None, 2).scaled()
    X, Y = data.size.tolist()
    rates = numbers(1.3, -0.7 * Y, 0, 0, 0.35 * X, -0.9) * 12
    x = torch.cat([numbers(1, 0.01, 1, 1, 0, 1), rates, data.values[0, 0]])
    free = x != 0
    free[[0, 2, 3, 5]] = False
    law = Law(Trajectories(data, Shape(3, 2, 1), 4), x, free).refitted()
    matrix, change = covariance(law, law.information()), ((1,), 0.0)
    ((_, price),) = _plan(law, [change], matrix)
    (shorter,) = changed([(law, [change], matrix)])
    fall = shorter.refitted().criterion() - law.criterion()
    assert price == pytest.approx(fall, abs=0.3)


# ---- nodes ---------------------------------------------------------------------------------------


def test_nodes_of_equal_distances_where_the_samples_lie_on_some() -> None:
    grid = torch.linspace(0, 10, 31, dtype=torch.float64)
    index = [0, 1, 2, 5, 6, 8, 9, 13, 14, 20, 21, 22, 24, 29, 30]
    (nodes,) = _nodes([grid[index].flip(0)])
    torch.testing.assert_close(nodes, grid, rtol=1e-12, atol=0)
    assert bool(torch.isin(grid[index], nodes).all())
    short, long = _nodes([grid[:9], grid[index]])
    assert [len(short), len(long)] == [9, 31]


@pytest.mark.parametrize(
    "change",
    [[0, 1, 10, 20, 30], [0, 1, 1, 2, 3, 4]],
    ids=["too many", "twice at one time"],
)
def test_samples_without_nodes_of_equal_distances(change: list[int]) -> None:
    times = torch.linspace(0, 10, 31, dtype=torch.float64)[change]
    (nodes,) = _nodes([times])
    gaps = nodes.diff()
    assert float(gaps.max() - gaps.min()) > 0.1
    assert bool(torch.isin(times, nodes).all())
