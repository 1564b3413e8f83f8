"""The picture of the main cases: the time of others divided by ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.drawing import COLORS, available, figure, headline, legend, save
from benchmarks.throughput.cases import PASS_NAMES, ROLLOUT, SHORT, Case
from benchmarks.throughput.environment import named_threads
from benchmarks.throughput.results import ReportError, Row, chosen
from benchmarks.throughput.timing import doubtful

BARS = {"eager": "eager", "compile": "torch.compile"}  # the picture's, and their titles


def picture(rows: Sequence[Row], path: Path, processor: str | None = None) -> None:
    """Draw the rivals' times divided by ours in the cases of `SHORT`, with the most threads.

    Raises ReportError without matplotlib, or without such rows.
    """
    if not available():
        raise ReportError("the picture needs matplotlib (pip install matplotlib)")
    machine, groups = chosen(rows, processor)
    threads = max(count for _, count in groups)
    shown = {case: groups.get((case, threads), {}) for case in SHORT}
    shown = {case: group for case, group in shown.items() if group.keys() >= BARS.keys()}
    if not shown:
        raise ReportError(f"the picture needs rows with {' and '.join(BARS)} of the README's cases")
    drawing, axes = figure(1, 1, 0.45 * len(shown) + 1.5)
    axis, marked = axes[0][0], False
    for n, (rival, title) in enumerate(BARS.items()):
        ratios = [group[rival]["ratio"] for group in shown.values()]
        marks = ["?" if doubtful(group[rival]) else "" for group in shown.values()]
        marked = marked or any(marks)
        heights = [y + 0.38 * (n - 0.5) for y in range(len(shown))]
        look = {"height": 0.36, "color": COLORS[rival], "label": title}
        bars = axis.barh(heights, ratios, left=0, **look)
        labels = [f"{ratio:.3g}{mark}" for ratio, mark in zip(ratios, marks, strict=True)]
        axis.bar_label(bars, labels, padding=2)
    axis.set_yticks(range(len(shown)), map(_bar_title, shown))
    axis.axvline(1, color=COLORS["npu_kernels"], linewidth=4, label="npu_kernels")
    axis.set(xscale="log", xlim=(1, 3 * max(axis.get_xlim())), ylim=(len(shown) - 0.4, -0.6))
    axis.set_xticks([1, 10, 100], ["1", "10", "100"])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    legend(axis, 3, lines_of_title=0)
    note = "; ?: a doubtful ratio" if marked else ""
    title = "How many times longer others take"
    headline(drawing, title, f"{machine[0]}, {named_threads(threads)}, logarithmic scale{note}")
    save(drawing, path)


def _bar_title(case: Case) -> str:
    size = case.size
    models = "" if size.models == 1 else f", {size.models} models"
    if case.kind == ROLLOUT:
        return f"neural ODE,\n{size.rows} steps{models}"
    layer = f"NPU {size.inputs} → {size.outputs}" if case.layer == "npu" else "NPU → NAU"
    return f"{PASS_NAMES[case.kind]},\n{layer}, {size.rows} rows{models}"
