"""How far our figures and tables agree with the paper's, in words, and what an entry of the overview is."""

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
    """A figure or table of the paper.

    Args:
        item, shows: its name, and what it shows.
        agreement: from the rows of a table, with those of the table beside it, and the file of its models.
        why: what is known of the reasons for differences, and which experiment shows it.
        measured: whether it has numbers of runs; then there is nothing to say without full runs.
    """

    item: str
    shows: str
    agreement: Callable[[Sequence[Rows], Path], str]
    why: str = "-"
    measured: bool = True


def counted(checks: Sequence[Check]) -> str:
    """How many checks hold."""
    found = [sum(check.holds is value for check in checks) for value in (True, False, None)]
    parts = [f"{found[0]} of {len(checks)} checks hold"]
    parts += [
        f"{count} {word}"
        for count, word in zip(found[1:], ("do not", "cannot be told"), strict=True)
        if count
    ]
    return ", ".join(parts)


def verdicts(cells: Sequence[tuple[str, str]], what: str) -> str:
    """How many pairs of ours and the paper's do not differ, which do, and of how many nothing can be said.

    Args:
        cells: each pair's name and verdict.
        what: is compared.
    """
    words = (SAME, "**ours less", "**ours greater", "**differs")
    same, less, greater, differ = (
        [name for name, verdict in cells if verdict.startswith(w)] for w in words
    )
    left = len(cells) - sum(map(len, (same, less, greater, differ)))
    parts = [f"{len(same)} of {len(cells)} {what} do not differ"]
    parts += [
        f"{len(names)} {word} ({', '.join(names)})"
        for names, word in ((less, "ours less"), (greater, "ours greater"), (differ, "differ"))
        if names
    ]
    return ", ".join([*parts, *([f"{left} cannot be judged yet"] if left else [])])


def unmeasured(item: str, shows: str) -> Entry:
    """A figure without numbers."""
    return Entry(item, shows, lambda rows, models: "no numbers", measured=False)


def definitions(item: str, shows: str) -> Entry:
    """A table of the appendix that says what was run: on how many points text and code disagree."""
    count = sum(item in str(row["place"]).split("; ") for row in published.load("text_and_code"))
    said = (
        "text and code agree"
        if not count
        else f"text and code disagree on {count} point{'s' * (count > 1)}"
    )
    return Entry(
        item,
        shows,
        lambda rows, models: f"{said}; ours is the code's",
        TEXT_AND_CODE,
        measured=False,
    )
