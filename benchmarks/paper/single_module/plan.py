"""The single-module benchmark's batches, and its recipe `best`: `npu_kernels.fit`.

A seed on a range is one problem: 2,048 rows, those of plain training's first 16 steps, and 128
starts; the 225 problems of a unit and an operation train as one batch. The fit knows neither the
operation nor the extrapolation range. The models that it returns are tested. `steps` are the rows
of all gradients of all starts, over 128: the field's steps have 128 rows.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.paper.runner import Batch, Work
from benchmarks.paper.single_module import task
from benchmarks.paper.single_module.task import BATCH_ROWS, Data, SingleModule
from benchmarks.paper.training import Rows
from npu_kernels.fitting import FitJob


class Best(FitJob):
    """All seeds and ranges of a unit and operation."""

    def __init__(self, batch: Batch) -> None:
        self.settings, self.runs = batch.settings, batch.runs
        settings, self.device = batch.settings, torch.device(batch.settings["device"])
        seeds = [run["seed"] for run in batch.runs]
        unit = task.RECIPES["best"][settings["unit"]]
        x, y = rows(list(dict.fromkeys(seeds)), settings["op"], settings["rows"], self.device)
        models = unit.make(len(seeds) * settings["starts"]).to(self.device)
        super().__init__(models, x, y, seeds)

    @torch.no_grad()
    def results(self) -> tuple[Rows, dict[str, Tensor]]:
        """The rows of the runs, and their models' parameters ``[K, P]``."""
        fit, op = self.result(), self.settings["op"]
        models = fit.models
        assert isinstance(models, task.Layer)
        tests = task.answered("test", op, self.device)
        errors = task.mean_square_error(models, *tests).nan_to_num(nan=math.inf)
        sparsity, table = task.sparsity_error(models), []
        for k, run in enumerate(self.runs):
            values = {
                "test_mse": float(errors[k]),
                "solved_at": math.nan,  # the test error is looked at once, at the end
                "sparsity": float(sparsity[k]),
                "last_mse": float(errors[k]),
                "steps": float(fit.n_rows[k]) / BATCH_ROWS,
            }
            table.append(task.table_row(self.settings, run, values))
        parameters = torch.cat([p.flatten(1) for p in models.parameters()], 1).cpu()
        return table, {"parameters": parameters}


def rows(seeds: list[int], op: str, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The seeds' first rows on each range, ``[problems, count, 2]``, and their targets."""
    data = Data(seeds, op, device)
    drawn = [
        tuple(part.clone() for part in data(step)) for step in range(1, 1 + count // BATCH_ROWS)
    ]
    x, y = (torch.cat(parts, 1) for parts in zip(*drawn, strict=True))
    return x, y


def plan(options: Namespace) -> list[Batch]:
    """The batches of a command."""
    seeds = options.seeds or (task.QUICK_SEEDS if options.quick else task.SEEDS)
    steps, units = task.QUICK_STEPS if options.quick else task.STEPS, options.units
    works = (batches(name, seeds, steps, options.device, units) for name in task.RECIPES)
    return [batch for of_recipe in works for batch in of_recipe]


def batches(
    recipe: str, seeds: int, steps: int, device: str, units: Sequence[str] | None = None
) -> list[Batch]:
    """The work of a recipe: one batch for each unit and operation."""
    fit = {"starts": task.STARTS, "rows": task.FIT_ROWS}
    more = {"device": device, **(fit if recipe == "best" else {"steps": steps})}
    runs = tuple({"seed": seed, "range": name} for seed in range(seeds) for name in task.RANGES)
    return [
        Batch(
            experiment="single-module",
            label=f"{recipe}-{unit}-{op}",
            settings={"recipe": recipe, "unit": unit, "op": op, **more},
            runs=runs,
            cost=1e-6 * steps * (150 + (record.cost - 150) * seeds / task.SEEDS),
            make=make,
        )
        for unit, record in task.RECIPES[recipe].items()
        if units is None or unit in units
        for op in task.OPERATIONS
    ]


def make(batch: Batch) -> Work:
    """The models of a batch at their start."""
    return (Best if batch.settings["recipe"] == "best" else SingleModule)(batch)
