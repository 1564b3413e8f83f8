"""The single-module benchmark's figure, as the field draws it: success rate, step, sparsity error over the ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper.single_module import OPERATIONS, RANGES, UNITS
from benchmarks.paper.single_module_report import RECIPES, cells, sign
from benchmarks.paper.summary import median, wilson

Rows = Sequence[dict[str, Any]]
COLORS = dict(
    zip(UNITS, [f"tab:{c}" for c in ("blue", "orange", "purple", "green", "brown", "red", "gray")], strict=True)
)
MARKERS = {"plain": "o", "fixed": "s", "best": "*"}


def _share(runs: Rows) -> tuple[float, float, float]:
    count = sum(row["solved"] for row in runs)
    low, high = wilson(count, len(runs))
    return count / len(runs), low, high


def _median(column: str) -> Callable[[Rows], tuple[float, float, float]]:
    """The median of the solved runs, and their least and largest value; never 0, for the logarithm."""

    def found(runs: Rows) -> tuple[float, float, float]:
        values = [max(row[column], 1e-8) for row in runs if row["solved"]]
        return (median(values), min(values), max(values)) if values else (math.nan, math.nan, math.nan)

    return found


PANELS: dict[str, Callable[[Rows], tuple[float, float, float]]] = {
    "success rate": _share,
    "solved at step": _median("solved_at"),
    "sparsity error": _median("sparsity"),
}


def draw(rows: Rows, path: Path) -> None:
    """Columns: the operations; rows: the three measures. Filled: plain; with a mark: the other recipes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(19, 11), layout="constrained")
    FigureCanvasAgg(figure)
    found = cells(rows)
    operations = [op for op in OPERATIONS if any(k[2] == op for k in found)]
    axes = figure.subplots(len(PANELS), len(operations), sharex=True, squeeze=False)
    series = [(recipe, unit) for recipe in RECIPES for unit in UNITS if any(k[:2] == (recipe, unit) for k in found)]
    for line, (title, measure) in zip(axes, PANELS.items(), strict=True):
        for axis, op in zip(line, operations, strict=True):
            for n, (recipe, unit) in enumerate(series):
                shown = [
                    (i, found[recipe, unit, op, r]) for i, r in enumerate(RANGES) if (recipe, unit, op, r) in found
                ]
                if not shown:
                    continue
                x = [i + 0.75 * (n + 0.5) / len(series) - 0.375 for i, _ in shown]
                middle, low, high = zip(*(measure(runs) for _, runs in shown), strict=True)
                bars = [
                    [m - a for m, a in zip(middle, low, strict=True)],
                    [b - m for m, b in zip(middle, high, strict=True)],
                ]
                axis.errorbar(
                    x,
                    middle,
                    bars,
                    fmt=MARKERS[recipe],
                    color=COLORS[unit],
                    label=f"{unit}, {recipe}",
                    markersize=4 if recipe == "plain" else 6,
                    elinewidth=0.8,
                )
            axis.set_title(f"a {sign(op)} b: {title}", fontsize=10)
            axis.set_xticks(range(len(RANGES)), list(RANGES), rotation=45, fontsize=8)
            if title == "sparsity error":
                axis.set(yscale="log", ylim=(1e-8, 1))
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=8)
    figure.savefig(path, dpi=80)
