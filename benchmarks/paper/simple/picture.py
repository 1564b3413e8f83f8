"""The simple task's figure: where the best model of each kind errs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.drawing import error_map, figure, headline, save, scale
from benchmarks.paper.experiment import Sources
from benchmarks.paper.simple import task as simple

FORMULAS = {"add": "x + y", "mul": "x y", "div": "x / y", "sqrt": "√x"}


def error_surfaces(
    best: dict[str, Tensor], variant: str, path: Path, processor: str,
    operations: Sequence[str] = simple.TASKS,
) -> None:  # fmt: skip
    """log10 |error| of a model ``[P]`` of each kind: rows are models, columns tasks."""
    drawing, axes = figure(len(best), len(operations), 1.12 * len(best) + 1.6, share="col")
    wide = torch.arange(41, dtype=torch.float64).mul(0.2).sub(4.1)
    positive = torch.arange(1, 51, dtype=torch.float64).mul(0.1)
    *first, last = (FORMULAS[task] for task in operations)
    learnt = f"{', '.join(first)} and {last}" if first else last
    for line, (model, parameters) in zip(axes, best.items(), strict=True):
        for axis, task in zip(line, operations, strict=True):
            points = positive if task == "sqrt" else wide
            error = simple.surface(model, variant, parameters, task, points, operations)
            drawn = error_map(axis, points, error, (-4, 2), simple.TRAINING[variant])
            axis.set(aspect="equal", xticks=[], yticks=[])
        line[0].set_ylabel(model, fontweight="bold")
    for axis, task in zip(axes[0], operations, strict=True):
        axis.set_title(f"{FORMULAS[task]}, {'0 to 5' if task == 'sqrt' else '-4 to 4'}")
    numbers = ("≤ 0.0001", "0.001", "0.01", "0.1", "1", "10", "≥ 100")
    scale(drawing, axes, drawn, "absolute error", dict(zip(range(-4, 3), numbers, strict=True)))
    headline(
        drawing,
        f"One model learns {learnt}: error of the best seed of each kind",
        "x to the right, y upwards. Blue box: the training range. A model extrapolates where it "
        f"stays light outside of the box. Trained on {processor}.",
    )
    save(drawing, path)


def picture(sources: Sources, path: Path) -> bool:
    """The maps of the chosen models."""
    chosen = json.loads(sources.models.read_text())
    best = {model: torch.tensor(values) for model, values in chosen["models"].items()}
    operations = chosen.get("operations", simple.TASKS)
    error_surfaces(best, sources.variant, path, chosen["processor"], operations)
    return True
