"""Builds the CPU kernels with CMake and Ninja. Everything else stands in pyproject.toml.

Environment:
  NPU_KERNELS_NO_CPP=1       install without the C++ kernels: layers run their eager formulas, and
                             say so once. On Windows always.
  NPU_KERNELS_NO_FAST_PATH=1 install without the fast path from Python to the C++ kernels: small
  layers take longer.
  NPU_KERNELS_TORCH=FOLDER   the torch package to build against; its headers are enough.
  CMAKE_ARGS="-D... -D..."   more arguments for CMake.
  NPU_KERNELS_BUILD=FOLDER   compile there and keep it: the next build compiles only what has
  changed.
  NPU_KERNELS_FETCH_TORCH=1  let an isolated build download a torch of its own (several gigabytes).
  NPU_KERNELS_FAST_PATHS="NAME|TORCH|PYTHON;..."   the fast paths to build, each a file's name
  (without .so), torch's
                             folder and the folder of Python.h, for a wheel that serves several
                             (release/wheels).
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TextIO

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
# The kernels are written for GCC and Clang, and have not been built on Windows.
WITHOUT_CPP = os.environ.get("NPU_KERNELS_NO_CPP", "0") not in ("", "0") or sys.platform == "win32"
WITHOUT_FAST_PATH = os.environ.get("NPU_KERNELS_NO_FAST_PATH", "0") not in ("", "0")
FETCH_TORCH = os.environ.get("NPU_KERNELS_FETCH_TORCH", "0") not in ("", "0")

NO_TORCH = """
npu_kernels: the C++ kernels are built against torch's headers, and this build sees no torch >= 2.10. Install torch
first (pip install torch). If it is installed already, the build is kept apart from it. Then either
  build with the torch that you have:   pip install setuptools cmake ninja
                                        pip install --no-build-isolation {source}
  or name its folder:                   NPU_KERNELS_TORCH=.../site-packages/torch pip install {source}
  or let the build fetch its own:       NPU_KERNELS_FETCH_TORCH=1 pip install {source}
  or leave the C++ kernels out:         NPU_KERNELS_NO_CPP=1 pip install {source}
"""
NO_TOOL = """
npu_kernels: the C++ kernels need {what}, and there is none on the PATH. Either
  install it:                     {command}
  or leave the C++ kernels out:   NPU_KERNELS_NO_CPP=1 pip install {source}
