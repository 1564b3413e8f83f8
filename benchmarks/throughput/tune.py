"""``python -m benchmarks.throughput --tune``: the fastest configuration of every Triton kernel, measured on this GPU.

For each size and kernel a search starts at the shipped configuration and changes one of its numbers at a time, as long
as that makes the launch at least 2 % faster. A configuration that cannot be compiled or launched, or that does not
compute what the shipped one does, does not count. What is faster than the shipped entry is added to the table under the
sizes' own key (`npu_kernels.backends.triton.tuning`), so that nothing changes for other sizes, and the launches of the
next process use it. ``python -m tools.aot`` then compiles these entries too, for machines without the GPU.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.throughput.cases import Size
from npu_kernels.testing import relative_error

SECONDS = 60.0  # for one kernel at one size
GAIN = 0.02  # less is noise
LEAST_SECONDS = 0.01  # of timing of a candidate
CACHE_BYTES = 2**28  # more than any second-level cache
EPS, OMEGA = 2.0**-23, 20.0

Config = dict[str, int]
Timer = Callable[[Callable[[], object]], float]  # seconds of one call
# Products of one bfloat16 plane differ in the third digit, of two in the fifth.
TOLERANCE = {0: 1e-4, 6: 1e-4, 3: 1e-3, 1: 3e-1}


@dataclass(frozen=True)
class Order:
    """One entry to measure: a kernel at a size, with the call that launches it and returns what it computes."""

    kernel: str
    size: Size
    launch: Callable[[], Sequence[Tensor]]


def search(
    start: Config, candidates: Iterable[Config], seconds: Callable[[Config], float], *, enough: Callable[[], bool]
) -> tuple[Config, float, float]:
    """``(best, its seconds, those of the start)``: from the start along candidates that differ in one number.

    `seconds` gives inf for a configuration that does not work; `enough` ends the search early.
    """
    left = [dict(candidate) for candidate in candidates]
    best, time = dict(start), seconds(start)
    first, improved = time, True
    while improved and not enough():
        improved = False
        near = [c for c in left if c.keys() == best.keys() and sum(c[name] != best[name] for name in c) == 1]
        for candidate in near:
            if enough():
                break
            left.remove(candidate)
            found = seconds(candidate)
            if found < (1 - GAIN) * time:
                best, time, improved = candidate, found, True
    return best, time, first


def device_time(run: Callable[[], object]) -> float:
    """Seconds of one call on the device, the median over calls with a cold cache."""
    flush = torch.empty(CACHE_BYTES, dtype=torch.uint8, device="cuda")
    times: list[float] = []
    for _ in range(2):
        run()
    while len(times) < 5 or (sum(times) < LEAST_SECONDS and len(times) < 50):
        flush.zero_()  # the host runs ahead meanwhile, so the launch itself is not timed
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e-3 * begin.elapsed_time(end))
    return statistics.median(times)


def orders(size: Size, device: str) -> list[Order]:
    """All kernels at one size, float32. The NALU's are measured by the iNALU, which has more to do."""
    from npu_kernels.backends.triton import nalu, nmu, npu, tuning

    generator = torch.Generator().manual_seed(0)
    lead = () if size.models == 1 else (size.models,)

    def draw(*shape: int) -> Tensor:
        bound = min(1.0, 3 / shape[-1] ** 0.5)
        return ((2 * torch.rand(*lead, *shape, generator=generator) - 1) * bound).to(device)

    x, grad_y = draw(size.rows, size.inputs), draw(size.rows, size.outputs)
    weights = [draw(size.outputs, size.inputs) for _ in range(5)]
    gate = draw(size.inputs).abs()
    y, s = npu.npu_forward(x, weights[0], weights[1], gate, EPS, True)
    operands: tuple[Any, ...] = (x, *weights, EPS, OMEGA, True)
    reverse = (grad_y, x, *weights, *nalu.inalu_forward(*operands)[1:], EPS, OMEGA)

    def npu_backward(needs: int) -> Sequence[Tensor]:
        return npu.npu_backward(grad_y, x, weights[0], weights[1], gate, y, s, EPS, False, needs)

    def inalu_backward(needs: int) -> Sequence[Tensor]:
        arguments: tuple[Any, ...] = (*reverse, needs)
        return nalu.inalu_backward(*arguments)

    def forward() -> Sequence[Tensor]:
        return npu.npu_forward(x, weights[0], weights[1], gate, EPS, True)

    calls: dict[str, Callable[[], Sequence[Tensor]]] = {}
    if tuning.is_small(size.inputs, size.outputs):
        calls |= {"npu_small_forward": forward, "npu_small_backward": lambda: npu_backward(15)}
    else:
        calls |= {"npu_forward": forward, "npu_backward_x": lambda: npu_backward(1)}
        calls["npu_backward_w"] = lambda: npu_backward(6)
    calls["nmu_forward"] = lambda: [nmu.nmu_forward(x, weights[0])]
    calls["nmu_backward"] = lambda: nmu.nmu_backward(grad_y, x, weights[0], 3)
    calls["nalu_forward"] = lambda: nalu.inalu_forward(*operands)
    calls["nalu_backward_x"] = lambda: inalu_backward(1)
    calls["nalu_backward_w"] = lambda: inalu_backward(62)
    return [Order(kernel, size, launch) for kernel, launch in calls.items()]


