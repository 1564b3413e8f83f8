"""One case: build the rivals, compare their results, time them interleaved, make a row of each."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.throughput import memory, rivals, timing
from benchmarks.throughput.cases import PRODUCTS, STEP, Case, Operands, cost, draw
from benchmarks.throughput.devices import DEVICES, Cuda, Device
from benchmarks.throughput.environment import Limits
from npu_kernels._operators.precision import float32_matmul_precision

Row = dict[str, Any]
MEMORY_RIVALS = (rivals.OURS, rivals.EAGER, rivals.COMPILE)
JAX_NOTE = "its own threads"


def wants_memory(case: Case) -> bool:
    size = case.size
    floats = size.models * size.rows * max(size.inputs, size.outputs)
    if case.layer in PRODUCTS:
        floats *= min(size.inputs, size.outputs)
    return case.kind == STEP and case.signs == "random" and floats >= memory.MIN_FLOATS


def measure(
    case: Case, names: Sequence[str], threads: int, seconds: float, *,
    limits: Limits | None = None, with_memory: bool = False,
    tell: Callable[[str], None] = lambda line: None, device: Device = DEVICES["cpu"],
) -> list[Row]:  # fmt: skip
    """The rows of one case, ours first. `names`: the rivals; `tell` gets why one cannot run."""
    torch.set_num_threads(threads)
    operands = draw(case).to(device.name)
    workloads, errors = _built(case, names, threads, operands, tell, device)
    # Threads of JAX's take turns with the process's own on one core: what all of them had is fair.
    # Steps of a few microseconds beside slow ones would be the first to suffer from other work.
    by_processor = workloads.keys() & {rivals.JAX, rivals.MAKE_STEP}
    clock = timing.PROCESSOR if threads == 1 and by_processor else timing.WALL
    with timing.Crowd() as crowd:
        runs = {name: workload.run for name, workload in workloads.items()}
        read = time.process_time if clock == timing.PROCESSOR else time.perf_counter
        wakes = rivals.ONE_THREAD in workloads
        block = timing.THREADS_BLOCK_SECONDS if wakes else timing.BLOCK_SECONDS
        times = timing.interleaved(
            runs, seconds, block=block, finish=device.synchronize, clock=read
        )
    rows = []
    for name in workloads:
        row: Row = {
            **case.to_dict(),
            "device": device.name,
            "threads": threads,
            "rival": name,
            **_times(times[name], times[rivals.OURS]),
            "clock": clock,
            "waited": None if crowd.waited is None else round(crowd.waited, 3),
            "error": errors[name],
            "matmul_precision": float32_matmul_precision(device.name),
        }
        if name == rivals.JAX:
            row["note"] = JAX_NOTE
        if limits is not None:
            row["product_gflops"] = limits.product_rate / 1e9
            row["copy_gb_s"] = limits.copy_rate / 1e9
            bound = cost(case)
            if bound is not None and name not in rivals.YARDSTICKS:
                row["share_of_limit"] = limits.seconds(bound) / timing.spread(times[name]).median
        if with_memory and name in MEMORY_RIVALS and wants_memory(case):
            peak = _peak(workloads[name], name, case, threads, device)
            row["peak_bytes"], why, row["peak_method"] = peak
            if why:
                tell(f"{case}: no peak memory of {name}: {why}")
        row |= device.profile(workloads[name].run)
        rows.append(row)
    return rows


def _built(
    case: Case, names: Sequence[str], threads: int, operands: Operands,
    tell: Callable[[str], None], device: Device,
) -> tuple[dict[str, rivals.Workload], dict[str, float | None]]:  # fmt: skip
    """The workload of each rival, ours first, and its error."""
    truth = rivals.exact(case, operands)
    workloads: dict[str, rivals.Workload] = {}
    errors: dict[str, float | None] = {}
    if rivals.COMPILED.keys() & set(names):
        torch.compiler.reset()  # the limit on recompilations counts per function, for all sizes
    for name in dict.fromkeys((rivals.OURS, *names)):
        reason = rivals.not_applicable(name, case, threads, device.name, hasattr(device, "capture"))
        if reason is not None:
            if reason:
                tell(f"{case}: without {name}: {reason}")
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a rival's own
            try:
                workload = rivals.build(name, case, operands, getattr(device, "capture", None))
                results = workload.results
                errors[name] = None if results is None else rivals.error(results(), truth)
            except Exception as problem:  # a compiler's, or memory's: the others are measured
                if name == rivals.OURS:
                    raise
                text = f"{type(problem).__name__}: {str(problem).strip()[:300]}"
                tell(f"{case}: without {name}: it failed, {text}")
                continue
        workloads[name] = workload
    return workloads, errors


def _times(times: Sequence[float], ours: Sequence[float]) -> Row:
    spread, ratio = timing.spread(times), timing.ratios(times, ours)
    return {
        "repetitions": len(times),
        **{f"{name}_us": 1e6 * seconds for name, seconds in asdict(spread).items()},
        "ratio": ratio.median,  # its time / ours
        "ratio_p20": ratio.p20,
        "ratio_p80": ratio.p80,
    }


def _peak(
    workload: rivals.Workload, name: str, case: Case, threads: int, device: Device
) -> tuple[int | None, str, str]:
    """Bytes, or None and why not; the method."""
    if isinstance(device, Cuda):
        return device.peak(workload.clear, workload.run), "", device.PEAK_METHOD
    return *memory.peak(name, case.to_dict(), threads), memory.METHOD


def show(row: Row) -> str:
    """A row as a line of text."""
    mark = "?" if timing.doubtful(row) else ""
    ratio = f"{row['ratio']:7.2f}x{mark} ({row['ratio_p20']:.2f} to {row['ratio_p80']:.2f})"
    line = f"{row['rival']:<17}{row['median_us']:12.1f} us  {ratio:<26}"
    if row["error"] is not None:
        line += f"  error {row['error']:.1e}"
    if row.get("share_of_limit") is not None:
        line += f"  {100 * row['share_of_limit']:.0f} % of the limit"
    if row.get("device_us") is not None:
        line += f"  device {row['device_us']:.1f} us in {row['launches']:.0f} launches"
    if row.get("peak_bytes") is not None:
        line += f"  peak {row['peak_bytes'] / 2**20:.1f} MiB"
    return line


def verdict(rows: Sequence[Row], nobody: str) -> list[str]:
    """Lines: where we lose, or `nobody` was faster; and how many rows are too doubtful to say."""
    judged = [row for row in rows if row["rival"] not in (rivals.OURS, *rivals.YARDSTICKS)]
    doubts = sum(map(timing.doubtful, judged))
    lost = [
        f"{Case.from_dict(row)}, {row['threads']} threads: {row['rival']} takes "
        f"{row['ratio']:.2f} of our time"
        for row in judged
        if row["ratio"] < 1 and not timing.doubtful(row)
    ]
    lines = ["Where we lose:", *(f"  {line}" for line in lost)] if lost else []
    if doubts:
        share = f"{doubts} of {len(judged)} ratios are marked with ?"
        lines.append(f"No verdict: {share}, {timing.DOUBT}.")
    return lines or [nobody]
