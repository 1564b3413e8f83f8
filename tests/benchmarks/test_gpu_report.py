"""Tables of the rows of a run on a GPU."""

from pathlib import Path

import pytest

from benchmarks.gpu import report

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "gpus.md"
ROWS = sorted((ROOT / "benchmarks" / "results").glob("gpu-*.jsonl"))


def test_tables_are_those_of_the_results(tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    assert report.main([*map(str, ROWS), "--page", str(copy)]) == 0
    assert copy.read_text() == PAGE.read_text()
    assert all(f"<!-- {mark}:begin -->" in copy.read_text() for mark in report.BLOCKS)


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([str(tmp_path / "none"), "--page", str(tmp_path / "page")]) == 1
    assert "report: " in capsys.readouterr().err
