"""The build: from nothing to a wheel, what the library links, and what a build that cannot work
says."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.building import (
    ROOT,
    cmake_configure,
    needs_compiler,
    one_process_at_a_time,
    run_python,
)

USE_LAYER = """
import warnings, torch
import npu_kernels
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.manual_seed(0)
    layer, x = npu_kernels.NPU(3, 2), torch.randn(5, 3)
    y = layer(x)
    layer(x).sum().backward()
with npu_kernels.use_backend("reference"):
    assert torch.allclose(y, layer(x), rtol=1e-4)
print(npu_kernels.__file__)
print("warnings", len(caught), *[w.message for w in caught])
"""


def copy_of_the_tree(tmp_path: Path) -> Path:
    """The tree without anything built, so that nothing old can pass for new."""
    tree = tmp_path / "tree"
    built = (".git", ".venv", "build", "lib", "*.egg-info", "__pycache__", ".*_cache", "results")
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*built))
    return tree


def build_wheel(tmp_path: Path, **env: str) -> Path:
    tree = copy_of_the_tree(tmp_path)
    command = [
        "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(tmp_path / "wheels"),
        str(tree),
    ]  # fmt: skip
    run = run_python(*command, env=env)
    assert run.returncode == 0, run.stderr
    (wheel,) = (tmp_path / "wheels").iterdir()
    return wheel


def unpack(wheel: Path, to: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(to)
    return to


def pack_wheel(build_folder: Path, to: Path) -> None:
    """Pack this tree's wheel with what is compiled in `build_folder`: nothing is compiled anew."""
    command = [
        "setup.py", "-q", "egg_info", "--egg-base", str(to), "build", "--build-base",
        str(to / "build"),
    ]  # fmt: skip
    command += [
        "bdist_wheel",
        "--bdist-dir",
        str(to / "unpacked"),
        "--dist-dir",
        str(to / "wheels"),
    ]
    with one_process_at_a_time(build_folder):
        run = run_python(*command, env={"NPU_KERNELS_BUILD": str(build_folder)})
    assert run.returncode == 0, run.stderr
    assert "csrc/" not in run.stdout  # paths of objects


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    folder = (
        base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    ) / "wheel"  # built once for all processes
    with one_process_at_a_time(folder):
        if not list(folder.glob("wheels/*.whl")):
            if build_folder := os.environ.get("NPU_KERNELS_BUILD"):
                pack_wheel(Path(build_folder), folder)
            else:
                # What is packed is tested here, not how fast it is: this compiles in a fifth of the
                # time.
                build_wheel(
                    folder, CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Debug -DNPU_KERNELS_ISAS=baseline"
                )
        (built,) = folder.glob("wheels/*.whl")
        return built


@needs_compiler
def test_wheel_works_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    assert "-py3-none-" in wheel.name  # the kernels: torch's stable ABI and no Python
    site = unpack(wheel, tmp_path / "site")
    code = USE_LAYER + "print(npu_kernels._operators.cpu.supported_isas())"
    run = run_python("-c", code, env={"PYTHONPATH": str(site)}, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert str(site) in run.stdout
    assert "warnings 0" in run.stdout
    assert "'baseline'" in run.stdout


@needs_compiler
def test_check_of_an_installation_passes_on_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """What `make test-wheels` runs in an empty environment, on the wheel of this build."""
    site = unpack(wheel, tmp_path / "site")
    run = run_python(
        str(ROOT / "release" / "check_install.py"), "--fast-path", "--row", "row.jsonl",
        env={"PYTHONPATH": str(site)}, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    row = json.loads((tmp_path / "row.jsonl").read_text())
    assert row["fast path"]
    assert row["wheel"].startswith("py3-none-")
    assert f"{row['calls']} calls agree with the eager formulas" in run.stdout


@needs_compiler
@pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf (binutils)")
def test_library_links_the_stable_abi_and_no_openmp(wheel: Path, tmp_path: Path) -> None:
    library = unpack(wheel, tmp_path) / "npu_kernels/lib/libnpu_kernels_cpu.so"
    dynamic = subprocess.run(
        ["readelf", "-d", str(library)], capture_output=True, text=True, check=True
    ).stdout
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "NEEDED" in line]
    assert "libtorch_cpu.so" in needed
    assert not [name for name in needed if "omp" in name]
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic
    listing = subprocess.run(
        ["readelf", "-Ws", "--dyn-syms", str(library)], capture_output=True, text=True, check=True
    )
    undefined = [line for line in listing.stdout.splitlines() if "UND" in line]
    assert undefined
    assert not [line for line in undefined if "_ZN2at" in line or "_ZN3c10" in line]


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="needs /proc to list the loaded libraries"
)
def test_one_openmp_runtime_in_the_process() -> None:
    run = run_python("-c", USE_LAYER + "print(open('/proc/self/maps').read())")
    assert run.returncode == 0, run.stderr
    mapped = {line.split()[-1] for line in run.stdout.splitlines() if line.count("/") > 1}
    runtimes = {
        path for path in mapped if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))
    }
    assert len(runtimes) == 1, runtimes


