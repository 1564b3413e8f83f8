"""The stages of `fit`: what each of them does."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NALU, NAU, NPU, RealNPU, fit
from npu_kernels.fitting import FitJob
from npu_kernels.fitting._choice import Pool
from npu_kernels.fitting._population import Population
from tests.support.fits import SHORT, hard, parameters, rows

POWER, LINEAR = 1, 2  # kinds of parameters


def searching(run: FitJob) -> dict[str, Any]:
    """What a fit that is in its search would save of it; its tensors are the run's own."""
    state: dict[str, Any] = run.state()["search"]
    return state


# ---- stages --------------------------------------------------------------------------------------


def test_starts_are_left_behind() -> None:
    x, y = hard()
    run = FitJob(
        RealNPU(2, 1, num_models=20), x[None], y[None], [0], replace(SHORT, finalists=(3, 2))
    )
    alive = []
    while run.done < run.total:
        alive.append(run.alive)
        run.advance(1)
    assert alive[0] == 20
    assert alive[20] == 10
    assert alive[30] == 3
    result = run.result()
    assert run.alive == 0
    assert torch.bincount(result.n_stages[0]).tolist() == [0, 10, 7, 1, 0, 2]
    assert result.init_losses.isfinite().all()
    # 72 training rows, batches of 64; then 32 rows in refine, of models that may end before.
    searched = 64 * (20 * 20 + 10 * 10)
    settled = 2 * 3 * 2 * 6 * 64
    assert searched < result.n_rows[0] <= searched + 3 * 12 * 32 + settled
    assert [entry["stage"] for entry in result.history] == [1, 2, 3, 4, 5]


def test_stages_without_rounds_are_gone_through() -> None:
    x, y = hard()
    result = fit(RealNPU(2, 1, num_models=4), x, y, recipe=replace(SHORT, refine=0, settle=0))
    assert result.complete
    assert "powers" in {candidate.kind for candidate in result.candidates}


def test_starts_that_overflow_are_retired() -> None:
    x, y = hard()
    recipe = replace(SHORT, wide=(2.0, 2000.0), weight_bound=2000.0)
    result = fit(RealNPU(2, 1, num_models=12), 20 * x, 400 * y, recipe=recipe)
    finite = result.init_losses.isfinite()
    assert finite[::2].all()
    assert not finite[1::2].all()
    assert (result.n_stages[~finite] == 1).all()
    assert result.loss < 1
    x = 10 ** rows(-3, 3, 90)
    lost = fit(
        RealNPU(2, 1, num_models=2), x, y, recipe=replace(recipe, wide=(1e6,), weight_bound=1e6)
    )
    assert lost.loss == float("inf")
    assert lost.chosen.kind == "none"
    assert lost.complete


@pytest.mark.parametrize(
    ("done", "low", "high"), [(0, 0.99, 1.01), (19, 0, 0.05), (20, 0.2, 0.3), (28, 0, 0.1)]
)
def test_the_rate_falls_in_a_stretch_and_from_one_to_the_next(
    done: int, low: float, high: float
) -> None:
    """The step of Adam without moments: the first is as long as the rate, later ones half of it."""
    x, y = hard()
    run = FitJob(RealNPU(2, 1, num_models=4), x[None], y[None], [0], SHORT)
    run.advance(done)
    state = run.state()
    for name in ("moments", "squares"):
        state["search"][name] = [torch.zeros_like(t) for t in state["search"][name]]
    state["search"]["tensors"] = before = [t.clone() for t in state["search"]["tensors"]]
    run.restore(state)
    run.advance(1)
    pairs = zip(searching(run)["tensors"], before, strict=True)
    moved = max(float((t - old).abs().max()) for t, old in pairs)
    assert low < moved / SHORT.lr < high


@pytest.mark.parametrize("fused", [True, False])
def test_a_gradient_that_is_not_finite_makes_no_step(fused: bool) -> None:
    x, y = hard()
    model = RealNPU(2, 1, num_models=3)
    if not fused:
        model.register_forward_hook(lambda *_: None)
    run = FitJob(model, x[None], y[None], [0], SHORT)
    state = run.state()
    state["search"]["tensors"][0][0] = 1e4  # its power is infinite
    run.restore(state)
    run.advance(1)
    for moment, square in zip(*(searching(run)[n] for n in ("moments", "squares")), strict=True):
        assert torch.count_nonzero(moment[0]) == torch.count_nonzero(square[0]) == 0
        assert torch.count_nonzero(moment[1:]) > 0


