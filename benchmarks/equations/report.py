"""Tables of the rows, the rates that others have published, and a picture."""

from __future__ import annotations

import itertools
import statistics
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.equations.baselines import BASELINES
from benchmarks.equations.known_equations import OTHERS, equations_of
from benchmarks.marked_blocks import insert
from benchmarks.marked_blocks import table as markdown_table

Row = dict[str, Any]

METHODS = ("NPURegressor", "logarithms", *BASELINES)
NAMES = {"logarithms": "least squares of logarithms"}
TITLES = {
    "a": "one product", "ad": "one product, two columns more",
    "b": "sum", "bd": "sum, two columns more",
    "c1": "power of a sum", "c1d": "power of a sum, two columns more", "sum": "random sum",
    "ratio": "ratio of sums", "dratio": "random ratio of sums",
    "srsd": "SRSD", "srsdf": "SRSD, functions", "srsdd": "SRSD, dummy columns",
    "srsdr": "SRSD, ratios", "srsdm": "SRSD, more than four terms",
    "wild": "product or sum, outliers",
}  # fmt: skip
WHOLE_SRSD = "srsd", "srsdf", "srsdr", "srsdm"  # with `OTHERS`, all equations of SRSD
SHOWN_NOISES = (0.0, 0.01)  # in the picture
ROUNDING = 0.01  # of criteria
PLANNED_SEEDS = 10  # of the whole benchmark
EACH = Counter(equation.kind for equation in equations_of(0))

# Shares of equations found: method, noise, of one product, of a sum, of a power of a sum; and who
# published them.
PUBLISHED = (
    ("AI Feynman", 0.0, 86, 44, 51, "SRBench"),
    ("Operon", 0.0, 46, 7, 3, "SRBench"),
    ("the best of all methods", 0.01, 28, 12, 13, "SRBench"),
    ("PhySO, with units", 0.01, 100, 56, 43, "PhySO"),
)
SOURCES = {
    "SRBench": "La Cava et al., NeurIPS Datasets and Benchmarks 2021",
    "PhySO": "Tenachi et al., Astrophysical Journal 2023, results in its repository",
}


def cell_rows(rows: Sequence[Row], kind: str, noise: float, method: str) -> list[Row]:
    """The rows of one cell of the table."""
    return [r for r in rows if (r["class"], r["noise"], r["method"]) == (kind, noise, method)]


def incomplete(group: Sequence[Row]) -> bool:
    """Whether a cell lacks equations of its class for a seed that was begun."""
    return len(group) < EACH[group[0]["class"]] * len({row["seed"] for row in group})


def table(rows: Sequence[Row]) -> str:
    """The shares found and the median CPU times, as Markdown, of the classes in `TITLES`."""
    rows = [row for row in rows if row["class"] in TITLES]
    sizes = " or ".join(map(str, sorted({row["rows"] for row in rows})))
    seeds = ", ".join(map(str, sorted({row["seed"] for row in rows})))
    methods = [m for m in METHODS if any(row["method"] == m for row in rows)]
    lines = [
        f"{sizes} rows; seeds: {seeds}; one thread. Planned: the number of equations times "
        f"{PLANNED_SEEDS} seeds; a star marks",
        "a cell that lacks equations of a seed. In brackets: median CPU time in seconds; "
        "median size in terms,",
        "for gplearn and pyoperon in nodes of a tree. Not distinguishable: equations that were not",
        "found, whose BIC on these rows is no larger than the true equation's.\n",
        "| | noise | planned | " + " | ".join(NAMES.get(m, f"`{m}`") for m in methods) + " |",
        "| --- | --- | --- |" + " --- |" * len(methods),
    ]
    for kind, noise in sorted({(row["class"], row["noise"]) for row in rows}):
        cells = [_cell(cell_rows(rows, kind, noise, method)) for method in methods]
        planned = PLANNED_SEEDS * EACH[kind]
        lines.append(f"| {TITLES[kind]} | {noise:g} | {planned} | " + " | ".join(cells) + " |")
    whole = of_srsd(rows)
    return "\n".join([*lines, *(["", whole] if whole else [])])


