"""The paper's arithmetic tasks by `npu_kernels.fit` with its default recipe.

    simple    NPU(2, 6) -> NAU(6, 4) learns x + y, x y, x / y and sqrt(x), as in the paper; 1,000
              rows, 16 starts
    large     NAU(100, 100) -> NPU(100, 1) learns one of four operations on sums of 50 inputs, as in
              the paper; the first 4,096 points of the Sobol stream that all runs share, 16 starts;
              NPU on x also 128: one in fifty finds it

A run is one seed's fit; only the training range goes in, and what is tested is the model that comes
back. `steps` are model-steps of the task's own batch, 100 or 128 rows: the rows of all gradients of
all starts, over that number. The paper's runs take 20,000 and 100,000.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.paper.large import task as large
from benchmarks.paper.runner import Batch
from benchmarks.paper.simple import task as simple
from benchmarks.paper.streams import Sobol
from benchmarks.paper.training import Rows
from npu_kernels import NAU, NPU, RealNPU
from npu_kernels.fitting import FitJob, Recipe

COLUMNS = (
    "task_set", "task", "model", "starts", "seed", "error", "held_out", "steps", "kind",
    "denominator", "n_params", "seconds",
)  # fmt: skip
MODELS: dict[str, type[NPU | RealNPU]] = {"NPU": NPU, "RealNPU": RealNPU}
STARTS, MORE_STARTS, QUICK_STARTS = 16, {("NPU", "mul"): 128}, 4
SEEDS, QUICK_SEEDS = {"simple": 20, "large": 10}, 2
COUNTS = {"simple": 1000, "large": 4096}  # rows
BUDGET = {"simple": simple.STEPS, "large": large.TRAINING_STEPS}
QUICK = Recipe(rungs=((20, 1.0),), refine=10, settle=5)
ZERO = 1e-2  # parameters above this count, as in the large task of the code


def plan(options: Namespace) -> list[Batch]:
    """The batches of a command: a simple run for each seed, a large one for each and operation."""
    planned, quick = [], options.quick
    for task_set, tasks in (("simple", ["all"]), ("large", list(large.TASKS))):
        for model in MODELS:
            more = [
                (task, MORE_STARTS[model, task]) for task in tasks if (model, task) in MORE_STARTS
            ]
            for task, starts in [*((task, STARTS) for task in tasks), *more]:
                label = f"{task_set}-{model}-{task}-{starts}"
                settings = {
                    "task_set": task_set, "model": model, "task": task,
                    "starts": QUICK_STARTS if quick else starts, "quick": quick,
                    "device": options.device,
                }  # fmt: skip
                cost = 1.0 if task_set == "simple" else 5.0
                for seed in range(options.seeds or (QUICK_SEEDS if quick else SEEDS[task_set])):
                    run = ({"seed": seed},)
                    planned.append(
                        Batch("fitted", f"{label}-{seed:04d}", settings, run, cost, Fitted)
                    )
    return planned


def data(task_set: str, task: str, seed: int) -> tuple[Tensor, Tensor]:
    """The rows of a run."""
    if task_set == "simple":
        source = simple.Data([seed], torch.float32, torch.device("cpu"))
        steps = map(source, range(1, 1 + COUNTS[task_set] // simple.ROWS))
        x, y = (torch.cat(parts, 1)[0] for parts in zip(*steps, strict=True))
        return x, y
    record = large.TASKS[task]
    x = large.training_points(Sobol(large.INPUTS), 0, COUNTS[task_set], *record.train)
    return x, record.operation(*large.sums(x)).unsqueeze(1)


class Fitted(FitJob):
    """One fit of a task."""

    def __init__(self, batch: Batch) -> None:
        self.settings, self.seed = batch.settings, batch.runs[0]["seed"]
        self.device = torch.device(self.settings["device"])
        task_set, size = self.settings["task_set"], large.INPUTS
        unit, k = MODELS[self.settings["model"]], self.settings["starts"]
        if task_set == "simple":
            model = nn.Sequential(unit(2, 6, num_models=k), NAU(6, 4, num_models=k, clip=False))
        else:
            first = NAU(size, size, num_models=k, clip=False)
            model = nn.Sequential(first, unit(size, 1, num_models=k))
        x, y = data(task_set, self.settings["task"], self.seed)
        recipe, model = QUICK if self.settings["quick"] else Recipe(), model.to(self.device)
        super().__init__(model, x.unsqueeze(0), y.unsqueeze(0), [self.seed], recipe, "fit")

    def results(self) -> tuple[Rows, dict[str, Tensor]]:
        """A row for each operation, and the model's parameters ``[1, P]``."""
        fit, task = self.result(), self.settings["task"]
        models, where = fit.models, (torch.float32, self.device)
        if self.settings["task_set"] == "simple":
            errors, rows = simple.evaluate_errors(models, 1, *where), simple.ROWS
        else:
            errors, rows = {task: large.evaluate_mse(models, [task], *where)}, large.ROWS
        parameters = torch.cat([p.detach().flatten(1) for p in models.parameters()], 1).cpu()
        common = {
            **{name: self.settings[name] for name in ("task_set", "model", "starts")},
            "seed": self.seed,
            "held_out": float(fit.losses),
            "steps": float(fit.n_rows) / rows,
            "kind": fit.chosen[0].kind,
            "denominator": fit.chosen[0].denominator,
            "n_params": int((parameters.abs() > ZERO).sum()),
            "seconds": round(fit.seconds, 1),
        }
        table = [{**common, "task": name, "error": float(e)} for name, e in errors.items()]
        return table, {"parameters": parameters}


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """The order of the table."""
    names = (
        (list(SEEDS), row["task_set"]),
        (simple.TASKS, row["task"]),
        (list(MODELS), row["model"]),
    )
    return *(values.index(value) for values, value in names), row["starts"], row["seed"]
