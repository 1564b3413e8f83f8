"""Neural ODEs of Neural Power Units, ``u' = NAU(NPU(u))``, and laws of time series.

rollout          the trajectory of a power layer and a NAU, and its exact discrete adjoint
integrate        the same for weights that are no modules
interpolate      a trajectory at any times, linear or by cubic Hermite polynomials
fit              from time series to their law, as an equation with confidence intervals
first_nonfinite  where trajectories leave the finite numbers
rollout_any      any other model, through torchdiffeq or by implicit steps in eager torch
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from npu_kernels._common.errors import NonFiniteError
from npu_kernels.ode._accuracy import InaccurateError, StepSizeError, StiffWarning
from npu_kernels.ode._adaptive import Statistics
from npu_kernels.ode._checks import first_nonfinite
from npu_kernels.ode._interpolation import interpolate
from npu_kernels.ode._loop.methods import METHODS
from npu_kernels.ode._other import rollout_any
from npu_kernels.ode._solver import integrate, rollout

if TYPE_CHECKING:
    from npu_kernels.equations._series.estimates import Estimate
    from npu_kernels.equations._series.fit import fit
    from npu_kernels.equations._series.result import SeriesFit
    from npu_kernels.equations._series.verdict import PoorFitWarning, Verdict

__all__ = [
    "METHODS",
    "Estimate",
    "InaccurateError",
    "NonFiniteError",
    "PoorFitWarning",
    "SeriesFit",
    "Statistics",
    "StepSizeError",
    "StiffWarning",
    "Verdict",
    "first_nonfinite",
    "fit",
    "integrate",
    "interpolate",
    "rollout",
    "rollout_any",
]

# What finds equations solves with the modules of this folder: imported at the first use.
_OF_SERIES = {
    "Estimate": "estimates",
    "PoorFitWarning": "verdict",
    "SeriesFit": "result",
    "Verdict": "verdict",
    "fit": "fit",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import what `fit` is and gives, at its first use."""
        if name in _OF_SERIES:
            return getattr(import_module(f"npu_kernels.equations._series.{_OF_SERIES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
