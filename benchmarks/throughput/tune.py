"""``python -m benchmarks.throughput --tune``: the fastest configuration of every Triton kernel.

For each size and kernel a search starts at the shipped configuration and goes on to the best of
those that differ from it in one number, as long as that makes the launch at least 2 % faster; the
first step also looks at configurations spread over all. Worker processes compile a step's
candidates together (`precompile`). A configuration that cannot be compiled or launched, or that
does not compute what the shipped one does, does not count.

What is faster than the shipped entry is added to the table under the sizes' own key
(`npu_kernels._triton.tuning`) as soon as its search ends, so that nothing changes for
other sizes, and the launches of the next process use it. A row of every search goes to a file of
its own, by which the next run knows what is done. ``python -m tools.aot`` then compiles the new
entries too, for machines without the GPU.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import rows_command
from benchmarks.throughput.cases import Size
from benchmarks.throughput.devices import DEVICES
from benchmarks.throughput.orders import Order, Task, order, tasks
from benchmarks.throughput.precompile import Pool
from tests.support.samples import normwise_error

SECONDS = 20.0  # for one kernel at one size
GAIN = 0.02  # less is noise
SPREAD = 16  # configurations of the first step that lie anywhere
LOSER = 10.0  # times as slow as the best one: one run is enough
HOST_SECONDS = 2e-4  # that a launch from Python may add to such a run
GRAPH_SECONDS = 2e-3  # of one replay
MAX_CALLS, TRIALS = 20, 5  # in a graph; of a graph

Config = dict[str, int]
Row = dict[str, Any]
# Seconds of a call; the second argument is the best so far.
Timer = Callable[[Callable[[], object], float], float]
# Products of one bfloat16 plane differ in the third digit, of two in the fifth.
TOLERANCE = {0: 1e-4, 6: 1e-4, 3: 1e-3, 1: 3e-1}


def search(
    start: Config, candidates: Iterable[Config], seconds: Callable[[Config], float], *,
    enough: Callable[[], bool], prepare: Callable[[Sequence[Config]], None] = lambda configs: None,
    spread: int = 0,
) -> tuple[Config, float, float]:  # fmt: skip
    """``(best, its seconds, those of the start)``: along candidates that differ in one number.

    `seconds` gives inf for a configuration that does not work; `enough` ends the search early;
    `prepare` sees a step's candidates before they are timed; `spread` candidates of the first step
    lie anywhere.
    """
    untried = [dict(candidate) for candidate in candidates if candidate != start]
    best, time = dict(start), seconds(start)
    first, before = time, math.inf
    anywhere = untried[:: max(1, len(untried) // spread)] if spread else []

    def near(config: Config) -> bool:
        changed = sum(config.get(name) != value for name, value in best.items())
        return config.keys() == best.keys() and changed == 1

    while time < before and not enough():
        before = time
        chosen = [config for config in untried if near(config)]
        chosen += [config for config in anywhere if config not in chosen]
        anywhere = []
        untried = [config for config in untried if config not in chosen]
        prepare(chosen)
        for candidate in chosen:
            if enough():
                break
            candidate_time = seconds(candidate)
            if candidate_time < (1 - GAIN) * time:
                best, time = candidate, candidate_time
    return best, time, first


def device_time(
    run: Callable[[], object], best: float = math.inf, device: Any = DEVICES["cuda"]
) -> float:
    """Seconds of a call on the device with a cold cache, without what the host needs to launch it.

    Inside one CUDA graph the cache is overwritten before each of the calls; a graph without the
    calls says what that takes. A call that takes ten times the best is timed once, in no graph.
    """
    flush = device.flush()

    def calls(count: int, once: Callable[[], object]) -> Callable[[], object]:
        def repeat() -> None:
            for _ in range(count):
                flush()
                once()

        replay: Callable[[], object] = device.capture(repeat, calls_before=1)[0]
        return replay

    once: float = device.seconds(run, before=flush)
    if once > LOSER * best + HOST_SECONDS:
        return once
    count = min(MAX_CALLS, max(1, math.ceil(GRAPH_SECONDS / max(once, 1e-9))))
    both, flushes = calls(count, run), calls(count, lambda: None)
    both(), flushes()
    times = [(device.seconds(both) - device.seconds(flushes)) / count for _ in range(TRIALS)]
    return max(statistics.median(times), 1e-9)


def shipped(task: Task, device: str) -> Config:
    """The configuration that a launch uses now, as a table's entry."""
    from npu_kernels._triton import tuning

    size, x = task.size, torch.empty(0, device=device)
    choice = tuning.lookup(task.kernel, x, size.inputs, size.outputs, size.models)
    entry = {name: value for name, value in choice.options.items() if name != "enable_fp_fusion"}
    return entry | ({"programs": choice.programs} if choice.programs else {})


