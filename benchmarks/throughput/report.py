"""``python -m benchmarks.throughput.report FILE...``: a Markdown table and a picture out of the suite's JSON lines.

--markdown FILE   write the table there; without any option it is printed
--picture FILE    time over size and ratio over size, PNG, SVG or PDF (needs matplotlib)
--readme FILE     a short table (`brief`) between the two throughput markers
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.throughput.cases import ROLLOUT, STEP, TRAIN, Case

Row = dict[str, Any]
Group = dict[str, Row]  # rival -> row

BEGIN, END = "<!-- throughput:begin -->", "<!-- throughput:end -->"
NEEDED = ("layer", "kind", "rows", "inputs", "outputs", "models", "signs", "threads", "rival", "median_us", "ratio")
COLUMNS = {
    "eager": "eager",
    "layers": "our layers, torch's loss and Adam",
    "loop": "eager, one by one",
    "compile": "compile",
    "compile-autotune": "autotune",
    "complex": "complex64",
    "jax": "JAX",
}
YARDSTICKS = {"linear": "ours / linear", "one-model": "ours / one model"}
LAYERS = {"npu": "NPU", "realnpu": "RealNPU", "nmu": "NMU", "inalu": "iNALU", "npu-nau": "NPU(2, 6) -> NAU(6, 4)"}


class ReportError(Exception):
    """A file that cannot be used, named."""


def read(paths: Iterable[Path]) -> list[Row]:
    """The rows of the files; ReportError names the file and the line that is none."""
    rows: list[Row] = []
    for path in paths:
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ReportError(f"cannot read {path}: {error}") from None
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ReportError(f"{path}, line {number} is no JSON: {error}") from None
            missing = [key for key in NEEDED if key not in row] if isinstance(row, dict) else list(NEEDED)
            if missing:
                raise ReportError(f"{path}, line {number} is no row of the suite: without {', '.join(missing)}")
            rows.append(row)
    if not rows:
        raise ReportError("there are no rows")
    return rows


def _machine(row: Row) -> tuple[str, ...]:
    where = row.get("environment", {})
    keys = ("processor", "instruction_set", "torch", "npu_kernels", "commit")
    if "gpu" in where:
        where = where | {
            "processor": where["gpu"],
            "instruction_set": f"compute capability {where['compute_capability']}",
        }
    return (*(str(where.get(key, "unknown")) for key in keys), str(row.get("matmul_precision", "highest")))


def grouped(rows: Iterable[Row]) -> dict[tuple[str, ...], dict[tuple[Case, int], Group]]:
    """machine -> (case, threads) -> rival -> row; of two rows for the same the later one counts."""
    machines: dict[tuple[str, ...], dict[tuple[Case, int], Group]] = {}
    for row in rows:
        case = Case.from_dict(row)
        machines.setdefault(_machine(row), {}).setdefault((case, row["threads"]), {})[row["rival"]] = row
    return machines


def _time(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.0f} µs" if microseconds >= 100 else f"{microseconds:.1f} µs"
    return f"{microseconds / 1000:.3g} ms"


def _ratio(row: Row | None) -> str:
    if row is None:
        return ""
    if row["rival"] in YARDSTICKS:
        return f"{1 / row['ratio']:.2f}"
    text = f"{row['ratio']:.2f}"
    return f"**{text}**" if row["ratio"] < 1 else text


def _pair(ours: Row, eager: Row | None, key: str, text: Callable[[Any], str]) -> str:
    own, other = ours.get(key), None if eager is None else eager.get(key)
    if own is None:
        return ""
    return text(own) + (f" ({text(other)})" if other is not None else "")


def _table(groups: dict[tuple[Case, int], Group]) -> list[str]:
    columns = {**COLUMNS, **YARDSTICKS}
    present = [rival for rival in columns if any(rival in group for group in groups.values())]
    head = ["layer", "pass", "B, I, O, K", "threads", "ours", *(columns[rival] for rival in present)]
    head += ["error (eager's)", "peak MiB (eager's)", "of the limit"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for (case, threads), group in groups.items():
        ours = group.get("ours")
        if ours is None:
            continue
        size, eager = case.size, group.get("eager")
        positive = ", no negatives" if case.signs == "positive" and case.kind not in (TRAIN, ROLLOUT) else ""
        layer = f"u' = NAU(NPU(u)), {size.rows} steps, float64" if case.kind == ROLLOUT else case.layer
        cells = [LAYERS.get(layer, layer), case.kind + positive]
        cells += [f"{size.rows}, {size.inputs}, {size.outputs}, {size.models}", str(threads), _time(ours["median_us"])]
        cells += [_ratio(group.get(rival)) for rival in present]
        cells.append(_pair(ours, eager, "error", lambda value: f"{value:.1e}"))
        cells.append(_pair(ours, eager, "peak_bytes", lambda value: f"{value / 2**20:.1f}"))
        share = ours.get("share_of_limit")
        cells.append("" if share is None else f"{100 * share:.0f} %")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def markdown(rows: Sequence[Row]) -> str:
    """One table per machine, with how to read it."""
    parts = [
        "A rival's column is its time divided by ours, the median over interleaved repetitions; **below 1 we "
        "lose**. The yardsticks compute something else: how many times as long as `nn.Linear` of the shape (for "
        "several models a batched product), or as a single model, we take. Errors are relative, against float64, "
        "the greatest of the result and all gradients. The limit is the machine's own `a @ b` rate or copy rate, "
        "whichever takes longer for the work that cannot be avoided. A rollout's sizes are its steps, features and "
        "hidden units, and its error is its difference to eager's, in float64 both."
    ]
    for machine, groups in grouped(rows).items():
        processor, isa, torch_version, version, commit, precision = machine
        where = f"{processor}, kernels for {isa}, torch {torch_version}, npu_kernels {version} at {commit}"
        if precision != "highest":
            where += f', float32 matmul precision "{precision}"'
        parts.append("\n".join([where + ":", "", *_table(groups)]))
    return "\n\n".join(parts) + "\n"


def brief(rows: Sequence[Row]) -> list[Row]:
    """A short table: NPU, random signs, and the training step, with the most threads; and every case that we lose."""
    threads = max((row["threads"] for row in rows), default=0)

    def case(row: Row) -> tuple[Any, ...]:
        return tuple(row[key] for key in ("layer", "kind", "rows", "inputs", "outputs", "models", "signs", "threads"))

    lost = {case(row) for row in rows if row["ratio"] < 1 and row["rival"] not in YARDSTICKS}
    shown = [row for row in rows if (row["layer"], row["signs"]) == ("npu", "random") or row["kind"] == TRAIN]
    usual = {case(row) for row in shown if row["threads"] == threads}
    return [row for row in rows if case(row) in lost | usual]


def replace_block(text: str, block: str) -> str:
    """The text with the block between the markers; ReportError unless each stands there once, in order."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ReportError(f"needs {BEGIN} and behind it {END}, each once")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{block.strip()}\n{END}{rest.split(END)[1]}"


