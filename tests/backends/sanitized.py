"""The extension under the address and undefined-behaviour sanitizers.

``python -m tests.backends.sanitized [arguments of pytest]`` builds the C++ core's tests, the registered operators and the fast
path with sanitizers into a folder of their own, puts a copy of the package beside them that loads them, and runs the
core's tests and a part of the Python tests there. It fails at the first report of a sanitizer, which ends the process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch

from npu_kernels._backends import cpu, fast_path
from tests.support.building import ROOT, cmake_configure, run_core_tests

SANITIZERS = ("address", "undefined")
NAMES = (
    "fast_path",
    "fast_path_ode",
    "operators",
    "edges",
    "isa",
    "layouts",
    "ode_adaptive_kernel",
    "ode_kernel",
    "optim",
    "rows",
    "training",
    "training_loops",
    "training_plan",
    "training_run",
    "transforms",
)
# No sanitizer sees more in these: they compile, start processes that load no sanitizer, or look at freed memory, which
# the address sanitizer does not hand out again.
WITHOUT = "not (compile or opcheck or environment or another_torch or uninitialized)"
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0",  # an interpreter leaves much behind
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "PYTHONMALLOC": "malloc",  # an allocation of its own for every object, or none would have bounds
}


class Sanitized:
    """A build with sanitizers in `folder`, and the tree of Python files that loads it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "tree"

    def build(self, quick: bool = False) -> None:
        """All instruction sets and the fast path; quick: the baseline, and the fast path as it is installed.

        The installed one then calls kernels that have sanitizers, and has none itself: half of the compile time. A kept
        folder compiles what has changed.
        """
        torch_folder, python = Path(torch.__file__).parent, sysconfig.get_path("include")
        options = ["-DNPU_KERNELS_TESTS=ON", f"-DNPU_KERNELS_SANITIZE={','.join(SANITIZERS)}"]
        options += [
            f"-DTORCH_DIR={torch_folder}",
            f"-DNPU_KERNELS_FAST_PATHS=fast_path|{torch_folder}|{python}",
        ]
        cmake_configure(self.folder, *options, f"-DNPU_KERNELS_ISAS={'baseline' if quick else ''}")
        subprocess.run(
            ["ninja", "-C", str(self.folder), "all", *([] if quick else ["fast_path"])], check=True
        )
        shutil.rmtree(self.tree, ignore_errors=True)
        for name in ("npu_kernels", "tests"):
            shutil.copytree(
                ROOT / name, self.tree / name, ignore=shutil.ignore_patterns("lib", "__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", self.tree)
        library = self.tree / "npu_kernels" / "lib"
        library.mkdir()
        shutil.copy(self.folder / "libnpu_kernels_cpu.so", library / cpu.LIBRARY.name)
        shutil.copy(
            fast_path.LIBRARY if quick else self.folder / "fast_path.so",
            library / fast_path.LIBRARY.name,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python in the tree, with the sanitizers in the process before anything else."""
        compiler = shutil.which("c++") or shutil.which("g++")
        assert compiler
        # libstdc++ for the address sanitizer, which asks for __cxa_throw at once.
        names = ("libasan.so", "libubsan.so", "libstdc++.so")
        found = [
            subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True)
            for name in names
        ]
        environment = {
            **os.environ,
            **ENVIRONMENT,
            "LD_PRELOAD": " ".join(process.stdout.strip() for process in found),
        }
        for name in ("PYTHONPATH", "NPU_KERNELS_BUILD", "NPU_KERNELS_CPU_ISA"):
            environment.pop(name, None)
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.tree,
        )

    def run_tests(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # A report ends the process: pytest must not have taken it, and the last line names the test.
        return self.run(
            "-m", "pytest", "-p", "no:cacheprovider", "--capture=sys", "-x", "-v", *arguments
        )


def main(arguments: list[str]) -> int:
    sanitized = Sanitized(ROOT / "build" / "sanitized")
    sanitized.build()
    run_core_tests(sanitized.folder)
    found = sanitized.run_tests(
        *(arguments or [*(f"tests/test_{name}.py" for name in NAMES), "-k", WITHOUT])
    )
    print(found.stdout[-5000:], found.stderr, sep="\n")
    return found.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
