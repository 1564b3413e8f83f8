"""The library of the fast path: which file serves a torch and a Python, and why none is loaded."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from npu_kernels._backends import cpu, fast_path
from tests.conftest import needs_library
from tests.support.building import run_python

pytestmark = needs_library


def as_torch(version: str, code: str) -> str:
    """The output, with warnings, of code in a process whose torch says that it is that version."""
    run = run_python("-c", f"import torch; torch.__version__ = {version!r}; {code}")
    assert run.returncode == 0, run.stderr
    return run.stdout + run.stderr


def test_another_torch_does_not_load_it() -> None:
    said = as_torch(
        "2.10.0",
        "from npu_kernels._backends import fast_path; print(fast_path.npu, fast_path.reason)",
    )
    assert said.startswith("None there is no fast_path-torch2.10.0-")
    assert fast_path.LIBRARY.name.split("-")[1] in said  # those that there are


def test_another_torch_gets_one_notice_that_says_what_to_do() -> None:
    layers = (
        "import npu_kernels; x = torch.ones(2, 3); "
        "npu_kernels.NPU(3, 2)(x); npu_kernels.NMU(3, 2)(x)"
    )
    said = as_torch("2.10.0", layers)
    assert said.count("the fast path from Python to the kernels is missing") == 1
    assert cpu.build_command() in said
    assert as_torch(torch.__version__, layers) == ""


def test_another_torch_that_cannot_load_its_library_says_so(tmp_path: Path) -> None:
    library = tmp_path / fast_path.file_names("2.10.0", sys.implementation.cache_tag)[0]
    library.write_text("no library")
    code = f"from npu_kernels._backends import cpu, fast_path; fast_path.LIBRARY = type(cpu.LIBRARY)({str(library)!r}); "
    said = as_torch("2.10.0", code + "fast_path.load(); print(fast_path.npu, fast_path.reason)")
    assert said.startswith(f"None {library.name} does not load with torch 2.10.0:")


def test_a_library_of_another_build_does_not_load(tmp_path: Path) -> None:
    """Kernels and fast path of different sources would take each other's arguments wrongly."""
    stamp = b"npu_kernels_interface_"
    kernels = cpu.LIBRARY.read_bytes()
    assert stamp in kernels
    (tmp_path / cpu.LIBRARY.name).write_bytes(kernels.replace(stamp, stamp[::-1]))
    shutil.copy(fast_path.LIBRARY, tmp_path)
    code = f"import torch, ctypes; ctypes.CDLL({str(tmp_path / fast_path.LIBRARY.name)!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(r"OSError: .*undefined symbol: npu_kernels_interface_\w+", run.stderr), (
        run.stderr
    )


@pytest.mark.parametrize(
    ("version", "versions"),
    [("2.13.0", ["2.13.0"]), ("2.13.0+cpu", ["2.13.0+cpu", "2.13.0"]),
     ("2.13.0+cu130", ["2.13.0+cu130", "2.13.0"]), ("2.13.0a0+git1234567", ["2.13.0a0+git1234567"]),
     ("2.14.0.dev20260901+cpu", ["2.14.0.dev20260901+cpu"])],
)  # fmt: skip
def test_it_serves_a_release_whatever_its_local_version(version: str, versions: list[str]) -> None:
    assert fast_path.file_names(version, "cpython-312") == [
        f"fast_path-torch{name}-cpython-312.so" for name in versions
    ]


def test_a_python_without_a_global_lock_has_a_library_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tag = sys.implementation.cache_tag
    for flags in ("t", ""):
        monkeypatch.setattr(sys, "abiflags", flags, raising=False)
        assert fast_path._library().name.endswith(f"-{tag}{flags}.so")
    monkeypatch.delattr(sys, "abiflags")  # Windows has none
    assert fast_path._library().name.endswith(f"-{tag}.so")


def test_the_best_library_that_exists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    monkeypatch.setattr(cpu, "LIBRARY", tmp_path / cpu.LIBRARY.name)
    best = fast_path._library()
    assert best.name.startswith("fast_path-torch2.13.0+cu130-")
    release = best.with_name(best.name.replace("+cu130", ""))
    release.touch()
    assert fast_path._library() == release
    best.touch()
    assert fast_path._library() == best


def test_it_says_why_it_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = fast_path.npu
    monkeypatch.setattr(fast_path, "reason", "")  # which is restored
    monkeypatch.setattr(fast_path, "LIBRARY", tmp_path / "fast_path-torch0.so")
    fast_path.load()
    assert fast_path.reason == "there is no fast_path-torch0.so (there is none)"
    monkeypatch.setattr(cpu, "available", lambda: (False, "there are no kernels"))
    fast_path.load()
    assert fast_path.reason == "there are no kernels"
    assert fast_path.npu is before
