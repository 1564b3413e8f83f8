"""Neural ODEs of Neural Power Units, ``u' = NAU(NPU(u))``, and equations of time series.

rollout          the trajectory of an NPU and a NAU, and its exact discrete adjoint
integrate        the same for weights instead of modules
interpolate      a trajectory at any times, linear or with cubic Hermite polynomials
fit              differential equations of time series, with confidence intervals
first_nonfinite  the first step at which a trajectory is inf or nan
"""

from typing import TYPE_CHECKING

from npu_kernels._common.checks import NonFiniteError
from npu_kernels._common.lazy import lazily
from npu_kernels.ode._adaptive import Statistics
from npu_kernels.ode._checks import InaccurateError, StepSizeError, StiffWarning, first_nonfinite
from npu_kernels.ode._interpolation import interpolate
from npu_kernels.ode._methods import METHODS
from npu_kernels.ode._rollout import integrate, rollout

if TYPE_CHECKING:
    from npu_kernels.equations._series.diagnostics import Diagnostics, PoorFitWarning
    from npu_kernels.equations._series.estimates import Estimate
    from npu_kernels.equations._series.fit import fit
    from npu_kernels.equations._series.result import SeriesFitResult

__all__ = [
    "METHODS",
    "Diagnostics",
    "Estimate",
    "InaccurateError",
    "NonFiniteError",
    "PoorFitWarning",
    "SeriesFitResult",
    "Statistics",
    "StepSizeError",
    "StiffWarning",
    "first_nonfinite",
    "fit",
    "integrate",
    "interpolate",
    "rollout",
]

if not TYPE_CHECKING:
    # The search for equations solves with the modules of this folder, and so comes after them.
    _SERIES = "npu_kernels.equations._series"
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "Estimate": f"{_SERIES}.estimates",
            "PoorFitWarning": f"{_SERIES}.diagnostics",
            "SeriesFitResult": f"{_SERIES}.result",
            "Diagnostics": f"{_SERIES}.diagnostics",
            "fit": f"{_SERIES}.fit",
        },
    )
