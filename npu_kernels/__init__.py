"""Neural Power Unit: layers that learn products and powers, fused for PyTorch. Equations from data.

    >>> import torch
    >>> from npu_kernels import NAU, NPU
    >>> model = torch.nn.Sequential(NPU(2, 6), NAU(6, 4))
    >>> model(torch.rand(100, 2)).shape
    torch.Size([100, 4])

`layers` has NPU and its siblings, such as NAU, NMU and iNALU. `NPURegressor` finds the equation of
a table, `ode.fit` the differential equations of a time series. An NPU here is the layer of Heim,
Pevny, Smidl, "Neural Power Units", NeurIPS 2020, not an accelerator.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from npu_kernels import functional, interop, layers, optim, reference, training
from npu_kernels._common.lazy import lazily
from npu_kernels._operators.dispatch import backend_for as backend_for
from npu_kernels._operators.dispatch import use_backend as use_backend
from npu_kernels.layers import *  # noqa: F403
from npu_kernels.training import debug

if TYPE_CHECKING:
    from npu_kernels import fitting, formula, ode
    from npu_kernels.equations import NPURegressor as NPURegressor
    from npu_kernels.fitting import fit as fit
    from npu_kernels.fitting import fit_batch as fit_batch

try:
    __version__ = version("npu_kernels")
except PackageNotFoundError:  # imported from a source tree that is not installed
    __version__ = "0+unknown"


def _has_numpy() -> bool:
    try:
        return find_spec("numpy") is not None
    except ValueError:  # a stand-in for it, without a __spec__, has been imported
        return False


if not TYPE_CHECKING:  # type checkers know the names by the imports, and report missing ones
    __all__ = [
        "__version__",
        "backend_for",
        "fit",
        "fit_batch",
        "fitting",
        "formula",
        "functional",
        "interop",
        "layers",
        "ode",
        "optim",
        "reference",
        "debug",
        "training",
        "use_backend",
        *layers.__all__,
    ]
    if _has_numpy():
        __all__ += ["NPURegressor"]  # by __getattr__

    __getattr__, __dir__ = lazily(
        __name__,
        {
            **{name: f"npu_kernels.{name}" for name in ("fitting", "formula", "ode")},
            "NPURegressor": "npu_kernels.equations",
            "fit": "npu_kernels.fitting",
            "fit_batch": "npu_kernels.fitting",
        },
    )
