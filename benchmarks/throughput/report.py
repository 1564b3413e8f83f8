"""Markdown tables and a picture out of the suite's JSON lines.

    python -m benchmarks.throughput.report FILE...

prints all tables, unless an option says where they go.

The picture has the main cases: the time of others divided by ours.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from benchmarks.arguments import command
from benchmarks.drawing import COLORS, available, figure, headline, legend, save
from benchmarks.marked_blocks import MarksError, record_table, renew
from benchmarks.rows_command import ReportError
from benchmarks.throughput import cases
from benchmarks.throughput.cases import (
    PASS_NAMES,
    PASSES,
    ROLLOUT,
    SHORT,
    STEP,
    UNITS,
    Case,
    Size,
    hidden,
)
from benchmarks.throughput.environment import named_threads
from benchmarks.throughput.results import GPU, Group, Groups, Machine, Row, chosen, grouped, read
from benchmarks.throughput.timing import DOUBT, doubtful
from npu_kernels._jobs import files

MIN_COUNTS = 4  # numbers of rows that a layer was measured with, to be in that block
PAGE_HEAD = "---\norphan: true\n---\n\n# Throughput\n\n"  # the page is in no menu
READING = (
    "A column is another program's time divided by ours: above 1 npu_kernels is faster, and where "
    "it is **slower** the number is bold. `nn.Linear` computes a different function. The "
    "performance page says [how a row is measured](../performance.md#how-a-row-is-measured)."
)
COLUMNS = {
    "eager": "eager",
    "layers": "our layers, torch's loss and Adam",
    "loop": "eager, one by one",
    "compile": "compile",
    "ours-compile": "our layers, compiled",
    "compile-graph": "compile, CUDA graphs",
    "compile-autotune": "autotune",
    "compile-vjp": "vjp, compiled",
    "hand-written": "backward by hand, compiled",
    "hand-written-graph": "both by hand, compiled",
    "compile-step": "whole step, compiled",
    "compile-chunks": "20 steps, compiled",
    "complex": "complex64",
    "jax": "JAX",
    "torchdiffeq": "torchdiffeq",
    "scipy": "SciPy, no gradient",
    "diffrax": "diffrax",
}
# No other program of the same function: `nn.Linear` of the shape, one model of the K, ours.
YARDSTICKS = {
    "linear": "`nn.Linear`", "one-model": "K single models", "one-thread": "ours, one thread",
    "make-step": "ours by `make_step`",
}  # fmt: skip
ON_GPUS = {
    name: COLUMNS[name]
    for name in ("eager", "compile", "compile-graph", "compile-autotune", "hand-written")
}
ON_PAGES = {"eager": "eager", "compile": "`torch.compile`"}
ONE_THREAD = "one-thread"
# Passes replayed from a CUDA graph: another program's is divided by ours.
OUR_GRAPH, GRAPHS = "graph", {"eager-graph": "eager", "linear-graph": "`nn.Linear`"}
# The strongest plain torch is the fastest of all that compute the same without this package: of
# these careful programs and the usual ones.
CAREFUL = ("compile-vjp", "hand-written", "hand-written-graph", "compile-step", "compile-chunks")
PLAIN_TORCH = ("eager", "compile", "compile-autotune", "complex", *CAREFUL)
SUMMARY = sorted(  # by pass, models and work
    (*SHORT, Case("npu", STEP, Size(100, 100, 1)), Case("npu", STEP, Size(4096, 256, 256))),
    key=lambda case: (PASSES.index(case.kind), case.size.models, math.prod(astuple(case.size))),
)
LAYERS = {name: unit.__name__ for name, unit in UNITS.items()}


def _time(ours: Row) -> str:
    us = ours["median_us"]
    text = f"{us / 1000:.3g} ms" if us >= 1000 else f"{us:.{0 if us >= 100 else 1}f} µs"
    return text + "?" * doubtful(ours)


def _ratio(row: Row | None) -> str:
    """The other's time divided by ours, bold where ours is longer for the same function."""
    if row is None:
        return ""
    count = row["models"] if row["rival"] == "one-model" else 1
    text = f"{count * row['ratio']:.2f}"
    if doubtful(row):
        return text + "?"
    return f"**{text}**" if row["ratio"] < 1 and row["rival"] not in YARDSTICKS else text


