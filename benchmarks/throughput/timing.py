"""Interleaved timing: in each repetition every rival runs once, so that disturbances hit all.

A ratio is formed within a repetition, its median over the repetitions: it is sound where the times
are not.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

BLOCK_SECONDS = 0.002  # of a rival in a repetition at least: the clock's own cost disappears
# The same beside one thread: threads that have gone to sleep meanwhile are woken at its beginning.
THREADS_BLOCK_SECONDS = 0.03
MIN_REPETITIONS, MAX_REPETITIONS = 7, 300
UNSTEADY = 2.0  # between the 20 and 80 percentiles of a ratio
CROWDED = 0.1  # of the time, that threads of ours were ready to run and other work had their core
TASKS = Path("/proc/self/task")
WALL, PROCESSOR = "wall time", "processor time"  # of a row


@dataclass(frozen=True)
class Spread:
    """Median and 20/80 percentiles."""

    median: float
    p20: float
    p80: float


def spread(values: Sequence[float]) -> Spread:
    """The percentiles, linear between two values; ValueError without values."""
    if not values:
        raise ValueError("spread: there are no values")
    shares = torch.tensor([0.5, 0.2, 0.8], dtype=torch.float64)
    return Spread(*torch.tensor(values, dtype=torch.float64).quantile(shares).tolist())


def ratios(times: Sequence[float], base: Sequence[float]) -> Spread:
    """Spread of times / base, repetition by repetition."""
    return spread([t / b for t, b in zip(times, base, strict=True)])


# ---- doubts --------------------------------------------------------------------------------------


def doubtful(row: Mapping[str, Any]) -> bool:
    """Whether a row says too little for a verdict: repetitions disagree, or the cores were shared.

    The second is not seen in the spread: beside a busy process every operation of torch's, with two
    threads, takes a turn of the scheduler, steadily. Processor time leaves it out.
    """
    waited = 0.0 if row.get("clock") == PROCESSOR else row.get("waited") or 0.0
    spread_out = row.get("ratio_p80", row["ratio"]) > UNSTEADY * row.get("ratio_p20", row["ratio"])
    return bool(spread_out or waited > CROWDED)


DOUBT = (
    "noisy: its repetitions disagree by more than a factor of 2, or other work on the machine "
    "took the cores. No conclusion is drawn from it"
)


class Crowd:
    """``with Crowd() as crowd: ...``, then `crowd.waited`: the share of time waited for a core.

    Where the system does not count that (it is Linux's), what the load average exceeds the cores
    by; None without one.
    """

    waited: float | None = None

    def __enter__(self) -> Crowd:
        self._begin, self._before = time.perf_counter(), _ready_seconds()
        return self

    def __exit__(self, *error: object) -> None:
        after = _ready_seconds()
        if self._before is not None and after is not None:
            self.waited = max(0.0, after - self._before) / (time.perf_counter() - self._begin)
        elif hasattr(os, "getloadavg"):
            self.waited = max(0.0, os.getloadavg()[0] / (os.cpu_count() or 1) - 1)


def _ready_seconds() -> float | None:
    """The seconds for which this process's threads were ready to run without a core."""
    try:
        counts = [(task / "schedstat").read_text().split() for task in TASKS.iterdir()]
        return 1e-9 * sum(int(count[1]) for count in counts)
    except (OSError, ValueError, IndexError):
        return None


# ---- the clock -----------------------------------------------------------------------------------


def _block(
    run: Callable[[], object], count: int, finish: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
) -> float:  # fmt: skip
    """Seconds of one call, from `count` calls."""
    start = clock()
    for _ in range(count):
        run()
    finish()
    return (clock() - start) / count


def interleaved(
    runs: Mapping[str, Callable[[], object]], seconds: float, *, block: float = BLOCK_SECONDS,
    finish: Callable[[], object] = lambda: None, clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:  # fmt: skip
    """Seconds per call of every rival in every repetition, within about `seconds` for all of them.

    Each is warmed up first. The order rotates, so that no rival always runs after the same one.
    `finish` waits for what calls have only started, on a device; a block ends with it. With
    `time.process_time` as the clock the seconds are those for which the process had a core: what
    runs in one thread is then timed beside other work too.
    """
    counts, expected = {}, 0.0
    for name, run in runs.items():
        run()
        run()
        try:
            finish()
        except RuntimeError as error:  # of a device, on which the call was only started
            raise RuntimeError(f"{name}: {error}") from error
        call_seconds = min(_block(run, 1, finish) for _ in range(3))
        counts[name] = max(1, round(block / max(call_seconds, 1e-9)))
        expected += call_seconds * counts[name]
    repetitions = min(MAX_REPETITIONS, max(MIN_REPETITIONS, round(seconds / expected)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    begin = time.perf_counter()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for repetition in range(repetitions):
            start = repetition % len(names)
            for name in names[start:] + names[:start]:
                times[name].append(_block(runs[name], counts[name], finish, clock))
            if repetition + 1 >= MIN_REPETITIONS and time.perf_counter() - begin > 2 * seconds:
                break  # the calls that were counted on were faster than these: a busy machine
    finally:
        if enabled:
            gc.enable()
    return times
