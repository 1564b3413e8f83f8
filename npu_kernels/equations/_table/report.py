"""The candidates of one output by their number of terms; reports in words and pictures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npu_kernels._common import display
from npu_kernels.equations._equation import Equation
from npu_kernels.equations._table.forms import TELL
from npu_kernels.equations._table.output import SearchResult

MAX_NAMED = 3  # alternatives in a report
AT_BOUND = 1e-6  # standard errors from an end of its interval: the value is there
LITTLE = 0.7  # of y's standard deviation: an equation with a larger error explains less than half


class EquationTable(list[Equation]):
    """The equations of one output, sorted by number of terms.

    ``str()`` is a table.

    Attributes:
        best_index: index of the chosen equation.
        alternatives: equations that the data do not distinguish from the chosen equation, the best
            first: their BIC is less than 6 higher. The chosen equation with free exponents in place
            of its fractions is also listed, in tables of at most 3000 rows, if its BIC is less than
            12 higher for each freed exponent.
        noise: error model of y: "additive", "proportional" (to y), "multiplicative" (the equation
            times a factor) or "known".
        complete: False after Ctrl-C.
        outliers: indices of the rows that are far from the equation of the other rows; see `loss`
            of `NPURegressor`.
        notes: warnings about the data and the equation, as text, which `NPURegressor.fit` gives.

    result: the result of a search; `NPURegressor.fit` makes the table from it.
    """

    def __init__(self, result: SearchResult) -> None:
        super().__init__(result.equations)
        self.best_index, self.alternatives = result.best_index, result.alternatives
        self.noise, self.complete, self.notes = result.noise, result.complete, result.notes
        self.outliers, self._weighted = result.outliers, result.weighted

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self.best_index, self.alternatives, self.noise, self.complete, self.notes
        return type(self), (
            SearchResult(list(self), *parts, outliers=self.outliers, weighted=self._weighted),
        )

    def _rows(self) -> list[tuple[str, ...]]:
        """The cells of the table, the header first."""
        rows: list[tuple[str, ...]]
        rows = [("", "terms", "parameters", "error", "BIC", "exact", "formula")]
        for index, equation in enumerate(self):
            mark = "*" if index == self.best_index else ""
            counts = str(equation.n_terms), str(equation.n_parameters)
            errors = f"{equation.holdout_nrmse:.2e}", f"{equation.bic:.1f}"
            exact = "yes" if equation.exact else "no"
            rows.append((mark, *counts, *errors, exact, equation.text()))
        return rows

    def to_frame(self) -> Any:
        """The candidates as a DataFrame, with their numbers in full. Needs pandas."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install pandas") from error
        names = ("n_terms", "n_parameters", "nrmse", "holdout_nrmse", "bic", "exact")
        rows = [[getattr(equation, name) for name in names] for equation in self]
        frame = DataFrame(rows, columns=list(names))
        frame["best"] = frame.index == self.best_index
        frame["formula"] = [equation.text() for equation in self]
        return frame

    def _repr_html_(self) -> str:
        header, *rows = self._rows()
        return display.table("", header, rows)

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = []
        for *cells, text in rows:
            padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
            lines.append(f"{' '.join(padded)}  {text}")
        return "\n".join(lines)


def shown(table: EquationTable) -> str:
    """The chosen equation in HTML: its parameters with 95 % intervals, and its error."""
    equation, rows = table[table.best_index], []
    for interval in equation.confidence_intervals():
        error, limits = f"{interval.stderr:.2g}", f"{interval.low:.4g} to {interval.high:.4g}"
        if not math.isfinite(interval.stderr):
            error, limits = "", ""
        rows.append((interval.name, f"{interval.value:.4g}", error, limits))
    where = "held-out rows" if equation.n_held_out else "rows, leave-one-out"
    rows.append((f"relative error of {where}", f"{equation.holdout_nrmse:.2g}", "", ""))
    return display.table(equation.text(), ("", "estimate", "standard error", "95 %"), rows)


def _residuals(table: EquationTable, equation: Equation) -> list[str]:
    """The report's lines on the residuals, and on the errors of rows that were left out."""
    if equation.exact:
        return ["The equation is exact: its residuals are rounding errors."]
    where = "Leave-one-out"
    if equation.n_held_out:
        where = f"On {equation.n_held_out} held-out rows"
    typical, floor = equation.weighted_nrmse, ""
    if equation.floor:
        floor = f" (where y is below {equation.floor:.3g}, as at {equation.floor:.3g})"
    kind = {
        "additive": "additive, equal for all rows" + ", but for sample_weight" * table._weighted,
        "proportional": f"proportional to y, about {typical:.2g} of it{floor}",
        "multiplicative": "multiplicative, a factor of about "
        f"{math.exp(min(typical, 700.0)):.3g} up or down. "
        f"Predictions are medians, means are {math.exp(min(typical**2 / 2, 700.0)):.3g} times "
        "as large",
    }
    title = f"Residual RMS / standard deviation of {equation.output}"
    return [
        f"{name}: {error:.2g} (R2 {round(1 - error**2, 6) + 0.0:.6g}).{more}"
        for name, error, more in (
            (title, equation.nrmse, f" Error model: {kind.get(table.noise, 'as given')}."),
            (where, equation.holdout_nrmse, ""),
        )
        if math.isfinite(error)
    ]


