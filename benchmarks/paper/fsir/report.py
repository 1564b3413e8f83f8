"""What the report says about the fractional SIR experiment: fronts, the paper beside ours, verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.blocks import table
from benchmarks.paper import published
from benchmarks.paper.agreement import Entry, definitions, verdicts
from benchmarks.paper.checks import Check, explained, judged, order, share, statistic
from benchmarks.paper.fsir import task as fsir
from benchmarks.paper.fsir.models import FEW
from benchmarks.paper.markdown import between
from benchmarks.paper.summary import (
    FEWEST,
    bootstrap,
    compared,
    interval,
    median,
    number,
    samples,
    wilson,
)
from benchmarks.paper.tables import Rows

BUDGETS = (20, 40, 80, 160, None)  # numbers of parameters at which the fronts are compared
BETTER = (
    "the fits here are better. Published medians lie between those after our first phase and at our end (the table of "
    "phases), so the authors' second phase may have stopped earlier (not tested); their gradient changes little "
    "(`--integrator adjoint`, benchmarks/NOTES.md)"
)


def share_below(rows: Rows, limit: float) -> float:
    return sum(row["mse"] < limit for row in rows) / max(1, len(rows))


def of(rows: Rows, model: str, beta: float | None = None) -> list[dict[str, Any]]:
    """The rows of a model, and of one beta if given; an error that is no number counts as infinite."""
    chosen = [
        row for row in rows if row["model"] == model and (beta is None or row["beta"] == beta)
    ]
    return [{**row, "mse": math.inf if math.isnan(row["mse"]) else row["mse"]} for row in chosen]


def paper_rows() -> Rows:
    """The published runs in the columns of our table."""
    return [
        {
            "model": row["model"],
            "h": row["h_inferred"],
            "beta": row["beta_inferred"],
            "run": row["run_inferred"],
            "mse": row["mse"],
            "n_params": row["n_params_abs_gt_1e-3"],
        }
        for row in published.load("fsir_pareto")
        if row["kind"] == "run"
    ]


def front(rows: Rows) -> list[dict[str, Any]]:
    """The non-dominated runs, fewest parameters first: no other run has both fewer or as many and a lower error."""
    found: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["n_params"], row["mse"])):
        if math.isfinite(row["mse"]) and (not found or row["mse"] < found[-1]["mse"]):
            found.append(row)
    return found


def dominated(better: Rows, worse: Rows) -> int:
    """How many points of one front have one of the other with no more parameters and no greater error."""
    return sum(
        any(b["n_params"] <= w["n_params"] and b["mse"] <= w["mse"] for b in better) for w in worse
    )


def dominates(better: Rows, worse: Rows) -> bool:
    """Whether every point of one front has one of the other with no more parameters and no greater error."""
    return dominated(better, worse) == len(worse)


# ---- tables --------------------------------------------------------------------------------------------------------


def sources(rows: Rows, authors: Rows) -> list[tuple[str, Rows]]:
    """The runs that the tables compare: the paper's, ours, and ours by the authors' gradient where they are made."""
    found = [
        ("paper", paper_rows()),
        ("here", rows),
        ("here, authors' gradient", complete(rows, authors)),
    ]
    return [(whose, source) for whose, source in found if source]


def complete(rows: Rows, authors: Rows) -> Rows:
    """The runs by the authors' gradient, of the models that have as many of them as of ours."""
    done = [model for model in fsir.MODELS if len(of(authors, model)) == len(of(rows, model))]
    return [row for row in authors if row["model"] in done]


def full_table(rows: Rows, authors: Rows = ()) -> str:
    """A line for the paper's runs of a model, and for ours, with 95 % intervals.

    Args:
        rows: ours, by the gradient of the loss.
        authors: ours, by the authors' gradient.
    """

    def middle(found: Rows) -> str:
        errors = [row["mse"] for row in found]
        return between(median(errors), interval(median, errors))

    def below(found: Rows, limit: float) -> str:
        low, high = wilson(sum(row["mse"] < limit for row in found), len(found))
        return f"{100 * share_below(found, limit):.0f} % ({100 * low:.0f} to {100 * high:.0f})"

    lines = []
    for model in fsir.MODELS:
        for whose, source in sources(rows, authors):
            found = of(source, model)
            if found and of(rows, model):
                by_beta = [middle(of(source, model, beta)) for beta in fsir.BETAS]
                shares = [below(found, limit) for limit in (0.1, 1.0)]
                lines.append([model, whose, str(len(found)), middle(found), *shares, *by_beta])
    header = ["model", "", "runs", "median (95 %)", "below 0.1 (95 %)", "below 1 (95 %)"]
    return (
        table(header + [f"median, beta {beta:g} (95 %)" for beta in fsir.BETAS], lines)
        + "\n"
        + budget_table(rows, authors)
        + "\n"
        + phase_table(rows)
    )


