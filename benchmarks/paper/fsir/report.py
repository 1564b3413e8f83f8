"""What the report says about the fractional SIR experiment: fronts, the paper's and ours.

The picture has the fronts, trajectories, and a RealNPU's diagram.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.drawing import figure, headline, save
from benchmarks.marked_blocks import table
from benchmarks.paper import tables
from benchmarks.paper.checks import (
    Check,
    Entry,
    definitions,
    explained,
    judged,
    order,
    share,
    statistic,
    verdicts,
)
from benchmarks.paper.experiment import Sources
from benchmarks.paper.fsir import task as fsir
from benchmarks.paper.fsir.models import FEW
from benchmarks.paper.summary import (
    MIN_RUNS,
    between,
    bootstrap,
    compared,
    median,
    middle,
    number,
    samples,
    wilson,
)
from benchmarks.paper.tables import Rows, column, select

BUDGETS = (20, 40, 80, 160, None)  # numbers of parameters at which the fronts are compared
BETTER = (
    "the fits here are better. Published medians lie between those after our first phase and at "
    "our end (the table of phases), so the authors' second phase may have stopped earlier (not "
    "tested); their gradient changes little (benchmarks/NOTES.md)"
)


def of(rows: Rows, model: str, beta: float | None = None) -> list[dict[str, Any]]:
    """The rows of a model, and of one beta; an error that is no number counts as infinite."""
    chosen = select(rows, model=model, **({} if beta is None else {"beta": beta}))
    return [{**row, "mse": error} for row, error in zip(chosen, column(chosen, "mse"), strict=True)]


def paper_rows() -> Rows:
    """The published runs in the columns of our table."""
    names = {name: f"{name}_inferred" for name in ("h", "beta", "run")}
    names |= {"model": "model", "mse": "mse", "n_params": "n_params_abs_gt_1e-3"}
    runs = select(tables.load("fsir_pareto"), kind="run")
    return [{name: row[theirs] for name, theirs in names.items()} for row in runs]


def front(rows: Rows) -> list[dict[str, Any]]:
    """The non-dominated runs, fewer parameters first: none has as few and a lower error."""
    best: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["n_params"], row["mse"])):
        if math.isfinite(row["mse"]) and (not best or row["mse"] < best[-1]["mse"]):
            best.append(row)
    return best


def dominated(better: Rows, worse: Rows) -> int:
    """Count the points of the front `worse` of which a point of `better` is as small and exact."""
    return sum(
        any(b["n_params"] <= w["n_params"] and b["mse"] <= w["mse"] for b in better) for w in worse
    )


def dominates(better: Rows, worse: Rows) -> bool:
    """Whether for every point of the front `worse` a point of `better` is as small and exact."""
    return dominated(better, worse) == len(worse)


# ---- tables --------------------------------------------------------------------------------------


def by_source(rows: Rows, cells: Callable[[str, Rows], list[str]]) -> list[list[str]]:
    """Lines of a table, a line for a model of each source; `cells` gets model and source."""
    return [
        [model, whose, *cells(model, source)]
        for model in fsir.MODELS
        for whose, source in (("paper", paper_rows()), ("here", rows))
        if of(source, model) and of(rows, model)
    ]


def full_table(rows: Rows) -> str:
    """A line for the paper's runs of a model, and for ours, with 95 % intervals."""

    def cells(model: str, source: Rows) -> list[str]:
        runs, shares = of(source, model), []
        for limit in (0.1, 1.0):
            count = sum(row["mse"] < limit for row in runs)
            low, high = wilson(count, len(runs))
            share = 100 * count / len(runs)
            shares.append(f"{share:.0f} % ({100 * low:.0f} to {100 * high:.0f})")
        by_beta = [middle(column(of(source, model, beta), "mse")) for beta in fsir.BETAS]
        return [str(len(runs)), middle(column(runs, "mse")), *shares, *by_beta]

    header = ["model", "", "runs", "median (95 %)", "below 0.1 (95 %)", "below 1 (95 %)"]
    header += [f"median, beta {beta:g} (95 %)" for beta in fsir.BETAS]
    return f"{table(header, by_source(rows, cells))}\n{budget_table(rows)}\n{phase_table(rows)}"


