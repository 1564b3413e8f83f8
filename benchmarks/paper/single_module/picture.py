"""The single-module benchmark's figure: the share of solved seeds by layer, recipe and range."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from benchmarks.paper.drawing import figure, headline, save
from benchmarks.paper.experiment import Sources
from benchmarks.paper.markdown import SIGNS
from benchmarks.paper.single_module.report import cells
from benchmarks.paper.single_module.task import OPERATIONS, RANGES, RECIPES, UNITS
from benchmarks.paper.tables import Rows

NAMES = {"plain": "plain training", "fixed": "published fixes", "best": "fit"}


def picture(sources: Sources, path: Path) -> bool:
    """Draw a column for each operation; the report's tables have the steps and sparsity errors."""
    runs = cells(sources.rows)
    operations = [op for op in OPERATIONS if any(key[2] == op for key in runs)]
    pairs = itertools.product(RECIPES, UNITS)
    series = [pair for pair in pairs if any(key[:2] == pair for key in runs)]
    size = 4.1 * len(operations) + 1.5, 0.36 * len(series) + 2
    drawing, axes = figure(1, len(operations), size, share=True)
    for axis, op in zip(axes[0], operations, strict=True):
        shares = [[_share(runs.get((*pair, op, name), [])) for name in RANGES] for pair in series]
        drawn = axis.imshow(shares, cmap="YlGn", vmin=0, vmax=1, aspect="auto")
        for y, line in enumerate(shares):
            for x, share in enumerate(line):
                if not math.isnan(share):
                    look = {"fontsize": 8, "color": "white" if share > 0.6 else "0.35"}
                    axis.text(x, y, f"{100 * share:.0f}", ha="center", va="center", **look)
        axis.set_title(f"a {SIGNS[op]} b", fontsize=13)
        turned = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
        axis.set_xticks(range(len(RANGES)), list(RANGES), fontsize=9, **turned)
        axis.set_xlabel("training range")
        axis.set_yticks(range(len(series)), [f"{unit}, {NAMES[recipe]}" for recipe, unit in series])
        for y in range(1, len(series)):
            if series[y][0] != series[y - 1][0]:
                axis.axhline(y - 0.5, color="black", linewidth=1.5)
    label = "seeds that solve it (%)"
    bar = drawing.colorbar(drawn, ax=axes[0][-1], label=label, ticks=[0, 0.5, 1])
    bar.ax.set_yticklabels(["0", "50", "100"])
    headline(
        drawing,
        "One layer learns one operation: seeds with a test error below 1e-5, in per cent",
        "Dark: every seed solves it. Compare the three blocks: plain training, published fixes, "
        "fit.",
    )
    save(drawing, path)
    return True


def _share(runs: Rows) -> float:
    return sum(row["solved"] for row in runs) / len(runs) if runs else math.nan
