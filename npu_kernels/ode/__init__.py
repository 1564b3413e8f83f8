"""Neural Power Unit, a layer, in a time loop: neural ODEs ``u' = NAU(NPU(u))``, K of them in one call.

rollout          the trajectory of a power layer and a NAU, by fixed or adaptive steps, and its exact discrete adjoint
integrate        the same for weights that are no modules
interpolate      a trajectory at any times, linear or by cubic Hermite polynomials
fit              from time series to their law, as an equation with confidence intervals
first_nonfinite  where trajectories leave the finite numbers
rollout_any      any other model, through torchdiffeq
"""

from npu_kernels.ode.accuracy import InaccurateError, StepSizeError, StiffWarning
from npu_kernels.ode.adaptive import Statistics
from npu_kernels.ode.checks import NonFiniteError, first_nonfinite
from npu_kernels.ode.interpolation import interpolate
from npu_kernels.ode.other import rollout_any
from npu_kernels.ode.reference import METHODS
from npu_kernels.ode.solver import integrate, rollout
from npu_kernels.ode.time_series import fit
from npu_kernels.ode.time_series_result import Estimate, SeriesFit

__all__ = [
    "METHODS",
    "Estimate",
    "InaccurateError",
    "NonFiniteError",
    "SeriesFit",
    "Statistics",
    "StepSizeError",
    "StiffWarning",
    "first_nonfinite",
    "fit",
    "integrate",
    "interpolate",
    "rollout",
    "rollout_any",
]
