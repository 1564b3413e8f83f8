"""Whether the Triton backend runs, its reasons when it does not, and its registration."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from npu_kernels import backend_for, use_backend
from tests.support.building import run_forked
from tests.triton.conftest import INTERPRETS


def _python(code: str, **variables: str) -> str:
    run = run_forked(code, env={"TRITON_INTERPRET": "", **variables})
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


ON_THE_CPU = """
import torch, npu_kernels
try:
    with npu_kernels.use_backend("triton"):
        print(npu_kernels.backend_for(torch.ones(1)))
except RuntimeError as error:
    print(error)
"""


def test_importing_imports_no_triton() -> None:
    assert _python("import sys, npu_kernels; print('triton' in sys.modules)") == "False"


def test_cpu_tensors_only_where_triton_interprets() -> None:
    pytest.importorskip("triton")
    assert _python(ON_THE_CPU, TRITON_INTERPRET="1") == "triton"
    reason = "runs on cpu tensors only in a process started with TRITON_INTERPRET=1"
    assert reason in _python(ON_THE_CPU)


def test_other_devices() -> None:
    tensor: Any = SimpleNamespace(device=torch.device("mps"), is_cpu=False)
    reason = "runs on cuda tensors only (on cpu tensors with TRITON_INTERPRET=1)"
    with use_backend("triton"), pytest.raises(RuntimeError, match=re.escape(reason)):
        backend_for(tensor)


def test_no_triton_and_one_that_does_not_load(tmp_path: Path) -> None:
    state = """
import importlib.util, sys
if "without" in sys.argv:
    importlib.util.find_spec = lambda name: None
from npu_kernels import env
print(env.environment()["triton on cuda"])
"""
    without = "import sys; sys.argv.append('without')" + state
    assert _python(without) == "unavailable: triton is not installed (`pip install triton`)"
    problem = "libtriton.so: cannot open shared object file"
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text(f"raise OSError({problem!r})")
    broken = f"import sys; sys.path.insert(0, {str(tmp_path)!r})" + state
    assert _python(broken) == f"unavailable: triton does not load: OSError: {problem}"


@pytest.mark.parametrize(
    ("torch_of", "reason"),
    [
        ("cuda.is_available, version.cuda = lambda: False, '13.0'",
         "torch finds no CUDA device or no working driver"),
        ("cuda.is_available, version.cuda, version.hip = lambda: False, None, None",
         "is built without CUDA"),
        ("cuda.is_available, version.cuda = lambda: True, '13.0'; "
         "cuda.device_count, cuda.get_device_capability = lambda: 2, lambda index: (7 - index, 5)",
         "device 0 has compute capability 7.5, the kernels need 8.0, "
         "device 1 has compute capability 6.5, the kernels need 8.0"),
    ],
    ids=["no device", "no CUDA", "old devices"],
)  # fmt: skip
def test_no_driver_and_old_gpus(torch_of: str, reason: str) -> None:
    pytest.importorskip("triton")
    code = f"""
import torch
from torch import cuda, version
{torch_of}
from types import SimpleNamespace
import npu_kernels
try:
    with npu_kernels.use_backend("triton"):
        npu_kernels.backend_for(SimpleNamespace(device=torch.device("cuda", 1), is_cpu=False))
except RuntimeError as error:
    print(error)
"""
    assert reason in _python(code)


def test_new_memory_is_not_a_number() -> None:
    """Memory is NaN: a test sees a kernel that leaves an element out, or reads what nobody wrote."""
    if not INTERPRETS:
        pytest.skip("memory of a GPU keeps what was there: filling it takes time")
    assert torch.empty(9).isnan().all()
    assert torch.ones(2).new_empty((9,), dtype=torch.float64).isnan().all()
    assert (torch.empty(9, dtype=torch.int32) == torch.iinfo(torch.int32).max).all()
