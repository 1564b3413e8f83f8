"""The throughput suite: a line per rival on the screen, and in JSON with --json.

Run it as ``python -m benchmarks.throughput``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.arguments import command, listed, positive, seconds
from benchmarks.rows_command import ReportError, read, write
from benchmarks.throughput import cases as suite_cases
from benchmarks.throughput import environment, results, rivals, suite
from benchmarks.throughput.cases import GPU_SIZES, PASSES, QUICK_SIZES, Case, Size
from benchmarks.throughput.devices import DEVICES, Device
from benchmarks.throughput.environment import cores, named_threads
from benchmarks.throughput.results import NEEDED
from npu_kernels import backend_for
from npu_kernels._jobs import files
from npu_kernels._jobs.driver import Progress

SECONDS, QUICK_SECONDS = 3.0, 0.3  # for all rivals of a case together


def _threads(text: str) -> int:
    count = positive(text)
    if count > cores():
        rule = f"thread counts go from 1 to {cores()}, the process's cores"
        raise argparse.ArgumentTypeError(f"{rule}, got {text!r}")
    return count


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command("benchmarks.throughput", __doc__)
    add = parser.add_argument
    add("--device", choices=list(DEVICES), default="cpu", help="where to measure")
    tune = (
        "time the Triton kernels' configurations instead; faster ones go into FILE or the shipped "
        "table"
    )
    add("--tune", nargs="?", const="shipped", metavar="FILE", help=tune)
    add("--quick", action="store_true", help="few sizes, short, no torch.compile: does it run?")
    add("--threads", type=listed(_threads), help="such as 1,2; default: 1 and all cores")
    sizes = "only NPU and RealNPU at BxIxO or BxIxOxK, with commas between"
    add("--sizes", type=listed(Size.parse), help=sizes)
    for name, choice in (
        ("passes", PASSES), ("layers", rivals.FORMULAS), ("baselines", rivals.RIVALS)
    ):  # fmt: skip
        add(f"--{name}", type=listed(choice=choice), help=f"of {','.join(choice)}")
    precisions = ["highest", "high", "medium"]
    add("--precision", choices=precisions, default="highest", help="of float32 products")
    seconds_help = f"per case, default {SECONDS:g}; with --tune per kernel and size"
    add("--seconds", type=seconds, help=seconds_help)
    add("--jobs", type=positive, metavar="N", help="with --tune: processes that compile")
    memory = "leave out the peak memory (a process for each row)"
    add("--no-memory", action="store_true", help=memory)
    rows = "add the rows that it lacks, as JSON lines"
    add("--json", type=files.output, metavar="FILE", help=rows)
    options = parser.parse_args(argv)
    if options.tune:
        options.device = "cuda"
    problem = DEVICES[options.device].problem()
    if problem:
        option = "tune" if options.tune else "device cuda"
        parser.error(f"--{option} needs a GPU that runs the Triton kernels: {problem}")
    if options.threads and options.device != "cpu":
        parser.error("--threads is for the CPU")
    return options


def _names(options: argparse.Namespace) -> list[str]:
    if options.baselines:
        return list(options.baselines)
    left_out = {*rivals.COMPILED, rivals.JAX} if options.quick else set()
    return [name for name in rivals.RIVALS if name not in left_out]


def _cases(options: argparse.Namespace, device: Device) -> list[Case]:
    on_cpu = device.name == "cpu"
    sizes = options.sizes or (QUICK_SIZES if options.quick else None if on_cpu else GPU_SIZES)
    cases = suite_cases.all_cases(sizes)
    if options.quick:
        cases += suite_cases.training_cases()
        if on_cpu:
            cases += suite_cases.rollout_cases()[:1] + suite_cases.adaptive_cases()[:1]
    elif device.name == "cuda" and not options.sizes:
        cases += suite_cases.training_cases() + suite_cases.product_cases()
    passes, layers = options.passes or PASSES, options.layers or rivals.FORMULAS
    return [case for case in cases if case.kind in passes and case.layer in layers]


def _once() -> Callable[[str], None]:
    """Prints a line whose reason has not been printed before."""
    said: set[str] = set()

    def tell(line: str) -> None:
        reason = line.split(": ", 1)[1]
        if reason not in said:
            said.add(reason)
            print(f"  {line}")

    return tell


def measure(options: argparse.Namespace) -> None:
    """Run the suite; rows go to the file as they come, so that an interrupted run keeps them."""
    earlier = read(options.json, missing_ok=True, needed=NEEDED) if options.json else []
    torch.set_float32_matmul_precision(options.precision)
    device = DEVICES[options.device]
    where = environment.describe(device)
    print(", ".join(f"{key} {value}" for key, value in where.items() if value is not None))
    backend = backend_for(torch.empty(0, device=options.device))
    if backend != {"cpu": "cpu", "cuda": "triton"}[device.name]:
        print(f"ours is the {backend!r} backend here: these rows say nothing about the kernels")
    cases, names = _cases(options, device), _names(options)
    seconds_of_case = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    with_memory = not (options.no_memory or options.quick)
    common = {
        "environment": where,
        "backend": backend,
        "device": device.name,
        "matmul_precision": options.precision,
        "settings": {"seconds": seconds_of_case, "memory": with_memory},
    }
    usable, tell = results.usable(earlier, common), _once()
    rows: list[suite.Row] = []
    for count in options.threads or (sorted({1, cores()}) if device.name == "cpu" else [1]):
        old = {
            case: results.complete(usable.get((case, count), {}), case, names, count, device.name)
            for case in cases
        }
        rows += [row for case_rows in old.values() for row in case_rows]
        waiting = [case for case in cases if not old[case]]
        if len(waiting) < len(cases):
            share = f"{len(cases) - len(waiting)} of {len(cases)} cases with {count} threads"
            print(f"\n{share} are in the file already")
        if waiting:
            for of_case in _measure_cases(waiting, names, count, device, common, tell):
                rows += of_case
                earlier += of_case
                if options.json:
                    write(options.json, earlier)
    print()
    for line in suite.verdict(rows, "No rival that computes the same was faster in this run."):
        print(line)


def _measure_cases(
    cases: Sequence[Case], names: Sequence[str], threads: int, device: Device,
    common: dict[str, Any], tell: Callable[[str], None],
) -> Iterator[list[suite.Row]]:  # fmt: skip
    """The rows of each case at a number of threads; all rows of a command share `common`."""
    torch.set_num_threads(threads)
    limits = environment.measure_limits(device)
    title = named_threads(threads)
    product, copy = limits.product_rate / 1e9, limits.copy_rate / 1e9
    print(f"\n{title}: a @ b {product:.0f} GFLOP/s, copy {copy:.1f} GB/s")
    settings = common["settings"]
    with Progress(title, len(cases)) as progress:
        for number, case in enumerate(cases, 1):
            with progress.aside():
                print(f"\n[{number}/{len(cases)}] {case}, {title}", flush=True)
            measured = suite.measure(
                case, names, threads, settings["seconds"], limits=limits,
                with_memory=settings["memory"], tell=tell, device=device,
            )  # fmt: skip
            with progress.aside():
                for row in measured:
                    row |= common
                    print("  " + suite.show(row))
            yield measured
            progress.update(number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = arguments(argv)
    try:
        if options.tune:
            from benchmarks.throughput import tune

            path = None if options.tune == "shipped" else Path(options.tune)
            sizes = options.sizes or (QUICK_SIZES if options.quick else GPU_SIZES)
            jobs, of_kernel = options.jobs or max(1, cores() - 2), options.seconds or tune.SECONDS
            return tune.main(sizes, options.precision, of_kernel, path, options.json, jobs)
        measure(options)
    except KeyboardInterrupt:
        rest = "the rows so far are kept, the same command goes on from there"
        print(f"\ninterrupted; {rest}", file=sys.stderr)
        return 130
    except ReportError as error:
        print(f"--json: {error}; name another file", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
