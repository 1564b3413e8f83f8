"""Builds what a release uploads: the sdist, and one wheel with the fast path for many torches and Pythons.

    python release/wheels.py                                    every pair in release/pairs.txt whose Python is here
    python release/wheels.py --pairs 2.13.0:3.11 2.15.0:3.13    these

The core is compiled once; each pair adds one small library, compiled against that torch's headers and that Python's.
The headers come from the wheel of torch for Macs, by far the smallest: a release's headers are the same on all
platforms, but for functions that exist on one of them only.

On Linux the wheel becomes a manylinux_2_28 one (auditwheel), which says that it runs with glibc 2.28 and newer. This
fails where a library needs anything newer, where a pair's fast path is missing, where the wheel is larger than 10 MB,
or where `twine check` objects. Needs a C++ compiler, and what requirements-release.txt names.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADERS = ROOT / "build" / "headers"
LARGEST = 10_000_000  # bytes
MAC = [option for tag in ("macosx_14_0_arm64", "macosx_11_0_arm64") for option in ("--platform", tag)]
FLAGS = "import sys, sysconfig; print(sys.implementation.cache_tag + sys.abiflags, sysconfig.get_path('include'))"


def call(*command: object, **environment: str) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT, env={**os.environ, **environment})


def pairs_of_the_release() -> list[str]:
    """torch:Python, as release/pairs.txt lists them."""
    lines = (ROOT / "release" / "pairs.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return [f"{torch}:{python}" for torch, *pythons in rows for python in pythons]


def headers(torch: str) -> Path:
    """The folder with a release's headers and version.py, downloaded where it is not there."""
    folder = HEADERS / f"torch-{torch}"
    if not (folder / "torch" / "version.py").exists():
        wheels = HEADERS / "wheels" / torch
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        call(*download, *MAC, "--python-version", "3.11", "-d", wheels, f"torch=={torch}")
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if name.startswith("torch/include/")]
            archive.extractall(folder, wanted)
            archive.extract("torch/version.py", folder)
        shutil.rmtree(wheels)
    return folder / "torch"


def fast_path(torch: str, python: str) -> str | None:
    """name|torch's folder|Python's folder, for setup.py; None where that Python or its headers are not here."""
    interpreter = shutil.which(f"python{python}")
    if interpreter is None:
        return None
    tag, include = subprocess.run([interpreter, "-c", FLAGS], capture_output=True, text=True, check=True).stdout.split()
    if not (Path(include) / "Python.h").exists():
        return None
    return f"direct-torch{torch}-{tag}|{headers(torch)}|{include}"


def build(out: Path, pairs: list[str], strict: bool) -> Path:
    """The wheel, tagged for this machine's kind."""
    found = {pair: fast_path(*pair.split(":")) for pair in pairs}
    missing = [pair for pair, path in found.items() if path is None]
    print(f"{len(pairs) - len(missing)} pairs; no such Python here: {', '.join(missing) or '-'}", flush=True)
    if missing and strict:
        sys.exit("release/wheels.py: a Python of a pair is missing")
    paths = [path for path in found.values() if path]
    if not paths:
        sys.exit("release/wheels.py: no Python of any pair is here")
    raw = ROOT / "build" / "wheels"
    shutil.rmtree(raw, ignore_errors=True)
    old_glibc = " -DNPU_KERNELS_OLD_GLIBC=ON" if sys.platform == "linux" else ""
    call(
        sys.executable, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps", "-w", raw, ROOT,
        NPU_KERNELS_FAST_PATHS=";".join(paths), NPU_KERNELS_TORCH=str(headers(pairs[0].split(":")[0])),
        NPU_KERNELS_BUILD=str(ROOT / "build" / "cmake-wheels"),
        CMAKE_ARGS=os.environ.get("CMAKE_ARGS", "") + old_glibc,
    )  # fmt: skip
    (wheel,) = raw.glob("*.whl")
    if sys.platform != "linux":
        return Path(shutil.copy(wheel, out))
    tag = f"manylinux_2_28_{platform.machine()}"
    apart = [f"--exclude=lib{name}.so" for name in ("torch_cpu", "torch_python", "c10")]  # the user's torch has them
    before = set(out.glob("*.whl"))
    call(sys.executable, "-m", "auditwheel", "repair", "--strip", "--plat", tag, *apart, "-w", out, wheel)
    (made,) = set(out.glob("*.whl")) - before
    return made


def check(wheel: Path) -> None:
    """Its size, and that it holds what it is for; setup.py has failed already where a fast path is missing."""
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.startswith("npu_kernels/lib/")]
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(libraries)} libraries")
    if "npu_kernels/lib/libnpu_kernels_cpu.so" not in libraries:
        sys.exit("release/wheels.py: the wheel lacks its library")
    if wheel.stat().st_size > LARGEST:
        sys.exit(f"release/wheels.py: the wheel is larger than {LARGEST / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="+", metavar="TORCH:PYTHON", default=pairs_of_the_release())
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder for sdist and wheel, emptied first")
    parser.add_argument("--strict", action="store_true", help="fail where a pair's Python is not here")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    call(sys.executable, "setup.py", "-q", "sdist", "-d", out)
    check(build(out, arguments.pairs, arguments.strict))
    call(sys.executable, "-m", "twine", "check", "--strict", *sorted(out.iterdir()))


if __name__ == "__main__":
    main()
