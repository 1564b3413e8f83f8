"""Each figure and table of the paper beside ours: what it shows, our command, the agreement.

The entries are those of the experiments' tables; their agreement comes from the rows in the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.marked_blocks import record_table
from benchmarks.paper import tables
from benchmarks.paper.agreement import Entry, unmeasured
from benchmarks.paper.experiment import Table
from benchmarks.paper.registry import EXPERIMENTS, TABLES

NONE = "nothing to compare: no full runs"
DIAGRAMS = (
    unmeasured("Figure 1", "the NaiveNPU"),
    unmeasured("Figure 2", "the NPU with its relevance gate"),
)


def contents(folder: Path, table: Table) -> tuple[list[str], list[tables.Rows]]:
    """A table's comments; its rows, and those of the table beside it (none if that is missing)."""
    comments, rows = tables.read(folder / table.file)
    if not table.beside:
        return comments, [rows]
    other = folder / TABLES[table.beside].file
    return comments, [rows, tables.read(other)[1] if other.exists() else []]


def is_of_full_runs(comments: list[str]) -> bool:
    """Whether a table's runs have all steps of the authors' code, even if rows are missing."""
    first = comments[0] if comments else ""
    return not any(word in first for word in ("variant paper", "quick", ", only "))


def entries() -> Iterator[tuple[Entry, str, Table | None]]:
    """All entries with the command that makes ours, and their table."""
    yield from ((entry, "", None) for entry in DIAGRAMS)
    for name, experiment in EXPERIMENTS.items():
        for table in experiment.tables:
            yield from ((entry, name, table) for entry in table.entries)


def rank(item: str) -> tuple[bool, bool, int]:
    """The order in the paper: figures, tables, those of the appendix."""
    numbers = re.findall(r"\d+", item)
    return item.startswith("Table"), "A" in item, int(numbers[0])


def agreement(folder: Path, entry: Entry, table: Table | None) -> str:
    if table is None or not entry.measured:
        return entry.agreement([], folder)
    if not (folder / table.file).exists():
        return NONE
    comments, rows = contents(folder, table)
    return entry.agreement(rows, folder / table.models_file) if is_of_full_runs(comments) else NONE


def overview(folder: Path, with_causes: bool = True) -> str:
    """The table of all entries, from the folder's rows; without causes of those with numbers."""
    return record_table(
        {
            "in the paper": entry.item,
            "shows": entry.shows,
            "experiment": f"`{name}`" if name else "-",
            "agreement": agreement(folder, entry, table),
            "cause of differences, and what shows it": entry.why if with_causes else "",
        }
        for entry, name, table in sorted(entries(), key=lambda triple: rank(triple[0].item))
        if entry.measured or with_causes
    )
