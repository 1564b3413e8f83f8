"""Part (b): the simple arithmetic task of "Neural Power Units" (NeurIPS 2020, Table A2).

``NPU(2, 6) -> NAU(6, 4)`` learns (x + y, x y, x / y, sqrt x) on a small range and is tested far
outside, on negative inputs too: a batch of models of `benchmarks.paper simple`, trained as in the
authors' code. Each seed has its data and its loss, and the losses are summed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.drawing import available
from benchmarks.paper import tables
from benchmarks.paper.simple import report
from benchmarks.paper.simple import task as simple
from benchmarks.paper.tables import select
from npu_kernels._jobs.driver import Progress
from npu_kernels.env import processor

OPERATIONS = ("x + y", "x * y", "x / y", "sqrt(x)")
DEMO_SEEDS = 20
STRETCH = 200  # steps between two looks at the progress


class Trained(NamedTuple):
    """A batch of models, with each one's mean absolute errors on the test grid."""

    model: nn.Sequential
    parameters: Tensor  # [K, P]
    errors: Tensor  # [K, 4]

    @property
    def best(self) -> int:
        """The seed with the least sum of the four errors, the one that the paper shows."""
        return int(self.errors.sum(1).nan_to_num(nan=math.inf).argmin())


def train(*, steps: int = simple.STEPS, seeds: int = DEMO_SEEDS) -> Trained:
    """Train the batch of models and test it."""
    training = simple.make(*simple.batches(["NPU"], seeds, steps, "cpu"))
    with Progress("  training", steps) as progress:
        while training.done < steps:
            training.advance(min(STRETCH, steps - training.done))
            progress.update(training.done)
    rows, tensors = training.results()
    errors = torch.tensor([[row[task] for task in simple.TASKS] for row in rows])
    assert isinstance(training.module, nn.Sequential)
    return Trained(training.module, tensors["parameters"], errors)


def _table(trained: Trained) -> None:
    errors = trained.errors
    seeds = len(errors)
    mean, median = errors.mean(0), errors.median(0).values
    spread = errors.std(0) / math.sqrt(seeds) if seeds > 1 else torch.full_like(mean, math.nan)
    both = [f"{m:.3g} +- {s:.2g}" for m, s in zip(mean.tolist(), spread.tolist(), strict=True)]
    rows = {f"this run, mean +- standard error of {seeds}": both}
    for model in ("NPU", "RealNPU"):
        paper = select(tables.load("simple"), model=model)
        rows[f"paper, {model}"] = [f"{r['centre']:.3g} +- {r['spread']:.2g}" for r in paper]
    rows[f"this run, median of {seeds}"] = [f"{m:.3g}" for m in median.tolist()]
    best = errors[trained.best].tolist()
    rows[f"this run, best seed ({trained.best})"] = [f"{e:.3g}" for e in best]
    for name, cells in {"mean |error| outside of the training range": OPERATIONS, **rows}.items():
        print(f"    {name:<44}" + "".join(f"{cell:>18}" for cell in cells))
    print("    The mean is ruled by the few worst seeds: two faithful runs may well differ by a")
    print("    factor of 3.")


def run(folder: Path, *, steps: int = simple.STEPS, seeds: int = DEMO_SEEDS) -> Trained:
    """Train, print, draw into the folder."""
    low, high = simple.TRAINING
    print("(b) the paper's arithmetic: NPU(2, 6) -> NAU(6, 4)")
    print(
        f"    {seeds} seeds in one batch of models, {steps:,} steps of Adam on {simple.ROWS} rows"
    )
    tested = "tested on -4.1 ... 3.9 (the root on 0.1 ... 4)"
    print(f"    trained on x, y ~ U({low:g}, {high:g}); {tested}")
    if steps != simple.STEPS or seeds != DEMO_SEEDS:
        paper = f"the paper trains {DEMO_SEEDS} seeds for {simple.STEPS:,} steps"
        print(f"    ({paper}: these numbers are not comparable with its)")
    trained = train(steps=steps, seeds=seeds)
    _table(trained)
    path, best = folder / "arithmetic_error.png", {"NPU": trained.parameters[trained.best]}
    if available():
        report.error_surfaces(best, path, processor())
        print(f"    Errors of the best seed: {path}")
    else:
        print("    No picture of the errors: matplotlib is not installed (pip install matplotlib)")
    return trained
