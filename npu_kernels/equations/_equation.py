"""One equation: its formula, parameters with standard errors, predictions, and its layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from npu_kernels._common import display
from npu_kernels._common.checks import check_level, check_whole
from npu_kernels.equations._expression import Expression
from npu_kernels.equations._functions import (
    Column,
    Functions,
    OutputFunction,
)
from npu_kernels.equations._limits import Limits
from npu_kernels.equations._numbers import (
    DIGITS,
    ROUNDING,
    Interval,
    estimate_text,
    exponent_text,
    term_text,
)
from npu_kernels.equations._rows import blocks, indices, summed
from npu_kernels.equations._units import Exponents
from npu_kernels.layers import RealNPU

if TYPE_CHECKING:
    from npu_kernels.formula import Formula

Array = Any

WHOLE = 1e-9  # distance from an integer up to which an exponent is one

# ---- layers --------------------------------------------------------------------------------------
# The layers of an equation: its products of powers, and functions.


class Products(RealNPU):
    """A `RealNPU` whose products are 0 where an input with a positive exponent is 0.

    A `RealNPU` has ``eps**w`` there, which is far from 0 if w is near 0. Powers of negative inputs
    whose exponents are not integers are nan.
    """

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight_re
        zeros = (x == 0).to(x.dtype) @ (w > 0).to(x.dtype).mT
        roots = (x < 0).to(x.dtype) @ ((w - w.round()).abs() > WHOLE).to(x.dtype).mT
        return torch.where(roots > 0, math.nan, torch.where(zeros > 0, 0.0, super().forward(x)))


def product(*exponents: float) -> Products:
    """Return a layer that is one product with these exponents."""
    layer = Products(len(exponents), 1, eps=1e-300, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_re.copy_(torch.tensor([exponents]))
        layer.gate.fill_(1.0)  # type: ignore[union-attr]
    return layer


class WithPart(nn.Sequential):
    """Layers to whose value an expression of the inputs, over a divisor, is added."""

    def __init__(self, part: Expression, divisor: float, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.part, self.divisor = part, divisor

    def forward(self, x: Tensor) -> Tensor:
        columns = x[..., : len(self.part.names)].unbind(-1)

        def number(value: float) -> Tensor:
            return torch.tensor(value, dtype=x.dtype, device=x.device)

        part: Tensor = self.part.evaluate(columns, torch, number)
        total = x
        for layer in self:
            total = layer(total)
        return total + (part / self.divisor).unsqueeze(-1)

    def extra_repr(self) -> str:
        return self.part.text


class FunctionColumns(nn.Module):
    """Functions of single inputs in addition to all inputs, as `Column` has them."""

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        self.columns = tuple(columns)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for column in self.columns:
            argument = column.factor * x[..., column.index]
            values = getattr(torch, column.function)(argument)
            if column.function != "exp":
                size = 1.0 if column.function == "log" else argument.abs().clamp(min=1.0)
                values = torch.where(values.abs() <= ROUNDING * size, 0.0, values)
            parts.append(values.unsqueeze(-1))
        return torch.cat(parts, -1)

    def extra_repr(self) -> str:
        return ", ".join(column.name(f"x[{column.index}]") for column in self.columns)


INVERSES: dict[str, Callable[[Tensor], Tensor]] = {
    "log": torch.exp,
    "exp": torch.log,
    "sin": torch.arcsin,
    "cos": torch.arccos,
    "tan": torch.arctan,
    "logit": torch.sigmoid,
    "log(1+1/y)": lambda t: 1 / torch.expm1(t),
}


class FunctionOfOutput(nn.Module):
    """The inverse of a function of y: maps the sum of the terms to y."""

    def __init__(self, function: OutputFunction) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.function.image
        return INVERSES[self.function.name](x.clamp(low, high)) / self.function.factor

    def extra_repr(self) -> str:
        return self.function.text("x")


# ---- the equation --------------------------------------------------------------------------------

EXCLUDED = 2.0  # standard errors from a free exponent at which rows exclude a fraction


@dataclass(frozen=True, eq=False)  # arrays have no single answer whether they are equal
class Equation:
    """An equation ``y**target_power = sum_k coef[k] prod_i x_i**exponents[k, i]`` found in data.

    With `labels`, each of G groups of rows has its own coefficients ``coef[g, k]``, and all groups
    share the exponents. `for_group` returns the equation of one group, without labels. In text and
    sympy, the coefficients of an equation with groups are symbols, ``c1[group]``.

    `n_terms` is K, the number of terms. The x_i are the inputs and their `functions`. With a
    `target_transform`, this function of y is on the left-hand side. If `n_denominator_terms` is
    greater than 0, the equation is a ratio: its denominator is 1 plus the last
    `n_denominator_terms` terms. In the text and in the names of the intervals, numerator and
    denominator are multiplied by powers of the inputs, so that the denominator has no negative
    exponents (1 + 1/x becomes x + 1). So the printed exponents of a ratio may differ from
    `exponents`.

    Attributes:
        names: names of the n x_i: the inputs, and functions such as "sin(angle)".
        output: name of y.
        target_power: power of y on the left-hand side.
        sign: sign of y, if target_power is neither 1 nor -1.
        coef: the coefficients ``[K]``, or ``[G, K]``.
        coef_stderr: their standard errors ``[K]``, or ``[G, K]``.
        exponents: the exponents ``[K, n]``.
        exponents_stderr: their standard errors ``[K, n]``; 0 for simple fractions.
        free: which exponents are not simple fractions ``[K, n]``.
        freed: for each rounded exponent, the estimate and standard error ``[2, K, n]`` that it has
            when only this exponent is free; nan for exponents that were not rounded.
        nonnegative: which inputs are never negative ``[n]``.
        nrmse: root mean square of the residuals of all rows over the standard deviation of y, the
            square root of 1 - R**2.
        holdout_nrmse: the same on held-out rows, or leaving out one row at a time. The form is
            chosen twice: without the held-out rows, and on all rows. If the two forms differ, both
            are fitted without the held-out rows, and this is the larger of their two errors on the
            held-out rows.
        n_held_out: number of held-out rows; 0: one row at a time was left out.
        bic: the information criterion, see `NPURegressor`.
        exact: whether the residuals are no larger than rounding errors: of y's dtype, and of the
            fit (1e-13 of y's standard deviation, and more where terms cancel). False if there are
            as many parameters as different rows.
        df_resid: number of rows minus number of parameters.
        scaled: coefficients of the equation in which each input and y is divided by its scale,
            ``[K]`` or ``[G, K]``.
        log_mean: logarithms of the scales of the inputs ``[n]``.
        scale: scale of y.
        constraint: what the units allow (internal): its `offset` and `matrix` give the exponents
            ``p * offset + matrix @ u`` for a power p of y and any vector u.
        noise: error model of y, see `EquationTable`.
        weighted_nrmse: root mean square of the residuals over the root mean square of y, with every
            row divided by the size of its errors.
        floor: for proportional errors, the size of y below which the errors do not get smaller; 0
            if no row is below it.
        functions: the columns of functions in addition to the inputs.
        target_transform: function of y that equals the sum of the terms; None: y itself.
        n_denominator_terms: number of terms in the denominator without the constant 1; 0: a sum.
        known_part: known additive part of the sum or ratio; None if there is none.
        limits: known bounds of terms and coefficients.
        labels: sorted labels of the groups; None if there are no groups.
    """

    names: tuple[str, ...]
    output: str
    target_power: float
    sign: float
    coef: Array
    coef_stderr: Array
    exponents: Array
    exponents_stderr: Array
    free: Array
    freed: Array
    nonnegative: tuple[bool, ...]
    nrmse: float
    holdout_nrmse: float
    n_held_out: int
    bic: float
    exact: bool
    df_resid: float
    scaled: Array = field(repr=False)
    log_mean: Array = field(repr=False)
    scale: float = field(repr=False)
    constraint: Exponents = field(repr=False)
    noise: str = field(repr=False)
    weighted_nrmse: float = field(repr=False)
    floor: float = field(repr=False)
    functions: Functions = field(repr=False)
    target_transform: OutputFunction | None = field(repr=False)
    n_denominator_terms: int
    known_part: Expression | None = field(repr=False)
    limits: Limits | None = field(repr=False)
    labels: tuple[Any, ...] | None

    @property
    def n_terms(self) -> int:
        return len(self.exponents)

    @property
    def n_parameters(self) -> int:
        """Number of coefficients, and of exponents that are not simple fractions."""
        return int(self.coef.size) + int(self.free.sum())

    def for_group(self, label: Any) -> Equation:
        """Return the equation of the group with this label, without groups."""
        if self.labels is None:
            rule = "the equation must have groups, got an equation without groups"
            raise ValueError(f"for_group: {rule}, for the label {label!r}")
        index = indices("for_group", self.labels, [label], 1)
        assert index is not None
        parts = {name: getattr(self, name)[index[0]] for name in ("coef", "coef_stderr", "scaled")}
        return replace(self, **parts, labels=None)

    def predict(self, X: Array, groups: Any = None) -> Array:
        """Predict y ``[N]`` for inputs X ``[N, n]``.

        groups: labels of the rows ``[N]``, if the equation has groups.

        y is infinite where an input with a negative exponent is 0, and nan where a function of an
        input is undefined or the equation has a root of a negative number, as in NumPy. If the sum
        is outside of the range of the function of y, such as 1.2 for a sine, y is computed from the
        nearest value in the range.
        """
        X, count = np.asarray(X, dtype=np.float64), len(self.functions.inputs)
        if X.ndim != 2 or X.shape[1] != count:
            rule = f"X must have the shape [N, {count}]"
            raise ValueError(f"predict: {rule}, got {list(X.shape)}")
        return self._predicted(X, indices("predict", self.labels, groups, len(X)), True)

    def _predicted(self, X: Array, group: Array | None, roots: bool = False) -> Array:
        """`predict` for indices of labels.

        roots: where the errors of y make a sum negative, its root is not a number; otherwise that
        of the size with the sign, as in the fit.
        """
        parts = [
            self._of_block(X[rows], None if group is None else group[rows], roots)
            for rows in blocks(len(X))
        ]
        return np.concatenate(parts or [np.empty(0)])

    def _columns(self, X: Array) -> Array:
        """The inputs and the functions that the equation has ``[N, n]``."""
        return self.functions.expand(X, (self.exponents != 0).any(0))

    def _beyond(self, X: Array, group: Array | None) -> Array:
        """The rows whose sum is no value of the function of y ``[N]``."""
        if self.target_transform is None:
            return np.zeros(len(X), dtype=bool)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.target_transform.beyond(self.scale * self._sums(X, group))

    def _sums(self, X: Array, group: Array | None) -> Array:
        """The sums of the terms, or the ratios ``[N]``. group: the indices of labels."""
        products, above = self._products(self._columns(X)), self.n_terms - self.n_denominator_terms
        sums = summed(products[:, :above], self.scaled.T[:above], group)
        if self.n_denominator_terms:
            sums = sums / self._divisors(products)
        return (
            sums
            if self.known_part is None
            else sums + self.known_part.values(X) / self.scale**self.target_power
        )

    def _divisors(self, products: Array) -> Array:
        """The denominators over their terms with the coefficient 1 ``[N]``."""
        above = self.n_terms - self.n_denominator_terms
        divisors: Array = 1.0 + products[:, above:] @ self.scaled[above:]
        return divisors

    def _of_block(self, X: Array, group: Array | None, roots: bool) -> Array:
        """`_predicted` of some rows."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            sums = self._sums(X, group)
            if self.target_transform is not None:
                return self.target_transform.inverse(self.scale * sums)
            if self.target_power == 1:
                return self.scale * sums
            sizes = sums if roots else np.abs(sums)
            results: Array = self.sign * self.scale * sizes ** (1 / self.target_power)
        return results if roots else np.sign(sums) * results

    def _products(self, X: Array) -> Array:
        """The products of the terms ``[N, K]``, of columns over their scales."""
        zero = X == 0
        logs = np.log(np.where(zero, 1.0, np.abs(X))) - np.where(zero, 0.0, self.log_mean)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            P = np.exp(logs @ self.exponents.T)
            P = P * (1.0 - 2.0 * (((X < 0) @ np.abs(np.round(self.exponents)).T) % 2))
            fractional = np.abs(self.exponents - np.round(self.exponents)) > WHOLE
            if fractional.any():
                P[((X < 0).astype(float) @ fractional.T) > 0] = math.nan
            for i in np.flatnonzero(zero.any(0)):
                w = self.exponents[:, i]
                P[zero[:, i]] *= np.where(w > 0, 0.0, np.where(w < 0, math.inf, 1.0))
        return P

    @cached_property
    def _factored(self) -> tuple[float, Any]:
        """A factor of y, and the coefficients of y over it; of groups these are names.

        The factor is 1, or a power of 10 if coefficients or a power of y are no numbers without it.
        """
        if self.labels is not None:
            return 1.0, [f"c{k + 1}[group]" for k in range(self.n_terms)]
        plain = self.target_power == 1 and not self.n_denominator_terms
        power = 0.0 if plain else self.target_power * math.log10(self.scale)
        lost = (self.coef == 0) & (self.scaled != 0)
        if np.isfinite(self.coef).all() and not lost.any() and abs(power) < 200:
            return 1.0, self.coef
        factor = 10.0 ** max(-300, min(300, round(math.log10(self.scale))))
        size = np.full(self.n_terms, self.target_power * math.log(self.scale / factor))
        size[self.n_terms - self.n_denominator_terms :] = 0.0
        with np.errstate(over="ignore", under="ignore"):
            return factor, self.scaled * np.exp(size - self.exponents @ self.log_mean)

    @cached_property
    def beyond_float64(self) -> Array:
        """Mask of the coefficients ``[K]`` that float64 cannot represent, for any factor of y."""
        coef = self.coef if self.labels is not None else self._factored[1]
        return ~np.isfinite(coef) | ((coef == 0) & (self.scaled != 0))

    def _numbers(self, function: str) -> tuple[float, Array]:
        """`_factored`; OverflowError where float64 cannot hold a coefficient."""
        if self.beyond_float64.any():
            rule = "the coefficients must be numbers that float64 can hold"
            raise OverflowError(f"{function}: {rule}, got {self.text()}")
        return self._factored

    def _decimals(self) -> list[Any]:
        """The coefficients of `_factored`, decimals of any size where float64 cannot hold them."""
        factor, coef = self._factored
        if self.labels is not None or not self.beyond_float64.any():
            return list(coef)
        size = np.full(self.n_terms, self.target_power * math.log10(self.scale / factor))
        size[self.n_terms - self.n_denominator_terms :] = 0.0
        sizes = size - self.exponents @ self.log_mean / math.log(10)
        return [
            Decimal(float(scaled)) * Decimal(10) ** Decimal(float(exponent)) if beyond else c
            for c, beyond, scaled, exponent in zip(
                coef, self.beyond_float64, self.scaled, sizes, strict=True
            )
        ]

    @cached_property
    def _written(self) -> tuple[Array, Array]:
        """The exponents of the formula, and which are no simple fractions ``[K, n]``.

        Those of a ratio end with the denominator's term that has the coefficient 1. The terms of
        the denominator have no negative exponents and no common factor.
        """
        if not self.n_denominator_terms:
            return self.exponents, self.free
        rows = np.vstack([self.exponents, np.zeros(len(self.names))])
        loose = np.vstack([self.free, np.zeros(len(self.names), dtype=bool)])
        below = rows[self.n_terms - self.n_denominator_terms :]
        smallest = below.argmin(0), np.arange(len(self.names))
        rows = rows - below[smallest]
        loose = (loose | loose[self.n_terms - self.n_denominator_terms :][smallest]) & (rows != 0)
        return rows, loose

    # ---- as text ---------------------------------------------------------------------------------

    def sympy(self) -> Any:
        """Return the right-hand side as a sympy expression. Needs sympy.

        The symbols have the names of the inputs. They are real, and positive if the column has no
        negative value and the equation has no root of a sum. With groups, coefficients are
        ``c1[group]``. Raises OverflowError for a coefficient that float64 cannot represent.
        """
        return self.formula().expressions[0]

    def formula(self) -> Formula:
        """Return a `npu_kernels.formula.Formula`: text, LaTeX and torch code.

        Needs sympy. Raises OverflowError for a coefficient that float64 cannot represent.
        """
        from npu_kernels.formula._reading import Formula, require_sympy

        sympy = require_sympy()
        root = 1 / _rational(sympy, self.target_power)
        pairs = zip(self.functions.inputs, self.nonnegative, strict=False)
        symbols = tuple(  # sympy takes positive factors out of a root, also where x is negative
            sympy.Symbol(n, **{"positive" if p and root.is_integer else "real": True})
            for n, p in pairs
        )
        terms, columns = [], self.functions.symbols(sympy, symbols)
        factor, coef = self._numbers("formula")
        for c, row, free in zip(
            [*coef, *[1.0] * (self.n_denominator_terms > 0)], *self._written, strict=True
        ):
            powers = [
                symbol ** (sympy.Float(w) if loose else _rational(sympy, w))
                for symbol, w, loose in zip(columns, row, free, strict=True)
            ]
            if isinstance(c, str):
                number = sympy.IndexedBase(c.partition("[")[0])[sympy.Symbol("group")]
            else:
                number = _decimal(sympy, c) if c != 1 else 1
            terms.append(sympy.Mul(number, *powers))
        above = self.n_terms - self.n_denominator_terms
        total = sympy.Add(*terms[:above])
        if self.n_denominator_terms:
            total = total / sympy.Add(*terms[above:])
        if self.known_part is not None:
            part = self.known_part.evaluate(symbols, sympy, sympy.sympify)
            total += part / (1 if factor == 1 else sympy.Float(factor**self.target_power))
        if self.target_power != 1:
            total = sympy.Mul(int(self.sign), total**root)
        if factor != 1:
            total = sympy.Mul(sympy.Float(factor), total)
        if self.target_transform is not None:
            total = self.target_transform.symbolic(sympy, total)
        return Formula(symbols, (self.output,), (total,), "")

    def latex(self) -> str:
        """Return the equation in LaTeX, without dollars, with upright names. Needs sympy."""
        return self.formula().latex()[0]

    def _term(self, k: int, digits: int) -> str:
        """A term of a sum as text."""
        names = self.functions.written_names
        return term_text(self._factored[1][k], self.exponents[k], names, digits)

    def text(self, digits: int = 4) -> str:
        """Return the equation with Python's operators.

        digits: significant digits of decimals; exponents that are not fractions have at least six.
        """
        digits = check_whole("text", "digits", digits)
        fine = max(digits, DIGITS)
        factor, rows, above = (
            self._factored[0],
            self._written[0],
            self.n_terms - self.n_denominator_terms,
        )
        numbers = [*self._decimals(), *[1.0] * (self.n_denominator_terms > 0)]
        present = [
            *(np.atleast_2d(self.scaled) != 0).any(0),
            *[True] * (self.n_denominator_terms > 0),
        ]
        parts = [
            term_text(c, row, self.functions.written_names, digits)
            for c, row in zip(numbers, rows, strict=True)
        ]
        shown = [part for part, stays in zip(parts, present, strict=True) if stays]
        count = sum(present[:above])  # terms with the coefficient 0 are not written
        numerator, below = shown[:count], shown[count:]
        body = _sum_text(numerator or ["0"])
        if below and numerator:
            body = body if above == 1 and (rows[0] >= 0).all() else f"({body})"
            body = f"{body}/({_sum_text([below[-1], *below[:-1]])})"
        if self.known_part is not None:
            part = self.known_part.text
            if factor != 1:
                part = f"({part})/{factor**self.target_power:.{fine}g}"
            body = _sum_text([part, body] if numerator else [part])
        if self.target_power != 1:
            body = f"({body})**{exponent_text(1 / self.target_power, fine)}"
        if factor != 1:
            body = f"{factor:g}*({body})" if self.target_power == 1 else f"{factor:g}*{body}"
        if self.sign < 0:
            body = f"-{body}"
        if self.target_transform is not None:
            body = self.target_transform.text(body)
        return f"{self.output} = {body}"

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Equation({self.text()!r}, holdout_nrmse={self.holdout_nrmse:.2g})"

    def _repr_latex_(self) -> str | None:
        return display.latex(lambda: self.formula().latex())

    # ---- as layers -------------------------------------------------------------------------------

    def torch_module(self) -> Any:
        """Return the equation as a module of this package's layers in float64.

        A sum is ``RealNPU(n, K) -> NAU(K, 1)``, a power of a sum adds ``-> RealNPU(1, 1)``, and a
        ratio is ``RealNPU(n, K + 1) -> NAU(K + 1, 2) -> RealNPU(2, 1)``. Functions are layers
        without weights before and after these layers, and a known part is added without weights.

        The module maps ``[..., n]`` to ``[..., 1]``. It equals `predict`, except where `predict` is
        infinite: there it may be a very large number. Raises OverflowError for a coefficient that
        float64 cannot represent.
        """
        import torch

        from npu_kernels.layers import NAU

        if self.labels is not None:
            rule = "the equation must be of one group, see for_group(label)"
            raise ValueError(f"torch_module: {rule}, got {len(self.labels)} groups")
        factor, coef = self._numbers("torch_module")
        inputs = len(self.functions.inputs)
        used = np.flatnonzero((self.exponents != 0).any(0)[inputs:])
        columns = [self.functions.columns[i] for i in used]
        exponents, ratio = (
            self._written[0][:, [*range(inputs), *(inputs + used)]],
            self.n_denominator_terms > 0,
        )
        first = Products(exponents.shape[1], len(exponents), eps=1e-300, dtype=torch.float64)
        second = NAU(len(exponents), 1 + ratio, clip=False, dtype=torch.float64)
        parts: list[Any] = [first, second]
        with torch.no_grad():
            first.weight_re.copy_(torch.from_numpy(exponents))
            first.gate.copy_(torch.from_numpy((exponents != 0).any(0).astype(float)))  # type: ignore[union-attr]
            weights = np.zeros((1 + ratio, len(exponents)))
            above = self.n_terms - self.n_denominator_terms
            weights[0, :above] = coef[:above]
            weights[-1, above:] = [*coef[above:], *[1.0] * ratio]
            second.weight.copy_(torch.from_numpy(weights))
            root = 1 / self.target_power
            if ratio:  # a numerator of 0 is no eps
                parts.append(product(1.0, -1.0))
            if self.known_part is not None:
                parts = [WithPart(self.known_part, factor**self.target_power, *parts)]
            if root != 1:
                parts.append(product(root))
            if self.sign * factor != 1:
                last = NAU(1, 1, clip=False, dtype=torch.float64)
                last.weight.fill_(self.sign * factor)
                parts.append(last)
        if columns:
            parts.insert(0, FunctionColumns(columns))
        if self.target_transform is not None:
            parts.append(FunctionOfOutput(self.target_transform))
        return torch.nn.Sequential(*parts)

    # ---- uncertainty -----------------------------------------------------------------------------

    def confidence_intervals(self, level: float = 0.95) -> list[Interval]:
        """Return confidence intervals of all coefficients and free exponents, given the form.

        level: confidence level.

        The intervals are computed from the linearised model and Student's t, or the normal
        distribution if the errors of y are known. They end at known bounds (`required_terms`,
        `signs`, `exponents`), and do not include the uncertainty about the form. The coefficient of
        a term with free exponents is the term's value at inputs of 1, which may be far from the
        data. Its interval is therefore computed for the logarithm, so both ends have the same sign.
        """
        from scipy import stats

        level = check_level("confidence_intervals", level)
        degrees = math.inf if self.noise == "known" else self.df_resid
        t = float(stats.t.ppf(0.5 + level / 2, degrees)) if degrees > 0 else math.inf
        results = []
        written = self._written[0]
        bounds = np.full((2, self.n_terms), [[-math.inf], [math.inf]])
        exponent_bounds = np.full((2, len(self.names)), [[-math.inf], [math.inf]])
        if self.limits is not None:
            bounds = np.stack(self.limits.of_coefficients(self.exponents, self.n_denominator_terms))
            exponent_bounds = np.stack([self.limits.low, self.limits.high])
        for k in range(self.n_terms):
            product = term_text(1.0, written[k], self.functions.written_names, 1)
            name = "constant" if product == "1" else f"coefficient of {product}"
            name += " in the denominator" * (k >= self.n_terms - self.n_denominator_terms)
            names = [name]
            if self.labels is not None:
                names = [f"coefficient c{k + 1}[{label}]" for label in self.labels]
            numbers = np.column_stack([self.coef.T[k].ravel(), self.coef_stderr.T[k].ravel()])
            for name, (c, error) in zip(names, numbers.tolist(), strict=True):
                interval = Interval.of(name, c, error, t, one_sign=bool(self.free[k].any()))
                results.append(interval.within(*bounds[:, k]))
            for i in np.flatnonzero(self.free[k]).tolist():
                name = self._exponent_name(k, i)
                w, error = float(self.exponents[k, i]), float(self.exponents_stderr[k, i])
                results.append(Interval.of(name, w, error, t).within(*exponent_bounds[:, i]))
        return results

    def _exponent_name(self, k: int, i: int) -> str:
        name = f"exponent of {self.names[i]} in term {k + 1}"
        if self.n_denominator_terms and self._written[0][-1, i] != 0:
            name += " less that in the denominator's first term"
        return name

    def rounded_exponents(self) -> list[str]:
        """Return a text for each rounded exponent: the fraction and the free estimate (`freed`)."""
        results = []
        for k, i in np.argwhere(~np.isnan(self.freed[0])).tolist():
            fraction = exponent_text(self.exponents[k, i]).strip("()")
            value, error = self.freed[:, k, i].tolist()
            apart = float(abs(value - self.exponents[k, i])) / max(error, 1e-300)
            text = f"{self._exponent_name(k, i)} = {fraction}; free: {estimate_text(value, error)}"
            results.append(text + f", {apart:.1f} errors away" * (apart > EXCLUDED))
        return results


def _sum_text(parts: list[str]) -> str:
    return parts[0] + "".join(
        f" - {part[1:]}" if part.startswith("-") else f" + {part}" for part in parts[1:]
    )


def _decimal(sympy: Any, c: float) -> Any:
    """Return a coefficient without the rounding of its units: 3 in place of 2.99999999999999."""
    short = float(f"{c:.12g}")
    return sympy.Float(short if abs(short - c) <= 64 * ROUNDING * abs(c) else c)


def _rational(sympy: Any, w: float) -> Any:
    fraction = Fraction(float(w)).limit_denominator(720)
    if abs(float(fraction) - w) > 1e-12 * max(1.0, abs(w)):  # a bound, or a power that was given
        return sympy.Float(w)
    return sympy.Rational(fraction.numerator, fraction.denominator)
