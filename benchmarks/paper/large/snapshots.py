"""The test errors of the large task at many of the last steps, to tell what a difference means.

The test error of one run swings many-fold between steps that are 50 apart, and runs that share
their training points swing together. So a run is measured at 41 of its last 2,000 steps, and every
run is made with points of its own (`task.Data`), which makes runs independent, and once more with
the points that all of the authors' runs share. NPU and RealNPU are trained from both starts of the
gate: the authors' (1 and 0.5) and the other's.

The errors of all runs of a cell at one step are those of their middle, times a factor that all have
in common. The authors' numbers and those of `large` have one draw of that factor each.
`large-snapshots` has many: the errors of a run at its last steps, over their median. So the
interval of a statistic of one step is that of samples of the runs, each divided by a drawn factor.
Where each run has points of its own, a run's own swing counts as the common one; then the interval
is rather too wide.
"""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.paper import tables
from benchmarks.paper.large import task as large
from benchmarks.paper.runner import Batch, chunks
from benchmarks.paper.summary import MIN_RUNS, Statistic, divided, quantiles, samples
from benchmarks.paper.tables import Rows, select

SNAPSHOTS = 41
SEEDS = {"own": 10, "shared": 6}  # six are enough for an interval
NALU_SEEDS = {"own": 6, "shared": 2}  # one takes as long as six of another model
VARIANT_SEEDS = 6  # of the gate's other start
POINTS = ("own", "shared")
# The starts of the gate, the authors' first; None: no gate.
GATES: dict[str, tuple[float | None, ...]] = {"NPU": (1.0, 0.5), "RealNPU": (0.5, 1.0)}
COLUMNS = (
    "points", "gate", "task", "model", "seed", "steps", "n_params", "train_mse", "test_mse",
    "errors",
)  # fmt: skip


# ---- plan ----------------------------------------------------------------------------------------


def ways() -> Iterator[tuple[str, str, float | None, int]]:
    """Points, model, start of the gate and number of seeds."""
    for where, model in itertools.product(POINTS, large.MODELS):
        count = (NALU_SEEDS if model == "NALU" else SEEDS)[where]
        yield where, model, GATES.get(model, (None,))[0], count
    for model, (_, other) in GATES.items():
        yield "own", model, other, VARIANT_SEEDS


def plan(options: Namespace) -> list[Batch]:
    """The batches of a command."""
    steps = large.QUICK_STEPS if options.quick else large.TRAINING_STEPS
    seeds = options.seeds or (large.QUICK_SEEDS if options.quick else None)
    planned: list[Batch] = []
    for where, model, gate, count in ways():
        settings = {"model": model, "device": options.device}
        settings |= {"points": where, "gate": gate, "snapshots": SNAPSHOTS}
        runs = [
            {"task": task, "seed": seed, "steps": steps, "beta_start": record.beta_start}
            for seed in range(seeds or count)
            for task, record in large.TASKS.items()
        ]
        for part in chunks(runs, large.LARGEST_BATCH[large.DTYPES.get(model, torch.float32)]):
            label = f"{model}-{where}-{gate or 'none'}-{part[0]['task']}-{part[0]['seed']:04d}"
            planned.append(large.batch_of("large-snapshots", label, settings, part))
    return planned


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """The order of the table."""
    return POINTS.index(row["points"]), *large.key(row)[:2], str(row["gate"]), row["seed"]


# ---- rows ----------------------------------------------------------------------------------------


def errors(row: dict[str, Any]) -> list[float]:
    """The errors of one run at each of its snapshots; nan counts as infinite."""
    values = map(float, str(row["errors"]).split())
    return [math.inf if math.isnan(value) else value for value in values]


def gate_of(row: dict[str, Any]) -> float | str:
    """The start of the gate; "-": no gate."""
    return "-" if row["gate"] in ("None", None) else float(row["gate"])


def authors_gate(model: str) -> float | str:
    """The authors' start of a model's gate; "-": no gate."""
    return GATES.get(model, (None,))[0] or "-"


def authors(row: dict[str, Any]) -> bool:
    """Whether the gate starts where the authors' did."""
    return gate_of(row) == authors_gate(row["model"])


BEST = 10  # Table 1 shows the runs with the lowest test error


def paper_points(task: str, model: str) -> list[float]:
    """The published test errors: ten runs, or fewer."""
    return [p["test_mse"] for p in select(tables.load("pareto"), task=task, model=model)]


class Swing:
    """The last steps of the runs of one task and model.

    Args:
        rows: of `large-snapshots`.
        task, model: the cell, with the authors' start of the gate.
    """

    def __init__(self, rows: Rows, task: str, model: str) -> None:
        runs = [row for row in select(rows, task=task, model=model) if authors(row)]
        independent, shared = (
            [errors(row) for row in select(runs, points=points)] for points in ("own", "shared")
        )
        self.shared = len(shared) > 0 and (len(shared) >= MIN_RUNS or len(independent) < MIN_RUNS)
        self.runs = np.array(shared if self.shared else independent)  # [runs, steps]
        self.own = np.array(independent)

    def factors(self) -> np.ndarray:
        """The cell's error at each step over its middle; empty without runs."""
        if not len(self.runs):
            return np.ones(0)
        middles = np.quantile(self.runs, 0.5, axis=1, keepdims=True, method="lower")
        ratios = divided(self.runs, middles)
        return np.quantile(ratios, 0.5, axis=0, method="lower") if self.shared else ratios.flatten()

    def draws(self, of: Statistic, values: Sequence[float], key: int = 0) -> np.ndarray | None:
        """A statistic of samples of the runs, without the factor of their step.

        None where there are too few runs, or none with many steps.
        """
        factors = self.factors()
        if len(values) < MIN_RUNS or not len(factors):
            return None
        drawn = np.array([of(sample) for sample in samples(values, key)])
        return divided(drawn, np.random.default_rng(1000 + key).choice(factors, len(drawn)))

    def best_of(self, count: int) -> tuple[float, float] | None:
        """The middle 95 % of Table 1's numbers: the median of the ten best of `count` runs.

        The runs are drawn at one of the last steps, the same for all of them where they share their
        points. None for fewer than six runs.
        """
        if len(self.runs) < MIN_RUNS:
            return None
        rng = np.random.default_rng(2)
        steps = rng.integers(self.runs.shape[1], size=(1000, 1 if self.shared else count))
        drawn = self.runs[rng.integers(len(self.runs), size=(1000, count)), steps]
        chosen = np.sort(drawn, axis=1)[:, :BEST]
        with np.errstate(all="ignore"):
            return quantiles((chosen[:, BEST // 2 - 1] + chosen[:, BEST // 2]) / 2)


def around(drawn: np.ndarray | None) -> tuple[float, float] | None:
    """The 95 % interval of draws."""
    return None if drawn is None else quantiles(drawn.tolist())
