"""The Markdown report: the paper beside ours, difference, verdict, pictures. Made from the tables in the folder alone.

`insert` puts the short tables into another Markdown file, between ``<!-- paper: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper import (
    fitted_report,
    fsir_report,
    gradient_surface,
    large,
    pictures,
    published,
    simple,
    single_module_report,
    tables,
)
from benchmarks.paper.published import SIGNS, Check
from benchmarks.paper.summary import mad, mean, median, number, standard_error
from npu_kernels import files

Rows = Sequence[dict[str, Any]]
FILES = {
    "gradient-surface": "gradient_surface.csv",
    "simple": "simple.csv",
    "large": "large.csv",
    "fsir": "fsir.csv",
    "fsir-rk4": "fsir_rk4.csv",
    "fsir-equation": "fsir_equation.csv",
    "single-module": "single_module.csv",
    "fitted": "fitted.csv",
}
SOLVED = 0.01  # of the mean size of the right answers on the test grid


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *lines]) + "\n"


def plus_minus(centre: float, spread: float) -> str:
    return number(centre) if math.isnan(spread) else f"{number(centre)} ± {number(spread, 2)}"


def verdicts(checks: Sequence[Check]) -> str:
    """The acceptance numbers, those that are not reached first."""
    reached, near = (sum(getattr(check, name) for check in checks) for name in ("reached", "near"))
    text = f"{reached} of {len(checks)} reached" + (f", {near} missed within the error of these runs" if near else "")
    text += ". In brackets: the 95 % interval of the statistic.\n\n"
    lines = [
        [check.what, check.wanted, check.found, check.verdict]
        for check in sorted(checks, key=lambda check: (check.reached, check.near))
    ]
    return text + table(["number", "wanted", "found", "verdict"], lines)


# ---- the experiments ---------------------------------------------------------------------------------------------


def gradient_surface_table(rows: Rows) -> str:
    lines = []
    for panel in gradient_surface.PANELS:
        line = [panel]
        for inputs in gradient_surface.INPUTS:
            cell = [row for row in rows if row["panel"] == panel and row["inputs"] == inputs]
            medians = [row["median"] for row in cell]
            flat = 100 * mean([row["flat_share"] for row in cell])
            line += [f"{number(min(medians))} to {number(max(medians))}", f"{flat:.0f} %"]
        lines.append(line)
    header = [
        "layer",
        "x2 ~ U(-0.05, 0.05): median gradient",
        "below 0.1",
        "x2 ~ U(0, 0.05): median gradient",
        "below 0.1",
    ]
    return table(header, lines)


def gradient_surface_section(rows: Rows) -> str:
    return (
        "The norm of the gradient over w2 > 0.75, where the figure shows the NaiveNPU's plateau; least and largest of "
        f"{len({row['seed'] for row in rows})} draws of 32 rows.\n\n"
        + gradient_surface_table(rows)
        + "\nThe plateau belongs to the inputs of the published figure, U(-0.05, 0.05): there the powers of negative "
        "and positive inputs cancel. With the inputs of the text, U(0, 0.05), the NaiveNPU has no plateau, and its "
        "gradient is hardly smaller than that of an NPU with gates 0.5. With gates (1, 0) the second input and w2 drop "
        "out altogether, whatever the inputs.\n"
    )


def solved_below(task: str) -> float:
    """The error below which a run of the simple task counts as a success: 1 % of the answers' mean size."""
    index = simple.TASKS.index(task)
    return SOLVED * float(simple.targets(simple.grid(task))[:, index].abs().mean())


def simple_lines(rows: Rows) -> Iterable[list[str]]:
    paper = {(row["task"], row["model"]): row for row in published.load("simple")}
    for task in simple.TASKS:
        for model in simple.RECIPES:
            values = [row[task] for row in rows if row["model"] == model]
            if not values:
                continue
            theirs = paper[task, model]
            centre, spread = mean(values), standard_error(values)
            apart = (centre - theirs["centre"]) / math.hypot(spread, theirs["spread"])
            yield [
                SIGNS[task],
                model,
                plus_minus(theirs["centre"], theirs["spread"]),
                plus_minus(centre, spread),
                f"{centre - theirs['centre']:+.3g}" + ("" if math.isnan(apart) else f" ({apart:+.1f} σ)"),
                plus_minus(median(values), mad(values)),
                f"{100 * mean([value < solved_below(task) for value in values]):.0f} %",
            ]


def simple_table(rows: Rows) -> str:
    header = ["task", "model", "paper: mean ± s.e.", "here: mean ± s.e.", "difference", "here: median ± MAD", "solved"]
    return table(header, simple_lines(rows))


def simple_section(rows: Rows) -> str:
    limits = ", ".join(f"{SIGNS[task]} {number(solved_below(task))}" for task in simple.TASKS)
    return (
        "Mean absolute error outside of the training range, Table A2 of the paper. Its caption says median and MAD, "
        "its numbers are mean and standard error (σ: of the difference). A run has solved a task when its error is "
        f"below 1 % of the answers' mean size ({limits}). NPU and RealNPU of one seed give the same numbers: the "
        "imaginary weights start at 0 and no training input is negative, so their gradient is exactly 0.\n\n"
        + simple_table(rows)
    )