def _compared(group: Group, rivals: Mapping[str, str]) -> dict[str, str]:
    """Our time, and the others' divided by it; rivals: their names, and titles."""
    ratios = {title: _ratio(group.get(rival)) for rival, title in rivals.items()}
    return {"ours": _time(group["ours"]), **ratios, **_in_graphs(group)}


def _pair(group: Group, key: str, form: str, unit: float = 1) -> str:
    """Our value of a column, and eager's in brackets; empty where ours was not measured."""
    ours, eager = group["ours"], group.get("eager", {})
    if ours.get(key) is None:
        return ""
    other = f" ({eager[key] / unit:{form}})" if eager.get(key) is not None else ""
    return f"{ours[key] / unit:{form}}{other}"


def _in_graphs(group: Group) -> dict[str, str]:
    """The cells of passes that are replayed from a CUDA graph; nothing without any."""
    ours = group.get(OUR_GRAPH)
    if ours is None:
        return {}
    cells = {"ours in a graph": _time(ours)}
    for rival, title in GRAPHS.items():
        other = group.get(rival)
        if other is not None:
            plain, ratio = rival.removesuffix("-graph"), other["median_us"] / ours["median_us"]
            cells[f"{title} in a graph"] = _ratio({**other, "rival": plain, "ratio": ratio})
    return cells


def _layer(case: Case) -> str:
    i, units, o = case.size.inputs, hidden(case.size), case.size.outputs
    chain = f"NPU({i}, {units}) -> NAU({units}, {o})"
    return chain if case.layer == "npu-nau" else LAYERS.get(case.layer, case.layer)


def _size(size: Size) -> str:
    return f"{size.rows}, {size.inputs}, {size.outputs}, {size.models}"


def _case(case: Case) -> dict[str, str]:
    """The cells that say what was measured."""
    ode = {
        cases.ROLLOUT: f"u' = NAU(NPU(u)), {case.size.rows} steps, float64",
        cases.ADAPTIVE: f"u' = NAU(NPU(u)), dopri5, rtol 1e-6, {case.size.rows} times, float64",
    }
    return {
        "layer": ode.get(case.kind, _layer(case)),
        "pass": case.kind + ", no negatives" * case.no_negatives,
        "B, I, O, K": _size(case.size),
    }


def _table(groups: Groups) -> str:
    """All rows of a machine."""
    records, titles = [], COLUMNS | YARDSTICKS
    for (case, threads), group in groups.items():
        if "ours" in group:
            share = group["ours"].get("share_of_limit")
            records.append({
                **_case(case), "threads": str(threads), **_compared(group, titles),
                "error (eager's)": _pair(group, "error", ".1e"),
                "peak MiB (eager's)": _pair(group, "peak_bytes", ".1f", 2**20),
                "of the limit": "" if share is None else f"{100 * share:.0f} %",
            })  # fmt: skip
    return record_table(records)


def _where(machine: Machine) -> str:
    processor, isa, torch_version, version, commit, precision = machine
    known = f" {version}" if version != "0+unknown" else ""  # run from a copy of the repository
    versions = f"torch {torch_version}, npu_kernels{known} at {commit}"
    text = f', float32 matmul precision "{precision}"' if precision != "highest" else ""
    return f"{processor}, kernels for {isa}, {versions}{text}"


def pages(rows: Sequence[Row]) -> dict[str, str]:
    """Return the pages with all tables by file names: of each processor, and side by side."""
    texts: dict[str, list[str]] = {}
    for machine, groups in grouped(rows).items():
        precision = "" if machine[-1] == "highest" else f', "{machine[-1]}" precision'
        table = f"{_where(machine)}:\n\n{_table(groups)}"
        section = f"## {machine[0]}, {machine[1]}{precision}\n\n{table}"
        texts.setdefault(machine[0], []).append(section)
    compared = _compared_processors(rows, ("eager", "compile", "compile-autotune", "jax"))
    if compared:
        texts["side by side"] = [f"## Processors side by side, one thread\n\n{compared}"]
    return {
        f"throughput-{name.lower().replace(' ', '-')}.md": (
            f"{PAGE_HEAD}{READING}{_doubts(*sections)}\n\n" + "\n".join(sections)
        )
        for name, sections in texts.items()
    }


def _doubts(*tables: str) -> str:
    """The meaning of the mark, if it is in the tables."""
    return f" A number with ? is {DOUBT}." if any("?" in text for text in tables) else ""


