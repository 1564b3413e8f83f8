"""Equations from tables of measurements, as sums of products of powers.

_table/      tables: `NPURegressor`, `fit_many`, their search and reports
_series/     time series: `npu_kernels.ode.fit`
__main__.py  the command ``python -m npu_kernels.equations``
The other modules are for both: products of powers, what is known of them, equations.

Tables need numpy and scikit-learn: ``pip install 'npu_kernels[sklearn]'``.
"""

from typing import TYPE_CHECKING

from npu_kernels._common.lazy import lazily

if TYPE_CHECKING:
    from npu_kernels.equations._equation import Equation as Equation
    from npu_kernels.equations._numbers import Interval as Interval
    from npu_kernels.equations._table.estimator import EquationWarning as EquationWarning
    from npu_kernels.equations._table.estimator import NPURegressor as NPURegressor
    from npu_kernels.equations._table.many import Outcome as Outcome
    from npu_kernels.equations._table.many import Outcomes as Outcomes
    from npu_kernels.equations._table.many import fit_many as fit_many
    from npu_kernels.equations._table.report import EquationTable as EquationTable
else:
    _ROOM = "npu_kernels.equations"
    _MODULES = {
        "Equation": f"{_ROOM}._equation",
        "EquationTable": f"{_ROOM}._table.report",
        "EquationWarning": f"{_ROOM}._table.estimator",
        "Interval": f"{_ROOM}._numbers",
        "NPURegressor": f"{_ROOM}._table.estimator",
        "Outcome": f"{_ROOM}._table.many",
        "Outcomes": f"{_ROOM}._table.many",
        "fit_many": f"{_ROOM}._table.many",
    }
    __all__ = list(_MODULES)
    __getattr__, __dir__ = lazily(__name__, _MODULES)  # series need no numpy