def report(table: EquationTable, level: float = 0.95) -> str:
    """The chosen equation, its parameters and how far it is to be trusted."""
    equation = table[table.best_index]
    lines = list(table.notes)
    if not table.complete:
        lines.insert(0, "The search was interrupted: this is the best equation so far.")
    if not equation.coef.any() and equation.known_part is None:
        lines.append(f"{equation.output} is 0 in all rows: no term is needed.")
        return f"{equation.text()}\n\n{display.wrapped(lines)}"
    counts = (equation.n_terms, "term"), (equation.n_parameters, "fitted parameter")
    words = [f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts]
    if equation.n_denominator_terms:
        sizes = (
            f"{equation.n_terms - equation.n_denominator_terms} and "
            f"{equation.n_denominator_terms + 1} terms"
        )
        lines.append(f"Ratio of {sizes}, {words[1]}.")
    else:
        lines.append(f"{', '.join(words)}.")
    if equation.labels is not None:
        groups = f"{len(equation.labels)} groups" if len(equation.labels) > 1 else "The one group"
        lines.append(f"{groups}: coefficients differ between groups, exponents do not.")
    lines += _residuals(table, equation)
    if equation.df_resid < 1:
        lines.append("There are no more rows than parameters: any equation of this form would fit.")
    elif not equation.n_held_out:
        lines.append("There are too few rows to test the choice of the equation on other rows.")
    lines.append(f"Estimates, standard errors, {100 * level:g} % intervals (given the form):")
    intervals = equation.confidence_intervals(level)
    lines += [f"  {line}" for line in (*intervals, *equation.rounded_exponents())]
    if equation.df_resid >= 1 and equation.holdout_nrmse > LITTLE:
        of = f"of {equation.output}"
        if equation.nrmse <= LITTLE:
            rows = "the held-out rows" if equation.n_held_out else "rows that are left out in turn"
            of += f" in {rows}"
        lines.append(f"The equation explains less than half of the variance {of}.")
    for interval in () if equation.exact else intervals:
        if not 0 < interval.stderr < math.inf:
            continue
        if (
            min(interval.value - interval.low, interval.high - interval.value)
            < AT_BOUND * interval.stderr
        ):
            lines.append(f"The {interval.name} is at its bound: beyond it the fit would be better.")
        elif interval.low <= 0 <= interval.high or interval.stderr > abs(interval.value):
            lines.append(f"The data do not determine the {interval.name}: it may be 0.")
    for other in table.alternatives[:MAX_NAMED]:
        higher = other.bic - equation.bic
        relation = "Not distinguishable from" if higher < TELL else "With free exponents"
        lines.append(f"{relation} (Delta BIC {higher:.1f}): {other.text()}")
    if len(table.alternatives) > MAX_NAMED:
        lines.append(f"And {len(table.alternatives) - MAX_NAMED} more (`alternatives`).")
    return f"{equation.text()}\n\n{display.wrapped(lines)}"


Array = Any

# ---- pictures ------------------------------------------------------------------------------------
# Pictures of candidates and residuals. Needs matplotlib.


def draw(
    table: EquationTable, equation: Equation, prediction: Array | None, y: Array | None
) -> Any:
    """Draw the error over the number of terms.

    With predictions, also y over them, and the residuals.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install matplotlib") from error
    count = 1 if prediction is None else 3
    figure = Figure(figsize=(4 * count, 3.5), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    axes[0].semilogy([e.n_terms for e in table], [max(e.holdout_nrmse, 1e-17) for e in table], "o-")
    ring: dict[str, Any] = {"markersize": 12, "fillstyle": "none", "color": "black"}
    axes[0].plot([equation.n_terms], [max(equation.holdout_nrmse, 1e-17)], "o", **ring)
    axes[0].set_xticks([e.n_terms for e in table])
    axes[0].set(xlabel="terms", ylabel="error on rows not fitted, relative", title=equation.output)
    if prediction is not None and y is not None:
        axes[1].plot(prediction, y, ".", markersize=3)
        limits = [float(np.nanmin(prediction)), float(np.nanmax(prediction))]
        axes[1].plot(limits, limits, "k-", linewidth=0.8)
        title = equation.text() if len(equation.text()) < 50 else ""
        axes[1].set(xlabel="predicted", ylabel="observed", title=title)
        axes[2].plot(prediction, y - prediction, ".", markersize=3)
        axes[2].axhline(0, color="black", linewidth=0.8)
        axes[2].set(xlabel="predicted", ylabel="observed - predicted")
    return figure
