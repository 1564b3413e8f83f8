"""Whether data distinguish an equation from the true one: `NPURegressor`'s criterion (BIC) of both.

Both criteria are those of errors that are equal for all rows, as the benchmark's are. The
equation's coefficients are fitted to the rows, with its exponents and output power; the equation
stays as it is. Parameters count as in the search. An equation whose criterion is no larger is not
told apart from the true one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from benchmarks.equations.known_equations import KnownEquation
from npu_kernels.equations import Equation
from npu_kernels.equations._functions import OutputFunction
from npu_kernels.equations._problem import Columns, Output
from npu_kernels.equations._table.refine import Sum, refit
from npu_kernels.equations._units import Exponents

# The power of y, the function of y, and how many terms a denominator has beside a 1.
Form = tuple[float, OutputFunction | None, int]


def of(equation: Equation, X: np.ndarray, y: np.ndarray) -> float | None:
    """The criterion of an equation; None if it is not finite."""
    above = np.arange(equation.n_terms) < equation.n_terms - equation.n_denominator_terms
    coef = np.log(np.abs(equation.scaled)) - equation.exponents @ equation.log_mean
    coef[above] += equation.target_power * math.log(equation.scale)
    sign = np.sign(equation.scaled)
    sign[above] *= equation.sign if abs(equation.target_power) == 1 else 1
    form = equation.target_power, equation.target_transform, equation.n_denominator_terms
    X = equation.functions.expand(X)
    return _cost(X, y, form, sign, coef, equation.exponents, equation.free, iterations=0)


def of_equation(equation: KnownEquation, X: np.ndarray, y: np.ndarray) -> float | None:
    """The criterion of an equation; None if it is not finite.

    A ratio is over each of the terms of its denominator in turn: the least counts.
    """
    costs, X = list[float | None](), equation.expanded(X)
    for k in range(max(1, len(equation.below))):
        terms = (*equation.terms, *equation.below[:k], *equation.below[k + 1 :])
        coef, exponents = np.array([coef for coef, _ in terms]), equation.exponents_of(terms)
        if equation.below:
            coef = coef / equation.below[k][0]
            exponents = exponents - equation.exponents_of(equation.below[k : k + 1])
        free = np.zeros(exponents.shape, dtype=bool)
        function = OutputFunction(equation.function) if equation.function else None
        form = equation.power, function, max(0, len(equation.below) - 1)
        size, sign = np.log(np.abs(coef)), np.sign(coef)
        costs.append(_cost(X, y, form, sign, size, exponents, free, iterations=20))
    return min((cost for cost in costs if cost is not None), default=None)


def _cost(
    X: np.ndarray, y: np.ndarray, form: Form, sign: np.ndarray, log_coef: np.ndarray,
    exponents: np.ndarray, free: np.ndarray, iterations: int,
) -> float | None:  # fmt: skip
    power, function, below = form
    columns, inputs = Columns.of(X), Exponents.unrestricted(X.shape[1])
    output = Output(columns, y, np.ones(len(y)), inputs, function=function)
    rows = output.scaled(1.0, below)  # those of another power need a y of one sign
    assert rows is not None
    above = np.arange(len(sign)) < len(sign) - below
    if abs(power) == 1:  # the target is rows.sign * y
        sign = np.where(above, sign * rows.sign, sign)
    log_coef = log_coef - np.where(above, power * math.log(rows.scale), 0.0)
    c = sign * rows.outer_signs(exponents) * np.exp(log_coef + exponents @ columns.log_mean)
    parity = np.where(columns.negative, np.round(exponents) % 2, 0.0)
    cost = refit(
        replace(rows, power=power), Sum(exponents, parity, free, c), iterations=iterations
    ).cost
    return cost if math.isfinite(cost) else None
