"""What the report says about the simple arithmetic task: the paper beside ours, and the verdict.

The ranges come from the published numbers and from a re-implementation of the authors' code that was run with many more
seeds: where Table A2 prints a mean over 20 runs of a heavy-tailed error, a faithful run is judged by its median. They
hold for the variant "code" with all steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.blocks import record_table
from benchmarks.paper import published
from benchmarks.paper.agreement import Entry, definitions, unmeasured, verdicts
from benchmarks.paper.checks import Check, Statistic, ranked, statistic
from benchmarks.paper.markdown import SIGNS, between, plus_minus, probable
from benchmarks.paper.simple import task as simple
from benchmarks.paper.summary import DRAWS, interval, mean, median, number, probability
from benchmarks.paper.tables import Rows

DIFFERS = 0.05  # a probability below which means differ
PAPER_RUNS = 20
# The models of the guide to the layers. The NPU's numbers are those of the RealNPU: see `section`.
GUIDE = {
    "RealNPU": "RealNPU → NAU",
    "NMU": "NMU → NAU",
    "NALU": "NALU",
    "iNALU": "iNALU",
    "Dense": "dense network",
}
SOLVED = 0.01  # of the mean size of the right answers on the test grid


def solved_below(task: str) -> float:
    """The error below which a run of the simple task counts as a success: 1 % of the answers' mean size."""
    index = simple.TASKS.index(task)
    return SOLVED * float(simple.targets(simple.grid(task))[:, index].abs().mean())


def pairs(rows: Rows) -> Iterator[tuple[str, str, list[float], dict[str, Any], float]]:
    """Each task and model with our errors, the paper's row, and how probable the means are by chance."""
    paper = {(row["task"], row["model"]): row for row in published.load("simple")}
    for task in simple.TASKS:
        for model in simple.RECIPES:
            values = [
                row[task] for row in rows if row["model"] == model and not math.isnan(row[task])
            ]
            theirs = paper[task, model]
            if values:
                yield (
                    task,
                    model,
                    values,
                    theirs,
                    probability(values, theirs["centre"], theirs["spread"]),
                )


def share_solved(task: str, errors: Sequence[float]) -> str:
    return f"{100 * mean([error < solved_below(task) for error in errors]):.0f} %"


def lines(rows: Rows) -> Iterator[dict[str, str]]:
    for task, model, values, theirs, chance in pairs(rows):
        differ = "no difference" if chance >= DIFFERS else "**differs**"
        yield {
            "task": SIGNS[task],
            "model": model,
            "paper: mean ± s.e.": plus_minus(theirs["centre"], theirs["spread"]),
            "here: mean (95 %)": between(mean(values), interval(mean, values)),
            "paper and here: means": f"{differ} (p = {probable(chance)})",
            "here: median (95 %)": between(median(values), interval(median, values)),
            "solved": share_solved(task, values),
        }


def guide_table(rows: Rows) -> str:
    """The medians and the shares of solved seeds; the least median of a column is bold."""
    records = [{"median error (share of seeds that solved it)": title} for title in GUIDE.values()]
    for task in simple.TASKS:
        errors = [[row[task] for row in rows if row["model"] == model] for model in GUIDE]
        least = min(map(median, errors))
        for record, values in zip(records, errors, strict=True):
            text = f"{number(median(values))} ({share_solved(task, values)})"
            record[SIGNS[task]] = f"**{text}**" if median(values) == least else text
    return record_table(records)


