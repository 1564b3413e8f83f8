"""The experiments of "Neural Power Units" and the field's benchmark: the command.

    python -m benchmarks.paper {EXPERIMENT,all,report}

registry.py lists the experiments; `EXPERIMENT --help` names its options. Stop the command at any
time, with Ctrl-C or harder; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.arguments import command, positive, writable_folder
from benchmarks.drawing import SUFFIXES
from benchmarks.paper import report, runner
from benchmarks.paper.experiment import Experiment
from benchmarks.paper.registry import EXPERIMENTS
from benchmarks.paper.runner import Batch, Folder, Total
from benchmarks.paper.session import Session
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


def _page(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"must be an existing file, got {text!r}")
    return Path(text)


def _parser() -> argparse.ArgumentParser:
    parser = command("benchmarks.paper", __doc__)
    commands = parser.add_subparsers(dest="experiment", required=True)
    usual = "default %(default)s"
    out, common = (argparse.ArgumentParser(add_help=False) for _ in range(2))
    add = out.add_argument
    add("--out", type=writable_folder, default=str(DEFAULT_FOLDER), metavar="DIR", help=usual)
    add("--format", choices=SUFFIXES, default="png", help=f"of the pictures; {usual}")
    add = common.add_argument
    runs = "runs per model and task; default: as published"
    add("--seeds", type=positive, metavar="N", help=runs)
    add("--quick", action="store_true", help="few steps and seeds: does it run?")
    add("--device", type=_device, default="cpu", help=usual)
    processes = "processes; default: one per core, on a GPU one"
    add("--jobs", type=positive, metavar="N", help=processes)
    common.set_defaults(units=None)
    commands.add_parser("all", parents=[out, common], help="all of the paper's, one by one")
    for name, experiment in EXPERIMENTS.items():
        single = commands.add_parser(name, parents=[out, common], help=experiment.table.title)
        if experiment.units:
            single.add_argument("--units", choices=experiment.units, nargs="+", help="only these")
    report = "report and pictures again, from the tables in the folder"
    of_report = commands.add_parser("report", parents=[out], help=report)
    renew = "also renew the tables in FILE"
    of_report.add_argument(
        "--insert", type=_page, nargs="+", default=(), metavar="FILE", help=renew
    )
    return parser


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command, checked."""
    options = _parser().parse_args(argv)
    if options.experiment == "report":
        return options
    if options.jobs is None:
        options.jobs = cores() if torch.device(options.device).type == "cpu" else 1
    return options


# ---- one experiment after the other --------------------------------------------------------------


def perform(
    experiment: Experiment, options: argparse.Namespace, folder: Folder, total: Total
) -> bool:
    """Run one experiment to its table; False if somebody stopped it."""
    batches = experiment.plan(options)
    session = Session(experiment, options, batches, folder)
    name, announce = session.table.name, session.announce
    complete = runner.run(name, batches, folder, options.jobs, announce, total)
    session.finish(complete)
    return complete


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 130 where somebody stopped the work."""
    options = arguments(argv)
    folder = Folder(options.out / WORK)
    try:
        if options.experiment == "report":
            report.draw_all(options.out, options.format)
            print(report.write(options.out))
            for page in options.insert:
                print(f"{page}: {', '.join(report.insert(options.out, page)) or 'no marks'}")
            return 0
        folder.create()
        files.remove_leftovers(options.out)
        names = ALL if options.experiment == "all" else [options.experiment]
        chosen = [EXPERIMENTS[name] for name in names]
        batches: list[Batch] = [b for experiment in chosen for b in experiment.plan(options)]
        total = Total(options.experiment, batches, folder)
        with total.progress:
            complete = all(perform(experiment, options, folder, total) for experiment in chosen)
        if not complete:
            print("stopped; what was done is kept, the same command goes on from there")
            return 130
    except (RuntimeError, OSError, ValueError) as error:
        print(f"benchmarks.paper: {error}", file=sys.stderr)
        return 1
    print(report.write(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
