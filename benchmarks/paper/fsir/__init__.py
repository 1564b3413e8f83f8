"""The fractional SIR model: task.py and dense.py train, models.py keeps the best, report.py and picture.py show."""

from __future__ import annotations

from argparse import Namespace

from benchmarks.paper.experiment import Experiment, Option, Table
from benchmarks.paper.fsir import models, picture, report, task


def _table(options: Namespace) -> str:
    """The accurate integrator has its own."""
    return "fsir-rk4" if options.integrator == "rk4" else "fsir"


EXPERIMENT = Experiment(
    "fsir",
    (
        Table(
            "fsir",
            "Fractional SIR model",
            task.COLUMNS,
            report.section,
            report.checks,
            report.short_table,
            keep=models.keep_best,
            models_section=models.section,
            picture=picture.picture,
            entries=report.ENTRIES,
        ),
        Table(
            "fsir-rk4",
            "Fractional SIR model, accurate integrator",
            task.COLUMNS,
            report.section,
            report.accurate_checks,
            keep=models.keep_best,
            models_section=models.section,
            picture=picture.picture,
        ),
    ),
    task.plan,
    options=(Option("integrator", ("euler", "rk4"), "default as published", default="euler"),),
    table=_table,
)
