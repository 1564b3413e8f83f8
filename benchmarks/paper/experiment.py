"""The records of an experiment, for the command line, the runner, the report and the pictures."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.paper.checks import Check, Entry
from benchmarks.paper.runner import Batch
from benchmarks.paper.tables import Rows

Results = Sequence[tuple[Batch, dict[str, Any]]]  # finished batches


@dataclass(frozen=True)
class Sources:
    """What a picture is drawn from."""

    comments: Sequence[str]  # of the table
    rows: Rows
    models: Path  # the file of chosen models; it exists where the table names one


@dataclass(frozen=True)
class Table:
    """A table of results, and all that is made from it.

    `section`, `checks`, `short` and `guide` get its rows, and those of the table `beside` it.
    """

    name: str  # for people; the file is named after it
    title: str  # of its section in the report
    columns: tuple[str, ...]  # of the file
    section: Callable[..., str]  # the text and tables of the report
    checks: Callable[..., list[Check]]  # the verdict on a table of full runs
    short: Callable[..., str] | None = None  # the table that `--insert` puts into another file
    beside: str = ""  # the name of another table
    guide: Callable[..., str] | None = None  # the table of the guide to the layers
    key: Callable[[dict[str, Any]], Any] | None = None  # the order of the rows; else the batches'
    keep: Callable[[Results, Path], None] | None = None  # writes the models that others need
    models_section: Callable[[Path], str] | None = None  # what the report says of these models
    picture: Callable[[Sources, Path], bool] | None = None  # false where there is nothing to show
    picture_name: str = ""  # of the picture's file, without its suffix; else the table's
    entries: tuple[Entry, ...] = ()  # the figures and tables of the paper that it reproduces

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
class Experiment:
    """A name on the command line."""

    table: Table  # that it fills
    plan: Callable[[Namespace], list[Batch]]  # the batches of a command
    published: bool = True  # whether it is in the paper; the command "all" runs these
    units: tuple[str, ...] = ()  # of which the option `--units` selects; empty: no such option

    @property
    def name(self) -> str:
        return self.table.name
