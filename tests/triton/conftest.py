"""Where the Triton kernels of these tests run."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from types import ModuleType

import numpy
import pytest
import torch

from npu_kernels._backends import triton as kernels_module
from npu_kernels._operators.precision import float32_matmul_precision
from npu_kernels._testing.samples import fill_uninitialized_with_nan

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETS and importlib.util.find_spec("triton"):
    from tests.triton.interpreter import quicken

    quicken()


def _skip_unless_available(device: str) -> None:
    runs, reason = kernels_module.available(device)
    if not runs:
        pytest.skip(f"the triton backend does not run on {device} tensors: {reason}")


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=["interpreted", "gpu"]
)
def device(request: pytest.FixtureRequest) -> str:
    """The CPU if Triton interprets, the GPU if there is one; skipped with the reason otherwise."""
    _skip_unless_available(request.param)
    return request.param


@pytest.fixture
def gpu() -> str:
    """Skip tests that mean something on a GPU only (mark them `gpu`)."""
    _skip_unless_available("cuda")
    return "cuda"


@pytest.fixture
def kernels() -> ModuleType:
    """The launchers, which have the operators' names and signatures."""
    return kernels_module


@pytest.fixture(params=["small", "tiles"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both sets of NPU kernels for layers that are small enough for either."""
    pytest.importorskip("triton")
    from npu_kernels._backends.triton import tuning

    if request.param == "tiles":
        monkeypatch.setattr(tuning, "SMALL", 0)
    return request.param


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    """Let tests set the matmul precision; silence NumPy's warnings of the interpreter.

    New memory is NaN there, so that a test sees a kernel that reads what nobody wrote.
    """
    before = float32_matmul_precision("cpu")
    fill = fill_uninitialized_with_nan() if INTERPRETS else contextlib.nullcontext()
    with numpy.errstate(all="ignore"), fill:
        yield
    torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision(before)