def least(count: int | None) -> Callable[[Rows], float]:
    """The least error of runs with at most so many parameters; infinite where there are none."""
    return lambda found: min(
        (r["mse"] for r in found if count is None or r["n_params"] <= count), default=math.inf
    )


def budget_table(rows: Rows, authors: Rows = ()) -> str:
    """The fronts at some numbers of parameters, with 95 % intervals by a bootstrap of the runs."""
    lines = []
    for model in fsir.MODELS:
        for whose, source in sources(rows, authors):
            found = of(source, model)
            if found and of(rows, model):
                cells = [between(least(n)(found), bootstrap(least(n), found)) for n in BUDGETS]
                lines.append([model, whose, *cells])
    names = ["any number" if n is None else f"at most {n}" for n in BUDGETS]
    return table(["least error, by parameters that are not 0 (95 %)", "", *names], lines)


def phase_table(rows: Rows, authors: Rows = ()) -> str:
    """Medians after the first phase and at the end, beside the published ones; `authors` has none."""

    def middle(found: Rows, column: str) -> str:
        values = [math.inf if math.isnan(row[column]) else row[column] for row in found]
        return between(median(values), interval(median, values))

    lines, paper = [], paper_rows()
    for model in fsir.MODELS:
        found = of(rows, model)
        if found and "first_mse" in found[0]:
            count = median([row["iterations"] for row in found])
            cells = [
                middle(found, "first_mse"),
                middle(found, "mse"),
                middle(of(paper, model), "mse"),
            ]
            lines.append([model, *cells, f"{count:.0f}"])
    header = [
        "median error (95 %)",
        "here: after the first phase",
        "here: at the end",
        "paper: at the end",
    ]
    return table([*header, "here: iterations of the second phase, median"], lines)


def front_table(rows: Rows) -> str:
    def points(found: Rows) -> str:
        return " ".join(f"({row['n_params']}, {number(row['mse'])})" for row in front(found))

    paper = paper_rows()
    lines = [
        [model, points(of(paper, model)), points(of(rows, model))]
        for model in fsir.MODELS
        if of(rows, model)
    ]
    return table(["model", "paper: non-dominated (parameters, error)", "here"], lines)


def section(rows: Rows, authors: Rows = ()) -> str:
    return (
        "Error on the 40 training points (there is no test set), after both phases; a parameter counts when it is "
        f"larger than {fsir.NON_ZERO:g}.\n\n"
        + full_table(rows, authors)
        + "\nIn brackets: 95 % intervals, exact for medians, Wilson's for shares, a bootstrap of the runs for "
        "least errors. No sample has an error below the least that was seen: the lower ends of the last table are too "
        "high.\n\n"
        "The fronts are recomputed here for the paper too: its figure draws parts of convex hulls.\n\n"
        + front_table(rows)
    )


# ---- verdicts ------------------------------------------------------------------------------------------------------


def checks(rows: Rows, authors: Rows = ()) -> list[Check]:
    """The published code's numbers, Euler's method; runs by the authors' gradient are asked for nothing."""

    def errors(model: str, beta: float | None = None) -> list[float]:
        return [row["mse"] for row in of(rows, model, beta)]

    def below(model: str, limit: float, low: float, high: float) -> Check:
        found = errors(model)
        what = f"{model}, share below {limit:g}"
        return share(what, sum(error < limit for error in found), len(found), low, high)

    def lowest(model: str, high: float, count: int | None = None) -> Check:
        runs, of_runs = of(rows, model), least(count)
        what = f"{model}{'' if count is None else f' with at most {count} parameters'}, least error"
        return judged(what, of_runs(runs), bootstrap(of_runs, runs), -math.inf, high)

    mine, theirs = (of(rows, "NPU"), of(rows, "Dense")), of(paper_rows(), "Dense")
    return [
        lowest("NPU", 0.02),
        explained(statistic("NPU, median", median, errors("NPU"), 0.07, 0.17), BETTER),
        below("NPU", 0.1, 0.4, math.inf),
        below("NPU", 1.0, 0.8, math.inf),
        lowest("RealNPU", 0.05, FEW),
        explained(statistic("RealNPU, median", median, errors("RealNPU"), 1.0, 4.0), BETTER),
        explained(below("RealNPU", 1.0, -math.inf, 0.3), BETTER),
        lowest("Dense", 0.05),
        explained(statistic("Dense, median", median, errors("Dense"), 0.2, 0.3), BETTER),
        below("Dense", 1.0, 0.95, math.inf),
        _domination("NPU's front against Dense's, published", mine[0], theirs),
        _domination("NPU's front against Dense's, here", *mine),
    ]


