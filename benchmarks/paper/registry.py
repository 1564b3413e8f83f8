"""All experiments, in the order of the report: the only place that names them."""

from __future__ import annotations

from benchmarks.paper import (
    fitted,
    fsir,
    gradient_surface,
    large,
    simple,
    single_module,
)
from benchmarks.paper.experiment import Experiment, Table

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        gradient_surface.EXPERIMENT,
        simple.EXPERIMENT,
        large.EXPERIMENT,
        large.SNAPSHOTS,
        fsir.EXPERIMENT,
        fsir.ACCURATE,
        single_module.EXPERIMENT,
        fitted.EXPERIMENT,
    )
}
TABLES: dict[str, Table] = {name: experiment.table for name, experiment in EXPERIMENTS.items()}
