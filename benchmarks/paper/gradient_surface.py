"""The gradient surface of learning the identity on one of two inputs: why the NPU has a gate.

Section 3.2 and its figure: the norm of the loss's gradient over the two real weights of one power
unit, (w1, w2), for a NaiveNPU, for an NPU whose gates are 0.5, and for one whose gates are (1, 0).
The right answer is (1, 0). All 4,331 weight pairs of a surface are one batch of models in one fused
call, float64. The loss is mean (m - x1)^2, as in the published code; for gates of 0.5 the gradient
is over W_re and W_im.

Inputs, 32 rows with x1 in U(0, 2): the published figure has x2 in U(-0.05, 0.05), the text says
U(0, 0.05). Both are computed, because only the first has the plateau that the figure shows.
"""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.drawing import ERRORS, figure, headline, save, scale
from benchmarks.marked_blocks import table
from benchmarks.paper.checks import Check, Entry, at_most, counted, statistic
from benchmarks.paper.experiment import Experiment, Sources, Table
from benchmarks.paper.runner import Batch
from benchmarks.paper.streams import stream
from benchmarks.paper.summary import median, middle
from benchmarks.paper.tables import Rows, column, select
from npu_kernels import functional

COLUMNS = ("inputs", "panel", "seed", "median", "flat_share", "w2_spread")
PANELS = ("NaiveNPU", "NPU, gates 0.5", "NPU, gates 1 and 0")
INPUTS = {"code": -0.05, "text": 0.0}  # the lower end of x2; the upper one is 0.05
SURFACE_SEEDS = 20
SURFACE_ROWS = 32
PLATEAU, FLAT = 0.75, 0.1  # w2 above which the figure shows a plateau; what counts as one

W1 = torch.arange(71, dtype=torch.float64) * 0.05 - 1.0
W2 = torch.arange(61, dtype=torch.float64) * 0.02 - 0.2


def plan(options: Namespace) -> list[Batch]:
    """All surfaces of a command: one batch."""
    seeds = range(options.seeds or SURFACE_SEEDS)
    runs = tuple({"inputs": inputs, "seed": seed} for seed in seeds for inputs in INPUTS)
    settings = {"device": options.device}
    return [Batch("gradient-surface", "all", settings, runs, 1.0, Surfaces)]


def draw(inputs: str, seed: int) -> Tensor:
    """The rows ``[32, 2]``."""
    u = torch.rand(SURFACE_ROWS, 2, generator=stream("gradient surface", seed), dtype=torch.float64)
    low = INPUTS[inputs]
    return torch.stack([2 * u[:, 0], low + (0.05 - low) * u[:, 1]], 1)


def surface(panel: str, x: Tensor) -> Tensor:
    """The gradient's norm over the grid, ``[71, 61]``."""
    weight_re = torch.cartesian_prod(W1, W2).unsqueeze(1).to(x.device).requires_grad_()  # [K, 1, 2]
    weight_im = torch.zeros_like(weight_re).requires_grad_()
    gate = None
    if panel != PANELS[0]:
        gates = x.new_tensor((0.5, 0.5) if panel == PANELS[1] else (1.0, 0.0))
        gate = gates.expand(len(weight_re), 2).contiguous()
    error = functional.npu(x, weight_re, weight_im, gate)[..., 0] - x[:, 0]  # [K, 32]
    grads = torch.autograd.grad(error.square().mean(1).sum(), [weight_re, weight_im])
    used = grads if panel == PANELS[1] else grads[:1]
    norm = torch.cat([grad.flatten(1) for grad in used], 1).norm(dim=1)
    return norm.view(len(W1), len(W2)).cpu()


def panels(x: Tensor) -> Tensor:
    """The surfaces of all panels, ``[3, 71, 61]``."""
    return torch.stack([surface(panel, x) for panel in PANELS])


class Surfaces:
    """One step computes the three panels of one draw of inputs."""

    def __init__(self, batch: Batch) -> None:
        self.runs, self.total, self.done = batch.runs, len(batch.runs), 0
        self.device = batch.settings["device"]
        self.surfaces: list[Tensor] = []

    def advance(self, steps: int) -> None:
        for run in self.runs[self.done : self.done + steps]:
            x = draw(run["inputs"], run["seed"]).to(self.device)
            self.surfaces.append(panels(x))
        self.done += steps

    def state(self) -> dict[str, Any]:
        return {"done": self.done, "found": self.surfaces}

    def restore(self, state: dict[str, Any]) -> None:
        self.done, self.surfaces = state["done"], state["found"]

    def results(self) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
        rows = []
        for run, surfaces in zip(self.runs, self.surfaces, strict=True):
            for panel, norm in zip(PANELS, surfaces, strict=True):
                plateau = norm[:, W2 > PLATEAU]
                median, flat = plateau.quantile(0.5), (plateau < FLAT).double().mean()
                numbers = map(float, (median, flat, (norm.amax(1) - norm.amin(1)).max()))
                values = run["inputs"], panel, run["seed"], *numbers
                rows.append(dict(zip(COLUMNS, values, strict=True)))
        return rows, {"surfaces": torch.stack(self.surfaces)}  # [runs, 3, 71, 61]


