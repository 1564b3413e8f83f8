"""The results of one experiment so far: printed, in its table, in its pictures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.drawing import available
from benchmarks.durations import duration
from benchmarks.paper import report, tables
from benchmarks.paper.experiment import Experiment
from benchmarks.paper.runner import Batch, Folder
from npu_kernels._jobs import files
from npu_kernels.env import environment


class Session:
    """One command's part of an experiment; `processes` is for the table's comments."""

    def __init__(
        self, experiment: Experiment, options: argparse.Namespace, batches: Sequence[Batch],
        folder: Folder, processes: int,
    ) -> None:  # fmt: skip
        self.experiment, self.options, self.batches = experiment, options, batches
        self.folder, self.processes = folder, processes
        self.table = experiment.filled(options)
        self.parts = experiment.rounds(options) if experiment.rounds else [list(batches)]
        self.results: dict[str, dict[str, Any]] = {}  # by the batch's name
        self.start = time.monotonic()
        names = {batch.name for batch in batches}
        self._part = next(part for part in self.parts if names <= {batch.name for batch in part})
        self._before = self._seconds(self._part)
        remaining = (batch for part in self.parts for batch in part if batch.name not in names)
        self._others = [batch for batch in remaining if folder.is_done(batch)]
        self.results.update((batch.name, folder.result(batch)) for batch in self._others)

    def _clock(self, part: Sequence[Batch]) -> Path:
        return self.folder.path / f"{min(batch.name for batch in part)}.seconds"

    def _seconds(self, part: Sequence[Batch]) -> float:
        clock = self._clock(part)
        return float(clock.read_text()) if clock.exists() else 0.0

    def announce(self, batch: Batch, result: dict[str, Any]) -> None:
        """Print the rows of a finished batch and add them to the table."""
        self.results[batch.name] = result
        for row in result["rows"]:
            cells = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print("  ".join(cells))
        self._try(self._write)

    def finish(self, complete: bool) -> None:
        """End a command; if all batches are done, write what is made from them."""
        table, out = self.table, self.options.out
        if self.results:
            self._write()
        if complete and table.keep is not None:
            table.keep(self.pairs(), out / table.models_file)
        if complete and table.picture is not None:
            if available():
                report.draw(table, out, self.options.format)
            else:
                print(f"{table.name}: no picture, matplotlib is not installed")

    def pairs(self) -> list[tuple[Batch, dict[str, Any]]]:
        """The finished batches, in the order of the table."""
        ordered = [*self._others, *self.batches]
        return [(b, self.results[b.name]) for b in ordered if b.name in self.results]

    def wall(self) -> float:
        """Seconds of all commands on these batches until now, without the idle time between."""
        wall = self._before + time.monotonic() - self.start
        self._try(lambda: files.write(self._clock(self._part), f"{wall:.1f}"))
        return wall

    def _try(self, write: Callable[[], None]) -> None:
        """Write; a failure is only reported, because the next write contains everything again."""
        try:
            write()
        except OSError as error:
            path = error.filename or self.folder.path
            print(f"\n{path} could not be written: {error.strerror}", file=sys.stderr)

    def _write(self) -> None:
        rows = [row for _, result in self.pairs() for row in result["rows"]]
        if self.table.key is not None:
            rows.sort(key=self.table.key)
        path, comments = self.options.out / self.table.file, self._comments()
        tables.write(path, comments, self.table.columns, rows)

    def _comments(self) -> list[str]:
        """The table's contents, the machine, the versions, the time."""
        facts, options = environment(), self.options
        subset = self.experiment.subset(options)
        on_gpu = torch.device(options.device).type == "cuda"
        device = facts["cuda" if on_gpu else "cpu instruction set"]
        lacking = f"incomplete: {self.missing} of {len(self.batches)} batches are missing"
        title = [
            self.table.name,
            f"variant {options.variant}" if self.experiment.variants else "",
            subset,
            "quick: few steps" if options.quick else "",
            lacking if self.missing else "",
        ]
        return [
            ", ".join(filter(None, title)),
            f"{facts['processor']}, {facts['cores']} cores, {device}, {facts['system']}",
            f"npu_kernels {facts['npu_kernels']}, torch {facts['torch']}, Python {facts['python']}",
            self.line(),
        ]

    @property
    def missing(self) -> int:
        """The number of batches of the command that are not done."""
        return sum(batch.name not in self.results for batch in self.batches)

    def line(self) -> str:
        """The time of all rounds that share the table."""
        rounds = sum(self._seconds(part) for part in self.parts if part is not self._part)
        wall = f"wall time {duration(rounds + self.wall())} with {self.processes} processes"
        seconds = sum(result["seconds"] for result in self.results.values())
        return f"{wall}; {duration(seconds)} of work in all"
