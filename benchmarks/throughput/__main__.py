"""The throughput suite: a line per rival on the screen, and in JSON with --json.

Run it as ``python -m benchmarks.throughput``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TextIO

import torch

from benchmarks.throughput import environment, peak, report, resume, rivals, suite
from benchmarks.throughput.cases import (
    GPU_SIZES,
    PASSES,
    QUICK_SIZES,
    Case,
    Size,
    adaptive_cases,
    all_cases,
    product_cases,
    rollout_cases,
    training_cases,
)
from benchmarks.throughput.devices import DEVICES, Device
from benchmarks.throughput.environment import cores
from npu_kernels import backend_for
from npu_kernels._jobs import files
from npu_kernels._jobs.progress import Progress

SECONDS, QUICK_SECONDS = 3.0, 0.3  # for all rivals of a case together


def _threads(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"thread counts are integers with commas between them, got {text!r}"
        ) from None
    if not all(1 <= n <= cores() for n in found):
        raise argparse.ArgumentTypeError(
            f"thread counts go from 1 to {cores()}, the process's cores, got {text!r}"
        )
    return found


def _sizes(text: str) -> list[Size]:
    try:
        return [Size.parse(word) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _words(known: Sequence[str], text: str) -> list[str]:
    found = text.split(",")
    unknown = [word for word in found if word not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; known: {', '.join(known)}")
    return found


def _passes(text: str) -> list[str]:
    return _words(PASSES, text)


def _rivals(text: str) -> list[str]:
    return _words(rivals.RIVALS, text)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--device", choices=list(DEVICES), default="cpu", help="where to measure")
    parser.add_argument(
        "--tune",
        nargs="?",
        const="shipped",
        metavar="FILE",
        help="time the Triton kernels' configurations instead; faster ones go into FILE or the shipped table",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few sizes, short, no torch.compile: does it run?"
    )
    parser.add_argument("--threads", type=_threads, help="such as 1,2; default: 1 and all cores")
    parser.add_argument(
        "--sizes", type=_sizes, help="only NPU and RealNPU at BxIxO or BxIxOxK, with commas between"
    )
    parser.add_argument(
        "--passes", type=_passes, default=list(PASSES), help=f"of {','.join(PASSES)}"
    )
    parser.add_argument("--rivals", type=_rivals, help=f"of {','.join(rivals.RIVALS)}")
    parser.add_argument(
        "--precision",
        choices=["highest", "high", "medium"],
        default="highest",
        help="of float32 products",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help=f"per case, default {SECONDS:g}; with --tune per kernel and size",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="with --tune: processes that compile")
    parser.add_argument(
        "--no-memory",
        action="store_true",
        help="leave out the peak memory (a process for each row)",
    )
    parser.add_argument(
        "--json",
        type=files.output,
        metavar="FILE",
        help="add the rows that it lacks, as JSON lines",
    )
    options = parser.parse_args(argv)
    if options.seconds is not None and not options.seconds > 0:
        parser.error(f"--seconds must be greater than 0, got {options.seconds:g}")
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    if options.tune:
        options.device = "cuda"
    problem = DEVICES[options.device].problem()
    if problem:
        parser.error(
            f"--{'tune' if options.tune else 'device cuda'} needs a GPU that runs the Triton kernels: {problem}"
        )
    if options.threads and options.device != "cpu":
        parser.error("--threads is for the CPU")
    return options


def _names(options: argparse.Namespace) -> list[str]:
    if options.rivals:
        return list(options.rivals)
    left_out = {rivals.COMPILE, rivals.AUTOTUNE, rivals.JAX} if options.quick else set()
    return [name for name in rivals.RIVALS if name not in left_out]


def _cases(options: argparse.Namespace, device: Device) -> list[Case]:
    sizes = options.sizes or (
        QUICK_SIZES if options.quick else None if device.name == "cpu" else GPU_SIZES
    )
    cases = all_cases(sizes)
    if options.quick:
        cases += training_cases() + (
            rollout_cases()[:1] + adaptive_cases()[:1] if device.name == "cpu" else []
        )
    elif device.name == "cuda" and not options.sizes:
        cases += training_cases() + product_cases()
    return [case for case in cases if case.kind in options.passes]


def _once() -> Callable[[str], None]:
    """Prints a line whose reason has not been printed before."""
    said: set[str] = set()

    def tell(line: str) -> None:
        reason = line.split(": ", 1)[1]
        if reason not in said:
            said.add(reason)
            print(f"  {line}")

    return tell


def measure(
    options: argparse.Namespace, output: TextIO | None, before: Sequence[suite.Row] = ()
) -> None:
    """Run the suite; rows go to the output as they come, so that an interrupted run keeps what it has.

    `before` are the rows that the output already has.
    """
    torch.set_float32_matmul_precision(options.precision)
    device = DEVICES[options.device]
    where = environment.describe(device)
    print(", ".join(f"{key} {value}" for key, value in where.items() if value is not None))
    backend = backend_for(torch.empty(0, device=options.device))
    if backend != {"cpu": "cpu", "cuda": "triton"}[device.name]:
        print(f"ours is the {backend!r} backend here: these rows say nothing about the kernels")
    cases, names = _cases(options, device), _names(options)
    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    with_memory = not (options.no_memory or options.quick)
    same = {
        "environment": where,
        "backend": backend,
        "device": device.name,
        "matmul_precision": options.precision,
        "settings": {"seconds": seconds, "memory": with_memory},
    }
    earlier, tell = resume.Earlier(before, same), _once()
    rows: list[suite.Row] = []
    for count in options.threads or (sorted({1, cores()}) if device.name == "cpu" else [1]):
        kept = [earlier.rows(case, names, count, device.name) for case in cases]
        rows += [row for found in kept for row in found]
        if any(kept):
            print(
                f"\n{sum(map(bool, kept))} of {len(cases)} cases with {count} threads are in the file already"
            )
        waiting = [case for case, found in zip(cases, kept, strict=True) if not found]
        if waiting:
            rows += _measure_cases(waiting, names, count, device, same, output, tell)
    print()
    for line in suite.verdict(rows, "No rival that computes the same was faster in this run."):
        print(line)


def _peaks(threads: int, device: Device, tell: Callable[[str], None]) -> dict[str, peak.Peak]:
    if device.name != "cpu":
        return {}
    try:
        return peak.peaks(threads)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as problem:
        tell(f"without the share of the peak: {problem}")
        return {}


def _measure_cases(
    cases: Sequence[Case],
    names: Sequence[str],
    threads: int,
    device: Device,
    same: dict[str, Any],
    output: TextIO | None,
    tell: Callable[[str], None],
) -> list[suite.Row]:
    """The rows of cases with so many threads; `same` is what all rows of a command share."""
    torch.set_num_threads(threads)
    limits = environment.measure_limits(device)
    many = f"{threads} thread{'s' if threads > 1 else ''}"
    print(
        f"\n{many}: a @ b {limits.product_rate / 1e9:.0f} GFLOP/s, copy {limits.copy_rate / 1e9:.1f} GB/s"
    )
    peaks = _peaks(threads, device, tell)
    rows: list[suite.Row] = []
    with Progress(many, len(cases)) as progress:
        for number, case in enumerate(cases, 1):
            with progress.aside():
                print(f"\n[{number}/{len(cases)}] {case}, {many}", flush=True)
            settings = same["settings"]
            found = suite.measure(
                case,
                names,
                threads,
                settings["seconds"],
                limits=limits,
                peaks=peaks,
                with_memory=settings["memory"],
                tell=tell,
                device=device,
            )
            with progress.aside():
                for row in found:
                    row |= same
                    print("  " + suite.show(row))
                    if output is not None:
                        output.write(json.dumps(row) + "\n")
                        output.flush()
            rows += found
            progress.update(number)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    options = arguments(argv)
    if options.tune:
        from benchmarks.throughput import tune

        path = None if options.tune == "shipped" else Path(options.tune)
        sizes = options.sizes or (QUICK_SIZES if options.quick else GPU_SIZES)
        jobs = options.jobs or max(1, cores() - 2)
        return tune.main(
            sizes, options.precision, options.seconds or tune.SECONDS, path, options.json, jobs
        )
    try:
        before = resume.earlier(options.json) if options.json else []
        with options.json.open("a") if options.json else nullcontext() as output:
            measure(options, output, before)
    except KeyboardInterrupt:
        print(
            "\ninterrupted; the rows so far are kept, the same command goes on from there",
            file=sys.stderr,
        )
        return 130
    except report.ReportError as error:
        print(f"--json: {error}; name another file", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
