"""Checks with a verdict of three values, of single values and of statistics of runs.

A statistic of runs is judged by its 95 % interval. The check holds if the whole interval obeys the
rule, and does not hold if no part of it does; otherwise these runs cannot tell. A value that no
chance changes has no interval.

An `Entry` of the overview says in words how far a figure or table agrees with the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.paper import tables
from benchmarks.paper.summary import MIN_RUNS, SAME, Statistic, interval, number, samples, wilson
from benchmarks.paper.tables import Rows

SURE = 0.975  # share of a bootstrap's samples from which on an order holds


@dataclass(frozen=True)
class Check:
    """One number that a reproduction has to reach."""

    subject: str
    rule: str
    result: str
    holds: bool | None  # None where these runs cannot tell
    why: str = ""  # what is known of the reason, where it does not hold or cannot be told

    @property
    def verdict(self) -> str:
        if self.holds:
            return "holds"
        word = "**does not hold**" if self.holds is False else "cannot be told"
        return f"{word}: {self.why}" if self.why else word


def explained(check: Check, why: str) -> Check:
    """The check with its reason, should it not hold."""
    return replace(check, why=why)


def judged(
    subject: str, value: float, around: tuple[float, float] | None, low: float, high: float
) -> Check:
    """Judge a value by its 95 % interval; without one nothing can be told."""
    if around is None:
        return Check(subject, _range(low, high), number(value), None, "too few runs")
    inside, outside = low <= around[0] and around[1] <= high, around[1] < low or high < around[0]
    result = f"{number(value)} ({number(around[0])} to {number(around[1])})"
    holds = True if inside else False if outside else None
    return Check(subject, _range(low, high), result, holds)


def _range(low: float, high: float) -> str:
    if low == -math.inf:
        return f"≤ {number(high)}"
    return f"≥ {number(low)}" if high == math.inf else f"{number(low)} to {number(high)}"


def statistic(
    subject: str, of: Statistic, values: Sequence[float], low: float, high: float
) -> Check:
    """Judge a statistic of independent runs."""
    return judged(subject, of(values), interval(of, values), low, high)


def share(subject: str, count: int, total: int, low: float, high: float) -> Check:
    """Judge a share of independent runs."""
    return judged(subject, count / max(1, total), wilson(count, total), low, high)


def within(subject: str, value: float, low: float, high: float) -> Check:
    """Judge a value that no chance changes, or one that is only about these very runs."""
    return Check(subject, _range(low, high), number(value), low <= value <= high)


def at_most(subject: str, value: float, high: float) -> Check:
    return within(subject, value, -math.inf, high)


def order(
    subject: str, rule: str, values: Sequence[float], samples: Sequence[bool] | None
) -> Check:
    """Judge an order of statistics by the bootstrap's samples that have it; None: too few runs."""
    result = ", ".join(map(number, values))
    if samples is None:
        return Check(subject, rule, result, None, "too few runs")
    part = sum(samples) / len(samples)
    holds = True if part >= SURE else False if part <= 1 - SURE else None
    return Check(subject, rule, f"{result} (in {100 * part:.0f} % of samples)", holds)


def ranked(
    subject: str, rule: str, of: Statistic, groups: Sequence[Sequence[float]],
    holds: Callable[..., bool],
) -> Check:  # fmt: skip
    """Judge an order of the statistics of groups of runs: `holds` gets a number of each group."""
    values = [of(group) for group in groups]
    if any(len(group) < MIN_RUNS for group in groups):
        return order(subject, rule, values, None)
    drawn = zip(*(map(of, samples(group, key)) for key, group in enumerate(groups)), strict=True)
    return order(subject, rule, values, [holds(*sample) for sample in drawn])


# ---- the figures and tables of the paper ---------------------------------------------------------


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
    count = sum(item in str(row["place"]).split("; ") for row in tables.load("text_and_code"))
    text = f"disagree on {count} point{'s' * (count > 1)}" if count else "agree"
    said = f"text and code {text}; ours is the code's"
    return Entry(item, shows, lambda rows, models: said, TEXT_AND_CODE, measured=False)
