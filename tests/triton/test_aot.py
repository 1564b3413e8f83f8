"""Every kernel and shipped configuration compiles, in budget, for absent GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.aot import cases
from tools.aot import compiling as aot

pytest.importorskip("triton")
from npu_kernels._triton import tuning

ROW: dict[str, Any] = {
    "target": "sm_90", "spill_bytes": 0, "registers": 200, "shared_bytes": 1000,
    "instructions": 1000, "stores": 8, "passes": 6, "tensor_core": {"HGMMA": 12},
}  # fmt: skip


def _run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"
    } | variables
    command = [sys.executable, "-m", "tools.aot", *arguments]
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)


ALL = (*aot.TARGETS, *aot.TABLES_OF)
TARGETS = ("sm_90",) if os.environ.get("AOT_QUICK") == "1" else ALL


@pytest.mark.parametrize("target", TARGETS)
def test_budgets(target: str, tmp_path: Path) -> None:
    """Every kernel for sm_90, those with the most products and registers for the other targets with
    tables and for sm_120, the smallest for other chips; all calls are launched.

    ``python -m tools.aot`` compiles all for all, as `make resources` does. With ``AOT_QUICK=1``
    there is sm_90 alone.
    """
    path = tmp_path / "table.json"
    run = _run("--table", str(path), "--quick", "--target", target)
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads(path.read_text())["rows"]
    kernels = {
        "npu_forward",
        "npu_backward_x",
        "npu_backward_w",
        "npu_small_forward",
        "npu_small_backward",
    }
    kernels |= {"nmru_forward", "nmru_backward"}
    kernels |= {
        "nmu_forward",
        "nmu_backward",
        "sum_partials",
        "nalu_forward",
        "nalu_backward_x",
        "nalu_backward_w",
    }
    kernels |= {
        "ode_forward",
        "ode_backward",
        "npu_x_planes",
        "npu_weight_planes",
        "npu_upstream_planes",
    }
    kernels |= {"npu_large_forward", "npu_large_backward_x", "npu_large_backward_w", "npu_repair_x"}
    compiled = {row["kernel"] for row in rows}
    few = {"npu_forward", "npu_backward_w"}
    if target in cases.QUICK:
        few |= {"npu_large_backward_w"}
    elif target in aot.TABLES_OF:
        few = {"npu_small_forward", "npu_small_backward"}
    else:
        few |= {"nalu_backward_w"}
    assert compiled == kernels if target == "sm_90" else few <= compiled


def test_a_configuration_that_no_call_reaches_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"BLOCK_B": 64, "BLOCK_O": 32, "num_warps": 4, "programs": 8}
    monkeypatch.setattr(tuning, "tables_in_use", lambda: {"sm_90": {"npu_forward float32": entry}})
    launched = {"BLOCK_B": 64, "BLOCK_O": 32, "BLOCK_I": 16, "num_warps": 4}
    assert cases._not_reached("sm_90", [("npu_forward", launched)]) == []
    for other in (("npu_backward_x", launched), ("npu_forward", launched | {"num_warps": 8})):
        (row,) = cases._not_reached("sm_90", [other])
        assert row["faults"] == ["no call reached this configuration"]


@pytest.mark.parametrize(("change", "fault"), [
    ({}, None),
    ({"spill_bytes": 8}, "spills 8 bytes"),
    ({"registers": 256}, "256 registers, limit 255"),
    ({"shared_bytes": 232449}, "232449 bytes of shared memory, limit 232448"),
    ({"instructions": 16, "stores": 0}, "empty: 16 instructions, 0 stores"),
    ({"tensor_core": {}}, "no tensor-core instruction"),
    ({"tensor_core": {}, "passes": 0}, None),
    ({"target": "sm_80", "shared_bytes": 101377}, "101377 bytes of shared memory, limit 101376"),
    ({"target": "sm_121", "shared_bytes": 101377}, "101377 bytes of shared memory, limit 101376"),
])  # fmt: skip
def test_faults_are_found(change: dict[str, Any], fault: str | None) -> None:
    faults = aot.faults(ROW | {"tensor_core": {"HMMA": 1, "HGMMA": 1}} | change)
    assert faults == ([] if fault is None else [fault])


def test_an_interpreting_process_is_refused() -> None:
    run = _run("--target", "sm_90", "--quick", TRITON_INTERPRET="1")
    assert run.returncode != 0
    assert "kernels cannot be compiled in a process with TRITON_INTERPRET=1" in run.stderr
