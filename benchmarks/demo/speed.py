"""Part (c): the fused layer against eager torch and torch.compile on this machine, both passes.

The machinery is that of `benchmarks.throughput`: interleaved, medians of ratios, the error against
float64 in each row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.throughput import rivals, suite, timing
from benchmarks.throughput.cases import ENSEMBLES, LARGE, QUICK_SIZES, STEP, TINY, Case, Size
from benchmarks.throughput.environment import named_threads
from npu_kernels import backend_for
from npu_kernels._jobs.driver import Progress

DEMO_SIZES = (*TINY, *LARGE, ENSEMBLES[0])
SIZE_SECONDS = 2.0  # per size, for all rivals together

COLUMNS = ("B, I, O, models", "fused", "eager", "compile", "fused/linear", "error, fused (eager)")
WIDTHS = (20, 12, 10, 10, 14, 24)


def _line(cells: Sequence[str]) -> str:
    return f"    {cells[0]:<{WIDTHS[0]}}" + "".join(
        f"{c:>{w}}" for c, w in zip(cells[1:], WIDTHS[1:], strict=True)
    )


def _ratio(row: suite.Row | None, *, inverse: bool = False) -> str:
    if row is None:
        return "-"
    ratio = 1 / row["ratio"] if inverse else row["ratio"]
    return f"{ratio:.2f}x" + ("?" if timing.doubtful(row) else "")


def line(rows: Sequence[suite.Row]) -> str:
    """The rows of one size as a line of the table."""
    by_rival = {row["rival"]: row for row in rows}
    ours, eager = by_rival[rivals.OURS], by_rival[rivals.EAGER]
    size = f"{ours['rows']}, {ours['inputs']}, {ours['outputs']}, {ours['models']}"
    time = f"{ours['median_us']:.1f} us" + ("?" if timing.doubtful(ours) else "")
    ratios = [_ratio(by_rival.get(name)) for name in (rivals.EAGER, rivals.COMPILE)]
    linear = _ratio(by_rival[rivals.LINEAR], inverse=True)
    errors = f"{ours['error']:.1e} ({eager['error']:.1e})"
    return _line([size, time, *ratios, linear, errors])


def run(
    *, quick: bool = False, skip_compile: bool = False, sizes: Sequence[Size] | None = None,
    seconds: float | None = None,
) -> list[suite.Row]:  # fmt: skip
    """Measure and print; returns the rows."""
    sizes = (QUICK_SIZES if quick else DEMO_SIZES) if sizes is None else sizes
    seconds = (0.3 if quick else SIZE_SECONDS) if seconds is None else seconds
    names = [rivals.EAGER, rivals.LINEAR]
    why = "on request" if skip_compile else "quick" if quick else rivals.compiler_missing()
    if not why:
        names.insert(1, rivals.COMPILE)
    threads = torch.get_num_threads()
    backend = backend_for(torch.empty(0))
    print(f"(c) speed of one NPU layer here, forward + backward, float32, {named_threads(threads)}")
    if backend != "cpu":
        fused = f"the column 'fused' is the {backend!r} backend"
        print(f"    the C++ kernels are not installed: {fused}")
    if why:
        print(f"    without torch.compile: {why}")
    print(
        "    eager, compile: how many times as long as the fused layer they take; below 1 they are "
        "faster\n    fused/linear: how many times as long as nn.Linear of the shape the fused "
        "layer takes, for comparison\n    errors: relative, against float64, the greatest of the "
        "result and all gradients"
    )
    measured: list[list[suite.Row]] = []
    with Progress("  measuring", len(sizes)) as progress:
        for number, size in enumerate(sizes, 1):
            progress.update(number - 1, f"now {size}")
            measured.append(suite.measure(Case("npu", STEP, size), names, threads, seconds))
            progress.update(number)
    print("\n".join([_line(COLUMNS), *map(line, measured)]))
    rows = [row for of_size in measured for row in of_size]
    nobody = "Neither eager nor compiled torch was faster at any size of this run."
    for text in suite.verdict(rows, nobody):
        print(f"    {text}")
    return rows
