"""Tables of the rows, the rates that others have published, and a picture."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.blocks import insert
from benchmarks.equations.laws import LAWS, SUMS, with_dummies
from benchmarks.equations.rivals import RIVALS
from benchmarks.equations.srsd import SRSD, mixed

Row = dict[str, Any]

METHODS = ("NPURegressor", "logarithms", *RIVALS)
NAMES = {"logarithms": "least squares of logarithms"}
TITLES = {
    "a": "one product", "ad": "one product, two columns more",
    "b": "sum", "bd": "sum, two columns more",
    "c1": "power of a sum", "c1d": "power of a sum, two columns more", "sum": "drawn sum",
    "srsd": "SRSD", "srsdd": "SRSD, dummy columns",
}  # fmt: skip
ROUNDING = 0.01  # of criteria
PLANNED_SEEDS = 10  # of the whole benchmark
EACH = Counter(
    [law.kind for law in (*LAWS, *map(with_dummies, LAWS), *SRSD, *map(mixed, SRSD))]
    + ["sum"] * SUMS
)

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
    """The shares found and the median processor times, as Markdown, of the classes in `TITLES`."""
    rows = [row for row in rows if row["class"] in TITLES]
    sizes = " or ".join(map(str, sorted({row["rows"] for row in rows})))
    seeds = ", ".join(map(str, sorted({row["seed"] for row in rows})))
    methods = [m for m in METHODS if any(row["method"] == m for row in rows)]
    lines = [
        f"{sizes} rows; seeds: {seeds}; one thread. Planned: the number of equations times "
        f"{PLANNED_SEEDS} seeds; a star marks",
        "a cell that lacks equations of a seed. In brackets: median processor time in seconds; "
        "median size in terms,",
        "for gplearn and pyoperon in nodes of a tree. Not told apart: those not found whose "
        "criterion (BIC) on these",
        "rows is no larger than the law's.",
        "",
        "| | noise | planned | " + " | ".join(NAMES.get(m, f"`{m}`") for m in methods) + " |",
        "| --- | --- | --- |" + " --- |" * len(methods),
    ]
    for kind, noise in sorted({(row["class"], row["noise"]) for row in rows}):
        cells = [_cell(cell_rows(rows, kind, noise, method)) for method in methods]
        planned = PLANNED_SEEDS * EACH[kind]
        lines.append(f"| {TITLES[kind]} | {noise:g} | {planned} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def not_told_apart(row: Row) -> bool:
    """Whether an equation that was not found is as good as the law by its criterion."""
    bic, truth = row.get("bic"), row.get("truth_bic")
    return bic is not None and truth is not None and bic <= truth + ROUNDING


def _cell(group: Sequence[Row]) -> str:
    if not group:
        return ""
    seconds, size = ([row[key] for row in group] for key in ("seconds", "terms"))
    star = "\\*" if incomplete(group) else ""
    share = f"{sum(row['found'] for row in group)} of {len(group)}{star}"
    undecided = sum(map(not_told_apart, group))
    share += f", {undecided} not told apart" if undecided else ""
    return f"{share} ({statistics.median(seconds):.2g} s; {statistics.median(size):g})"


def published() -> str:
    """The rates of others, as Markdown."""
    lines = [
        "| method | noise | one product | sum | power of a sum | source |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {name} | {noise:g} | {a} % | {b} % | {c} % | {source} |"
            for name, noise, a, b, c, source in PUBLISHED
        ),
        "",
        *(f"{name}: {text}." for name, text in SOURCES.items()),
    ]
    return "\n".join(lines)


def picture(rows: Sequence[Row], path: Path) -> None:
    """Draw the share found over the noise, a panel for each class with several noises."""
    from benchmarks.paper.drawing import figure, headline, save
    from benchmarks.paper.summary import wilson

    noises = sorted({row["noise"] for row in rows})
    kinds = [k for k in TITLES if len({row["noise"] for row in rows if row["class"] == k}) > 1]
    drawing, axes = figure(1, len(kinds), (2.6 * len(kinds) + 1, 3.6), share=True)
    methods = [m for m in METHODS if any(row["method"] == m for row in rows)]
    for axis, kind in zip(axes[0], kinds, strict=True):
        for k, method in enumerate(methods):
            groups = {n: cell_rows(rows, kind, n, method) for n in noises}
            groups = {n: group for n, group in groups.items() if group}
            counts = [(sum(row["found"] for row in g), len(g)) for g in groups.values()]
            shares = [count / total for count, total in counts]
            bounds = [wilson(*pair) for pair in counts]
            error = [
                [max(0.0, s - low) for s, (low, _) in zip(shares, bounds, strict=True)],
                [max(0.0, high - s) for s, (_, high) in zip(shares, bounds, strict=True)],
            ]
            x = [noises.index(n) + 0.07 * (k - (len(methods) - 1) / 2) for n in groups]
            if groups:
                look = {"fmt": "o-", "capsize": 2, "color": f"C{k}"}
                axis.errorbar(x, shares, error, label=NAMES.get(method, method), **look)
        axis.set_xticks(range(len(noises)), [f"{n:g}" for n in noises])
        axis.set(title=TITLES[kind], xlabel="noise", ylim=(-0.04, 1.04))
    axes[0][0].set_ylabel("share of equations found")
    handles = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes[0]]
    lines = {name: line for pairs in handles for line, name in pairs}
    drawing.legend(lines.values(), lines.keys(), loc="outside right center", frameon=False)
    look_for = "bars: 95 % intervals; wide where only few equations were run"
    headline(drawing, "Equations found in data", look_for)
    save(drawing, path)


def page(text: str, rows: Sequence[Row]) -> str:
    """A page with both tables."""
    return insert(insert(text, table(rows), "equations"), published(), "published")
