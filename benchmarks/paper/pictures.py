"""The paper's figures, made from the tables and models of a folder alone, where matplotlib is installed.

Every figure has a title, the units of its axes, and a line that says what to look for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.paper import (
    fsir_pictures,
    fsir_report,
    gradient_surface,
    published,
    simple,
    single_module_pictures,
    tables,
)
from benchmarks.paper.drawing import SUFFIXES, available, figure, headline, save

Rows = Sequence[dict[str, Any]]
FILES = {
    "gradient-surface": "gradient_surface",
    "simple": "simple",
    "large": "pareto",
    "fsir": "fsir",
    "fsir-rk4": "fsir_rk4",
    "fsir-equation": "fsir_equation",
    "single-module": "single_module",
}
COLORS = {"NPU": "tab:blue", "RealNPU": "tab:orange", "NMU": "tab:green", "NALU": "tab:red", "NaiveNPU": "tab:purple"}
FORMULAS = {"add": "x + y", "mul": "x y", "div": "x / y", "sqrt": "√x"}
TRAINING = {"code": (0.1, 2.1), "paper": (0.1, 2.0)}  # the square of the simple task


def gradient_surfaces(surfaces: dict[str, Tensor], path: Path) -> None:
    """Rows: the two input ranges; columns: the panels of the figure. `surfaces`: inputs to ``[3, 71, 61]``."""
    drawing, axes = figure(len(surfaces), 3, (10, 3.2 * len(surfaces) + 0.7))
    for line, (inputs, panels) in zip(axes, surfaces.items(), strict=True):
        title = f"second input from ({'-0.05' if inputs == 'code' else '0'}, 0.05)"
        for axis, name, panel in zip(line, gradient_surface.PANELS, panels, strict=True):
            levels = torch.linspace(0, 2.5, 11).tolist()
            w1, w2 = gradient_surface.W1.numpy(), gradient_surface.W2.numpy()
            drawn = axis.contourf(w1, w2, panel.clamp(max=2.5).T.numpy(), levels, cmap="inferno_r")
            axis.plot(1, 0, "wo", markeredgecolor="black")
            axis.set(title=f"{name}\n{title}", xlabel="weight of the first input", ylabel="weight of the second")
        bar = drawing.colorbar(drawn, ax=line[-1], label="norm of the gradient", ticks=[0, 0.5, 1, 1.5, 2, 2.5])
        bar.ax.set_yticklabels(["0", "0.5", "1", "1.5", "2", "≥ 2.5"])
    headline(
        drawing,
        "Gradient of the loss while a power unit learns to ignore its second input",
        "Light: hardly any gradient, training stands still. Circle: the solution. Compare the upper parts.",
    )
    save(drawing, path)


def error_surfaces(best: dict[str, Tensor], variant: str, path: Path, processor: str) -> None:
    """log10 |error| of one trained model of each kind: rows are tasks, columns models. `best`: parameters ``[P]``."""
    from matplotlib.patches import Rectangle

    drawing, axes = figure(len(simple.TASKS), len(best), (2.1 * len(best) + 1.2, 9), share=True)
    wide = torch.arange(41, dtype=torch.float64).mul(0.2).sub(4.1)
    positive = torch.arange(1, 51, dtype=torch.float64).mul(0.1)
    levels = torch.linspace(-4, 2, 13).tolist()
    low, high = TRAINING[variant]
    for column, (model, parameters) in enumerate(best.items()):
        for row, task in enumerate(simple.TASKS):
            points = positive if task == "sqrt" else wide
            error = simple.surface(model, variant, parameters, task, points)
            axis = axes[row][column]
            shown = error.clamp(1e-4, 1e2).log10().T.numpy()
            drawn = axis.contourf(points.numpy(), points.numpy(), shown, levels, cmap="inferno_r")
            box = Rectangle((low, low), high - low, high - low, fill=False, edgecolor="deepskyblue", linewidth=1.8)
            axis.add_patch(box)
            axis.tick_params(labelsize=8)
            if row == 0:
                axis.set_title(model, fontweight="bold")
            if row == len(simple.TASKS) - 1:
                axis.set_xlabel("x")
            if column == 0:
                axis.set_ylabel("y")
                axis.annotate(
                    FORMULAS[task], (-0.38, 0.5), xycoords="axes fraction", fontsize=13, ha="right", va="center"
                )
    bar = drawing.colorbar(drawn, ax=axes, label="absolute error", shrink=0.6, ticks=range(-4, 3))
    bar.ax.set_yticklabels(["≤ 0.0001", "0.001", "0.01", "0.1", "1", "10", "≥ 100"])
    headline(
        drawing,
        "One model learns x + y, x y, x / y and √x: error of the best seed of each kind",
        "Blue box: the training range. A model extrapolates where it stays light outside of the box. "
        f"Trained on {processor}.",
    )
    save(drawing, path)


def pareto(rows: Rows, path: Path) -> None:
    """Test error over non-zero parameters: ours full, the published points hollow."""
    drawing, axes = figure(1, 4, (15, 4.8))
    paper = published.load("pareto")
    for axis, task in zip(axes[0], published.SIGNS, strict=True):
        for model, color in COLORS.items():
            ours = [row for row in published.shown(rows, task, model) if math.isfinite(row["test_mse"])]
            theirs = [row for row in paper if row["task"] == task and row["model"] == model]
            options: dict[str, Any] = {"color": color, "s": 24}
            axis.scatter([r["n_params"] for r in ours], [r["test_mse"] for r in ours], label=model, **options)
            x, y = [r["n_params_abs_gt_1e-2"] for r in theirs], [r["test_mse"] for r in theirs]
            axis.scatter(x, y, facecolors="none", edgecolors=color, s=24)
        axis.set(xscale="log", yscale="log", title=f"task {published.SIGNS[task]}")
        axis.set_xlabel("parameters greater than 0.01 in size")
        if task == "mul":
            axis.set_ylim(0.1, 1e5)
        if task == "sqrt":
            axis.set_ylim(1e-4, 1e10)
    axes[0][0].set_ylabel("mean squared error on the test range")
    axes[0][0].legend(fontsize=8, title="full: here, hollow: published", title_fontsize=8)
    headline(
        drawing,
        "Arithmetic over 100 inputs: test error and size of the ten best runs of each model",
        "Lower left is better: a small error with few parameters. Full and hollow points of one colour should lie "
        "together.",
    )
    save(drawing, path)


def _variant(comments: Sequence[str]) -> str:
    return "paper" if any("variant paper" in comment for comment in comments) else "code"


def draw(name: str, folder: Path, suffix: str = "png") -> Path | None:
    """Draw an experiment's picture from its table and models; None where it has none, or the files are not there."""
    from benchmarks.paper.report import FILES as TABLES

    if name not in FILES or not (folder / TABLES[name]).exists():
        return None
    comments, rows = tables.read(folder / TABLES[name])
    path = folder / f"{FILES[name]}.{suffix}"
    models = folder / {"simple": simple.MODELS_FILE, **fsir_report.MODELS_FILES}.get(name, TABLES[name])
    if not models.exists():
        return None
    if name == "gradient-surface":
        variant = _variant(comments)
        shown = {}
        for inputs in gradient_surface.INPUTS:
            x = gradient_surface.draw(inputs, 0)
            panels = [gradient_surface.surface(panel, x, variant) for panel in gradient_surface.PANELS]
            shown[inputs] = torch.stack(panels)
        gradient_surfaces(shown, path)
    elif name == "simple":
        kept = json.loads(models.read_text())
        best = {model: torch.tensor(values) for model, values in kept["models"].items()}
        error_surfaces(best, _variant(comments), path, kept["processor"])
    elif name == "fsir-equation":
        return fsir_pictures.draw_found(models, path)
    elif name in fsir_report.MODELS_FILES:
        fsir_pictures.draw(rows, models, path)
    elif name == "single-module":
        single_module_pictures.draw(rows, path)
    else:
        pareto(rows, path)
    return path


def draw_all(folder: Path, suffix: str) -> list[Path]:
    """All pictures that the folder has the numbers for; none without matplotlib."""
    if not available():
        return []
    return [path for name in FILES if (path := draw(name, folder, suffix)) is not None]


def drawn(name: str, folder: Path) -> str | None:
    """The file name of an experiment's picture in the folder, if there is one."""
    names = [f"{FILES[name]}.{suffix}" for suffix in SUFFIXES] if name in FILES else []
    return next((found for found in names if (folder / found).exists()), None)
