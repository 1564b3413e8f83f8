"""The large task at its last steps: points, snapshots, the order of the work, the verdicts."""

from typing import Any

import pytest
import torch

from benchmarks.paper.large import snapshots
from benchmarks.paper.large import task as large
from benchmarks.paper.runner import Batch
from benchmarks.paper.streams import Sobol


def batch(model: str, runs: list[tuple[str, int]], steps: int, **settings: Any) -> Batch:
    keys = [
        {"task": t, "seed": s, "steps": steps, "beta_start": large.TASKS[t].beta_start}
        for t, s in runs
    ]
    common = {
        "model": model, "device": "cpu", "points": "own", "gate": None, "snapshots": 3,
    }  # fmt: skip
    return large.batch_of("large-snapshots", "test", {**common, **settings}, keys)


def finished(batch: Batch) -> list[dict[str, Any]]:
    training = batch.make(batch)
    training.advance(training.total)
    return training.results()[0]


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
