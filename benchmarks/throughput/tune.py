"""``python -m benchmarks.throughput --tune``: the fastest configuration of every Triton kernel.

For each size and kernel a search starts at the shipped configuration and goes on to the best of
those that differ from it in one number, as long as that makes the launch at least 2 % faster. A
configuration that cannot be compiled or launched, or that does not compute what the shipped one
does, does not count.

What is faster than the shipped entry is added to the table under the sizes' own key
(`npu_kernels._triton.tuning`) as soon as its search ends, so that nothing changes for
other sizes, and the launches of the next process use it. ``python -m tools.aot`` then compiles the
new entries too, for machines without the GPU.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.throughput.cases import Size
from npu_kernels import _triton
from tests.support.kernels import backward, forward
from tests.support.samples import RECORDS, normwise_error

SECONDS = 60.0  # for one kernel at one size
GAIN = 0.02  # less is noise
NPU = ("npu_forward", "npu_backward_x", "npu_backward_w")
NPU_SMALL = ("npu_small_forward", "npu_small_backward")
OTHERS = ("nmu_forward", "nmu_backward", "nalu_forward", "nalu_backward_x", "nalu_backward_w")
# The gradients for which a backward launches a kernel, as bits. Others: all of them.
NEEDS = {"npu_backward_x": 1, "npu_backward_w": 6, "nalu_backward_x": 1, "nalu_backward_w": 62}
# Products of one bfloat16 plane differ in the third digit, of two in the fifth.
TOLERANCE = {0: 1e-4, 6: 1e-4, 3: 1e-3, 1: 3e-1}

Config = dict[str, int]
Launch = Callable[[], Sequence[Tensor]]
Timer = Callable[[Launch], float]  # seconds of a call


class Task(NamedTuple):
    """One entry to measure: a kernel, at the sizes of a call, at a float32 matmul precision."""

    kernel: str
    size: Size
    precision: str = "highest"

    @property
    def key(self) -> str:
        """The key of the entry in the table, which holds for any number of rows."""
        from npu_kernels._triton import tuning

        sizes = (self.size.inputs, self.size.outputs, self.size.models)
        return tuning.exact_key(self.kernel, torch.float32, self.precision, sizes)

    def launch(self, device: str) -> Launch:
        """Return the call, float32, that launches the kernel and returns what it computes."""
        name, size = self.kernel.partition("_")[0], self.size
        layer = "inalu" if name == "nalu" else name  # it calls the same kernels, and has more to do
        sample = RECORDS[layer].sample(
            size.rows, size.inputs, size.outputs, dtype=torch.float32, device=device,
            num_models=None if size.models == 1 else size.models,
        )  # fmt: skip
        kernels = SimpleNamespace(**_triton.launchers())
        if self.kernel.endswith("forward"):
            return lambda: forward(sample, kernels)
        results = forward(sample, kernels)
        grad_y, needs = torch.ones_like(results[0]), (1 << 1 + len(sample.tensors)) - 1
        needs = NEEDS.get(self.kernel, needs)
        return lambda: backward(sample, kernels, grad_y, needs, results=results)

    def shipped(self, device: str) -> Config:
        """The configuration that a launch uses now, as a table's entry."""
        from npu_kernels._triton import tuning

        size, x = self.size, torch.empty(0, device=device)
        choice = tuning.lookup(self.kernel, x, size.inputs, size.outputs, size.models)
        entry = {name: n for name, n in choice.options.items() if name != "enable_fp_fusion"}
        return entry | ({"programs": choice.programs} if choice.programs else {})


def tasks(sizes: Sequence[Size], precision: str) -> list[Task]:
    """The NPU's kernels at all sizes, then the other layers'."""
    from npu_kernels._triton import tuning

    small = {size: tuning.is_small(size.inputs, size.outputs) for size in sizes}
    pairs = [(kernel, size) for size in sizes for kernel in (NPU_SMALL if small[size] else NPU)]
    pairs += [(kernel, size) for size in sizes for kernel in OTHERS]
    return [Task(kernel, size, precision) for kernel, size in pairs]


