"""Whether the Triton backend runs, its reasons when it does not, and its registration."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from npu_kernels._backends import triton as backend
from npu_kernels._operators import dispatch
from tests.triton.conftest import INTERPRETS


@pytest.fixture
def _fresh() -> Iterator[None]:
    """Answers are remembered; forget them before and after."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    for function in (backend._import_problem, backend._device_problem, backend._old_devices):
        function.cache_clear()


def _python(code: str, interpret: bool = False) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_importing_imports_no_triton() -> None:
    assert (
        _python("import sys, npu_kernels._backends.triton; print('triton' in sys.modules)")
        == "False"
    )


def test_cpu_tensors_only_where_triton_interprets() -> None:
    pytest.importorskip("triton")
    code = "from npu_kernels._backends.triton import available; print(available('cpu'))"
    assert _python(code, interpret=True) == "(True, '')"
    assert "runs on cpu tensors only in a process started with TRITON_INTERPRET=1" in _python(code)


def test_other_devices() -> None:
    runs, reason = backend.available("mps")
    assert not runs
    assert reason == "runs on cuda tensors only (on cpu tensors with TRITON_INTERPRET=1)"


@pytest.mark.usefixtures("_fresh")
def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert backend.available("cuda") == (False, "triton is not installed (`pip install triton`)")


@pytest.mark.usefixtures("_fresh")
def test_broken_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("libtriton.so: cannot open shared object file")

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(backend, "_load", broken)
    runs, reason = backend.available("cuda")
    assert not runs
    assert reason == "triton does not load: OSError: libtriton.so: cannot open shared object file"


@pytest.mark.usefixtures("_fresh")
def test_no_driver_and_old_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert backend.available("cuda") == (False, "torch finds no CUDA device or no working driver")
    monkeypatch.setattr(torch.version, "cuda", None)
    _forget()
    assert backend.available("cuda")[1].endswith("is built without CUDA")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7 - index, 5))
    _forget()
    old = [f"device {n} has compute capability {7 - n}.5, the kernels need 8.0" for n in range(2)]
    assert backend.available("cuda") == backend.available("cuda:1") == (False, ", ".join(old))


def test_reasons_reach_the_user() -> None:
    runs, reason = dispatch.reasons("cuda")["triton"]
    assert runs or reason


def test_registration() -> None:
    """The launchers become the operators' CUDA kernels, in a process of its own."""
    pytest.importorskip("triton")
    code = """
import torch, npu_kernels
from npu_kernels._backends import triton
assert triton.register() is triton.register()
print([name for name in npu_kernels._operators.ops.NAMES
       if not torch._C._dispatch_has_kernel_for_dispatch_key(f"npu_kernels::{name}", "CUDA")])
"""
    assert _python(code) == "[]"


def test_new_memory_is_not_a_number() -> None:
    """Memory is NaN: a test sees a kernel that leaves an element out, or reads what nobody wrote."""
    if not INTERPRETS:
        pytest.skip("memory of a GPU keeps what was there: filling it takes time")
    assert torch.empty(9).isnan().all()
    assert torch.ones(2).new_empty((9,), dtype=torch.float64).isnan().all()
    assert (torch.empty(9, dtype=torch.int32) == torch.iinfo(torch.int32).max).all()
