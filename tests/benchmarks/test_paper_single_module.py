"""The field's single-module benchmark: data, thresholds, schedules, resuming, the report."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.paper import tables
from benchmarks.paper.runner import Batch, Work
from benchmarks.paper.single_module import plan
from benchmarks.paper.single_module import report as single_module_report
from benchmarks.paper.single_module import task as single_module
from benchmarks.paper.single_module.task import OPERATIONS, RANGES, RECIPES, Data, SingleModule
from benchmarks.paper.summary import wilson
from npu_kernels.training import project_

CPU = torch.device("cpu")


def batch(recipe: str, unit: str, op: str, seeds: int = 1, steps: int = 20) -> Batch:
    return plan.batches(recipe, seeds, steps, "cpu", [unit], [op])[0]


# ---- data ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPERATIONS)
def test_rows_lie_in_their_range_and_answer_the_operation(op: str) -> None:
    x, y = Data([3, 4], op, CPU)(1)
    expected = {
        "mul": x[..., 0] * x[..., 1],
        "div": x[..., 0] / x[..., 1],
        "add": x.sum(2),
        "sub": x[..., 0] - x[..., 1],
    }
    assert torch.equal(y[..., 0], expected[op])
    for k, bounds in enumerate([*RANGES.values()] * 2):
        low, high = bounds.train
        assert low - 1e-6 <= x[k].min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < x[k].max() <= high + 1e-6


def test_rows_depend_on_seed_and_step_alone() -> None:
    together, single = Data([0, 7], "mul", CPU), Data([7], "mul", CPU)
    steps = 1, 2, single_module.DRAW_BLOCK, single_module.DRAW_BLOCK + 1
    expected = [together(step)[0][len(RANGES) :].clone() for step in steps]
    # a resumed run starts anywhere
    for step, x in reversed(list(zip(steps, expected, strict=True))):
        assert torch.equal(single(step)[0], x)
    assert len({float(x.sum()) for x in expected}) == len(steps)


def test_no_divisor_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The float32 draw 1/2 is the middle of [-2, 2]: about ten times in a batch's training."""
    monkeypatch.setattr(torch, "rand", lambda *size, generator: torch.full(size, 0.5))
    x, y = Data([0], "div", CPU)(1)
    assert 0 < x[list(RANGES).index("[-2,2]")].abs().max() < 1e-6
    assert y.isfinite().all()


def test_test_rows_lie_beyond() -> None:
    validation, test = (single_module.points(kind, CPU) for kind in ("validation", "test"))
    assert validation.shape == test.shape == (9, 10_000, 2)
    for k, bounds in enumerate(RANGES.values()):
        low, high = bounds.train
        assert low <= validation[k].min()
        assert validation[k].max() <= high
        inside = torch.stack([(test[k] >= a) & (test[k] <= b) for a, b in bounds.test])
        assert inside.any(0).all()
        assert (inside.float().mean((1, 2)) > 0.45).all()  # every interval is drawn from
    signs = test[list(RANGES).index("[-2,2]")].sign()
    assert abs(float(signs.prod(1).mean())) < 0.05  # of each input on its own


@pytest.mark.parametrize(
    "row", tables.load("single_module_thresholds"), ids=lambda row: f"{row['op']} {row['range']}"
)
def test_thresholds_are_errors_of_weights_that_are_off(row: dict[str, Any]) -> None:
    """E[(f_off - f)^2] in closed form, of independent inputs uniform in size on one interval."""
    low, high = sorted(abs(end) for end in RANGES[row["range"]].test[-1])
    square = (high**3 - low**3) / (3 * (high - low))
    size, inverse = (low + high) / 2, 1 / (low * high)
    for off in (1e-4, 1e-5):
        expected = {
            "add": off**2 * 2 * (square + size**2),
            "sub": off**2 * 2 * (square + size**2),
            "mul": (1 - (1 - off) ** 2) ** 2 * square**2,
            "div": (1 - (1 - off) / (1 + off)) ** 2 * square * inverse,
        }
        assert row[f"off_{off:.0e}".replace("e-0", "e-")] == pytest.approx(
            expected[row["op"]], rel=1e-4
        )
    assert row["fixed"] == 1e-5


# ---- training ------------------------------------------------------------------------------------


def test_slope_is_the_derivative() -> None:
    w = torch.linspace(-2, 2, 101, dtype=torch.float64).add(1e-3).requires_grad_()
    torch.minimum(w.abs(), (1 - w.abs()).abs()).sum().backward()
    assert torch.equal(single_module.slope(w.detach()), w.grad)


