"""What the report says about the single-module benchmark: tables, text and verdict.

The picture has the share of solved seeds by layer, recipe and range.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.drawing import figure, headline, save
from benchmarks.marked_blocks import table
from benchmarks.paper import tables
from benchmarks.paper.checks import Check, share, within
from benchmarks.paper.experiment import Sources
from benchmarks.paper.single_module import task as single_module
from benchmarks.paper.single_module.task import OPERATIONS, RANGES, RECIPES, THRESHOLDS, UNITS
from benchmarks.paper.summary import SIGNS, median, number, probable, same_share, wilson
from benchmarks.paper.tables import Rows, select

NAMES = {
    "fixed": "error < 1e-5",
    "off_1e-4": "error of a solution with weights off by 1e-4",
    "off_1e-5": "error of a solution with weights off by 1e-5",
}
# The recipes in the guide to the layers.
GUIDE = {"plain": "plain", "fixed": "fixes", "best": "`fit`"}
BEST_UNITS, BEST_SHARE, BEST_STEPS = ("RealNPU", "NPU"), 0.99, 2 * single_module.STEPS


def key(row: dict[str, Any]) -> tuple[int, ...]:
    """The order of the table."""
    orders = {"recipe": list(RECIPES), "unit": UNITS, "op": list(OPERATIONS), "range": list(RANGES)}
    return *(names.index(row[name]) for name, names in orders.items()), row["seed"]


def cells(rows: Rows) -> dict[tuple[str, str, str, str], list[dict[str, Any]]]:
    """(recipe, unit, operation, range) to its runs, in the table's order."""
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=key):
        groups.setdefault((row["recipe"], row["unit"], row["op"], row["range"]), []).append(row)
    return groups


def solves(names: Sequence[str]) -> Callable[[dict[str, Any]], bool]:
    """Whether a run's test error is below all of these thresholds."""
    limits = [single_module.thresholds(name) for name in names]
    return lambda row: all(row["test_mse"] < limit[row["op"], row["range"]] for limit in limits)


def rate(runs: Rows, solved: Callable[[dict[str, Any]], bool]) -> str:
    """A share and its interval: 0.44 (0.27-0.63)."""
    count = sum(map(solved, runs))
    low, high = wilson(count, len(runs))
    return f"{count / len(runs):.2f} ({low:.2f}-{high:.2f})" if runs else "-"


# ---- tables --------------------------------------------------------------------------------------


def full_table(rows: Rows) -> str:
    """Shares of all seeds and ranges."""
    columns = [(op, names) for op in ("mul", "div") for names in (("fixed",), THRESHOLDS)]
    columns += [("add", ("fixed",)), ("sub", ("fixed",))]
    tests = [(op, solves(names)) for op, names in columns]
    titles = {1: "< 1e-5", 3: "all three thresholds"}
    header = [f"{SIGNS[op]}: {titles[len(names)]}" for op, names in columns]
    lines = []
    for recipe, unit in itertools.product(RECIPES, UNITS):
        runs = select(rows, recipe=recipe, unit=unit)
        if runs:
            shares = [rate(select(runs, op=op), test) for op, test in tests]
            steps = number(median([row["steps"] for row in runs]))
            lines.append([unit, recipe, *shares, steps])
    header = ["layer", "recipe", *header, "model-steps a seed"]
    return table(header, lines) + "\n" + processors(rows)


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


def processors(rows: Rows) -> str:
    """Name the processors that made the rows."""
    units: dict[str, set[str]] = {}
    for row in rows:
        units.setdefault(row["processor"], set()).add(row["unit"])
    names = [
        f"{name} ({', '.join(u for u in UNITS if u in trained)})" for name, trained in units.items()
    ]
    return f"Made on {'; '.join(names)}.\n"


def by_range(rows: Rows, cell: Callable[[Rows], str]) -> str:
    """A line for each recipe, unit and operation: the cell of each range, and of all."""
    groups, lines = cells(rows), []
    for recipe, unit, op in dict.fromkeys(key[:3] for key in groups):
        by_name = [groups.get((recipe, unit, op, name), []) for name in RANGES]
        everything = [row for group in by_name for row in group]
        lines.append([SIGNS[op], unit, recipe, *map(cell, by_name), cell(everything)])
    lines.sort(key=lambda line: "×÷+-".index(line[0]))
    return table(["", "layer", "recipe", *RANGES, "all"], lines)


def _medians(rows: Rows, name: str) -> str:
    def solved(runs: Rows) -> str:
        return number(median([row[name] for row in runs if row["solved"]]))

    return by_range(rows, solved)


