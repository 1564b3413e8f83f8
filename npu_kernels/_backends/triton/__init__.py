"""The Triton backend, for NVIDIA GPUs from compute capability 8.0 on and AMD's CDNA GPUs.

The functions named like the operators launch the kernels. They take CUDA tensors, or CPU tensors in
a process started with ``TRITON_INTERPRET=1``, where Triton's interpreter runs the same kernels.
Importing this module imports no triton.

    npu           NPU on matrix tiles                    npu_small    layers with I, O < 16
    npu_large     large layers: npu_large_*_kernels      costs        which layers are large
    npu_planes    the operands of large layers           launch       helpers of launchers
    nmu           the multiplication unit                reduction    sums of partial results
    nalu          NALU, iNALU: nalu_*_kernels, nac       tuning       configurations: tables.json
    ode           the time loop: ode_kernels             tape         repeated calls, in less time
    device_math   arithmetic inside kernels
    weight_gradients    the end of an NPU's backward
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch

from npu_kernels._operators import ops

# And the launchers' names.
__all__ = ["available", "for_graph", "launchers", "ode_fits", "register", "repeated"]

_INTERPRET = "TRITON_INTERPRET"
_MODULES = ("npu", "nmu", "nalu", "ode")  # with launchers


@functools.cache
def _load() -> dict[str, ModuleType]:
    """Import the modules with launchers, and triton."""
    return {name: importlib.import_module(f"{__name__}.{name}") for name in _MODULES}


def _names_launcher(name: str) -> bool:
    return name.endswith(("_forward", "_backward")) and not name.startswith("_")


@functools.cache
def launchers() -> dict[str, Callable[..., Any]]:
    """Return the functions named like the operators; imports triton."""
    members = [member for module in _load().values() for member in vars(module).items()]
    return {name: value for name, value in members if _names_launcher(name) and callable(value)}


def __getattr__(name: str) -> Any:
    if _names_launcher(name) and name in launchers():
        return launchers()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _import_problem() -> str:
    """Return why the kernels cannot be imported; empty if they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (`pip install triton`)"
    try:
        _load()
    except Exception as error:  # a broken installation can raise anything
        return f"triton does not load: {type(error).__name__}: {error}"
    return ""


@functools.cache
def _device_problem() -> str:
    """Return why a CUDA device cannot run the kernels; empty if all can."""
    if not torch.cuda.is_available():
        if torch.version.cuda is None and torch.version.hip is None:
            return f"this torch ({torch.__version__}) is built without CUDA"
        return "torch finds no CUDA device or no working driver"
    if torch.version.hip is None:
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            if major < 8:
                capability = f"compute capability {major}.{minor}"
                return f"device {index} has {capability}, the kernels need 8.0"
    return ""


def available(device_type: str = "cuda") -> tuple[bool, str]:
    """Return whether the kernels run on tensors of that device type, and if not, why."""
    if device_type not in ("cuda", "cpu"):
        return False, "runs on cuda tensors only (on cpu tensors with TRITON_INTERPRET=1)"
    problem = _import_problem()
    if problem:
        return False, problem
    import triton

    interprets = bool(triton.knobs.runtime.interpret)
    if device_type == "cpu":
        problem = f"runs on cpu tensors only in a process started with {_INTERPRET}=1"
        return interprets, "" if interprets else problem
    problem = _device_problem()
    if not problem and interprets:
        problem = f"in a process started with {_INTERPRET}=1 triton interprets, on cpu tensors"
    return not problem, problem


_for_graph: ContextVar[bool] = ContextVar("npu_kernels.for_graph", default=False)


class for_graph:
    """Choose kernels in the block for a CUDA graph, where launches cost the host nothing.

    It holds for its thread, or within asyncio for its task, and for the backward of each forward in
    it, in any thread (`dispatch.kept`). The steps before a capture belong to the block, because a
    kernel cannot be loaded while a stream is captured. So a capture outside of such a block takes
    the kernels of ordinary calls, which the steps before it have loaded.
    """

    active = _for_graph.get  # whether this thread or task is in such a block

    def __enter__(self) -> None:
        self.token = _for_graph.set(True)

    def __exit__(self, *error: object) -> None:
        _for_graph.reset(self.token)


def ode_fits(d: int, h: int, dtype: torch.dtype) -> bool:
    """Return whether the time loop of a model with D states and h outputs runs in one launch."""
    return bool(_load()["ode"].fits(d, h, dtype))


@functools.cache
def repeated() -> dict[str, Callable[..., Any]]:
    """Return the layers' launchers, which leave out what is the same at every call: see `tape`."""
    return {name: repeat(name, launchers()[name]) for name in ops.NAMES}


def repeat(name: str, launcher: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator's launcher as a `tape.Repeated`; imports triton."""
    layer_name, _, direction = name.rpartition("_")
    layer = ops.LAYERS[layer_name]
    operands = layer.operands + (0 if direction == "forward" else 1 + len(layer.saved))
    tape: Any = importlib.import_module(f"{__name__}.tape")
    return tape.Repeated(launcher, operands)  # type: ignore[no-any-return]


@functools.cache
def register() -> torch.library.Library:
    """Register the launchers as the operators' CUDA kernels, once, where they are `available`.

    Launchers of the time loop are left out: `dispatch` decides whether a model fits one launch.
    """
    library = torch.library.Library("npu_kernels", "IMPL", "CUDA")
    for name, launcher in repeated().items():
        library.impl(name, launcher)
    return library
