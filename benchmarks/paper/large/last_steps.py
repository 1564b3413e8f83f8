"""What the report says about the errors of the large task's last steps (`large-snapshots`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from benchmarks.blocks import record_table, table
from benchmarks.paper import published
from benchmarks.paper.checks import Check, order
from benchmarks.paper.large import snapshots
from benchmarks.paper.large import task as large
from benchmarks.paper.large.snapshots import GATES, POINTS
from benchmarks.paper.large.swing import Swing
from benchmarks.paper.markdown import SIGNS, between
from benchmarks.paper.summary import DRAWS, FEWEST, compared, median, number, quantiles
from benchmarks.paper.tables import Rows

Cell = tuple[str, str, float | str]  # task, model, start of the gate ("-": none)
VARIANT = "(variant)"  # of the gate's start, in tables
COUNTS = (10, 20, 100)  # of how many runs the authors may have chosen ten


def cells(rows: Rows) -> Iterator[tuple[Cell, dict[str, list[list[float]]]]]:
    """Each cell with the errors of its runs, by whose points they had."""
    for task in large.TASKS:
        for model in large.MODELS:
            for gate in GATES.get(model, (None,)):
                cell = task, model, "-" if gate is None else gate
                mine = [
                    row
                    for row in rows
                    if (row["task"], row["model"], snapshots.gate_of(row)) == cell
                ]
                if mine:
                    yield (
                        cell,
                        {
                            p: [snapshots.errors(row) for row in mine if row["points"] == p]
                            for p in POINTS
                        },
                    )


def authors(cell: Cell) -> bool:
    """Whether the gate starts where the authors' did."""
    return cell[2] == (GATES.get(cell[1], (None,))[0] or "-")


def paper_points(task: str, model: str) -> list[float]:
    """The published test errors: ten runs, or fewer."""
    return [
        p["test_mse"] for p in published.load("pareto") if (p["task"], p["model"]) == (task, model)
    ]


def pooled(runs: Sequence[Sequence[float]]) -> float:
    """The median of all runs' errors at all snapshots; of an even number the lower one, as some are infinite."""
    return float(
        np.quantile(np.concatenate([np.asarray(run) for run in runs]), 0.5, method="lower")
    )