def summary(rows: Sequence[Row]) -> str:
    """A table of the main cases on one thread, for each processor with the careful programs."""
    parts = []
    for name in _processors(rows):
        machine, groups = chosen(rows, name)
        records = [
            _case(case)
            | {rival: _ratio(groups[case, 1].get(rival)) for rival in ("eager", "compile")}
            | {"strongest plain torch": _named_ratio(_strongest(groups[case, 1]))}
            | {"JAX": _ratio(groups[case, 1].get("jax"))}
            for case in SUMMARY
            if (case, 1) in groups
        ]
        if any(record["strongest plain torch"] for record in records):
            parts.append(f"**{name}**\n\n{record_table(records)}\n{_where(machine)}.")
    return "\n\n".join(parts)


def _strongest(group: Group) -> Row | None:
    """The row of the fastest plain torch; None where no careful program was measured."""
    if group.keys().isdisjoint(CAREFUL):
        return None
    measured = [group[rival] for rival in PLAIN_TORCH if rival in group]
    return min(measured, key=lambda row: float(row["ratio"]))


def _named_ratio(row: Row | None) -> str:
    return f"{_ratio(row)} ({COLUMNS[row['rival']]})" if row else ""


def _processors(rows: Sequence[Row]) -> list[str]:
    """The processors of rows of the highest precision, in their order."""
    of_processors = [row for row in rows if row.get("device") != GPU]
    machines = (machine for machine in grouped(of_processors) if machine[-1] == "highest")
    return list(dict.fromkeys(machine[0] for machine in machines))


def _compared_processors(rows: Sequence[Row], rivals: Sequence[str]) -> str:
    """A table of the cases that several processors have."""
    best = {name: chosen(rows, name) for name in _processors(rows)}
    measured: dict[Case, dict[str, Group]] = {}
    for name, (_, groups) in best.items():
        for (case, threads), group in groups.items():
            if threads == 1:
                measured.setdefault(case, {})[name] = group
    ratios = {
        case: {(rival, n): _ratio(of.get(n, {}).get(rival)) for rival in rivals for n in best}
        for case, of in measured.items()
        if len(of) > 1
    }
    if not ratios:
        return ""
    compared = {name for cells in ratios.values() for (_, name), cell in cells.items() if cell}
    machines = "; ".join(_where(best[name][0]) for name in best if name in compared)
    records = [
        _case(case) | {f"{COLUMNS[rival]}: {name}": cell for (rival, name), cell in cells.items()}
        for case, cells in ratios.items()
    ]
    return f"{machines}:\n\n{record_table(records)}"


def _of_machines(
    rows: Sequence[Row], records: Callable[[Groups], Iterable[dict[str, str]]], end: str
) -> str:
    """A table for each machine that has records; end: of the sentence that names the machine."""
    parts = []
    for machine, groups in grouped(rows).items():
        lines = list(records(groups))
        if lines:
            table = record_table(lines)
            parts.append(f"{_where(machine)}{end}{_doubts(table)}\n\n{table}")
    return "\n".join(parts).strip()


def many_rows(rows: Sequence[Row]) -> str:
    """The time of a step for one row, and eager's time divided by it, by the number of rows.

    One model, one thread; layers that a CPU was measured with for `MIN_COUNTS` numbers of rows.
    """

    def records(groups: Groups) -> Iterator[dict[str, str]]:
        of_layers: dict[tuple[str, int, int], dict[int, str]] = {}
        for (case, threads), group in sorted(groups.items(), key=lambda pair: pair[0][0].size.rows):
            size = case.size
            if (case.kind, case.signs, size.models, threads) != (STEP, "random", 1, 1):
                continue
            ns = 1000 * group["ours"]["median_us"] / size.rows
            cell = f"{ns:,.0f} ns" if ns >= 100 else f"{ns:.3g} ns"
            eager = _ratio(group.get("eager"))
            of_layer = of_layers.setdefault((_layer(case), size.inputs, size.outputs), {})
            of_layer[size.rows] = f"{cell} ({eager})" if eager else cell
        for (layer, inputs, outputs), cells in of_layers.items():
            if len(cells) >= MIN_COUNTS:
                counts = {f"{count:,} rows": cell for count, cell in cells.items()}
                yield {"layer": layer, "I, O": f"{inputs}, {outputs}"} | counts

    return _of_machines([row for row in rows if row.get("device") != GPU], records, "; 1 thread:")


