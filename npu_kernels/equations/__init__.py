"""Equations from tables of measurements, as sums of products of powers.

_table/      tables: `NPURegressor`, `fit_many`, their equations and reports
_series/     time series: `npu_kernels.ode.fit`
_products/   products of powers, which both search: units, limits, functions, groups of rows
__main__.py  the command ``python -m npu_kernels.equations``, with _reading.py

Tables need numpy and scikit-learn: ``pip install 'npu_kernels[sklearn]'``.
"""

from typing import TYPE_CHECKING

from npu_kernels._common.lazy import lazily

if TYPE_CHECKING:
    from npu_kernels.equations._table.equation import Equation as Equation
    from npu_kernels.equations._table.estimator import NPURegressor as NPURegressor
    from npu_kernels.equations._table.interval import Interval as Interval
    from npu_kernels.equations._table.many import Outcome as Outcome
    from npu_kernels.equations._table.many import Outcomes as Outcomes
    from npu_kernels.equations._table.many import fit_many as fit_many
    from npu_kernels.equations._table.results import EquationWarning as EquationWarning
    from npu_kernels.equations._table.table import EquationTable as EquationTable
else:
    _TABLE = "npu_kernels.equations._table"
    _MODULES = {
        "Equation": f"{_TABLE}.equation",
        "EquationTable": f"{_TABLE}.table",
        "EquationWarning": f"{_TABLE}.results",
        "Interval": f"{_TABLE}.interval",
        "NPURegressor": f"{_TABLE}.estimator",
        "Outcome": f"{_TABLE}.many",
        "Outcomes": f"{_TABLE}.many",
        "fit_many": f"{_TABLE}.many",
    }
    __all__ = list(_MODULES)
    __getattr__, __dir__ = lazily(__name__, _MODULES)  # series need no numpy
