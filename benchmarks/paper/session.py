"""The results of one experiment so far: printed, in its table, in its pictures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from benchmarks.drawing import available
from benchmarks.paper import report, tables
from benchmarks.paper.experiment import Experiment
from benchmarks.paper.runner import Batch, Folder
from npu_kernels.env import environment


class Session:
    """One command's part of an experiment."""

    def __init__(
        self, experiment: Experiment, options: argparse.Namespace, batches: Sequence[Batch],
        folder: Folder,
    ) -> None:  # fmt: skip
        self.experiment, self.options, self.batches = experiment, options, batches
        self.table, names = experiment.table, {batch.name for batch in batches}
        # Those of other commands that fill the same table.
        whole = experiment.plan(argparse.Namespace(**{**vars(options), "units": None}))
        beside = [b for b in whole if b.name not in names and folder.is_done(b)]
        self._ordered = [*beside, *batches]
        self.results = {b.name: folder.result(b) for b in beside}  # by the batch's name

    def announce(self, batch: Batch, result: dict[str, Any]) -> None:
        """Print the rows of a finished batch and add them to the table."""
        self.results[batch.name] = result
        for row in result["rows"]:
            cells = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            print("  ".join(cells))
        try:
            self._write()
        except OSError as error:  # the next write contains everything again
            print(f"\n{error.filename} could not be written: {error.strerror}", file=sys.stderr)

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
        return [(b, self.results[b.name]) for b in self._ordered if b.name in self.results]

    def _write(self) -> None:
        rows = [row for _, result in self.pairs() for row in result["rows"]]
        if self.table.key is not None:
            rows.sort(key=self.table.key)
        path, comments = self.options.out / self.table.file, self._comments()
        tables.write(path, comments, self.table.columns, rows)

    def _comments(self) -> list[str]:
        """The table's contents, the machine, the versions, the work."""
        facts, options = environment(), self.options
        subset = f"only {', '.join(options.units)}" if options.units else ""
        on_gpu = torch.device(options.device).type == "cuda"
        device = facts["cuda" if on_gpu else "cpu instruction set"]
        missing = sum(batch.name not in self.results for batch in self.batches)
        lacking = f"incomplete: {missing} of {len(self.batches)} batches are missing"
        seconds = sum(result["seconds"] for result in self.results.values())
        title = [
            self.table.name,
            subset,
            "quick: few steps" if options.quick else "",
            lacking if missing else "",
        ]
        return [
            ", ".join(filter(None, title)),
            f"{facts['processor']}, {facts['cores']} cores, {device}, {facts['system']}",
            f"npu_kernels {facts['npu_kernels']}, torch {facts['torch']}, Python {facts['python']}",
            f"{timedelta(seconds=round(seconds))} h of work",
        ]
