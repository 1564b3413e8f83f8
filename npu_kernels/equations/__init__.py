"""Equations from tables of measurements, as sums of products of powers.

_table/      tables: `NPURegressor`, `fit_many`, their equations and reports
_series/     time series: `npu_kernels.ode.fit`
_products/   products of powers, which both search: units, limits, functions, groups of rows
__main__.py  the command ``python -m npu_kernels.equations``, with _reading.py

Tables need numpy and scikit-learn: ``pip install 'npu_kernels[sklearn]'``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    # Series need no numpy: the modules of tables are imported at their first use.
    _MODULES = {
        "Equation": "equation",
        "EquationTable": "table",
        "EquationWarning": "results",
        "Interval": "interval",
        "NPURegressor": "estimator",
        "Outcome": "many",
        "Outcomes": "many",
        "fit_many": "many",
    }
    __all__ = list(_MODULES)

    def __getattr__(name: str) -> Any:
        """Import what tables have, at its first use."""
        if name in _MODULES:
            return getattr(import_module(f"npu_kernels.equations._table.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
