"""The single-module benchmark's batches."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from benchmarks.paper.runner import Batch, Work
from benchmarks.paper.single_module import task
from benchmarks.paper.single_module.best import Best
from benchmarks.paper.single_module.task import SingleModule


def plan(options: Namespace) -> list[Batch]:
    """The batches of a command."""
    return _round(options, options.recipe, options.units, options.operations)


def rounds(options: Namespace) -> list[list[Batch]]:
    """The batches of every recipe: they share the table."""
    return [_round(options, recipe) for recipe in task.RECIPES]


def _round(options: Namespace, recipe: str, *chosen: Sequence[str] | None) -> list[Batch]:
    seeds = options.seeds or (task.QUICK_SEEDS if options.quick else task.SEEDS)
    steps = task.QUICK_STEPS if options.quick else task.STEPS
    return batches(recipe, seeds, steps, options.device, *chosen)


def wrong(options: Namespace) -> str:
    """What is wrong with a command's options; empty if nothing."""
    unknown = sorted(set(options.units or ()) - set(task.RECIPES[options.recipe]))
    text = f"argument --units: recipe {options.recipe} has no {', '.join(unknown)}"
    return text if unknown else ""


def batches(
    recipe: str, seeds: int, steps: int, device: str, units: Sequence[str] | None = None,
    operations: Sequence[str] | None = None,
) -> list[Batch]:  # fmt: skip
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
        for op in operations or task.OPERATIONS
    ]


def make(batch: Batch) -> Work:
    """The models of a batch at their start."""
    return (Best if batch.settings["recipe"] == "best" else SingleModule)(batch)
