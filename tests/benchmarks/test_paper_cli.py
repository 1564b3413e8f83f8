"""The paper's experiments from the command line: what is wrong is named before any work."""

from pathlib import Path

import pytest

from benchmarks.paper import report, tables
from benchmarks.paper.__main__ import main
from benchmarks.paper.simple import task as simple


def test_simple_quick_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simple, "QUICK_STEPS", 20)
    assert main(["simple", "--quick", "--seeds", "2", "--out", str(tmp_path), "--jobs", "1"]) == 0
    _, rows = tables.read(tmp_path / "simple.csv")
    assert list(rows[0]) == list(simple.COLUMNS)
    assert len(rows) == 2 * len(simple.RECIPES)
    assert "seed 1" in capsys.readouterr().out
    text = (tmp_path / "report.md").read_text()
    assert "### Verdict\n\nNone" in text  # a quick run is not asked for the paper's numbers

    readme = tmp_path / "README.md"
    readme.write_text(
        "before\n<!-- paper-simple:begin -->\nold\n<!-- paper-simple:end -->\nafter\n<!-- "
        "paper-large:begin -->\n"
    )
    guide = tmp_path / "guide.md"
    guide.write_text("<!-- paper-simple-guide:begin -->\nold\n<!-- paper-simple-guide:end -->\n")
    assert main(["report", "--out", str(tmp_path), "--insert", str(readme), str(guide)]) == 0
    assert guide.read_text().startswith("<!-- paper-simple-guide:begin -->\n| median error")
    assert "old" not in guide.read_text()
    inserted = readme.read_text()
    assert inserted.startswith("before\n<!-- paper-simple:begin -->\n| task | model |")
    assert "old" not in inserted
    assert inserted.endswith("<!-- paper-simple:end -->\nafter\n<!-- paper-large:begin -->\n")
    readme.write_text("<!-- paper-simple:begin -->\n")  # without its end
    assert main(["report", "--out", str(tmp_path), "--insert", str(readme)]) == 1
    assert (
        f"benchmarks.paper: {readme} needs <!-- paper-simple:begin -->" in capsys.readouterr().err
    )


def test_one_model_of_the_simple_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands on parts fill one table, and nobody is asked for the paper's numbers by it."""
    monkeypatch.setattr(simple, "QUICK_STEPS", 5)
    common = ["--quick", "--seeds", "1", "--out", str(tmp_path), "--jobs", "1"]
    for unit in ("RealNPU", "NPU"):
        assert main(["simple", "--units", unit, *common]) == 0
    comments, rows = tables.read(tmp_path / "simple.csv")
    assert [row["model"] for row in rows] == ["NPU", "RealNPU"]
    assert comments[0] == "simple, only NPU, quick: few steps"
    assert not report.is_full([comments[0].replace(", quick: few steps", "")])
    assert "| ÷ | NPU |" in (tmp_path / "report.md").read_text()
