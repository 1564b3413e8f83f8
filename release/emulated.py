"""Tests the wheel for Linux on Arm where there is no such processor: qemu runs the C++ tests, and a
Python with torch.

    python -m release.emulated dist/npu_kernels-*_aarch64.whl
    python -m release.emulated dist/npu_kernels-*_aarch64.whl --row release/runs.jsonl --tests
    tests/layers/test_layers.py

Needs Debian with qemu-user-static and g++-aarch64-linux-gnu, and some 6 GB. Debian's Python for
that processor and torch's wheel for it, with what it needs, stay in build/emulated. The C++ tests
are built where `release.wheels --targets aarch64` has compiled the core. A part of the Python tests
runs after release/check_install.py: each takes many times as long as without an emulator.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "emulated"
SYSTEM, SITE, WHEEL, TESTS, PYTHON = (
    FOLDER / name for name in ("system", "site", "wheel", "tests", "python")
)
PACKAGES = ["python3.11-minimal", "libpython3.11-stdlib", "libstdc++6", "libgomp1"]  # Debian 12's
PLATFORMS = [
    "manylinux2014_aarch64",
    *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)),
]  # its glibc is 2.36
# torch's dependencies by name, without CUDA's: pip asks this processor whether torch needs them,
# not the emulated one.
NEEDED = ["filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions", "numpy", "tqdm"]
NEEDED += ["pytest", "hypothesis"]


def call(*command: object, **environment: str) -> None:
    print("+", *command, flush=True)
    subprocess.run(
        [str(word) for word in command], check=True, cwd=FOLDER, env={**os.environ, **environment}
    )


def system() -> None:
    """Debian's packages for that processor, unpacked in a folder; apt keeps its lists there too."""
    if (SYSTEM / "usr/bin/python3.11").exists():
        return
    state = FOLDER / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    chosen = {
        "APT::Architecture": "arm64", "APT::Architectures": "arm64", "Dir::State": state, "Dir::Cache": state / "cache",
        "Dir::State::status": state / "status",
    }  # fmt: skip
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in chosen.items())]
    call(*apt, "update")
    call(*apt, "install", "-y", "--no-install-recommends", "--download-only", *PACKAGES)
    for package in sorted((state / "cache/archives").glob("*.deb")):
        call("dpkg-deb", "-x", package, SYSTEM)


def site(torch: str) -> None:
    """What pip would install on that processor, where torch's wheel has no CUDA: torch, and the
    packages it imports."""
    if (SITE / f"torch-{torch}.dist-info").exists():
        return
    shutil.rmtree(SITE, ignore_errors=True)
    kinds = [option for platform in PLATFORMS for option in ("--platform", platform)]
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--upgrade",
        "--target",
        SITE,
        "--only-binary=:all:",
    ]
    install += [*kinds, "--python-version", "3.11"]
    call(*install, *NEEDED)
    call(*install, "--no-deps", f"torch=={torch}")


def python() -> None:
    """A command that is that Python; Python's own subprocesses call it by `sys.executable`."""
    PYTHON.write_text(
        "#!/bin/sh\n"
        f"export PYTHONHOME={SYSTEM}/usr PYTHONPATH={WHEEL}:{SITE} PYTHONDONTWRITEBYTECODE=1\n"
        f'exec qemu-aarch64-static -L {SYSTEM} -0 {PYTHON} {SYSTEM}/usr/bin/python3.11 "$@"\n'
    )
    PYTHON.chmod(0o755)


def core_tests() -> None:
    """The C++ tests, of every instruction set."""
    build = ROOT / "build" / "cmake-wheels-aarch64"
    emulator = "qemu-aarch64-static;-L;/usr/aarch64-linux-gnu"
    call(
        "cmake",
        "-S",
        ROOT,
        "-B",
        build,
        "-DNPU_KERNELS_TESTS=ON",
        f"-DCMAKE_CROSSCOMPILING_EMULATOR={emulator}",
    )
    call("ninja", "-C", build)
    call("ctest", "--test-dir", build, "--output-on-failure", "-j", os.cpu_count())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m release.emulated",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--torch", default="2.10.0", help="a release whose wheel for that processor has no CUDA"
    )
    parser.add_argument(
        "--row", type=Path, help="where to append what was run; see release/check_install.py"
    )
    parser.add_argument("--no-core", action="store_true", help="without the C++ tests")
    parser.add_argument(
        "--tests",
        nargs="*",
        default=[
            "tests/layers/test_layers.py",
            "tests/operators/test_gradients.py",
            "tests/operators/test_errors.py",
        ],
    )
    arguments = parser.parse_args()
    wheel = arguments.wheel.resolve(strict=True)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    row = ["--row", arguments.row.resolve(), "--sha256", sha256] if arguments.row else []
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not arguments.no_core:
        core_tests()
    system()
    site(arguments.torch)
    python()
    shutil.rmtree(WHEEL, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(WHEEL)
    call(PYTHON, ROOT / "release" / "check_install.py", "--fast-path", "--emulated", *row)
    if arguments.tests:
        shutil.rmtree(
            TESTS, ignore_errors=True
        )  # a copy: beside the tests must not lie the package of the tree
        shutil.copytree(ROOT / "tests", TESTS / "tests")
        shutil.copy(ROOT / "pyproject.toml", TESTS)
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            TESTS,
            "-c",
            TESTS / "pyproject.toml",
        ]
        call(PYTHON, "-m", "pytest", *options, *(TESTS / test for test in arguments.tests))


if __name__ == "__main__":
    main()
