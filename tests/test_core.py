"""The C++ core's own tests, built without torch and run on every instruction set that this processor has."""

import re
import subprocess
from pathlib import Path

import pytest

from npu_kernels.backends import cpu
from tests.building import ROOT, cmake_configure, needs_compiler


@needs_compiler
@pytest.mark.parametrize("sanitizers", ["", "address,undefined"])
def test_core(tmp_path: Path, sanitizers: str) -> None:
    cmake_configure(tmp_path, "-DNPU_KERNELS_TESTS=ON", f"-DNPU_KERNELS_SANITIZE={sanitizers}")
    subprocess.run(["ninja", "-C", str(tmp_path)], check=True, cwd=ROOT)
    run = subprocess.run(["ctest", "--test-dir", str(tmp_path), "--output-on-failure"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert "kernels_baseline" in run.stdout
    if cpu.available()[0] and "avx512_bf16" in cpu.supported_isas():
        # The emulator needs no more than this to run AMX's kernels.
        assert re.search(r"kernels_tiles_avx512_bf16 \.+ +Passed", run.stdout)
        assert not re.search(r"kernels_tiles\w+ \.+\*+Skipped", run.stdout)