def _domination(what: str, better: Rows, worse: Rows) -> Check:
    """Whether the front of some runs dominates that of others, and in how many samples of both."""
    parts = [float(dominated(front(better), front(worse))), float(len(front(worse)))]
    drawn = None
    if min(len(better), len(worse)) >= FEWEST:
        drawn = [
            dominates(front(b), front(w))
            for b, w in zip(samples(better), samples(worse, 1), strict=True)
        ]
    return order(f"{what}: points dominated, of", "all", parts, drawn)


def accurate_checks(rows: Rows) -> list[Check]:
    """With an accurate integrator nothing is published; the fits should be no worse than those by Euler's method."""
    return [
        judged(
            f"{model}, least error",
            least(None)(of(rows, model)),
            bootstrap(least(None), of(rows, model)),
            -math.inf,
            limit,
        )
        for model, limit in (("NPU", 0.02), ("RealNPU", 0.05))
        if of(rows, model)
    ]


# ---- the paper's figures and tables ----------------------------------------------------------------------------------


def _fronts(rows: Sequence[Rows], models: Path) -> str:
    """Ours beside the published runs, by the loss's own gradient and by the authors'."""
    found = [_agreement(rows[0])]
    authors = complete(rows[0], rows[1]) if len(rows) > 1 else []
    if authors:
        found.append(f"with the authors' gradient: {_agreement(authors)}")
    return ". ".join(found)


def _agreement(ours: Rows) -> str:
    """Medians by model and beta, and least errors by numbers of parameters, beside the published runs'."""
    sources, models = (ours, paper_rows()), [model for model in fsir.MODELS if of(ours, model)]

    def differ(model: str, beta: float | None, statistic: Callable[[Rows], float]) -> str:
        runs = [of(source, model, beta) for source in sources]
        if any(len(found) < FEWEST for found in runs):
            return "too few runs"
        mine, theirs = (
            np.array([statistic(s) for s in samples(found, key)]) for key, found in enumerate(runs)
        )
        return compared(mine, theirs)[1]

    def middle(found: Rows) -> float:
        return median([row["mse"] for row in found])

    medians = [
        (f"{model} {beta:g}", differ(model, beta, middle))
        for model in models
        for beta in fsir.BETAS
    ]
    lowest = [
        (f"{model} {'any' if count is None else count}", differ(model, None, least(count)))
        for model in models
        for count in BUDGETS
    ]
    of_budgets = verdicts(lowest, "least errors (model and most parameters)")
    return f"{verdicts(medians, 'medians (model and beta)')}; {of_budgets}"


def _weights(rows: Sequence[Rows], models: Path) -> str:
    """The exponents of the hidden unit that multiplies S and I, of the best RealNPU with few parameters."""
    best = json.loads(models.read_text()).get("sparse RealNPU") if models.exists() else None
    if best is None:
        return "no RealNPU with few parameters"
    exponents = np.array(best["parameters"][: 3 * best["h"]]).reshape(-1, 3)
    s, i, _ = exponents[np.argmax(np.abs(exponents[:, 0] * exponents[:, 1]))]
    theirs = {row["quantity"]: row["value"] for row in published.load("fsir_weights")}
    return (
        f"paper S^{theirs['exponent of S']:.2f} I^{theirs['exponent of I']:.2f}, here S^{s:.2f} I^{i:.2f} "
        f"(error {number(best['mse'])}, {best['n_params']} parameters); one run each, so no verdict"
    )


ENTRIES = (
    Entry("Figure 4", "error and size of fractional SIR models", _fronts, BETTER),
    Entry(
        "Figure 5",
        "the weights of the best RealNPU",
        _weights,
        "coarse steps: the true exponents are 0.5; with accurate ones and pruning `fsir-equation` finds them",
    ),
    definitions("Table A1", "models of the fractional SIR task"),
)
