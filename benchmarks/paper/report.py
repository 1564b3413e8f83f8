"""The Markdown report: the paper and ours, difference, verdict, pictures, from a folder's tables.

`insert` puts the short tables into the blocks of a page: ``paper-NAME``, in the guide to the layers
``paper-NAME-guide``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.marked_blocks import record_table, renew, table
from benchmarks.paper import pictures, published
from benchmarks.paper.checks import Check
from benchmarks.paper.experiment import Table
from benchmarks.paper.overview import contents, is_of_full_runs, overview
from benchmarks.paper.registry import TABLES
from npu_kernels._jobs import files


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
    there = [table for table in TABLES.values() if (folder / table.file).exists()]
    variants = [any("variant paper" in c for c in contents(folder, table)[0]) for table in there]
    if not variants or not all(variants):  # the paper's numbers are those of the code
        parts += [
            "## Every figure and table of the paper\n",
            "Ours *differs* where chance alone makes two numbers differ so much with a probability "
            "below 0.05; of twenty pairs one does by chance.\n",
            overview(folder),
            "## Where the paper's text and the authors' code disagree\n",
            "All other tables follow the code, which made the published numbers.\n",
            record_table(published.load("text_and_code")),
        ]
    for of_results in there:
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
    picture = pictures.drawn(of_results, folder)
    if picture is not None:
        parts.append(f"![{of_results.title}]({picture})\n")
    unjudged = "None: the paper's numbers are for variant code and all steps.\n"
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
