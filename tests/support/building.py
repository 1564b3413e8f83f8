"""What the tests that build something share."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

needs_compiler = pytest.mark.skipif(
    not (
        shutil.which("cmake")
        and shutil.which("ninja")
        and (shutil.which("c++") or shutil.which("g++"))
    ),
    reason="needs cmake, ninja and a C++ compiler on the PATH",
)


@contextlib.contextmanager
def one_process_at_a_time(folder: Path) -> Iterator[None]:
    """Lock what processes of tests share: pytest 9.2 ignores the groups of `xdist_group`."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cmake_configure(build: Path, *options: str) -> None:
    subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *options], check=True
    )


def run_core_tests(build: Path) -> str:
    """The C++ core's tests of that build have to pass; what ctest and they say."""
    command = ["ctest", "--test-dir", str(build), "-j2", "--output-on-failure"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    said = run.stdout + (build / "Testing" / "Temporary" / "LastTest.log").read_text()
    assert said.count("\nbaseline: tested\n") == 3  # layers, and loops of fixed and adaptive steps
    return said


def run_python(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with the warnings that a user would see."""
    # No build of another tree in the one that `make` keeps.
    environment = {
        **os.environ,
        "PYTHONWARNINGS": "default",
        "NPU_KERNELS_BUILD": "",
        **(env or {}),
    }
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=cwd
    )
