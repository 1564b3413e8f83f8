"""The pictures are made from committed files alone, in every format, or say why not."""

import shutil
from pathlib import Path

import pytest

from benchmarks import extrapolation
from benchmarks.paper import fsir, large, report, single_module
from benchmarks.paper.__main__ import main
from benchmarks.paper.registry import TABLES

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def test_every_committed_table_with_a_picture_has_the_files_that_it_is_drawn_from(
    tmp_path, monkeypatch
):
    """Nothing but the folder is read; drawing itself is left out, it takes seconds."""
    drawn = []
    for room in (large, fsir, single_module):
        monkeypatch.setattr(room.report, "save", lambda drawing, path: drawn.append(path.name))
    for name in ("large", "fsir", "fsir-rk4", "single-module"):
        table = TABLES[name]
        assert report.draw(
            table, RESULTS / "paper", "svg"
        ) == RESULTS / "paper" / table.picture_file("svg")
    assert drawn == [
        "pareto.svg",
        "fsir.svg",
        "fsir_rk4.svg",
        "single_module.svg",
    ]
    assert report.draw(TABLES["fitted"], RESULTS / "paper") is None  # it has none
    assert report.draw(TABLES["large"], tmp_path) is None  # no table


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_report_draws_anew_in_the_format_asked_for(suffix, start, tmp_path, capsys):
    shutil.copy(RESULTS / "paper" / "fsir_rk4.csv", tmp_path)
    shutil.copy(RESULTS / "paper" / "fsir_rk4_models.json", tmp_path)
    assert main(["report", "--out", str(tmp_path), "--format", suffix]) == 0
    assert (tmp_path / f"fsir_rk4.{suffix}").read_bytes().startswith(start)
    assert f"](fsir_rk4.{suffix})" in (tmp_path / "report.md").read_text()


def test_extrapolation(tmp_path, monkeypatch):
    picture, titles = tmp_path / "extrapolation.png", []

    def save(drawing, path):
        titles.extend(axis.get_title() for axis in drawing.axes)
        drawing.savefig(path)

    monkeypatch.setattr(extrapolation, "save", save)
    assert extrapolation.main(["--out", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert titles[:2] == ["dense network", "RealNPU, then NAU"]