@pytest.mark.parametrize(
    ("recipe", "unit", "op"),
    [("plain", "NPU", "div"), ("fixed", "RealNPU", "mul"), ("plain", "NMU", "mul"),
     ("plain", "NMRU", "div")],
)  # fmt: skip
def test_steps_are_those_of_torch(recipe: str, unit: str, op: str) -> None:
    """Against autograd of the loss with its penalties and torch's Adam."""
    training = SingleModule(batch(recipe, unit, op, steps=40))
    how, models = RECIPES[recipe][unit], len(RANGES)
    twin = how.make(models)
    twin.load_state_dict(training.layer.state_dict())
    optimizer = torch.optim.Adam(twin.parameters(), how.rate)
    data = Data([0], op, CPU)
    for step in range(1, 41):
        x, y = data(step)
        loss = (twin(x) - y).square().mean((1, 2)).sum()
        for p in twin.parameters() if how.l1 else ():
            loss = loss + single_module.l1_beta(step, 40, single_module.L1[op]) * p.abs().sum()
        weight, begin, end = how.penalty
        for p in twin.parameters():
            late = torch.minimum(p.abs(), (1 - p.abs()).abs()).flatten(1).mean(1).sum()
            loss = loss + weight * single_module.ramp(step, 40, begin, end) * late
        optimizer.zero_grad()
        loss.backward()
        if how.norm < math.inf:
            (weight_of_all,) = twin.parameters()
            for k in range(models):
                weight_of_all.grad[k] *= min(
                    1, how.norm / float(weight_of_all.grad[k].norm() + 1e-6)
                )  # type: ignore[index]
        optimizer.step()
        if how.project:
            project_(twin, weight_bound=1.0)
    training.advance(40)
    for mine, theirs in zip(training.buffer.views, twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def test_fixed_starts_small_and_stays_in_its_intervals() -> None:
    training = SingleModule(batch("fixed", "NPU", "div", steps=30))
    weight, gate = training.layer.weight_re, training.layer.gate
    assert isinstance(weight, torch.Tensor)
    assert isinstance(gate, torch.Tensor)
    assert weight.abs().max() <= 0.5
    weight.data.fill_(0.9999)
    gate.data.fill_(0.001)
    training.advance(10)
    assert weight.abs().max() <= 1
    assert gate.min() >= 0
    assert gate.max() <= 1


@pytest.mark.parametrize("unit", single_module.UNITS)
def test_a_run_depends_on_its_seed_alone(unit: str) -> None:
    several, single = (
        SingleModule(batch("plain", unit, "div", seeds=3)),
        SingleModule(batch("plain", unit, "div", seeds=1)),
    )
    several.advance(20)
    single.advance(20)
    assert torch.equal(several.buffer.per_model()[: len(RANGES)], single.buffer.per_model())
    looks = zip(several.snapshots, single.snapshots, strict=True)
    assert all(torch.equal(look[:, : len(RANGES)], other) for look, other in looks)


def exact(op: str) -> nn.Module:
    layer = RECIPES["plain"]["RealNPU"].make(len(RANGES))
    with torch.no_grad():
        layer.weight_re.copy_(torch.tensor([[1.0, 1.0 if op == "mul" else -1.0]]))
        layer.gate.fill_(1)
    return layer


@pytest.mark.parametrize("op", ["mul", "div"])
def test_the_solution_meets_every_threshold(op: str) -> None:
    x = single_module.points("test", CPU)
    a, b = x.double().unbind(-1)
    layer = exact(op)
    errors = single_module.mean_square_error(layer, x, OPERATIONS[op](a, b))  # type: ignore[arg-type]
    for name in single_module.THRESHOLDS:
        limit = single_module.thresholds(name)
        assert all(
            error < limit[op, range_name] for error, range_name in zip(errors, RANGES, strict=True)
        )
    assert torch.equal(single_module.sparsity_error(layer), torch.zeros(len(RANGES)))


def test_results_are_taken_where_the_validation_error_is_least() -> None:
    training = SingleModule(batch("plain", "RealNPU", "div", steps=50))
    looks = torch.ones(51, 3, len(RANGES), dtype=torch.float64)
    # solves, but another step validates better
    looks[3] = torch.tensor([[1e-3], [1e-7], [0.25]])
    looks[5] = torch.tensor([[1e-4], [0.5], [0.125]])
    looks[7] = torch.nan
    training.snapshots = list(looks)
    row = training.results()[0][0]
    assert (row["test_mse"], row["solved"], row["solved_at"], row["sparsity"]) == (0.5, 0, 3, 0.125)


# ---- recipe best ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted() -> tuple[Batch, Work]:
    training = plan.make(fit := batch("best", "RealNPU", "mul"))
    training.advance(training.total)
    return fit, training


def test_best_solves_what_plain_training_does_not(fitted: tuple[Batch, Work]) -> None:
    """A product of negative numbers lies beyond the cosine's barrier; one of nine is by chance."""
    rows = fitted[1].results()[0]
    exact = single_module_report.solves(single_module.THRESHOLDS)
    assert [row["range"] for row in rows] == list(RANGES)
    assert sum(map(exact, rows)) >= 8
    assert all(row["steps"] <= 2 * single_module.STEPS for row in rows)
    assert tuple(rows[0]) == single_module.COLUMNS


# ---- report --------------------------------------------------------------------------------------


def test_wilson_interval() -> None:
    # as R's binom.confint(5, 25, methods = "wilson")
    assert wilson(5, 25) == pytest.approx((0.0886, 0.3913), abs=1e-4)
    assert wilson(0, 25) == pytest.approx((0, 0.1332), abs=1e-4)
    assert wilson(25, 25) == pytest.approx((0.8668, 1), abs=1e-4)
    assert wilson(0, 0) == (0, 1)


def rows(
    recipe: str, unit: str, op: str, solved: dict[str, int], error: float = 1e-7
) -> list[dict[str, Any]]:
    return [
        {
            "unit": unit,
            "op": op,
            "range": name,
            "recipe": recipe,
            "seed": seed,
            "test_mse": error if seed < count else 1.0,
            "solved": int(seed < count),
            "solved_at": 1000 if seed < count else math.nan,
            "sparsity": 1e-4,
            "last_mse": 1.0,
            "steps": 50_000,
            "processor": "One" if unit != "NMRU" else "Another",
        }
        for name, count in solved.items()
        for seed in range(25)
    ]


# ---- command line --------------------------------------------------------------------------------
