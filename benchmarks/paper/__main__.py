"""The experiments of "Neural Power Units" on the Neural Power Unit, a layer, and the field's benchmark.

    python -m benchmarks.paper {gradient-surface,simple,large,fsir,fsir-equation,all,report}
    python -m benchmarks.paper single-module [--recipe plain|fixed|best]
    python -m benchmarks.paper fitted

Stop it at any time, with Ctrl-C or harder; the same command goes on from there. On several machines:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT \\
        -m benchmarks.paper large --out SHARED
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.paper import (
    fitted,
    fsir,
    fsir_equation,
    gradient_surface,
    large,
    pictures,
    report,
    simple,
    single_module,
    workers,
)
from benchmarks.paper.drawing import SUFFIXES
from benchmarks.paper.runner import Batch, Folder
from benchmarks.paper.session import Session
from benchmarks.paper.workers import Place
from npu_kernels import files

EXPERIMENTS = ("gradient-surface", "simple", "large", "fsir", "fsir-equation")  # of the paper, what "all" runs
DEFAULT_FOLDER = Path("benchmarks/out/paper")
WORK = "work"  # the folder within for checkpoints and finished batches


# ---- the command line --------------------------------------------------------------------------------------------


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


def _device(text: str) -> str:
    try:
        torch.zeros(1, device=torch.device(text))
    except (RuntimeError, AssertionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} does not work here: {str(error).splitlines()[0]}") from None
    return text


def _writable(text: str) -> Path:
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write into {text}: {error.strerror or error}") from None
    return folder


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    description = "The experiments of the paper, with their tables and figures."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=description)
    parser.add_argument(
        "experiment",
        choices=[*EXPERIMENTS, "single-module", "fitted", "all", "report"],
        help="all: of the paper; report: report and pictures anew, from existing tables",
    )
    parser.add_argument("--seeds", type=_positive, metavar="N", help="runs per model and task; default: as published")
    parser.add_argument("--quick", action="store_true", help="few steps and seeds: does it run?")
    parser.add_argument("--variant", choices=["code", "paper"], default="code", help="what the authors ran, or wrote")
    parser.add_argument("--device", type=_device, default="cpu", help="default %(default)s")
    parser.add_argument("--out", type=_writable, default=str(DEFAULT_FOLDER), metavar="DIR", help="default %(default)s")
    parser.add_argument("--jobs", type=_positive, metavar="N", help="processes; default: one per core, on a GPU one")
    parser.add_argument("--integrator", choices=["euler", "rk4"], default="euler", help="fsir: default as published")
    parser.add_argument("--format", choices=SUFFIXES, default="png", help="of the pictures; default %(default)s")
    parser.add_argument("--insert", type=Path, metavar="FILE", help="with report: also renew the tables in FILE")
    single = parser.add_argument_group("single-module")
    recipes, units, operations = list(single_module.RECIPES), single_module.UNITS, list(single_module.OPERATIONS)
    single.add_argument("--recipe", choices=recipes, help="how the layers are trained; default: plain")
    single.add_argument("--units", nargs="+", choices=units, metavar="UNIT", help=f"only these: {', '.join(units)}")
    single.add_argument("--operations", nargs="+", choices=operations, metavar="OP", help=", ".join(operations))
    options = parser.parse_args(argv)
    place = Place.find()
    if options.experiment == "single-module":
        options.recipe = options.recipe or "plain"
        unknown = sorted(set(options.units or ()) - set(single_module.RECIPES[options.recipe]))
        if unknown:
            parser.error(f"argument --units: recipe {options.recipe} has no {', '.join(unknown)}")
        if options.variant != "code":
            parser.error("argument --variant: single-module has one variant only")
    for name in ("recipe", "units", "operations"):
        if options.experiment != "single-module" and getattr(options, name) is not None:
            parser.error(f"argument --{name}: only for single-module, got {options.experiment}")
    if place.size > 1 and options.jobs is not None:
        parser.error("argument --jobs: torchrun starts the processes; use its --nproc-per-node")
    if options.insert is not None and (options.experiment != "report" or not options.insert.is_file()):
        parser.error("argument --insert: must be an existing file, and the experiment report")
    if options.jobs is None:
        options.jobs = _cores() if torch.device(options.device).type == "cpu" else 1
    return options


def plan(experiment: str, options: argparse.Namespace) -> list[Batch]:
    """The batches of an experiment."""
    quick, seeds, common = options.quick, options.seeds, (options.variant, options.device)
    if experiment == "single-module":
        return single_module_plan(options, options.recipe, options.units, options.operations)
    if experiment == "gradient-surface":
        return gradient_surface.batches(seeds or gradient_surface.SEEDS, *common)
    if experiment == "simple":
        steps = simple.QUICK_STEPS if quick else simple.STEPS
        seeds = seeds or (simple.QUICK_SEEDS if quick else simple.SEEDS)
        return simple.batches(list(simple.RECIPES), seeds, steps, *common)
    if experiment == "fitted":
        return fitted.batches(seeds, quick, *common)
    if experiment == "fsir":
        return fsir.plan(quick, seeds, options.integrator, *common)
    if experiment == "fsir-equation":
        return fsir_equation.plan(quick, seeds, options.device)
    steps = large.QUICK_STEPS if quick else large.STEPS
    return large.batches(list(large.MODELS), seeds or (large.QUICK_SEEDS if quick else None), steps, *common)


def table_name(experiment: str, options: argparse.Namespace) -> str:
    """The table that an experiment fills: with the accurate integrator one of its own."""
    return f"{experiment}-rk4" if experiment == "fsir" and options.integrator == "rk4" else experiment


def single_module_plan(
    options: argparse.Namespace,
    recipe: str,
    units: Sequence[str] | None = None,
    operations: Sequence[str] | None = None,
) -> list[Batch]:
    """The batches of a recipe of the single-module benchmark, or some of them."""
    seeds = options.seeds or (single_module.QUICK_SEEDS if options.quick else single_module.SEEDS)
    steps = single_module.QUICK_STEPS if options.quick else single_module.STEPS
    return single_module.batches(recipe, seeds, steps, options.device, units, operations)


# ---- one experiment after the other ------------------------------------------------------------------------------


def perform(experiment: str, options: argparse.Namespace, place: Place, folder: Folder, store: Any) -> bool:
    """Run one experiment to its table; False if somebody stopped it."""
    batches = plan(experiment, options)
    processes = place.size if place.size > 1 else min(options.jobs, len(batches))
    parts = [batches]
    if experiment == "single-module":  # one table for all recipes
        parts = [single_module_plan(options, recipe) for recipe in single_module.RECIPES]
    session = Session(table_name(experiment, options), options, batches, folder, processes, parts)
    complete = workers.run(
        experiment, batches, folder, options.jobs, session.announce, session.wall, store=store, place=place
    )
    if place.rank == 0:
        session.finish(complete)
    return complete


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    place = Place.find()
    folder = Folder(options.out / WORK)
    if options.experiment == "report":
        pictures.draw_all(options.out, options.format)
        print(report.write(options.out))
        if options.insert is not None:
            print(f"{options.insert}: {', '.join(report.insert(options.out, options.insert)) or 'no marks'}")
        return 0
    try:
        folder.create()
        files.remove_leftovers(options.out)
        store = workers.shared_store(place, folder.path) if place.size > 1 else None
        for experiment in EXPERIMENTS if options.experiment == "all" else [options.experiment]:
            if not perform(experiment, options, place, folder, store):
                if place.rank == 0:
                    print("stopped; what was done is kept, the same command goes on from there")
                return 130
    except (RuntimeError, OSError) as error:
        print(f"benchmarks.paper: {error}", file=sys.stderr)
        return 1
    if place.rank == 0:
        print(report.write(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
