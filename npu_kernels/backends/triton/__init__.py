"""Neural Power Unit, a layer: the Triton backend, for NVIDIA GPUs from compute capability 8.0 on and AMD's CDNA GPUs.

The functions named like the operators launch the kernels; they take CUDA tensors, or CPU tensors in a process started
with ``TRITON_INTERPRET=1``, where Triton's interpreter runs the same kernels. Importing this module imports no triton.

    npu           forward and backward on matrix tiles        npu_small    the same for layers with I, O < 16
    nmu           the multiplication unit                      reduction    sums of partial results in a fixed order
    nalu          NALU, iNALU: nalu_*_kernels, nac             tuning       configurations: tables.json
    ode           the time loop: ode_kernels                   launch       what launchers share
    device_math   arithmetic inside kernels
"""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "available",
    "inalu_backward",
    "inalu_forward",
    "nalu_backward",
    "nalu_forward",
    "nmu_backward",
    "nmu_forward",
    "npu_backward",
    "npu_forward",
    "ode_backward",
    "ode_fits",
    "ode_forward",
    "register",
]

_INTERPRET = "TRITON_INTERPRET"


@functools.cache
def _load() -> tuple[ModuleType, ModuleType, ModuleType, ModuleType]:
    """The modules with the kernels; imports triton."""
    from npu_kernels.backends.triton import nalu, nmu, npu, ode

    return npu, nmu, nalu, ode


@functools.cache
def _import_problem() -> str:
    """Why the kernels cannot be imported; empty if they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (`pip install triton`)"
    try:
        _load()
    except Exception as error:  # an installation can be broken in many ways, and any of them is the reason
        return f"triton does not load: {type(error).__name__}: {error}"
    return ""


@functools.cache
def _device_problem() -> str:
    """Why no CUDA device can run the kernels; empty if all can."""
    if not torch.cuda.is_available():
        if torch.version.cuda is None and torch.version.hip is None:
            return f"this torch ({torch.__version__}) is built without CUDA"
        return "torch finds no CUDA device or no working driver"
    if torch.version.hip is None:
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            if major < 8:
                return f"device {index} has compute capability {major}.{minor}, the kernels need 8.0"
    return ""


def available(device_type: str = "cuda") -> tuple[bool, str]:
    """Whether the kernels run on tensors of that device type, and if not, why."""
    if device_type not in ("cuda", "cpu"):
        return False, "runs on cuda tensors only (on cpu tensors with TRITON_INTERPRET=1)"
    problem = _import_problem()
    if problem:
        return False, problem
    import triton

    interprets = bool(triton.knobs.runtime.interpret)
    if device_type == "cpu":
        return interprets, "" if interprets else f"runs on cpu tensors only in a process started with {_INTERPRET}=1"
    problem = _device_problem()
    if not problem and interprets:
        problem = f"in a process started with {_INTERPRET}=1 triton interprets, on cpu tensors"
    return not problem, problem


def npu_forward(*args: Any) -> tuple[Tensor, Tensor]:
    """The operator ``npu_forward``: see `npu`."""
    return _load()[0].npu_forward(*args)


def npu_backward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The operator ``npu_backward``: see `npu`."""
    return _load()[0].npu_backward(*args)


def nmu_forward(*args: Any) -> Tensor:
    """The operator ``nmu_forward``: see `nmu`."""
    return _load()[1].nmu_forward(*args)


def nmu_backward(*args: Any) -> tuple[Tensor, Tensor]:
    """The operator ``nmu_backward``: see `nmu`."""
    return _load()[1].nmu_backward(*args)


def nalu_forward(*args: Any) -> tuple[Tensor, ...]:
    """The operator ``nalu_forward``: see `nalu`."""
    return _load()[2].nalu_forward(*args)


def nalu_backward(*args: Any) -> tuple[Tensor, ...]:
    """The operator ``nalu_backward``: see `nalu`."""
    return _load()[2].nalu_backward(*args)


def inalu_forward(*args: Any) -> tuple[Tensor, ...]:
    """The operator ``inalu_forward``: see `nalu`."""
    return _load()[2].inalu_forward(*args)


def inalu_backward(*args: Any) -> tuple[Tensor, ...]:
    """The operator ``inalu_backward``: see `nalu`."""
    return _load()[2].inalu_backward(*args)


def ode_forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The operator ``ode_forward``: see `ode`."""
    return _load()[3].ode_forward(*args)


def ode_backward(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The operator ``ode_backward``: see `ode`."""
    return _load()[3].ode_backward(*args)


def ode_fits(d: int, h: int, dtype: torch.dtype) -> bool:
    """Whether the time loop of such a model runs in one launch: see `ode`."""
    return _load()[3].fits(d, h, dtype)


@functools.cache
def register() -> torch.library.Library:
    """Register the launchers as the operators' CUDA kernels, once; call it where `available` says that they run."""
    library = torch.library.Library("npu_kernels", "IMPL", "CUDA")
    npu, nmu, nalu, _ = _load()
    for layer, module in (("npu", npu), ("nmu", nmu), ("nalu", nalu), ("inalu", nalu)):
        for name in (f"{layer}_forward", f"{layer}_backward"):
            library.impl(name, getattr(module, name))
    return library