@pytest.mark.parametrize("problems", [1, 3])
def test_steps_do_not_depend_on_how_many_are_made_at_once(problems: int) -> None:
    """The same bits in one call of C++ and in several; nearly those of autograd, one by one."""
    x, y = (t.expand(problems, -1, -1).contiguous() for t in hard())
    x = x * torch.linspace(1, 2, problems).view(-1, 1, 1)
    results = []
    models = 4 * problems
    for calls in ("at once", "in parts", "one by one"):
        model = nn.Sequential(
            NPU(2, 3, num_models=models), NAU(3, 1, num_models=models, clip=False)
        )
        if calls == "one by one":
            model.register_forward_hook(lambda *_: None)
        run = FitJob(
            model, x, y, list(range(problems)), replace(SHORT, rungs=((100, 1.0), (10, 0.5)))
        )
        for part in (90,) if calls == "at once" else (3, 80, 7):
            run.advance(part)
        assert run.done == searching(run)["step"] == 90
        results.append(torch.cat([t.flatten() for t in searching(run)["tensors"]]))
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(results[0], results[2], rtol=1e-3, atol=1e-3)


def test_projection() -> None:
    x, y = hard()
    model = nn.Sequential(NPU(2, 3, num_models=5), NAU(3, 1, num_models=5))
    run = FitJob(model, x[None], y[None], [0], replace(SHORT, weight_bound=1.5, lr=1.0))
    run.advance(10)
    re, im, gate, nau = searching(run)["tensors"]
    assert re.abs().max() <= 1.5
    assert im.abs().max() <= 1.5
    assert gate.min() >= 0
    assert gate.max() <= 1
    assert nau.abs().max() <= 1


def test_a_deep_power_unit_starts_with_some_of_its_inputs() -> None:
    """The others have gate and weight 0, which have no gradient: they never move."""
    x, y = hard()
    model = nn.Sequential(NAU(2, 6, num_models=8), NPU(6, 2, num_models=8), NAU(2, 1, num_models=8))
    recipe = replace(SHORT, hidden=(2, 1, 0, 4), wide=(1.0,), imaginary=(1.0,))
    run = FitJob(model, x[None], y[None], [0], recipe)
    _, re, im, gate, _ = before = [t.clone() for t in searching(run)["tensors"]]
    assert gate.sum(1).tolist() == [2, 1, 6, 4] * 2
    run.advance(10)
    used = gate.bool()
    after = searching(run)["tensors"]
    for power, start in zip(after[1:3], (re, im), strict=True):
        mask = used.unsqueeze(1).expand_as(power)
        assert (power[~mask] == 0).all()
        assert (power[mask] != 0).all()
        assert (power[mask] != start[mask]).all()
    assert (after[3][~used] == 0).all()
    assert not torch.equal(after[0], before[0])


def test_what_is_rounded() -> None:
    """Gates and powers, and no parameter of a NALU; any error is allowed here."""
    x, y = hard()
    options: dict[str, Any] = {"num_models": 6}
    model = nn.Sequential(NPU(2, 1, **options), NAU(1, 1, **options), NALU(1, 1, **options))
    result = fit(model, x, y, recipe=replace(SHORT, slack=1e9))
    assert result.chosen.kind == "rounded"
    denominator = result.chosen.denominator
    re, im, gate, nau, *free = parameters(result.model)
    for tensor in (re, im, nau):
        torch.testing.assert_close(tensor * denominator, (tensor * denominator).round())
    assert set(gate.unique().tolist()) <= {0, 1}
    assert all((t * denominator != (t * denominator).round()).all() for t in free)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda.is_available() is false")
def test_on_a_gpu() -> None:
    x = rows(-2, -1).cuda()
    result = fit(RealNPU(2, 1, num_models=64, device="cuda"), x, x[:, :1] * x[:, 1:])
    assert parameters(result.model)[0].tolist() == [[1, 1]]
    assert result.model(x).is_cuda


def test_held_parameters_stay() -> None:
    """The gates, which the search has rounded."""
    x, y = hard()
    model = nn.Sequential(RealNPU(2, 3, num_models=4), NAU(3, 1, num_models=4))
    run = FitJob(model, x[None], y[None], [0], SHORT)
    run.advance(30)
    start = run.state()["refinement"]["start"].clone()
    run.advance(11)
    moved = (run.state()["refinement"]["solver"]["x"] != start).any(0)
    gates = slice(6, 8)  # after six powers
    assert not moved[gates].any()
    assert moved[:6].any()
    assert set(start[:, gates].unique().tolist()) <= {0.0, 1.0}


