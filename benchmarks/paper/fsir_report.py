"""What the report says about the fractional SIR experiment: fronts, the paper beside ours, equations, verdicts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.paper import fsir, fsir_equation, published
from benchmarks.paper.runner import Batch
from benchmarks.paper.summary import median, number
from npu_kernels import NAU, NPU, RealNPU, files

Rows = Sequence[dict[str, Any]]
# Beside a table: its best models, for equations and pictures.
MODELS_FILES = {
    "fsir": "fsir_models.json",
    "fsir-rk4": "fsir_rk4_models.json",
    "fsir-equation": "fsir_equation_models.json",
}
FEW = 20  # parameters; what counts as a very sparse model


def share_below(rows: Rows, limit: float) -> float:
    return sum(row["mse"] < limit for row in rows) / max(1, len(rows))


def of(rows: Rows, model: str, beta: float | None = None) -> list[dict[str, Any]]:
    """The rows of a model, and of one beta if given; an error that is no number counts as infinite."""
    chosen = [row for row in rows if row["model"] == model and (beta is None or row["beta"] == beta)]
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
    return sum(any(b["n_params"] <= w["n_params"] and b["mse"] <= w["mse"] for b in better) for w in worse)


def dominates(better: Rows, worse: Rows) -> bool:
    """Whether every point of one front has one of the other with no more parameters and no greater error."""
    return dominated(better, worse) == len(worse)


# ---- tables --------------------------------------------------------------------------------------------------------


def table(rows: Rows) -> str:
    """The paper beside ours, a line per model."""
    from benchmarks.paper.report import table as markdown

    lines = []
    paper = paper_rows()
    for model in fsir.MODELS:
        theirs, ours = of(paper, model), of(rows, model)
        if not ours:
            continue

        def beside(statistic: Callable[[Rows], str], theirs: Rows = theirs, ours: Rows = ours) -> str:
            return f"{statistic(theirs)} / {statistic(ours)}"

        lines.append(
            [
                model,
                str(len(ours)),
                beside(lambda r: number(min(row["mse"] for row in r))),
                beside(lambda r: number(median([row["mse"] for row in r]))),
                beside(lambda r: f"{100 * share_below(r, 0.1):.0f} %"),
                beside(lambda r: f"{100 * share_below(r, 1.0):.0f} %"),
                *(
                    f"{number(median([r['mse'] for r in of(paper, model, beta)]))} / "
                    f"{number(median([r['mse'] for r in of(rows, model, beta)]))}"
                    for beta in fsir.BETAS
                ),
            ]
        )
    header = ["model, paper / here", "runs", "least error", "median", "below 0.1", "below 1"]
    return markdown(header + [f"median, beta {beta:g}" for beta in fsir.BETAS], lines)


def front_table(rows: Rows) -> str:
    from benchmarks.paper.report import table as markdown

    def points(found: Rows) -> str:
        return " ".join(f"({row['n_params']}, {number(row['mse'])})" for row in front(found))

    paper = paper_rows()
    lines = [[model, points(of(paper, model)), points(of(rows, model))] for model in fsir.MODELS if of(rows, model)]
    return markdown(["model", "paper: non-dominated (parameters, error)", "here"], lines)


def section(rows: Rows) -> str:
    return (
        "Error on the 40 training points (there is no test set), after both phases; a parameter counts when it is "
        f"larger than {fsir.NON_ZERO:g}.\n\n"
        + table(rows)
        + "\nThe fronts are recomputed here for the paper too: its figure draws parts of convex hulls.\n\n"
        + front_table(rows)
    )


# ---- verdicts ------------------------------------------------------------------------------------------------------


def checks(rows: Rows) -> list[published.Check]:
    """The published code's numbers, Euler's method."""
    at_most, within = published._at_most, published._within

    def errors(model: str, beta: float | None = None) -> list[float]:
        return [row["mse"] for row in of(rows, model, beta)]

    def share(model: str, limit: float) -> float:
        return share_below(of(rows, model), limit)

    sparse = [row["mse"] for row in of(rows, "RealNPU") if row["n_params"] <= FEW]
    fronts = {model: front(of(rows, model)) for model in fsir.MODELS}
    return [
        at_most("NPU, least error", min(errors("NPU")), 0.02),
        published._statistic("NPU, median", median, errors("NPU"), 0.07, 0.17),
        within("NPU, share below 0.1", share("NPU", 0.1), 0.4, math.inf),
        within("NPU, share below 1", share("NPU", 1.0), 0.8, math.inf),
        at_most(f"RealNPU with at most {FEW} parameters, least error", min(sparse, default=math.inf), 0.05),
        published._statistic("RealNPU, median", median, errors("RealNPU"), 1.0, 4.0),
        at_most("RealNPU, share below 1", share("RealNPU", 1.0), 0.3),
        at_most("Dense, least error", min(errors("Dense")), 0.05),
        published._statistic("Dense, median", median, errors("Dense"), 0.2, 0.3),
        within("Dense, share below 1", share("Dense", 1.0), 1.0, math.inf),
        _domination("NPU's front against Dense's, published", fronts["NPU"], front(of(paper_rows(), "Dense"))),
        _domination("NPU's front against Dense's, here", fronts["NPU"], fronts["Dense"]),
    ]


def _domination(what: str, better: Rows, worse: Rows) -> published.Check:
    found = f"{dominated(better, worse)} of {len(worse)} points"
    return published.Check(what, "dominates it", found, dominates(better, worse))


def accurate_checks(rows: Rows) -> list[published.Check]:
    """With an accurate integrator nothing is published; the fits should be no worse than those by Euler's method."""
    return [
        published._at_most(f"{model}, least error", min(row["mse"] for row in of(rows, model)), limit)
        for model, limit in (("NPU", 0.02), ("RealNPU", 0.05))
        if of(rows, model)
    ]


