"""Whether data can tell an equation from the law: `NPURegressor`'s criterion (BIC) of both.

Both criteria are those of errors that are equal for all rows, as the benchmark's are. The law's
coefficients are fitted to the rows, with its exponents and output power; the equation stays as it
is. Parameters count as in the search. An equation whose criterion is no larger is not told apart
from the law.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from benchmarks.equations.laws import Law
from npu_kernels._laws.products.functions import OutputFunction
from npu_kernels._laws.products.problem import Columns, all_rows
from npu_kernels._laws.products.units import Exponents
from npu_kernels._laws.table.refine import Sum, refit
from npu_kernels.equations import Equation

Form = tuple[float, OutputFunction | None]  # the power of y, the function of y


def of(equation: Equation, X: np.ndarray, y: np.ndarray) -> float | None:
    """The criterion of an equation; None if it is not finite."""
    coef = np.log(np.abs(equation.scaled)) + equation.power * math.log(equation.scale)
    coef -= equation.exponents @ equation.log_mean
    sign = np.sign(equation.scaled) * (equation.sign if abs(equation.power) == 1 else 1)
    form = equation.power, equation.function
    X = equation.functions.expand(X)
    return _cost(X, y, form, sign, coef, equation.exponents, equation.free, iterations=0)


def of_law(law: Law, X: np.ndarray, y: np.ndarray) -> float | None:
    """The criterion of a law; None if it is not finite."""
    coef = np.array([coef for coef, _ in law.terms])
    free = np.zeros(law.exponents.shape, dtype=bool)
    form = law.power, OutputFunction(law.function) if law.function else None
    size = np.log(np.abs(coef))
    return _cost(law.expanded(X), y, form, np.sign(coef), size, law.exponents, free, iterations=20)


def _cost(
    X: np.ndarray, y: np.ndarray, form: Form, sign: np.ndarray, log_coef: np.ndarray,
    exponents: np.ndarray, free: np.ndarray, iterations: int,
) -> float | None:  # fmt: skip
    power, function = form
    columns, inputs = Columns.of(X), Exponents.unrestricted(X.shape[1])
    rows = all_rows(
        columns, y, np.ones(len(y)), 1.0, inputs, None, function=function
    )  # those of another power need a y of one sign
    assert rows is not None
    if abs(power) == 1:  # the target is rows.sign * y
        sign = sign * rows.sign
    c = (
        sign
        * rows.outer_signs(exponents)
        * np.exp(log_coef + exponents @ columns.log_mean - power * math.log(rows.scale))
    )
    parity = np.where(columns.negative, np.round(exponents) % 2, 0.0)
    cost = refit(
        replace(rows, power=power), Sum(exponents, parity, free, c), iterations=iterations
    ).cost
    return cost if math.isfinite(cost) else None
