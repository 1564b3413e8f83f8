"""What the report says about the search for the fractional SIR model's equation.

The picture has the equation's weights, and its trajectory on the data.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from benchmarks.drawing import figure, headline, save
from benchmarks.marked_blocks import table
from benchmarks.paper.checks import Check, at_most, within
from benchmarks.paper.experiment import Results, Sources
from benchmarks.paper.fsir.models import beside_the_true, paragraph
from benchmarks.paper.fsir.report import diagram, trajectories
from benchmarks.paper.fsir_equation import search
from benchmarks.paper.summary import number
from benchmarks.paper.tables import Rows, select
from npu_kernels._jobs import files


def fits(row: dict[str, Any]) -> bool:
    """Whether a start has come within the data's error, over the whole trajectory."""
    return bool(row["error"] <= search.LIMIT)


def short_table(rows: Rows) -> str:
    lines = []
    for h in sorted({row["h"] for row in rows}):
        starts = select(rows, h=h)
        right, fitting = [row for row in starts if row["found"]], sum(map(fits, starts))
        counts = [f"{n} ({100 * n / len(starts):.0f} %)" for n in (fitting, len(right))]
        exponents, rates = "-", "-"
        if right:
            exponents = number(max(row["exponent_error"] for row in right))
            rates = f"{100 * max(row['rate_error'] for row in right):.2g} %"
        error = number(min(row["error"] for row in starts))
        lines.append([str(h), str(len(starts)), error, *counts, exponents, rates])
    header = ["width", "starts", "least error", "fit the data", "are the equation"]
    return table([*header, "exponents off", "rates off"], lines)


def section(rows: Rows) -> str:
    return (
        "From the 40 points alone, by the classic Runge-Kutta method: fit, prune, refit, as "
        "`benchmarks/paper/fsir_equation/search.py` says. A start fits if its whole trajectory is "
        f"within {search.DATA_ERROR / 2:g} of the data (root mean square), half the data's own "
        "greatest error. It is the equation if exactly the right weights are not zero, every "
        "exponent is within 0.001 and every rate within 1 %; the last columns are the worst of "
        "those starts.\n\n" + short_table(rows)
    )


def checks(rows: Rows) -> list[Check]:
    right = sum(bool(row["found"]) for row in rows)
    worst = dict.fromkeys(("exponent_error", "rate_error"), math.inf)
    chosen = min(filter(fits, rows), key=_rank, default=worst)
    searched = "what the search returns"
    return [
        within("starts that are the equation", right, 1, math.inf),
        at_most(f"{searched}: exponents off", chosen["exponent_error"], 1e-3),
        at_most(f"{searched}: rates off", chosen["rate_error"], 0.01),
    ]


def _rank(row: dict[str, Any]) -> tuple[Any, ...]:
    """The choice that does not need the true equation: smallest width, fewest parameters."""
    return row["h"], row["n_params"], row["error"]


# ---- the models of the rows ----------------------------------------------------------------------


def keep_best(results: Results, path: Path) -> None:
    """Write the parameters of the fitting start that `_rank` puts first."""
    chosen: dict[str, dict[str, Any]] = {}
    tables = [(result["rows"], result["tensors"]["parameters"]) for _, result in results]
    pairs = [pair for table in tables for pair in zip(*table, strict=True) if fits(pair[0])]
    if pairs:
        row, parameters = min(pairs, key=lambda pair: _rank(pair[0]))
        chosen["found"] = {**row, "mse": row["error"], "parameters": parameters.tolist()}
    files.write(path, json.dumps(chosen, indent=1))


def models_section(path: Path) -> str:
    """The equation that was found, beside the true one."""
    best = json.loads(path.read_text()).get("found")
    if best is None:
        return ""
    return beside_the_true(paragraph("What the search returns", best, f"start {best['start']}", 6))


# ---- the picture ---------------------------------------------------------------------------------


def picture(sources: Sources, path: Path) -> bool:
    """False if no start has found the equation."""
    chosen = json.loads(sources.models.read_text())
    if "found" not in chosen:
        return False
    drawing, axes = figure(2, 1, 7)
    best = {**chosen["found"], "model": "RealNPU", "integrator": "rk4", "beta": 0.0}
    trajectories(axes[0, 0], {"RealNPU": best})
    diagram(axes[1, 0], best)
    headline(
        drawing,
        "The equation that was found in 40 points of the fractional SIR model",
        "Diagram: powers of S, I and R (right), rates of the terms (left).",
    )
    save(drawing, path)
    return True
