"""The experiments of "Neural Power Units" and the field's benchmark: the command.

    python -m benchmarks.paper {EXPERIMENT,all,report}

registry.py lists the experiments; `--help` names them with their options. Stop it at any time, with Ctrl-C or harder;
the same command goes on from there. On several machines:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:PORT \\
        -m benchmarks.paper large --out SHARED
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.blocks import MarksError
from benchmarks.paper import pictures, report, workers
from benchmarks.paper.drawing import SUFFIXES
from benchmarks.paper.experiment import VARIANTS, Experiment
from benchmarks.paper.registry import EXPERIMENTS
from benchmarks.paper.runner import Folder
from benchmarks.paper.session import Session
from benchmarks.paper.workers import Place, Whole
from benchmarks.throughput.environment import cores
from npu_kernels._jobs import files

ALL = [
    experiment.name for experiment in EXPERIMENTS.values() if experiment.published
]  # of the paper
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
        raise argparse.ArgumentTypeError(
            f"{text!r} does not work here: {str(error).splitlines()[0]}"
        ) from None
    return text


def _writable(text: str) -> Path:
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"cannot write into {text}: {error.strerror or error}"
        ) from None
    return folder


def _parser() -> argparse.ArgumentParser:
    description = "The experiments of the paper, with their tables and figures."
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=description)
    parser.add_argument(
        "experiment",
        choices=[*EXPERIMENTS, "all", "report"],
        help="all: of the paper, one after the other; report: report and pictures anew, from existing tables",
    )
    parser.add_argument(
        "--seeds",
        type=_positive,
        metavar="N",
        help="runs per model and task; default: as published",
    )
    parser.add_argument("--quick", action="store_true", help="few steps and seeds: does it run?")
    parser.add_argument(
        "--variant", choices=VARIANTS, default=VARIANTS[0], help="what the authors ran, or wrote"
    )
    parser.add_argument("--device", type=_device, default="cpu", help="default %(default)s")
    parser.add_argument(
        "--out",
        type=_writable,
        default=str(DEFAULT_FOLDER),
        metavar="DIR",
        help="default %(default)s",
    )
    parser.add_argument(
        "--jobs", type=_positive, metavar="N", help="processes; default: one per core, on a GPU one"
    )
    parser.add_argument(
        "--format", choices=SUFFIXES, default="png", help="of the pictures; default %(default)s"
    )
    parser.add_argument(
        "--insert",
        type=Path,
        nargs="+",
        default=(),
        metavar="FILE",
        help="with report: also renew the tables in FILE",
    )
    for name, owners in _owners().items():
        of_each = {
            e.name: next(option for option in e.options if option.name == name) for e in owners
        }
        first = next(iter(of_each.values()))
        values = list(
            dict.fromkeys(value for option in of_each.values() for value in option.values)
        )
        parser.add_argument(
            f"--{name}",
            choices=values,
            nargs="+" if first.several else None,
            metavar=name.upper(),
            help="; ".join(
                f"{where}: {o.help}, of {', '.join(o.values)}" for where, o in of_each.items()
            ),
        )
    return parser


def _owners() -> dict[str, list[Experiment]]:
    """The options that only some experiments have, and those."""
    found: dict[str, list[Experiment]] = {}
    for experiment in EXPERIMENTS.values():
        for option in experiment.options:
            found.setdefault(option.name, []).append(experiment)
    return found


def _wrong(options: argparse.Namespace) -> str:
    """Set the defaults of the experiment's own options; what is wrong with them, empty if nothing."""
    chosen = EXPERIMENTS.get(options.experiment)
    own = {option.name: option for option in chosen.options} if chosen else {}
    for name, owners in _owners().items():
        given = getattr(options, name)
        # The whole paper may be run in another way, but not in part.
        others = [
            o for e in owners for o in e.options if o.name == name and e.published and not o.several
        ]
        every = options.experiment == "all" and others
        option = own.get(name) or (others[0] if every else None)
        if option is None and given is not None:
            return f"argument --{name}: only for {', '.join(e.name for e in owners)}, got {options.experiment}"
        for value in (
            (given if option and option.several else [given])
            if option and given is not None
            else ()
        ):
            if option and value not in option.values:
                known = ", ".join(option.values)
                return f"argument --{name}: {options.experiment} has no {value}, only {known}"
        if given is None and option is not None and not every:
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
    if Place.find().size > 1 and options.jobs is not None:
        parser.error("argument --jobs: torchrun starts the processes; use its --nproc-per-node")
    pages_exist = all(page.is_file() for page in options.insert)
    if options.insert and (options.experiment != "report" or not pages_exist):
        parser.error("argument --insert: must be existing files, and the experiment report")
    if options.jobs is None:
        options.jobs = cores() if torch.device(options.device).type == "cpu" else 1
    return options


# ---- one experiment after the other ------------------------------------------------------------------------------


def parts(options: argparse.Namespace) -> list[tuple[Experiment, argparse.Namespace]]:
    """The experiments of a command, each with its options: "all" runs every value of an option that is not given."""
    if options.experiment != "all":
        return [(EXPERIMENTS[options.experiment], options)]
    found = []
    for experiment in (EXPERIMENTS[name] for name in ALL):
        free = [o for o in experiment.options if not o.several and getattr(options, o.name) is None]
        for values in itertools.product(*(option.values for option in free)):
            chosen = dict(zip((option.name for option in free), values, strict=True))
            found.append((experiment, argparse.Namespace(**{**vars(options), **chosen})))
    return found


def perform(
    experiment: Experiment,
    options: argparse.Namespace,
    place: Place,
    folder: Folder,
    store: Any,
    whole: Whole,
) -> bool:
    """Run one experiment to its table; False if somebody stopped it."""
    batches = experiment.plan(options)
    processes = place.size if place.size > 1 else min(options.jobs, len(batches))
    session = Session(experiment, options, batches, folder, processes)
    complete = workers.run(
        session.table.name,
        batches,
        folder,
        options.jobs,
        session.announce,
        session.wall,
        store=store,
        place=place,
        whole=whole,
    )
    if place.rank == 0:
        session.finish(complete)
    return complete


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    place = Place.find()
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
        store = workers.shared_store(place, folder.path) if place.size > 1 else None
        work = parts(options)
        batches = [batch for experiment, own in work for batch in experiment.plan(own)]
        whole = Whole(options.experiment, batches, folder, place.rank == 0)
        with whole.progress:
            complete = all(
                perform(experiment, own, place, folder, store, whole) for experiment, own in work
            )
        if not complete:
            if place.rank == 0:
                print("stopped; what was done is kept, the same command goes on from there")
            return 130
    except (RuntimeError, OSError, MarksError) as error:
        print(f"benchmarks.paper: {error}", file=sys.stderr)
        return 1
    if place.rank == 0:
        print(report.write(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
