"""Builds the CPU kernels with CMake and Ninja. Everything else stands in pyproject.toml.

Environment:
  NPU_KERNELS_NO_CPP=1       install without the C++ kernels: layers run their eager formulas, and say so once.
  NPU_KERNELS_NO_DIRECT=1    install without the fast path from Python to the C++ kernels: small layers take longer.
  CMAKE_ARGS="-D... -D..."   more arguments for CMake.
  NPU_KERNELS_BUILD=FOLDER   compile there and keep it: the next build compiles only what has changed.
  NPU_KERNELS_FETCH_TORCH=1  let an isolated build download a torch of its own (several gigabytes).
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
WITHOUT_CPP = os.environ.get("NPU_KERNELS_NO_CPP", "0") not in ("", "0")
WITHOUT_DIRECT = os.environ.get("NPU_KERNELS_NO_DIRECT", "0") not in ("", "0")
FETCH_TORCH = os.environ.get("NPU_KERNELS_FETCH_TORCH", "0") not in ("", "0")

NO_TORCH = """
npu_kernels: the C++ kernels are built against torch's headers, and this build sees no torch >= 2.10. Either
  build with the torch that you have:   pip install torch setuptools cmake ninja
                                        pip install --no-build-isolation {source}
  or let the build fetch its own:       NPU_KERNELS_FETCH_TORCH=1 pip install {source}
  or leave the C++ kernels out:         NPU_KERNELS_NO_CPP=1 pip install {source}
"""
NO_TOOL = """
npu_kernels: the C++ kernels need {what}, and there is none on the PATH. Either
  install it:                     {command}
  or leave the C++ kernels out:   NPU_KERNELS_NO_CPP=1 pip install {source}
"""
NO_DIRECT = """
npu_kernels: built without the fast path from Python to the C++ kernels (its compiler's words stand above; it needs
Python's headers, looked for in {include}; Debian, Ubuntu: apt-get install python3-dev). All works, small layers take
longer; `python -m npu_kernels.env` says so too.
"""


def torch_folder() -> Path:
    """The torch package's folder, without importing torch (its headers are all that is needed)."""
    spec = importlib.util.find_spec("torch")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    # The stable ABI's thread functions came with 2.10.
    if folder is None or "parallel_for" not in _read(folder / "include/torch/csrc/stable/ops.h"):
        sys.exit(NO_TORCH.format(source=ROOT))
    return folder


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def direct_name(torch: Path) -> str:
    """The fast path's file: it serves one torch and one Python, npu_kernels/backends/direct.py looks for this name."""
    found = re.search(r"__version__ = '([^']+)'", _read(torch / "version.py"))
    return f"direct-torch{found[1] if found else 'unknown'}-{sys.implementation.cache_tag}.so"


def need(*candidates: str, what: str, command: str) -> str:
    """The first candidate on the PATH, or the end of the build with the command that installs it."""
    for candidate in candidates:
        if candidate and shutil.which(candidate):
            return candidate
    sys.exit(NO_TOOL.format(what=what, command=command, source=ROOT))


class BuildKernels(build_ext):
    def copy_extensions_to_source(self) -> None:
        # An editable install copies the library into the tree, where git keeps no empty folder for it.
        (ROOT / "npu_kernels" / "lib").mkdir(exist_ok=True)
        super().copy_extensions_to_source()

    def get_ext_filename(self, fullname: str) -> str:
        # Plain libraries that the package loads by their path: names that no interpreter chooses.
        *package, name = fullname.split(".")
        return os.path.join(*package, direct_name(torch_folder()) if name == "direct" else f"{name}.so")

    def build_extension(self, ext: Extension) -> None:
        torch = torch_folder()
        compiler = need(
            os.environ.get("CXX", ""), "c++", "g++", "clang++", what="a C++17 compiler",
            command="apt-get install g++   (Debian, Ubuntu)   |   dnf install gcc-c++   (Fedora)",
        )  # fmt: skip
        need("cmake", what="CMake >= 3.18", command="pip install cmake")
        need("ninja", what="Ninja", command="pip install ninja")
        build = Path(os.environ.get("NPU_KERNELS_BUILD") or self.build_temp).resolve()
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        build.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", f"-DTORCH_DIR={torch}"]
        configure += [f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release"]
        include = sysconfig.get_path("include")
        if (Path(include) / "Python.h").exists():
            configure.append(f"-DPYTHON_INCLUDE={include}")
        subprocess.run(configure + shlex.split(os.environ.get("CMAKE_ARGS", "")), check=True)
        name = ext.name.rpartition(".")[2]
        built = subprocess.run(["ninja", "-C", str(build), name.removeprefix("lib")], check=False)
        if built.returncode == 0:
            # Replaced, never overwritten: a process may have the old library mapped.
            fresh = target.with_suffix(".new")
            shutil.copy2(build / f"{name}.so", fresh)
            fresh.replace(target)
        elif ext.optional:
            print(NO_DIRECT.format(include=include), file=sys.stderr)
        else:
            sys.exit(built.returncode)


class BinaryWheel(bdist_wheel):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = WITHOUT_CPP

    def get_tag(self) -> tuple[str, str, str]:
        # The kernels use torch's stable ABI and no Python at all: any interpreter on this platform. The fast path into
        # them is loaded by the one that it was built for.
        return "py3", "none", super().get_tag()[2]


EXTENSIONS = [] if WITHOUT_CPP else [Extension("npu_kernels.lib.libnpu_kernels_cpu", sources=[])]
if EXTENSIONS and not WITHOUT_DIRECT:
    EXTENSIONS.append(Extension("npu_kernels.lib.direct", sources=[], optional=True))

setup(
    ext_modules=EXTENSIONS,
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": BinaryWheel},
    setup_requires=["torch>=2.10"] if FETCH_TORCH else [],
)
