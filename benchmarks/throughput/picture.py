"""The picture of the main cases: the time of others divided by ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.drawing import COLORS, available, figure, headline, legend, save
from benchmarks.throughput.cases import PASS_NAMES, ROLLOUT, SHORT, Case
from benchmarks.throughput.environment import named_threads
from benchmarks.throughput.results import ReportError, Row, chosen
from benchmarks.throughput.timing import doubtful

BARS = {"eager": "eager", "compile": "torch.compile", "jax": "JAX"}  # and their titles
NEEDED = {"eager", "compile"}


def picture(rows: Sequence[Row], path: Path, processor: str | None = None) -> None:
    """Draw the rivals' times divided by ours, on one thread, in the cases of `SHORT`.

    Cases in which we lose are drawn too.

    Raises ReportError without matplotlib, or without such rows.
    """
    if not available():
        raise ReportError("the picture needs matplotlib (pip install matplotlib)")
    machine, groups = chosen(rows, processor)
    threads = min(count for _, count in groups)
    lost = [
        case
        for (case, count), group in groups.items()
        if count == threads and any(group[rival]["ratio"] < 1 for rival in BARS if rival in group)
    ]
    shown = {case: groups.get((case, threads), {}) for case in dict.fromkeys([*SHORT, *lost])}
    shown = {case: group for case, group in shown.items() if group.keys() >= NEEDED}
    if not shown:
        raise ReportError("the picture needs rows with eager and compile of the README's cases")
    drawing, axes = figure(1, 1, 0.5 * len(shown) + 1.4)
    axis, marked = axes[0][0], False
    for n, (rival, title) in enumerate(BARS.items()):
        of_rival = {y: g[rival] for y, g in enumerate(shown.values()) if rival in g}
        ratios = [row["ratio"] for row in of_rival.values()]
        marks = ["?" if doubtful(row) else "" for row in of_rival.values()]
        marked = marked or any(marks)
        heights = [y + 0.28 * (n - 1) for y in of_rival]
        look = {"height": 0.26, "color": COLORS[rival], "label": title}
        bars = axis.barh(heights, [ratio - 1 for ratio in ratios], left=1, **look)
        labels = [f"{ratio:.3g}{mark}" for ratio, mark in zip(ratios, marks, strict=True)]
        axis.bar_label(bars, labels, padding=2)
    axis.set_yticks(range(len(shown)), map(_bar_title, shown))
    axis.axvline(1, color=COLORS["npu_kernels"], linewidth=2, label="npu_kernels")
    axis.set(xscale="log", xlim=(0.5, 3 * max(axis.get_xlim())), ylim=(len(shown) - 0.4, -0.6))
    axis.set_xticks([0.5, 1, 10, 100], ["0.5", "1", "10", "100"])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    legend(axis, 4, lines_of_title=0)
    note = "; left of the line npu_kernels is slower" + "; ?: a doubtful ratio" * marked
    title = "Time of others divided by the time of npu_kernels"
    headline(drawing, title, f"{machine[0]}, {named_threads(threads)}, logarithmic scale{note}")
    save(drawing, path)


def _bar_title(case: Case) -> str:
    size = case.size
    models = "" if size.models == 1 else f", {size.models} models"
    if case.kind == ROLLOUT:
        return f"neural ODE,\n{size.rows} steps{models}"
    layer = f"NPU {size.inputs} → {size.outputs}" if case.layer == "npu" else "NPU → NAU"
    return f"{PASS_NAMES[case.kind]},\n{layer}, {size.rows} rows{models}"
