"""What one experiment has found so far: printed, in its table with comments on top, in its pictures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.paper import eager, fsir, fsir_report, gradient_surface, large, pictures, report, simple, tables
from benchmarks.paper.runner import Batch, Folder, write_file
from benchmarks.paper.workers import duration
from npu_kernels.env import environment

MODULES = {"gradient-surface": gradient_surface, "simple": simple, "large": large, "fsir": fsir, "fsir-rk4": fsir}
ORDER = ["add", "mul", "div", "sqrt", "NPU", "RealNPU", "NMU", "NALU", "iNALU", "NaiveNPU", "Dense"]


@dataclass
class Session:
    """One command's part of an experiment.

    Args:
        name: of the experiment.
        options: of the command line.
        batches: all of the experiment, in the order of the table.
        folder: the runner's.
        processes: how many work, for the table's comments.
    """

    name: str
    options: argparse.Namespace
    batches: Sequence[Batch]
    folder: Folder
    processes: int
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the batch's name

    def __post_init__(self) -> None:
        self.start = time.monotonic()
        self._clock = self.folder.path / f"{min(batch.name for batch in self.batches)}.seconds"
        self._before = float(self._clock.read_text()) if self._clock.exists() else 0.0

    def announce(self, batch: Batch, result: dict[str, Any]) -> None:
        """Print the rows of a finished batch and add them to the table."""
        self.results[batch.name] = result
        for row in result["rows"]:
            print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
        self._write(self.wall())

    def finish(self, complete: bool) -> None:
        """The end of a command; when all batches are done, with what is made of them."""
        wall = self.wall()
        if complete and self.name == "simple" and self.options.device == "cpu":
            eager.measure(self.folder, 20 if self.options.quick else 300)
        if self.results:
            self._write(wall)
        if complete and self.name in fsir_report.MODELS_FILES:
            fsir_report.keep_best(self.pairs(), self.options.out / fsir_report.MODELS_FILES[self.name])
        if complete and not pictures.draw(self.name, self.pairs(), self.options):
            print(f"{self.name}: no picture, matplotlib is not installed")

    def pairs(self) -> list[tuple[Batch, dict[str, Any]]]:
        """The finished batches, in the order of the table."""
        return [(batch, self.results[batch.name]) for batch in self.batches if batch.name in self.results]

    def wall(self) -> float:
        """Seconds of all commands that worked on these batches until now, the idle time between them not."""
        wall = self._before + time.monotonic() - self.start
        write_file(self._clock, lambda file: file.write(f"{wall:.1f}".encode()))
        return wall

    def _write(self, wall: float) -> None:
        rows = [row for _, result in self.pairs() for row in result["rows"]]
        if self.name in ("simple", "large"):
            rows.sort(key=lambda row: (ORDER.index(row.get("task", "add")), ORDER.index(row["model"]), row["seed"]))
        path = self.options.out / report.FILES[self.name]
        tables.write(path, self._comments(wall), MODULES[self.name].COLUMNS, rows)

    def _comments(self, wall: float) -> list[str]:
        """What, where, how long."""
        facts, options, pairs = environment(), self.options, self.pairs()
        missing = len(self.batches) - len(pairs)
        seconds = sum(result["seconds"] for _, result in pairs)
        device = facts["cuda"] if torch.device(options.device).type == "cuda" else facts["cpu instruction set"]
        lines = [
            f"{self.name}, variant {options.variant}"
            + (", quick: few steps" if options.quick else "")
            + (f", incomplete: {missing} of {len(self.batches)} batches are missing" if missing else ""),
            f"{facts['processor']}, {facts['cores']} cores, {device}, {facts['system']}",
            f"npu_kernels {facts['npu_kernels']}, torch {facts['torch']}, Python {facts['python']}",
            f"wall time {duration(wall)} with {self.processes} processes; {duration(seconds)} of work in all",
        ]
        if self.name == "simple" and not missing:
            lines += eager.compare(self.folder, self.batches, seconds)
        return lines