def large_lines(rows: Rows) -> Iterable[list[str]]:
    paper = {(r["task"], r["model"]): r for r in published.load("large") if r["metric"] == "test_mse"}
    for task in SIGNS:
        for model in large.MODELS:
            cell = [row for row in rows if row["task"] == task and row["model"] == model]
            if not cell:
                continue
            theirs = paper[task, model]
            chosen = published.shown(rows, task, model)
            values = [row["test_mse"] for row in chosen]
            every = [math.inf if math.isnan(row["test_mse"]) else row["test_mse"] for row in cell]
            counts = [row["n_params"] for row in chosen]
            yield [
                SIGNS[task],
                model,
                plus_minus(theirs["median"], theirs["mad"]),
                plus_minus(median(values), mad(values)),
                number(median(values) / theirs["median"], 2),
                plus_minus(median(every), mad(every)),
                f"{theirs['median_n_params']:.0f} ({theirs['min_n_params']}-{theirs['max_n_params']})",
                f"{median(counts):.0f} ({min(counts, default=0)}-{max(counts, default=0)})",
                str(len(cell)),
            ]


def large_table(rows: Rows) -> str:
    header = [
        "task",
        "model",
        "paper: best 10",
        "here: best 10",
        "here / paper",
        "here: all runs",
        "paper: parameters",
        "here: parameters",
        "runs",
    ]
    return table(header, large_lines(rows))


def large_section(rows: Rows) -> str:
    return (
        "Test error, median ± MAD, Table 1 of the paper: of the ten runs with the lowest test error, as its authors "
        "chose without saying so, and of all runs. Parameters: how many are greater than 0.01 in size, median and "
        "range of those ten; the paper's are those of its Pareto figure.\n\n" + large_table(rows) + "\n"
        "How many runs the authors chose the NPU's ten from is not known: an earlier version of their scripts made "
        "100, of which the best ten have a median at the 5th percentile. The least of the NPU's runs here is "
        f"{number(_least(rows, 'mul', 'NPU'))} on × and {number(_least(rows, 'div', 'NPU'))} on ÷. The NALU's runs "
        "on × may have been made without a penalty; a training error of 181 is here that of an output that stays 0.\n"
    )


def _least(rows: Rows, task: str, model: str) -> float:
    """The least test error of a cell, nan without runs."""
    return min((row["test_mse"] for row in rows if row["task"] == task and row["model"] == model), default=math.nan)


SECTIONS: dict[str, tuple[str, Callable[[Rows], str], Callable[[Rows], list[Check]]]] = {
    "gradient-surface": (
        "The relevance gate: gradient surface",
        gradient_surface_section,
        published.gradient_surface_checks,
    ),
    "simple": ("Simple arithmetic task", simple_section, published.simple_checks),
    "large": ("Large scale arithmetic task", large_section, published.large_checks),
    "fsir": ("Fractional SIR model", fsir_report.section, fsir_report.checks),
    "fsir-rk4": ("Fractional SIR model, accurate integrator", fsir_report.section, fsir_report.accurate_checks),
    "single-module": (
        "The field's single-module benchmark",
        single_module_report.section,
        single_module_report.checks,
    ),
    "fitted": ("The arithmetic tasks with `npu_kernels.fit`", fitted_report.section, fitted_report.checks),
    "fsir-equation": (
        "Fractional SIR model: the equation itself",
        fsir_report.equation_search_section,
        fsir_report.equation_search_checks,
    ),
}
SHORT_TABLES = {
    "gradient-surface": gradient_surface_table,
    "simple": simple_table,
    "large": large_table,
    "fsir": fsir_report.table,
    "fsir-equation": fsir_report.search_table,
    "single-module": single_module_report.short_table,
    "fitted": fitted_report.short_table,
}


def write(folder: Path) -> Path:
    """Make report.md from the tables that are there; returns its path."""
    parts = [
        '# "Neural Power Units", reproduced\n',
        "Made by `python -m benchmarks.paper`; every number comes from the tables in this folder. A run's numbers "
        "depend on its seed alone, not on the runs beside it or on the number of processes; another processor or "
        "version of torch rounds differently, which training amplifies.\n",
    ]
    for name, (title, section, check) in SECTIONS.items():
        path = folder / FILES[name]
        if not path.exists():
            continue
        comments, rows = tables.read(path)
        parts += [f"## {title}\n", "\n".join(f"- {comment}" for comment in comments) + "\n", section(rows)]
        if name in fsir_report.MODELS_FILES:
            parts.append(fsir_report.equation_section(folder / fsir_report.MODELS_FILES[name]))
        picture = pictures.drawn(name, folder)
        if picture is not None:
            parts.append(f"![{title}]({picture})\n")
        parts.append("### Verdict\n")
        judged = is_full(comments)
        parts.append(
            verdicts(check(rows)) if judged else "None: the paper's numbers are for variant code and all steps.\n"
        )
    path = folder / "report.md"
    files.write(path, "\n".join(parts))
    return path


def is_full(comments: Sequence[str]) -> bool:
    """Whether a table is of complete, full runs of the authors' code: only then the paper's numbers are asked of it."""
    text = " ".join(comments)
    return not any(word in text for word in ("variant paper", "quick", "incomplete"))


def insert(folder: Path, target: Path) -> list[str]:
    """Put the tables into a Markdown file, between its marks; returns the names of those it has marks for."""
    text, names = target.read_text(encoding="utf-8"), []
    for name, make in SHORT_TABLES.items():
        pattern = re.compile(rf"(<!-- paper: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        path = folder / FILES[name]
        if pattern.search(text) and path.exists():
            content = make(tables.read(path)[1])
            text = pattern.sub(lambda match, content=content: match[1] + content + match[2], text)  # type: ignore[misc]
            names.append(name)
    files.write(target, text)
    return names
