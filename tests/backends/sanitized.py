"""The extension under the address and undefined-behaviour sanitizers.

``python -m tests.backends.sanitized [arguments of pytest]`` builds the C++ core's tests, the
registered operators and the fast path with sanitizers into a separate folder, puts a copy of the
package beside them that loads them, and runs the core's tests and a part of the Python tests there.
It fails at the first report of a sanitizer, which ends the process.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch

from npu_kernels import env
from tests.support.building import ROOT, cmake_configure, run_core_tests

SANITIZERS = ("address", "undefined")
FILES = (
    "tests/backends/test_fast_path.py", "tests/backends/test_isa.py", "tests/layers/test_edges.py",
    "tests/layers/test_layouts.py", "tests/layers/test_rows.py", "tests/ode/test_fast_path_ode.py",
    "tests/ode/test_ode_adaptive_kernel.py", "tests/ode/test_ode_kernel.py",
    "tests/operators/test_torch_features.py", "tests/operators/test_operators.py",
    "tests/operators/test_transforms.py", "tests/training/test_optim.py",
    "tests/training/test_make_step.py", "tests/training/test_training.py",
    "tests/training/test_training_loops.py",
    "tests/training/test_training_obstacles.py",
    "tests/training/test_training_plan.py", "tests/training/test_training_run.py",
)  # fmt: skip
# No sanitizer sees more in these: they compile, start processes that load no sanitizer, or look at
# freed memory, which the address sanitizer does not hand out again.
WITHOUT = "not (compile or opcheck or environment or uninitialized)"
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0",  # an interpreter leaves much behind
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "PYTHONMALLOC": "malloc",  # one allocation for each object, or none would have bounds
}


class Sanitized:
    """A build with sanitizers in `folder`, and the tree of Python files that loads it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree = folder, folder / "tree"

    def build(self, quick: bool = False) -> None:
        """Compile all instruction sets and the fast path; a second call compiles what has changed.

        `quick` compiles the baseline alone, and takes the installed fast path: it has no sanitizer,
        but calls kernels that have them. This halves the time.
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
        facts = env.environment()
        shutil.copy(self.folder / "libnpu_kernels_cpu.so", library)
        name = facts["fast path"]
        installed = Path(facts["cpu library"]).with_name(name)
        shutil.copy(installed if quick else self.folder / "fast_path.so", library / name)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the tree, with the sanitizers loaded before anything else."""
        compiler = shutil.which("c++") or shutil.which("g++")
        assert compiler
        # libstdc++ for the address sanitizer, which asks for __cxa_throw at once.
        names = ("libasan.so", "libubsan.so", "libstdc++.so")
        printed = [
            subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
            for name in names
        ]
        environment = {**os.environ, **ENVIRONMENT, "LD_PRELOAD": " ".join(printed)}
        for name in ("PYTHONPATH", "NPU_KERNELS_BUILD", "NPU_KERNELS_CPU_ISA"):
            environment.pop(name, None)
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True, text=True, env=environment, cwd=self.tree,
        )  # fmt: skip

    def run_tests(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # A report ends the process: pytest must not capture it, and the last line names the test.
        options = ["-p", "no:cacheprovider", "--capture=sys", "-x", "-v"]
        return self.run("-m", "pytest", *options, *arguments)


def main(arguments: list[str]) -> int:
    sanitized = Sanitized(ROOT / "build" / "sanitized")
    sanitized.build()
    run_core_tests(sanitized.folder)
    run = sanitized.run_tests(*(arguments or [*FILES, "-k", WITHOUT]))
    print(run.stdout[-5000:], run.stderr, sep="\n")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
