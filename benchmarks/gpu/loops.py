"""Loops on a GPU: trainings by `training.run`, and rollouts of a neural ODE."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import statistics
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.throughput import rollouts, timing
from benchmarks.throughput.cases import (
    EPS,
    LEARNING_RATE,
    ROLLOUT,
    ROLLOUT_DT,
    TRAIN,
    Case,
    Size,
    both_ways,
    draw,
    filled,
    hidden,
    leaf,
)
from npu_kernels import NAU, NPU, training, use_backend

# Steps of two runs. The difference is the time of steps alone, without what a run costs besides.
FEW_STEPS, MANY_STEPS = 100, 500
TIMED_RUNS = 3  # of each rival and number of steps
SOLVER_SECONDS = 4.0  # of timing for all rollouts
MAX_DIFFERENCE = 1e-2  # of losses in float32, by the greatest one
# Whether the steps are captured in a CUDA graph, and the backend; None: the usual one.
RIVALS: dict[str, tuple[bool, str | None]] = {
    "ours, CUDA graph": (True, None), "ours": (False, None),
    "eager, CUDA graph": (True, "reference"), "eager": (False, "reference"),
}  # fmt: skip
FIRST = "ours, CUDA graph"  # whose time and losses the others' are compared with


class UnknownLayer(nn.Identity):
    """A layer that `training.run` does not know, so that it makes its steps one by one."""


def train(size: Size, stage: Any, optimizer: str = "adam") -> Iterator[dict[str, Any]]:
    """Microseconds of a step of NPU and NAU by `training.run`: a row for each of `RIVALS`.

    optimizer: "adam" is torch's with its defaults, "named" what `run` takes for that name,
    "fused-decay" torch's fused one with a rate that falls.
    """
    operands = draw(Case("npu-nau", TRAIN, size, "positive")).to(stage.device.name)
    models = None if size.models == 1 else size.models
    layers = (
        NPU(size.inputs, hidden(size), num_models=models, eps=EPS),
        NAU(hidden(size), size.outputs, num_models=models),
    )
    start = filled(nn.Sequential(*layers), operands.parameters)
    few_steps, many_steps = (4, 20) if stage.rehearsal else (FEW_STEPS, MANY_STEPS)

    def timed(rival: str, steps: int) -> tuple[float, training.TrainingResult]:
        captured, backend = RIVALS[rival]
        begin = time.perf_counter()
        with contextlib.nullcontext() if backend is None else use_backend(backend):
            run = _run(start, captured, operands.x, operands.grad_y, optimizer, steps)
        stage.device.synchronize()
        return time.perf_counter() - begin, run

    runs = {rival: timed(rival, few_steps) for rival in RIVALS}  # they compile
    times = [
        {
            (rival, steps): timed(rival, steps)[0]
            for rival in RIVALS
            for steps in (few_steps, many_steps)
        }
        for _ in range(1 if stage.rehearsal else TIMED_RUNS)
    ]
    medians = {key: statistics.median(seconds_of[key] for seconds_of in times) for key in times[0]}
    more_steps = many_steps - few_steps
    step = {r: (medians[r, many_steps] - medians[r, few_steps]) / more_steps for r in RIVALS}
    base = runs[FIRST][1].losses.double()
    for rival, (seconds, run) in runs.items():
        difference = float((run.losses.double() - base).abs().max() / base.abs().max())
        right = run.captured == (RIVALS[rival][0] and not stage.rehearsal)
        why = "" if right else f"captured is {run.captured}"
        why = why or ("" if difference < MAX_DIFFERENCE else f"losses differ by {difference:.1e}")
        yield {
            "size": str(size), "optimizer": optimizer, "rival": rival,
            "median_us": 1e6 * step[rival], "ratio": step[rival] / step[FIRST],
            "begin_ms": 1e3 * (medians[rival, few_steps] - few_steps * step[rival]),
            "first_run_s": seconds, "captured": run.captured, "loss_difference": difference,
            "bad": why,
        }  # fmt: skip


def _run(
    start: nn.Module, captured: bool, x: Tensor, y: Tensor, optimizer: str, steps: int
) -> training.TrainingResult:
    model = copy.deepcopy(start)
    if not captured:
        model = nn.Sequential(model, UnknownLayer())
    chosen: Any = optimizer
    if optimizer != "named":
        fused = optimizer.startswith("fused") or None  # None: torch's default
        chosen = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=fused)
    # A rate that varies is a tensor that the captured step reads.
    rate = (lambda step: LEARNING_RATE / step**0.1) if "decay" in optimizer else LEARNING_RATE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the steps are made one by one
        return training.run(
            model, x, y, steps=steps, optimizer="adam" if chosen == "named" else chosen, lr=rate,
            record_every=steps // 4, progress=False,
        )  # fmt: skip


def roll(size: Size, stage: Any) -> Iterator[dict[str, Any]]:
    """Euler's steps, forward and backward in float64, by one launch and by torchdiffeq's loop."""
    case = Case("npu-nau", ROLLOUT, size, "positive")
    operands = draw(case).to(stage.device.name)
    model = rollouts.model_of(case, operands)
    u0 = leaf(operands.x)

    def solved() -> Tensor:
        from torchdiffeq import odeint

        times = torch.arange(size.rows + 1, dtype=torch.float64, device=u0.device) * ROLLOUT_DT
        path: Tensor = odeint(lambda _, u: model(u), u0, times, method="euler")
        return path.movedim(0, -2)

    workloads = {"ours": rollouts.ours(case, operands), "eager": rollouts.eager(case, operands)}
    if size.models == 1 and importlib.util.find_spec("torchdiffeq") is not None:
        workloads["torchdiffeq"] = both_ways(solved, [u0, *model.parameters()], operands.grad_y)
    results = {}
    for name, workload in workloads.items():
        assert workload.results is not None
        results[name] = workload.results()
    runs = {name: workload.run for name, workload in workloads.items()}
    seconds = 0.05 if stage.rehearsal else SOLVER_SECONDS
    times = timing.interleaved(runs, seconds, finish=stage.device.synchronize)
    for name in workloads:
        pairs = zip(results[name], results["eager"], strict=True)
        difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
        median = timing.spread(times[name]).median
        ratio = timing.ratios(times[name], times["ours"]).median
        yield {
            "size": str(size), "rival": name, "median_us": 1e6 * median, "ratio": ratio,
            "difference": difference,
            "bad": "" if difference < 1e-8 else f"differs by {difference:.1e}",
        }  # fmt: skip
