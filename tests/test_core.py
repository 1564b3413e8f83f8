"""The C++ core's own tests, built without torch and run on every instruction set that this processor has."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from npu_kernels.backends import cpu
from tests.building import ROOT, cmake_configure, needs_compiler


@needs_compiler
@pytest.mark.parametrize("sanitizers", ["", "address,undefined"])
def test_core(tmp_path: Path, sanitizers: str) -> None:
    kept = os.environ.get("NPU_KERNELS_BUILD")
    build = Path(kept) if kept and not sanitizers else tmp_path
    cmake_configure(build, "-DNPU_KERNELS_TESTS=ON", f"-DNPU_KERNELS_SANITIZE={sanitizers}")
    if build != tmp_path:
        todo = subprocess.run(["ninja", "-C", str(build), "-n"], capture_output=True, text=True, check=True)
        assert "csrc/core" not in todo.stdout  # `make install` compiled the same core there
    subprocess.run(["ninja", "-C", str(build)], check=True, cwd=ROOT)
    ctest = ["ctest", "--test-dir", str(build), "-j2", "--output-on-failure"]
    run = subprocess.run(ctest, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert "kernels_baseline" in run.stdout
    if cpu.available()[0] and "avx512_bf16" in cpu.supported_isas():
        # The emulator needs no more than this to run AMX's kernels.
        assert re.search(r"kernels_tiles_avx512_bf16 \.+ +Passed", run.stdout)
        assert not re.search(r"kernels_tiles\w+ \.+\*+Skipped", run.stdout)
