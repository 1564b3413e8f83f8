"""The large task at its last steps: points, snapshots, the order of the work, the verdicts."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.paper import tables
from benchmarks.paper.__main__ import arguments, main
from benchmarks.paper.large import last_steps, report, snapshots
from benchmarks.paper.large import task as large
from benchmarks.paper.large.snapshots import Swing
from benchmarks.paper.runner import Batch, order
from benchmarks.paper.streams import Sobol
from benchmarks.paper.summary import bootstrap, median, quantiles


def batch(model: str, runs: list[tuple[str, int]], steps: int, **settings: Any) -> Batch:
    keys = [
        {"task": t, "seed": s, "steps": steps, "beta_start": large.TASKS[t].beta_start}
        for t, s in runs
    ]
    common = {
        "model": model, "variant": "code", "device": "cpu", "points": "own", "gate": None,
        "snapshots": 3,
    }  # fmt: skip
    return large.batch_of("large-snapshots", "test", {**common, **settings}, keys)


def finished(batch: Batch) -> list[dict[str, Any]]:
    training = batch.make(batch)
    training.advance(training.total)
    return training.results()[0]


def planned(tmp_path: Path, *words: str) -> list[Batch]:
    return snapshots.plan(arguments(["large-snapshots", "--out", str(tmp_path), *words]))


def test_shared_points_are_the_sequence_in_each_tasks_range() -> None:
    data = large.Data(["div", "add"], torch.float32, torch.device("cpu"))
    for step in (1, large.SOBOL_BLOCK + 2):
        x, y = data(step)
        for k, task in enumerate(("div", "add")):
            expected = large.training_points(
                Sobol(100), (step - 1) * large.ROWS, large.ROWS, *large.TASKS[task].train
            )
            assert torch.equal(x[k], expected)
            assert torch.equal(y[k, :, 0], large.TASKS[task].operation(*large.sums(expected)))


def test_own_points_are_the_shared_ones_shifted_by_each_seeds_vector() -> None:
    device, seeds = torch.device("cpu"), [3, 7, 3]
    x, y = large.Data(["sqrt", "sqrt", "add"], torch.float32, device, seeds)(2)
    shared = Sobol(100).points(1 + large.ROWS, large.ROWS)
    for k in range(2):
        expected = 2 * ((shared + large.shift(seeds[k]).double()) % 1)
        off = (x[k] - expected).abs()
        # of the circle: a point may round across its end
        assert torch.minimum(off, 2 - off).max() < 1e-6
        torch.testing.assert_close(y[k, :, 0] ** 2, large.sums(x[k])[0])
    torch.testing.assert_close(x[2], x[0] - 1)  # the same seed's points, in the other range
    columns = [x[k].flatten() - x[k].mean() for k in range(2)]
    assert abs(float(torch.corrcoef(torch.stack(columns))[0, 1])) < 0.05


@pytest.mark.parametrize("points", snapshots.POINTS)
def test_a_run_with_snapshots_is_the_run_without(points: str) -> None:
    """Snapshots change nothing, and the last one is the error after the last step."""
    runs = [("add", 0), ("div", 1)]
    together = finished(batch("RealNPU", runs, 120, points=points, gate=0.5))
    single = [
        finished(batch("RealNPU", [run], 120, points=points, gate=0.5, snapshots=0))[0]
        for run in runs
    ]
    for single_row, other in zip(together, single, strict=True):
        errors = snapshots.errors(single_row)
        assert len(errors) == 3
        assert errors[-1] == pytest.approx(single_row["test_mse"], rel=1e-3)
        assert len(set(errors)) == 3
        assert single_row["test_mse"] == pytest.approx(other["test_mse"], rel=1e-3)
        assert "errors" not in other


def test_snapshots_survive_a_restart() -> None:
    batches = batch("NMU", [("mul", 0)], 110)
    expected = finished(batches)
    first = batches.make(batches)
    first.advance(70)  # past two of three snapshots: of steps 10 and 60
    state = copy.deepcopy(first.state())
    second = batches.make(batches)
    second.restore(state)
    second.advance(40)
    assert second.results()[0] == expected
    assert len(snapshots.errors(expected[0])) == 3


def test_gate_starts_where_the_variant_says() -> None:
    for model, gates in snapshots.GATES.items():
        for gate in gates:
            planned = batch(model, [("add", 0)], 50, gate=gate)
            assert large.make(planned).module[1].gate.unique().tolist() == [gate]
        authors = large.batches([model], 1, 50, "code", "cpu")[0]
        assert large.make(authors).module[1].gate.unique().tolist() == [gates[0]]


def test_every_cell_has_its_first_seed_before_any_has_its_second(tmp_path: Path) -> None:
    batches = order(planned(tmp_path))
    cells = [
        (b.settings["points"], b.settings["model"], b.settings["gate"], run["task"], run["seed"])
        for b in batches
        for run in b.runs
    ]
    assert len(set(cells)) == len(cells)
    firsts = {cell[:4] for cell in cells if cell[4] == 0}
    assert {(points, model, task) for points, model, _, task in firsts} == {
        (points, model, task)
        for points in snapshots.POINTS
        for model in large.MODELS
        for task in large.TASKS
    }
    assert all(cell[4] == 0 for cell in cells[: len(firsts)])
    authors = [cell for cell in cells if cell[:4] == ("own", "NPU", 1.0, "mul")]
    assert [cell[4] for cell in authors] == list(range(10))
    more, fewer = planned(tmp_path, "--seeds", "16"), planned(tmp_path, "--seeds", "6")
    assert {b.name for b in fewer} < {b.name for b in more}  # more seeds later repeat none
    assert {b.settings["points"] for b in planned(tmp_path, "--points", "shared")} == {"shared"}


def test_bootstrap_counts_runs_and_not_snapshots() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(40, 1, generator=generator)
    runs = (centres + 0.01 * torch.randn(40, 41, generator=generator)).tolist()
    drawn = last_steps.pooled_draws(runs)
    assert drawn is not None
    low, high = quantiles(drawn.tolist())
    assert low < median([value for run in runs for value in run]) < high
    # 2 * 1.96 * 1.25 / sqrt(40) = 0.77; by snapshots as if independent it would be 0.12
    assert 0.3 < high - low < 1.3
    assert (low, high) == pytest.approx(bootstrap(last_steps.pooled, runs), abs=0.05)
    assert last_steps.pooled_draws(runs[:5]) is None
    assert set(last_steps.pooled_draws([[1.0, math.inf]] * 6).tolist()) == {1.0}  # type: ignore[union-attr]


def row(task: str, points: str, seed: int, errors: list[float]) -> dict[str, Any]:
    cell = {"task": task, "model": "RealNPU", "gate": 0.5, "points": points, "seed": seed}
    return {**cell, "errors": " ".join(map(str, errors))}


@pytest.mark.parametrize(
    ("factor", "count", "verdict"),
    [(1.0, 10, "no difference"), (100.0, 10, "**ours greater**"), (0.01, 10, "**ours less**"),
     (100.0, 5, "too few")],
)  # fmt: skip
def test_table_names_a_difference_only_where_intervals_lie_apart(
    factor: float, count: int, verdict: str
) -> None:
    published = last_steps.paper_points("add", "RealNPU")
    rows = [
        row("add", "own", n, [factor * published[n], factor * published[n]]) for n in range(count)
    ]
    text = last_steps.full_table([*rows, row("add", "shared", 0, [1.0, math.nan])])
    assert verdict in text
    assert f"| {count}, 1 |" in text


def test_overview_says_where_the_gates_other_start_agrees(tmp_path: Path) -> None:
    published = last_steps.paper_points("add", "RealNPU")
    far = [row("add", "own", n, [100 * published[n]] * 2) for n in range(6)]
    other = [row("add", "own", n, [published[n]] * 2) | {"gate": 1.0} for n in range(6)]
    assert "last steps, own points: 0 of 1 medians do not differ" in report._errors(
        [[], far], tmp_path
    )
    said = report._errors([[], far + other], tmp_path)
    assert said.endswith(
        "1 ours greater (+ RealNPU); + RealNPU does not differ where the gate starts at 1.0"
    )
    assert "starts at" not in report._errors([[], far + far_start(other, 100)], tmp_path)


def far_start(rows: list[dict[str, Any]], factor: float) -> list[dict[str, Any]]:
    return [
        record | {"errors": " ".join(str(factor * float(e)) for e in record["errors"].split())}
        for record in rows
    ]


def test_the_papers_number_is_drawn_again() -> None:
    """Runs that are alike at every step, but swing: the best ten have the errors of one step."""
    rows = [row("add", "shared", n, [0.1, 1.0, 10.0]) for n in range(6)]
    swing = Swing(rows, "add", "RealNPU")
    assert sorted(swing.factors().tolist()) == [0.1, 1.0, 10.0]
    assert swing.best_of(10) == swing.best_of(100) == (0.1, 10.0)
    assert Swing(rows[:5], "add", "RealNPU").best_of(10) is None
    drawn = swing.draws(median, [5.0] * 6)
    assert drawn is not None
    assert set(drawn.round(6).tolist()) == {0.5, 5.0, 50.0}
    assert swing.draws(median, [5.0] * 5) is None
    # Points of its own: each run is at a step of its own, and the best ten of many runs are nearly
    # all at the least.
    independent = Swing(
        [row("add", "own", n, [0.1, 1.0, 10.0]) for n in range(6)], "add", "RealNPU"
    )
    assert independent.best_of(100) == (0.1, 0.1)
    low, high = independent.best_of(10)  # type: ignore[misc]
    assert low <= 1.0 <= high
    text = last_steps.redrawn(rows)
    assert (
        "| + | RealNPU | 0.0635 | 0.100 to 10.0 | 0.100 to 10.0 | 0.100 to 10.0 | **no** |" in text
    )
    assert "as the best 10 of 10, 20, 100" in last_steps.redrawn(
        [row("add", "shared", n, [0.01, 1.0]) for n in range(6)]
    )


def test_command_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "QUICK_STEPS", 51)
    words = ["large-snapshots", "--quick", "--seeds", "1", "--out", str(tmp_path), "--jobs", "1"]
    assert main([*words, "--points", "own"]) == 0
    comments, rows = tables.read(tmp_path / "large_snapshots.csv")
    assert "only own points" in comments[0]
    assert len(rows) == 4 * 7  # five models and two other starts of the gate
    assert {len(snapshots.errors(row)) for row in rows} == {2}
    text = (tmp_path / "report.md").read_text()
    assert "| × | NPU | 0.5 (variant) |" in text
    assert "too few runs" in text
