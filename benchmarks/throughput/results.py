"""The rows of the suite: read from JSON lines, and grouped by machine and case.

The file of an earlier run is added to, never emptied. A case is left out if the file has a row of
every rival wanted, measured with the same machine, versions, commit and settings, and none of them
is doubtful. Of two rows for the same the report takes the later one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import rows_command
from benchmarks.rows_command import ReportError, Row
from benchmarks.throughput import rivals, timing
from benchmarks.throughput.cases import Case

Group = dict[str, Row]  # rival -> row
# Processor, instruction set, torch, npu_kernels, commit, matmul precision.
Machine = tuple[str, ...]
Groups = dict[tuple[Case, int], Group]  # case, threads

GPU = "cuda"  # of a row's device
NEEDED = (
    "layer", "kind", "rows", "inputs", "outputs", "models", "signs", "threads", "rival",
    "median_us", "ratio",
)  # fmt: skip
# Virtual machines give several processors one name. Family, model and stepping tell them apart; old
# rows lack these.
PROCESSORS = {
    ("AMD EPYC", None): "AMD Zen 4",
    ("AMD EPYC", "25/1/1"): "AMD Zen 3",
    ("AMD EPYC", "25/17/1"): "AMD Zen 4",
    ("AMD EPYC", "26/2/1"): "AMD Zen 5",
    ("Intel(R) Xeon(R) Processor", None): "Intel Sapphire Rapids",
    ("Intel(R) Xeon(R) Processor", "6/167/1"): "Intel Granite Rapids",
}
INSTRUCTION_SETS = "baseline", "avx2", "avx512", "avx512_bf16", "amx"  # a processor's best is shown


def read(paths: Iterable[Path]) -> list[Row]:
    """The rows of the files; ReportError names file and line."""
    rows = rows_command.read(*paths, needed=NEEDED)
    if not rows:
        raise ReportError("there are no rows")
    return rows


def processor_of(where: Mapping[str, Any]) -> str:
    """Return the name of a row's processor. where: the environment of the row."""
    name = where.get("processor") or "unknown"
    return PROCESSORS.get((name, where.get("processor_model")), name)


def _machine(row: Row) -> Machine:
    where = dict(row.get("environment", {}))
    where["processor"] = where.get("gpu", where.get("processor"))
    where["processor"] = processor_of(where)
    keys = ("processor", "instruction_set", "torch", "npu_kernels", "commit")
    facts = (str(where.get(key, "unknown")) for key in keys)
    return *facts, str(row.get("matmul_precision", "highest"))


def by_case(rows: Iterable[Row]) -> Groups:
    """(case, threads) -> rival -> row; of two rows for the same the later one counts."""
    groups: Groups = {}
    for row in rows:
        groups.setdefault((Case.from_dict(row), row["threads"]), {})[row["rival"]] = row
    return groups


def grouped(rows: Iterable[Row]) -> dict[Machine, Groups]:
    """The groups of each machine's rows."""
    machines: dict[Machine, list[Row]] = {}
    for row in rows:
        machines.setdefault(_machine(row), []).append(row)
    return {machine: by_case(of_machine) for machine, of_machine in machines.items()}


def chosen(rows: Iterable[Row], processor: str | None) -> tuple[Machine, Groups]:
    """A processor's full-precision rows with its best instruction set, or a ReportError.

    Of rows of several commits for the same case the newest count; the commits are joined.
    """
    machines = {m: groups for m, groups in grouped(rows).items() if m[-1] == "highest"}
    named = [pair for pair in machines.items() if processor in (None, pair[0][0])]
    if len({machine[0] for machine, _ in named}) != 1:
        names = ", ".join(dict.fromkeys(machine[0] for machine in machines))
        raise ReportError(f"--processor must name one of: {names}; got {processor}")

    def rank(pair: tuple[Machine, Groups]) -> tuple[int, str]:
        isa, rows = pair[0][1], [row for group in pair[1].values() for row in group.values()]
        newest = max(str(row.get("environment", {}).get("date", "")) for row in rows)
        sets = INSTRUCTION_SETS
        return sets.index(isa) if isa in sets else len(sets), newest

    (newest, groups), *earlier = sorted(named, key=rank, reverse=True)
    merged, commits = dict(groups), [newest[4]]
    for machine, older in earlier:
        added = older.keys() - merged.keys()
        if machine[:4] == newest[:4] and added:
            merged |= {case: older[case] for case in older if case in added}
            commits.append(machine[4])
    return (*newest[:4], " and ".join(commits), newest[5]), merged


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
