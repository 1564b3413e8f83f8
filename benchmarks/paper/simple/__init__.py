"""The simple arithmetic task: task.py trains, report.py shows."""

from __future__ import annotations

from benchmarks.paper.experiment import Experiment, Table
from benchmarks.paper.simple import report, task

EXPERIMENT = Experiment(
    Table(
        "simple", "Simple arithmetic task", task.COLUMNS, report.section, report.checks,
        report.differences, guide=report.guide_table, key=task.key, keep=task.keep_best,
        picture=report.picture, entries=report.ENTRIES,
    ),
    task.plan,
    units=tuple(task.RECIPES),
)  # fmt: skip
