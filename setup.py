"""Builds the CPU kernels with CMake and Ninja. Everything else stands in pyproject.toml.

Environment:
  NPU_KERNELS_NO_CPP=1       install without the C++ kernels: layers run their eager formulas, and
                             say so once. On Windows always.
  NPU_KERNELS_NO_FAST_PATH=1 install without the fast path from Python to the C++ kernels: small
  layers take longer.
  NPU_KERNELS_TORCH=FOLDER   the torch package to build against; its headers are enough.
  CXX, CXXFLAGS, LDFLAGS     the C++ compiler, with arguments or a launcher if need be, and more
                             options for it. Fast-math in them has no effect.
  CMAKE_ARGS="-D... -D..."   more arguments for CMake.
  MAX_JOBS=N                 compile at most N files at once, or CMAKE_BUILD_PARALLEL_LEVEL=N.
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

# uv names itself to the builds that it runs. Its environments have no pip.
PIP = "uv pip" if os.environ.get("UV") else "pip"
# A folder that pip or uv made for this build, and that is gone or hidden afterwards.
UNPACKED = any(
    part.startswith(("pip-req-build-", "pip-install-", "sdists-v", "git-v")) for part in ROOT.parts
)
SOURCE = "SOURCE" if UNPACKED else shlex.quote(str(ROOT))
SAYS_SOURCE = "(SOURCE is what the command that failed installs.)\n" if UNPACKED else ""

NO_TORCH = f"""
npu_kernels: the C++ kernels are built against torch's headers, and this build sees no torch >= 2.10. Install torch
first ({PIP} install torch). If it is installed already, the build is kept apart from it. Then either
  build with the torch that you have:   {PIP} install setuptools cmake ninja
                                        {PIP} install --no-build-isolation {SOURCE}
  or name its folder:                   NPU_KERNELS_TORCH=.../site-packages/torch {PIP} install {SOURCE}
  or let the build fetch its own:       NPU_KERNELS_FETCH_TORCH=1 {PIP} install {SOURCE}
  or leave the C++ kernels out:         NPU_KERNELS_NO_CPP=1 {PIP} install {SOURCE}
{SAYS_SOURCE}"""
NO_TOOL = f"""
npu_kernels: the C++ kernels need {{what}}, and there is none on the PATH. Either
  install it:                     {{command}}
  or leave the C++ kernels out:   NPU_KERNELS_NO_CPP=1 {PIP} install {SOURCE}
{SAYS_SOURCE}"""
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
    sys.exit(NO_TORCH)


def _read(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def fast_path_name(torch: Path) -> str:
    """The fast path's file, for one torch and one Python: npu_kernels/_operators/fast_path.py looks
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


# Instruction sets in the order of the processors that have them, each with the flags of
# /proc/cpuinfo that it needs. Tiles are beside avx512, which does all other work there.
X86_SETS = (
    ("baseline", ()), ("avx2", ("avx2", "fma")),
    ("avx512", ("avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl")),
)  # fmt: skip
X86_TILES = (("avx512_bf16", ("avx512_bf16",)), ("amx", ("amx_tile", "amx_bf16")))
ALL_SETS = tuple(name for name, _ in (*X86_SETS, *X86_TILES))


def instruction_sets() -> str:
    """The sets to compile for, as CMake takes them, by NPU_KERNELS_ISAS; "" for all.

    "native": the best of this processor, with its tiles. It is all where /proc/cpuinfo does not say.
    """
    named = re.findall(r"[^\s,;]+", os.environ.get("NPU_KERNELS_ISAS", ""))
    if named == ["native"]:
        lines = re.findall(r"^flags\s*:(.*)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
        flags = set(lines[0].split()) if lines else set()
        best = [name for name, needed in X86_SETS if flags and flags.issuperset(needed)][-1:]
        tiles = [name for name, needed in X86_TILES if flags.issuperset(needed)]
        return ";".join(best + tiles * (best == ["avx512"]))
    if unknown := [name for name in named if name not in (*ALL_SETS, "all")]:
        rule = f"NPU_KERNELS_ISAS must be 'all', 'native' or of {', '.join(ALL_SETS)}"
        sys.exit(f"npu_kernels: {rule}, got {unknown[0]!r}")
    return "" if "all" in named else ";".join(named)


def need(*candidates: str, what: str, command: str) -> str:
    """The first candidate on the PATH, or the end of the build with the command that installs
    it."""
    for candidate in candidates:
        if candidate and shutil.which(candidate):
            return candidate
    sys.exit(NO_TOOL.format(what=what, command=command))


def cxx() -> str:
    """The C++ compiler, as CMake reads it from CXX: with arguments, or behind a launcher."""
    command = os.environ.get("CXX", "").strip() or need(
        "c++", "g++", "clang++", what="a C++17 compiler",
        command="apt-get install g++   (Debian, Ubuntu)   |   dnf install gcc-c++   (Fedora)   |   "
        "xcode-select --install   (Mac)",
    )  # fmt: skip
    name, *arguments = [command] if shutil.which(command) else shlex.split(command)
    if not (path := shutil.which(name)):
        sys.exit(
            f"npu_kernels: CXX must name a C++ compiler, got {command!r}: there is no program {name!r}"
        )
    return shlex.join([os.path.abspath(path), *arguments])


def jobs() -> list[str]:
    """Ninja's -j by the variables that other builds obey; the smaller number, if both are set."""
    names = ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL")
    limits = {name: text for name in names if (text := os.environ.get(name, ""))}
    for name, text in limits.items():
        if not re.fullmatch(r"[1-9][0-9]*", text):
            sys.exit(f"npu_kernels: {name} must be a whole number from 1 on, got {text!r}")
    return ["-j", str(min(map(int, limits.values())))] if limits else []


def configure(build: Path, compiler: str, *arguments: str) -> None:
    """Run CMake. It reads these variables for a new folder only, so a folder that is kept from a
    build with others is cleared."""
    environment = {**os.environ, "CXX": compiler}
    names = ("CXX", "CXXFLAGS", "LDFLAGS", "CMAKE_ARGS")
    settings = "".join(f"{name}={environment.get(name, '')}\n" for name in names)
    record = build / "settings.txt"
    build.mkdir(parents=True, exist_ok=True)
    if _read(record) != settings:
        for old in (record, build / "CMakeCache.txt"):
            old.unlink(missing_ok=True)
        shutil.rmtree(build / "CMakeFiles", ignore_errors=True)
    command = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *arguments]
    command += shlex.split(os.environ.get("CMAKE_ARGS", ""))
    subprocess.run(command, check=True, env=environment)
    record.write_text(settings)


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
        ["ninja", "-C", str(build), *jobs(), *targets],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
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
    text = re.sub(r'<img src="(?!https?:)[^>]*>\n*', "", text)
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
        compiler = cxx()
        jobs(), instruction_sets()  # wrong ones end the build before it begins
        need("cmake", what="CMake >= 3.18", command=f"{PIP} install cmake")
        need("ninja", what="Ninja", command=f"{PIP} install ninja")
        headers = [path for path in wanted if (Path(path.split("|")[2]) / "Python.h").exists()]
        configure(
            build, compiler, f"-DTORCH_DIR={torch}",
            f"-DNPU_KERNELS_FAST_PATHS={';'.join(headers)}", "-DCMAKE_BUILD_TYPE=Release",
            f"-DNPU_KERNELS_ISAS={instruction_sets()}",
        )  # fmt: skip
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
