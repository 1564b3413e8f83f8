"""Triton's launch path to the driver without a GPU: parameters, tensor maps, what is compiled,
widths of stores, processor time.

The checks are in `standin`, whose process has `standin.c` in place of libcuda and no interpreter.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

CHECKS = (
    "check_parameters_of_replays", "check_no_kernel_is_compiled_for_another_batch",
    "check_no_kernel_is_compiled_for_other_addresses_of_parameters", "check_widths_of_stores",
    "check_sizes_are_not_shifted_in_32_bits",
    "check_sizes_of_2_31_elements", "check_which_waves_are_full",
)  # fmt: skip


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process with `standin.c` in place of libcuda, and with its own cache."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    spec = importlib.util.find_spec("triton.backends.nvidia")
    if compiler is None or spec is None or spec.origin is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, and a Triton for NVIDIA GPUs on Linux")
    folder, source = tmp_path_factory.mktemp("standin"), Path(__file__).with_name("standin.c")
    headers, library = Path(spec.origin).parent / "include", str(folder / "libcuda.so.1")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-I", str(headers), "-o", library, str(source),
         "-Wl,-soname,libcuda.so.1"], check=True,
    )  # fmt: skip
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_LIBCUDA_PATH": str(folder), "TRITON_CACHE_DIR": str(folder / "cache")}
    before = [path for path in (os.environ.get("LD_LIBRARY_PATH"),) if path]
    return environment | {"LD_LIBRARY_PATH": os.pathsep.join([str(folder), *before])}


def _run(environment: dict[str, str], *arguments: str) -> list[list[Any]]:
    """The lists that a process prints."""
    run = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment,
        cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]


def test_checks(standin: dict[str, str]) -> None:
    """Every check finds nothing."""
    results = {name: result for name, result, _ in _run(standin, "-m", "tests.triton.standin")}
    assert results == dict.fromkeys(CHECKS, "")


# What computes tensors of each of two GPUs, of these capabilities.
CHOICE = """
import contextlib, json, os, sys, types, warnings
import torch
capabilities = json.loads(sys.argv[1])
cuda = torch.cuda
cuda.is_available, cuda.device_count = lambda: True, lambda: len(capabilities)
cuda.get_device_capability = lambda device=0: capabilities[device or 0]
cuda.device = lambda device: contextlib.nullcontext()
cuda.current_device, cuda.get_device_name, torch.version.cuda = lambda: 0, lambda: "a GPU", "13.0"
import npu_kernels
from npu_kernels import env
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as notices:
    backends = []
    for index in (0, 1, 0, 1):
        tensor = types.SimpleNamespace(device=torch.device("cuda", index), is_cpu=False)
        backends.append(npu_kernels.backend_for(tensor))
        with npu_kernels.use_backend("triton"):
            try:
                npu_kernels.backend_for(tensor)
            except RuntimeError as error:
                backends.append(str(error))
names = [f"npu_kernels::{layer}_{direction}" for layer in ("npu", "nmu", "nmru", "nalu", "inalu")
         for direction in ("forward", "backward")]
registered = all(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA") for name in names)
texts = [str(notice.message) for notice in notices]
print(json.dumps([env.environment()["triton on cuda"], backends, texts, registered]), flush=True)
os._exit(0)  # without unloading
"""


def _choice(environment: dict[str, str], capabilities: list[tuple[int, int]]) -> list[Any]:
    return _run(environment, "-c", CHOICE, json.dumps(capabilities))[-1]


def test_where_triton_cannot_launch(standin: dict[str, str], tmp_path: Path) -> None:
    """Formulas compute, without a C compiler or a cache that can be written; `env` says why."""
    new, file = [(9, 0), (9, 0)], tmp_path / "file"
    file.touch()
    cache, path = {"TRITON_CACHE_DIR": str(tmp_path / "cache")}, tmp_path / "path"
    path.mkdir()
    if program := shutil.which("file"):  # decides the names in Triton's cache
        (path / "file").symlink_to(program)
    no_compiler = {key: value for key, value in standin.items() if key != "CC"}
    no_compiler["PATH"] = str(path)
    for changes, problem in (
        (no_compiler | cache, "finds? .*C compiler"),
        (
            standin | {"TRITON_CACHE_DIR": str(file / "cache")},
            "NotADirectoryError.*TRITON_CACHE_DIR",
        ),
    ):
        state, backends, notices, registered = _choice(changes, new)
        assert re.search(rf"^unavailable: triton .*{problem}", state), state
        assert (backends[::2], registered) == (["reference"] * 4, False)
        assert all(re.search(problem, error) for error in backends[1::2])
        assert len(notices) == 1
        assert re.search(
            rf"cuda tensors are computed with the slower eager implementation .*{problem}",
            notices[0],
        )
    available = "available", ["triton"] * 4, [], True
    assert tuple(_choice(standin | cache, new)) == available
    # What Triton 3.7 and later ones need of a compiler is in the folder now.
    state, *_ = rest = _choice(no_compiler | cache, new)
    if importlib.metadata.version("triton").startswith("3.6."):
        assert re.search(r"^unavailable: triton 3\.6\.\d finds no C compiler", state)
    else:
        assert tuple(rest) == available


def test_an_old_gpu_beside_a_new_one(standin: dict[str, str]) -> None:
    """Tensors of the old one are computed by the formulas, with one notice."""
    why = "device 1 has compute capability 6.1, the kernels need 8.0"
    state, backends, (notice,), registered = _choice(standin, [(9, 0), (6, 1)])
    assert state == f"available: {why}"
    error = backends[2]
    assert backends == ["triton", "reference", error, "triton", "reference", error]
    assert "backend 'triton' cannot run on cuda:1 tensors. Candidates: " in error
    assert why in error
    assert "cuda:1 tensors are computed with the slower eager implementation" in notice
    assert why in notice
    assert not registered
