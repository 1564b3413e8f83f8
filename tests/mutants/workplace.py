"""A copy of the tree in which mutants are built and tested."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import torch

from npu_kernels.env import environment
from tests.mutants.mutant import EXECUTABLES, Mutant
from tests.support.machine import ISAS

TILE_ISAS = ("avx512_bf16", "amx")
NO_TESTS = 5  # pytest's exit code where a selection is empty


class BrokenError(Exception):
    """Neither noticed nor unnoticed: it does not compile, or its tests cannot run."""


def isa_of(mutant: Mutant) -> str:
    """The instruction set that a C++ mutant is compiled for."""
    return mutant.isa or [isa for isa in ISAS if isa not in TILE_ISAS][-1]


class Workplace:
    """The copy of `root` in `folder`, and a build for every instruction set that a mutant asks
    for."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder, self.tree = root, folder, folder / "tree"
        self.seconds: dict[tuple[str, str], float] = {}  # of tests of the unchanged code
        folder.mkdir(parents=True, exist_ok=True)

    def noticed_by(self, mutant: Mutant) -> str:
        """The test that fails with the change, or "". BrokenError where that cannot be told."""
        original = (self.root / mutant.file).read_bytes()
        for test in mutant.tests:
            key = test, isa_of(mutant) if mutant.language == "cpp" else ""
            if key not in self.seconds:  # a test that fails on the unchanged code proves nothing
                begin = time.monotonic()
                if self._fails(mutant, test):
                    raise BrokenError(f"the unchanged code fails {test}")
                self.seconds[key] = time.monotonic() - begin
            try:
                _write(self.tree / mutant.file, mutant.apply(original.decode()).encode())
                if self._fails(mutant, test, 60 + 10 * self.seconds[key]):
                    return test
            finally:
                _write(self.tree / mutant.file, original)
        return ""

    def synchronise(self) -> None:
        """Make the copy like the checkout. A file that is the same keeps its time, for ninja's
        sake."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=self.root, capture_output=True, check=True).stdout
        names = {os.fsdecode(name) for name in listed.split(b"\0") if name}
        names = {name for name in names if (self.root / name).is_file()}
        for name in names:
            _write(self.tree / name, (self.root / name).read_bytes())
        for path in self.tree.rglob("*"):
            name = path.relative_to(self.tree).as_posix()
            if path.is_file() and name not in names and not name.startswith("npu_kernels/lib/"):
                path.unlink()

    def _build(self, isa: str, targets: list[str]) -> Path:
        """The folder of a build that has these targets."""
        build = self.folder / f"cmake-{isa}"
        if not (build / "build.ninja").exists():
            isas = "avx512;" + ";".join(TILE_ISAS) if isa in TILE_ISAS else isa
            library, python = Path(torch.__file__).parent, sysconfig.get_path("include")
            options = [
                f"-DTORCH_DIR={library}", f"-DNPU_KERNELS_FAST_PATHS=fast_path|{library}|{python}",
                f"-DNPU_KERNELS_ISAS={isas}", "-DNPU_KERNELS_TESTS=ON",
                "-DCMAKE_BUILD_TYPE=Debug",  # the least optimised, which compiles fastest
                *shlex.split(os.environ.get("CMAKE_ARGS", "")),
            ]  # fmt: skip
            _call(["cmake", "-S", str(self.tree), "-B", str(build), "-G", "Ninja", *options])
        _call(["ninja", "-C", str(build), *targets])
        return build

    def _install(self, mutant: Mutant) -> None:
        """The library that the copy's Python loads: the checkout's, or for a C++ mutant its own."""
        to = self.tree / "npu_kernels" / "lib"
        to.mkdir(parents=True, exist_ok=True)
        facts = environment()
        library, fast_path = Path(facts["cpu library"]), facts["fast path"]
        sources = [library, library.with_name(fast_path)]
        if mutant.language == "cpp":
            build = self._build(isa_of(mutant), ["npu_kernels_cpu", "fast_path"])
            sources = [build / library.name, build / "fast_path.so"]
        for source, name in zip(sources, (library.name, fast_path), strict=True):
            shutil.copyfile(source, to / "new")
            (to / "new").replace(to / name)

    def _fails(self, mutant: Mutant, test: str, limit: float | None = None) -> bool:
        first, *rest = shlex.split(test)
        if first in EXECUTABLES:
            isa = isa_of(mutant)
            program = self._build(isa, [EXECUTABLES[first]]) / EXECUTABLES[first]
            code = self._run([str(program), isa, *rest], limit)
            if code == 77:
                raise BrokenError(f"{test}: {isa} does not run here")
            return code != 0
        self._install(mutant)
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        variables = {"TRITON_INTERPRET": "1"} if "tests/triton" in test else {}
        code = self._run([*pytest, first, *rest], limit, **variables)
        if code in (2, 3, 4, NO_TESTS):
            lines = (self.folder / "output.txt").read_text(errors="replace").strip().splitlines()
            last = " | ".join(lines[-3:])[-300:]
            raise BrokenError(f"pytest {test} ended with {code}: {last}")
        return code != 0

    def _run(self, command: list[str], limit: float | None, **variables: str) -> int:
        """The exit code; 1 for a command that does not end within so many seconds."""
        left_out = ("NPU_KERNELS_CPU_ISA", "TRITON_INTERPRET")
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        # Bytecode is told from its source by whole seconds and the size: a mutant may have the
        # same.
        environment |= {"PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1"}
        environment |= {"NPU_KERNELS_BUILD": "", **variables}
        with (self.folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.tree, env=environment, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return 1
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _write(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _call(command: list[str]) -> None:
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        lines = (run.stdout + run.stderr).splitlines()
        errors = [line for line in lines if "error" in line or "FAILED" in line]
        raise BrokenError(f"{command[0]}: " + "; ".join(errors[:2]))
