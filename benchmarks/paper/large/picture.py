"""The large task's figure: test error over the number of non-zero parameters."""

from __future__ import annotations

import math
from pathlib import Path

from benchmarks.drawing import figure, headline, save
from benchmarks.paper import published
from benchmarks.paper.experiment import Sources
from benchmarks.paper.large.report import shown
from benchmarks.paper.large.task import TASKS
from benchmarks.paper.markdown import SIGNS
from benchmarks.paper.tables import select

COLORS = {
    "NPU": "tab:blue", "RealNPU": "tab:orange", "NMU": "tab:green", "NALU": "tab:red",
    "NaiveNPU": "tab:purple",
}  # fmt: skip


def picture(sources: Sources, path: Path) -> bool:
    """Test error over non-zero parameters: ours full, the published points hollow."""
    drawing, axes = figure(2, 2, 5.8)
    paper = published.load("pareto")
    for axis, task in zip(axes.flat, TASKS, strict=True):
        for model, color in COLORS.items():
            runs = shown(sources.rows, task, model)
            ours = [row for row in runs if math.isfinite(row["test_mse"])]
            theirs = select(paper, task=task, model=model)
            x, y = [row["n_params"] for row in ours], [row["test_mse"] for row in ours]
            axis.scatter(x, y, label=model, color=color, s=16)
            x, y = [r["n_params_abs_gt_1e-2"] for r in theirs], [r["test_mse"] for r in theirs]
            axis.scatter(x, y, facecolors="none", edgecolors=color, s=16)
        axis.set(xscale="log", yscale="log", title=f"task {SIGNS[task]}")
        if task == "mul":
            axis.set_ylim(0.1, 1e5)
        if task == "sqrt":
            axis.set_ylim(1e-4, 1e10)
    for line in axes:
        line[0].set_ylabel("test error")
    for axis in axes[-1]:
        axis.set_xlabel("parameters above 0.01")
    handles = axes[0][0].get_legend_handles_labels()
    drawing.legend(*handles, loc="outside lower center", ncols=5, frameon=False, columnspacing=1)
    headline(
        drawing,
        "Arithmetic over 100 inputs: mean squared test error and size of the ten best runs. Lower "
        "left is better. Full points: measured here, hollow: published",
    )
    save(drawing, path)
    return True
