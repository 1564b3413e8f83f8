"""The field's single-module benchmark: data, thresholds, schedules, resuming, the report."""

import math
from typing import Any

import pytest
import torch

from benchmarks.paper import tables
from benchmarks.paper.runner import Batch
from benchmarks.paper.single_module import plan
from benchmarks.paper.single_module import task as single_module
from benchmarks.paper.single_module.task import OPERATIONS, RANGES, RECIPES, Data, SingleModule
from npu_kernels.training import project_

CPU = torch.device("cpu")


def batch(recipe: str, unit: str, op: str, seeds: int = 1, steps: int = 20) -> Batch:
    batches = plan.batches(recipe, seeds, steps, "cpu", [unit])
    return next(batch for batch in batches if batch.settings["op"] == op)


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
