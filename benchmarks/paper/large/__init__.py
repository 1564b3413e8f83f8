"""The large scale arithmetic task: task.py trains, report.py and picture.py show."""

from __future__ import annotations

from benchmarks.paper.experiment import Experiment, Table
from benchmarks.paper.large import picture, report, task

EXPERIMENT = Experiment(
    "large",
    (
        Table(
            "large",
            "Large scale arithmetic task",
            task.COLUMNS,
            report.section,
            report.checks,
            report.short_table,
            key=task.key,
            picture=picture.picture,
            picture_name="pareto",
        ),
    ),
    task.plan,
)
