"""The large scale arithmetic task: task.py trains, report.py shows. snapshots.py has the last
errors and what they tell of single steps, last_steps.py shows them."""

from __future__ import annotations

from benchmarks.paper.experiment import Experiment, Table
from benchmarks.paper.large import last_steps, report, snapshots, task

EXPERIMENT = Experiment(
    Table(
        "large", "Large scale arithmetic task", task.COLUMNS, report.section, report.checks,
        report.short_table, key=task.key, picture=report.picture, picture_name="pareto",
        entries=report.ENTRIES, beside="large-snapshots",
    ),
    task.plan,
)  # fmt: skip
SNAPSHOTS = Experiment(
    Table(
        "large-snapshots", "Large scale arithmetic task: the errors of the last steps",
        snapshots.COLUMNS, last_steps.section, last_steps.checks, key=snapshots.key,
    ),
    snapshots.plan,
)  # fmt: skip
