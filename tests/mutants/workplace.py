"""A copy of the tree in which mutants are built and tested."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.mutants.mutant import EXECUTABLES, Mutant

PLAIN_ISAS = ("baseline", "avx2", "avx512")
TILE_ISAS = ("avx512_bf16", "amx")
NO_TESTS = 5  # pytest's exit code where a selection is empty


class BrokenError(Exception):
    """Neither noticed nor unnoticed: it does not compile, or its tests cannot run."""


def isa_of(mutant: Mutant) -> str:
    """The instruction set that a C++ mutant is compiled for; BrokenError where this processor does
    not have it."""
    from npu_kernels._operators import cpu

    supported = cpu.supported_isas()
    # AMX's instructions are emulated where there are none.
    needed = "avx512_bf16" if mutant.isa == "amx" else mutant.isa
    if needed and needed not in supported:
        raise BrokenError(f"this processor has no {needed}")
    return mutant.isa or [isa for isa in supported if isa in PLAIN_ISAS][-1]


class Workplace:
    """The copy of `root` in `folder`, and a build for every instruction set that a mutant asks
    for."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder, self.tree = root, folder, folder / "tree"

    # ---- the tree ---------------------------------------------------------------------------

    def synchronise(self) -> None:
        """Make the copy like the checkout. A file that is the same keeps its time, for ninja's
        sake."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=self.root, capture_output=True, check=True).stdout
        names = {os.fsdecode(name) for name in listed.split(b"\0") if name}
        names = {
            name for name in names if (self.root / name).is_file()
        }  # a deleted file is listed until it is committed
        for name in names:
            self._write(self.tree / name, (self.root / name).read_bytes())
        for path in self.tree.rglob("*"):
            name = path.relative_to(self.tree).as_posix()
            if path.is_file() and name not in names and not name.startswith("npu_kernels/lib/"):
                path.unlink()

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        if path.exists() and path.read_bytes() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def mutate(self, mutant: Mutant) -> None:
        """Change the copy."""
        self._write(
            self.tree / mutant.file, mutant.apply((self.root / mutant.file).read_text()).encode()
        )

    def restore(self, mutant: Mutant) -> None:
        """Undo `mutate`."""
        self._write(self.tree / mutant.file, (self.root / mutant.file).read_bytes())

    # ---- the build --------------------------------------------------------------------------

    def _build(self, isa: str, targets: list[str]) -> Path:
        """The folder of a build that has these targets."""
        build = self.folder / f"cmake-{isa}"
        if not (build / "build.ninja").exists():
            isas = "avx512;" + ";".join(TILE_ISAS) if isa in TILE_ISAS else isa
            spec = importlib.util.find_spec("torch")
            assert spec is not None
            assert spec.origin is not None
            # Debug is the least optimised build, and compiles fastest.
            torch = Path(spec.origin).parent
            fast_path = f"fast_path|{torch}|{sysconfig.get_path('include')}"
            options = [f"-DTORCH_DIR={torch}", f"-DNPU_KERNELS_FAST_PATHS={fast_path}"]
            options += [
                f"-DNPU_KERNELS_ISAS={isas}",
                "-DNPU_KERNELS_TESTS=ON",
                "-DCMAKE_BUILD_TYPE=Debug",
            ]
            options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
            self._call(["cmake", "-S", str(self.tree), "-B", str(build), "-G", "Ninja", *options])
        self._call(["ninja", "-C", str(build), *targets])
        return build

    def _call(self, command: list[str]) -> None:
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            errors = [
                line
                for line in (run.stdout + run.stderr).splitlines()
                if "error" in line or "FAILED" in line
            ]
            raise BrokenError(f"{command[0]}: " + "; ".join(errors[:2]))

    def _install(self, mutant: Mutant) -> None:
        """The library that the copy's Python loads: the checkout's, or for a C++ mutant its own."""
        to = self.tree / "npu_kernels" / "lib"
        to.mkdir(parents=True, exist_ok=True)
        if mutant.language != "cpp":
            for path in (self.root / "npu_kernels" / "lib").glob("*.so"):
                self._replace(path, to / path.name)
            return
        from npu_kernels._operators import cpu, fast_path

        build = self._build(isa_of(mutant), ["npu_kernels_cpu", "fast_path"])
        self._replace(build / cpu.LIBRARY.name, to / cpu.LIBRARY.name)
        self._replace(build / "fast_path.so", to / fast_path.LIBRARY.name)

    @staticmethod
    def _replace(source: Path, target: Path) -> None:
        fresh = target.with_suffix(".new")
        shutil.copyfile(source, fresh)
        fresh.replace(target)

    # ---- the tests --------------------------------------------------------------------------

    def notices(self, mutant: Mutant, test: str, limit: float | None = None) -> bool:
        """Whether a test fails on the tree as it stands. BrokenError where it cannot tell."""
        first, *rest = shlex.split(test)
        if first in EXECUTABLES:
            isa = isa_of(mutant)
            program = self._build(isa, [EXECUTABLES[first]]) / EXECUTABLES[first]
            code = self._run([str(program), isa, *rest], limit)
            if code == 77:
                raise BrokenError(f"{test}: {isa} does not run here")
            return code != 0
        self._install(mutant)
        pytest = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            first,
            *rest,
        ]
        code = self._run(pytest, limit, TRITON_INTERPRET="1" if "tests/triton" in test else None)
        if code in (2, 3, 4, NO_TESTS):
            raise BrokenError(f"pytest {test} ended with {code}: " + self._last_words())
        return code != 0

    def _run(self, command: list[str], limit: float | None, **variables: str | None) -> int:
        """The exit code; 1 for a command that does not end within so many seconds."""
        # Bytecode is told from its source by whole seconds and the size: a mutant may have the
        # same.
        changes = {
            "PYTHONPATH": str(self.tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NPU_KERNELS_BUILD": "",
            **variables,
        }
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("NPU_KERNELS_CPU_ISA", *changes)
        }
        environment = {
            **kept,
            **{name: value for name, value in changes.items() if value is not None},
        }
        with (self.folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=self.tree,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return 1
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def _last_words(self) -> str:
        lines = (self.folder / "output.txt").read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])[-300:]
