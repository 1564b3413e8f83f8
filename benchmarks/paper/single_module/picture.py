"""The single-module benchmark's figure: the share of solved seeds by layer, recipe and range."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from benchmarks.drawing import figure, headline, save
from benchmarks.paper.experiment import Sources
from benchmarks.paper.markdown import SIGNS
from benchmarks.paper.single_module.report import cells
from benchmarks.paper.single_module.task import OPERATIONS, RANGES, RECIPES, UNITS
from benchmarks.paper.tables import Rows

NAMES = {"plain": "plain", "fixed": "fixes", "best": "fit"}  # recipes of training


def picture(sources: Sources, path: Path) -> bool:
    """Draw a panel for each operation; the report's tables have the steps and sparsity errors."""
    runs = cells(sources.rows)
    operations = [op for op in OPERATIONS if any(key[2] == op for key in runs)]
    pairs = itertools.product(RECIPES, UNITS)
    series = [pair for pair in pairs if any(key[:2] == pair for key in runs)]
    drawing, axes = figure(len(operations), 1, 0.2 * len(series) * len(operations) + 3)
    for axis, op in zip(axes[:, 0], operations, strict=True):
        shares = [[_share(runs.get((*pair, op, name), [])) for name in RANGES] for pair in series]
        axis.imshow(shares, cmap="YlGn", vmin=0, vmax=1, aspect="auto")
        for y, line in enumerate(shares):
            for x, share in enumerate(line):
                if not math.isnan(share):
                    look = {"color": "white" if share > 0.6 else "0.35"}
                    axis.text(x, y, f"{100 * share:.0f}", ha="center", va="center", **look)
        axis.set_title(f"a {SIGNS[op]} b")
        axis.set_xticks([])
        labels = [f"{unit}, {NAMES[recipe]}" for recipe, unit in series]
        axis.set_yticks(range(len(labels)), labels)
    turned = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    axis.set_xticks(range(len(RANGES)), list(RANGES), **turned)
    axis.set_xlabel("training range")
    headline(
        drawing,
        "One layer learns one operation: seeds with a test error below 1e-5, in per cent",
        "Dark: every seed solves it.",
    )
    save(drawing, path)
    return True


def _share(runs: Rows) -> float:
    return sum(row["solved"] for row in runs) / len(runs) if runs else math.nan