"""
NO_FAST_PATH = """
npu_kernels: built without the fast path from Python to the C++ kernels (its compiler's words stand above; it needs
Python's headers, looked for in {include}; Debian, Ubuntu: apt-get install python3-dev). All works, small layers take
longer; `python -m npu_kernels.env` says so too.
"""


def torch_folder() -> Path:
    """The torch package's folder, without importing torch (its headers are all that is needed)."""
    named = os.environ.get("NPU_KERNELS_TORCH")
    spec = importlib.util.find_spec("torch")
    # An isolated build by pip imports nothing of the environment that it builds for, but runs with
    # its Python.
    installed = [Path(sysconfig.get_path(kind)) / "torch" for kind in ("platlib", "purelib")]
    candidates = (
        [Path(named)]
        if named
        else [*([Path(spec.origin).parent] if spec and spec.origin else []), *installed]
    )
    for folder in candidates:
        # The stable ABI's thread functions came with 2.10.
        if "parallel_for" in _read(folder / "include/torch/csrc/stable/ops.h"):
            return folder.resolve()
    sys.exit(NO_TORCH.format(source=ROOT))


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def fast_path_name(torch: Path) -> str:
    """The fast path's file, for one torch and one Python: npu_kernels/_backends/fast_path.py looks
    for this name."""
    found = re.search(r"__version__ = '([^']+)'", _read(torch / "version.py"))
    python = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
    return f"fast_path-torch{found[1] if found else 'unknown'}-{python}"


def fast_paths() -> list[str]:
    """name|torch|folder of Python.h of every fast path to build."""
    if WITHOUT_FAST_PATH:
        return []
    if named := os.environ.get("NPU_KERNELS_FAST_PATHS"):
        return named.split(";")
    include = sysconfig.get_path("include")
    return [f"{fast_path_name(torch_folder())}|{torch_folder()}|{include}"]


def need(*candidates: str, what: str, command: str) -> str:
    """The first candidate on the PATH, or the end of the build with the command that installs
    it."""
    for candidate in candidates:
        if candidate and shutil.which(candidate):
            return candidate
    sys.exit(NO_TOOL.format(what=what, command=command, source=ROOT))


def terminal() -> TextIO | None:
    """Where to say how far the build is: pip shows nothing of what a build prints. None where
    nobody looks."""
    if sys.stdout.isatty():
        return None  # what ninja prints is seen
    try:
        return open("/dev/tty", "w")
    except OSError:
        return None


def compile_with_ninja(build: Path, *targets: str) -> int:
    """Ninja's exit status; its lines are passed on, and every tenth of the work is said on the
    terminal."""
    start, said, seen = time.monotonic(), 0, terminal()
    environment = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
    with subprocess.Popen(
        ["ninja", "-C", str(build), *targets], stdout=subprocess.PIPE, text=True, env=environment
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            print(line, end="", flush=True)
            progress = re.match(r"\[(\d+)/(\d+)\]", line)
            if progress and seen and (tenths := 10 * int(progress[1]) // int(progress[2])) > said:
                said = tenths
                print(
                    f"\rnpu_kernels: {progress[0]} built, {time.monotonic() - start:.0f} s",
                    file=seen,
                    flush=True,
                )
    if seen:
        seen.close()
    return run.returncode


def long_description() -> str:
    """README.md for a package index, which has no files beside it: without pictures of the
    repository, and with the texts of the links into it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", text)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


class BuildKernels(build_ext):
    def copy_extensions_to_source(self) -> None:
        # An editable install: the libraries go into the tree, where git keeps no folder for them.
        self.inplace = True
        for extension in self.extensions:
            self.install_libraries(extension)

    def get_ext_filename(self, fullname: str) -> str:
        # A plain library that the package loads by its path: a name that no interpreter chooses.
        return os.path.join(*fullname.split(".")) + ".so"

    @property
    def build_folder(self) -> Path:
        return Path(os.environ.get("NPU_KERNELS_BUILD") or self.build_temp).resolve()

    def build_extension(self, ext: Extension) -> None:
        torch, build, wanted = torch_folder(), self.build_folder, fast_paths()
        compiler = need(
            os.environ.get("CXX", ""), "c++", "g++", "clang++", what="a C++17 compiler",
            command="apt-get install g++   (Debian, Ubuntu)   |   dnf install gcc-c++   (Fedora)   |   "
            "xcode-select --install   (Mac)",
        )  # fmt: skip
        need("cmake", what="CMake >= 3.18", command="pip install cmake")
        need("ninja", what="Ninja", command="pip install ninja")
        build.mkdir(parents=True, exist_ok=True)
        headers = [path for path in wanted if (Path(path.split("|")[2]) / "Python.h").exists()]
        configure = [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(build),
            "-G",
            "Ninja",
            f"-DTORCH_DIR={torch}",
        ]
        configure += [f"-DNPU_KERNELS_FAST_PATHS={';'.join(headers)}"]
        configure += [f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release"]
        subprocess.run(configure + shlex.split(os.environ.get("CMAKE_ARGS", "")), check=True)
        for old in build.glob("fast_path-*.so"):  # what is there afterwards has been built now
            old.unlink()
        if compile_with_ninja(build, "npu_kernels_cpu", "fast_path") != 0:
            status = compile_with_ninja(
                build, "npu_kernels_cpu"
            )  # the rest of it, if only a fast path failed
            if status != 0:
                sys.exit(status)
        if wanted and len(self.fast_path_libraries()) < len(wanted):
            print(NO_FAST_PATH.format(include=sysconfig.get_path("include")), file=sys.stderr)
            if "NPU_KERNELS_FAST_PATHS" in os.environ:
                sys.exit(
                    "npu_kernels: not every fast path that NPU_KERNELS_FAST_PATHS names was built"
                )
        self.install_libraries(ext)

    def fast_path_libraries(self) -> list[Path]:
        return sorted(self.build_folder.glob("fast_path-*.so"))

    def install_libraries(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        for library in (self.build_folder / target.name, *self.fast_path_libraries()):
            # Replaced, never overwritten: a process may have the old library mapped.
            fresh = target.with_name(f"{library.name}.new")
            shutil.copy2(library, fresh)
            fresh.replace(target.with_name(library.name))


class BinaryWheel(bdist_wheel):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = WITHOUT_CPP

    def get_tag(self) -> tuple[str, str, str]:
        # The kernels use torch's stable ABI and no Python at all: any interpreter on this platform.
        # The fast path into them is loaded by the one that it was built for.
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[]
    if WITHOUT_CPP
    else [Extension("npu_kernels.lib.libnpu_kernels_cpu", sources=[])],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": BinaryWheel},
    long_description=long_description(),
    long_description_content_type="text/markdown",
    setup_requires=["torch>=2.10"] if FETCH_TORCH else [],
)
