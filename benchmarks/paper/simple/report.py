"""What the report says about the simple arithmetic task: the paper beside ours, and the verdict.

The ranges come from the published numbers and from a re-implementation of the authors' code that was run with many more
seeds: where Table A2 prints a mean over 20 runs of a heavy-tailed error, a faithful run is judged by its median. They
hold for the variant "code" with all steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.paper import published
from benchmarks.paper.agreement import Entry, definitions, unmeasured, verdicts
from benchmarks.paper.checks import Check, Statistic, ranked, statistic
from benchmarks.paper.markdown import SIGNS, between, plus_minus, probable, table
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


def lines(rows: Rows) -> Iterable[list[str]]:
    paper = {(row["task"], row["model"]): row for row in published.load("simple")}
    for task in simple.TASKS:
        for model in simple.RECIPES:
            values = [row[task] for row in rows if row["model"] == model and not math.isnan(row[task])]
            if not values:
                continue
            theirs = paper[task, model]
            chance = probability(values, theirs["centre"], theirs["spread"])
            yield [
                SIGNS[task],
                model,
                plus_minus(theirs["centre"], theirs["spread"]),
                between(mean(values), interval(mean, values)),
                f"{'no difference' if chance >= DIFFERS else '**differs**'} (p = {probable(chance)})",
                between(median(values), interval(median, values)),
                f"{100 * mean([value < solved_below(task) for value in values]):.0f} %",
            ]


def short_table(rows: Rows) -> str:
    header = [
        "task",
        "model",
        "paper: mean ± s.e.",
        "here: mean (95 %)",
        "paper and here: means",
        "here: median (95 %)",
        "solved",
    ]
    return table(header, lines(rows)) + "\n" + differences(rows)


def guide_table(rows: Rows) -> str:
    """The medians and the shares of solved seeds; the least median of a column is bold."""
    errors = {
        (model, task): [row[task] for row in rows if row["model"] == model]
        for model in GUIDE
        for task in simple.TASKS
    }  # fmt: skip
    least = {task: min(median(errors[model, task]) for model in GUIDE) for task in simple.TASKS}
    cells = []
    for model, title in GUIDE.items():
        cells.append([title])
        for task in simple.TASKS:
            values = errors[model, task]
            solved = mean([value < solved_below(task) for value in values])
            text = f"{number(median(values))} ({100 * solved:.0f} %)"
            cells[-1].append(f"**{text}**" if median(values) == least[task] else text)
    header = ["median error (share of seeds that solved it)", *(SIGNS[task] for task in simple.TASKS)]
    return table(header, cells)


def differences(rows: Rows) -> str:
    """The pairs whose means differ: what rare large errors have to do with it."""
    paper, found = {(row["task"], row["model"]): row for row in published.load("simple")}, []
    for task in simple.TASKS:
        for model in simple.RECIPES:
            values = [row[task] for row in rows if row["model"] == model and not math.isnan(row[task])]
            theirs = paper[task, model]["centre"]
            if not values or probability(values, theirs, paper[task, model]["spread"]) >= DIFFERS:
                continue
            drawn = np.random.default_rng(0).choice(np.asarray(values), (DRAWS, PAPER_RUNS)).mean(1)
            far = float((drawn <= theirs).mean() if theirs < mean(values) else (drawn >= theirs).mean())
            rest = sorted(values)[: -max(1, len(values) // 20)]
            found.append([SIGNS[task], model, number(theirs), number(mean(values)), number(mean(rest)), probable(far)])
    if not found:
        return "No means differ.\n"
    header = ["task", "model", "paper: mean", "here: mean", "without the largest 5 %"]
    return table([*header, f"share of means of {PAPER_RUNS} of our runs as far off as the paper's"], found)


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
        + short_table(rows)
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
        judged.append(ranked(what, "NPU, RealNPU < all others", median, groups, lambda *m: max(m[:2]) < min(m[2:])))
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

_PLACE = "[simple](#simple-arithmetic)"


def _means(rows: Sequence[Rows], models: Path) -> str:
    return verdicts([(f"{line[0]} {line[1]}", line[4]) for line in lines(rows[0])], "means")


ENTRIES = (
    unmeasured("Figure 6", "errors of the best of 20 models over the plane", _PLACE),
    Entry(
        "Table A2",
        "test errors of the simple task",
        _PLACE,
        _means,
        "heavy tails: means of twenty runs miss rare large errors (second table there); of twenty pairs one differs by "
        "chance",
    ),
    definitions("Table A3", "models of the simple task", _PLACE),
)
