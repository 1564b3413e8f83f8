"""`python -m benchmarks.paper all`, killed and started again, ends with the same tables."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import gradient_surface, session, tables
from benchmarks.paper.__main__ import ALL, main
from benchmarks.paper.fsir import task as fsir
from benchmarks.paper.large import task as large
from benchmarks.paper.registry import EXPERIMENTS
from benchmarks.paper.simple import task as simple

ROOT = Path(__file__).resolve().parents[2]
SMALL: list[tuple[Any, str, Any]] = [
    (simple, "QUICK_STEPS", 3),
    (large, "QUICK_STEPS", 3),
    (large, "TEST_POINTS", 20),
    (fsir, "QUICK_STEPS", 2),
    (fsir, "QUICK_ITERATIONS", 2),
    (fsir, "QUICK_WIDTHS", (6,)),
    (gradient_surface, "W1", gradient_surface.W1[::10]),
    (session, "available", lambda: False),  # no pictures
]
SCRIPT = """
import os, signal, sys
from benchmarks.paper import runner
from benchmarks.paper.__main__ import main
from tests.benchmarks import test_paper_all as t

for module, name, value in t.SMALL:
    setattr(module, name, value)
save, left = runner.files.save, [int(sys.argv[2])]

def killing(path, content):
    save(path, content)
    if path.name.startswith("large-") and path.suffix == ".checkpoint":
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

runner.files.save = killing
main(t.words(sys.argv[1]))
"""


def words(out: Path | str) -> list[str]:
    return ["all", "--quick", "--seeds", "1", "--jobs", "1", "--out", str(out)]


def contents(out: Path) -> dict[str, Any]:
    """The rows of all tables, and the models beside them."""
    results: dict[str, Any] = {
        path.name: repr(tables.read(path)[1]) for path in sorted(out.glob("*.csv"))
    }
    return results | {
        path.name: json.loads(path.read_text()) for path in sorted(out.glob("*_models.json"))
    }


def test_killed_and_resumed_it_ends_with_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path / "killed"), "4"]
    killed = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list((tmp_path / "killed" / "work").glob("large-*.checkpoint"))
    assert not (tmp_path / "killed" / "fsir.csv").exists()

    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)
    assert main(words(tmp_path / "killed")) == 0
    said = capsys.readouterr().out
    assert "simple: 6 of 6 batches were done before" in said
    assert "large: 6 of 6 batches were done before" not in said
    assert main(words(tmp_path / "whole")) == 0
    results = contents(tmp_path / "killed")
    assert results == contents(tmp_path / "whole")
    expected = {EXPERIMENTS[name].table.file for name in ALL}
    assert {name for name in results if name.endswith(".csv")} == expected
    assert not list((tmp_path / "killed" / "work").glob("*.checkpoint"))
    check_contents(tmp_path / "whole")


def check_contents(out: Path) -> None:
    """Rows, comments, models and sections are those of a quick run of the whole paper."""
    text = (out / "report.md").read_text()
    assert "| × | NPU |" in text
    assert "## Fractional SIR model" in text
    _, rows = tables.read(out / "large.csv")
    assert tuple(rows[0]) == large.COLUMNS
    assert len(rows) == 4 * 5 + 2  # and the NMU's two short schedules
    for name, count in (("fsir", 12), ("fsir_rk4", 8)):
        comments, rows = tables.read(out / f"{name}.csv")
        assert tuple(rows[0]) == fsir.COLUMNS
        assert len(rows) == count
        assert any("of work" in comment for comment in comments)
        models = json.loads((out / f"{name}_models.json").read_text())
        assert len(models["RealNPU"]["parameters"]) == fsir.size("RealNPU", 6)
