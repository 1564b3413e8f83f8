"""``python -m benchmarks.throughput.report FILE...``: Markdown tables and a picture out of the suite's JSON lines.

--markdown FILE     write all tables there; without any option they are printed
--page FILE         all tables, one per processor, between the two throughput markers; the main cases on several
                    processors between those of the summary
--readme FILE       a short table of one processor between the two throughput markers
--picture FILE      bars of each rival's time divided by ours, by size, PNG, SVG or PDF (needs matplotlib)
--processor NAME    whose rows the short table and the picture show; needed where the files have several
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.blocks import MarksError, insert
from benchmarks.throughput.cases import ADAPTIVE, ROLLOUT, RUN, STEP, TRAIN, UNITS, Case, Size
from benchmarks.throughput.timing import DOUBT, doubtful
from npu_kernels._jobs import files

Row = dict[str, Any]
Group = dict[str, Row]  # rival -> row
Machine = tuple[str, ...]  # processor, instruction set, torch, npu_kernels, commit, matmul precision
Groups = dict[tuple[Case, int], Group]  # case, threads

MARK, SUMMARY_MARK = "throughput", "throughput-summary"
NEEDED = ("layer", "kind", "rows", "inputs", "outputs", "models", "signs", "threads", "rival", "median_us", "ratio")
COLUMNS = {
    "eager": "eager",
    "layers": "our layers, torch's loss and Adam",
    "loop": "eager, one by one",
    "compile": "compile",
    "compile-autotune": "autotune",
    "complex": "complex64",
    "jax": "JAX",
    "torchdiffeq": "torchdiffeq",
    "scipy": "SciPy, no gradient",
    "diffrax": "diffrax",
}
YARDSTICKS = {"linear": "ours / linear", "one-model": "ours / one model"}
# The picture's bars, in this order, and their colours.
BARS = {
    "eager": "0.45",
    "compile": "tab:orange",
    "compile-autotune": "gold",
    "jax": "tab:green",
    "complex": "tab:red",
    "linear": "plum",
}
BAR_NAMES = {
    "compile": "torch.compile",
    "compile-autotune": "torch.compile, max-autotune",
    "linear": "nn.Linear (another function)",
}
SIDE_BY_SIDE = ("eager", "compile", "compile-autotune", "jax")
# Virtual machines give several processors one name. Family, model and stepping tell them apart; old rows lack these.
PROCESSORS = {
    ("AMD EPYC", None): "AMD Zen 4",
    ("AMD EPYC", "26/2/1"): "AMD Zen 5",
    ("Intel(R) Xeon(R) Processor", None): "Intel Sapphire Rapids",
    ("Intel(R) Xeon(R) Processor", "6/167/1"): "Intel Granite Rapids",
}
INSTRUCTION_SETS = ("baseline", "avx2", "avx512", "avx512_bf16", "amx")  # a processor's best is shown
# The rows of the short table, in its order; further ones where we lose.
SHORT = (
    Case("npu-nau", TRAIN, Size(100, 2, 4, 1), "positive"),
    Case("npu-nau", TRAIN, Size(100, 2, 4, 20), "positive"),
    Case("npu-nau", RUN, Size(100, 2, 4, 1), "positive"),
    Case("npu-nau", RUN, Size(100, 2, 4, 20), "positive"),
    Case("npu", STEP, Size(100, 6, 2)),
    Case("npu", STEP, Size(100, 6, 2, 1000)),
    Case("npu", STEP, Size(1024, 64, 64)),
    Case("npu", STEP, Size(2048, 1024, 1024)),
    Case("npu-nau", ROLLOUT, Size(200, 3, 9, 1), "positive"),
)
# The rows of the summary of several processors.
SUMMARY = (*SHORT, Case("npu", STEP, Size(100, 100, 1)), Case("npu", STEP, Size(4096, 256, 256)))
PASS_NAMES = {
    "forward": "forward",
    STEP: "forward and backward",
    TRAIN: "training step",
    RUN: "100 training steps",
    ROLLOUT: "rollout",
    ADAPTIVE: "adaptive rollout",
}
LAYERS = {**{name: unit.__name__ for name, unit in UNITS.items()}, "npu-nau": "NPU(2, 6) -> NAU(6, 4)"}


class ReportError(Exception):
    """A file that cannot be used, named."""


def read(paths: Iterable[Path], text: str | None = None) -> list[Row]:
    """The rows of the files; ReportError names the file and the line that is none. `text` stands for their content."""
    rows: list[Row] = []
    for path in paths:
        try:
            lines = (path.read_text() if text is None else text).splitlines()
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


def _machine(row: Row) -> Machine:
    where = row.get("environment", {})
    keys = ("processor", "instruction_set", "torch", "npu_kernels", "commit")
    if "gpu" in where:
        where = where | {
            "processor": where["gpu"],
            "instruction_set": f"compute capability {where['compute_capability']}",
        }
    name = PROCESSORS.get((where.get("processor"), where.get("processor_model")))
    if name is not None:
        where = where | {"processor": name}
    return (*(str(where.get(key, "unknown")) for key in keys), str(row.get("matmul_precision", "highest")))


def grouped(rows: Iterable[Row]) -> dict[Machine, Groups]:
    """machine -> (case, threads) -> rival -> row; of two rows for the same the later one counts."""
    machines: dict[Machine, Groups] = {}
    for row in rows:
        case = Case.from_dict(row)
        machines.setdefault(_machine(row), {}).setdefault((case, row["threads"]), {})[row["rival"]] = row
    return machines


def chosen(rows: Iterable[Row], processor: str | None) -> tuple[Machine, Groups]:
    """One processor's newest full-precision rows with its best instruction set; ReportError names the processors."""
    machines = {machine: groups for machine, groups in grouped(rows).items() if machine[-1] == "highest"}
    names = list(dict.fromkeys(machine[0] for machine in machines))
    if processor is None and len(names) > 1:
        raise ReportError(f"--processor must name one of: {', '.join(names)}")
    found = [pair for pair in machines.items() if processor is None or processor == pair[0][0]]
    if not found:
        raise ReportError(f"--processor must name one of: {', '.join(names)}; got {processor!r}")

    def rank(pair: tuple[Machine, Groups]) -> tuple[int, str]:
        isa = pair[0][1]
        newest = max(str(row.get("environment", {}).get("date", "")) for g in pair[1].values() for row in g.values())
        return INSTRUCTION_SETS.index(isa) if isa in INSTRUCTION_SETS else len(INSTRUCTION_SETS), newest

    return max(found, key=rank)


