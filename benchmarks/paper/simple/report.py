"""What the report says about the simple arithmetic task: the paper beside ours, and the verdict.

The ranges come from the published numbers and from a re-implementation of the authors' code that
was run with many more seeds: where Table A2 prints a mean over 20 runs of a heavy-tailed error, a
faithful run is judged by its median. They hold for all steps.

The picture shows where the best model of each kind errs.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.drawing import error_map, figure, headline, save, scale
from benchmarks.marked_blocks import record_table
from benchmarks.paper import tables
from benchmarks.paper.checks import (
    Check,
    Entry,
    definitions,
    ranked,
    statistic,
    unmeasured,
    verdicts,
)
from benchmarks.paper.experiment import Sources
from benchmarks.paper.simple import task as simple
from benchmarks.paper.summary import (
    DRAWS,
    SIGNS,
    Statistic,
    mean,
    median,
    middle,
    number,
    plus_minus,
    probability,
    probable,
)
from benchmarks.paper.tables import Rows, select

DIFFERS = 0.05  # a probability below which means differ
PAPER_RUNS = 20
# The models of the guide to the layers. The NPU's numbers are those of the RealNPU: see `section`.
GUIDE = {
    "RealNPU": "RealNPU → NAU", "NMU": "NMU → NAU", "NALU": "NALU", "iNALU": "iNALU",
    "Dense": "dense network",
}  # fmt: skip
STATISTICS: dict[str, Statistic] = {"median": median, "mean": mean}  # of the checks
SOLVED = 0.01  # of the mean size of the right answers on the test grid


def solved_below(task: str) -> float:
    """The error below which a run counts as a success: 1 % of the answers' mean size."""
    index = simple.TASKS.index(task)
    return SOLVED * float(simple.targets(simple.grid(task))[:, index].abs().mean())


def pairs(rows: Rows) -> Iterator[tuple[str, str, list[float], dict[str, Any], float]]:
    """Each task and model with our errors, the paper's row, and the chance of such means."""
    for task, model in itertools.product(simple.TASKS, simple.RECIPES):
        runs = select(rows, model=model)
        values = [row[task] for row in runs if not math.isnan(row[task])]
        if values:
            (theirs,) = select(tables.load("simple"), task=task, model=model)
            chance = probability(values, theirs["centre"], theirs["spread"])
            yield task, model, values, theirs, chance


def share_solved(task: str, errors: Sequence[float]) -> str:
    return f"{100 * mean([error < solved_below(task) for error in errors]):.0f} %"


def lines(rows: Rows) -> Iterator[dict[str, str]]:
    for task, model, values, theirs, chance in pairs(rows):
        differ = "no difference" if chance >= DIFFERS else "**differs**"
        yield {
            "task": SIGNS[task],
            "model": model,
            "paper: mean ± s.e.": plus_minus(theirs["centre"], theirs["spread"]),
            "here: mean (95 %)": middle(values, mean),
            "paper and here: means": f"{differ} (p = {probable(chance)})",
            "here: median (95 %)": middle(values),
            "solved": share_solved(task, values),
        }


def guide_table(rows: Rows) -> str:
    """The medians and the shares of solved seeds; the least median of a column is bold."""
    records = [{"median error (share of seeds that solved it)": title} for title in GUIDE.values()]
    for task in simple.TASKS:
        errors = [[row[task] for row in select(rows, model=model)] for model in GUIDE]
        least_median = min(map(median, errors))
        for record, values in zip(records, errors, strict=True):
            text = f"{number(median(values))} ({share_solved(task, values)})"
            record[SIGNS[task]] = f"**{text}**" if median(values) == least_median else text
    return record_table(records)


