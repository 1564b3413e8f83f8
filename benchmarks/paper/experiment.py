"""What the command line, the runner, the report and the pictures know of an experiment."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.durations import duration
from benchmarks.paper.agreement import Entry
from benchmarks.paper.checks import Check
from benchmarks.paper.runner import Batch, Folder
from benchmarks.paper.tables import Rows

VARIANTS = ("code", "paper")  # what the authors ran, or wrote
Results = Sequence[tuple[Batch, dict[str, Any]]]  # finished batches


@dataclass(frozen=True)
class Sources:
    """What a picture is drawn from.

    Args:
        comments, rows: of the table.
        models: the file of chosen models; it exists where the table names one.
    """

    comments: Sequence[str]
    rows: Rows
    models: Path


@dataclass(frozen=True)
class Table:
    """A table of results, and all that is made from it.

    Args:
        name: for people; the file is named after it.
        title: of its section in the report.
        columns: of the file.
        section: the text and tables of the report.
        checks: the verdict on a table of full runs.
        short: the table that `--insert` puts into another file.
        beside: the name of another table, whose rows these three get as a second argument; empty: they get none.
        guide: the table that `--insert` puts into the guide to the layers.
        key: the order of the rows; without it that of the batches.
        keep: writes the models that pictures and report need, from the finished batches.
        models_section: what the report says of these models.
        picture: draws from the sources to a path; false where there is nothing to show.
        picture_name: of the picture's file, without its suffix; the table's name unless given.
        entries: the figures and tables of the paper that it reproduces.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    section: Callable[..., str]
    checks: Callable[..., list[Check]]
    short: Callable[..., str] | None = None
    beside: str = ""
    guide: Callable[..., str] | None = None
    key: Callable[[dict[str, Any]], Any] | None = None
    keep: Callable[[Results, Path], None] | None = None
    models_section: Callable[[Path], str] | None = None
    picture: Callable[[Sources, Path], bool] | None = None
    picture_name: str = ""
    entries: tuple[Entry, ...] = ()

    @property
    def stem(self) -> str:
        """The name of its files."""
        return self.name.replace("-", "_")

    @property
    def file(self) -> str:
        return f"{self.stem}.csv"

    @property
    def models_file(self) -> str:
        return f"{self.stem}_models.json"

    def picture_file(self, suffix: str) -> str:
        return f"{self.picture_name or self.stem}.{suffix}"


@dataclass(frozen=True)
class Option:
    """An option of the command line that only some experiments have.

    Args:
        name: without the dashes.
        values: from which one or, with `several`, more may be chosen.
        help: one line.
        default: a value, or None for all.
        several: whether it takes more than one value.
    """

    name: str
    values: tuple[str, ...]
    help: str
    default: str | None = None
    several: bool = False


@dataclass(frozen=True)
class Account:
    """The work that produced a table.

    Args:
        options: of the command.
        folder: the runner's.
        batches: of the command.
        parts: the rounds of work that share the table, each with its wall time; one of them holds `batches`.
        results: of the finished batches, by their names.
        wall: seconds of the commands that worked on `batches`.
        processes: how many work.
    """

    options: Namespace
    folder: Folder
    batches: Sequence[Batch]
    parts: Sequence[tuple[Sequence[Batch], float]]
    results: dict[str, dict[str, Any]]
    wall: float
    processes: int

    @property
    def missing(self) -> int:
        """How many batches of the command are not done."""
        return sum(batch.name not in self.results for batch in self.batches)

    @property
    def seconds(self) -> float:
        """Of work, in all processes."""
        return sum(result["seconds"] for result in self.results.values())

    def line(self) -> str:
        """What most tables say."""
        work = duration(self.seconds)
        return f"wall time {duration(self.wall)} with {self.processes} processes; {work} of work in all"


@dataclass(frozen=True)
class Experiment:
    """A name on the command line.

    Args:
        name: what one types.
        tables: that it can fill.
        plan: the batches of a command.
        published: whether it is in the paper; the command "all" runs these.
        variants: that it has.
        options: beside those that all experiments have.
        wrong: what is wrong with the options together; empty if nothing.
        table: which of the tables a command fills; the first unless given.
        rounds: all batches that share the table, the rounds of work one by one; `plan` is a part of one of them.
        subset: what of the experiment a command leaves out, for the table's comments; empty if nothing.
        finish: called when all batches of a command are done.
        times: the table's comments on time, instead of the usual line.
    """

    name: str
    tables: tuple[Table, ...]
    plan: Callable[[Namespace], list[Batch]]
    published: bool = True
    variants: tuple[str, ...] = VARIANTS
    options: tuple[Option, ...] = ()
    wrong: Callable[[Namespace], str] = field(default=lambda options: "")
    table: Callable[[Namespace], str] | None = None
    rounds: Callable[[Namespace], list[list[Batch]]] | None = None
    subset: Callable[[Namespace], str] = field(default=lambda options: "")
    finish: Callable[[Namespace, Folder], None] | None = None
    times: Callable[[Account], list[str]] | None = None

    def filled(self, options: Namespace) -> Table:
        """The table that a command fills."""
        if self.table is None:
            return self.tables[0]
        name = self.table(options)
        return next(table for table in self.tables if table.name == name)
