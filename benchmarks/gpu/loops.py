"""The part "loops" of a run on a GPU: trainings by `training.run`, and rollouts of a neural ODE."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.gpu.plan import words
from benchmarks.throughput import rollouts, timing
from benchmarks.throughput.cases import EPS, ROLLOUT, ROLLOUT_DT, TRAIN, Case, Size, draw, hidden
from benchmarks.throughput.workloads import both_ways, filled, leaf
from npu_kernels import NAU, NPU, ode, training, use_backend
from npu_kernels._loops.captured import Captured

SHORT, LONG = 100, 500  # steps of two runs: what a run costs besides its steps is their difference
SOLVER_SECONDS = 4.0  # of timing for both rollouts
PASSES = 3
MOST_DIFFERENCE = 1e-2  # of losses after a few hundred steps in float32, of the greatest one
# The way: in a CUDA graph, and the backend if not the usual one.
WAYS: dict[str, tuple[bool, str | None]] = {
    "ours, CUDA graph": (True, None), "ours": (False, None),
    "eager, CUDA graph": (True, "reference"), "eager": (False, "reference"),
}  # fmt: skip
LEARNING_RATE = 0.005


def loops(stage: Any, item: str, emit: Callable[[dict[str, Any]], None]) -> None:
    """An item's rows: "training 100x2x4x1000 optimizer=fused" or "rollout 200x3x9"."""
    first, named = words(item)
    kind, size = first.split()
    if kind == "training":
        rows = train(Size.parse(size), named.get("optimizer", "adam"), stage)
    else:
        rows = roll(Size.parse(size), stage)
    for row in rows:
        emit(row)
        if row.get("bad"):
            raise AssertionError(f"{row['rival']}: {row['bad']}")


# ---- trainings -----------------------------------------------------------------------------------


def train(size: Size, optimizer: str, stage: Any) -> Iterator[dict[str, Any]]:
    """Microseconds of a step of NPU and NAU by `training.run`, in a CUDA graph and one by one.

    The same with eager's formulas, and how far the losses of all ways lie from the first one's.
    """
    case = Case("npu-nau", TRAIN, size, "positive")
    operands = draw(case).to(stage.device.name)
    models = None if size.models == 1 else size.models
    start = filled(
        nn.Sequential(
            NPU(size.inputs, hidden(size), num_models=models, eps=EPS),
            NAU(hidden(size), size.outputs, num_models=models),
        ),
        operands.parameters,
    )
    short, long = (4, 20) if stage.rehearsal else (SHORT, LONG)
    runs, first_seconds = {}, {}
    for rival, way in WAYS.items():
        begin = time.perf_counter()
        with _way(*way):  # the first run compiles
            runs[rival] = _run(start, operands.x, operands.grad_y, optimizer, short)
        stage.device.synchronize()
        first_seconds[rival] = time.perf_counter() - begin
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(1 if stage.rehearsal else PASSES):
        for rival, way in WAYS.items():
            for steps in (short, long):
                begin = time.perf_counter()
                with _way(*way):
                    _run(start, operands.x, operands.grad_y, optimizer, steps)
                stage.device.synchronize()
                seconds.setdefault((rival, steps), []).append(time.perf_counter() - begin)
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    step = {r: (medians[r, long] - medians[r, short]) / (long - short) for r in WAYS}
    ours, base = next(iter(WAYS)), runs[next(iter(WAYS))].losses.double()
    for rival, (captured, _) in WAYS.items():
        run = runs[rival]
        difference = float((run.losses.double() - base).abs().max() / base.abs().max())
        why = "" if run.captured == (captured and not stage.rehearsal) else "no graph was captured"
        why = why or ("" if difference < MOST_DIFFERENCE else f"losses differ by {difference:.1e}")
        yield {
            "size": str(size), "optimizer": optimizer, "rival": rival,
            "median_us": 1e6 * step[rival], "ratio": step[rival] / step[ours],
            "begin_ms": 1e3 * (medians[rival, short] - short * step[rival]),
            "first_run_s": first_seconds[rival], "captured": run.captured,
            "loss_difference": difference, "bad": why,
        }  # fmt: skip


@contextlib.contextmanager
def _way(captured: bool, backend: str | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if not captured:
            stack.enter_context(mock.patch.object(Captured, "works", False))
        if backend is not None:
            stack.enter_context(use_backend(backend))
        yield


def _run(start: nn.Module, x: Tensor, y: Tensor, optimizer: str, steps: int) -> training.Run:
    model = copy.deepcopy(start)
    fused = optimizer.startswith("fused")
    # A rate that varies is a tensor that the captured step reads.
    rate = (lambda step: LEARNING_RATE / step**0.1) if optimizer.endswith("decay") else None
    made: Any = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=fused)
    return training.run(
        model, x, y, steps=steps, optimizer=made, lr=rate, every=steps // 4, progress=False
    )


# ---- rollouts ------------------------------------------------------------------------------------


def roll(size: Size, stage: Any) -> Iterator[dict[str, Any]]:
    """Euler's steps, forward and backward in float64, by one launch and by torchdiffeq's loop."""
    case = Case("npu-nau", ROLLOUT, size, "positive")
    operands = draw(case).to(stage.device.name)
    model = rollouts.model_of(case, operands)
    u0 = leaf(operands.x)

    def solved() -> Tensor:
        return ode.rollout_any(model, u0, steps=size.rows, dt=ROLLOUT_DT, method="euler")

    ways = {"ours": rollouts.ours(case, operands), "eager": rollouts.eager(case, operands)}
    if size.models == 1 and importlib.util.find_spec("torchdiffeq") is not None:
        ways["torchdiffeq"] = both_ways(solved, [u0, *model.parameters()], operands.grad_y)
    results = {}
    for name, way in ways.items():
        assert way.results is not None
        results[name] = way.results()
    runs: Any = {name: way.run for name, way in ways.items()}
    seconds = 0.05 if stage.rehearsal else SOLVER_SECONDS
    times = timing.interleaved(runs, seconds, finish=stage.device.synchronize)
    for name in ways:
        pairs = zip(results[name], results["eager"], strict=True)
        error = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
        median = timing.spread(times[name]).median
        ratio = timing.ratios(times[name], times["ours"]).median
        yield {
            "size": str(size), "rival": name, "median_us": 1e6 * median, "ratio": ratio,
            "difference": error, "bad": "" if error < 1e-8 else f"differs by {error:.1e}",
        }  # fmt: skip