def of_srsd(rows: Sequence[Row]) -> str:
    """How many of all equations of SRSD were found: a sentence for each noise, of whole seeds."""
    ours = [row for row in rows if row["class"] in WHOLE_SRSD and row["method"] == METHODS[0]]
    each, sentences = sum(EACH[kind] for kind in WHOLE_SRSD), list[str]()
    for noise in sorted({row["noise"] for row in ours}):
        seeds: dict[int, list[bool]] = {}
        for row in ours:
            if row["noise"] == noise:
                seeds.setdefault(row["seed"], []).append(row["found"])
        found = [sum(each_seed) for each_seed in seeds.values() if len(each_seed) == each]
        if found:
            error = f"with noise of {noise:g}" if noise else "without noise"
            sentences.append(f"{', '.join(map(str, found))} {error}")
    if not sentences:
        return ""
    total = each + sum(len(names.split()) for names in OTHERS.values())
    numbers = "; ".join(sentences)
    return f"Of the {total} equations of SRSD, `{METHODS[0]}` found, by seed: {numbers}."


def not_told_apart(row: Row) -> bool:
    """Whether an equation that was not found is as good as the equation by its criterion."""
    bic, truth = row.get("bic"), row.get("truth_bic")
    return bic is not None and truth is not None and bic <= truth + ROUNDING


def _cell(group: Sequence[Row]) -> str:
    if not group:
        return ""
    seconds, size = ([row[key] for row in group] for key in ("seconds", "terms"))
    star = "\\*" if incomplete(group) else ""
    share = f"{sum(row['found'] for row in group)} of {len(group)}{star}"
    undecided = sum(map(not_told_apart, group))
    share += f", {undecided} not distinguishable" if undecided else ""
    return f"{share} ({statistics.median(seconds):.2g} s; {statistics.median(size):g})"


def published() -> str:
    """The rates of others, as Markdown."""
    header = ["method", "noise", "one product", "sum", "power of a sum", "source"]
    lines = [
        [name, f"{noise:g}", *(f"{share} %" for share in shares), source]
        for name, noise, *shares, source in PUBLISHED
    ]
    return "\n".join([markdown_table(header, lines), *(f"{n}: {s}." for n, s in SOURCES.items())])


def picture(rows: Sequence[Row], path: Path) -> None:
    """Draw the shares found without noise and with 1 % as numbers in coloured cells.

    Its rows are classes of equations, its columns programs. What was not run is grey.
    """
    from benchmarks.drawing import figure, headline, save

    methods = [m for m in METHODS if any(row["method"] == m for row in rows)]
    drawing, axes = figure(1, len(SHOWN_NOISES), 0.27 * len(TITLES) + 1.9, share="row")
    for axis, noise in zip(axes[0], SHOWN_NOISES, strict=True):
        shares = np.full((len(TITLES), len(methods)), np.nan)
        for (y, kind), (x, method) in itertools.product(enumerate(TITLES), enumerate(methods)):
            if cell := cell_rows(rows, kind, noise, method):
                shares[y, x] = 100 * sum(row["found"] for row in cell) / len(cell)
        axis.set_facecolor("0.85")
        axis.imshow(shares, cmap="Blues", vmin=0, vmax=130, aspect="auto")
        for y, x in zip(*np.nonzero(~np.isnan(shares)), strict=True):
            color = "white" if shares[y, x] > 80 else "black"
            axis.text(x, y, f"{shares[y, x]:.0f}", ha="center", va="center", color=color)
        axis.set_xticks(range(len(methods)), [textwrap.fill(NAMES.get(m, m), 14) for m in methods])
        axis.tick_params("x", rotation=90)
        axis.set_yticks(range(len(TITLES)), list(TITLES.values()))
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set_title("no noise" if noise == 0 else f"noise of {100 * noise:g} %")
    headline(drawing, "Equations found (%)", "Grey: not run.")
    save(drawing, path)


def page(text: str, rows: Sequence[Row]) -> str:
    """A page with both tables."""
    return insert(insert(text, table(rows), "equations"), published(), "published")