def derivatives(rows: Sequence[Row]) -> str:
    """The time of derivatives beyond the gradient, and the others' times divided by it."""

    def records(groups: Groups) -> Iterator[dict[str, str]]:
        for (case, threads), group in groups.items():
            if case.kind in cases.DERIVATIVES and threads == 1:
                yield {
                    "B, I, O": _size(case.size).removesuffix(", 1"),
                    "what": PASS_NAMES[case.kind],
                    **_compared(group, ON_PAGES),
                    "error (eager's)": _pair(group, "error", ".1e"),
                }

    return _of_machines(rows, records, "; 1 thread.")


STEPS = {
    "ours": "our layers, loss and Adam", "compile-step": "the whole step, compiled",
    "compile": "the layers, compiled", "eager": "eager",
}  # fmt: skip


def steps(rows: Sequence[Row]) -> str:
    """The time of a training step by `make_step`, and of loops of one's own divided by it."""

    def records(groups: Groups) -> Iterator[dict[str, str]]:
        for (case, threads), group in groups.items():
            if "make-step" not in group or threads != 1:
                continue
            made = group["make-step"]
            ratios = {
                title: _ratio({**group[rival], "ratio": group[rival]["ratio"] / made["ratio"]})
                for rival, title in STEPS.items()
                if rival in group
            }
            yield {**_case(case), "`make_step`": _time(made), **ratios}

    return _of_machines(rows, records, "; 1 thread.")


def _of_threads(case: Case) -> bool:
    """Whether a case is in the table of threads: steps of the NPU, trainings and rollouts."""
    if case.layer == "npu":
        return case.kind == STEP and not case.no_negatives
    return case.layer not in LAYERS


def thread_gains(rows: Sequence[Row]) -> str:
    """Our time with one thread, with several, and the quotient.

    Of single layers only the NPU's steps. A pass with one thread and the same with several took
    turns in one process.
    """

    def records(groups: Groups) -> Iterator[dict[str, str]]:
        for (case, count), group in groups.items():
            if {"ours", ONE_THREAD} <= group.keys() and _of_threads(case):
                yield {
                    **_case(case),
                    "one thread": _time(group[ONE_THREAD]),
                    named_threads(count): _time(group["ours"]),
                    "gain": _ratio(group[ONE_THREAD]),
                }

    return _of_machines(rows, records, ".")


def gpus(rows: Sequence[Row]) -> str:
    """A table for each GPU: wall times of passes and of replayed graphs, kernels' time, memory."""
    of_gpus = [row for row in rows if row.get("device") == GPU]
    tables: dict[Machine, list[dict[str, str]]] = {}
    for machine, groups in grouped(of_gpus).items():
        records = tables.setdefault(machine[:-1], [])
        for (case, _), group in groups.items():
            records.append({
                "B, I, O, K": _size(case.size), "precision": machine[-1],
                **_compared(group, ON_GPUS),
                "kernels alone (eager's)": _pair(group, "device_us", ".0f") + " µs",
                "error (eager's)": _pair(group, "error", ".1e"),
                "peak MiB (eager's)": _pair(group, "peak_bytes", ".0f", 2**20),
            })  # fmt: skip
    parts = [f"{_where((*machine, 'highest'))}:\n\n{record_table(records)}"
             for machine, records in tables.items()]  # fmt: skip
    return "\n".join(parts).strip()