def least_error(count: int | None) -> Callable[[Rows], float]:
    """The least error of runs with at most `count` parameters; infinite where there are none."""
    return lambda runs: min(
        (r["mse"] for r in runs if count is None or r["n_params"] <= count), default=math.inf
    )


def budget_table(rows: Rows) -> str:
    """The fronts at some numbers of parameters, with 95 % intervals by a bootstrap of the runs."""

    def cells(model: str, source: Rows) -> list[str]:
        runs, errors = of(source, model), map(least_error, BUDGETS)
        return [between(error(runs), bootstrap(error, runs)) for error in errors]

    names = ["any number" if n is None else f"at most {n}" for n in BUDGETS]
    header = ["least error, by parameters that are not 0 (95 %)", "", *names]
    return table(header, by_source(rows, cells))


def phase_table(rows: Rows) -> str:
    """Medians after the first phase and at the end, and the published ones."""
    lines, paper = [], paper_rows()
    for model in fsir.MODELS:
        runs = of(rows, model)
        if runs and "first_mse" in runs[0]:
            count = median([row["iterations"] for row in runs])
            columns = (runs, "first_mse"), (runs, "mse"), (of(paper, model), "mse")
            errors = [middle(column(*name)) for name in columns]
            lines.append([model, *errors, f"{count:.0f}"])
    header = ["median error (95 %)", "here: after the first phase", "here: at the end"]
    header += ["paper: at the end", "here: iterations of the second phase, median"]
    return table(header, lines)


def front_table(rows: Rows) -> str:
    def points(runs: Rows) -> str:
        return " ".join(f"({row['n_params']}, {number(row['mse'])})" for row in front(runs))

    paper, models = paper_rows(), [model for model in fsir.MODELS if of(rows, model)]
    lines = [[model, points(of(paper, model)), points(of(rows, model))] for model in models]
    return table(["model", "paper: non-dominated (parameters, error)", "here"], lines)


def section(rows: Rows) -> str:
    return (
        "Error on the 40 training points (there is no test set), after both phases; a parameter "
        f"counts when it is larger than {fsir.NON_ZERO:g}.\n\n"
        + full_table(rows)
        + "\nIn brackets: 95 % intervals, exact for medians, Wilson's for shares, a bootstrap of "
        "the runs for least errors. No sample has an error below the least that was seen: the "
        "lower ends of the last table are too high.\n\n"
        "The fronts are recomputed here for the paper too: its figure draws parts of convex "
        "hulls.\n\n" + front_table(rows)
    )


# ---- verdicts ------------------------------------------------------------------------------------


def checks(rows: Rows) -> list[Check]:
    """The published code's numbers, Euler's method."""

    def middle_error(model: str, low: float, high: float) -> Check:
        errors = column(select(rows, model=model), "mse")
        return explained(statistic(f"{model}, median", median, errors, low, high), BETTER)

    def below(model: str, limit: float, low: float, high: float) -> Check:
        errors = column(select(rows, model=model), "mse")
        subject, count = f"{model}, share below {limit:g}", sum(error < limit for error in errors)
        return share(subject, count, len(errors), low, high)

    npu, network, published_network = of(rows, "NPU"), of(rows, "Dense"), of(paper_rows(), "Dense")
    return [
        _lowest(rows, "NPU", 0.02),
        middle_error("NPU", 0.07, 0.17),
        below("NPU", 0.1, 0.4, math.inf),
        below("NPU", 1.0, 0.8, math.inf),
        _lowest(rows, "RealNPU", 0.05, FEW),
        middle_error("RealNPU", 1.0, 4.0),
        explained(below("RealNPU", 1.0, -math.inf, 0.3), BETTER),
        _lowest(rows, "Dense", 0.05),
        middle_error("Dense", 0.2, 0.3),
        below("Dense", 1.0, 0.95, math.inf),
        _domination("NPU's front against Dense's, published", npu, published_network),
        _domination("NPU's front against Dense's, here", npu, network),
    ]


def _lowest(rows: Rows, model: str, high: float, count: int | None = None) -> Check:
    """Whether the least error of a model with at most `count` parameters is at most `high`."""
    runs, error = of(rows, model), least_error(count)
    sizes = "" if count is None else f" with at most {count} parameters"
    subject = f"{model}{sizes}, least error"
    return judged(subject, error(runs), bootstrap(error, runs), -math.inf, high)


