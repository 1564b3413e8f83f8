"""The arithmetic tasks with `npu_kernels.fit`: task.py fits, report.py shows."""

from __future__ import annotations

from benchmarks.paper.experiment import Experiment, Table
from benchmarks.paper.fitted import report, task

EXPERIMENT = Experiment(
    Table(
        "fitted", "The arithmetic tasks with `npu_kernels.fit`", task.COLUMNS, report.section,
        report.checks, report.short_table, key=task.key,
    ),
    task.plan,
    published=False,
)  # fmt: skip