# Options that put a block into a page: the block's mark, what makes it, and what it shows.
BLOCKS: dict[str, tuple[str, Callable[[Sequence[Row]], str], str]] = {
    "page": ("throughput-summary", summary, "the main cases on several processors"),
    "rows": ("throughput-rows", many_rows, "the time of a row by the number of rows"),
    "derivatives": ("throughput-derivatives", derivatives, "the time of derivatives"),
    "steps": ("throughput-steps", steps, "training steps of one's own loop"),
    "threads": ("throughput-threads", thread_gains, "what several threads gain"),
    "gpus": ("throughput-gpus", gpus, "the rows of GPUs"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Write what the options ask for, or print all tables; return the exit status."""
    parser = command("benchmarks.throughput.report", __doc__)
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="JSON lines of the suite")
    tables = "put a page for each processor there, and one with the processors side by side"
    add("--tables", type=Path, metavar="FOLDER", help=tables)
    for name, (mark, _, shown) in BLOCKS.items():
        add(f"--{name}", type=Path, metavar="FILE", help=f"put {shown} into its block {mark}")
    add("--picture", type=Path, metavar="FILE", help="draw each rival's time divided by ours")
    whose = "whose rows the picture shows; needed where there are several"
    add("--processor", metavar="NAME", help=whose)
    options = vars(parser.parse_args(argv))
    try:
        rows = read(options["files"])
        for name, text in pages(rows).items() if options["tables"] else ():
            files.write(options["tables"] / name, text)
        for name, (mark, make, _) in BLOCKS.items():
            if options[name]:
                renew(options[name], {mark: make(rows)})
        if options["picture"]:
            picture(rows, options["picture"], options["processor"])
    except (ReportError, MarksError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    if not any(options[name] for name in ("tables", *BLOCKS, "picture")):
        print("\n".join(pages(rows).values()), end="")
    return 0


# Bars and their titles.
BARS = {
    "eager": "eager", "compile": "torch.compile", "strongest": "strongest plain torch",
    "jax": "JAX",
}  # fmt: skip
NEEDED = {"eager", "compile"}
LOST = 0.98  # ratios between it and 1 are ties


def picture(rows: Sequence[Row], path: Path, processor: str | None = None) -> None:
    """Draw the rivals' times divided by ours, on one thread, in the cases of `SHORT`.

    Cases in which we lose are drawn too.

    Raises ReportError without matplotlib, or without such rows.
    """
    if not available():
        raise ReportError("the picture needs matplotlib (pip install matplotlib)")
    machine, groups = chosen(rows, processor)
    threads = min(count for _, count in groups)
    bars_of = {
        case: {
            rival: row
            for rival in BARS
            if (row := _strongest(group) if rival == "strongest" else group.get(rival))
        }
        for (case, count), group in groups.items()
        if count == threads
    }
    lost = [
        case
        for case, group in bars_of.items()
        if any(row["ratio"] < LOST for row in group.values())
    ]
    shown = {case: bars_of.get(case, {}) for case in dict.fromkeys([*SHORT, *lost])}
    shown = {case: group for case, group in shown.items() if group.keys() >= NEEDED}
    if not shown:
        raise ReportError("the picture needs rows with eager and compile of the README's cases")
    drawing, axes = figure(1, 1, 0.6 * len(shown) + 1.4)
    axis, marked = axes[0][0], False
    for n, (rival, title) in enumerate(BARS.items()):
        of_rival = {y: g[rival] for y, g in enumerate(shown.values()) if rival in g}
        ratios = [row["ratio"] for row in of_rival.values()]
        marks = ["?" if doubtful(row) else "" for row in of_rival.values()]
        marked = marked or any(marks)
        heights = [y + 0.21 * (n - 1.5) for y in of_rival]
        look = {"height": 0.19, "color": COLORS[rival], "label": title}
        bars = axis.barh(heights, [ratio - 1 for ratio in ratios], left=1, **look)
        for bar, ratio, mark in zip(bars, ratios, marks, strict=True):
            middle = bar.get_y() + bar.get_height() / 2  # and right of the line, away from titles
            at = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            axis.annotate(f"{ratio:.3g}{mark}", (max(ratio, 1), middle), **at)
    axis.set_yticks(range(len(shown)), map(_bar_title, shown))
    axis.axvline(1, color=COLORS["npu_kernels"], linewidth=2, label="npu_kernels")
    axis.set(xscale="log", xlim=(0.4, 3 * max(axis.get_xlim())), ylim=(len(shown) - 0.4, -0.6))
    axis.set_xticks([0.5, 1, 10, 100], ["0.5", "1", "10", "100"])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    legend(axis, 3, lines_of_title=0)
    note = "; left of the line npu_kernels is slower" + "; ?: a noisy ratio" * marked
    title = "Time of baselines divided by the time of npu_kernels"
    headline(drawing, title, f"{machine[0]}, {named_threads(threads)}, logarithmic scale{note}")
    save(drawing, path)


def _bar_title(case: Case) -> str:
    size = case.size
    models = "" if size.models == 1 else f", {size.models} models"
    if case.kind == ROLLOUT:
        return f"neural ODE,\n{size.rows} steps{models}"
    layer = LAYERS.get(case.layer, "NPU → NAU")
    if case.layer in LAYERS:
        layer += f" {size.inputs} → {size.outputs}"
    return f"{PASS_NAMES[case.kind]},\n{layer}, {size.rows} rows{models}"


if __name__ == "__main__":
    sys.exit(main())
