"""The large scale arithmetic task: two sums over subsets of 100 inputs, then an operation on them.

Section 4.3, Table 1 and the Pareto figure of the paper:

    a = x_1 + ... + x_50      b = x_39 + ... + x_88      add a + b, mul a b, div 1 / a, sqrt sqrt(a)

as the published code ran it:

    optimizer    RMSProp(0.9), batches of 128
    penalty      beta sum_k |theta_k|_F over tensors
    start        U(0, 0.1); gates 1 (NPU), 0.5 (RealNPU)
    NAU, NALU    not clipped; a bias in the gate
    test         (-2, 2], (-2, 2], (-0.5, 0], (0, 4]
    parameters   counted when |w| > 0.01
    NMU          add, mul: the scripts' weaker penalty over 10,000 and 20,000 steps, and the base
                 schedule; the published runs hold both

Training inputs are from one Sobol stream that all runs share, results those of the last iterate.
The NALU computes in float64.

snapshots.py has a second table of the same training, with points of each seed's own and the errors
of the last steps.
"""

from __future__ import annotations

import functools
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.paper.models import Start, build, start_
from benchmarks.paper.runner import Batch, chunks
from benchmarks.paper.streams import Blocks, Sobol, stream
from benchmarks.paper.training import Buffer, Optimizer, RMSProp, Rows, Training, frobenius
from npu_kernels import RealNPU

INPUTS, ROWS = 100, 128
TRAINING_STEPS = 100_000
QUICK_STEPS, QUICK_SEEDS = 200, 2
BETA_STEP, BETA_GROWTH = 10_000, 10.0
TEST_POINTS, TEST_PIECE = 10_000, 1000  # of which so many are computed at once
SOBOL_BLOCK = 25  # steps whose points are drawn at once
SNAPSHOT_STEPS = 50  # between two snapshots of the test error
# Models: fewer share the overhead, more leave the cache.
LARGEST_BATCH = {torch.float32: 20, torch.float64: 5}
COLUMNS = ("task", "model", "seed", "test_mse", "n_params", "train_mse", "steps", "beta_start")

# 1-based 1..50 and 39..88: 12 = round(12.5), ties to even, of the second subset lie in the first.
FIRST, SECOND = slice(0, 50), slice(38, 88)


@dataclass(frozen=True)
class Task:
    """Ranges, rate and penalty of one operation."""

    train: tuple[float, float]
    test: tuple[float, float]  # where Sobol's 1 and 0 go
    rate: float
    beta_start: float
    beta_end: float
    operation: Callable[[Tensor, Tensor], Tensor]


TASKS = {
    "add": Task((-1, 1), (-2, 2), 1e-2, 1e-5, 1e-4, torch.add),
    "mul": Task((-1, 1), (-2, 2), 5e-3, 1e-5, 1e-4, torch.mul),
    "div": Task((0, 0.5), (-0.5, 0), 5e-3, 1e-9, 1e-7, lambda a, b: 1 / a),
    "sqrt": Task((0, 2), (0, 4), 5e-3, 1e-6, 1e-4, lambda a, b: a.sqrt()),
}
# (task, model) -> (steps, first beta) where the authors' scripts depart from the base schedule.
SHORT = {("add", "NMU"): (10_000, 1e-7), ("mul", "NMU"): (20_000, 1e-9)}
SHORT_SEEDS = 1000  # the first seed of those runs, 20 of them
MORE = {("mul", "NPU"), ("mul", "RealNPU"), ("mul", "NMU"), ("add", "NPU")}

# The cost of a step in units of 3.4 microseconds: of each model, and once per batch. It decides
# the order of batches and the estimate of the time left.
MODELS = {"NPU": 110, "RealNPU": 108, "NMU": 98, "NALU": 870, "NaiveNPU": 108}
PER_STEP = 250
DTYPES = {"NALU": torch.float64}


def sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of ``[..., 100]`` inputs."""
    return x[..., FIRST].sum(-1), x[..., SECOND].sum(-1)


def scaled(points: Tensor, low: float, high: float) -> Tensor:
    """Points of [0, 1) as float32 in [low, high)."""
    return points.mul(high - low).add_(low).float()


def training_points(points: Sobol, start: int, count: int, low: float, high: float) -> Tensor:
    """Points start + 1, ... of the sequence, without the zero point, float32 in [low, high)."""
    return scaled(points.points(start + 1, count), low, high)


def shift(seed: int) -> Tensor:
    """A seed's vector ``[100]`` in [0, 1)."""
    return torch.rand(INPUTS, generator=stream("large points", seed))


