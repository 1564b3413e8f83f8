"""The simple arithmetic task: task.py trains, report.py shows."""

from __future__ import annotations

from argparse import Namespace

from benchmarks.paper.experiment import Experiment, Option, Table
from benchmarks.paper.simple import report, task


def _subset(options: Namespace) -> str:
    chosen = [*(options.units or ()), *(options.operations or ())]
    return f"only {', '.join(chosen)}" if chosen else ""


EXPERIMENT = Experiment(
    "simple",
    (
        Table(
            "simple", "Simple arithmetic task", task.COLUMNS, report.section, report.checks,
            report.differences, guide=report.guide_table, key=task.key, keep=task.keep_best,
            picture=report.picture, entries=report.ENTRIES,
        ),
    ),
    task.plan,
    options=(
        Option("units", tuple(task.RECIPES), "only these", several=True),
        Option("operations", task.TASKS, "only these", several=True),
    ),
    everything=lambda options: task.plan(options, list(task.RECIPES)),
    subset=_subset,
)  # fmt: skip
