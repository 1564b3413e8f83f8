"""The fractional SIR model's equation: search.py finds it, report.py shows it."""

from __future__ import annotations

from benchmarks.paper.experiment import Experiment, Table
from benchmarks.paper.fsir_equation import report, search

EXPERIMENT = Experiment(
    "fsir-equation",
    (
        Table(
            "fsir-equation", "Fractional SIR model: the equation itself", search.COLUMNS,
            report.section, report.checks, report.short_table, keep=report.keep_best,
            models_section=report.models_section, picture=report.picture,
        ),
    ),
    search.plan,
)  # fmt: skip
