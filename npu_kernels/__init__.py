"""Neural Power Unit, a layer: fused kernels for PyTorch, and for its siblings NAU, NMU, NAC, NALU and iNALU.

    >>> import torch
    >>> from npu_kernels import NAU, NPU
    >>> model = torch.nn.Sequential(NPU(2, 6), NAU(6, 4))
    >>> model(torch.rand(100, 2)).shape
    torch.Size([100, 4])

The layer of Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020; not an accelerator.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from npu_kernels import fitting, formula, functional, interop, ode, optim, reference, trace, training
from npu_kernels.dispatch import backend_for, use_backend
from npu_kernels.fitting import fit, fit_many
from npu_kernels.layers import NAC, NALU, NAU, NMU, NPU, NaiveNPU, RealNPU, iNALU

try:
    __version__ = version("npu_kernels")
except PackageNotFoundError:  # imported from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "NAC",
    "NALU",
    "NAU",
    "NMU",
    "NPU",
    "NPURegressor",
    "NaiveNPU",
    "RealNPU",
    "__version__",
    "backend_for",
    "fit",
    "fit_many",
    "fitting",
    "formula",
    "functional",
    "iNALU",
    "interop",
    "ode",
    "optim",
    "reference",
    "trace",
    "training",
    "use_backend",
]


def __getattr__(name: str) -> Any:
    """`NPURegressor` when it is asked for: scikit-learn takes a second to import, and need not be installed."""
    if name == "NPURegressor":
        from npu_kernels.equations import NPURegressor

        return NPURegressor
    raise AttributeError(f"module 'npu_kernels' has no attribute {name!r}")
