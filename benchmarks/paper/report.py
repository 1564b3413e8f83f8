"""The Markdown report: the paper and ours, difference, verdict, pictures. Made only from the tables in the folder.

`insert` puts the short tables into the blocks of a page: ``paper-NAME``, in the guide to the layers
``paper-NAME-guide``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.blocks import record_table, renew, table
from benchmarks.paper import pictures, published
from benchmarks.paper.checks import Check
from benchmarks.paper.overview import contents, is_of_full_runs, overview
from benchmarks.paper.registry import TABLES
from npu_kernels._jobs import files


def verdicts(checks: Sequence[Check]) -> str:
    """The acceptance numbers, those that do not hold first."""
    open_, failed = ([check for check in checks if check.holds is value] for value in (None, False))
    text = (
        f"{len(checks) - len(open_) - len(failed)} of {len(checks)} hold, {len(failed)} do not, of {len(open_)} "
        "these runs cannot tell. In brackets: the 95 % interval of the statistic; a check holds where the whole "
        "interval is as wanted, and does not where none of it is.\n\n"
    )
    held = [check for check in checks if check.holds]
    lines = [
        [check.what, check.wanted, check.found, check.verdict] for check in [*failed, *open_, *held]
    ]
    return text + table(["number", "wanted", "found", "verdict"], lines)


def full(folder: Path) -> str:
    """The report: all tables, checks and pictures of the folder."""
    parts = [
        '# "Neural Power Units", reproduced\n',
        "Made by `python -m benchmarks.paper`; every number comes from the tables in this folder. A run's numbers "
        "depend on its seed alone, not on the runs beside it or on the number of processes; another processor or "
        "version of torch rounds differently, which training amplifies.\n",
        "## Every figure and table of the paper\n",
        "Ours *differs* where chance alone makes two numbers differ so much with a probability below 0.05; of twenty "
        "pairs one does by chance.\n",
        overview(folder),
        "## Where the paper's text and the authors' code disagree\n",
        "All other tables follow the code, which made the published numbers.\n",
        text_and_code(),
    ]
    for one in TABLES.values():
        if not (folder / one.file).exists():
            continue
        comments, rows = contents(folder, one)
        parts += [
            f"## {one.title}\n",
            "\n".join(f"- {comment}" for comment in comments) + "\n",
            one.section(*rows),
        ]
        models = folder / one.models_file
        if one.models_section is not None:
            parts.append(one.models_section(models) if models.exists() else "")
        picture = pictures.drawn(one, folder)
        if picture is not None:
            parts.append(f"![{one.title}]({picture})\n")
        parts.append("### Verdict\n")
        judged = is_full(comments)
        parts.append(
            verdicts(one.checks(*rows))
            if judged
            else "None: the paper's numbers are for variant code and all steps.\n"
        )
    return "\n".join(parts)


def write(folder: Path) -> Path:
    """Make report.md from the tables that are there; returns its path."""
    files.write(folder / "report.md", full(folder))
    return folder / "report.md"


def is_full(comments: Sequence[str]) -> bool:
    """Whether a table is of complete, full runs of the authors' code: only then it is compared with the paper's
    numbers.
    """
    return is_of_full_runs(list(comments)) and not (comments and "incomplete" in comments[0])


def text_and_code() -> str:
    """Where the paper's text and its authors' code disagree."""
    return record_table(published.load("text_and_code"))


def insert(folder: Path, target: Path) -> list[str]:
    """Renew the blocks of a page; returns the names of those that it has."""
    text, blocks = target.read_text(encoding="utf-8"), {}
    if "<!-- paper-overview:begin -->" in text:
        blocks["paper-overview"] = overview(folder, with_causes=False).strip()
    for one in TABLES.values():
        for name, make in (
            (f"paper-{one.name}", one.short),
            (f"paper-{one.name}-guide", one.guide),
        ):
            if (
                make is not None
                and f"<!-- {name}:begin -->" in text
                and (folder / one.file).exists()
            ):
                blocks[name] = make(*contents(folder, one)[1]).strip()
    renew(target, blocks)
    return list(blocks)