def pooled_draws(runs: Sequence[Sequence[float]], key: int = 0) -> np.ndarray | None:
    """`pooled` of 1,000 samples of whole runs; None for fewer than six runs."""
    if len(runs) < FEWEST:
        return None
    chosen = np.random.default_rng(key).integers(len(runs), size=(DRAWS // 10, len(runs)))
    values = np.asarray(runs)[chosen].reshape(len(chosen), -1)
    return np.quantile(values, 0.5, axis=1, method="lower")


def swing(runs: Sequence[Sequence[float]]) -> str:
    """Of the middle run: the errors that a tenth of its snapshots lie below and above."""
    if not runs:
        return "-"
    low, high = (
        median([float(np.quantile(run, q, method="nearest")) for run in runs]) for q in (0.1, 0.9)
    )
    return f"{number(low)} to {number(high)}"


def _between(value: float, draws: np.ndarray | None) -> str:
    return between(value, None if draws is None else quantiles(draws.tolist()))


def lines(rows: Rows) -> Iterable[dict[str, str]]:
    for cell, runs in cells(rows):
        task, model, gate = cell
        theirs = Swing(rows, task, model).draws(median, paper_points(task, model), key=1)
        ratio, verdict = compared(pooled_draws(runs["own"]), theirs)
        middles = {points: pooled(runs[points]) if runs[points] else math.nan for points in POINTS}
        yield {
            "task": SIGNS[task],
            "model": model,
            "gate's start": f"{gate}" if authors(cell) else f"{gate} {VARIANT}",
            "paper: median (95 %)": _between(median(paper_points(task, model)), theirs),
            **{
                f"{points} points: median (95 %)": _between(middle, pooled_draws(runs[points]))
                for points, middle in middles.items()
            },
            "one run with own points, last 2,000 steps: 10 % to 90 %": swing(runs["own"]),
            "own points / paper (95 %)": f"{number(ratio[0])} to {number(ratio[1])}"
            if ratio
            else "-",
            "verdict": verdict,
            "runs: own, shared": ", ".join(str(len(runs[points])) for points in POINTS),
        }


def full_table(rows: Rows) -> str:
    return f"{made(rows)}\n\n{record_table(lines(rows))}\n{redrawn(rows)}"


def made(rows: Rows) -> str:
    """How many runs there are, of how many planned."""
    found = list(cells(rows))
    own = [len(runs["own"]) for cell, runs in found if authors(cell)]
    enough = sum(count >= FEWEST for count in own)
    planned = sum(count for *_, count in snapshots.ways(POINTS)) * len(large.TASKS)
    every = len(large.TASKS) * len(large.MODELS)
    return (
        f"{len(rows)} of {planned} runs are made. {enough} of {every} cells (task and model, the authors' start of the "
        f"gate) have the {FEWEST} runs with own points that a verdict needs."
    )


def redrawn(rows: Rows) -> str:
    """Table 1's numbers drawn again: the best ten of more and more runs."""
    found = []
    for task in large.TASKS:
        for model in large.MODELS:
            intervals = [Swing(rows, task, model).best_of(count) for count in COUNTS]
            theirs = median(paper_points(task, model))
            inside = [
                n
                for n, ends in zip(COUNTS, intervals, strict=True)
                if ends and ends[0] <= theirs <= ends[1]
            ]
            if all(intervals):
                verdict = f"as the best 10 of {', '.join(map(str, inside))}" if inside else "**no**"
                shown = [f"{number(ends[0])} to {number(ends[1])}" for ends in intervals if ends]
                found.append([SIGNS[task], model, number(theirs), *shown, verdict])
    if not found:
        return f"No cell has the {FEWEST} runs from which the paper's numbers can be drawn again yet.\n"
    header = [
        "task",
        "model",
        "paper",
        *(f"best 10 of {n}, one step: 95 % of draws" for n in COUNTS),
        "such a draw?",
    ]
    return table(header, found)


def section(rows: Rows) -> str:
    return (
        "The test error at 41 of the last 2,000 steps, 50 apart. Medians are of all runs and snapshots; in brackets "
        "the 95 % interval, by a bootstrap of whole runs, from six runs on. *Own points*: each seed has training "
        "points of its own, the Sobol sequence shifted by a random vector modulo 1, so runs are independent. *Shared "
        "points*: the authors' sequence, the same for all seeds; these runs swing together, so their interval is too "
        "narrow, and nothing is concluded from it. *Paper*: the published points, ten runs at one step; their "
        "interval counts that step's swing, as our runs have it. They are the ten with the lowest test error of an "
        "unknown number, so their median is too low by an unknown factor: the second table draws the median of the "
        "ten best of 10, 20 and 100 of our runs at one step, again and again. A difference is named where the "
        "quotient's interval does not contain 1. *Variant*: the gate's other start.\n\n"
        + full_table(rows)
    )


def checks(rows: Rows) -> list[Check]:
    """The paper's orders of models, by medians with own points and the authors' starts of the gate."""
    runs = {cell[:2]: found["own"] for cell, found in cells(rows) if authors(cell)}

    def ranked(task: str, *names: str) -> Check:
        groups = [runs.get((task, name), []) for name in names]
        values = [pooled(group) if group else math.nan for group in groups]
        drawn = [pooled_draws(group, key) for key, group in enumerate(groups)]
        what = f"{SIGNS[task]}, own points, medians: {', '.join(names)}"
        return order(what, " < ".join(names), values, in_order(drawn, lambda low, high: low < high))

    return [
        *(ranked(task, name, "NaiveNPU") for task in large.TASKS for name in ("NPU", "RealNPU")),
        *(ranked(task, name, "NMU") for task in ("div", "sqrt") for name in ("NPU", "RealNPU")),
        *(ranked(task, name, "NALU") for task in large.TASKS for name in ("NPU", "RealNPU")),
    ]


def in_order(drawn: Sequence[np.ndarray | None], holds: Callable[..., bool]) -> list[bool] | None:
    """Whether an order holds in each sample; None where one of the statistics has too few runs."""
    known = [one for one in drawn if one is not None]
    return (
        [bool(holds(*sample)) for sample in zip(*known, strict=True)]
        if len(known) == len(drawn)
        else None
    )
