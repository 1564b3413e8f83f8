"""The candidates of one output by their number of terms, and a report on them in words."""

from __future__ import annotations

from typing import Any

from npu_kernels._laws.table.equation import Equation
from npu_kernels._laws.table.output import Laws

TELL = 6.0  # difference of the criterion below which two candidates count as equal


class EquationTable(list[Equation]):
    """The equations of one output, the fewest terms first; ``str()`` is a table, `best` the index of the chosen one.

    noise: what was taken for the errors of y: "constant", "relative" (in proportion to y) or "known". complete: false
    after Ctrl-C. laws: what a search found.
    """

    def __init__(self, laws: Laws) -> None:
        super().__init__(laws.equations)
        self.best, self.noise, self.complete = laws.best, laws.noise, laws.complete

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (Laws(list(self), self.best, self.noise, self.complete),)

    def __str__(self) -> str:
        rows = [("", "terms", "parameters", "error", "BIC", "exact", "formula")]
        for index, one in enumerate(self):
            mark = "*" if index == self.best else ""
            numbers = str(one.terms), str(one.parameters), f"{one.error:.2e}", f"{one.bic:.1f}"
            rows.append((mark, *numbers, "yes" if one.exact else "no", one.text()))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        return "\n".join(
            " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False))
            + "  "
            + row[6]
            for row in rows
        )


def report(table: EquationTable, level: float = 0.95) -> str:
    """The chosen equation, its parameters and how far it is to be trusted."""
    one = table[table.best]
    lines = [one.text(), ""]
    if not table.complete:
        lines.append("The search was interrupted: this is the best equation until then.")
    plural = "" if one.terms == 1 else "s"
    lines.append(f"It has {one.terms} term{plural} and {one.parameters} continuous parameters.")
    where = (
        f"of {one.held_out} rows that were not fitted"
        if one.held_out
        else "with one row left out at a time"
    )
    if one.exact:
        lines.append("It is exact: the residuals are those of rounding.")
    else:
        kind = {
            "constant": "taken as equal for all rows",
            "relative": "in proportion to y",
            "known": "as given",
        }
        lines.append(
            f"Residuals: {one.rms:.2g} of {one.output}'s root mean square; errors {kind[table.noise]}."
        )
        lines.append(f"Error {where}: {one.error:.2g} of {one.output}'s root mean square.")
    if not one.held_out:
        lines.append(
            "With so few rows the choice of the equation itself is not tested on other rows."
        )
    lines.append(
        f"Estimates with standard errors and {100 * level:g} % intervals, given the form of the equation:"
    )
    lines += [f"  {interval}" for interval in one.intervals(level)]
    rivals = [other for other in table if other is not one and other.bic - one.bic < TELL]
    for other in rivals:
        lines.append(
            f"The data hardly tell it from: {other.text()} (criterion {other.bic - one.bic:.1f} higher)"
        )
    return "\n".join(lines)
