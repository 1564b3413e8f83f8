"""The simple arithmetic task: one model learns x + y, x y, x / y and sqrt(x) on a small range.

Section 4.2 and Table A2 of the paper, as the published code ran it: x and y from U(0.1, 2.1); Adam
with a rate of 0.005, for NALU RMSProp 0.005 and for iNALU RMSProp 0.001; a NAU that is not clipped,
and a NALU with a bias in the gate; 20,000 steps of 100 fresh rows, the last iterate, Dense with 10
hidden units, NALU in float64.

The error is the mean of |model - f| on a grid with negative numbers, for the root on a positive
one.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from benchmarks.paper.models import build, start_
from benchmarks.paper.runner import Batch, chunks
from benchmarks.paper.streams import Blocks, stream
from benchmarks.paper.training import Adam, Buffer, Optimizer, RMSProp, Rows, Training
from npu_kernels._jobs import files
from npu_kernels.env import processor

TASKS = ("add", "mul", "div", "sqrt")
COLUMNS = ("model", "seed", *TASKS)
TRAINING = 0.1, 2.1  # the inputs' range
ROWS = 100
STEPS = 20_000
QUICK_STEPS = 300
SEEDS = 100
QUICK_SEEDS = 3
BLOCK = 100  # steps whose rows are drawn at once
LARGEST_BATCH = 100  # models on the CPU; more of them fill the caches
LARGEST_GPU_BATCH = 1000


@dataclass(frozen=True)
class Recipe:
    """A model, and how the authors trained it."""

    stack: tuple[tuple[str, int, int], ...]
    optimizer: str = "Adam"
    rate: float = 0.005
    dtype: torch.dtype = torch.float32
    cost: tuple[int, int] = (0, 0)  # of a step in 4 microseconds: once, and per model; for the time


def _two(first: str, second: str) -> tuple[tuple[str, int, int], ...]:
    return (first, 2, 6), (second, 6, 4)


RECIPES = {
    "NPU": Recipe(_two("NPU", "NAU"), cost=(230, 6)),
    "RealNPU": Recipe(_two("RealNPU", "NAU"), cost=(230, 6)),
    "NMU": Recipe(_two("NMU", "NAU"), cost=(230, 5)),
    "NALU": Recipe(_two("NALU", "NALU"), "RMSProp", dtype=torch.float64, cost=(420, 28)),
    "iNALU": Recipe(_two("iNALU", "iNALU"), "RMSProp", 0.001, cost=(920, 35)),
    "Dense": Recipe((("Dense", 2, 10), ("Dense", 10, 10), ("Linear", 10, 4)), cost=(400, 18)),
}


def targets(x: Tensor) -> Tensor:
    """The four functions: ``[..., 2]`` to ``[..., 4]``."""
    a, b = x.unbind(-1)
    return torch.stack([a + b, a * b, a / b, a.sqrt()], -1)


def _pairs(axis: Tensor) -> Tensor:
    return torch.cartesian_prod(axis, axis)


def grid(task: str) -> Tensor:
    """The test inputs of a task, ``[N, 2]`` float32."""
    if task == "sqrt":
        return _pairs(torch.arange(1, 41, dtype=torch.float64).mul(0.1).float())
    return _pairs(torch.arange(41, dtype=torch.float64).mul(0.2).sub(4.1).float())


class Data:
    """A fresh batch for each step and seed, from the stream ("simple data", seed, block)."""

    def __init__(self, seeds: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.seeds, self.dtype, self.device = seeds, dtype, device
        self.low, self.high = TRAINING
        self._blocks = Blocks(BLOCK, self._draw)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        (x, y), index = self._blocks(step)
        return x[:, index], y[:, index]

    def many(self, step: int, max_steps: int) -> tuple[Tensor, Tensor, int]:
        """The rows of the steps to the end of the block."""
        (x, y), index = self._blocks(step)
        x, y = (part[:, index : index + max_steps].flatten(1, 2) for part in (x, y))
        return x, y, x.shape[1] // ROWS

    def _draw(self, block: int) -> tuple[Tensor, ...]:
        """Rows ``[K, BLOCK, ROWS, ...]`` and targets."""
        generators = (stream("simple data", seed, block) for seed in self.seeds)
        draws = [torch.rand(BLOCK, ROWS, 2, generator=generator) for generator in generators]
        x = torch.stack(draws).to(self.device).mul_(self.high - self.low).add_(self.low)
        return tuple(part.to(self.device, self.dtype) for part in (x, targets(x)))


def plan(options: Namespace) -> list[Batch]:
    """The batches of a command."""
    steps = QUICK_STEPS if options.quick else STEPS
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    models = options.units or list(RECIPES)
    return batches(models, seeds, steps, options.device)


def batches(models: Sequence[str], seeds: int, steps: int, device: str) -> list[Batch]:
    """The work: batches of seeds of one model."""
    largest = LARGEST_BATCH if torch.device(device).type == "cpu" else LARGEST_GPU_BATCH
    return [
        Batch(
            experiment="simple",
            label=f"{model}-{chunk[0]:04d}",
            settings={"model": model, "steps": steps, "device": device},
            runs=tuple({"seed": seed} for seed in chunk),
            cost=4e-6 * steps * (RECIPES[model].cost[0] + RECIPES[model].cost[1] * len(chunk)),
            make=make,
        )
        for model in models
        for chunk in chunks(range(seeds), largest)
    ]


def make(batch: Batch) -> Training:
    """The models of a batch at their start."""
    model, device = batch.settings["model"], torch.device(batch.settings["device"])
    recipe, seeds = RECIPES[model], [run["seed"] for run in batch.runs]
    module = build(recipe.stack, len(seeds), recipe.dtype)
    start_(module, seeds, "simple start")
    module.to(device)

    def make_optimizer(buffer: Buffer) -> Optimizer:
        return (Adam if recipe.optimizer == "Adam" else RMSProp)(buffer.flat, recipe.rate)

    def evaluate(training: Training) -> tuple[Rows, dict[str, Tensor]]:
        errors = evaluate_errors(training.module, len(seeds), recipe.dtype, device)
        rows = [
            {"model": model, "seed": seed, **{task: float(errors[task][k]) for task in TASKS}}
            for k, seed in enumerate(seeds)
        ]
        return rows, {"parameters": training.buffer.per_model().cpu()}

    data = Data(seeds, recipe.dtype, device)
    return Training(module, make_optimizer, data, batch.settings["steps"], evaluate)


@torch.no_grad()
def evaluate_errors(
    module: nn.Module, models: int, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """Mean of |model - f| of each model on each task's grid, ``[K]``."""
    errors = {}
    for index, task in enumerate(TASKS):
        x = grid(task)
        expected = targets(x)[:, index].to(device, dtype)
        y = module(x.to(device, dtype).expand(models, -1, -1))[..., index]
        errors[task] = (y - expected).abs().mean(1)
    return errors


