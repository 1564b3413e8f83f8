"""Runs the tests, and lists at the end what failed in each part.

python -m tests.run                   `make test`: the quick tests of the package and of Triton's kernels
python -m tests.run --all             `make check`: every test, and the quick ones with fewer instructions
python -m tests.run triton avx2       these parts; --all: with their slow tests
Other arguments are those of pytest.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

# Triton decides when it is imported whether it interprets, and then compiles nothing: so its tests
# are processes of their own. The newest Triton has all of them, the oldest those of what
# differs: how kernels compile and are launched.
OLD_TESTS = "version or budgets or standin or (tape and checks)"
OLD_FILES = ("version", "aot", "standin", "tape")
OLD_TRITON = str(next(Path("build").glob("triton-*"), "build"))  # `make check-setup` puts it there
# Other processors' results differ in the last digits: quick tests of results with the libraries held
# down, each with one of two instruction sets.
NUMERICAL = {
    "avx2": [
        *(f"layers/test_{name}.py" for name in ("layers", "edges", "layouts", "nmru", "rows")),
        *(f"training/test_{name}.py" for name in ("training", "training_loops", "training_run")),
        *("training/test_optim.py", "training/test_lbfgs.py", "ode/test_ode_adaptive.py"),
    ],
    "baseline": [
        *(f"operators/test_{name}.py" for name in ("operators", "gradients", "reference")),
        *(f"operators/test_{name}.py" for name in ("functional", "second_derivatives")),
        *("operators/test_second_kernel.py", "formula/test_formula.py", "ode/test_ode_kernel.py"),
    ],
}
MKL = {"avx2": "AVX2", "baseline": "SSE4_2"}
ATEN = {"avx2": "avx2", "baseline": "default"}
ONEDNN = {"avx2": "AVX2", "baseline": "SSE41"}


class Part(NamedTuple):
    """The tests of one process: pytest's arguments and environment, and whether slow ones run."""

    arguments: list[str]
    environment: dict[str, str]
    has_slow: bool = True


def _held_to(instructions: str) -> Part:
    environment = {
        "MKL_ENABLE_INSTRUCTIONS": MKL[instructions],
        "ATEN_CPU_CAPABILITY": ATEN[instructions],
        "ONEDNN_MAX_CPU_ISA": ONEDNN[instructions],
        "NPU_KERNELS_CPU_ISA": instructions,
        # torch's compiler would take what it kept from a run with other instructions.
        "TORCHINDUCTOR_CACHE_DIR": str(Path("build/inductor", instructions).absolute()),
    }
    return Part([f"tests/{file}" for file in NUMERICAL[instructions]], environment, has_slow=False)


PARTS = {
    "package": Part(["--maxprocesses", "8", "--ignore", "tests/triton"], {}),
    # The longest test begins first.
    "triton": Part(["tests/triton/test_standin.py", "tests/triton"], {"TRITON_INTERPRET": "1"}),
    "old triton": Part(
        [*(f"tests/triton/test_{name}.py" for name in OLD_FILES), "-m", "not gpu", "-k", OLD_TESTS],
        {"TRITON_INTERPRET": "1", "AOT_QUICK": "1", "PYTHONPATH": OLD_TRITON},
    ),
    "avx2": _held_to("avx2"),
    "baseline": _held_to("baseline"),
}
QUICK = ("package", "triton")


def run(name: str, arguments: list[str], slow: bool, workers: int) -> tuple[int, list[str]]:
    """Run one part; return its exit status and the lines that name what failed."""
    # A test that hangs ends its worker after a quarter of an hour, and fails.
    part = PARTS[name]
    command = [sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "worksteal"]
    command += ["-o", "faulthandler_timeout=900", "-o", "faulthandler_exit_on_timeout=true"]
    command += [] if slow else ["-m", "not slow"]
    process = subprocess.Popen(
        [*command, *part.arguments, *arguments],
        env={**os.environ, **part.environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    failures = []
    for line in process.stdout:
        print(f"{name}: {line}", end="", flush=True)
        if line.startswith(("FAILED", "ERROR")):
            failures.append(line.rstrip())
    return process.wait(), failures


def main(arguments: list[str]) -> int:
    is_all = "--all" in arguments
    chosen = [name for name in arguments if name in PARTS]
    options = [argument for argument in arguments if argument not in {*chosen, "--all"}]  # pytest's
    names = chosen or list(PARTS if is_all else QUICK)
    # The package's tests, and beside them the other parts one after the other: so no core is idle
    # while a test waits, or while few are left. Not where each part writes the list of slow tests.
    chains = [names]
    if "package" in names and len(names) > 1 and "--measure-slow" not in options:
        chains = [["package"], [name for name in names if name != "package"]]
    cores = os.cpu_count() or 1

    results = dict[str, tuple[int, list[str]]]()

    def run_all(chain: list[str]) -> None:
        for name in chain:
            workers = cores if chain is chains[0] else max(1, cores // 2)
            slow = is_all and PARTS[name].has_slow
            results[name] = run(name, options, slow, workers)

    with ThreadPoolExecutor(len(chains)) as pool:
        list(pool.map(run_all, chains))
    summary, is_good = [], True
    for name in names:
        status, failures = results[name]
        is_empty = status == pytest.ExitCode.NO_TESTS_COLLECTED and bool(options)
        is_good = is_good and (status == 0 or is_empty)
        end = "no such tests" if is_empty else "passed" if status == 0 else f"failed, {status}"
        summary += [f"{name}: {end}"]
        summary += [f"    {line}" for line in failures]
    print("\n".join(["", *summary]))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
