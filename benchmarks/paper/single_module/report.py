"""What the report says about the single-module benchmark: tables, text and verdict, made from the table's rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.blocks import table
from benchmarks.durations import duration
from benchmarks.paper import published
from benchmarks.paper.checks import Check, share, within
from benchmarks.paper.experiment import Account
from benchmarks.paper.markdown import SIGNS, probable
from benchmarks.paper.single_module.task import (
    OPERATIONS,
    RANGES,
    RECIPES,
    STEPS,
    THRESHOLDS,
    UNITS,
    thresholds,
)
from benchmarks.paper.summary import median, number, same_share, wilson
from benchmarks.paper.tables import Rows

NAMES = {
    "fixed": "error < 1e-5",
    "off_1e-4": "error of a solution with weights off by 1e-4",
    "off_1e-5": "error of a solution with weights off by 1e-5",
}
# The recipes in the guide to the layers.
GUIDE = {"plain": "plain", "fixed": "fixes", "best": "`fit`"}
BEST_UNITS, BEST_SHARE, BEST_STEPS = ("RealNPU", "NPU"), 0.99, 2 * STEPS


def key(row: dict[str, Any]) -> tuple[int, ...]:
    """The order of the table."""
    places = (
        (list(RECIPES), row["recipe"]),
        (UNITS, row["unit"]),
        (list(OPERATIONS), row["op"]),
        (list(RANGES), row["range"]),
    )
    return *(names.index(name) for names, name in places), row["seed"]


def cells(rows: Rows) -> dict[tuple[str, str, str, str], list[dict[str, Any]]]:
    """(recipe, unit, operation, range) to its runs, in the table's order."""
    found: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=key):
        found.setdefault((row["recipe"], row["unit"], row["op"], row["range"]), []).append(row)
    return found


def solves(names: Sequence[str]) -> Callable[[dict[str, Any]], bool]:
    """Whether a run's test error is below all of these thresholds."""
    limits = [thresholds(name) for name in names]
    return lambda row: all(row["test_mse"] < limit[row["op"], row["range"]] for limit in limits)


def rate(runs: Rows, solved: Callable[[dict[str, Any]], bool]) -> str:
    """A share and its interval: 0.44 (0.27-0.63)."""
    count = sum(map(solved, runs))
    low, high = wilson(count, len(runs))
    return f"{count / len(runs):.2f} ({low:.2f}-{high:.2f})" if runs else "-"


# ---- tables ------------------------------------------------------------------------------------------------------


def full_table(rows: Rows) -> str:
    """Shares of all seeds and ranges."""
    columns = [(op, names) for op in ("mul", "div") for names in (("fixed",), THRESHOLDS)]
    columns += [("add", ("fixed",)), ("sub", ("fixed",))]
    tests = [(op, solves(names)) for op, names in columns]
    titles = [
        f"{SIGNS[op]}: {'all three thresholds' if len(names) > 1 else '< 1e-5'}"
        for op, names in columns
    ]
    lines = []
    for recipe in RECIPES:
        for unit in UNITS:
            runs = [row for row in rows if row["recipe"] == recipe and row["unit"] == unit]
            if runs:
                shares = [
                    rate([row for row in runs if row["op"] == op], test) for op, test in tests
                ]
                lines.append(
                    [unit, recipe, *shares, number(median([row["steps"] for row in runs]))]
                )
    return table(["layer", "recipe", *titles, "model-steps a seed"], lines) + "\n" + made_on(rows)


def guide_table(rows: Rows) -> str:
    """Shares of all seeds and ranges with an error below 1e-5; 99 % and more are bold."""
    columns = [(op, recipe) for op in ("mul", "div") for recipe in GUIDE]
    columns += [("add", "plain"), ("sub", "plain")]
    solved, shares = solves(("fixed",)), defaultdict(list)
    for row in rows:
        shares[row["unit"], row["op"], row["recipe"]].append(solved(row))

    def cell(runs: Sequence[bool]) -> str:
        text = f"{100 * sum(runs) / len(runs):.3g} %" if runs else ""
        return f"**{text}**" if runs and sum(runs) >= 0.99 * len(runs) else text

    lines = [[unit, *(cell(shares[unit, op, recipe]) for op, recipe in columns)] for unit in UNITS]
    return table(["", *(f"{SIGNS[op]} {GUIDE[recipe]}" for op, recipe in columns)], lines)


