"""The candidates of one output by their number of terms, and a report on them in words."""

from __future__ import annotations

from typing import Any

from npu_kernels._laws.table.equation import Equation
from npu_kernels._laws.table.output import Laws

TELL = 6.0  # difference of the criterion below which two candidates count as equal


class EquationTable(list[Equation]):
    """The equations of one output, the fewest terms first.

    ``str()`` is a table, `best` the index of the chosen equation.

    noise: what was taken for the errors of y: "constant", "relative" (in proportion to y) or
    "known". complete: false after Ctrl-C. laws: what a search found.
    """

    def __init__(self, laws: Laws) -> None:
        super().__init__(laws.equations)
        self.best, self.noise, self.complete = laws.best, laws.noise, laws.complete

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (Laws(list(self), self.best, self.noise, self.complete),)

    def __str__(self) -> str:
        rows = [("", "terms", "parameters", "error", "BIC", "exact", "formula")]
        for index, equation in enumerate(self):
            mark = "*" if index == self.best else ""
            numbers = (
                str(equation.terms),
                str(equation.parameters),
                f"{equation.error:.2e}",
                f"{equation.bic:.1f}",
            )
            rows.append((mark, *numbers, "yes" if equation.exact else "no", equation.text()))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        return "\n".join(
            " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False))
            + "  "
            + row[6]
            for row in rows
        )


def report(table: EquationTable, level: float = 0.95) -> str:
    """The chosen equation, its parameters and how far it is to be trusted."""
    equation = table[table.best]
    lines = [equation.text(), ""]
    if not table.complete:
        lines.append("The search was interrupted: this is the best equation until then.")
    plural = "" if equation.terms == 1 else "s"
    lines.append(
        f"It has {equation.terms} term{plural} and {equation.parameters} continuous parameters."
    )
    where = (
        f"of {equation.held_out} rows that were not fitted"
        if equation.held_out
        else "with one row left out at a time"
    )
    if equation.exact:
        lines.append("It is exact: the residuals are those of rounding.")
    else:
        kind = {
            "constant": "taken as equal for all rows",
            "relative": "in proportion to y",
            "known": "as given",
        }
        lines.append(
            f"Residuals: {equation.rms:.2g} of {equation.output}'s root mean square; "
            f"errors {kind[table.noise]}."
        )
        lines.append(
            f"Error {where}: {equation.error:.2g} of {equation.output}'s root mean square."
        )
    if not equation.held_out:
        lines.append(
            "With so few rows the choice of the equation itself is not tested on other rows."
        )
    lines.append(
        f"Estimates with standard errors and {100 * level:g} % intervals, "
        "given the form of the equation:"
    )
    lines += [f"  {interval}" for interval in equation.intervals(level)]
    rivals = [other for other in table if other is not equation and other.bic - equation.bic < TELL]
    for other in rivals:
        lines.append(
            f"The data hardly tell it from: {other.text()} "
            f"(criterion {other.bic - equation.bic:.1f} higher)"
        )
    return "\n".join(lines)
