"""The gradient surface of learning the identity on one of two inputs: why the NPU has a relevance gate.

Section 3.2 and its figure: the norm of the loss's gradient over the two real weights of one power unit, (w1, w2), for a
NaiveNPU, for an NPU whose gates are 0.5, and for one whose gates are (1, 0). The right answer is (1, 0). All 4,331
weight pairs of a surface are one batch of models in one fused call, float64.

                 code                                paper
    loss         mean (m - x1)^2                     sum |m - x1|
    gradient     NPU 0.5: over W_re and W_im         over W_re
Inputs, 32 rows with x1 in U(0, 2): the published figure has x2 in U(-0.05, 0.05), the text says U(0, 0.05). Both are
computed, because the plateau that the figure shows exists for the first only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.paper.runner import Batch
from benchmarks.paper.streams import stream
from npu_kernels import functional

COLUMNS = ("inputs", "panel", "seed", "median", "flat_share", "w2_spread")
PANELS = ("NaiveNPU", "NPU, gates 0.5", "NPU, gates 1 and 0")
INPUTS = {"code": -0.05, "text": 0.0}  # the lower end of x2; the upper one is 0.05
SEEDS = QUICK_SEEDS = 5
ROWS = 32
PLATEAU, FLAT = 0.75, 0.1  # w2 above which the figure shows a plateau; what counts as one

W1 = torch.arange(71, dtype=torch.float64) * 0.05 - 1.0
W2 = torch.arange(61, dtype=torch.float64) * 0.02 - 0.2


def batches(seeds: int, variant: str, device: str) -> list[Batch]:
    """All surfaces: one batch."""
    runs = tuple({"inputs": inputs, "seed": seed} for seed in range(seeds) for inputs in INPUTS)
    return [Batch("gradient-surface", "all", {"variant": variant, "device": device}, runs, 1.0, make)]


def make(batch: Batch) -> Surfaces:
    """The work of a batch."""
    return Surfaces(batch)


def draw(inputs: str, seed: int) -> Tensor:
    """The rows ``[32, 2]``."""
    u = torch.rand(ROWS, 2, generator=stream("gradient surface", seed), dtype=torch.float64)
    low = INPUTS[inputs]
    return torch.stack([2 * u[:, 0], low + (0.05 - low) * u[:, 1]], 1)


def surface(panel: str, x: Tensor, variant: str) -> Tensor:
    """The gradient's norm over the grid, ``[71, 61]``."""
    weight_re = torch.cartesian_prod(W1, W2).unsqueeze(1).to(x.device).requires_grad_()  # [K, 1, 2]
    weight_im = torch.zeros_like(weight_re).requires_grad_()
    gate = None
    if panel != PANELS[0]:
        gates = (0.5, 0.5) if panel == PANELS[1] else (1.0, 0.0)
        gate = torch.tensor(gates, dtype=x.dtype, device=x.device).expand(len(weight_re), 2).contiguous()
    error = functional.npu(x, weight_re, weight_im, gate)[..., 0] - x[:, 0]  # [K, 32]
    loss = error.square().mean(1) if variant == "code" else error.abs().sum(1)
    grads = torch.autograd.grad(loss.sum(), [weight_re, weight_im])
    used = grads if variant == "code" and panel == PANELS[1] else grads[:1]
    norm = torch.cat([grad.flatten(1) for grad in used], 1).norm(dim=1)
    return norm.view(len(W1), len(W2)).cpu()


class Surfaces:
    """One step computes the three panels of one draw of inputs."""

    def __init__(self, batch: Batch) -> None:
        self.runs, self.total, self.done = batch.runs, len(batch.runs), 0
        self.variant, self.device = batch.settings["variant"], batch.settings["device"]
        self.found: list[Tensor] = []

    def advance(self, steps: int) -> None:
        for run in self.runs[self.done : self.done + steps]:
            x = draw(run["inputs"], run["seed"]).to(self.device)
            self.found.append(torch.stack([surface(panel, x, self.variant) for panel in PANELS]))
        self.done += steps

    def state(self) -> dict[str, Any]:
        return {"done": self.done, "found": self.found}

    def restore(self, state: dict[str, Any]) -> None:
        self.done, self.found = state["done"], state["found"]

    def results(self) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
        rows = []
        for run, surfaces in zip(self.runs, self.found, strict=True):
            for panel, norm in zip(PANELS, surfaces, strict=True):
                plateau = norm[:, W2 > PLATEAU]
                rows.append(
                    {
                        "inputs": run["inputs"],
                        "panel": panel,
                        "seed": run["seed"],
                        "median": float(plateau.quantile(0.5)),
                        "flat_share": float((plateau < FLAT).double().mean()),
                        "w2_spread": float((norm.amax(1) - norm.amin(1)).max()),
                    }
                )
        return rows, {"surfaces": torch.stack(self.found)}  # [runs, 3, 71, 61]
