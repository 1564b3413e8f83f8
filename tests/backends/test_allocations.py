"""Without memory a call says so, nothing crashes, and the next call is right to the bit."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import needs_fast_path, needs_library
from tests.support.building import ROOT, needs_compiler, run_python

pytestmark = [
    needs_library,
    needs_compiler,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="needs LD_PRELOAD and glibc's malloc"
    ),
]


@pytest.fixture(scope="module")
def failing_malloc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("malloc") / "failing_malloc.so"
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler
    flags = [
        "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared",
        "-ftls-model=initial-exec",
    ]  # fmt: skip
    subprocess.run(
        [compiler, *flags, str(ROOT / "csrc/tests/failing_malloc.cpp"), "-o", str(library)],
        check=True,
    )
    return library


@pytest.mark.parametrize("path", [pytest.param("fast", marks=needs_fast_path), "operators"])
def test_every_allocation_fails_in_turn(path: str, failing_malloc: Path) -> None:
    run = run_python(
        "-m", "tests.backends.allocations", path, env={"LD_PRELOAD": str(failing_malloc)}
    )
    assert run.returncode == 0, run.stderr[-3000:]
    cases = [json.loads(line) for line in run.stdout.splitlines()]
    assert not [(case["case"], wrong) for case in cases for wrong in case["wrong"]]
    assert len(cases) > 30
    assert all(case["failures"] > 0 for case in cases)
    # Ours: in every case of the fast path; the operators of NAU, NAC and the loss are torch's.
    assert all(
        case["in_ours"] > 0
        for case in cases
        if path == "fast" or not case["case"].startswith(("nau", "nac", "mse"))
    )
    # Kernels keep their scratch between the steps of a call.
    ours = {case["case"]: case["in_ours"] for case in cases}
    assert ours["training 3 None torch.float32"] == ours["training 12 None torch.float32"]
    if not any(case["in_threads"] for case in cases):
        pytest.skip(
            "nothing but this was wrong: the machine is busy, so the kernels worked in one thread throughout"
        )
