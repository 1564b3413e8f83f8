"""The time of the simple task in eager torch, one model at a time: what batches of models save.

One `nn.Sequential` of the package's layers with their eager formulas, torch's optimiser, a fresh
batch each step: what a first script would be. One thread, the fastest for layers of this size.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable

import torch
from torch import nn

import npu_kernels
from benchmarks.durations import duration
from benchmarks.paper.experiment import Account
from benchmarks.paper.runner import Folder
from benchmarks.paper.simple import task as simple
from benchmarks.throughput import timing
from npu_kernels._jobs import files

FILE = "eager.json"


def _model(name: str) -> nn.Module:
    if name == "Dense":
        return nn.Sequential(
            nn.Linear(2, 10), nn.Sigmoid(), nn.Linear(10, 10), nn.Sigmoid(), nn.Linear(10, 4)
        )
    first, second = (
        getattr(npu_kernels, layer)(i, o) for layer, i, o in simple.RECIPES[name].stack
    )
    return nn.Sequential(first, second).to(simple.RECIPES[name].dtype)


def _step(name: str) -> Callable[[], object]:
    """One step of a training of one model."""
    recipe, model = simple.RECIPES[name], _model(name)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), recipe.rate)
    if recipe.optimizer != "Adam":
        optimizer = torch.optim.RMSprop(model.parameters(), recipe.rate, alpha=0.9)

    def step() -> None:
        x = torch.rand(simple.ROWS, 2, dtype=recipe.dtype) * 2 + 0.1
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), simple.targets(x)).backward()
        optimizer.step()

    return step


def measure(folder: Folder, seconds: float) -> None:
    """Keep the seconds of one step of one model, for each model, by some seconds of timing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with npu_kernels.use_backend("reference"), timing.Crowd() as crowd:
            times = timing.interleaved({name: _step(name) for name in simple.RECIPES}, seconds)
    finally:
        torch.set_num_threads(threads)
    per_step = {name: timing.spread(values).median for name, values in times.items()}
    files.write(folder.path / FILE, json.dumps({"seconds": per_step, "waited": crowd.waited}))


def finish(options: Namespace, folder: Folder) -> None:
    """Measure at the end of a command on the CPU whose models learn all operations."""
    if options.device == "cpu" and not options.operations:
        measure(folder, 0.1 if options.quick else 3.0)


def compare(account: Account) -> list[str]:
    """A line on the same runs in eager torch, against our seconds; none if it was not measured."""
    path, batches = account.folder.path / FILE, account.batches
    if not path.exists() or account.missing or account.options.operations:
        return []
    seconds = sum(account.results[batch.name]["seconds"] for batch in batches)
    measured = json.loads(path.read_text())
    per_step = measured.get("seconds", measured)
    steps = [(b.settings["model"], b.settings["steps"] * len(b.runs)) for b in batches]
    total = sum(per_step[model] * count for model, count in steps)
    by_model = ", ".join(f"{name} {1e6 * value:.0f}" for name, value in per_step.items())
    ratio = f"{total / seconds:.1f} times as much"
    if (measured.get("waited") or 0.0) > timing.CROWDED:
        ratio = "no verdict (other work took the cores while eager torch was timed)"
    return [
        f"eager torch, one model at a time: {duration(total)} of work for the same runs, {ratio}; "
        f"microseconds of one step of one model: {by_model}"
    ]
