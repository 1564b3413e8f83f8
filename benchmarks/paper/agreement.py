"""How far our figures and tables agree with the paper's, in words; entries of the overview."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.paper import published
from benchmarks.paper.checks import Check
from benchmarks.paper.summary import SAME
from benchmarks.paper.tables import Rows

TEXT_AND_CODE = "[text and code](#where-the-papers-text-and-the-authors-code-disagree)"


@dataclass(frozen=True)
class Entry:
    """A figure or table of the paper."""

    item: str  # its name
    shows: str
    # From the rows of a table, those of the table beside it, and the file of its models.
    agreement: Callable[[Sequence[Rows], Path], str]
    why: str = "-"  # what is known of the reasons for differences, and what shows it
    measured: bool = True  # whether it has numbers of runs: then full runs are needed to judge


def counted(checks: Sequence[Check]) -> str:
    """Say how many checks hold, how many do not, and how many cannot be told."""
    counts = {value: sum(check.holds is value for check in checks) for value in (True, False, None)}
    words = {False: "do not", None: "cannot be told"}
    rest = [f"{counts[value]} {word}" for value, word in words.items() if counts[value]]
    return ", ".join([f"{counts[True]} of {len(checks)} checks hold", *rest])


def verdicts(cells: Sequence[tuple[str, str]], subject: str) -> str:
    """Say how many pairs of ours and the paper's do not differ, and name those that do.

    Args:
        cells: each pair's name and verdict.
        subject: what is compared.
    """
    words = {"**ours less": "ours less", "**ours greater": "ours greater", "**differs": "differ"}
    equal = sum(verdict.startswith(SAME) for _, verdict in cells)
    parts, judged = [f"{equal} of {len(cells)} {subject} do not differ"], equal
    for start, word in words.items():
        names = [name for name, verdict in cells if verdict.startswith(start)]
        parts += [f"{len(names)} {word} ({', '.join(names)})"] if names else []
        judged += len(names)
    unknown = len(cells) - judged
    return ", ".join([*parts, *([f"{unknown} cannot be judged yet"] if unknown else [])])


def unmeasured(item: str, shows: str) -> Entry:
    """A figure without numbers."""
    return Entry(item, shows, lambda rows, models: "no numbers", measured=False)


def definitions(item: str, shows: str) -> Entry:
    """A table of the appendix that defines a task: on how many points text and code disagree."""
    count = sum(item in str(row["place"]).split("; ") for row in published.load("text_and_code"))
    text = f"disagree on {count} point{'s' * (count > 1)}" if count else "agree"
    said = f"text and code {text}; ours is the code's"
    return Entry(item, shows, lambda rows, models: said, TEXT_AND_CODE, measured=False)