def _domination(subject: str, better: Rows, worse: Rows) -> Check:
    """Whether the front of some runs dominates that of others, and in which samples of both."""
    points = len(front(worse))
    parts, drawn = [float(dominated(front(better), front(worse))), float(points)], None
    if min(len(better), len(worse)) >= MIN_RUNS:
        pairs = zip(samples(better), samples(worse, 1), strict=True)
        drawn = [dominates(front(b), front(w)) for b, w in pairs]
    return order(f"{subject}: points dominated, of", "all", parts, drawn)


def accurate_checks(rows: Rows) -> list[Check]:
    """Fits by an accurate integrator, not published, are no worse than those by Euler's method."""
    limits = {"NPU": 0.02, "RealNPU": 0.05}
    return [_lowest(rows, model, limit) for model, limit in limits.items() if of(rows, model)]


# ---- the paper's figures and tables --------------------------------------------------------------


def _fronts(rows: Sequence[Rows], models_file: Path) -> str:
    """Medians by model and beta, and least errors by parameters, beside the published runs'."""
    ours, paper = rows[0], paper_rows()
    models = [model for model in fsir.MODELS if of(ours, model)]

    def differ(model: str, beta: float | None, statistic: Callable[[Rows], float]) -> str:
        groups = [of(source, model, beta) for source in (ours, paper)]
        if any(len(runs) < MIN_RUNS for runs in groups):
            return "too few runs"
        drawn = (map(statistic, samples(runs, key)) for key, runs in enumerate(groups))
        mine, theirs = (np.array(list(values)) for values in drawn)
        return compared(mine, theirs)[1]

    def middle_error(runs: Rows) -> float:
        return median([row["mse"] for row in runs])

    medians = [
        (f"{model} {beta:g}", differ(model, beta, middle_error))
        for model in models
        for beta in fsir.BETAS
    ]
    lowest = [
        (f"{model} {'any' if count is None else count}", differ(model, None, least_error(count)))
        for model in models
        for count in BUDGETS
    ]
    of_budgets = verdicts(lowest, "least errors (model and most parameters)")
    return f"{verdicts(medians, 'medians (model and beta)')}; {of_budgets}"


def _weights(rows: Sequence[Rows], models: Path) -> str:
    """The exponents of the unit that multiplies S and I, of the best sparse RealNPU."""
    best = json.loads(models.read_text()).get("sparse RealNPU") if models.exists() else None
    if best is None:
        return "no RealNPU with few parameters"
    exponents = np.array(best["parameters"][: 3 * best["h"]]).reshape(-1, 3)
    s, i, _ = exponents[np.argmax(np.abs(exponents[:, 0] * exponents[:, 1]))]
    theirs = {row["quantity"]: row["value"] for row in tables.load("fsir_weights")}
    paper = f"paper S^{theirs['exponent of S']:.2f} I^{theirs['exponent of I']:.2f}"
    run = f"(error {number(best['mse'])}, {best['n_params']} parameters)"
    return f"{paper}, here S^{s:.2f} I^{i:.2f} {run}; one run each, so no comparison"


ENTRIES = (
    Entry("Figure 4", "error and size of fractional SIR models", _fronts, BETTER),
    Entry(
        "Figure 5",
        "the weights of the best RealNPU",
        _weights,
        "coarse steps: the true exponents are 0.5; `ode.fit` finds them",
    ),
    definitions("Table A1", "models of the fractional SIR task"),
)


# ---- the picture ---------------------------------------------------------------------------------


COLORS = {"NPU": "tab:blue", "RealNPU": "tab:orange", "Dense": "tab:green"}
STATES = {"S": "tab:blue", "I": "tab:red", "R": "tab:green"}


def picture(sources: Sources, path: Path) -> bool:
    """Draw fronts, the best models' predictions, and the weights of the sparsest good RealNPU."""
    drawing, axes = figure(3, 1, 11)
    draw_fronts(axes[0, 0], sources.rows)
    chosen = json.loads(sources.models.read_text())
    trajectories(axes[1, 0], chosen)
    shown = chosen.get("sparse RealNPU", chosen.get("RealNPU"))
    if shown is not None:
        diagram(axes[2, 0], shown)
    headline(
        drawing,
        "The fractional SIR model, learnt by neural ODEs",
        "Read the diagram from the inputs (right) to the derivatives (left): blue adds, red "
        "subtracts.",
    )
    save(drawing, path)
    return True


