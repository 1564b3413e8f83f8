"""The fractional SIR model: task.py and dense.py train, models.py and report.py show."""

from __future__ import annotations

from benchmarks.paper.experiment import Experiment, Table
from benchmarks.paper.fsir import models, report, task

EXPERIMENT = Experiment(
    Table(
        "fsir", "Fractional SIR model", task.COLUMNS, report.section, report.checks,
        report.phase_table, keep=models.keep_best, models_section=models.section,
        picture=report.picture, entries=report.ENTRIES,
    ),
    lambda options: task.plan(options, "euler"),
)  # fmt: skip
ACCURATE = Experiment(
    Table(
        "fsir-rk4", "Fractional SIR model, accurate integrator", task.COLUMNS, report.section,
        report.accurate_checks, keep=models.keep_best, models_section=models.section,
        picture=report.picture,
    ),
    lambda options: task.plan(options, "rk4"),
)  # fmt: skip
