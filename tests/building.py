"""What the tests that build something share."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

needs_compiler = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("ninja") and (shutil.which("c++") or shutil.which("g++"))),
    reason="needs cmake, ninja and a C++ compiler on the PATH",
)


def cmake_configure(build: Path, *options: str) -> None:
    subprocess.run(["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *options], check=True)


def run_core_tests(build: Path) -> str:
    """The C++ core's tests of that build have to pass; what ctest says."""
    command = ["ctest", "--test-dir", str(build), "-j2", "--output-on-failure"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert "kernels_baseline" in run.stdout
    return run.stdout


def run_python(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with the warnings that a user would see."""
    # No build of another tree in the one that `make` keeps.
    environment = {**os.environ, "PYTHONWARNINGS": "default", "NPU_KERNELS_BUILD": "", **(env or {})}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=cwd)