def test_powers_stay_within_their_bound_when_they_are_refined() -> None:
    x = rows(0.5, 1.5)[:, :1].double()
    result = fit(RealNPU(1, 1, num_models=4).double(), x, x**9, recipe=replace(SHORT, refine=60))
    assert parameters(result.model)[0].tolist() == [[SHORT.weight_bound]]


@pytest.mark.parametrize(
    ("score", "slack", "spread", "fitted", "simple"),
    [
        (1.015, 0.02, 0.0, 1.4, True),  # within the slack
        (1.015, 0.0, 0.0, 1.4, False),
        (1.1, 0.0, 1.0, 1.4, True),  # within two standard errors of the difference, .2
        (1.1, 0.0, 0.1, 1.4, False),
        (1.4, 0.0, 0.0, 1.0, True),  # by the Bayesian information criterion
        (1.4, 0.0, 0.0, 1.02, False),
        (1.6, 0.0, 0.0, 1.0, False),  # more than 1.5 times as bad is never chosen
        (1.0, 0.02, 1.0, 1.6, False),  # nor is it where the training rows say so
        (0.7, 0.02, 1.0, 1.6, False),
        (1.4, 0.0, 0.0, 0.6, True),  # then the other one may be any number of times as bad
    ],
)
def test_the_simplest_of_those_that_are_about_as_good(
    score: float, slack: float, spread: float, fitted: float, simple: bool
) -> None:
    """The best model has two free numbers and the error 1; the simple one has one rounded number.

    spread: the standard deviation of the difference of their errors over 100 held-out rows. fitted:
    the simple one's error on 1,000 training rows, in which the best one's is 1.
    """
    pool = Pool.empty(torch.tensor([POWER, LINEAR]))
    best, other = torch.tensor([[1.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    for flat, kind, denominator, value in ((best, "raw", 0, 1.0), (other, "rounded", 1, score)):
        error, zero = torch.tensor([value], dtype=torch.float64), torch.tensor([0])
        pool = pool.add(Population(flat[None], zero, zero), kind, denominator, error, error, 5)
    alternating = torch.tensor([-1.0, 1.0], dtype=torch.float64).repeat(50)

    def losses(flat: Tensor, problem: int) -> Tensor:
        return torch.stack([1.0 + spread * (p[0] == 2) * alternating for p in flat])

    def training(flat: Tensor, problem: int) -> Tensor:
        return torch.stack(
            [torch.full((1000,), fitted if p[0] == 2 else 1.0).double() for p in flat]
        )

    parameters, (candidate,) = pool.choose(1, 1e-12, slack, losses, training)
    assert candidate.kind == ("rounded" if simple else "raw")
    assert parameters[0].tolist() == (other if simple else best).tolist()


@pytest.mark.parametrize(
    ("models", "rows", "chosen"),
    [
        # the least score is luck: the next one's is that to which the simple one is compared
        ([([1, 1], "raw", 1.0, 1.0), ([1, 2], "raw", 1.4, 0.6), ([2, 0], "rounded", 1.42, 0.61)], 1000, 2),
        # of four training rows two free numbers explain more than one rounded number
        ([([1, 1], "raw", 1.0, 1.0), ([2, 0], "rounded", 1.01, 1.6)], 4, 1),
        ([([1, 1], "raw", 1.0, 1.0), ([2, 0], "rounded", 1.01, 1.6)], 1000, 0),
    ],
)  # fmt: skip
def test_training_rows_speak_against_a_model(
    models: list[tuple[list[int], str, float, float]], rows: int, chosen: int
) -> None:
    """Each model has its parameters, kind, held-out error, and error on the training rows."""
    pool = Pool.empty(torch.tensor([POWER, LINEAR]))
    flats = torch.tensor([flat for flat, *_ in models], dtype=torch.float64)
    zero = torch.tensor([0])
    for flat, (_, kind, score, _) in zip(flats, models, strict=True):
        error = torch.tensor([score], dtype=torch.float64)
        pool = pool.add(
            Population(flat[None], zero, zero), kind, int(kind == "rounded"), error, error, 5
        )

    def errors(flat: Tensor, column: int, count: int) -> Tensor:
        values = [models[flats.tolist().index(one)][column] for one in flat.tolist()]
        return torch.tensor(values, dtype=torch.float64).unsqueeze(1).expand(-1, count)

    parameters, _ = pool.choose(
        1, 1e-12, 0.02, lambda flat, _: errors(flat, 2, 100), lambda flat, _: errors(flat, 3, rows)
    )
    assert parameters[0].tolist() == models[chosen][0]
