"""The field's single-module benchmark: task.py trains, plan.py fits and has the batches,
report.py shows."""

from __future__ import annotations

from benchmarks.paper.experiment import Experiment, Option, Table
from benchmarks.paper.single_module import plan, report, task

EXPERIMENT = Experiment(
    "single-module",
    (
        Table(
            "single-module", "The field's single-module benchmark", task.COLUMNS, report.section,
            report.checks, guide=report.guide_table, key=report.key, picture=report.picture,
        ),
    ),
    plan.plan,
    published=False,
    variants=(),
    options=(
        Option("recipe", tuple(task.RECIPES), "how the layers are trained", default="plain"),
        Option("units", task.UNITS, "only these", several=True),
        Option("operations", tuple(task.OPERATIONS), "only these", several=True),
    ),
    wrong=plan.wrong,
    everything=plan.everything,
)  # fmt: skip
