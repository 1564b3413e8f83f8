"""What a difference between test errors of the large task means: the same training, measured at many of its last steps.

The test error of one run swings many-fold between steps that are 50 apart, and runs that share their training points
swing together. So a run is measured at 41 of its last 2,000 steps, and every run is made with points of its own
(`task.Data`), which makes runs independent, and once more with the points that all of the authors' runs share. NPU and
RealNPU are trained from both starts of the gate: the authors' (1 and 0.5) and the other's.
"""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.paper import published
from benchmarks.paper.checks import Check, order
from benchmarks.paper.large import task as large
from benchmarks.paper.markdown import SIGNS, between, table
from benchmarks.paper.runner import Batch, chunks
from benchmarks.paper.summary import bootstrap, interval, median, number
from benchmarks.paper.tables import Rows

SNAPSHOTS = 41
BLOCK = 5  # seeds of a batch, after the first
SEEDS = {"own": 10, "shared": 6}  # six are enough for an interval
NALU_SEEDS = {"own": 6, "shared": 2}  # one takes as long as six of another model
VARIANT_SEEDS = 6  # of the gate's other start
POINTS = ("own", "shared")
# The starts of the gate, the authors' first; None: no gate.
GATES: dict[str, tuple[float | None, ...]] = {"NPU": (1.0, 0.5), "RealNPU": (0.5, 1.0)}
COLUMNS = ("points", "gate", "task", "model", "seed", "steps", "n_params", "train_mse", "test_mse", "errors")

Cell = tuple[str, str, float | str]  # task, model, start of the gate ("-": none)


# ---- plan ----------------------------------------------------------------------------------------------------------


def ways(points: Sequence[str]) -> Iterator[tuple[str, str, float | None, int]]:
    """Points, model, start of the gate and how many seeds; the variants come late, the NALU, which is slow, last."""
    for where in points:
        for model in large.MODELS:
            if model != "NALU":
                yield where, model, GATES.get(model, (None,))[0], SEEDS[where]
    if "own" in points:
        for model, (_, other) in GATES.items():
            yield "own", model, other, VARIANT_SEEDS
    for where in points:
        yield where, "NALU", None, NALU_SEEDS[where]


def plan(options: Namespace, points: Sequence[str] | None = None) -> list[Batch]:
    """The batches of a command: every task and model has its first seed before any has its second."""
    steps = large.QUICK_STEPS if options.quick else large.STEPS
    seeds = options.seeds or (large.QUICK_SEEDS if options.quick else None)
    found: list[Batch] = []
    for block in range(1 + math.ceil(((seeds or max(SEEDS.values())) - 1) / BLOCK)):
        for where, model, gate, count in ways([p for p in POINTS if p in (points or options.points or POINTS)]):
            first = 1 + BLOCK * (block - 1) if block else 0  # seed 0, then 1 to 5, 6 to 10: more seeds repeat none
            settings = {"model": model, "variant": "code", "device": options.device}
            settings |= {"points": where, "gate": gate, "snapshots": SNAPSHOTS}
            runs = [
                {"task": task, "seed": seed, "steps": steps, "beta_start": large.TASKS[task].beta_start}
                for seed in range(first, min(1 + BLOCK * block, seeds or count))
                for task in large.TASKS
            ]
            for part in chunks(runs, large.LARGEST_BATCH[large.DTYPES.get(model, torch.float32)]):
                label = f"{model}-{where}-{gate or 'none'}-{part[0]['task']}-{part[0]['seed']:04d}"
                found.append(large.batch_of("large-snapshots", label, settings, part, turn=len(found)))
    return found


def rounds(options: Namespace) -> list[list[Batch]]:
    """One round: what a command leaves out fills the same table."""
    return [plan(options, POINTS)]


def subset(options: Namespace) -> str:
    chosen = options.points or POINTS
    return "" if set(chosen) == set(POINTS) else f"only {', '.join(chosen)} points"


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """The order of the table."""
    return POINTS.index(row["points"]), *large.key(row)[:2], str(row["gate"]), row["seed"]


# ---- report --------------------------------------------------------------------------------------------------------


def errors(row: dict[str, Any]) -> list[float]:
    """Of one run, at each of its snapshots; nan counts as infinite."""
    return [math.inf if math.isnan(value) else value for value in map(float, str(row["errors"]).split())]


