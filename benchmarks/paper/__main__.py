"""The experiments of "Neural Power Units" and the field's benchmark: the command.

    python -m benchmarks.paper {EXPERIMENT,all,report}

registry.py lists the experiments; `--help` names them with their options. Stop the command at any
time, with Ctrl-C or harder; the same command goes on from there. On several machines:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT \\
        -m benchmarks.paper large --out SHARED
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import positive, writable_folder
from benchmarks.drawing import SUFFIXES
from benchmarks.marked_blocks import MarksError
from benchmarks.paper import pictures, report, workers
from benchmarks.paper.experiment import VARIANTS, Experiment
from benchmarks.paper.registry import EXPERIMENTS
from benchmarks.paper.runner import Batch, Folder
from benchmarks.paper.session import Session
from benchmarks.paper.workers import Rank, Total
from benchmarks.throughput.environment import cores
from npu_kernels._jobs import files

ALL = [name for name, experiment in EXPERIMENTS.items() if experiment.published]  # the paper's
DEFAULT_FOLDER = Path("benchmarks/out/paper")
WORK = "work"  # the folder within for checkpoints and finished batches


# ---- the command line ----------------------------------------------------------------------------


def _device(text: str) -> str:
    try:
        torch.zeros(1, device=torch.device(text))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f"{text!r} does not work here: {reason}") from None
    return text


def _parser() -> argparse.ArgumentParser:
    description = "The experiments of the paper, with their tables and figures."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=description)
    add, usual = parser.add_argument, "default %(default)s"
    reports = "all: of the paper, one after the other; report: report and pictures from the tables"
    add("experiment", choices=[*EXPERIMENTS, "all", "report"], help=reports)
    runs = "runs per model and task; default: as published"
    add("--seeds", type=positive, metavar="N", help=runs)
    add("--quick", action="store_true", help="few steps and seeds: does it run?")
    add("--variant", choices=VARIANTS, default=VARIANTS[0], help="what the authors ran, or wrote")
    add("--device", type=_device, default="cpu", help=usual)
    add("--out", type=writable_folder, default=str(DEFAULT_FOLDER), metavar="DIR", help=usual)
    processes = "processes; default: one per core, on a GPU one"
    add("--jobs", type=positive, metavar="N", help=processes)
    add("--format", choices=SUFFIXES, default="png", help=f"of the pictures; {usual}")
    renew = "with report: also renew the tables in FILE"
    add("--insert", type=Path, nargs="+", default=(), metavar="FILE", help=renew)
    for name, owners in _owners().items():
        of_each = {e.name: next(o for o in e.options if o.name == name) for e in owners}
        several = any(option.several for option in of_each.values())
        values = dict.fromkeys(value for option in of_each.values() for value in option.values)
        texts = (f"{owner}: {o.help}, of {', '.join(o.values)}" for owner, o in of_each.items())
        nargs = "+" if several else None
        choices, metavar = list(values), name.upper()
        add(f"--{name}", choices=choices, nargs=nargs, metavar=metavar, help="; ".join(texts))
    return parser


def _owners() -> dict[str, list[Experiment]]:
    """The options that only some experiments have, with those experiments."""
    owners: dict[str, list[Experiment]] = {}
    for experiment in EXPERIMENTS.values():
        for option in experiment.options:
            owners.setdefault(option.name, []).append(experiment)
    return owners


def _wrong(options: argparse.Namespace) -> str:
    """Set the defaults of the experiment's options; return what is wrong with them, or ""."""
    chosen = EXPERIMENTS.get(options.experiment)
    of_chosen = {option.name: option for option in chosen.options} if chosen else {}
    for name, owners in _owners().items():
        value = getattr(options, name)
        option = of_chosen.get(name)
        if option is None and options.experiment == "all":
            # The whole paper may be run in another way, but not in part.
            published = (o for e in owners if e.published for o in e.options if o.name == name)
            option = next((o for o in published if not o.several), None)
        if option is None and value is not None:
            names = ", ".join(owner.name for owner in owners)
            return f"argument --{name}: only for {names}, got {options.experiment}"
        if option is not None and value is not None:
            for word in value if option.several else [value]:
                if word not in option.values:
                    listed = ", ".join(option.values)
                    return f"argument --{name}: {options.experiment} has no {word}, only {listed}"
        if option is not None and value is None and chosen:
            setattr(options, name, option.default)
    if chosen and not chosen.variants and options.variant != VARIANTS[0]:
        return f"argument --variant: {chosen.name} has one variant only"
    return chosen.wrong(options) if chosen else ""


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command, checked."""
    parser = _parser()
    options = parser.parse_args(argv)
    wrong = _wrong(options)
    if wrong:
        parser.error(wrong)
    if Rank.current().size > 1 and options.jobs is not None:
        parser.error("argument --jobs: torchrun starts the processes; use its --nproc-per-node")
    pages_exist = all(page.is_file() for page in options.insert)
    if options.insert and (options.experiment != "report" or not pages_exist):
        parser.error("argument --insert: must be existing files, and the experiment report")
    if options.jobs is None:
        options.jobs = cores() if torch.device(options.device).type == "cpu" else 1
    return options


# ---- one experiment after the other --------------------------------------------------------------


def parts(options: argparse.Namespace) -> list[tuple[Experiment, argparse.Namespace]]:
    """The experiments of a command with their options: "all" runs every value of a free option."""
    if options.experiment != "all":
        return [(EXPERIMENTS[options.experiment], options)]
    runs = []
    for experiment in (EXPERIMENTS[name] for name in ALL):
        free = [o for o in experiment.options if not o.several and getattr(options, o.name) is None]
        for values in itertools.product(*(option.values for option in free)):
            chosen = dict(zip((option.name for option in free), values, strict=True))
            runs.append((experiment, argparse.Namespace(**{**vars(options), **chosen})))
    return runs


def perform(
    experiment: Experiment, options: argparse.Namespace, rank: Rank, folder: Folder, store: Any,
    total: Total,
) -> bool:  # fmt: skip
    """Run one experiment to its table; False if somebody stopped it."""
    batches = experiment.plan(options)
    processes = rank.size if rank.size > 1 else min(options.jobs, len(batches))
    session = Session(experiment, options, batches, folder, processes)
    complete = workers.run(
        session.table.name, batches, folder, options.jobs, session.announce, session.wall,
        store=store, rank=rank, total=total,
    )  # fmt: skip
    if rank.number == 0:
        session.finish(complete)
    return complete


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 130 where somebody stopped the work."""
    options, rank = arguments(argv), Rank.current()
    folder = Folder(options.out / WORK)
    try:
        if options.experiment == "report":
            pictures.draw_all(options.out, options.format)
            print(report.write(options.out))
            for page in options.insert:
                print(f"{page}: {', '.join(report.insert(options.out, page)) or 'no marks'}")
            return 0
        folder.create()
        files.remove_leftovers(options.out)
        store = workers.shared_store(rank, folder.path) if rank.size > 1 else None
        runs = parts(options)
        batches: list[Batch] = [b for experiment, chosen in runs for b in experiment.plan(chosen)]
        total = Total(options.experiment, batches, folder, rank.number == 0)
        with total.progress:
            complete = all(perform(*run, rank, folder, store, total) for run in runs)
        if not complete:
            if rank.number == 0:
                print("stopped; what was done is kept, the same command goes on from there")
            return 130
    except (RuntimeError, OSError, MarksError) as error:
        print(f"benchmarks.paper: {error}", file=sys.stderr)
        return 1
    if rank.number == 0:
        print(report.write(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