@functools.cache
def extrapolation_points(low: float, high: float, count: int = TEST_POINTS) -> Tensor:
    """The published test set: points 2 to 10,001, reversed onto (low, high]."""
    return Sobol(INPUTS).points(2, count).mul_(low - high).add_(high).float()


def beta_at(step: int, start: float, end: float) -> float:
    """The penalty's weight: ten times more at steps 10,000, 20,000, ..., but at most `end`."""
    beta = start
    for _ in range(step // BETA_STEP):
        beta = min(beta * BETA_GROWTH, end)
    return beta


def runs(model: str, seeds: int | None, steps: int) -> Iterator[dict[str, Any]]:
    """All runs of a model; `steps` below the published number shorten the short ones too."""
    for name, task in TASKS.items():
        # As in the scripts, and 20 where ten are the best of more.
        count = (20 if (name, model) in MORE else 10) if seeds is None else seeds
        groups = [(range(count), steps, task.beta_start)]
        if (name, model) in SHORT:
            short, beta_start = SHORT[name, model]
            more = range(SHORT_SEEDS, SHORT_SEEDS + (seeds or 20))
            groups.append((more, min(short, steps), beta_start))
        for members, length, beta in groups:
            for seed in members:
                yield {"task": name, "seed": seed, "steps": length, "beta_start": beta}


def plan(options: Namespace) -> list[Batch]:
    """The batches of a command: a model's runs with the same number of steps train in one call."""
    steps = QUICK_STEPS if options.quick else TRAINING_STEPS
    seeds = options.seeds or (QUICK_SEEDS if options.quick else None)
    planned = []
    for model in MODELS:
        settings = {"model": model, "device": options.device}
        by_steps: dict[int, list[dict[str, Any]]] = {}
        for run in runs(model, seeds, steps):
            by_steps.setdefault(run["steps"], []).append(run)
        for members in by_steps.values():
            members.sort(key=lambda run: (run["seed"], run["task"]))
            for part in chunks(members, LARGEST_BATCH[DTYPES.get(model, torch.float32)]):
                label = f"{model}-{part[0]['task']}-{part[0]['seed']:04d}"
                planned.append(batch_of("large", label, settings, part))
    return planned


def batch_of(
    experiment: str, label: str, settings: dict[str, Any], members: Sequence[dict[str, Any]]
) -> Batch:
    """Runs that train in one call: of one model, with the same number of steps."""
    (steps,) = {run["steps"] for run in members}
    cost = 3.4e-6 * steps * (PER_STEP + MODELS[settings["model"]] * len(members))
    return Batch(experiment, label, {**settings, "steps": steps}, tuple(members), cost, make)


def key(row: dict[str, Any]) -> tuple[int, int, int]:
    """The order of the table."""
    return list(TASKS).index(row["task"]), list(MODELS).index(row["model"]), row["seed"]


class Data:
    """128 points of the Sobol stream a step, in the range of each model's task, and its targets.

    Args:
        tasks: of the models.
        dtype, device: of the rows.
        seeds: of the models; their points are then the shared ones plus `shift(seed)`, modulo 1:
            just as even, but independent of those of other seeds (Cranley and Patterson,
            "Randomization of number theoretic methods for multiple integration", 1976). Without
            seeds all models have the same points.
    """

    def __init__(
        self, tasks: Sequence[str], dtype: torch.dtype, device: torch.device,
        seeds: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        of_runs: Sequence[int | None] = seeds if seeds is not None else [None] * len(tasks)
        keys = list(zip(tasks, of_runs, strict=True))
        self._distinct = list(dict.fromkeys(keys))
        self._index = torch.tensor([self._distinct.index(key) for key in keys], device=device)
        self.dtype, self.device = dtype, device
        self._shifts: dict[int | None, Tensor] = {seed: shift(seed) for seed in seeds or []}
        self._points, self._blocks = Sobol(INPUTS), Blocks(SOBOL_BLOCK, self._draw)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        (x, y), index = self._blocks(step)
        # Three dimensions keep each model's product separate: it rounds alike in any batch.
        return x[index][self._index], y[index][self._index]

    def _draw(self, block: int) -> tuple[Tensor, ...]:
        """Rows ``[SOBOL_BLOCK, tasks and seeds, ROWS, 100]`` and targets of a block of steps."""
        base = self._points.points(block * SOBOL_BLOCK * ROWS + 1, SOBOL_BLOCK * ROWS)
        single = base.float()
        shifted = {seed: (single + vector).frac_() for seed, vector in self._shifts.items()}
        ranges = dict.fromkeys((TASKS[task].train, seed) for task, seed in self._distinct)
        rows = {(train, seed): scaled(shifted.get(seed, base), *train) for train, seed in ranges}
        inputs, targets = [], []
        for task, seed in self._distinct:
            x = rows[TASKS[task].train, seed]
            inputs.append(x.to(self.dtype).view(SOBOL_BLOCK, ROWS, INPUTS))
            targets.append(
                TASKS[task].operation(*sums(x)).to(self.dtype).view(SOBOL_BLOCK, ROWS, 1)
            )
        return tuple(torch.stack(part, 1).to(self.device) for part in (inputs, targets))


def _start(layer: nn.Module, name: str, parameter: Tensor) -> Start:
    """The authors' start in this task."""
    if name == "gate":
        return (0.5, 0.5) if isinstance(layer, RealNPU) else (1.0, 1.0)
    return (0.0, 0.0) if name in ("weight_im", "gate_bias") else (0.0, 0.1)


def make(batch: Batch) -> Training:
    """The models of a batch at their start.

    Its settings may name `points` ("own" or "shared"), the start of the `gate`, and the number of
    `snapshots` of the test error to keep, the last one after the last step.
    """
    model, steps = batch.settings["model"], batch.settings["steps"]
    device, dtype = torch.device(batch.settings["device"]), DTYPES.get(model, torch.float32)
    tasks = [run["task"] for run in batch.runs]
    first = "NALU" if model == "NALU" else "NAU"
    module = build([(first, INPUTS, INPUTS), (model, INPUTS, 1)], len(tasks), dtype)
    seeds = [run["seed"] for run in batch.runs]
    start_(module, seeds, "large start", _start)
    if batch.settings.get("gate") is not None:
        module[1].get_parameter("gate").detach().fill_(batch.settings["gate"])
    module.to(device)
    count = batch.settings.get("snapshots", 0)
    watched = [steps - SNAPSHOT_STEPS * n for n in reversed(range(count))]
    rates = [TASKS[task].rate for task in tasks]

    def make_optimizer(buffer: Buffer) -> Optimizer:
        if len(set(rates)) == 1:
            return RMSProp(buffer.flat, rates[0])
        return RMSProp(buffer.flat, buffer.spread(torch.tensor(rates, dtype=dtype, device=device)))

    def beta_of(run: dict[str, Any], step: int) -> float:
        return beta_at(step, run["beta_start"], TASKS[run["task"]].beta_end)

    # All of a batch change beta at the same steps.
    betas = [
        torch.tensor([beta_of(run, step) for run in batch.runs], dtype=dtype, device=device)
        for step in range(0, steps + 1, BETA_STEP)
    ]

    return Training(
        module,
        make_optimizer,
        Data(tasks, dtype, device, seeds if batch.settings.get("points") == "own" else None),
        steps,
        lambda training: _results(batch, training),
        penalty=frobenius,
        beta=lambda step: betas[step // BETA_STEP],
        watch=lambda training: evaluate_mse(training.module, tasks, dtype, device),
        watched=[step for step in watched if step > 0],
    )


def _results(batch: Batch, training: Training) -> tuple[Rows, dict[str, Tensor]]:
    """The rows of a batch that is trained, and its parameters."""
    model, steps = batch.settings["model"], batch.settings["steps"]
    assert training.last_loss is not None
    parameters, seen = training.buffer.per_model(), training.snapshots
    tasks = [run["task"] for run in batch.runs]
    errors = evaluate_mse(training.module, tasks, parameters.dtype, parameters.device)
    counts = (parameters.abs() > 1e-2).sum(1)
    rows = [
        {
            "task": run["task"],
            "model": model,
            "seed": run["seed"],
            "test_mse": float(errors[k]),
            "n_params": int(counts[k]),
            "train_mse": float(training.last_loss[k]),
            "steps": steps,
            "beta_start": run["beta_start"],
            **{name: batch.settings[name] for name in ("points", "gate") if name in batch.settings},
            **({"errors": " ".join(f"{float(e[k]):.4g}" for e in seen)} if seen else {}),
        }
        for k, run in enumerate(batch.runs)
    ]
    return rows, {"parameters": parameters.float().cpu()}


@torch.no_grad()
def evaluate_mse(
    module: nn.Module, tasks: Sequence[str], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Test errors ``[K]``; the models in their own precision, the mean in float64."""
    total = torch.zeros(len(tasks), dtype=torch.float64)
    for start in range(0, TEST_POINTS, TEST_PIECE):
        rows = slice(start, start + TEST_PIECE)
        tests = {task: extrapolation_points(*TASKS[task].test)[rows] for task in tasks}
        x = torch.stack([tests[task] for task in tasks])
        target = torch.stack([TASKS[task].operation(*sums(tests[task])) for task in tasks])
        off = module(x.to(device, dtype))[:, :, 0] - target.to(device, dtype)
        total += off.double().square().sum(1).cpu()
    return total / TEST_POINTS
