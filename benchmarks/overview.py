"""The README's picture: how the layer extrapolates, and how long it takes.

    python -m benchmarks.overview ROWS.jsonl... --processor NAME --out docs/images/overview.png

Made from the trained models in `results/paper` and from rows of the throughput suite only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.paper.drawing import available, figure, save
from benchmarks.paper.registry import TABLES
from benchmarks.paper.simple import task as simple
from benchmarks.throughput import report
from benchmarks.throughput.cases import ROLLOUT
from benchmarks.throughput.timing import doubtful

MODELS = Path(__file__).parent / "results" / "paper" / TABLES["simple"].models_file
SHOWN = {"Dense": "dense network", "RealNPU": "RealNPU, NAU"}
TASK, FORMULA = "div", "x / y"
RIVALS = {"eager": "eager", "compile": "torch.compile"}


def _errors(drawing: Any, axes: Sequence[Any], models: dict[str, list[float]]) -> None:
    from matplotlib.patches import Rectangle

    # Without 0, where x / y has no value.
    points = torch.arange(81, dtype=torch.float64).mul(0.1).sub(4.05)
    x, levels = points.numpy(), torch.linspace(-3, 1, 9).tolist()
    low, high = simple.TRAINING["code"]
    box: dict[str, Any] = {"fill": False, "edgecolor": "deepskyblue", "linewidth": 2.2}
    text = {"color": "deepskyblue", "fontweight": "bold", "va": "top"}
    for axis, (model, title) in zip(axes, SHOWN.items(), strict=True):
        error = simple.surface(model, "code", torch.tensor(models[model]), TASK, points)
        shown = error.clamp(1e-3, 1e1).log10().T.numpy()
        drawn = axis.contourf(x, x, shown, levels, cmap="inferno_r")
        axis.add_patch(Rectangle((low, low), high - low, high - low, **box))
        axis.annotate("training\nrange", (high + 0.15, high), **text)
        axis.set(title=f"{FORMULA} by {title}, best of 20", xlabel="x", ylabel="y", aspect="equal")
    where = {"ticks": range(-3, 2), "shrink": 0.85}
    bar = drawing.colorbar(drawn, ax=list(axes), label="absolute error", **where)
    bar.ax.set_yticklabels(["≤ 0.001", "0.01", "0.1", "1", "≥ 10"])


def _speeds(axis: Any, rows: Sequence[report.Row], processor: str | None) -> None:
    machine, groups = report.chosen(rows, processor)
    threads = max(count for _, count in groups)
    names, ratios, doubts = [], [], []
    for case in report.SHORT:
        group = groups.get((case, threads), {})
        if case.kind == ROLLOUT or not RIVALS.keys() <= group.keys():
            continue
        size = case.size
        layer = f"NPU {size.inputs} → {size.outputs}" if case.layer == "npu" else "NPU and NAU"
        models = "" if size.models == 1 else f", {size.models} models"
        names.append(f"{report.PASS_NAMES[case.kind]},\n{layer}, {size.rows} rows{models}")
        ratios.append([group[rival]["ratio"] for rival in RIVALS])
        doubts.append([doubtful(group[rival]) for rival in RIVALS])
    for n, (label, color) in enumerate(zip(RIVALS.values(), ("0.45", "tab:orange"), strict=True)):
        positions = [0.2 - 0.4 * n - y for y in range(len(names))]
        bars = axis.barh(positions, [pair[n] for pair in ratios], 0.38, label=label, color=color)
        pairs = zip(ratios, doubts, strict=True)
        marked = [f"{ratio[n]:.1f}{'?' if doubt[n] else ''}" for ratio, doubt in pairs]
        axis.bar_label(bars, marked, padding=2, fontsize=8)
    axis.axvline(1, color="tab:blue", linewidth=2, label="npu_kernels")
    axis.set_yticks([-y for y in range(len(names))], names, fontsize=8)
    note = " (?: doubtful)" if any(map(any, doubts)) else ""
    axis.set(xlabel=f"time divided by npu_kernels' time{note}")
    axis.set(title=f"Speed, {threads} threads, float32\n{machine[0]}")
    axis.set_xlim(0, 1.16 * max(max(pair) for pair in ratios))
    axis.legend(loc="lower right", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def draw(
    models: dict[str, list[float]], rows: Sequence[report.Row], processor: str | None, path: Path
) -> None:
    """Two maps of errors and a bar chart; ReportError for a processor without rows."""
    drawing, axes = figure(1, 3, (14, 4.3))
    _errors(drawing, axes[0][:2], models)
    _speeds(axes[0][2], rows, processor)
    save(drawing, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the picture; return the exit status."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overview", description=description)
    add, rows = parser.add_argument, "JSON lines of the throughput suite"
    add("files", nargs="+", type=Path, metavar="FILE", help=rows)
    add("--processor", metavar="NAME", help="whose rows are shown")
    add("--out", type=Path, required=True, metavar="FILE", help="a .png, .svg or .pdf file")
    options = parser.parse_args(argv)
    if not available():
        print("overview: the picture needs matplotlib (pip install matplotlib)", file=sys.stderr)
        return 1
    try:
        models = json.loads(MODELS.read_text())["models"]
        draw(models, report.read(options.files), options.processor, options.out)
    except (report.ReportError, OSError) as error:
        print(f"overview: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