# ---- the search for the equation -------------------------------------------------------------------------------------


def fits(row: dict[str, Any]) -> bool:
    """Whether a start has come within the data's error, over the whole trajectory."""
    return bool(row["error"] <= fsir_equation.LIMIT)


def search_table(rows: Rows) -> str:
    from benchmarks.paper.report import table as markdown

    lines = []
    for h in sorted({row["h"] for row in rows}):
        mine = [row for row in rows if row["h"] == h]
        right = [row for row in mine if row["found"]]
        lines.append(
            [
                str(h),
                str(len(mine)),
                number(min(row["error"] for row in mine)),
                f"{sum(map(fits, mine))} ({100 * sum(map(fits, mine)) / len(mine):.0f} %)",
                f"{len(right)} ({100 * len(right) / len(mine):.0f} %)",
                number(max(row["exponent_error"] for row in right)) if right else "-",
                f"{100 * max(row['rate_error'] for row in right):.2g} %" if right else "-",
            ]
        )
    header = ["width", "starts", "least error", "fit the data", "are the equation", "exponents off", "rates off"]
    return markdown(header, lines)


def equation_search_section(rows: Rows) -> str:
    return (
        "From the 40 points alone, by the classic Runge-Kutta method: fit, prune, refit, as "
        "`benchmarks/paper/fsir_equation.py` says. A start fits if its whole trajectory is within "
        f"{fsir_equation.DATA_ERROR / 2:g} of the data (root mean square), half the data's own greatest error. It is "
        "the equation if exactly the right weights are not zero, every exponent is within 0.001 and every rate within "
        "1 %; the last columns are the worst of those starts.\n\n" + search_table(rows)
    )


def equation_search_checks(rows: Rows) -> list[published.Check]:
    right = [row for row in rows if row["found"]]
    fitting = [row for row in rows if fits(row)]
    chosen = min(fitting, key=lambda row: (row["h"], row["n_params"], row["error"]), default=None)
    return [
        published._within("starts that are the equation", len(right), 1, math.inf),
        published._at_most("what the search returns: exponents off", _error(chosen, "exponent_error"), 1e-3),
        published._at_most("what the search returns: rates off", _error(chosen, "rate_error"), 0.01),
    ]


def _error(row: dict[str, Any] | None, name: str) -> float:
    return math.inf if row is None else row[name]


