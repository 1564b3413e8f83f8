"""The pictures are made from committed files alone, in every format, or say why not."""

import shutil
from pathlib import Path

import pytest

from benchmarks import overview
from benchmarks.paper import fsir, fsir_equation, large, pictures, single_module
from benchmarks.paper.__main__ import main
from benchmarks.paper.registry import TABLES

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
ROWS = sorted(RESULTS.glob("throughput-*.jsonl"))
pytest.importorskip("matplotlib", reason="matplotlib is not installed")


def test_every_committed_table_with_a_picture_has_the_files_that_it_is_drawn_from(
    tmp_path, monkeypatch
):
    """Nothing but the folder is read; drawing itself is left out, it takes seconds."""
    drawn = []
    for room in (large, fsir, fsir_equation, single_module):
        monkeypatch.setattr(room.picture, "save", lambda drawing, path: drawn.append(path.name))
    for name in ("large", "fsir", "fsir-rk4", "fsir-equation", "single-module"):
        table = TABLES[name]
        assert pictures.draw(
            table, RESULTS / "paper", "svg"
        ) == RESULTS / "paper" / table.picture_file("svg")
    assert drawn == [
        "pareto.svg",
        "fsir.svg",
        "fsir_rk4.svg",
        "fsir_equation.svg",
        "single_module.svg",
    ]
    assert pictures.draw(TABLES["fitted"], RESULTS / "paper") is None  # it has none
    assert pictures.draw(TABLES["large"], tmp_path) is None  # no table


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_report_draws_anew_in_the_format_asked_for(suffix, start, tmp_path, capsys):
    shutil.copy(RESULTS / "paper" / "fsir_equation.csv", tmp_path)
    shutil.copy(RESULTS / "paper" / "fsir_equation_models.json", tmp_path)
    assert main(["report", "--out", str(tmp_path), "--format", suffix]) == 0
    assert (tmp_path / f"fsir_equation.{suffix}").read_bytes().startswith(start)
    assert f"](fsir_equation.{suffix})" in (tmp_path / "report.md").read_text()


def test_overview(tmp_path, capsys, monkeypatch):
    picture = tmp_path / "overview.png"
    words = [*map(str, ROWS), "--out", str(picture)]
    labels = []

    def save(drawing, path):
        labels.extend(label.get_text() for label in drawing.axes[2].get_yticklabels())
        drawing.savefig(path)

    monkeypatch.setattr(overview, "save", save)
    assert overview.main([*words, "--processor", "AMD Zen 5"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "training step,\nNPU and NAU, 100 rows, 20 models" in labels
    assert "100 training steps,\nNPU and NAU, 100 rows" in labels
    assert "forward and backward,\nNPU 6 → 2, 100 rows, 1000 models" in labels
    assert overview.main([*words, "--processor", "Abacus 3"]) == 1
    assert "overview: --processor must name one of: AMD Zen 4, AMD Zen 5" in capsys.readouterr().err
