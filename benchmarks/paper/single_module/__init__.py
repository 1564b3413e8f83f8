"""The field's single-module benchmark: task.py trains, plan.py fits and has the batches,
report.py shows."""

from __future__ import annotations

from benchmarks.paper.experiment import Experiment, Table
from benchmarks.paper.single_module import plan, report, task

EXPERIMENT = Experiment(
    Table(
        "single-module", "The field's single-module benchmark", task.COLUMNS, report.section,
        report.checks, guide=report.guide_table, key=report.key, picture=report.picture,
    ),
    plan.plan,
    published=False,
    units=task.UNITS,
)  # fmt: skip