def made_on(rows: Rows) -> str:
    """Which processors made the rows."""
    units: dict[str, set[str]] = {}
    for row in rows:
        units.setdefault(row["processor"], set()).add(row["unit"])
    names = [
        f"{processor} ({', '.join(u for u in UNITS if u in found)})"
        for processor, found in units.items()
    ]
    return f"Made on {'; '.join(names)}.\n"


def by_range(rows: Rows, cell: Callable[[Rows], str]) -> str:
    """A line for each recipe, unit and operation: the cell of each range, and of all."""
    found, lines = cells(rows), []
    for recipe, unit, op in dict.fromkeys(key[:3] for key in found):
        groups = [found.get((recipe, unit, op, name), []) for name in RANGES]
        everything = [row for group in groups for row in group]
        lines.append([SIGNS[op], unit, recipe, *map(cell, groups), cell(everything)])
    return table(
        ["", "layer", "recipe", *RANGES, "all"],
        sorted(lines, key=lambda line: "×÷+-".index(line[0])),
    )


def _medians(rows: Rows, column: str) -> str:
    return by_range(
        rows, lambda runs: number(median([row[column] for row in runs if row["solved"]]))
    )


def section(rows: Rows) -> str:
    parts = [
        "Mistry, Farrahi and Hare's benchmark: one layer, two inputs, one output, `a op b`, trained on the range "
        "of the heading and tested on 10,000 rows beyond it; the test error counts where the error on as many of "
        "the training range is least. Shares of seeds that solve it, in brackets Wilson's 95 % interval; all ranges "
        "together:\n",
        full_table(rows),
    ]
    for name in THRESHOLDS:
        test = solves([name])
        parts += [f"Solved: {NAMES[name]}.\n", by_range(rows, partial(rate, solved=test))]
    parts += [
        "Solved at step, median of the solved seeds (noted every 1000 steps).\n",
        _medians(rows, "solved_at"),
    ]
    parts += [
        "Sparsity error, the worst weight's distance from 0, 1 and -1; median.\n",
        _medians(rows, "sparsity"),
    ]
    return "\n".join(parts)


# ---- verdict -----------------------------------------------------------------------------------------------------


def _against(theirs: dict[str, Any], runs: Rows) -> Check:
    """A share beside one that was found before: of so many pairs some differ by chance with p below 0.05, hardly any
    with p below 0.001.
    """
    low, high = wilson(theirs["solved"], theirs["seeds"])
    chance = same_share(
        sum(row["solved"] for row in runs), len(runs), theirs["solved"], theirs["seeds"]
    )
    return Check(
        f"{theirs['unit']} {SIGNS[theirs['op']]} {theirs['recipe']}, {theirs['range']}",
        f"as found before: {theirs['solved'] / theirs['seeds']:.2f} ({low:.2f}-{high:.2f})",
        f"{rate(runs, lambda row: bool(row['solved']))}, p = {probable(chance)}",
        True if chance >= 0.05 else False if chance < 0.001 else None,
    )


def checks(rows: Rows) -> list[Check]:
    """The shares found before, and the requirements on the recipe `best`."""
    found, judged = cells(rows), []
    for theirs in published.load("single_module"):
        runs = found.get((theirs["recipe"], theirs["unit"], theirs["op"], theirs["range"]))
        if runs:
            judged.append(_against(theirs, runs))
    strictest, best = solves(THRESHOLDS), [row for row in rows if row["recipe"] == "best"]
    for unit in BEST_UNITS:
        runs = [row for row in best if row["unit"] == unit and row["op"] in ("mul", "div")]
        if runs:
            what = f"{unit} × and ÷ best, all ranges: all three thresholds"
            judged.append(share(what, sum(map(strictest, runs)), len(runs), BEST_SHARE, math.inf))
    if best:
        most = max(row["steps"] for row in best)
        judged.append(within("best: most model-steps of a seed here", most, -math.inf, BEST_STEPS))
    return judged


# ---- comments on top of the table --------------------------------------------------------------------------------


def times(account: Account) -> list[str]:
    """A line for each recipe."""
    lines = []
    for part, wall in account.parts:
        found = [account.results[batch.name] for batch in part if batch.name in account.results]
        if not found:
            continue
        rows = [row for result in found for row in result["rows"]]
        work, steps = sum(result["seconds"] for result in found), sum(row["steps"] for row in rows)
        lines.append(
            f"recipe {rows[0]['recipe']}: {len(found)} units and operations, {len(rows)} runs, "
            f"{steps:.3g} model-steps; wall time {duration(wall)}, {duration(work)} of work "
            f"({1e6 * work / steps:.2g} µs a model-step)"
        )
    return [*lines, f"the latest command ran {account.processes} processes"]
