"""The large scale arithmetic task: two sums over subsets of 100 inputs, then an operation on them.

Section 4.3, Table 1 and the Pareto figure of the paper:

    a = x_1 + ... + x_50      b = x_39 + ... + x_88      add a + b, mul a b, div 1 / a, sqrt sqrt(a)

as the published code ran it (variant "code") or as the text says ("paper"):

                 code                                         paper
    optimiser    RMSProp(0.9), batches of 128                 not stated: the code's
    penalty      beta sum_k |theta_k|_F over tensors          beta sum |theta|
    start        U(0, 0.1); gates 1 (NPU), 0.5 (RealNPU)      Glorot, gates 0.5
    NAU, NALU    not clipped; a bias in the gate              clipped; no bias
    test         (-2, 2], (-2, 2], (-0.5, 0], (0, 4]          (-4, 4), (-4, 4), (-0.5, 0.5), (0, 4)
    beta of mul  1e-5 to 1e-4                                 1e-5 to 1e-7
    parameters   counted when |w| > 0.01                      |w| > 0.001
    NMU          add, mul: the scripts' weaker penalty over   as all others
                 10,000 and 20,000 steps, and the base
                 schedule; the published runs hold both
Both: training inputs from one Sobol stream that all runs share, the last iterate, NALU in float64.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.paper.models import Start, build, default_start, start_
from benchmarks.paper.optimizers import Optimizer, RMSProp
from benchmarks.paper.runner import Batch, chunks
from benchmarks.paper.streams import Sobol
from benchmarks.paper.training import Buffer, Rows, Training, frobenius, l1
from npu_kernels import RealNPU

INPUTS, ROWS = 100, 128
STEPS = 100_000
QUICK_STEPS, QUICK_SEEDS = 200, 2
BETA_STEP, BETA_GROWTH = 10_000, 10.0
TEST_POINTS = 10_000
BLOCK = 25  # steps whose points are drawn at once
LARGEST_BATCH = {torch.float32: 20, torch.float64: 5}  # models: fewer share the overhead, more leave the cache
COLUMNS = ("task", "model", "seed", "test_mse", "n_params", "train_mse", "steps", "beta_start")

# 1-based 1..50 and 39..88: 12 = round(12.5), ties to even, of the second subset lie in the first.
FIRST, SECOND = slice(0, 50), slice(38, 88)


@dataclass(frozen=True)
class Task:
    """Ranges, rate and penalty of one operation."""

    train: tuple[float, float]
    test: dict[str, tuple[float, float]]  # by variant: where Sobol's 1 and 0 go
    rate: float
    beta_start: float
    beta_end: dict[str, float]
    operation: Callable[[Tensor, Tensor], Tensor]


TASKS = {
    "add": Task((-1, 1), {"code": (-2, 2), "paper": (-4, 4)}, 1e-2, 1e-5, {"code": 1e-4, "paper": 1e-4}, torch.add),
    "mul": Task((-1, 1), {"code": (-2, 2), "paper": (-4, 4)}, 5e-3, 1e-5, {"code": 1e-4, "paper": 1e-7}, torch.mul),
    "div": Task(
        (0, 0.5),
        {"code": (-0.5, 0), "paper": (-0.5, 0.5)},
        5e-3,
        1e-9,
        {"code": 1e-7, "paper": 1e-7},
        lambda a, b: 1 / a,
    ),
    "sqrt": Task(
        (0, 2), {"code": (0, 4), "paper": (0, 4)}, 5e-3, 1e-6, {"code": 1e-4, "paper": 1e-4}, lambda a, b: a.sqrt()
    ),
}
# (task, model) -> (steps, first beta) where the authors' scripts depart from the base schedule.
SHORT = {("add", "NMU"): (10_000, 1e-7), ("mul", "NMU"): (20_000, 1e-9)}
SHORT_SEEDS = 1000  # the first seed of those runs, 20 of them
MORE = {("mul", "NPU"), ("mul", "RealNPU"), ("mul", "NMU"), ("add", "NPU")}

# Expected microseconds of a step, one model's and once per batch: only for the order and the estimate of the time left.
MODELS = {"NPU": 110, "RealNPU": 108, "NMU": 98, "NALU": 870, "NaiveNPU": 108}
PER_STEP = 250
DTYPES = {"NALU": torch.float64}


def sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of ``[..., 100]`` inputs."""
    return x[..., FIRST].sum(-1), x[..., SECOND].sum(-1)


