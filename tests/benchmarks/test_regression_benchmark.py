"""The benchmark behind the page on when not to use the layer: rows, tables, pictures."""

import json

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
from benchmarks import regression
from benchmarks.marked_blocks import insert
from tests.support.examples import ROOT

LINE = "y = 2 x0 + 1, 60 rows"


@pytest.fixture
def small(monkeypatch):
    """One table, two methods, one setting with two values."""
    X = np.random.default_rng(0).uniform(1, 2, (60, 2))
    monkeypatch.setattr(regression, "tables", lambda: {LINE: (X, 2 * X[:, 0] + 1)})
    methods = {name: regression.METHODS[name] for name in ("ridge", "MLP")}
    monkeypatch.setattr(regression, "METHODS", methods)
    monkeypatch.setattr(regression, "NETWORK_STEPS", 200)
    usual, label, _ = regression.SETTINGS["rate"]
    monkeypatch.setattr(
        regression, "SETTINGS", {**regression.SETTINGS, "rate": (usual, label, (0.1, 1.0))}
    )


def test_a_run_adds_what_the_file_lacks(small, tmp_path, monkeypatch):
    monkeypatch.setattr(regression, "SETTINGS", {"rate": (0.02, "rate", (0.1, 1.0))})
    monkeypatch.setattr(
        regression, "vary", lambda name, value: {"setting": name, "value": value, "share": 0.5}
    )
    file, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    regression.main(["--out", str(file)])
    rows = regression.read(file)
    assert [row["split"] for row in rows[:6]] == [0, 1, 2, 3, 4, "beyond"]
    assert len(rows) == 2 * 6 + 2
    assert all(row["r2"] > 0.99 for row in rows if row.get("method") == "ridge")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    monkeypatch.setattr(regression, "measure", lambda *key: rows[0])
    regression.main(["--out", str(file)])
    assert regression.read(file) == [*rows[1:], rows[0]]
    page.write_text("".join(f"<!-- {m}:begin -->\n<!-- {m}:end -->\n" for m in regression.MARKS))
    regression.main(["--out", str(file), "--report", str(page), "--pictures", str(tmp_path)])
    assert f"| {LINE} | **1.000** |" in page.read_text()
    assert (tmp_path / "setting-rate.png").read_bytes().startswith(b"\x89PNG")


def test_the_tables_of_the_page_are_those_of_the_rows():
    rows, page = regression.read(regression.OUT), (ROOT / "docs" / "when-not-to-use.md").read_text()
    for mark, kind in regression.MARKS.items():
        assert page == insert(page, regression.table(rows, kind), mark)
