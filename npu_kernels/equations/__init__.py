"""Laws from tables of measurements, as sums of products of powers.

The code lies in `npu_kernels/_laws/table`; `_laws/products` has what laws of time series use too.

It needs numpy and scikit-learn: ``pip install 'npu_kernels[sklearn]'``.
"""

from npu_kernels._laws.table.equation import Equation
from npu_kernels._laws.table.estimator import NPURegressor
from npu_kernels._laws.table.interval import Interval
from npu_kernels._laws.table.many import Outcome, Outcomes, fit_many
from npu_kernels._laws.table.results import EquationWarning
from npu_kernels._laws.table.table import EquationTable

__all__ = [
    "Equation",
    "EquationTable",
    "EquationWarning",
    "Interval",
    "NPURegressor",
    "Outcome",
    "Outcomes",
    "fit_many",
]
