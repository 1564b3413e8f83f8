"""Rows of an earlier run of the suite: their file is added to, never emptied.

A case is left out if the file has a row of every rival wanted, measured with the same machine,
versions, commit and settings, and none of them is doubtful. Of two rows for the same the report
takes the later one.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks.throughput import rivals, timing
from benchmarks.throughput.cases import Case
from benchmarks.throughput.results import ReportError, read
from npu_kernels._jobs import files

Row = dict[str, Any]
# What differs between environments of runs that may be put together.
PASSING = ("date", "load_average")
BEGINNING = '{"layer": '  # of every row


def earlier(path: Path) -> list[Row]:
    """The rows of a file that a run is to go on with; a last line that a kill cut off is removed.

    Raises ReportError for a file with other content, and does not change it.
    """
    if not path.exists():
        return []
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise ReportError(f"{path} is no text: {error}") from None
    complete, _, torn = text.rpartition("\n")
    if torn and not _is_row(torn):
        if not (torn.startswith(BEGINNING) or BEGINNING.startswith(torn)):
            raise ReportError(f"{path} holds no rows of the suite")
        text = complete + "\n" if complete else ""
    elif torn:
        text += "\n"
    rows = read([path], text) if text.strip() else []
    if torn:
        files.write(path, text)
    return rows


def _is_row(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


class Earlier:
    """The cases that need no measuring.

    Args:
        rows: of the file.
        common: fields that a row must have with the same values: ``environment`` (but for the date
            and the load), and what else decides it.
    """

    def __init__(self, rows: Sequence[Row], common: Row) -> None:
        settled = _settled(common)
        self._rows: dict[tuple[Case, int], dict[str, Row]] = {}
        for row in rows:
            if _settled({key: row.get(key) for key in common}) == settled:
                self._rows.setdefault((Case.from_dict(row), row["threads"]), {})[row["rival"]] = row

    def rows(self, case: Case, names: Collection[str], threads: int, device: str) -> list[Row]:
        """The rows of a case, if none is missing or doubtful; else none."""
        rows = self._rows.get((case, threads), {})
        needed = [
            name
            for name in dict.fromkeys((rivals.OURS, *names))
            if rivals.not_applicable(name, case, threads, device) is None
        ]
        if any(name not in rows or timing.doubtful(rows[name]) for name in needed):
            return []
        return [rows[name] for name in needed]


def _settled(fields: Row) -> Row:
    where = fields.get("environment") or {}
    lasting = {key: value for key, value in where.items() if key not in PASSING}
    return {**fields, "environment": lasting}