@torch.no_grad()
def surface(model: str, parameters: Tensor, task: str, axis: Tensor) -> Tensor:
    """|model - f| of a trained model ``[P]`` over ``axis x axis``: ``[N, N]``, first index x."""
    recipe, index = RECIPES[model], TASKS.index(task)
    module = build(recipe.stack, 1, recipe.dtype)
    vector_to_parameters(parameters.to(recipe.dtype), module.parameters())
    x = _pairs(axis.float())
    error = module(x.to(recipe.dtype).unsqueeze(0))[0, :, index] - targets(x)[:, index]
    return error.abs().view(len(axis), len(axis))


def keep_best(results: Sequence[tuple[Batch, dict[str, Any]]], path: Path) -> None:
    """Write the parameters of each model's best seed, by the sum of its errors, and the machine."""
    best: dict[str, tuple[float, Tensor]] = {}
    for _, result in results:
        for row, parameters in zip(result["rows"], result["tensors"]["parameters"], strict=True):
            error = sum(row[task] for task in TASKS)
            if row["model"] not in best or error < best[row["model"]][0]:
                best[row["model"]] = error, parameters
    chosen = {model: best[model][1].tolist() for model in RECIPES if model in best}
    files.write(path, json.dumps({"processor": processor(), "models": chosen}) + "\n")


def key(row: dict[str, Any]) -> tuple[int, int]:
    """The order of the table."""
    return list(RECIPES).index(row["model"]), row["seed"]
