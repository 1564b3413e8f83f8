"""The Triton backend, for NVIDIA GPUs from compute capability 8.0 on and AMD's CDNA GPUs.

The functions named like the operators launch the kernels. They take CUDA tensors, or CPU tensors in
a process started with ``TRITON_INTERPRET=1``, where Triton's interpreter runs the same kernels.
Importing this module imports no triton.

    npu           NPU on matrix tiles                    npu_small    layers with I, O < 16
    npu_large     large layers                           costs        which layers are large
    npu_planes    the operands of large layers           launch       helpers of launchers
    nmu           NMU and NMRU                           reduction    sums of partial results
    nalu          NALU and iNALU                         tuning       configurations: tables.json
    ode           the ODE solver                         tape         repeated calls, in less time
    device_math   arithmetic inside kernels              interpreted  operators on CPU tensors
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import torch

from npu_kernels._operators import ops

__all__ = ["available", "for_graph", "launchers", "ode_fits", "register", "repeated"]

_INTERPRET = "TRITON_INTERPRET"
_MODULES = ("npu", "nmu", "nalu", "ode")  # with launchers


@functools.cache
def _load() -> dict[str, ModuleType]:
    """Import the modules with launchers, and triton."""
    return {name: importlib.import_module(f"{__name__}.{name}") for name in _MODULES}


@functools.cache
def launchers() -> dict[str, Callable[..., Any]]:
    """Return the functions named like the operators; imports triton."""
    modules, names = _load().values(), ops.NAMES + ops.TIME_LOOPS
    return {name: getattr(m, name) for m in modules for name in names if hasattr(m, name)}


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
def _old_devices() -> dict[int, str]:
    """Return the CUDA devices that cannot run the kernels, with what each of them has."""
    old = {}
    for index in range(0 if torch.version.hip else torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        if major < 8:
            capability = f"compute capability {major}.{minor}"
            old[index] = f"device {index} has {capability}, the kernels need 8.0"
    return old


@functools.cache
def _device_problem() -> str:
    """Return why no CUDA device can run the kernels; empty if one can."""
    if not torch.cuda.is_available():
        if torch.version.cuda is None and torch.version.hip is None:
            return f"this torch ({torch.__version__}) is built without CUDA"
        return "torch finds no CUDA device or no working driver"
    old = _old_devices()
    return ", ".join(old.values()) if len(old) == torch.cuda.device_count() else _launch_problem()


def _launch_problem() -> str:
    """Return why Triton can neither compile nor launch a kernel; empty if it can.

    It keeps what it compiles in a folder. To launch it needs a module in C, which a C compiler
    makes once for that folder, and before Triton 3.7 another one for each new kernel.
    """
    import triton
    from triton.runtime.cache import get_cache_manager

    try:
        get_cache_manager(hashlib.sha256(b"npu_kernels").hexdigest()).put("", "writable")
    except Exception as error:
        problem = f"triton cannot write what it compiles ({_first_line(error)})"
        return f"{problem}: set TRITON_CACHE_DIR to a folder where it can"
    try:
        triton.runtime.driver.active.get_current_target()
    except Exception as error:
        return f"triton cannot launch: {_first_line(error)}"
    compiler = triton.knobs.build.impl or os.environ.get("CC") or shutil.which("gcc")
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7) and not (
        compiler or shutil.which("clang")
    ):
        return f"triton {triton.__version__} finds no C compiler (CC, gcc or clang)"
    return ""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def available(device: torch.device | str = "cuda") -> tuple[bool, str]:
    """Return whether the kernels run on tensors of a device, or of a type of devices; if not, why.

    A type of devices needs one that can run them; the reason then names those that cannot.
    """
    device = torch.device(device)
    if device.type not in ("cuda", "cpu"):
        return False, "runs on cuda tensors only (on cpu tensors with TRITON_INTERPRET=1)"
    problem = _import_problem()
    if problem:
        return False, problem
    import triton

    interprets = bool(triton.knobs.runtime.interpret)
    if device.type == "cpu":
        problem = f"runs on cpu tensors only in a process started with {_INTERPRET}=1"
        return interprets, "" if interprets else problem
    problem = _device_problem()
    if not problem and interprets:
        problem = f"in a process started with {_INTERPRET}=1 triton interprets, on cpu tensors"
    if problem:
        return False, problem
    old = _old_devices()
    if device.index is None:
        return True, ", ".join(old.values())
    return device.index not in old, old.get(device.index, "")


_for_graph: ContextVar[bool] = ContextVar("npu_kernels.for_graph", default=False)


class for_graph:
    """Choose kernels in the block for a CUDA graph, where launches cost the host nothing.

    It holds for its thread, or within asyncio for its task, and in any thread for the backward of
    each forward in it (`dispatch.choices`). The steps before a capture belong to the block, because
    a kernel cannot be loaded while a stream is captured. So a capture outside of such a block takes
    the kernels of ordinary calls, which the steps before it have loaded.
    """

    active = _for_graph.get  # whether this thread or task is in such a block

    def __enter__(self) -> None:
        self.token = _for_graph.set(True)

    def __exit__(self, *error: object) -> None:
        _for_graph.reset(self.token)


def ode_fits(d: int, h: int, dtype: torch.dtype) -> bool:
    """Return whether the ODE solver of a model with D states, h outputs runs in one launch."""
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

    Launchers of the ODE solver are left out: `dispatch` decides whether a model fits one launch. On
    a machine that also has a device that is too old, all are left out: `dispatch` decides by the
    device of each call.
    """
    library = torch.library.Library("npu_kernels", "IMPL", "CUDA")
    for name, launcher in repeated().items() if not _old_devices() else ():
        library.impl(name, launcher)
    return library