def _drawn(case: Case) -> bool:
    return (case.layer, case.kind, case.signs, case.size.models) == ("npu", STEP, "random", 1)


def _curves(groups: dict[tuple[Case, int], Group], threads: int) -> dict[str, list[tuple[float, Row]]]:
    """rival -> (multiply-adds of a product, row): steps of the NPU, one model, random signs."""
    curves: dict[str, list[tuple[float, Row]]] = {}
    for (case, count), group in groups.items():
        size = case.size
        if _drawn(case) and count == threads:
            for rival, row in group.items():
                curves.setdefault(rival, []).append((float(size.rows * size.inputs * size.outputs), row))
    return {rival: sorted(points, key=lambda point: point[0]) for rival, points in curves.items()}


def picture(rows: Sequence[Row], path: Path) -> None:
    """Draw the first machine's steps at its least number of threads; ReportError without matplotlib or such rows."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ReportError("the picture needs matplotlib (pip install matplotlib)") from None
    machine, groups = next(iter(grouped(rows).items()))
    steps = [
        t for case, t in groups if (case.layer, case.kind, case.signs, case.size.models) == ("npu", STEP, "random", 1)
    ]
    if not steps:
        raise ReportError("the picture needs rows of the NPU's step, single models, random signs")
    threads = min(steps)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for rival, points in _curves(groups, threads).items():
        x, own = [p[0] for p in points], [p[1] for p in points]
        style = {
            "marker": "o",
            "label": COLUMNS.get(rival, "nn.Linear" if rival == "linear" else rival),
            "linewidth": 2.5 if rival == "ours" else 1.2,
        }
        (line,) = left.plot(x, [row["median_us"] for row in own], **style)
        if rival != "ours":
            right.plot(x, [row["ratio"] for row in own], **style, color=line.get_color())
            low, high = ([row.get(key, row["ratio"]) for row in own] for key in ("ratio_p20", "ratio_p80"))
            right.fill_between(x, low, high, alpha=0.15, color=line.get_color())
    left.set(xscale="log", yscale="log", xlabel="B x I x O", ylabel="microseconds", title="Time, forward + backward")
    right.set(xscale="log", yscale="log", xlabel="B x I x O", ylabel="rival's time / ours")
    right.set_title("Ratio, median and 20/80 percentiles")
    right.axhline(1, color="black", linewidth=0.8)
    ticks = [0.25, 0.5, 1, 2, 4, 8, 16, 32]
    right.set_yticks(ticks, [f"{t:g}x" for t in ticks])
    right.minorticks_off()
    left.legend()
    figure.suptitle(f"{machine[0]}, {threads} thread{'s' if threads > 1 else ''}, float32")
    figure.savefig(path, dpi=120)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput.report")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON lines of the suite")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw time and ratio over size")
    parser.add_argument("--readme", type=Path, metavar="FILE", help=f"put a short table between {BEGIN} and {END}")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    options = arguments(argv)
    try:
        rows = read(options.files)
        text = markdown(rows)
        if options.readme:
            old = options.readme.read_text()
            try:
                options.readme.write_text(replace_block(old, markdown(brief(rows))))
            except ReportError as error:
                raise ReportError(f"{options.readme} {error}") from None
        if options.markdown:
            options.markdown.write_text(text)
        if options.picture:
            picture(rows, options.picture)
    except (ReportError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    if not (options.readme or options.markdown or options.picture):
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
