"""The Markdown report: the paper and ours, difference, verdict, pictures. Made only from the tables in the folder.

`insert` puts the short tables into another Markdown file, between ``<!-- paper: NAME -->`` and ``<!-- end -->``,
and those of the guide to the layers between ``<!-- paper: NAME, guide -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.paper import pictures, published
from benchmarks.paper.checks import Check
from benchmarks.paper.experiment import Table
from benchmarks.paper.markdown import table
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
    lines = [[check.what, check.wanted, check.found, check.verdict] for check in [*failed, *open_, *held]]
    return text + table(["number", "wanted", "found", "verdict"], lines)


def write(folder: Path) -> Path:
    """Make report.md from the tables that are there; returns its path."""
    parts = [
        '# "Neural Power Units", reproduced\n',
        "Made by `python -m benchmarks.paper`; every number comes from the tables in this folder. A run's numbers "
        "depend on its seed alone, not on the runs beside it or on the number of processes; another processor or "
        "version of torch rounds differently, which training amplifies.\n",
    ]
    for one in TABLES.values():
        if not (folder / one.file).exists():
            continue
        comments, rows = contents(folder, one)
        parts += [f"## {one.title}\n", "\n".join(f"- {comment}" for comment in comments) + "\n", one.section(*rows)]
        models = folder / one.models_file
        if one.models_section is not None:
            parts.append(one.models_section(models) if models.exists() else "")
        picture = pictures.drawn(one, folder)
        if picture is not None:
            parts.append(f"![{one.title}]({picture})\n")
        parts.append("### Verdict\n")
        judged = is_full(comments)
        parts.append(
            verdicts(one.checks(*rows)) if judged else "None: the paper's numbers are for variant code and all steps.\n"
        )
    path = folder / "report.md"
    files.write(path, "\n".join(parts))
    return path


def is_full(comments: Sequence[str]) -> bool:
    """Whether a table is of complete, full runs of the authors' code: only then it is compared with the paper's
    numbers.
    """
    return is_of_full_runs(list(comments)) and not (comments and "incomplete" in comments[0])


def text_and_code() -> str:
    """Where the paper's text and its authors' code disagree."""
    names = ("experiment", "text", "code", "place")
    return table(names, ([str(row[name]) for name in names] for row in published.load("text_and_code")))


def _block(folder: Path, one: Table, made: Callable[..., str]) -> str:
    return made(*contents(folder, one)[1])


def _blocks(folder: Path) -> dict[str, Callable[[], str]]:
    """The functions that make blocks, by the names in the marks."""
    blocks: dict[str, Callable[[], str]] = {}
    for one in TABLES.values():
        for name, made in ((one.name, one.short), (f"{one.name}, guide", one.guide)):
            if made is not None and (folder / one.file).exists():
                blocks[name] = partial(_block, folder, one, made)
    return {**blocks, "text-and-code": text_and_code, "overview": lambda: overview(folder)}


def insert(folder: Path, target: Path) -> list[str]:
    """Put the tables into a Markdown file, between its marks; returns the names of those it has marks for."""
    text, names = target.read_text(encoding="utf-8"), []
    for name, made in _blocks(folder).items():
        pattern = re.compile(rf"(<!-- paper: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if pattern.search(text):
            content = made()
            text = pattern.sub(lambda match, content=content: match[1] + content + match[2], text)  # type: ignore[misc]
            names.append(name)
    files.write(target, text)
    return names