@pytest.fixture(scope="module")
def site_without_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without")
    wheel = build_wheel(folder, NPU_KERNELS_NO_CPP="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    return unpack(wheel, folder / "site")


def test_without_the_kernels_says_so_once(site_without_kernels: Path, tmp_path: Path) -> None:
    run = run_python("-c", USE_LAYER, env={"PYTHONPATH": str(site_without_kernels)}, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert str(site_without_kernels) in run.stdout
    assert (
        "warnings 1 npu_kernels: cpu tensors are computed with the slower eager implementation"
        in run.stdout
    )
    assert "--no-binary npu_kernels npu_kernels" in run.stdout  # from the index, where no tree is


NAME_COMMANDS = """
import json, os, pathlib, sys
from npu_kernels._operators import cpu
(record,) = pathlib.Path(os.environ["PYTHONPATH"]).glob("*.dist-info")
for direct_url in json.load(sys.stdin):
    (record / "direct_url.json").write_text(json.dumps(direct_url))
    print(cpu.build_command())
sys.modules["pip"] = None  # as in an environment of uv
print(cpu.build_command())
"""


def test_the_command_that_builds_the_kernels_names_what_was_installed(
    site_without_kernels: Path, tmp_path: Path
) -> None:
    site = shutil.copytree(site_without_kernels, tmp_path / "site")
    folder, archive = tmp_path / "a folder", tmp_path / "npu_kernels-0.1.0.tar.gz"
    folder.mkdir()
    (folder / "setup.py").touch()
    archive.touch()
    git = {"vcs": "git", "commit_id": "0123abcd"}
    web = "https://example.org/npu_kernels"
    index = "--no-binary npu_kernels npu_kernels"
    cases: list[tuple[dict, str]] = [
        ({"url": folder.as_uri(), "dir_info": {}}, shlex.quote(str(folder))),
        ({"url": f"{web}.git", "vcs_info": git}, f"git+{web}.git@0123abcd"),
        ({"url": archive.as_uri(), "archive_info": {}}, archive.as_uri()),
        ({"url": f"{web}.zip", "archive_info": {}}, f"{web}.zip"),
        # nothing can be built from these
        ({"url": f"{web}-py3-none-any.whl", "archive_info": {}}, index),
        ({"url": (tmp_path / "gone").as_uri(), "dir_info": {}}, index),
        ({"url": (tmp_path / "gone.zip").as_uri(), "archive_info": {}}, index),
    ]
    run = subprocess.run(
        [sys.executable, "-c", NAME_COMMANDS], input=json.dumps([record for record, _ in cases]),
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(site)}, cwd=tmp_path,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    *commands, by_uv = run.stdout.splitlines()
    install = "pip install --force-reinstall --no-deps --no-cache-dir"
    assert commands == [f"{install} {source}" for _, source in cases]
    assert by_uv.startswith("NPU_KERNELS_TORCH=")
    assert by_uv.endswith(f"/torch uv {install} {index}")


def failing_build(tmp_path: Path, **env: str) -> str:
    tree = copy_of_the_tree(tmp_path)
    run = run_python("setup.py", "build_ext", "--build-temp", str(tmp_path), env=env, cwd=tree)
    assert run.returncode != 0
    return run.stdout + run.stderr


def test_arguments_for_cmake_reach_it(tmp_path: Path) -> None:
    assert "--no-such-option" in failing_build(tmp_path, CMAKE_ARGS="--no-such-option")


def tools(folder: Path, *missing: str, **scripts: str) -> str:
    """A PATH with what a build needs, in name at least, but for the missing."""
    folder.mkdir()
    for name in {"c++", "cmake", "ninja"} - {*missing}:
        (folder / name).write_text(
            f"#!{sys.executable}\n" + scripts.get(name, "raise SystemExit(1)")
        )
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(("uv", "pip"), [("", "pip"), ("/usr/bin/uv", "uv pip")])
def test_without_torch_the_build_names_the_commands(tmp_path: Path, uv: str, pip: str) -> None:
    # a torch without headers
    message = failing_build(tmp_path, NPU_KERNELS_TORCH=str(tmp_path), UV=uv)
    assert "sees no torch >= 2.10" in message
    assert f"  {pip} install --no-build-isolation {tmp_path / 'tree'}\n" in message
    assert (
        f"NPU_KERNELS_TORCH=.../site-packages/torch {pip} install {tmp_path / 'tree'}\n" in message
    )
    assert f"NPU_KERNELS_FETCH_TORCH=1 {pip} install" in message
    assert f"NPU_KERNELS_NO_CPP=1 {pip} install" in message


def test_a_message_names_no_folder_that_pip_deletes(tmp_path: Path) -> None:
    unpacked = tmp_path / "pip-req-build-1a2b"
    unpacked.mkdir()
    message = failing_build(unpacked, NPU_KERNELS_TORCH=str(tmp_path), UV="")
    assert "pip install --no-build-isolation SOURCE\n" in message
    assert "SOURCE is what the command that failed installs" in message


def test_an_isolated_build_finds_the_environments_torch(tmp_path: Path) -> None:
    # what can be imported is no torch, as in pip's isolated builds
    hidden = tmp_path / "hidden" / "torch"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").touch()
    message = failing_build(tmp_path, PYTHONPATH=str(hidden.parent), PATH=tools(tmp_path / "bin"))
    assert "sees no torch" not in message
    assert "cmake" in message  # the next step, which this PATH makes fail


NINJA = """
import pathlib, sys
build = pathlib.Path(sys.argv[2])
for done in range(1, 21):
    print(f"[{done}/20] made")
(build / "libnpu_kernels_cpu.so").touch()
"""


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({}, []),
        ({"MAX_JOBS": "3"}, ["-j", "3"]),
        ({"MAX_JOBS": "3", "CMAKE_BUILD_PARALLEL_LEVEL": "2"}, ["-j", "2"]),
    ],
)
def test_at_most_as_many_compile_at_once_as_the_variables_say(
    tmp_path: Path, variables: dict, options: list
) -> None:
    path = tools(tmp_path / "bin", cmake="", ninja="import sys\nprint(sys.argv[3:])\n" + NINJA)
    run = run_python(
        "setup.py", "build_ext", "--build-temp", str(tmp_path), "--build-lib", str(tmp_path),
        env={"PATH": path, "NPU_KERNELS_NO_FAST_PATH": "1", "MAX_JOBS": "",
             "CMAKE_BUILD_PARALLEL_LEVEL": "", **variables},
        cwd=copy_of_the_tree(tmp_path),
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert str([*options, "npu_kernels_cpu", "fast_path"]) in run.stdout


@pytest.mark.parametrize(
    ("variable", "value", "rule"),
    [
        ("MAX_JOBS", "many", "must be a whole number from 1 on, got 'many'"),
        ("CMAKE_BUILD_PARALLEL_LEVEL", "0", "must be a whole number from 1 on, got '0'"),
        ("CXX", "no-such-g++ -m64", "must name a C++ compiler, got 'no-such-g++ -m64'"),
        (
            "NPU_KERNELS_ISAS",
            "avx2 sse2",
            "must be 'all', 'native' or of baseline, avx2, avx512, avx512_bf16, amx, got 'sse2'",
        ),
    ],
)
def test_a_wrong_variable_ends_the_build(
    tmp_path: Path, variable: str, value: str, rule: str
) -> None:
    path = tools(tmp_path / "bin")
    assert f"{variable} {rule}" in failing_build(tmp_path, PATH=path, **{variable: value})


# Says that it has compiled, and leaves the rest to Ninja.
NO_COMPILATION = """
import os, pathlib, sys
if "npu_kernels_cpu" not in sys.argv:
    os.execv({ninja!r}, ["ninja", *sys.argv[1:]])
(pathlib.Path(sys.argv[2]) / "libnpu_kernels_cpu.so").touch()
"""


def builds_without_compiling(tmp_path: Path) -> Callable[..., Path]:
    """What configures a build with these variables, in one kept folder, and returns the folder."""
    compilation = NO_COMPILATION.format(ninja=shutil.which("ninja"))
    path = tools(tmp_path / "bin", "cmake", "c++", ninja=compilation)
    tree, build = copy_of_the_tree(tmp_path), tmp_path / "build"

    def configure(**env: str) -> Path:
        run = run_python(
            "setup.py", "build_ext", "--build-lib", str(tmp_path),
            env={"PATH": f"{path}:{os.environ['PATH']}", "NPU_KERNELS_NO_FAST_PATH": "1",
                 "NPU_KERNELS_BUILD": str(build), **env}, cwd=tree,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        return build

    return configure


@needs_compiler
def test_a_kept_folder_takes_another_compiler_and_other_options(tmp_path: Path) -> None:
    configure = builds_without_compiling(tmp_path)

    def compile_command(**env: str) -> str:
        build = configure(CMAKE_ARGS="-DNPU_KERNELS_ISAS=baseline", **env)
        commands = ["ninja", "-C", str(build), "-t", "commands", "npu_kernels_cpu"]
        lines = subprocess.run(commands, capture_output=True, text=True, check=True).stdout
        (line,) = [line for line in lines.splitlines() if line.endswith("/operators/layers.cpp")]
        return line

    compiler = shutil.which("c++") or shutil.which("g++")
    first = compile_command(CXX=f"env {compiler} -DFIRST -DSECOND", CXXFLAGS="-DTHIRD")
    assert shlex.split(first)[:4] == [shutil.which("env"), compiler, "-DFIRST", "-DSECOND"]
    assert " -DTHIRD " in first
    second = compile_command(CXX=compiler, CXXFLAGS="-DFOURTH")
    assert shlex.split(second)[0] == compiler
    assert " -DFOURTH " in second
    assert "FIRST" not in second
    assert "THIRD" not in second


FAST_MATH = (
    "-Ofast -ffast-math -funsafe-math-optimizations -ffinite-math-only -fassociative-math "
    "-freciprocal-math -fno-signed-zeros"
)


@needs_compiler
def test_fast_math_in_the_environment_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXXFLAGS", FAST_MATH)
    monkeypatch.setenv("LDFLAGS", FAST_MATH)
    cmake_configure(
        tmp_path, f"-DTORCH_DIR={tmp_path}", "-DNPU_KERNELS_ISAS=baseline",
        f"-DNPU_KERNELS_FAST_PATHS=fast_path|{tmp_path}|{tmp_path}",
    )  # fmt: skip
    ninja = ["ninja", "-C", str(tmp_path)]
    lines = subprocess.run(
        [*ninja, "-t", "commands", "npu_kernels_cpu", "fast_path"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    commands = [line for line in lines if FAST_MATH in line]
    objects_of = ("core/nau", "operators/layers", "fast_path/module")
    for product in (*(f"{name}.cpp.o " for name in objects_of), "cpu.so ", "fast_path.so "):
        assert [line for line in commands if f"{product}" in line.partition(" -o ")[2]], product
    assert all(line.rindex(FAST_MATH) < line.find(" -fno-fast-math ") for line in commands)

    (command,) = [line for line in commands if line.endswith("/core/nau.cpp")]
    target = tmp_path / command.partition(" -o ")[2].split()[0]
    objects = []
    for line in (command, command.replace(FAST_MATH, "")):
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(line, shell=True, check=True, cwd=tmp_path)
        objects.append(target.read_bytes())
    assert objects[0] == objects[1]

    if sys.platform == "linux":  # where a stand-in for one of torch's libraries is linked alike
        subprocess.run([*ninja, "c10"], check=True)
        library = tmp_path / "torch" / "libc10.so"
        run = run_python("-c", f"import ctypes; ctypes.CDLL({str(library)!r}); print(2.0**-1060)")
        assert run.stdout == "8.095e-320\n"  # not flushed to zero


@needs_compiler
@pytest.mark.parametrize("option", ["-ffast-math", "-ffinite-math-only"])
def test_fast_math_does_not_compile(option: str) -> None:
    header = ROOT / "csrc" / "core" / "simd" / "registers.h"
    compiler = shutil.which("c++") or "g++"
    command = [compiler, "-std=c++17", "-fsyntax-only", "-DNPU_ISA=baseline", "-x", "c++"]
    run = subprocess.run([*command, option, str(header)], capture_output=True, text=True)
    assert run.returncode != 0
    assert "compile with -fno-fast-math" in run.stderr


def test_a_build_within_pip_tells_the_terminal_how_far_it_is(tmp_path: Path) -> None:
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    path = tools(tmp_path / "bin", cmake="", ninja=NINJA)
    ours, terminal = pty.openpty()
    run = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-temp", str(tmp_path), "--build-lib", str(tmp_path)],
        capture_output=True, text=True, cwd=copy_of_the_tree(tmp_path), start_new_session=True,
        env={**os.environ, "PATH": path, "NPU_KERNELS_BUILD": "", "NPU_KERNELS_NO_FAST_PATH": "1"},
        preexec_fn=lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(terminal)
    assert run.returncode == 0, run.stderr
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert said.count("npu_kernels: [") == 10
    assert "npu_kernels: [20/20] built" in said
    assert "[7/20] made" in run.stdout  # `pip install -v` shows them all


@pytest.mark.parametrize(
    ("missing", "word", "command"),
    [
        (("c++", "g++", "clang++"), "a C++17 compiler", "apt-get install g++"),
        (("cmake",), "CMake", "pip install cmake"),
        (("ninja",), "Ninja", "pip install ninja"),
    ],
)
def test_without_a_tool_the_build_names_the_command(
    tmp_path: Path, missing: tuple, word: str, command: str
) -> None:
    message = failing_build(tmp_path, PATH=tools(tmp_path / "bin", *missing), CXX="")
    assert word in message
    assert command in message
    assert "NPU_KERNELS_NO_CPP=1 pip install" in message


def test_make_install_refuses_an_old_python(tmp_path: Path) -> None:
    if not shutil.which("make"):
        pytest.skip("needs make")
    old = tmp_path / "python"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import sys; sys.exit(1)'\n")
    old.chmod(0o755)
    run = subprocess.run(
        ["make", "install", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ},
    )  # fmt: skip
    assert run.returncode != 0
    assert "needs Python >= 3.10" in run.stdout + run.stderr


@needs_compiler
@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the flags are Linux's")
def test_the_sets_of_this_processor(tmp_path: Path) -> None:
    """`make install` compiles for this processor alone; pip for all, or for those that are named."""
    configure = builds_without_compiling(tmp_path)

    def sets(**env: str) -> str:
        cache = (configure(**env) / "CMakeCache.txt").read_text()
        return next(line for line in cache.splitlines() if "NPU_KERNELS_ISAS:" in line)

    flags = set(Path("/proc/cpuinfo").read_text().split())
    native = sets(NPU_KERNELS_ISAS="native").partition("=")[2].split(";")
    wide = {"avx512f", "avx512dq", "avx512bw", "avx512vl", "fma"} <= flags
    assert native[0] == ("avx512" if wide else "avx2" if {"avx2", "fma"} <= flags else "baseline")
    assert ("avx512_bf16" in native) == (wide and "avx512_bf16" in flags)
    assert ("amx" in native) == (wide and {"amx_tile", "amx_bf16"} <= flags)
    assert sets().endswith("=")
    assert sets(NPU_KERNELS_ISAS="baseline,avx2").endswith("=baseline;avx2")
    assert sets(NPU_KERNELS_ISAS="all").endswith("=")


OTHER_LIBRARY = """
const char* npu_kernels_isa(void) { return "avx1024"; }
const char* npu_kernels_supported_isas(void) { return ""; }
int npu_kernels_set_isa(const char* name) { return 1; }
"""


@needs_compiler
def test_a_library_of_another_processor_means_eager_formulas(tmp_path: Path) -> None:
    """With one notice, which says what builds it for all processors."""
    tree = copy_of_the_tree(tmp_path)
    library = tree / "npu_kernels" / "lib" / "libnpu_kernels_cpu.so"
    library.parent.mkdir()
    (tmp_path / "other.c").write_text(OTHER_LIBRARY)
    compiler = shutil.which("cc") or shutil.which("gcc") or "cc"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(tmp_path / "other.c")]
    subprocess.run(command, check=True)
    run = run_python("-c", USE_LAYER, env={"PYTHONPATH": str(tree)}, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("warnings")]
    assert line.startswith("warnings 1 ")
    assert "was built for processors with avx1024, which this one lacks" in line
