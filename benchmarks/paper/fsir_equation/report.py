"""What the report says about the search for the fractional SIR model's equation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from benchmarks.blocks import table
from benchmarks.paper.checks import Check, at_most, within
from benchmarks.paper.experiment import Results
from benchmarks.paper.fsir.models import beside_the_true, paragraph
from benchmarks.paper.fsir_equation import search
from benchmarks.paper.summary import number
from benchmarks.paper.tables import Rows
from npu_kernels._jobs import files


def fits(row: dict[str, Any]) -> bool:
    """Whether a start has come within the data's error, over the whole trajectory."""
    return bool(row["error"] <= search.LIMIT)


def short_table(rows: Rows) -> str:
    lines = []
    for h in sorted({row["h"] for row in rows}):
        mine = [row for row in rows if row["h"] == h]
        right = [row for row in mine if row["found"]]
        lines.append(
            [
                str(h),
                str(len(mine)),
                number(min(row["error"] for row in mine)),
                f"{sum(map(fits, mine))} ({100 * sum(map(fits, mine)) / len(mine):.0f} %)",
                f"{len(right)} ({100 * len(right) / len(mine):.0f} %)",
                number(max(row["exponent_error"] for row in right)) if right else "-",
                f"{100 * max(row['rate_error'] for row in right):.2g} %" if right else "-",
            ]
        )
    header = [
        "width",
        "starts",
        "least error",
        "fit the data",
        "are the equation",
        "exponents off",
        "rates off",
    ]
    return table(header, lines)


def section(rows: Rows) -> str:
    return (
        "From the 40 points alone, by the classic Runge-Kutta method: fit, prune, refit, as "
        "`benchmarks/paper/fsir_equation/search.py` says. A start fits if its whole trajectory is within "
        f"{search.DATA_ERROR / 2:g} of the data (root mean square), half the data's own greatest error. It is "
        "the equation if exactly the right weights are not zero, every exponent is within 0.001 and every rate within "
        "1 %; the last columns are the worst of those starts.\n\n" + short_table(rows)
    )


def checks(rows: Rows) -> list[Check]:
    right = [row for row in rows if row["found"]]
    fitting = [row for row in rows if fits(row)]
    chosen = min(fitting, key=lambda row: (row["h"], row["n_params"], row["error"]), default=None)
    return [
        within("starts that are the equation", len(right), 1, math.inf),
        at_most("what the search returns: exponents off", _error(chosen, "exponent_error"), 1e-3),
        at_most("what the search returns: rates off", _error(chosen, "rate_error"), 0.01),
    ]


def _error(row: dict[str, Any] | None, name: str) -> float:
    return math.inf if row is None else row[name]


# ---- the models of the rows ----------------------------------------------------------------------------------------


def keep_best(results: Results, path: Path) -> None:
    """Write the choice that does not need the true equation: the smallest width that fits, and there the
    fewest parameters."""
    chosen: dict[str, dict[str, Any]] = {}
    found = [
        pair
        for _, result in results
        for pair in zip(result["rows"], result["tensors"]["parameters"], strict=True)
    ]
    fitting = [pair for pair in found if fits(pair[0])]
    if fitting:
        row, parameters = min(
            fitting, key=lambda pair: (pair[0]["h"], pair[0]["n_params"], pair[0]["error"])
        )
        chosen["found"] = {**row, "mse": row["error"], "parameters": parameters.tolist()}
    files.write(path, json.dumps(chosen, indent=1))


def models_section(path: Path) -> str:
    """The equation that was found, beside the true one."""
    best = json.loads(path.read_text()).get("found")
    if best is None:
        return ""
    return beside_the_true(paragraph("What the search returns", best, f"start {best['start']}", 6))
