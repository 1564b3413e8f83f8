"""Rows of an earlier run of the suite: their file is added to, never emptied.

A case is left out if the file has a row of every rival wanted, measured with the same machine,
versions, commit and settings, and none of them is doubtful. Of two rows for the same the report
takes the later one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from benchmarks.rows_command import Row
from benchmarks.throughput import rivals, timing
from benchmarks.throughput.cases import Case
from benchmarks.throughput.results import Group, Groups, by_case

# What differs between environments of runs that may be put together.
PASSING = ("date", "load_average")


def usable(rows: Iterable[Row], common: Row) -> Groups:
    """The rows whose fields of `common` are the same, but for the date and the load."""
    settled = _settled(common)
    return by_case(row for row in rows if _settled({k: row.get(k) for k in common}) == settled)


def complete(
    group: Group, case: Case, names: Collection[str], threads: int, device: str
) -> list[Row]:
    """The rows of a case, if none is missing or doubtful; else none."""
    needed = [
        name
        for name in dict.fromkeys((rivals.OURS, *names))
        if rivals.not_applicable(name, case, threads, device) is None
    ]
    if any(name not in group or timing.doubtful(group[name]) for name in needed):
        return []
    return [group[name] for name in needed]


def _settled(fields: Row) -> Row:
    where = fields.get("environment") or {}
    lasting = {key: value for key, value in where.items() if key not in PASSING}
    return {**fields, "environment": lasting}
