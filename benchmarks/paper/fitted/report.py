"""What the report says about `npu_kernels.fit` on the paper's arithmetic tasks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

from benchmarks.marked_blocks import crossed, record_table
from benchmarks.paper import tables
from benchmarks.paper.checks import Check, statistic
from benchmarks.paper.fitted.task import BUDGET, MODELS
from benchmarks.paper.simple import task as simple
from benchmarks.paper.summary import SIGNS, median, number
from benchmarks.paper.tables import Rows, column, select

BETTER = {"simple": 10.0, "large": 1.0}  # times as good as published


def limit(task_set: str, task: str, model: str) -> float:
    """Simple: a tenth of the best layer in Table A2. Large: the layer's own cell of Table 1."""
    if task_set == "simple":
        best = min(row["centre"] for row in select(tables.load("simple"), task=task))
    else:
        table = tables.load("large")
        (cell,) = select(table, task=task, model=model, metric="test_mse")
        best = cell["median"]
    return float(best) / BETTER[task_set]


def groups(rows: Rows) -> Iterable[tuple[str, str, str, int, list[dict[str, Any]]]]:
    """(task set, task, model, starts, its runs)."""
    for task_set, task, model in itertools.product(BETTER, simple.TASKS, MODELS):
        cell = select(rows, task_set=task_set, task=task, model=model)
        for starts in sorted({row["starts"] for row in cell}):
            yield task_set, task, model, starts, select(cell, starts=starts)


def lines(rows: Rows) -> Iterable[dict[str, str]]:
    for task_set, task, model, starts, cell in groups(rows):
        errors, steps = column(cell, "error"), column(cell, "steps")
        exact = sum(row["kind"] == "rounded" and row["held_out"] < 1e-11 for row in cell)
        yield {
            "tasks": task_set,
            "": SIGNS[task],
            "layer": model,
            "starts": str(starts),
            "wanted": f"≤ {number(limit(task_set, task, model))}",
            "median": number(median(errors)),
            "worst": number(max(errors)),
            "exact": f"{exact} of {len(cell)}",
            "model-steps, median": f"{median(steps):.0f}",
            "largest": f"{max(steps):.0f}",
        }


def short_table(rows: Rows) -> str:
    """The runs that are exact, a column for each operation."""
    return crossed(lines(rows), ("tasks", "layer", "starts"), "", "exact")


def section(rows: Rows) -> str:
    return (
        "`npu_kernels.fit` with its default recipe; it knows the rows of the training range and "
        "nothing of the operation. Wanted: in the simple task a tenth of the least number of any "
        "layer in the row of Table A2, in the large one the layer's own cell of Table 1. Exact: "
        "all weights rounded to fractions, with an error on held-out rows as small as float32 "
        "gives. Model-steps: of the task's own batch size, of all starts together; the paper's "
        f"runs take {BUDGET['simple']:,} and {BUDGET['large']:,}.\n\n" + record_table(lines(rows))
    )


def checks(rows: Rows) -> list[Check]:
    results = []
    for task_set, task, model, starts, cell in groups(rows):
        name = f"{task_set} {SIGNS[task]} {model}, {starts} starts"
        for subject, values, high in (
            (f"{name}, median", "error", limit(task_set, task, model)),
            (f"{name}, model-steps of a run, median", "steps", BUDGET[task_set]),
        ):
            results.append(statistic(subject, median, column(cell, values), -math.inf, high))
    return results