def differences(rows: Rows) -> str:
    """The pairs whose means differ: what rare large errors have to do with it."""
    records = []
    for task, model, values, theirs, chance in pairs(rows):
        if chance < DIFFERS:
            drawn = np.random.default_rng(0).choice(np.asarray(values), (DRAWS, PAPER_RUNS)).mean(1)
            below = theirs["centre"] < mean(values)
            far = (drawn <= theirs["centre"] if below else drawn >= theirs["centre"]).mean()
            records.append(
                {
                    "task": SIGNS[task],
                    "model": model,
                    "paper: mean": number(theirs["centre"]),
                    "here: mean": number(mean(values)),
                    "without the largest 5 %": number(
                        mean(sorted(values)[: -max(1, len(values) // 20)])
                    ),
                    f"share of means of {PAPER_RUNS} of our runs as far off as the paper's": probable(
                        float(far)
                    ),
                }
            )
    return record_table(records) if records else "No means differ.\n"


def section(rows: Rows) -> str:
    limits = ", ".join(f"{SIGNS[task]} {number(solved_below(task))}" for task in simple.TASKS)
    return (
        "Mean absolute error outside of the training range, Table A2 of the paper. Its caption says median and MAD, "
        "its numbers are mean and standard error of 20 runs. In brackets: the 95 % intervals of ours, of the mean by a "
        "bootstrap. p is the probability that chance alone makes the two means differ at least so much, the errors of "
        "both taken together; below 0.05 they differ. Of so many numbers one differs by chance alone. A run has solved "
        "a task when its error is "
        f"below 1 % of the answers' mean size ({limits}). NPU and RealNPU of one seed give the same numbers: the "
        "imaginary weights start at 0 and no training input is negative, so their gradient is exactly 0.\n\n"
        + record_table(lines(rows))
        + "\nThe pairs whose means differ:\n\n"
        + differences(rows)
    )


# ---- verdict ----------------------------------------------------------------------------------------------------

_WANTED: dict[str, dict[str, tuple[Statistic, float, float]]] = {
    **{
        model: {
            "add": (median, -math.inf, 0.10),
            "mul": (median, -math.inf, 0.08),
            "div": (median, -math.inf, 0.03),
            "sqrt": (median, -math.inf, 0.0035),
        }
        for model in ("NPU", "RealNPU")
    },
    "NMU": {
        "add": (median, -math.inf, 0.03),
        "mul": (median, -math.inf, 0.001),
        "div": (mean, 11.3, 11.5),
        "sqrt": (mean, 0.148, 0.172),
    },
    "NALU": {
        "add": (mean, 2.2, 4.5),
        "mul": (mean, 4.1, 7.0),
        "div": (mean, 2.9, 4.0),
        "sqrt": (mean, 0.02, 0.07),
    },
    "iNALU": {
        "add": (mean, 1.9, 3.0),
        "mul": (mean, 3.2, 3.6),
        "div": (mean, 2.1, 3.0),
        "sqrt": (mean, 0.03, 0.09),
    },
    "Dense": {
        "add": (mean, 2.02, 2.18),
        "mul": (mean, 3.47, 3.63),
        "div": (mean, 13.75, 14.55),
        "sqrt": (mean, 0.071, 0.095),
    },
}


def checks(rows: Rows) -> list[Check]:
    def values(model: str, task: str) -> list[float]:
        return [row[task] for row in rows if row["model"] == model]

    judged = []
    for model, tasks in _WANTED.items():
        for task, (of, low, high) in tasks.items():
            what = f"{model} {SIGNS[task]}, {of.__name__}"
            judged.append(statistic(what, of, values(model, task), low, high))
    others = [model for model in _WANTED if model not in ("NPU", "RealNPU")]
    for task in ("div", "sqrt"):
        groups = [values(model, task) for model in ("NPU", "RealNPU", *others)]
        what = f"{SIGNS[task]}, medians of {', '.join(('NPU', 'RealNPU', *others))}"
        judged.append(
            ranked(
                what,
                "NPU, RealNPU < all others",
                median,
                groups,
                lambda *m: max(m[:2]) < min(m[2:]),
            )
        )
    others = [model for model in _WANTED if model != "NMU"]
    groups = [values(model, "mul") for model in ("NMU", *others)]
    what = f"×, medians of {', '.join(('NMU', *others))}"
    judged.append(ranked(what, "NMU < all others", median, groups, lambda *m: m[0] < min(m[1:])))
    for task in ("add", "mul", "div"):
        groups = [values(model, task) for model in ("NALU", "iNALU", "Dense")]
        what = f"{SIGNS[task]}, means of NALU, iNALU, Dense"
        judged.append(ranked(what, "all > 1", mean, groups, lambda *m: min(m) > 1))
    return judged


# ---- the paper's figures and tables ----------------------------------------------------------------------------------


def _means(rows: Sequence[Rows], models: Path) -> str:
    cells = [
        (f"{line['task']} {line['model']}", line["paper and here: means"])
        for line in lines(rows[0])
    ]
    return verdicts(cells, "means")


ENTRIES = (
    unmeasured("Figure 6", "errors of the best of 20 models over the plane"),
    Entry(
        "Table A2",
        "test errors of the simple task",
        _means,
        "heavy tails: means of twenty runs miss rare large errors (second table there); of twenty pairs one differs by "
        "chance",
    ),
    definitions("Table A3", "models of the simple task"),
)
