"""``python -m benchmarks.gpu.report FILE ...``: tables of the rows of `make gpu`, in documents."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.arguments import command
from benchmarks.marked_blocks import MarksError, record_table, renew
from benchmarks.rows_command import ReportError, Row, read

OPTIMIZERS = {
    "adam": "Adam", "named": '`"adam"`', "fused-decay": "fused Adam, a rate that falls",
}  # fmt: skip


def _size(text: str) -> str:
    return text.replace("x", ", ") + ("" if text.count("x") == 3 else ", 1")


def _tables(
    rows: Sequence[Row], name: str, needed: set[str], record: Callable[[dict[str, Row]], Row]
) -> str:
    """A table for each GPU and versions: a line for each item, from its rows by a field.

    needed: values of the field; items that lack one, which failed on the way, are left out.
    """
    items: dict[str, dict[str, dict[str, Row]]] = {}
    for row in rows:
        machine = f"{row['gpu']}, torch {row['torch']}, Triton {row['triton']}:"
        items.setdefault(machine, {}).setdefault(row["item"], {})[row[name]] = row
    tables = []
    for machine, groups in sorted(items.items()):
        records = [record(group) for group in groups.values() if group.keys() >= needed]
        if records:
            tables.append(f"{machine}\n\n{record_table(records)}")
    return "\n".join(tables).strip()


def trainings(rows: Sequence[Row]) -> str:
    """The time of a step by `training.run`, in a graph and one by one, ours and eager's."""
    chosen = [r for r in rows if r["part"] == "loops" and r["item"].startswith("training")]

    def record(group: dict[str, Row]) -> Row:
        ours = group["ours, CUDA graph"]
        return {
            "B, I, O, K": _size(ours["size"]), "optimizer": OPTIMIZERS[ours["optimizer"]],
            "a captured step": f"{ours['median_us']:.0f} µs",
            "capture": f"{ours['begin_ms']:.0f} ms",
            "one by one": f"{group['ours']['ratio']:.1f}",
            "eager, captured": f"{group['eager, CUDA graph']['ratio']:.1f}",
            "eager, one by one": f"{group['eager']['ratio']:.1f}",
        }  # fmt: skip

    rivals = {"ours, CUDA graph", "ours", "eager, CUDA graph", "eager"}
    return _tables(chosen, "rival", rivals, record)


def rollouts(rows: Sequence[Row]) -> str:
    """The time of a rollout and its gradients, in one launch and step by step."""
    chosen = [r for r in rows if r["part"] == "loops" and r["item"].startswith("rollout")]

    def record(group: dict[str, Row]) -> Row:
        return {
            "steps, D, h, K": _size(group["ours"]["size"]),
            "one launch": f"{group['ours']['median_us'] / 1e3:.1f} ms",
            "eager": f"{group['eager']['ratio']:.0f}",
            "torchdiffeq": f"{group['torchdiffeq']['ratio']:.0f}" if "torchdiffeq" in group else "",
        }  # fmt: skip

    return _tables(chosen, "rival", {"ours", "eager"}, record)


def crossover(rows: Sequence[Row]) -> str:
    """Layers by the one-pass kernels and by those on planes."""
    chosen = [row for row in rows if row["part"] == "crossover"]

    def record(group: dict[str, Row]) -> Row:
        one_pass, planes = group["one-pass"], group["planes"]
        return {
            "B, I, O, K": _size(planes["size"]), "precision": planes["precision"],
            **{f"{name}, µs": f"{one_pass[key]:.0f} ({planes[key]:.0f})" for name, key in
               (("alone", "alone_us"), ("in a graph", "graph_us"))},
            "error": f"{max(one_pass['errors']):.1e} ({max(planes['errors']):.1e})",
            "eager's error": f"{max(planes['eager_errors']):.1e}",
        }  # fmt: skip

    return _tables(chosen, "kernels", {"one-pass", "planes"}, record)


# A block's mark and what makes it.
BLOCKS: dict[str, Callable[[Sequence[Row]], str]] = {
    "gpu-trainings": trainings, "gpu-rollouts": rollouts, "gpu-crossover": crossover,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Renew the blocks of the documents; return the exit status."""
    parser = command("benchmarks.gpu.report", __doc__)
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="rows of `make gpu`")
    add("--page", type=Path, action="append", required=True, help="a document; several are allowed")
    options = parser.parse_args(argv)
    try:
        rows = read(*options.files)
        for page in options.page:
            text = page.read_text()
            marks = [mark for mark in BLOCKS if f"<!-- {mark}:begin -->" in text]
            renew(page, {mark: BLOCKS[mark](rows) for mark in marks})
    except (ReportError, MarksError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