def section(rows: Rows) -> str:
    parts = [
        "Mistry, Farrahi and Hare's benchmark: one layer, two inputs, one output, `a op b`, "
        "trained "
        "on the range of the heading and tested on 10,000 rows beyond it; the test error counts "
        "where the error on as many of the training range is least. Shares of seeds that solve it, "
        "in brackets Wilson's 95 % interval; all ranges together:\n",
        full_table(rows),
    ]
    for name in THRESHOLDS:
        test = solves([name])
        parts += [f"Solved: {NAMES[name]}.\n", by_range(rows, partial(rate, solved=test))]
    return "\n".join(
        [
            *parts,
            "Solved at step, median of the solved seeds (noted every 1000 steps).\n",
            _medians(rows, "solved_at"),
            "Sparsity error, the worst weight's distance from 0, 1 and -1; median.\n",
            _medians(rows, "sparsity"),
        ]
    )


# ---- verdict -------------------------------------------------------------------------------------


def _against(theirs: dict[str, Any], runs: Rows) -> Check:
    """Judge a share by one that was published.

    Of so many pairs some differ with p below 0.05 by chance, hardly any with p below 0.001.
    """
    solved, seeds = theirs["solved"], theirs["seeds"]
    low, high = wilson(solved, seeds)
    chance = same_share(sum(row["solved"] for row in runs), len(runs), solved, seeds)
    return Check(
        f"{theirs['unit']} {SIGNS[theirs['op']]} {theirs['recipe']}, {theirs['range']}",
        f"as found before: {solved / seeds:.2f} ({low:.2f}-{high:.2f})",
        f"{rate(runs, lambda row: bool(row['solved']))}, p = {probable(chance)}",
        True if chance >= 0.05 else False if chance < 0.001 else None,
    )


def checks(rows: Rows) -> list[Check]:
    """The published shares, and the requirements on the recipe `best`."""
    groups, judged = cells(rows), []
    for theirs in tables.load("single_module"):
        runs = groups.get((theirs["recipe"], theirs["unit"], theirs["op"], theirs["range"]))
        if runs:
            judged.append(_against(theirs, runs))
    strictest, best = solves(THRESHOLDS), select(rows, recipe="best")
    for unit in BEST_UNITS:
        runs = [row for row in select(best, unit=unit) if row["op"] in ("mul", "div")]
        if runs:
            subject = f"{unit} × and ÷ best, all ranges: all three thresholds"
            solved = sum(map(strictest, runs))
            judged.append(share(subject, solved, len(runs), BEST_SHARE, math.inf))
    if best:
        steps = max(row["steps"] for row in best)
        judged.append(within("best: most model-steps of a seed here", steps, -math.inf, BEST_STEPS))
    return judged


# ---- the picture ---------------------------------------------------------------------------------


def picture(sources: Sources, path: Path) -> bool:
    """Draw a panel for each operation; the report's tables have the steps and sparsity errors."""
    runs = cells(sources.rows)
    operations = [op for op in OPERATIONS if any(key[2] == op for key in runs)]
    pairs = itertools.product(RECIPES, UNITS)
    series = [pair for pair in pairs if any(key[:2] == pair for key in runs)]
    drawing, axes = figure(len(operations), 1, 0.2 * len(series) * len(operations) + 3)
    for axis, op in zip(axes[:, 0], operations, strict=True):
        shares = [[_share(runs.get((*pair, op, name), [])) for name in RANGES] for pair in series]
        axis.imshow(shares, cmap="YlGn", vmin=0, vmax=1, aspect="auto")
        for y, line in enumerate(shares):
            for x, part in enumerate(line):
                if not math.isnan(part):
                    look = {"color": "white" if part > 0.6 else "0.35"}
                    axis.text(x, y, f"{100 * part:.0f}", ha="center", va="center", **look)
        axis.set_title(f"a {SIGNS[op]} b")
        axis.set_xticks([])
        labels = [f"{unit}, {GUIDE[recipe].strip('`')}" for recipe, unit in series]
        axis.set_yticks(range(len(labels)), labels)
    turned = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    axis.set_xticks(range(len(RANGES)), list(RANGES), **turned)
    axis.set_xlabel("training range")
    headline(
        drawing,
        "One layer learns one operation: seeds with a test error below 1e-5, in per cent",
        "Dark: every seed solves it.",
    )
    save(drawing, path)
    return True


def _share(runs: Rows) -> float:
    return sum(row["solved"] for row in runs) / len(runs) if runs else math.nan
