"""The simple task's figure: where the best model of each kind errs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.paper.drawing import figure, headline, save
from benchmarks.paper.experiment import Sources
from benchmarks.paper.simple import task as simple

FORMULAS = {"add": "x + y", "mul": "x y", "div": "x / y", "sqrt": "√x"}


def error_surfaces(
    best: dict[str, Tensor], variant: str, path: Path, processor: str,
    operations: Sequence[str] = simple.TASKS,
) -> None:  # fmt: skip
    """log10 |error| of a model ``[P]`` of each kind: rows are tasks, columns models."""
    from matplotlib.patches import Rectangle

    size = 2.1 * len(best) + 1.2, 2 * len(operations) + 1
    drawing, axes = figure(len(operations), len(best), size, share=True)
    wide = torch.arange(41, dtype=torch.float64).mul(0.2).sub(4.1)
    positive = torch.arange(1, 51, dtype=torch.float64).mul(0.1)
    levels = torch.linspace(-4, 2, 13).tolist()
    low, high = simple.TRAINING[variant]
    *first, last = (FORMULAS[task] for task in operations)
    learnt = f"{', '.join(first)} and {last}" if first else last
    for column, (model, parameters) in enumerate(best.items()):
        for row, task in enumerate(operations):
            points = positive if task == "sqrt" else wide
            error = simple.surface(model, variant, parameters, task, points, operations)
            axis = axes[row][column]
            shown = error.clamp(1e-4, 1e2).log10().T.numpy()
            drawn = axis.contourf(points.numpy(), points.numpy(), shown, levels, cmap="inferno_r")
            box: dict[str, Any] = {"fill": False, "edgecolor": "deepskyblue", "linewidth": 1.8}
            axis.add_patch(Rectangle((low, low), high - low, high - low, **box))
            axis.tick_params(labelsize=8)
            if row == 0:
                axis.set_title(model, fontweight="bold")
            if row == len(operations) - 1:
                axis.set_xlabel("x")
            if column == 0:
                axis.set_ylabel("y")
                where = {"xycoords": "axes fraction", "ha": "right", "va": "center"}
                axis.annotate(FORMULAS[task], (-0.38, 0.5), fontsize=13, **where)
    bar = drawing.colorbar(drawn, ax=axes, label="absolute error", shrink=0.6, ticks=range(-4, 3))
    bar.ax.set_yticklabels(["≤ 0.0001", "0.001", "0.01", "0.1", "1", "10", "≥ 100"])
    headline(
        drawing,
        f"One model learns {learnt}: error of the best seed of each kind",
        "Blue box: the training range. A model extrapolates where it stays light outside of the "
        f"box. Trained on {processor}.",
    )
    save(drawing, path)


def picture(sources: Sources, path: Path) -> bool:
    """The maps of the chosen models."""
    chosen = json.loads(sources.models.read_text())
    best = {model: torch.tensor(values) for model, values in chosen["models"].items()}
    variant = "paper" if any("variant paper" in comment for comment in sources.comments) else "code"
    operations = chosen.get("operations", simple.TASKS)
    error_surfaces(best, variant, path, chosen["processor"], operations)
    return True
