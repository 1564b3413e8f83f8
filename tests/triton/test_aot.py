"""Neural Power Unit, a layer: every kernel and shipped configuration compiles, in budget, for absent GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import aot, aot_report

pytest.importorskip("triton")

ROW: dict[str, Any] = {
    "target": "sm_90",
    "spill_bytes": 0,
    "registers": 200,
    "shared_bytes": 1000,
    "instructions": 1000,
    "stores": 8,
    "passes": 6,
    "tensor_core": {"HGMMA": 12},
}


def _run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | variables
    command = [sys.executable, "-m", "benchmarks.aot", *arguments]
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)


def test_budgets(tmp_path: Path) -> None:
    """The whole table: sm_80, sm_90, sm_100 and gfx942.

    ``AOT_TABLE`` names a file that keeps it; with ``AOT_QUICK=1`` only the smallest and the largest NPU and the iNALUs
    that take the most registers are compiled.
    """
    path = Path(os.environ.get("AOT_TABLE") or tmp_path / "table.json")
    quick = os.environ.get("AOT_QUICK") == "1"
    run = _run("--table", str(path), *(["--quick"] if quick else []))
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads(path.read_text())["rows"]
    kernels = {"npu_forward", "npu_backward_x", "npu_backward_w", "npu_small_forward", "npu_small_backward"}
    kernels |= {"nmu_forward", "nmu_backward", "sum_partials", "nalu_forward", "nalu_backward_x", "nalu_backward_w"}
    kernels |= {"ode_forward", "ode_backward"}
    for target in aot.TARGETS:
        found = {row["kernel"] for row in rows if row["target"] == target}
        assert {"npu_forward", "npu_small_backward", "nalu_backward_w"} <= found if quick else found == kernels


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"spill_bytes": 8}, "spills 8 bytes"),
        ({"registers": 256}, "256 registers, limit 255"),
        ({"shared_bytes": 232449}, "232449 bytes of shared memory, limit 232448"),
        ({"instructions": 16, "stores": 0}, "empty: 16 instructions, 0 stores"),
        ({"tensor_core": {}}, "no tensor-core instruction"),
        ({"tensor_core": {}, "passes": 0}, None),
        ({"target": "sm_80", "shared_bytes": 101377}, "101377 bytes of shared memory, limit 101376"),
    ],
)
def test_faults_are_found(change: dict[str, Any], fault: str | None) -> None:
    found = aot.faults(ROW | {"tensor_core": {"HMMA": 1, "HGMMA": 1}} | change)
    assert found == ([] if fault is None else [fault])


def test_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every row and its faults are in the document; the committed one is of the tables in use."""
    complete = ROW | {"kernel": "npu_forward", "case": "large", "tile": "64x64x16", "warps": 8, "stages": 2}
    rows = [complete | {"faults": []}, {"target": "sm_80", "case": "c", "faults": ["does not compile"]}]
    rows.append(complete | {"target": "sm_80", "registers": 256, "faults": ["256 registers, limit 255"]})
    (tmp_path / "t.json").write_text(json.dumps({"triton": "9.9", "rows": rows}))
    assert aot_report.main([str(tmp_path / "t.json"), "--out", str(tmp_path / "t.md")]) == 0
    text = (tmp_path / "t.md").read_text()
    assert "| 9.9 | sm_90 | 1 | 200 to 200 | 1000 to 1000 | 1000 to 1000 | 0 | 0 |" in text
    assert "| 9.9 | sm_80 | 1 | 256 to 256 | 1000 to 1000 | 1000 to 1000 | 0 | 2 |" in text
    assert "| npu_forward | large | 64x64x16 | 6 | 8 | 2 | 200 | 0 | 1000 | 1000 | 12 HGMMA |" in text
    assert "**256 registers, limit 255**" in text
    assert "**does not compile**" in text
    assert aot_report.main([str(tmp_path / "absent.json")]) == 1
    assert "aot_report: FileNotFoundError" in capsys.readouterr().err


def test_an_interpreting_process_is_refused() -> None:
    run = _run("--target", "sm_90", "--quick", TRITON_INTERPRET="1")
    assert run.returncode != 0
    assert "kernels cannot be compiled in a process with TRITON_INTERPRET=1" in run.stderr
