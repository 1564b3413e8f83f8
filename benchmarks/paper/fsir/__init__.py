"""The fractional SIR model: task.py and dense.py train, models.py and report.py show."""

from __future__ import annotations

from argparse import Namespace

from benchmarks.paper.experiment import Experiment, Option, Table
from benchmarks.paper.fsir import models, report, task


def _table(options: Namespace) -> str:
    """The name of the table: what is not as published has another one."""
    return "fsir" if options.integrator == "euler" else f"fsir-{options.integrator}"


EXPERIMENT = Experiment(
    "fsir",
    (
        Table(
            "fsir", "Fractional SIR model", task.COLUMNS, report.section, report.checks,
            report.phase_table, keep=models.keep_best, models_section=models.section,
            picture=report.picture, entries=report.ENTRIES,
        ),
        Table(
            "fsir-rk4", "Fractional SIR model, accurate integrator", task.COLUMNS, report.section,
            report.accurate_checks, keep=models.keep_best, models_section=models.section,
            picture=report.picture,
        ),
    ),
    task.plan,
    options=(Option("integrator", task.INTEGRATORS, "of the trajectory", default="euler"),),
    table=_table,
)  # fmt: skip