def cells(rows: Rows) -> Iterator[tuple[Cell, dict[str, list[list[float]]]]]:
    """Each cell with the errors of its runs, by whose points they had."""
    for task in large.TASKS:
        for model in large.MODELS:
            for gate in GATES.get(model, (None,)):
                cell = task, model, "-" if gate is None else gate
                mine = [row for row in rows if (row["task"], row["model"], _gate(row)) == cell]
                found = {points: [errors(row) for row in mine if row["points"] == points] for points in POINTS}
                if mine:
                    yield cell, found


def _gate(row: dict[str, Any]) -> float | str:
    return "-" if row["gate"] in ("None", None) else float(row["gate"])


def paper_points(task: str, model: str) -> list[float]:
    """The published test errors: ten runs, or fewer."""
    return [p["test_mse"] for p in published.load("pareto") if (p["task"], p["model"]) == (task, model)]


def pooled(runs: Sequence[Sequence[float]]) -> float:
    """The median of all runs' errors at all snapshots; of an even number the lower one, as some are infinite."""
    return float(np.quantile(np.concatenate([np.asarray(run) for run in runs]), 0.5, method="lower"))


def swing(runs: Sequence[Sequence[float]]) -> str:
    """Of the middle run: the errors that a tenth of its snapshots lie below and above."""
    if not runs:
        return "-"
    low, high = (median([float(np.quantile(run, q, method="nearest")) for run in runs]) for q in (0.1, 0.9))
    return f"{number(low)} to {number(high)}"


def judged(theirs: tuple[float, float] | None, ours: tuple[float, float] | None) -> str:
    """Whether two 95 % intervals of a median lie apart."""
    if theirs is None or ours is None:
        return "too few runs"
    if theirs[1] < ours[0]:
        return "**ours greater**"
    return "**ours less**" if ours[1] < theirs[0] else "no difference"


def lines(rows: Rows) -> Iterable[list[str]]:
    for (task, model, gate), found in cells(rows):
        theirs = paper_points(task, model)
        authors = gate == (GATES.get(model, (None,))[0] or "-")
        around = {points: bootstrap(pooled, runs) for points, runs in found.items()}
        yield [
            SIGNS[task],
            model,
            f"{gate}" if authors else f"{gate} (variant)",
            between(median(theirs), interval(median, theirs)),
            *(between(pooled(found[points]), around[points]) if found[points] else "-" for points in POINTS),
            swing(found["own"]),
            judged(interval(median, theirs), around["own"]) if authors else "-",
            ", ".join(str(len(found[points])) for points in POINTS),
        ]


def short_table(rows: Rows) -> str:
    header = [
        "task",
        "model",
        "gate's start",
        "paper: median (95 %)",
        "own points: median (95 %)",
        "shared points: median (95 %)",
        "one run with own points, last 2,000 steps: 10 % to 90 %",
        "paper and own points",
        "runs: own, shared",
    ]
    return table(header, lines(rows))


def section(rows: Rows) -> str:
    return (
        "The test error at 41 of the last 2,000 steps, 50 apart. Medians are of all runs and snapshots; in brackets "
        "the 95 % interval, by a bootstrap of whole runs, from six runs on. *Own points*: each seed has training "
        "points of its own, the Sobol sequence shifted by a random vector modulo 1, so runs are independent. *Shared "
        "points*: the authors' sequence, the same for all seeds; these runs swing together, so their interval is too "
        "narrow, and nothing is concluded from it. *Paper*: the published points, the ten runs with the lowest test "
        "error at their last step of an unknown number, so their median is too low by an unknown factor. A difference "
        "is named where the two intervals lie apart. *Variant*: the gate's other start.\n\n" + short_table(rows)
    )


def checks(rows: Rows) -> list[Check]:
    """The paper's orders of models, by medians with own points and the authors' starts of the gate."""
    middle = {
        (task, model): pooled(found["own"])
        for (task, model, gate), found in cells(rows)
        if gate == (GATES.get(model, (None,))[0] or "-")
    }

    def ranked(task: str, *names: str) -> Check:
        values = [middle.get((task, name), math.nan) for name in names]
        holds = all(low < high for low, high in itertools.pairwise(values))
        return order(f"{SIGNS[task]}, own points, medians: {', '.join(names)}", " < ".join(names), holds, values)

    return [
        *(ranked(task, name, "NaiveNPU") for task in large.TASKS for name in ("NPU", "RealNPU")),
        *(ranked(task, name, "NMU") for task in ("div", "sqrt") for name in ("NPU", "RealNPU")),
        *(ranked(task, name, "NALU") for task in large.TASKS for name in ("NPU", "RealNPU")),
    ]
