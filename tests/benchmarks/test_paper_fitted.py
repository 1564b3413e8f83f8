"""The paper's arithmetic tasks with `npu_kernels.fit`."""

from pathlib import Path

import pytest
import torch

from benchmarks.paper import report, tables
from benchmarks.paper.__main__ import main
from benchmarks.paper.fitted import report as fitted_report
from benchmarks.paper.fitted import task as fitted
from benchmarks.paper.large import task as large
from benchmarks.paper.simple import task as simple
from npu_kernels.fitting import Recipe


def test_rows_come_from_the_training_range() -> None:
    x, y = fitted.data("simple", "all", 3, "code")
    assert x.shape == (1000, 2)
    assert x.min() >= 0.1
    assert 2.0 < x.max() <= 2.1
    torch.testing.assert_close(y, simple.targets(x))
    assert not torch.equal(x, fitted.data("simple", "all", 4, "code")[0])
    assert fitted.data("simple", "all", 3, "paper")[0].max() <= 2.0
    x, y = fitted.data("large", "div", 3, "code")
    assert x.shape == (4096, 100)
    assert x.min() >= 0
    assert x.max() < 0.5
    torch.testing.assert_close(y[:, 0], 1 / x[:, :50].sum(1))


@pytest.mark.parametrize("task_set", ["simple", "large"])
def test_a_run_continues(task_set: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted, "QUICK_STARTS", 2)
    monkeypatch.setattr(
        fitted, "QUICK", Recipe(rungs=((6, 1.0),), refine=4, settle=2, denominators=(1,))
    )
    batch = next(
        b for b in fitted.batches(1, True, "code", "cpu") if b.settings["task_set"] == task_set
    )
    undisturbed, first, second = (batch.make(batch) for _ in range(3))
    undisturbed.advance(undisturbed.total)
    first.advance(8)
    second.restore(first.state())
    second.advance(second.total)
    assert undisturbed.done == second.done == undisturbed.total
    rows, tensors = undisturbed.results()
    resumed, _ = second.results()
    for row in (*rows, *resumed):
        del row["seconds"]
    assert rows == resumed
    assert [row["task"] for row in rows] == (
        list(simple.TASKS) if task_set == "simple" else ["add"]
    )
    assert {*rows[0], "seconds"} == {*fitted.COLUMNS}
    assert tensors["parameters"].shape == (1, 50 if task_set == "simple" else 100 * 100 + 300)


def test_what_is_wanted() -> None:
    # a tenth of the NMU's 0.005
    assert fitted_report.limit("simple", "mul", "NPU") == pytest.approx(0.0005)
    assert fitted_report.limit("simple", "sqrt", "RealNPU") == pytest.approx(0.0004)
    assert fitted_report.limit("large", "div", "NPU") == pytest.approx(1e-7)
    assert fitted_report.limit("large", "mul", "RealNPU") == pytest.approx(3.09)


def _row(error: float, steps: float) -> dict[str, object]:
    values = ("large", "add", "NPU", 16, 0, error, 1e-15, steps, "rounded", 1, 52, 1.0)
    return dict(zip(fitted.COLUMNS, values, strict=True))


def test_verdict() -> None:
    good, bad = _row(0.01, 9e4), _row(0.2, 2e5)
    assert [check.holds for check in fitted_report.checks([good] * 6)] == [True, True]
    assert [check.holds for check in fitted_report.checks([bad] * 6)] == [False, False]
    # too few for an interval
    assert [check.holds for check in fitted_report.checks([good] * 5)] == [None, None]
    assert [check.holds for check in fitted_report.checks([good] * 5 + [bad])] == [None, None]
    table = fitted_report.section([good, good, bad])
    assert "| large | + | NPU | 16 | ≤ 0.0920 | 0.0100 | 0.200 | 3 of 3 | 90000 | 200000 |" in table
    other = {**bad, "task": "mul", "kind": "free"}
    short = fitted_report.short_table([good, other, {**good, "starts": 128}]).splitlines()
    assert short[0] == "| tasks | layer | starts | + | × |"
    assert short[2:] == [
        "| large | NPU | 16 | 1 of 1 | 0 of 1 |",
        "| large | NPU | 128 | 1 of 1 |  |",
    ]


def test_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted, "QUICK_STARTS", 2)
    monkeypatch.setattr(fitted, "COUNTS", {"simple": 200, "large": 200})
    monkeypatch.setattr(
        fitted, "QUICK", Recipe(rungs=((3, 1.0),), refine=2, settle=1, denominators=(1,))
    )
    monkeypatch.setattr(large, "TEST_POINTS", 100)
    assert main(["fitted", "--quick", "--seeds", "1", "--out", str(tmp_path), "--jobs", "1"]) == 0
    comments, rows = tables.read(tmp_path / "fitted.csv")
    assert len(rows) == 2 * (4 + 4) + 1  # NPU on x twice
    assert list(rows[0]) == list(fitted.COLUMNS)
    assert not report.is_full(comments)
    assert "The arithmetic tasks with `npu_kernels.fit`" in (tmp_path / "report.md").read_text()
