"""What the report says about the errors of the large task's last steps (`large-snapshots`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from benchmarks.marked_blocks import record_table, table
from benchmarks.paper.checks import Check, order
from benchmarks.paper.large import snapshots
from benchmarks.paper.large import task as large
from benchmarks.paper.large.snapshots import GATES, POINTS, Swing, paper_points
from benchmarks.paper.summary import (
    DRAWS,
    MIN_RUNS,
    SIGNS,
    between,
    compared,
    median,
    number,
    quantiles,
)
from benchmarks.paper.tables import Rows, select

Cell = tuple[str, str, float | str]  # task, model, start of the gate ("-": none)
VARIANT = "(variant)"  # of the gate's start, in tables
COUNTS = (10, 20, 100)  # of how many runs the authors may have chosen ten


def cells(rows: Rows) -> Iterator[tuple[Cell, dict[str, list[list[float]]]]]:
    """Each cell with the errors of its runs, by whose points they had."""
    for task, model in itertools.product(large.TASKS, large.MODELS):
        for gate in GATES.get(model, (None,)):
            start = "-" if gate is None else gate
            runs = select(rows, task=task, model=model)
            runs = [row for row in runs if snapshots.gate_of(row) == start]
            errors = {p: [snapshots.errors(row) for row in select(runs, points=p)] for p in POINTS}
            if runs:
                yield (task, model, start), errors


def authors(cell: Cell) -> bool:
    """Whether the gate starts where the authors' did."""
    return cell[2] == snapshots.authors_gate(cell[1])


def pooled(runs: Sequence[Sequence[float]]) -> float:
    """The median of all errors of all runs; the lower of two middle ones, as some are infinite."""
    return float(np.quantile(np.concatenate(list(map(np.asarray, runs))), 0.5, method="lower"))


def pooled_draws(runs: Sequence[Sequence[float]], key: int = 0) -> np.ndarray | None:
    """`pooled` of 1,000 samples of whole runs; None for fewer than six runs."""
    if len(runs) < MIN_RUNS:
        return None
    chosen = np.random.default_rng(key).integers(len(runs), size=(DRAWS // 10, len(runs)))
    values = np.asarray(runs)[chosen].reshape(len(chosen), -1)
    return np.quantile(values, 0.5, axis=1, method="lower")


def swing(runs: Sequence[Sequence[float]]) -> str:
    """Say between which errors 80 % of a run's snapshots lie: medians over the runs."""
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
        published = paper_points(task, model)
        theirs = Swing(rows, task, model).draws(median, published, key=1)
        ratio, verdict = compared(pooled_draws(runs["own"]), theirs)
        middles = {points: pooled(runs[points]) if runs[points] else math.nan for points in POINTS}
        yield {
            "task": SIGNS[task],
            "model": model,
            "gate's start": f"{gate}" if authors(cell) else f"{gate} {VARIANT}",
            "paper: median (95 %)": _between(median(published), theirs),
            **{
                f"{points} points: median (95 %)": _between(middle, pooled_draws(runs[points]))
                for points, middle in middles.items()
            },
            "one run with own points, last 2,000 steps: 10 % to 90 %": swing(runs["own"]),
            "own points / paper (95 %)": " to ".join(map(number, ratio)) if ratio else "-",
            "verdict": verdict,
            "runs: own, shared": ", ".join(str(len(runs[points])) for points in POINTS),
        }


def full_table(rows: Rows) -> str:
    return f"{counted(rows)}\n\n{record_table(lines(rows))}\n{redrawn(rows)}"


def counted(rows: Rows) -> str:
    """Say how many runs of those planned are made, and how many cells have enough of them."""
    counts = [len(runs["own"]) for cell, runs in cells(rows) if authors(cell)]
    enough = sum(count >= MIN_RUNS for count in counts)
    planned = sum(count for *_, count in snapshots.ways()) * len(large.TASKS)
    return (
        f"{len(rows)} of {planned} runs are made. {enough} of "
        f"{len(large.TASKS) * len(large.MODELS)} cells (task and model, the authors' start of the "
        f"gate) have the {MIN_RUNS} runs with own points that a verdict needs."
    )


def redrawn(rows: Rows) -> str:
    """Table 1's numbers drawn again: the best ten of more and more runs."""
    drawn = []
    for task, model in itertools.product(large.TASKS, large.MODELS):
        swing, theirs = Swing(rows, task, model), median(paper_points(task, model))
        intervals = {count: swing.best_of(count) for count in COUNTS}
        if all(intervals.values()):
            complete = {count: bounds for count, bounds in intervals.items() if bounds}
            inside = [str(n) for n, (low, high) in complete.items() if low <= theirs <= high]
            verdict = f"as the best 10 of {', '.join(inside)}" if inside else "**no**"
            shown = [" to ".join(map(number, bounds)) for bounds in complete.values()]
            drawn.append([SIGNS[task], model, number(theirs), *shown, verdict])
    if not drawn:
        runs = f"the {MIN_RUNS} runs from which the paper's numbers can be drawn again yet"
        return f"No cell has {runs}.\n"
    titles = [f"best 10 of {n}, one step: 95 % of draws" for n in COUNTS]
    return table(["task", "model", "paper", *titles, "such a draw?"], drawn)


def section(rows: Rows) -> str:
    return (
        "The test error at 41 of the last 2,000 steps, 50 apart. Medians are of all runs and "
        "snapshots; in brackets the 95 % interval, by a bootstrap of whole runs, from six runs on. "
        "*Own points*: each seed has training points of its own, the Sobol sequence shifted by a "
        "random vector modulo 1, so runs are independent. *Shared points*: the authors' sequence, "
        "the same for all seeds; these runs swing together, so their interval is too narrow, and "
        "nothing is concluded from it. *Paper*: the published points, ten runs at one step; their "
        "interval counts that step's swing, as our runs have it. They are the ten with the lowest "
        "test error of an unknown number, so their median is too low by an unknown factor: the "
        "second table draws the median of the ten best of 10, 20 and 100 of our runs at one step, "
        "again and again. A difference is named where the quotient's interval does not contain 1. "
        "*Variant*: the gate's other start.\n\n" + full_table(rows)
    )


def checks(rows: Rows) -> list[Check]:
    """The paper's orders of models, by medians with own points and the authors' gates."""
    runs = {cell[:2]: errors["own"] for cell, errors in cells(rows) if authors(cell)}

    def ranked(task: str, *names: str) -> Check:
        groups = [runs.get((task, name), []) for name in names]
        values = [pooled(group) if group else math.nan for group in groups]
        drawn = [pooled_draws(group, key) for key, group in enumerate(groups)]
        subject = f"{SIGNS[task]}, own points, medians: {', '.join(names)}"
        holds = in_order(drawn, lambda low, high: low < high)
        return order(subject, " < ".join(names), values, holds)

    return [
        *(ranked(task, name, "NaiveNPU") for task in large.TASKS for name in ("NPU", "RealNPU")),
        *(ranked(task, name, "NMU") for task in ("div", "sqrt") for name in ("NPU", "RealNPU")),
        *(ranked(task, name, "NALU") for task in large.TASKS for name in ("NPU", "RealNPU")),
    ]


def in_order(drawn: Sequence[np.ndarray | None], holds: Callable[..., bool]) -> list[bool] | None:
    """Whether an order holds in each sample; None where a statistic has too few runs."""
    statistics = [values for values in drawn if values is not None]
    if len(statistics) < len(drawn):
        return None
    return [bool(holds(*sample)) for sample in zip(*statistics, strict=True)]
