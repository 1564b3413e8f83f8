"""The resource tables of `tools.aot` as one document.

    python -m tools.aot.report TABLE.json... --out benchmarks/results/triton-resources.md

`make resources` compiles everything with the newest and the oldest Triton and writes it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_kernels._jobs import files

Row = dict[str, Any]

HEAD = """# What the Triton kernels compile to

Made by `make resources` from `python -m tools.aot`, which compiles every kernel and shipped
configuration ahead of time, without a GPU, and fails when one exceeds its budget: a register spill,
more registers or shared memory than the target has, an empty kernel, no tensor-core instruction
where the scheme promises them (`passes` > 0). None of this says how fast a kernel is. Registers are
per thread, spills and shared memory in bytes; instructions are those of the disassembly; tensor-
core instructions by name.
"""
CASE_KEYS = ("kernel", "case", "tile", "passes", "warps", "stages")
KEYS = (*CASE_KEYS, "registers", "spill_bytes", "shared_bytes", "instructions")  # of a row
COLUMNS = (*CASE_KEYS, "registers", "spills", "shared", "instructions", "tensor core")
SUMMARY = ("kernels", "registers", "shared", "instructions", "that spill", "over budget")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _head(columns: Sequence[str]) -> list[str]:
    return [_line(columns), "|" + " --- |" * len(columns)]


def _range(rows: Sequence[Row], key: str) -> str:
    values = [row[key] for row in rows]
    return f"{min(values)} to {max(values)}"


def summary(version: str, rows: Sequence[Row]) -> list[str]:
    """A line per target."""
    lines = []
    for target in dict.fromkeys(row["target"] for row in rows):
        compiled = [row for row in rows if row["target"] == target and "registers" in row]
        spilling = sum(row["spill_bytes"] > 0 for row in compiled)
        over = sum(bool(row["faults"]) for row in rows if row["target"] == target)
        keys = ("registers", "shared_bytes", "instructions")
        ranges = [_range(compiled, key) for key in keys]
        lines.append(
            _line([version, target, str(len(compiled)), *ranges, str(spilling), str(over)])
        )
    return lines


def section(version: str, target: str, rows: Sequence[Row]) -> list[str]:
    """All rows of one target."""
    lines = [f"## {target}, Triton {version}", "", *_head(COLUMNS)]
    for row in rows:
        cells = ["" if row.get(key) is None else str(row[key]) for key in KEYS]
        tensor = ", ".join(f"{count} {name}" for name, count in row.get("tensor_core", {}).items())
        faults = "".join(f" **{fault}**" for fault in row["faults"])
        lines.append(_line([*cells, tensor + faults]))
    return [*lines, ""]


def document(tables: Sequence[dict[str, Any]]) -> str:
    """The document of several tables as `tools.aot --table` writes them."""
    lines = [HEAD, *_head(("Triton", "target", *SUMMARY))]
    for table in tables:
        lines += summary(table["triton"], table["rows"])
    lines.append("")
    for table in tables:
        for target in dict.fromkeys(row["target"] for row in table["rows"]):
            rows = [row for row in table["rows"] if row["target"] == target]
            lines += section(table["triton"], target, rows)
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Read the tables, write or print the document, and return the exit status."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tools.aot.report", description=description)
    written = "written by `tools.aot --table`"
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE", help=written)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the document to this file")
    options = parser.parse_args(arguments)
    try:
        text = document([json.loads(path.read_text()) for path in options.tables])
    except (OSError, json.JSONDecodeError, KeyError) as error:
        print(f"tools.aot.report: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if options.out:
        files.write(options.out, text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
