"""The figure of the fractional SIR experiment: fronts, trajectories, and a RealNPU's diagram."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.drawing import figure, headline, save
from benchmarks.paper.experiment import Sources
from benchmarks.paper.fsir import report
from benchmarks.paper.fsir import task as fsir
from benchmarks.paper.tables import Rows

COLORS = {"NPU": "tab:blue", "RealNPU": "tab:orange", "Dense": "tab:green"}
STATES = {"S": "tab:blue", "I": "tab:red", "R": "tab:green"}


def picture(sources: Sources, path: Path) -> bool:
    """Draw fronts, the best models' predictions, and the weights of the sparsest good RealNPU."""
    drawing, axes = figure(3, 1, 11)
    _fronts(axes[0, 0], sources.rows)
    chosen = json.loads(sources.models.read_text())
    trajectories(axes[1, 0], chosen)
    shown = chosen.get("sparse RealNPU", chosen.get("RealNPU"))
    if shown is not None:
        diagram(axes[2, 0], shown)
    headline(
        drawing,
        "The fractional SIR model, learnt by neural ODEs",
        "Read the diagram from the inputs (right) to the derivatives (left): blue adds, red "
        "subtracts.",
    )
    save(drawing, path)
    return True


def _fronts(axis: Any, rows: Rows) -> None:
    paper = report.paper_rows()
    for model, color in COLORS.items():
        for runs, filled in ((rows, True), (paper, False)):
            mine = [row for row in report.of(runs, model) if row["mse"] < 1e5]
            x, y = [row["n_params"] for row in mine], [row["mse"] for row in mine]
            face, style = (color, "-") if filled else ("none", ":")
            look = {"s": 10, "alpha": 0.6, "edgecolors": color, "linewidths": 0.6}
            axis.scatter(x, y, color=face, **look)
            best, label = report.front(mine), model if filled else None
            x, y = [row["n_params"] for row in best], [row["mse"] for row in best]
            axis.step(x, y, where="post", color=color, linestyle=style, label=label)
    axis.set(xscale="log", yscale="log", ylim=(1e-3, 1e4))
    axis.set(xlabel="non-zero parameters", ylabel="mean squared error")
    axis.set_xticks([20, 50, 100, 200, 500], ["20", "50", "100", "200", "500"])
    axis.minorticks_off()
    axis.set_title("Lower left is better (dotted lines, hollow points: published)")
    axis.legend()


def trajectories(axis: Any, chosen: dict[str, Any]) -> None:
    """Draw the best model's prediction on the data."""
    name = min((name for name in chosen if name in COLORS), key=lambda name: chosen[name]["mse"])
    best, times = chosen[name], torch.linspace(0, fsir.END, 401, dtype=torch.float64)
    parameters = torch.tensor([best["parameters"]], dtype=torch.float64)
    with torch.no_grad():
        predicted = fsir.predict(best["model"], best["h"], parameters, best["integrator"], times)[0]
    for (state, color), truth, line in zip(STATES.items(), fsir.data().T, predicted.T, strict=True):
        axis.plot(fsir.TIMES.numpy(), truth.numpy(), "o", color=color, markersize=3)
        axis.plot(times.numpy(), line.numpy(), color=color, label=state)
    axis.set(xlabel="time", ylabel="group's share of the population (%)")
    axis.set_title(f"Points: data. Lines: the best model, {name}, {best['h']} hidden units")
    axis.legend()


def diagram(axis: Any, best: dict[str, Any]) -> None:
    """The layers from right to left: inputs, gates, powers, the NAU's weights, derivatives."""
    parameters = torch.tensor([best["parameters"]], dtype=torch.float64)
    weight_re, gate, weight = (part[0] for part in fsir.split("RealNPU", best["h"], parameters))
    used = [j for j in range(best["h"]) if bool((weight[:, j].abs() > fsir.NON_ZERO).any())]
    axis.set_axis_off()
    size = f"{best['n_params']} parameters, mean squared error {best['mse']:.3g}"
    axis.set_title(f"A RealNPU: {size}")

    def height(index: int, count: int) -> float:
        return 1 - (index + 0.5) / max(1, count)

    for i, name in enumerate(fsir.NAMES):
        axis.text(2.05, height(i, 3), f"{name}\ngate {float(gate[i]):.2f}", va="center")
        axis.text(-0.05, height(i, 3), f"d{name}/dt", va="center", ha="right")
    for rank, j in enumerate(used):
        y = height(rank, len(used))
        axis.plot(1, y, "o", color="black", markersize=4)
        for i in range(3):
            power = float(weight_re[j, i] * (gate[i].abs() > fsir.NON_ZERO))
            for value, start, end in (
                (float(weight[i, j]), (0.0, height(i, 3)), (0.95, y)),
                (power, (1.05, y), (2.0, height(i, 3))),
            ):
                if abs(value) <= fsir.NON_ZERO:
                    continue
                color, width = "tab:red" if value < 0 else "tab:blue", min(1.0, abs(value))
                axis.plot(*zip(start, end, strict=True), color=color, linewidth=0.5 + 2.5 * width)
                share = 0.2 if start[0] > 0.5 else 0.8  # near the unit: no two texts meet
                x, height_of_text = (start[k] + share * (end[k] - start[k]) for k in (0, 1))
                axis.text(x, height_of_text, f"{value:.3g}", ha="center", va="bottom")
    axis.set(xlim=(-0.4, 2.5), ylim=(0, 1))
