"""Neural Power Unit, a layer: every kernel and shipped configuration compiles, in budget, for absent GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import aot

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
    """The whole table: sm_80, sm_90, sm_100 and gfx942. ``AOT_TABLE`` names a file that keeps it."""
    path = Path(os.environ.get("AOT_TABLE") or tmp_path / "table.json")
    run = _run("--table", str(path))
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads(path.read_text())["rows"]
    kernels = {"npu_forward", "npu_backward_x", "npu_backward_w", "npu_small_forward", "npu_small_backward"}
    kernels |= {"nmu_forward", "nmu_backward", "sum_partials"}
    for target in aot.TARGETS:
        assert {row["kernel"] for row in rows if row["target"] == target} == kernels


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


def test_an_interpreting_process_is_refused() -> None:
    run = _run("--target", "sm_90", "--quick", TRITON_INTERPRET="1")
    assert run.returncode != 0
    assert "kernels cannot be compiled in a process with TRITON_INTERPRET=1" in run.stderr
