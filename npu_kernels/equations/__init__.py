"""Neural Power Unit, a layer: laws from tables of measurements, as sums of products of powers.

estimator.py   `NPURegressor`, the scikit-learn estimator; arguments.py checks its parameters
units.py       units as linear constraints on exponents
output.py      one output: rows held out, the kind of noise, the search, the last fit
problem.py     the rows as the search sees them, free of units; all of them in blocks
search.py      sums of more and more terms, for each output power
library.py     products with simple exponents: where the search starts
varpro.py      the exponents of many starts at once
refine.py      one sum: least squares in y, simple exponents, the criterion
many.py        `fit_many`: many problems
work.py        what a checkpoint keeps
equation.py    what comes out; table.py: the candidates, and a report in words

It needs numpy and scikit-learn: ``pip install 'npu_kernels[sklearn]'``.
"""

from npu_kernels._laws.table.equation import Equation, Interval
from npu_kernels._laws.table.estimator import EquationWarning, NPURegressor
from npu_kernels._laws.table.many import Outcome, Outcomes, fit_many
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
