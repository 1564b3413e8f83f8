"""The paper's figures, where matplotlib is installed."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.paper import fsir_pictures, fsir_report, gradient_surface, published, simple, single_module_pictures
from benchmarks.paper.runner import Batch

Rows = Sequence[dict[str, Any]]
FILES = {
    "gradient-surface": "gradient_surface.png",
    "simple": "simple.png",
    "large": "pareto.png",
    "fsir": "fsir.png",
    "fsir-rk4": "fsir_rk4.png",
    "fsir-equation": "fsir_equation.png",
    "single-module": "single_module.png",
}
COLORS = {"NPU": "tab:blue", "RealNPU": "tab:orange", "NMU": "tab:green", "NALU": "tab:red", "NaiveNPU": "tab:purple"}


def available() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def gradient_surfaces(surfaces: dict[str, Tensor], path: Path) -> None:
    """Rows: the two input ranges; columns: the panels of the figure. `surfaces`: inputs to ``[3, 71, 61]``."""
    figure, axes = _figure(len(surfaces), 3, (10, 3.2 * len(surfaces)))
    low, high = "-0.05", "0.05"
    for line, (inputs, panels) in zip(axes, surfaces.items(), strict=True):
        title = f"x2 ~ U({low if inputs == 'code' else 0}, {high})"
        for axis, name, panel in zip(line, gradient_surface.PANELS, panels, strict=True):
            levels = torch.linspace(0, 2.5, 15).tolist()
            w1, w2 = gradient_surface.W1.numpy(), gradient_surface.W2.numpy()
            drawn = axis.contourf(w1, w2, panel.clamp(max=2.5).T.numpy(), levels, cmap="inferno_r")
            axis.plot(1, 0, "wo", markeredgecolor="black")
            axis.set(title=f"{name}\n{title}", xlabel="$w_1$", ylabel="$w_2$")
        figure.colorbar(drawn, ax=line[-1], label="gradient norm")
    figure.savefig(path, dpi=110)


def error_surfaces(best: dict[str, Tensor], variant: str, path: Path) -> None:
    """log10 |error| of one trained model of each kind: rows are tasks, columns models. `best`: parameters ``[P]``."""
    figure, axes = _figure(len(simple.TASKS), len(best), (2.1 * len(best) + 1, 8))
    wide = torch.arange(41, dtype=torch.float64).mul(0.2).sub(4.1)
    positive = torch.arange(1, 51, dtype=torch.float64).mul(0.1)
    levels = torch.linspace(-4, 2, 11).tolist()
    for column, (model, parameters) in enumerate(best.items()):
        for row, task in enumerate(simple.TASKS):
            points = positive if task == "sqrt" else wide
            error = simple.surface(model, variant, parameters, task, points)
            axis = axes[row][column]
            shown = error.clamp(1e-4, 1e2).log10().T.numpy()
            drawn = axis.contourf(points.numpy(), points.numpy(), shown, levels, cmap="inferno_r")
            axis.set_title(f"{model}  {published.SIGNS[task]}", fontsize=9)
            axis.tick_params(labelsize=7)
    figure.colorbar(drawn, ax=axes, label="log10 |error|", shrink=0.5)
    figure.savefig(path, dpi=110)


def pareto(rows: Rows, path: Path) -> None:
    """Test error over non-zero parameters: ours full, the published points hollow."""
    figure, axes = _figure(1, 4, (15, 4))
    paper = published.load("pareto")
    for axis, task in zip(axes[0], published.SIGNS, strict=True):
        for model, color in COLORS.items():
            ours = [row for row in published.shown(rows, task, model) if math.isfinite(row["test_mse"])]
            theirs = [row for row in paper if row["task"] == task and row["model"] == model]
            options: dict[str, Any] = {"color": color, "s": 24}
            axis.scatter([r["n_params"] for r in ours], [r["test_mse"] for r in ours], label=model, **options)
            x, y = [r["n_params_abs_gt_1e-2"] for r in theirs], [r["test_mse"] for r in theirs]
            axis.scatter(x, y, facecolors="none", edgecolors=color, s=24)
        axis.set(xscale="log", yscale="log", title=published.SIGNS[task], xlabel="non-zero parameters")
        if task == "mul":
            axis.set_ylim(0.1, 1e5)
        if task == "sqrt":
            axis.set_ylim(1e-4, 1e10)
    axes[0][0].set_ylabel("test MSE")
    axes[0][0].legend(fontsize=8, title="full: here, hollow: published", title_fontsize=8)
    figure.savefig(path, dpi=110)


def draw(name: str, results: Sequence[tuple[Batch, dict[str, Any]]], options: argparse.Namespace) -> bool:
    """Draw an experiment's picture from its finished batches, if it has one; False where matplotlib is missing."""
    if name not in FILES:
        return True
    if not available():
        return False
    path = options.out / FILES[name]
    if name == "gradient-surface":
        ((batch, result),) = results
        drawn = zip(batch.runs, result["tensors"]["surfaces"], strict=True)
        gradient_surfaces({run["inputs"]: panels for run, panels in drawn if run["seed"] == 0}, path)
    elif name == "simple":
        best: dict[str, tuple[float, Tensor]] = {}
        for _, result in results:
            for row, parameters in zip(result["rows"], result["tensors"]["parameters"], strict=True):
                error = sum(row[task] for task in simple.TASKS)
                if row["model"] not in best or error < best[row["model"]][0]:
                    best[row["model"]] = error, parameters
        error_surfaces({model: best[model][1] for model in simple.RECIPES if model in best}, options.variant, path)
    elif name == "fsir-equation":
        fsir_pictures.draw_found(options.out / fsir_report.MODELS_FILES[name], path)
    elif name in fsir_report.MODELS_FILES:
        rows = [row for _, result in results for row in result["rows"]]
        fsir_pictures.draw(rows, options.out / fsir_report.MODELS_FILES[name], path)
    elif name == "single-module":
        single_module_pictures.draw([row for _, result in results for row in result["rows"]], path)
    else:
        pareto([row for _, result in results for row in result["rows"]], path)
    return True