def differences(rows: Rows) -> str:
    """The pairs whose means differ: what rare large errors have to do with it."""
    records, share = [], f"share of means of {PAPER_RUNS} of our runs as far off as the paper's"
    for task, model, values, theirs, chance in pairs(rows):
        if chance < DIFFERS:
            drawn = np.random.default_rng(0).choice(np.asarray(values), (DRAWS, PAPER_RUNS)).mean(1)
            below = theirs["centre"] < mean(values)
            far = (drawn <= theirs["centre"] if below else drawn >= theirs["centre"]).mean()
            smaller = sorted(values)[: -max(1, len(values) // 20)]
            records.append(
                {
                    "task": SIGNS[task],
                    "model": model,
                    "paper: mean": number(theirs["centre"]),
                    "here: mean": number(mean(values)),
                    "without the largest 5 %": number(mean(smaller)),
                    share: probable(float(far)),
                }
            )
    return record_table(records) if records else "No means differ.\n"


def section(rows: Rows) -> str:
    limits = ", ".join(f"{SIGNS[task]} {number(solved_below(task))}" for task in simple.TASKS)
    return (
        "Mean absolute error outside of the training range, Table A2 of the paper. Its caption "
        "says median and MAD, its numbers are mean and standard error of 20 runs. In brackets: "
        "the 95 % intervals of ours, of the mean by a bootstrap. p is the probability that "
        "chance alone makes the two means differ at least so much, the errors of both taken "
        "together; below 0.05 they differ. Of so many numbers one differs by chance alone. A "
        "run has solved a task when its error is below 1 % of the answers' mean size "
        f"({limits}). NPU and RealNPU of one seed give the same numbers: the imaginary weights "
        "start at 0 and no training input is negative, so their gradient is exactly 0.\n\n"
        + record_table(lines(rows))
        + "\nThe pairs whose means differ:\n\n"
        + differences(rows)
    )


# ---- verdict -------------------------------------------------------------------------------------


def checks(rows: Rows) -> list[Check]:
    def values(model: str, task: str) -> list[float]:
        return [row[task] for row in select(rows, model=model)]

    judged = []
    for limits in tables.load("simple_wanted"):
        model, task, of = limits["model"], limits["task"], STATISTICS[limits["statistic"]]
        subject = f"{model} {SIGNS[task]}, {of.__name__}"
        judged.append(statistic(subject, of, values(model, task), limits["low"], limits["high"]))
    names, nmu_first = list(simple.RECIPES), sorted(simple.RECIPES, key=lambda name: name != "NMU")
    for task, listed, rule, of, holds in (
        ("div", names, "NPU, RealNPU < all others", median, lambda *m: max(m[:2]) < min(m[2:])),
        ("sqrt", names, "NPU, RealNPU < all others", median, lambda *m: max(m[:2]) < min(m[2:])),
        ("mul", nmu_first, "NMU < all others", median, lambda *m: m[0] < min(m[1:])),
        *((task, names[3:], "all > 1", mean, lambda *m: min(m) > 1) for task in simple.TASKS[:3]),
    ):
        subject = f"{SIGNS[task]}, {of.__name__}s of {', '.join(listed)}"
        groups = [values(model, task) for model in listed]
        judged.append(ranked(subject, rule, of, groups, holds))
    return judged


# ---- the paper's figures and tables --------------------------------------------------------------


def _means(rows: Sequence[Rows], models: Path) -> str:
    title = "paper and here: means"
    return verdicts([(f"{r['task']} {r['model']}", r[title]) for r in lines(rows[0])], "means")


ENTRIES = (
    unmeasured("Figure 6", "errors of the best of 20 models over the plane"),
    Entry(
        "Table A2",
        "test errors of the simple task",
        _means,
        "heavy tails: means of twenty runs miss rare large errors (second table there); of twenty "
        "pairs one differs by chance",
    ),
    definitions("Table A3", "models of the simple task"),
)


# ---- the picture ---------------------------------------------------------------------------------


FORMULAS = {"add": "x + y", "mul": "x y", "div": "x / y", "sqrt": "√x"}


def error_surfaces(best: dict[str, Tensor], path: Path, processor: str) -> None:
    """log10 |error| of a model ``[P]`` of each kind: rows are models, columns tasks."""
    drawing, axes = figure(len(best), len(simple.TASKS), 1.12 * len(best) + 1.6, share="col")
    wide = torch.arange(41, dtype=torch.float64).mul(0.2).sub(4.1)
    positive = torch.arange(1, 51, dtype=torch.float64).mul(0.1)
    for line, (model, parameters) in zip(axes, best.items(), strict=True):
        for axis, task in zip(line, simple.TASKS, strict=True):
            points = positive if task == "sqrt" else wide
            error = simple.surface(model, parameters, task, points)
            drawn = error_map(axis, points, error, (-4, 2), simple.TRAINING)
            axis.set(aspect="equal", xticks=[], yticks=[])
        line[0].set_ylabel(model, fontweight="bold")
    for axis, task in zip(axes[0], simple.TASKS, strict=True):
        axis.set_title(f"{FORMULAS[task]}, {'0 to 5' if task == 'sqrt' else '-4 to 4'}")
    numbers = ("≤ 0.0001", "0.001", "0.01", "0.1", "1", "10", "≥ 100")
    scale(drawing, axes, drawn, "absolute error", dict(zip(range(-4, 3), numbers, strict=True)))
    headline(
        drawing,
        "One model learns x + y, x y, x / y and √x: error of the best seed of each kind",
        "x to the right, y upwards. Blue box: the training range. A model extrapolates where it "
        f"stays light outside of the box. Trained on {processor}.",
    )
    save(drawing, path)


def picture(sources: Sources, path: Path) -> bool:
    """The maps of the chosen models."""
    chosen = json.loads(sources.models.read_text())
    best = {model: torch.tensor(values) for model, values in chosen["models"].items()}
    error_surfaces(best, path, chosen["processor"])
    return True
