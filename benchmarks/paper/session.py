"""What one experiment has found so far: printed, in its table with comments on top, in its pictures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.paper import (
    eager,
    fitted,
    fsir,
    fsir_equation,
    fsir_report,
    gradient_surface,
    large,
    pictures,
    report,
    simple,
    single_module,
    tables,
)
from benchmarks.paper.drawing import available
from benchmarks.paper.runner import Batch, Folder
from benchmarks.paper.single_module_report import key
from benchmarks.paper.workers import duration
from npu_kernels import files
from npu_kernels.env import environment

MODULES = {
    "gradient-surface": gradient_surface,
    "simple": simple,
    "large": large,
    "fsir": fsir,
    "fsir-rk4": fsir,
    "fsir-equation": fsir_equation,
    "single-module": single_module,
    "fitted": fitted,
}
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
        parts: all batches that share the table, those with one clock together; what is done of them is in the table.
    """

    name: str
    options: argparse.Namespace
    batches: Sequence[Batch]
    folder: Folder
    processes: int
    parts: Sequence[Sequence[Batch]]
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the batch's name

    def __post_init__(self) -> None:
        self.start = time.monotonic()
        own = {batch.name for batch in self.batches}
        self._part = next(part for part in self.parts if own <= {batch.name for batch in part})
        self._before = self._seconds(self._part)
        self._others = [b for part in self.parts for b in part if b.name not in own and self.folder.is_done(b)]
        self.results.update((batch.name, self.folder.result(batch)) for batch in self._others)

    def _clock(self, part: Sequence[Batch]) -> Path:
        return self.folder.path / f"{min(batch.name for batch in part)}.seconds"

    def _seconds(self, part: Sequence[Batch]) -> float:
        clock = self._clock(part)
        return float(clock.read_text()) if clock.exists() else 0.0

    def announce(self, batch: Batch, result: dict[str, Any]) -> None:
        """Print the rows of a finished batch and add them to the table."""
        self.results[batch.name] = result
        for row in result["rows"]:
            print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
        wall = self.wall()
        self._try(lambda: self._write(wall))

    def finish(self, complete: bool) -> None:
        """The end of a command; when all batches are done, with what is made of them."""
        wall = self.wall()
        if complete and self.name == "simple" and self.options.device == "cpu":
            eager.measure(self.folder, 20 if self.options.quick else 300)
        if self.results:
            self._write(wall)
        if complete and self.name in fsir_report.MODELS_FILES:
            fsir_report.keep_best(self.pairs(), self.options.out / fsir_report.MODELS_FILES[self.name])
        if complete and self.name == "simple":
            simple.keep_best(self.pairs(), self.options.out / simple.MODELS_FILE)
        if complete and self.name in pictures.FILES:
            if available():
                pictures.draw(self.name, self.options.out, self.options.format)
            else:
                print(f"{self.name}: no picture, matplotlib is not installed")

    def pairs(self) -> list[tuple[Batch, dict[str, Any]]]:
        """The finished batches, in the order of the table."""
        known = [*self._others, *self.batches]
        return [(batch, self.results[batch.name]) for batch in known if batch.name in self.results]

    def wall(self) -> float:
        """Seconds of all commands that worked on these batches until now, the idle time between them not."""
        wall = self._before + time.monotonic() - self.start
        self._try(lambda: files.write(self._clock(self._part), f"{wall:.1f}"))
        return wall

    def _try(self, write: Callable[[], None]) -> None:
        """A write that costs the work nothing when it fails: the next one has it all again."""
        try:
            write()
        except OSError as error:
            print(f"\n{error.filename or self.folder.path} could not be written: {error.strerror}", file=sys.stderr)

    def _write(self, wall: float) -> None:
        rows = [row for _, result in self.pairs() for row in result["rows"]]
        if self.name == "single-module":
            rows.sort(key=key)
        elif self.name == "fitted":
            rows.sort(key=fitted.key)
        elif self.name in ("simple", "large"):
            rows.sort(key=lambda row: (ORDER.index(row.get("task", "add")), ORDER.index(row["model"]), row["seed"]))
        path = self.options.out / report.FILES[self.name]
        tables.write(path, self._comments(wall), MODULES[self.name].COLUMNS, rows)

    def _comments(self, wall: float) -> list[str]:
        """What, where, how long."""
        facts, options, pairs = environment(), self.options, self.pairs()
        missing = sum(batch.name not in self.results for batch in self.batches)
        seconds = sum(result["seconds"] for _, result in pairs)
        device = facts["cuda"] if torch.device(options.device).type == "cuda" else facts["cpu instruction set"]
        lines = [
            self.name
            + ("" if self.name == "single-module" else f", variant {options.variant}")
            + (", quick: few steps" if options.quick else "")
            + (f", incomplete: {missing} of {len(self.batches)} batches are missing" if missing else ""),
            f"{facts['processor']}, {facts['cores']} cores, {device}, {facts['system']}",
            f"npu_kernels {facts['npu_kernels']}, torch {facts['torch']}, Python {facts['python']}",
        ]
        if self.name == "single-module":
            return [*lines, *self._recipes(wall)]
        lines.append(f"wall time {duration(wall)} with {self.processes} processes; {duration(seconds)} of work in all")
        if self.name == "simple" and not missing:
            lines += eager.compare(self.folder, self.batches, seconds)
        return lines

    def _recipes(self, wall: float) -> list[str]:
        """A line for each recipe of the single-module benchmark."""
        lines = []
        for part in self.parts:
            found = [self.results[batch.name] for batch in part if batch.name in self.results]
            if not found:
                continue
            rows = [row for result in found for row in result["rows"]]
            passed = duration(wall if part is self._part else self._seconds(part))
            work = sum(result["seconds"] for result in found)
            lines.append(
                f"recipe {rows[0]['recipe']}: {len(found)} units and operations, {len(rows)} runs, "
                f"{sum(row['steps'] for row in rows):.3g} model-steps; wall time {passed}, {duration(work)} of work "
                f"({1e6 * work / sum(row['steps'] for row in rows):.2g} µs a model-step)"
            )
        return [*lines, f"the latest command ran {self.processes} processes"]