def tune(
    order: Order,
    timer: Timer,
    seconds: float,
    clock: Callable[[], float],
    device: str = "cuda",
    pool: Pool | None = None,
) -> Row:
    """The best configuration of one kernel at one size, within about that many seconds.

    The row has the microseconds of a call, how many candidates were tried, and how many failed for
    which reason.
    """
    from npu_kernels._triton import tuning

    task = order.task
    bucket = tuning.bucket(task.size.inputs, task.size.outputs)
    start, begin = shipped(task, device), clock()
    expected = [output.clone() for output in order.launch()]
    unusable: dict[str, str] = {}
    failed, times = Counter[str](), list[float]()

    def prepare(configs: Sequence[Config]) -> None:
        if pool is not None:
            # Half of the time: a compiler that never ends leaves time for the others.
            limit = max(1.0, (seconds - (clock() - begin)) / 2)
            problems = zip(configs, pool.compile(task, configs, limit), strict=True)
            unusable.update({str(config): why for config, why in problems if why})

    def measure(config: Config) -> float:
        why, seconds_of = unusable.get(str(config), ""), math.inf
        if not why:
            with tuning.use_config(task.kernel, config):
                try:
                    pairs = zip(order.launch(), expected, strict=True)
                    tolerance = TOLERANCE[max(config.get("PASSES", 0), 0)]
                    if max(normwise_error(*pair) for pair in pairs) <= tolerance:
                        seconds_of = timer(order.launch, min(times, default=math.inf))
                    else:
                        why = "differs from the shipped one's results"
                except Exception as error:  # registers, shared memory, a compiler's own failure
                    why = type(error).__name__
        if why:
            failed[why] += 1
        times.append(seconds_of)
        return seconds_of

    fixed = {"maxnreg": start["maxnreg"]} if "maxnreg" in start else {}  # no candidate varies it
    entries = tuning.candidates(task.kernel, torch.float32, task.precision, bucket)
    candidates, spread = (entry | fixed for entry in entries), SPREAD if pool else 0
    enough = lambda: clock() - begin > seconds  # noqa: E731
    best, time, first = search(
        start, candidates, measure, enough=enough, prepare=prepare, spread=spread
    )
    times_of = {"config": best, "us": 1e6 * time, "shipped_us": 1e6 * first}
    return {**times_of, "tried": len(times), "failed": dict(failed)}


def write(entries: dict[str, Config], architecture: str, path: Path | None) -> Path:
    """Add entries to a table: the one in the file, else a copy of the shipped one."""
    from npu_kernels._triton import tuning

    path = path or tuning.TABLES
    tables: dict[str, Any] = tuning.load_table(path if path.exists() else tuning.TABLES)
    tables.setdefault(architecture, {}).update(entries)
    tuning.save_table(tables, path)
    return path


class Tuner:
    """Tunes task after task on one device: the table grows with every gain, the rows with each.

    Args:
        where: what is written into each row beside the search: the device, versions.
        architecture: the table's.
        table: the file; None for the shipped one.
        timer, clock, device, pool: see :func:`tune`.
    """

    def __init__(
        self, where: Row, architecture: str, table: Path | None, *, timer: Timer = device_time,
        clock: Callable[[], float] = time.perf_counter, device: str = "cuda",
        pool: Pool | None = None,
    ) -> None:  # fmt: skip
        self.where, self.architecture, self.table = where, architecture, table
        self.timer, self.clock, self.device, self.pool = timer, clock, device, pool

    def run(self, task: Task, seconds: float) -> Row:
        """Search, write the table, and return the row."""
        begin = self.clock()
        torch.set_float32_matmul_precision(task.precision)
        launch = order(task, self.device)
        best = tune(launch, self.timer, seconds, self.clock, self.device, self.pool)
        took = {"seconds": self.clock() - begin}
        row = {**task.to_dict(), "key": task.key, **best, **took, **self.where}
        better = {task.key: row["config"]} if row["us"] < row["shipped_us"] else {}
        try:
            write(better, self.architecture, self.table)
        except OSError as error:
            row["not_written"] = error.strerror or str(error)
        return row


def describe(row: Row) -> str:
    """A row as a line of text."""
    failure = f"; the table could not be written: {row.get('not_written')}"
    return (
        f"{Task.from_dict(row)}: {row['shipped_us']:.1f} us as shipped, {row['us']:.1f} us with "
        f"{row['config']}, {row['tried']} tried in {row['seconds']:.0f} s"
    ) + (failure if "not_written" in row else "")


def measured(rows: Sequence[Row], where: Row) -> set[str]:
    """The tasks, as text, of the rows of this device and these versions."""
    done = set()
    for row in rows:
        if all(row.get(name) == value for name, value in where.items()):
            with contextlib.suppress(KeyError, TypeError):  # another command's row
                done.add(str(Task.from_dict(row)))
    return done


def place() -> tuple[Row, str, tuple[str, Any, int]]:
    """The facts of the current CUDA device for rows, its table, and the compilers' target."""
    import triton

    target = triton.runtime.driver.active.get_current_target()
    from npu_kernels._triton import tuning

    versions = {"torch": torch.__version__, "triton": triton.__version__}
    where = {"gpu": torch.cuda.get_device_name(), **versions}
    return where, tuning.architecture(target), (target.backend, target.arch, target.warp_size)


def main(
    sizes: Sequence[Size], precision: str, seconds: float, path: Path | None,
    rows: Path | None = None, jobs: int = 1,
) -> int:  # fmt: skip
    """Tune for the current CUDA device; returns the exit status."""
    from npu_kernels._triton import tuning

    where, architecture, target = place()
    print(f"{where['gpu']}: table {architecture}, precision {precision!r}")
    table = path or tuning.TABLES
    try:
        # Before the work: the table can be read, and more can be written.
        write({}, architecture, path)
        earlier = [] if rows is None else rows_command.read(rows, missing_ok=True)
    except (OSError, ValueError) as error:
        print(f"--tune: {table} cannot be used: {error}", file=sys.stderr)
        return 2
    done = measured(earlier, where)
    with Pool(jobs, target) as pool:
        tuner = Tuner(where, architecture, path, pool=pool)
        for task in tasks(sizes, precision):
            if str(task) in done:
                continue
            row = tuner.run(task, seconds)
            print(describe(row), flush=True)
            if rows is not None:
                earlier.append(row)
                rows_command.write(rows, earlier)
    check = f"`python -m tools.aot --target {architecture}`"
    print(f"entries written to {table}; check them with {check}")
    return 0
