"""Part (c): the fused layer against eager torch and torch.compile on this machine, both passes.

The machinery is that of `benchmarks.throughput`: interleaved, medians of ratios, the error against
float64 in each row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.throughput import rivals, suite
from benchmarks.throughput.cases import ENSEMBLES, LARGE, QUICK_SIZES, STEP, TINY, Case, Size
from benchmarks.throughput.environment import named_threads
from npu_kernels import backend_for

DEMO_SIZES = (*TINY, *LARGE, ENSEMBLES[0])
SIZE_SECONDS = 2.0  # per size, for all rivals together


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
        print(f"    the C++ kernels are not installed: 'ours' is the {backend!r} backend")
    if why:
        print(f"    without torch.compile: {why}")
    print(
        "    sizes: rows x inputs x outputs x models; behind a time: how many times ours it is\n"
        "    linear: nn.Linear of the shape, another function, for comparison\n"
        "    errors: relative, against float64, the greatest of the result and all gradients"
    )
    rows: list[suite.Row] = []
    for size in sizes:
        print(f"    {size}", flush=True)
        measured = suite.measure(Case("npu", STEP, size), names, threads, seconds)
        for row in measured:
            print(f"      {suite.show(row)}")
        rows += measured
    nobody = "Neither eager nor compiled torch was faster at any size of this run."
    for text in suite.verdict(rows, nobody):
        print(f"    {text}")
    return rows
