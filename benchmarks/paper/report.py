"""The Markdown report: the paper and ours, difference, verdict, pictures, from a folder's tables.

`insert` puts the short tables into the blocks of a page: ``paper-NAME``, in the guide to the layers
``paper-NAME-guide``.

Pictures are made where matplotlib is installed, only from the tables and models of the folder. Each
has a title, the units of its axes, and a line that says what to look for. `overview` has each
figure and table of the paper beside ours: what it shows, our command, the agreement. Its entries
are those of the experiments' tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.drawing import SUFFIXES, available
from benchmarks.marked_blocks import record_table, renew, table
from benchmarks.paper import tables
from benchmarks.paper.checks import Check, Entry, unmeasured
from benchmarks.paper.experiment import Sources, Table
from benchmarks.paper.registry import TABLES
from npu_kernels._jobs import files

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
    return not any(word in first for word in ("quick", ", only "))


def entries() -> Iterator[tuple[Entry, str, Table | None]]:
    """All entries with the command that makes ours, and their table."""
    yield from ((entry, "", None) for entry in DIAGRAMS)
    for name, of_results in TABLES.items():
        yield from ((entry, name, of_results) for entry in of_results.entries)


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


def verdicts(checks: Sequence[Check]) -> str:
    """The acceptance numbers, those that do not hold first."""
    failed, unknown, held = (
        [check for check in checks if check.holds is value] for value in (False, None, True)
    )
    text = (
        f"{len(held)} of {len(checks)} hold, {len(failed)} do not, of {len(unknown)} "
        "these runs cannot tell. In brackets: the 95 % interval of the statistic; a check holds "
        "where the whole interval is as wanted, and does not where none of it is.\n\n"
    )
    lines = [[c.subject, c.rule, c.result, c.verdict] for c in (*failed, *unknown, *held)]
    return text + table(["number", "wanted", "found", "verdict"], lines)


def full(folder: Path) -> str:
    """The report: all tables, checks and pictures of the folder."""
    parts = [
        '# "Neural Power Units", reproduced\n',
        "Made by `python -m benchmarks.paper`; every number comes from the tables in this folder. "
        "A run's numbers depend on its seed alone, not on the runs beside it or on the number of "
        "processes; another processor or version of torch rounds differently, which training "
        "amplifies.\n",
    ]
    results = [table for table in TABLES.values() if (folder / table.file).exists()]
    parts += [
        "## Every figure and table of the paper\n",
        "Ours *differs* where chance alone makes two numbers differ so much with a probability "
        "below 0.05; of twenty pairs one does by chance.\n",
        overview(folder),
        "## Where the paper's text and the authors' code disagree\n",
        "All other tables follow the code, which made the published numbers.\n",
        record_table(tables.load("text_and_code")),
    ]
    for of_results in results:
        parts += _section(folder, of_results)
    return "\n".join(parts)


def _section(folder: Path, of_results: Table) -> list[str]:
    """The parts of one table's section."""
    comments, rows = contents(folder, of_results)
    parts = [f"## {of_results.title}\n", "\n".join(f"- {comment}" for comment in comments) + "\n"]
    parts.append(of_results.section(*rows))
    models = folder / of_results.models_file
    if of_results.models_section is not None:
        parts.append(of_results.models_section(models) if models.exists() else "")
    picture = drawn(of_results, folder)
    if picture is not None:
        parts.append(f"![{of_results.title}]({picture})\n")
    unjudged = "None: the paper's numbers are for all steps.\n"
    judged = verdicts(of_results.checks(*rows)) if is_full(comments) else unjudged
    return [*parts, "### Verdict\n", judged]


def write(folder: Path) -> Path:
    """Make report.md from the tables of the folder; return its path."""
    files.write(folder / "report.md", full(folder))
    return folder / "report.md"


def is_full(comments: Sequence[str]) -> bool:
    """Whether a table is of complete, full runs of the authors' code, like the paper's."""
    return is_of_full_runs(list(comments)) and not (comments and "incomplete" in comments[0])


def insert(folder: Path, target: Path) -> list[str]:
    """Renew the blocks of a page; returns the names of those that it has."""
    text, blocks = target.read_text(encoding="utf-8"), {}
    if "<!-- paper-overview:begin -->" in text:
        blocks["paper-overview"] = overview(folder, with_causes=False).strip()
    for of_results in TABLES.values():
        if not (folder / of_results.file).exists():
            continue
        name = f"paper-{of_results.name}"
        for mark, make in ((name, of_results.short), (f"{name}-guide", of_results.guide)):
            if make is not None and f"<!-- {mark}:begin -->" in text:
                blocks[mark] = make(*contents(folder, of_results)[1]).strip()
    renew(target, blocks)
    return list(blocks)


def draw(table: Table, folder: Path, suffix: str = "png") -> Path | None:
    """Draw a table's picture; None where it has none, or the files are not there."""
    models = folder / table.models_file
    missing = not (folder / table.file).exists() or (table.keep and not models.exists())
    if table.picture is None or missing:
        return None
    comments, rows = tables.read(folder / table.file)
    path = folder / table.picture_file(suffix)
    return path if table.picture(Sources(comments, rows, models), path) else None


def draw_all(folder: Path, suffix: str) -> list[Path]:
    """All pictures that the folder has the numbers for; none without matplotlib."""
    if not available():
        return []
    return [path for table in TABLES.values() if (path := draw(table, folder, suffix)) is not None]


def drawn(table: Table, folder: Path) -> str | None:
    """The file name of a table's picture in the folder, if there is one."""
    names = [table.picture_file(suffix) for suffix in SUFFIXES] if table.picture else []
    return next((name for name in names if (folder / name).exists()), None)