# ---- the models behind the rows ------------------------------------------------------------------------------------


def module(model: str, h: int, parameters: Tensor) -> nn.Sequential:
    """A power model's parameters ``[N]`` as the package's layers."""
    parts = fsir.split(model, h, parameters.detach().double().unsqueeze(0))
    kind = NPU if model == "NPU" else RealNPU
    power = kind(3, h, dtype=torch.float64)
    nau = NAU(h, 3, dtype=torch.float64, clip=False)
    with torch.no_grad():
        for own, part in zip([*power.parameters(), nau.weight], parts, strict=True):
            own.copy_(part[0].view_as(own))
    return nn.Sequential(power, nau)


def equations(model: str, h: int, parameters: Tensor, digits: int = 4) -> list[str]:
    """dS/dt, dI/dt, dR/dt of a power model in words, for states that are not negative; empty without sympy."""
    try:
        from npu_kernels.formula import read

        pruned = torch.where(parameters.abs() > fsir.NON_ZERO, parameters, 0.0)
        names = [f"d{name}/dt" for name in fsir.NAMES]
        formula = read(module(model, h, pruned), list(fsir.NAMES), outputs=names, positive=True)
    except ImportError:
        return []
    return formula.text(digits).splitlines()


def keep_best(results: Sequence[tuple[Batch, dict[str, Any]]], path: Path) -> None:
    """Write the parameters of each model's best run, and of the best RealNPU with few parameters.

    Of a search for the equation the choice is that of somebody who does not know it: the smallest width that fits, and
    there the fewest parameters.
    """
    chosen: dict[str, dict[str, Any]] = {}
    if results[0][0].experiment == "fsir-equation":
        found = [
            pair for _, result in results for pair in zip(result["rows"], result["tensors"]["parameters"], strict=True)
        ]
        fitting = [pair for pair in found if fits(pair[0])]
        if fitting:
            row, parameters = min(fitting, key=lambda pair: (pair[0]["h"], pair[0]["n_params"], pair[0]["error"]))
            chosen["found"] = {**row, "mse": row["error"], "parameters": parameters.tolist()}
        files.write(path, json.dumps(chosen, indent=1))
        return
    for batch, result in results:
        for row, parameters in zip(result["rows"], result["tensors"]["parameters"], strict=True):
            names = [row["model"]]
            if row["model"] == "RealNPU" and row["n_params"] <= FEW:
                names.append("sparse RealNPU")
            for name in names:
                if row["mse"] < chosen.get(name, {"mse": math.inf})["mse"]:
                    keep = {"integrator": batch.settings["integrator"], "parameters": parameters.tolist()}
                    chosen[name] = {**row, **keep}
    files.write(path, json.dumps(chosen, indent=1))


def equation_section(path: Path) -> str:
    """The best RealNPU's equation beside the true one; nothing where the models are not at hand."""
    if not path.exists():
        return ""
    chosen = json.loads(path.read_text())
    parts = []
    if "found" in chosen:
        best = chosen["found"]
        lines = equations("RealNPU", best["h"], torch.tensor(best["parameters"], dtype=torch.float64), 6)
        if lines:
            what = f"h {best['h']}, start {best['start']}, error {number(best['error'])}, {best['n_params']} parameters"
            parts.append(f"What the search returns ({what}):\n\n" + "\n".join(f"    {line}" for line in lines) + "\n")
    best = chosen.get("sparse RealNPU")  # nobody can read more
    if best is not None:
        lines = equations("RealNPU", best["h"], torch.tensor(best["parameters"], dtype=torch.float64))
        if lines:
            title = f"The best RealNPU with at most {FEW} parameters"
            what = f"h {best['h']}, beta {best['beta']:g}, error {number(best['mse'])}, {best['n_params']} parameters"
            parts.append(f"{title} ({what}):\n\n" + "\n".join(f"    {line}" for line in lines) + "\n")
    if not parts:
        return ""
    true = equations("RealNPU", 3, fsir.truth()[0])
    return "\n".join([*parts, "The true equation:\n", *(f"    {line}" for line in true)]) + "\n"