# ---- report and picture --------------------------------------------------------------------------


def short_table(rows: Rows) -> str:
    cells = list(itertools.product(INPUTS, ("median", "flat_share")))
    lines = [
        [panel, *(middle(column(select(rows, panel=panel, inputs=i), name)) for i, name in cells)]
        for panel in PANELS
    ]
    header = ["layer"]
    for inputs in ("x2 ~ U(-0.05, 0.05)", "x2 ~ U(0, 0.05)"):
        header += [f"{inputs}: median gradient (95 %)", "share below 0.1 (95 %)"]
    return table(header, lines)


def section(rows: Rows) -> str:
    return (
        "The norm of the gradient over w2 > 0.75, where the figure shows the NaiveNPU's plateau: "
        f"its median, and the share of the plane where it is below {FLAT:g}. Medians of "
        f"{len({row['seed'] for row in rows})} draws of 32 rows, with their 95 % intervals.\n\n"
        + short_table(rows)
        + "\nThe plateau belongs to the inputs of the published figure, U(-0.05, 0.05): there the "
        "powers of negative and positive inputs cancel. With the inputs of the text, U(0, 0.05), "
        "the NaiveNPU has no plateau, and its gradient is hardly smaller than that of an NPU with "
        "gates 0.5. With gates (1, 0) the second input and w2 drop out altogether, whatever the "
        "inputs.\n"
    )


def checks(rows: Rows) -> list[Check]:
    def values(panel: int, name: str) -> list[float]:
        return column(select(rows, panel=PANELS[panel], inputs="code"), name)

    naive = "NaiveNPU: median gradient over w2 > 0.75"
    gated = "NPU, gates 0.5: the same over w2 > 0.75"
    return [
        statistic(naive, median, values(0, "median"), -math.inf, 0.12),
        statistic(gated, median, values(1, "median"), 0.9, math.inf),
        at_most("NPU, gates 1 and 0: change over w2, largest", max(values(2, "w2_spread")), 1e-12),
    ]


def draw_surfaces(surfaces: dict[str, Tensor], path: Path) -> None:
    """Draw a column for each range of inputs, a row for each panel of its ``[3, 71, 61]``."""
    drawing, axes = figure(3, len(surfaces), 7.6, share="all")
    for line, (inputs, norms) in zip(axes.T, surfaces.items(), strict=True):
        title = f"second input in ({'-0.05' if inputs == 'code' else '0'}, 0.05)"
        for axis, name, panel in zip(line, PANELS, norms, strict=True):
            levels = torch.linspace(0, 2.5, 11).tolist()
            w1, w2 = W1.numpy(), W2.numpy()
            drawn = axis.contourf(w1, w2, panel.clamp(max=2.5).T.numpy(), levels, cmap=ERRORS)
            axis.plot(1, 0, "wo", markeredgecolor="black")
            axis.set_title(f"{name},\n{title}")
        line[-1].set_xlabel("weight of the first input")
    for axis in axes[:, 0]:
        axis.set_ylabel("weight of the second")
    ticks = {0: "0", 0.5: "0.5", 1: "1", 1.5: "1.5", 2: "2", 2.5: "≥ 2.5"}
    scale(drawing, axes, drawn, "norm of the gradient", ticks)
    headline(
        drawing,
        "Gradient of the loss while a power unit learns to ignore its second input",
        "Light: hardly any gradient, training stands still. Circle: the solution. "
        "Compare the upper parts of the panels.",
    )
    save(drawing, path)


def picture(sources: Sources, path: Path) -> bool:
    """The surfaces of the first seed, computed anew."""
    draw_surfaces({inputs: panels(draw(inputs, 0)) for inputs in INPUTS}, path)
    return True


FIGURE = Entry(
    "Figure 3",
    "gradients with and without the gate",
    lambda rows, models: counted(checks(*rows)),
    "the plateau needs x2 from U(-0.05, 0.05), as in the code; the table has the text's range too",
)
EXPERIMENT = Experiment(
    Table(
        "gradient-surface", "The relevance gate: gradient surface", COLUMNS, section, checks,
        short_table, picture=picture, entries=(FIGURE,),
    ),
    plan,
)  # fmt: skip
