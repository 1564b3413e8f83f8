"""``python -m benchmarks.gpu.report FILE ...``: tables of the rows of `make gpu`, in documents."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import command
from benchmarks.marked_blocks import MarksError, record_table, renew

Row = dict[str, Any]
OPTIMIZERS = {
    "adam": "Adam", "named": '`"adam"`', "fused-decay": "fused Adam, a rate that falls",
}  # fmt: skip


def _size(text: str) -> str:
    return text.replace("x", ", ") + ("" if text.count("x") == 3 else ", 1")


def _where(rows: Sequence[Row]) -> str:
    """The GPU and the versions of the rows."""
    machines = {f"{r['gpu']}, torch {r['torch']}, Triton {r['triton']}" for r in rows}
    return "; ".join(sorted(machines)) + ":"


def _by_item(rows: Sequence[Row], name: str) -> dict[str, dict[str, Row]]:
    """The rows of each item by the value of a field."""
    items: dict[str, dict[str, Row]] = {}
    for row in rows:
        items.setdefault(row["item"], {})[row[name]] = row
    return items


def trainings(rows: Sequence[Row]) -> str:
    """The time of a step by `training.run`, in a graph and one by one, ours and eager's."""
    chosen = [r for r in rows if r["part"] == "loops" and r["item"].startswith("training")]
    records = []
    for group in _by_item(chosen, "rival").values():
        ours = group["ours, CUDA graph"]
        records.append({
            "B, I, O, K": _size(ours["size"]), "optimiser": OPTIMIZERS[ours["optimizer"]],
            "a captured step": f"{ours['median_us']:.0f} µs",
            "capture": f"{ours['begin_ms']:.0f} ms",
            "one by one": f"{group['ours']['ratio']:.1f}",
            "eager, captured": f"{group['eager, CUDA graph']['ratio']:.1f}",
            "eager, one by one": f"{group['eager']['ratio']:.1f}",
        })  # fmt: skip
    return f"{_where(chosen)}\n\n{record_table(records)}".strip()


def rollouts(rows: Sequence[Row]) -> str:
    """The time of a rollout and its gradients, in one launch and step by step."""
    chosen = [r for r in rows if r["part"] == "loops" and r["item"].startswith("rollout")]
    records = []
    for group in _by_item(chosen, "rival").values():
        records.append({
            "steps, D, h, K": _size(group["ours"]["size"]),
            "one launch": f"{group['ours']['median_us'] / 1e3:.1f} ms",
            "eager": f"{group['eager']['ratio']:.0f}",
            "torchdiffeq": f"{group['torchdiffeq']['ratio']:.0f}" if "torchdiffeq" in group else "",
        })  # fmt: skip
    return f"{_where(chosen)}\n\n{record_table(records)}".strip()


def crossover(rows: Sequence[Row]) -> str:
    """Layers by the one-pass kernels and by those on planes."""
    chosen = [row for row in rows if row["part"] == "crossover"]
    records = []
    for group in _by_item(chosen, "kernels").values():
        one_pass, planes = group["one-pass"], group["planes"]
        records.append({
            "B, I, O, K": _size(planes["size"]), "precision": planes["precision"],
            **{f"{name}, µs": f"{one_pass[key]:.0f} ({planes[key]:.0f})" for name, key in
               (("alone", "alone_us"), ("in a graph", "graph_us"))},
            "error": f"{max(one_pass['errors']):.1e} ({max(planes['errors']):.1e})",
            "eager's error": f"{max(planes['eager_errors']):.1e}",
        })  # fmt: skip
    return f"{_where(chosen)}\n\n{record_table(records)}".strip()


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
        rows = [
            json.loads(line) for path in options.files for line in path.read_text().splitlines()
        ]
        for page in options.page:
            text = page.read_text()
            marks = [mark for mark in BLOCKS if f"<!-- {mark}:begin -->" in text]
            renew(page, {mark: BLOCKS[mark](rows) for mark in marks})
    except (MarksError, OSError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
