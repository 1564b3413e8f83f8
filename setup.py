"""Builds the CPU kernels with CMake and Ninja. Everything else stands in pyproject.toml.

Environment:
  NPU_KERNELS_NO_CPP=1       install without the C++ kernels: layers run their eager formulas, and say so once.
  NPU_KERNELS_FETCH_TORCH=1  let an isolated build download a torch of its own (several gigabytes).
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
WITHOUT_CPP = os.environ.get("NPU_KERNELS_NO_CPP", "0") not in ("", "0")
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
        # A plain library that torch loads, no Python module: its name carries no interpreter.
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        torch = torch_folder()
        compiler = need(
            os.environ.get("CXX", ""), "c++", "g++", "clang++", what="a C++17 compiler",
            command="apt-get install g++   (Debian, Ubuntu)   |   dnf install gcc-c++   (Fedora)",
        )  # fmt: skip
        need("cmake", what="CMake >= 3.18", command="pip install cmake")
        need("ninja", what="Ninja", command="pip install ninja")
        build, target = Path(self.build_temp).resolve(), Path(self.get_ext_fullpath(ext.name)).resolve()
        build.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", f"-DTORCH_DIR={torch}"]
        configure += [f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release"]
        subprocess.run(configure, check=True)
        subprocess.run(["ninja", "-C", str(build)], check=True)
        # Replaced, never overwritten: a process may have the old library mapped.
        fresh = target.with_suffix(".new")
        shutil.copy2(build / "libnpu_kernels_cpu.so", fresh)
        fresh.replace(target)


class BinaryWheel(bdist_wheel):
    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = WITHOUT_CPP

    def get_tag(self) -> tuple[str, str, str]:
        # The library uses torch's stable ABI and no Python at all: any interpreter on this platform.
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[] if WITHOUT_CPP else [Extension("npu_kernels.lib.libnpu_kernels_cpu", sources=[])],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": BinaryWheel},
    setup_requires=["torch>=2.10"] if FETCH_TORCH else [],
)
