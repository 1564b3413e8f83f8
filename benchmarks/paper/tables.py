"""Comma-separated files with comment lines (#) on top.

published/*.csv has the paper's numbers, as printed or plotted; each file names its source.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from npu_kernels._jobs import files

Rows = Sequence[dict[str, Any]]


def select(rows: Rows, **cell: Any) -> list[dict[str, Any]]:
    """Return the rows whose columns have the values of `cell`."""
    return [row for row in rows if all(row[name] == value for name, value in cell.items())]


def column(rows: Rows, name: str) -> list[float]:
    """Return a column's numbers; nan, of a run that diverged, counts as infinite."""
    return [math.inf if math.isnan(row[name]) else row[name] for row in rows]


def _cell(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def write(path: Path, comments: Iterable[str], columns: Sequence[str], rows: Rows) -> None:
    """Replace a table as a whole."""
    text = io.StringIO()
    text.writelines(f"# {comment}\n" for comment in comments)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row[column]) for column in columns] for row in rows)
    files.write(path, text.getvalue())


def read(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Return (comments, rows); what reads as a number is one."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line[1:].strip() for line in lines if line.startswith("#")]
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return comments, [{key: _value(text) for key, text in row.items()} for row in rows]


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def load(name: str) -> list[dict[str, Any]]:
    """A file's rows: "simple", "large", "pareto", "test_sets" and others."""
    return read(Path(__file__).parent / "published" / f"{name}.csv")[1]
