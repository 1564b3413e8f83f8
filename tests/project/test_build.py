"""The build: from nothing to a wheel, what the library links, and what a build that cannot work
says."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.building import ROOT, needs_compiler, one_process_at_a_time, run_python

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
    code = USE_LAYER + "print(npu_kernels._backends.cpu.supported_isas())"
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


def test_without_the_kernels_says_so_once(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, NPU_KERNELS_NO_CPP="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    site = unpack(wheel, tmp_path / "site")
    run = run_python("-c", USE_LAYER, env={"PYTHONPATH": str(site)}, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert str(site) in run.stdout
    assert (
        "warnings 1 npu_kernels: cpu tensors are computed by the slower eager formulas"
        in run.stdout
    )
    assert "--no-binary npu_kernels npu_kernels" in run.stdout  # from the index, where no tree is


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


def test_without_torch_the_build_names_the_commands(tmp_path: Path) -> None:
    message = failing_build(tmp_path, NPU_KERNELS_TORCH=str(tmp_path))  # a torch without headers
    assert "sees no torch >= 2.10" in message
    assert "pip install --no-build-isolation" in message
    assert "NPU_KERNELS_TORCH=" in message
    assert "NPU_KERNELS_FETCH_TORCH=1 pip install" in message
    assert "NPU_KERNELS_NO_CPP=1 pip install" in message


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