def _time(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.0f} µs" if microseconds >= 100 else f"{microseconds:.1f} µs"
    return f"{microseconds / 1000:.3g} ms"


def _marked_time(ours: Row) -> str:
    return _time(ours["median_us"]) + ("?" if doubtful(ours) else "")


def _doubts(machines: Iterable[Groups]) -> str:
    """What the mark means, if there is one."""
    rows = (row for groups in machines for group in groups.values() for row in group.values())
    return f" A number with ? is {DOUBT}." if any(map(doubtful, rows)) else ""


def _ratio(row: Row | None) -> str:
    if row is None:
        return ""
    if row["rival"] in YARDSTICKS:
        return f"{1 / row['ratio']:.2f}" + ("?" if doubtful(row) else "")
    text = f"{row['ratio']:.2f}"
    if doubtful(row):
        return text + "?"
    return f"**{text}**" if row["ratio"] < 1 else text


def _pair(ours: Row, eager: Row | None, key: str, text: Callable[[Any], str]) -> str:
    own, other = ours.get(key), None if eager is None else eager.get(key)
    if own is None:
        return ""
    return text(own) + (f" ({text(other)})" if other is not None else "")


def _table(groups: Groups) -> list[str]:
    columns = {**COLUMNS, **YARDSTICKS}
    present = [rival for rival in columns if any(rival in group for group in groups.values())]
    head = ["layer", "pass", "B, I, O, K", "threads", "ours", *(columns[rival] for rival in present)]
    head += ["error (eager's)", "peak MiB (eager's)", "of the limit"]
    measured = _of_the_peak(groups)
    head += ["of the peak"] if measured else []
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for (case, threads), group in groups.items():
        ours = group.get("ours")
        if ours is None:
            continue
        size, eager = case.size, group.get("eager")
        positive = (
            ", no negatives" if case.signs == "positive" and case.kind not in (TRAIN, RUN, ROLLOUT, ADAPTIVE) else ""
        )
        layer = f"u' = NAU(NPU(u)), {size.rows} steps, float64" if case.kind == ROLLOUT else case.layer
        if case.kind == ADAPTIVE:
            layer = f"u' = NAU(NPU(u)), dopri5, rtol 1e-6, {size.rows} times, float64"
        cells = [LAYERS.get(layer, layer), case.kind + positive]
        cells += [f"{size.rows}, {size.inputs}, {size.outputs}, {size.models}", str(threads)]
        cells.append(_marked_time(ours))
        cells += [_ratio(group.get(rival)) for rival in present]
        cells.append(_pair(ours, eager, "error", lambda value: f"{value:.1e}"))
        cells.append(_pair(ours, eager, "peak_bytes", lambda value: f"{value / 2**20:.1f}"))
        share = ours.get("share_of_limit")
        cells.append("" if share is None else f"{100 * share:.0f} %")
        if measured:
            share = ours.get("share_of_peak")
            tiles = f" (tiles {ours['tile_gflops']:.0f} GFLOP/s)" if "tile_gflops" in ours else ""
            cells.append("" if share is None else f"{100 * share:.0f} %{tiles}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _of_the_peak(groups: Groups) -> bool:
    return any(group.get("ours", {}).get("share_of_peak") is not None for group in groups.values())


def _where(machine: Machine) -> str:
    processor, isa, torch_version, version, commit, precision = machine
    where = f"{processor}, kernels for {isa}, torch {torch_version}, npu_kernels {version} at {commit}"
    return where + ("" if precision == "highest" else f', float32 matmul precision "{precision}"')


def markdown(rows: Sequence[Row]) -> str:
    """How to read the tables, and a section with a table for each machine."""
    parts = [
        "A rival's column is its time divided by ours: the median over interleaved repetitions. **Below 1 we lose.** "
        "The yardsticks compute something else. They say how many times as long as `nn.Linear` of the same shape (for "
        "several models a batched product), or as a single model, we take. Errors are relative, against float64, and "
        "the greatest of the result and all gradients. The limit is the machine's own `a @ b` rate or copy rate, "
        "whichever takes longer for the work that cannot be avoided. A rollout's sizes are its steps, features and "
        "hidden units; its error is its difference to eager's, both in float64. An adaptive rollout's are its times, "
        "features and hidden units; its error is against a far smaller tolerance." + _doubts(grouped(rows).values())
    ]
    if any(map(_of_the_peak, grouped(rows).values())):
        parts[0] += (
            " The peak is what the vector units can multiply and add in registers alone, timed in the same rounds; the "
            "share counts the layer's own products. The NPU's kernels for AMX multiply in tiles of bfloat16 beside the "
            "vector units and can exceed it: the rate of tiles in those rounds says how much of that unit was free."
        )
    parts += side_by_side(rows)
    for machine, groups in grouped(rows).items():
        title = f"### {machine[0]}, {machine[1]}" + ("" if machine[-1] == "highest" else f', "{machine[-1]}" precision')
        parts.append("\n".join([title, "", f"{_where(machine)}:", "", *_table(groups)]))
    return "\n\n".join(parts) + "\n"


def side_by_side(rows: Sequence[Row]) -> list[str]:
    """A section with the ratios of several processors beside one another, at one thread; none for one processor."""
    text = _compared_processors(rows, SIDE_BY_SIDE)
    return [f"### Processors side by side, one thread\n\n{text}"] if text else []


def summary(rows: Sequence[Row]) -> str:
    """The main cases on several processors, at one thread; nothing for one processor."""
    return _compared_processors(rows, ("eager", "compile", "jax"), SUMMARY)


def _compared_processors(rows: Sequence[Row], rivals: Sequence[str], only: Collection[Case] | None = None) -> str:
    """A table of the cases that several processors have, all of them or those of `only`."""
    names = dict.fromkeys(machine[0] for machine in grouped(rows) if machine[-1] == "highest")
    found = {name: chosen(rows, name) for name in names}
    cases = {case: None for _, groups in found.values() for case, threads in groups if threads == 1}
    shared = [case for case in cases if sum((case, 1) in groups for _, groups in found.values()) > 1]
    shared = [case for case in shared if only is None or case in only]
    if not shared:
        return ""
    columns = [
        (rival, name)
        for rival in rivals
        for name, (_, groups) in found.items()
        if any(rival in groups.get((case, 1), {}) for case in shared)
    ]
    compared = {name for _, name in columns}
    machines = "; ".join(_where(found[name][0]) for name in found if name in compared)
    head = ["layer", "pass", "B, I, O, K", *(f"{COLUMNS[rival]}: {name}" for rival, name in columns)]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for case in shared:
        size = case.size
        positive = ", no negatives" if case.signs == "positive" and case.kind in ("forward", STEP) else ""
        cells = [LAYERS.get(case.layer, case.layer), case.kind + positive]
        cells.append(f"{size.rows}, {size.inputs}, {size.outputs}, {size.models}")
        cells += [_ratio(found[name][1].get((case, 1), {}).get(rival)) for rival, name in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return f"{machines}:\n\n" + "\n".join(lines)


def short(rows: Sequence[Row], processor: str | None = None) -> str:
    """The README's table: `SHORT` on one processor with its most threads, and every case there that we lose."""
    machine, groups = chosen(rows, processor)
    threads = max(count for _, count in groups)
    lost = [
        (case, count)
        for (case, count), group in groups.items()
        if any(row["ratio"] < 1 and rival not in YARDSTICKS for rival, row in group.items())
    ]
    wanted = [(case, threads) for case in SHORT] + lost
    head = ["", "B, I, O, K", "ours", "eager", "`torch.compile`", "ours / `nn.Linear`", "error (eager's)"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    shown: Groups = {}
    for case, count in dict.fromkeys(wanted):
        group = groups.get((case, count), {})
        if "ours" not in group:
            continue
        size, ours = case.size, group["ours"]
        name = f"{LAYERS.get(case.layer, case.layer)}, {PASS_NAMES[case.kind]}"
        if case.kind == ROLLOUT:
            name = f"neural ODE, {size.rows} steps, forward and backward"
        if case.signs == "positive" and case.kind not in (TRAIN, RUN, ROLLOUT, ADAPTIVE):
            name += ", no negatives"
        cells = [name + ("" if count == threads else f", {count} thread{'s' if count > 1 else ''}")]
        cells += [f"{size.rows}, {size.inputs}, {size.outputs}, {size.models}", _marked_time(ours)]
        shown[case, count] = {rival: group[rival] for rival in ("ours", "eager", "compile", "linear") if rival in group}
        cells += [_ratio(group.get(rival)) for rival in ("eager", "compile", "linear")]
        cells.append(_pair(ours, group.get("eager"), "error", lambda value: f"{value:.1e}"))
        lines.append("| " + " | ".join(cells) + " |")
    where = (
        f"{_where(machine)}; {threads} thread{'s' if threads > 1 else ''}, float32 (the ODE: float64). "
        "B rows, I inputs, O outputs, K models; for the ODE steps, features, hidden units, models. "
        "The columns eager and `torch.compile` are their time divided by ours: **below 1 we lose**." + _doubts([shown])
    )
    return "\n".join([where, "", *lines]) + "\n"


def page(text: str, rows: Sequence[Row]) -> str:
    """The page with all tables and the summary of these rows."""
    return insert(insert(text, summary(rows), SUMMARY_MARK), markdown(rows).strip(), MARK)


def readme(text: str, rows: Sequence[Row], processor: str | None = None) -> str:
    """The README with the short table of these rows."""
    return insert(text, short(rows, processor).strip(), MARK)


def _drawn(groups: Groups, kind: str, threads: int) -> Groups:
    """A pass of the NPU, one model, random signs, the smallest size first."""
    found = {
        (case, count): group
        for (case, count), group in groups.items()
        if (case.layer, case.kind, case.signs, case.size.models, count) == ("npu", kind, "random", 1, threads)
    }
    return dict(sorted(found.items(), key=lambda item: _products(item[0][0].size)))


def _products(size: Size) -> int:
    return size.rows * size.inputs * size.outputs


def _bars(axis: Any, drawn: Groups, rivals: Sequence[str]) -> int:
    """A bar for each rival at each size; returns how many are left out as doubtful."""
    width, doubts = 0.84 / len(rivals), 0
    for n, rival in enumerate(rivals):
        at, ratios = [], []
        for place, group in enumerate(drawn.values()):
            row = group.get(rival)
            if row is None:
                continue
            if doubtful(row):
                doubts += 1
                continue
            at.append(place - 0.42 + (n + 0.5) * width)
            ratios.append(row["ratio"])
        bars = axis.bar(at, ratios, width, label=BAR_NAMES.get(rival, COLUMNS.get(rival, rival)), color=BARS[rival])
        axis.bar_label(bars, [f"{ratio:.1f}" for ratio in ratios], padding=1, fontsize=6.5)
    names = [f"{size.inputs} → {size.outputs}\n{size.rows:,} rows" for size in (case.size for case, _ in drawn)]
    axis.set_xticks(range(len(names)), names, fontsize=8)
    return doubts


def picture(rows: Sequence[Row], path: Path, processor: str | None = None) -> None:
    """Draw a processor's rows at its least number of threads; ReportError without matplotlib or such rows."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ReportError("the picture needs matplotlib (pip install matplotlib)") from None
    machine, groups = chosen(rows, processor)
    threads = min(count for _, count in groups)
    panels = {"forward": _drawn(groups, "forward", threads), STEP: _drawn(groups, STEP, threads)}
    panels = {kind: drawn for kind, drawn in panels.items() if drawn}
    if STEP not in panels:
        raise ReportError("the picture needs rows of the NPU's step, single models, random signs")
    figure = Figure(figsize=(11, 3.6 * len(panels)), layout="constrained")
    doubts = 0
    for axis, (kind, drawn) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels.items(), strict=True):
        doubts += _bars(axis, drawn, [rival for rival in BARS if any(rival in group for group in drawn.values())])
        axis.axhline(1, color="tab:blue", linewidth=2.2, label="npu_kernels = 1")
        title = PASS_NAMES[kind].capitalize()
        axis.set(
            title=f"{title}: where a bar is above the line, npu_kernels is faster", ylabel="time / npu_kernels' time"
        )
        axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel("inputs → outputs of the layer, and rows of the batch")
    figure.axes[0].legend(fontsize=8, loc="upper right")
    count = f"{threads} thread{'s' if threads > 1 else ''}"
    count += f"; {doubts} doubtful number{'s' if doubts > 1 else ''} left out" if doubts else ""
    figure.suptitle(f"NPU layer, float32: {machine[0]}, {machine[1]}, {count}")
    figure.savefig(path, dpi=120)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput.report")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON lines of the suite")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    parser.add_argument("--page", type=Path, metavar="FILE", help="put all tables and the summary there")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="put a short table there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw each rival's time divided by ours")
    parser.add_argument("--processor", metavar="NAME", help="whose rows the short table and the picture show")
    return parser.parse_args(argv)


def _rewrite(path: Path, renewed: Callable[[str], str]) -> None:
    try:
        files.write(path, renewed(path.read_text()))
    except MarksError as error:
        raise ReportError(f"{path} {error}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    options = arguments(argv)
    try:
        rows = read(options.files)
        text = markdown(rows)
        if options.page:
            _rewrite(options.page, lambda old: page(old, rows))
        if options.readme:
            _rewrite(options.readme, lambda old: readme(old, rows, options.processor))
        if options.markdown:
            files.write(options.markdown, text)
        if options.picture:
            picture(rows, options.picture, options.processor)
    except (ReportError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    if not (options.page or options.readme or options.markdown or options.picture):
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