def shipped(order: Order, device: str) -> Config:
    """The configuration that a launch uses now, as a table's entry."""
    from npu_kernels.backends.triton import tuning

    size, x = order.size, torch.empty(0, device=device)
    found = tuning.lookup(order.kernel, x, size.rows, size.inputs, size.outputs, size.models)
    entry = {name: value for name, value in found.options.items() if name != "enable_fp_fusion"}
    return entry | ({"programs": found.programs} if found.programs else {})


def tune(
    order: Order, timer: Timer, seconds: float, clock: Callable[[], float], device: str = "cuda"
) -> tuple[Config, float, float]:
    """``(best, its seconds, those of the shipped one)`` of one kernel at one size, within about that many seconds."""
    from npu_kernels.backends.triton import tuning

    size, precision = order.size, torch.get_float32_matmul_precision()
    bucket = tuning.bucket(size.rows, size.inputs, size.outputs, size.models)
    start, begin = shipped(order, device), clock()
    expected = [output.clone() for output in order.launch()]

    def measure(config: Config) -> float:
        with tuning.use_config(order.kernel, config):
            try:
                outputs = order.launch()
                tolerance = TOLERANCE[max(config.get("PASSES", 0), 0)]
                worst = max(relative_error(o, e) for o, e in zip(outputs, expected, strict=True))
                return timer(order.launch) if worst <= tolerance else math.inf
            except Exception:  # out of registers or shared memory, or a compiler's own failure: it does not count
                return math.inf

    kept = {"maxnreg": start["maxnreg"]} if "maxnreg" in start else {}  # no candidate varies it
    candidates = (entry | kept for entry in tuning.candidates(order.kernel, torch.float32, precision, bucket))
    return search(start, candidates, measure, enough=lambda: clock() - begin > seconds)


def entries(
    sizes: Sequence[Size], timer: Timer, seconds: float, clock: Callable[[], float], tell: Callable[[str], None],
    device: str = "cuda", keep: Callable[[dict[str, Config]], None] = lambda found: None,
) -> dict[str, Config]:  # fmt: skip
    """``{key: configuration}`` of what is faster than the shipped one, for all kernels at all sizes.

    `keep` gets all that has been found as soon as there is more of it.
    """
    from npu_kernels.backends.triton import tuning

    precision = torch.get_float32_matmul_precision()
    found: dict[str, Config] = {}
    for size in sizes:
        for order in orders(size, device):
            best, time, first = tune(order, timer, seconds, clock, device)
            tell(f"{order.kernel} {size}: {1e6 * first:.1f} us as shipped, {1e6 * time:.1f} us with {best}")
            if time < first:
                sizes_of_key = (size.rows, size.inputs, size.outputs, size.models)
                found[tuning.exact_key(order.kernel, torch.float32, precision, sizes_of_key)] = best
                keep(found)
    return found


def write(found: dict[str, Config], architecture: str, path: Path | None) -> Path:
    """Add entries to a table: to that in the file if there is one, else to a copy of the shipped one."""
    from npu_kernels.backends.triton import tuning

    path = path or tuning.TABLES
    tables: dict[str, Any] = tuning.load_table(path if path.exists() else tuning.TABLES)
    tables.setdefault(architecture, {}).update(found)
    tuning.save_table(tables, path)
    return path


def main(sizes: Sequence[Size], precision: str, seconds: float, path: Path | None) -> int:
    """Tune for the current CUDA device; returns the exit status."""
    import time

    import triton

    from npu_kernels.backends.triton import tuning

    torch.set_float32_matmul_precision(precision)
    architecture = tuning.architecture(triton.runtime.driver.active.get_current_target())
    print(f"{torch.cuda.get_device_name()}: table {architecture}, precision {precision!r}")
    where = path or tuning.TABLES
    try:
        write({}, architecture, path)  # before the work: what is there can be read, and more can be written
    except (OSError, ValueError) as error:
        print(f"--tune: {where} cannot be used: {error}", file=sys.stderr)
        return 2

    def keep(found: dict[str, Config]) -> None:
        try:
            write(found, architecture, path)
        except OSError as error:
            print(f"{where} could not be written ({error.strerror or error}); so far: {json.dumps(found)}", flush=True)

    found = entries(sizes, device_time, seconds, time.perf_counter, lambda line: print(line, flush=True), keep=keep)
    print(f"{len(found)} entries written to {where}; check them with `python -m tools.aot --target {architecture}`")
    return 0