def draw_fronts(axis: Any, rows: Rows) -> None:
    paper = paper_rows()
    for model, color in COLORS.items():
        for runs, filled in ((rows, True), (paper, False)):
            mine = [row for row in of(runs, model) if row["mse"] < 1e5]
            x, y = [row["n_params"] for row in mine], [row["mse"] for row in mine]
            face, style = (color, "-") if filled else ("none", ":")
            look = {"s": 10, "alpha": 0.6, "edgecolors": color, "linewidths": 0.6}
            axis.scatter(x, y, color=face, **look)
            best, label = front(mine), model if filled else None
            x, y = [row["n_params"] for row in best], [row["mse"] for row in best]
            axis.step(x, y, where="post", color=color, linestyle=style, label=label)
    axis.set(xscale="log", yscale="log", ylim=(1e-3, 1e4))
    axis.set(xlabel="non-zero parameters", ylabel="mean squared error")
    axis.set_xticks([20, 50, 100, 200, 500], ["20", "50", "100", "200", "500"])
    axis.minorticks_off()
    axis.set_title("Lower left is better (dotted lines, hollow points: published)")
    axis.legend()


def trajectories(axis: Any, chosen: dict[str, Any]) -> None:
    """Draw the best model's prediction on the data."""
    name = min((name for name in chosen if name in COLORS), key=lambda name: chosen[name]["mse"])
    best, times = chosen[name], torch.linspace(0, fsir.END, 401, dtype=torch.float64)
    parameters = torch.tensor([best["parameters"]], dtype=torch.float64)
    with torch.no_grad():
        predicted = fsir.predict(best["model"], best["h"], parameters, best["integrator"], times)[0]
    for (state, color), truth, line in zip(STATES.items(), fsir.data().T, predicted.T, strict=True):
        axis.plot(fsir.TIMES.numpy(), truth.numpy(), "o", color=color, markersize=3)
        axis.plot(times.numpy(), line.numpy(), color=color, label=state)
    axis.set(xlabel="time", ylabel="group's share of the population (%)")
    axis.set_title(f"Points: data. Lines: the best model, {name}, {best['h']} hidden units")
    axis.legend()


def diagram(axis: Any, best: dict[str, Any]) -> None:
    """The layers from right to left: inputs, gates, powers, the NAU's weights, derivatives."""
    parameters = torch.tensor([best["parameters"]], dtype=torch.float64)
    weight_re, gate, weight = (part[0] for part in fsir.split("RealNPU", best["h"], parameters))
    used = [j for j in range(best["h"]) if bool((weight[:, j].abs() > fsir.NON_ZERO).any())]
    axis.set_axis_off()
    size = f"{best['n_params']} parameters, mean squared error {best['mse']:.3g}"
    axis.set_title(f"A RealNPU: {size}")

    def height(index: int, count: int) -> float:
        return 1 - (index + 0.5) / max(1, count)

    for i, name in enumerate(fsir.NAMES):
        axis.text(2.05, height(i, 3), f"{name}\ngate {float(gate[i]):.2f}", va="center")
        axis.text(-0.05, height(i, 3), f"d{name}/dt", va="center", ha="right")
    for rank, j in enumerate(used):
        y = height(rank, len(used))
        axis.plot(1, y, "o", color="black", markersize=4)
        for i in range(3):
            power = float(weight_re[j, i] * (gate[i].abs() > fsir.NON_ZERO))
            for value, start, end in (
                (float(weight[i, j]), (0.0, height(i, 3)), (0.95, y)),
                (power, (1.05, y), (2.0, height(i, 3))),
            ):
                if abs(value) <= fsir.NON_ZERO:
                    continue
                color, width = "tab:red" if value < 0 else "tab:blue", min(1.0, abs(value))
                axis.plot(*zip(start, end, strict=True), color=color, linewidth=0.5 + 2.5 * width)
                share = 0.2 if start[0] > 0.5 else 0.8  # near the unit: no two texts meet
                x, height_of_text = (start[k] + share * (end[k] - start[k]) for k in (0, 1))
                axis.text(x, height_of_text, f"{value:.3g}", ha="center", va="bottom")
    axis.set(xlim=(-0.4, 2.5), ylim=(0, 1))