def training_points(points: Sobol, start: int, count: int, low: float, high: float) -> Tensor:
    """Points start + 1, ... of the sequence (the zero point is left out), float32 from [low, high)."""
    return points.points(start + 1, count).mul_(high - low).add_(low).float()


def extrapolation_points(low: float, high: float, count: int = TEST_POINTS) -> Tensor:
    """The published test set: points 2 to 10,001, reversed onto (low, high]."""
    return Sobol(INPUTS).points(2, count).mul_(low - high).add_(high).float()


def beta_at(step: int, start: float, end: float) -> float:
    """The penalty's weight: ten times more at steps 10,000, 20,000, ..., but at most `end`."""
    beta = start
    for _ in range(step // BETA_STEP):
        beta = min(beta * BETA_GROWTH, end)
    return beta


def default_seeds(task: str, model: str) -> int:
    """How many runs: as in the scripts, and 20 where the published ten are the best of more than ten."""
    return 20 if (task, model) in MORE else 10


def runs(model: str, seeds: int | None, steps: int, variant: str) -> Iterator[dict[str, Any]]:
    """All runs of a model; `steps` below the published number shorten the short ones too."""
    for name, task in TASKS.items():
        count = default_seeds(name, model) if seeds is None else seeds
        for seed in range(count):
            yield {"task": name, "seed": seed, "steps": steps, "beta_start": task.beta_start}
        if variant == "code" and (name, model) in SHORT:
            short, beta_start = SHORT[name, model]
            for seed in range(SHORT_SEEDS, SHORT_SEEDS + (seeds or 20)):
                yield {"task": name, "seed": seed, "steps": min(short, steps), "beta_start": beta_start}


def batches(models: Sequence[str], seeds: int | None, steps: int, variant: str, device: str) -> list[Batch]:
    """The work: runs of one model with the same inputs and number of steps train in one call, add beside mul."""
    found = []
    for model in models:
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for run in runs(model, seeds, steps, variant):
            groups.setdefault((TASKS[run["task"]].train, run["steps"]), []).append(run)
        for (_, group_steps), members in groups.items():
            members.sort(key=lambda run: (run["seed"], run["task"]))
            for part in chunks(members, LARGEST_BATCH[DTYPES.get(model, torch.float32)]):
                found.append(
                    Batch(
                        experiment="large",
                        label=f"{model}-{part[0]['task']}-{part[0]['seed']:04d}",
                        settings={"model": model, "steps": group_steps, "variant": variant, "device": device},
                        runs=tuple(part),
                        cost=group_steps * (PER_STEP + MODELS[model] * len(part)),
                        make=make,
                    )
                )
    return found


def plan(options: Namespace) -> list[Batch]:
    """The batches of a command."""
    steps = QUICK_STEPS if options.quick else STEPS
    seeds = options.seeds or (QUICK_SEEDS if options.quick else None)
    return batches(list(MODELS), seeds, steps, options.variant, options.device)


def key(row: dict[str, Any]) -> tuple[int, int, int]:
    """The order of the table."""
    return list(TASKS).index(row["task"]), list(MODELS).index(row["model"]), row["seed"]


class Data:
    """The shared Sobol stream, 128 points a step, and each model's targets."""

    def __init__(self, tasks: Sequence[str], dtype: torch.dtype, device: torch.device) -> None:
        self.names = list(dict.fromkeys(tasks))
        self.low, self.high = TASKS[tasks[0]].train
        self.index = torch.tensor([self.names.index(task) for task in tasks], device=device)
        self.models, self.dtype, self.device = len(tasks), dtype, device
        self._points = Sobol(INPUTS)
        self._block = -1
        self._x = self._y = torch.empty(0)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        block, index = divmod(step - 1, BLOCK)
        if block != self._block:
            x = training_points(self._points, block * BLOCK * ROWS, BLOCK * ROWS, self.low, self.high)
            a, b = sums(x)
            y = torch.stack([TASKS[name].operation(a, b) for name in self.names])
            self._x = x.view(BLOCK, ROWS, INPUTS).to(self.device, self.dtype)
            self._y = y.view(-1, BLOCK, ROWS, 1).transpose(0, 1).to(self.device, self.dtype)  # [BLOCK, tasks, ROWS, 1]
            self._block = block
        # Expanded, not two-dimensional: then each model's product is a separate one and rounds the same in any batch.
        return self._x[index].expand(self.models, -1, -1), self._y[index][self.index]


def _start(layer: nn.Module, name: str, parameter: Tensor) -> Start:
    """The authors' start in this task."""
    if name == "gate":
        return (0.5, 0.5) if isinstance(layer, RealNPU) else (1.0, 1.0)
    return (0.0, 0.0) if name in ("weight_im", "gate_bias") else (0.0, 0.1)


def make(batch: Batch) -> Training:
    """The models of a batch at their start."""
    model, variant, steps = (batch.settings[name] for name in ("model", "variant", "steps"))
    device, dtype = torch.device(batch.settings["device"]), DTYPES.get(model, torch.float32)
    tasks = [run["task"] for run in batch.runs]
    first = "NALU" if model == "NALU" else "NAU"
    module = build([(first, INPUTS, INPUTS), (model, INPUTS, 1)], len(tasks), dtype, variant)
    start_(module, [run["seed"] for run in batch.runs], "large start", _start if variant == "code" else default_start)
    module.to(device)

    rates = [TASKS[task].rate for task in tasks]

    def make_optimizer(buffer: Buffer) -> Optimizer:
        if len(set(rates)) == 1:
            return RMSProp(buffer.flat, rates[0])
        return RMSProp(buffer.flat, buffer.spread(torch.tensor(rates, dtype=dtype, device=device)))

    # All of a batch change beta at the same steps.
    betas = [
        torch.tensor(
            [beta_at(n, run["beta_start"], TASKS[run["task"]].beta_end[variant]) for run in batch.runs],
            dtype=dtype,
            device=device,
        )
        for n in range(0, steps + 1, BETA_STEP)
    ]

    def evaluate(training: Training) -> tuple[Rows, dict[str, Tensor]]:
        assert training.last_loss is not None
        parameters = training.buffer.per_model()
        errors = evaluate_mse(training.module, tasks, variant, dtype, device)
        counts = (parameters.abs() > (1e-2 if variant == "code" else 1e-3)).sum(1)
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
            }
            for k, run in enumerate(batch.runs)
        ]
        return rows, {"parameters": parameters.float().cpu()}

    return Training(
        module,
        make_optimizer,
        Data(tasks, dtype, device),
        steps,
        evaluate,
        penalty=frobenius if variant == "code" else l1,
        beta=lambda step: betas[step // BETA_STEP],
    )


@torch.no_grad()
def evaluate_mse(
    module: nn.Module, tasks: Sequence[str], variant: str, dtype: torch.dtype, device: torch.device, piece: int = 1000
) -> Tensor:
    """Test errors ``[K]``; the models in their own precision, the mean in float64."""
    total = torch.zeros(len(tasks), dtype=torch.float64)
    for task in dict.fromkeys(tasks):
        chosen = [k for k, name in enumerate(tasks) if name == task]
        for x in extrapolation_points(*TASKS[task].test[variant]).split(piece):
            target = TASKS[task].operation(*sums(x)).to(device, dtype)
            y = module(x.to(device, dtype).expand(len(tasks), -1, -1))[chosen, :, 0]
            total[chosen] += (y - target).double().square().sum(1).cpu()
    return total / TEST_POINTS


def zero_predictor(task: str) -> float:
    """The test error of a model that always answers 0: a check of the test set."""
    x = extrapolation_points(*TASKS[task].test["code"])
    return float(TASKS[task].operation(*sums(x)).double().square().mean())