def search(
    start: Config,
    candidates: Iterable[Config],
    seconds: Callable[[Config], float],
    *,
    enough: Callable[[], bool],
) -> tuple[Config, float, float]:
    """``(best, its seconds, those of the start)``: along candidates that differ in one number.

    `seconds` gives inf for a configuration that does not work; `enough` ends the search early.
    """
    untried = [dict(candidate) for candidate in candidates if candidate != start]
    best, time = dict(start), seconds(start)
    first, before = time, math.inf

    def near(config: Config) -> bool:
        changed = sum(config.get(name) != value for name, value in best.items())
        return config.keys() == best.keys() and changed == 1

    while time < before and not enough():
        before = time
        chosen = [config for config in untried if near(config)]
        untried = [config for config in untried if config not in chosen]
        for candidate in chosen:
            if enough():
                break
            candidate_time = seconds(candidate)
            if candidate_time < (1 - GAIN) * time:
                best, time = candidate, candidate_time
    return best, time, first


def device_seconds(launch: Launch) -> float:
    """Seconds of a call on the device, in a CUDA graph: without the host's for the launch."""
    from triton.testing import do_bench_cudagraph

    return 1e-3 * float(do_bench_cudagraph(launch, return_mode="median"))


class Tuned(NamedTuple):
    """The best configuration of a kernel at a size, and what the search tried."""

    config: Config
    us: float  # microseconds of a call
    shipped_us: float
    tried: int
    failed: dict[str, int]  # how many, by reason


def tune(
    task: Task,
    seconds: float,
    timer: Timer = device_seconds,
    clock: Callable[[], float] = time.perf_counter,
    device: str = "cuda",
) -> Tuned:
    """Return the best configuration of one kernel, within about that many seconds."""
    from npu_kernels._triton import tuning

    torch.set_float32_matmul_precision(task.precision)
    begin, start, launch = clock(), task.shipped(device), task.launch(device)
    expected = [output.clone() for output in launch()]
    failed, tried = Counter[str](), 0

    def measure(config: Config) -> float:
        nonlocal tried
        tried += 1
        tolerance = TOLERANCE[max(config.get("PASSES", 0), 0)]
        with tuning.use_config(task.kernel, config):
            try:
                pairs = zip(launch(), expected, strict=True)
                if max(normwise_error(result, true) for result, true in pairs) <= tolerance:
                    return timer(launch)
                failed["differs from the shipped one's results"] += 1
            except Exception as error:  # registers, shared memory, a compiler's own failure
                failed[type(error).__name__] += 1
        return math.inf

    fixed = {"maxnreg": start["maxnreg"]} if "maxnreg" in start else {}  # no candidate varies it
    bucket = tuning.bucket(task.size.inputs, task.size.outputs)
    entries = tuning.candidates(task.kernel, torch.float32, task.precision, bucket)
    best, least, first = search(
        start, (entry | fixed for entry in entries), measure,
        enough=lambda: clock() - begin > seconds,
    )  # fmt: skip
    return Tuned(best, 1e6 * least, 1e6 * first, tried, dict(failed))


def write(entries: dict[str, Config], architecture: str, path: Path | None) -> Path:
    """Add entries to a table: the one in the file, else a copy of the shipped one."""
    from npu_kernels._triton import tuning

    path = path or tuning.TABLES
    tables: dict[str, Any] = tuning.load_table(path if path.exists() else tuning.TABLES)
    tables.setdefault(architecture, {}).update(entries)
    tuning.save_table(tables, path)
    return path


def main(sizes: Sequence[Size], precision: str, seconds: float, path: Path | None) -> int:
    """Tune for the current CUDA device; returns the exit status."""
    from npu_kernels._triton import tuning

    architecture = tuning.architecture_of(torch.device("cuda", torch.cuda.current_device()))
    print(f"{torch.cuda.get_device_name()}: table {architecture}, precision {precision!r}")
    table = path or tuning.TABLES
    try:
        write({}, architecture, path)  # before the work: it can be read, and more can be written
        for task in tasks(sizes, precision):
            tuned = tune(task, seconds)
            print(
                f"{task.kernel} {task.size}: {tuned.shipped_us:.1f} us as shipped, {tuned.us:.1f} "
                f"us with {tuned.config}, {tuned.tried} tried, failed: {tuned.failed}",
                flush=True,
            )
            if tuned.us < tuned.shipped_us:
                write({task.key: tuned.config}, architecture, path)
    except (OSError, ValueError) as error:
        print(f"--tune: {table} cannot be used: {error}", file=sys.stderr)
        return 2
    check = f"`python -m tools.aot --target {architecture}`"
    print(f"entries written to {table}; check them with {check}")
    return 0
