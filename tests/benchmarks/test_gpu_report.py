"""Tables of the rows of a run on a GPU."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu import report
from benchmarks.marked_blocks import insert

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gpus.md"
ROWS = sorted((ROOT / "benchmarks" / "results").glob("gpu-*.jsonl"))


def test_tables_are_those_of_the_results(tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    assert report.main([*map(str, ROWS), "--page", str(copy)]) == 0
    assert copy.read_text() == PAGE.read_text()
    assert all(f"<!-- {mark}:begin -->" in copy.read_text() for mark in report.BLOCKS)


def test_a_table_of_made_up_rows(tmp_path: Path) -> None:
    """A time of ours, and the others' divided by it."""
    common = {"gpu": "A", "torch": "2", "triton": "3", "part": "loops"}
    training = common | {"item": "training 5x2x4", "size": "5x2x4", "optimizer": "adam"}
    rows = [
        training | {"rival": rival, "median_us": us, "ratio": us / 40.0, "begin_ms": 20.0}
        for rival, us in (
            ("ours, CUDA graph", 40.0), ("ours", 400.0), ("eager, CUDA graph", 60.0),
            ("eager", 800.0),
        )
    ]  # fmt: skip
    rollout = common | {"item": "rollout 3x2x2x5", "size": "3x2x2x5"}
    rows += [
        rollout | {"rival": rival, "median_us": us, "ratio": us / 2500.0}
        for rival, us in (("ours", 2500.0), ("eager", 25000.0))
    ]
    assert report.trainings(rows).splitlines()[-1] == (
        "| 5, 2, 4, 1 | Adam | 40 µs | 20 ms | 10.0 | 1.5 | 20.0 |"
    )
    assert report.rollouts(rows).splitlines()[-1] == "| 3, 2, 2, 5 | 2.5 ms | 10 |"
    file, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    empty = "<!-- gpu-rollouts:begin -->\n<!-- gpu-rollouts:end -->\n"
    page.write_text(empty)
    assert report.main([str(file), "--page", str(page)]) == 0
    assert page.read_text() == insert(empty, report.rollouts(rows), "gpu-rollouts")


def test_machines_have_tables_of_their_own() -> None:
    """An item that failed before its last row has no line in them."""
    common = {"torch": "2", "triton": "3", "part": "loops", "item": "rollout 3x2x2x5"}
    common |= {"size": "3x2x2x5"}
    rows = [
        common | {"gpu": gpu, "rival": rival, "median_us": us, "ratio": us / ours}
        for gpu, ours in (("B", 2500.0), ("A", 500.0))
        for rival, us in (("ours", ours), ("eager", 5000.0))
    ]
    table = "| steps, D, h, K | one launch | eager |"
    assert report.rollouts(rows).replace(" --- |", "").splitlines() == [
        "A, torch 2, Triton 3:", "", table, "|", "| 3, 2, 2, 5 | 0.5 ms | 10 |",
        "",
        "B, torch 2, Triton 3:", "", table, "|", "| 3, 2, 2, 5 | 2.5 ms | 2 |",
    ]  # fmt: skip
    incomplete = common | {"gpu": "A", "item": "rollout 4x2x2x5", "rival": "ours"}
    assert report.rollouts([*rows, incomplete]) == report.rollouts(rows)
    assert report.rollouts([incomplete]) == ""


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(tmp_path / "none"), "--page", str(tmp_path / "page")]) == 1
    assert "report: " in capsys.readouterr().err
