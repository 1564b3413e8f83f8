"""Where the Triton kernels of these tests run."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy
import pytest
import torch

from npu_kernels import backend_for, use_backend
from tests.support.samples import fill_uninitialized_with_nan

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETS and importlib.util.find_spec("triton"):
    from tests.triton.interpreter import quicken

    quicken()


def skip_unless_available(device: str) -> None:
    """Skip a test with the reason why Triton's kernels do not run on a device's tensors."""
    try:
        with use_backend("triton"):
            backend_for(torch.empty(1, device=device))
    except (RuntimeError, AssertionError) as reason:  # the latter is torch's, without a device
        pytest.skip(f"the triton backend does not run on {device} tensors: {reason}")


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=["interpreted", "gpu"]
)
def device(request: pytest.FixtureRequest) -> str:
    """The CPU if Triton interprets, the GPU if there is one; skipped with the reason otherwise."""
    skip_unless_available(request.param)
    return request.param


@pytest.fixture
def gpu() -> str:
    """Skip tests that mean something on a GPU only (mark them `gpu`)."""
    skip_unless_available("cuda")
    return "cuda"


@pytest.fixture
def kernels() -> Iterator[Any]:
    """The registered operators, which launch Triton's kernels."""
    with use_backend("triton"):
        yield torch.ops.npu_kernels


class Launch(NamedTuple):
    """A kernel of the interpreter, and what it was launched with."""

    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Launches(list[Launch]):
    """The launches of a test. The list may be cleared."""

    runs = True  # whether the kernels compute, too

    def names(self) -> list[str]:
        return [launch.kernel.__name__ for launch in self]


@pytest.fixture
def launched(device: str, monkeypatch: pytest.MonkeyPatch) -> Launches:
    if device != "cpu":
        pytest.skip("launches are seen in Triton's interpreter only")
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    launches, run = Launches(), interpreter.InterpretedFunction.run

    def note(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        launches.append(Launch(kernel, arguments, options))
        if launches.runs:
            run(kernel, *arguments, grid=grid, warmup=warmup, **options)

    monkeypatch.setattr(interpreter.InterpretedFunction, "run", note)
    return launches


@pytest.fixture(params=["small", "tiles"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both sets of NPU kernels for layers that are small enough for either."""
    pytest.importorskip("triton")
    from npu_kernels._triton import tuning

    if request.param == "tiles":
        monkeypatch.setattr(tuning, "SMALL", 0)
    return request.param


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    """Let tests set the matmul precision; silence NumPy's warnings of the interpreter.

    New memory is NaN there, so that a test sees a kernel that reads what nobody wrote.
    """
    before = torch.get_float32_matmul_precision()
    fill = fill_uninitialized_with_nan() if INTERPRETS else contextlib.nullcontext()
    with numpy.errstate(all="ignore"), fill:
        yield
    torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision(before)
