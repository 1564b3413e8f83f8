"""Runs batches of models: spread, resumed, reported. Knows nothing of any experiment.

An experiment gives a list of `Batch`; a batch makes `Work` that advances by a number of steps, can
be saved and restored, and gives rows at its end. Two files of the folder hold all that is known of
a batch, under a name with a hash of everything that decides its numbers:

    NAME.checkpoint   the work in progress, replaced every few seconds
    NAME.done         its rows and tensors; a batch that has this file is never run again

A kill at any moment leaves the old file or the new one (`npu_kernels._jobs.files`). A later command
takes from the folder what it can use, whatever its other settings.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from npu_kernels._jobs import files
from npu_kernels._jobs.checkpoint import digest, fingerprint

FORMAT = 3  # raise it when the same settings give other numbers than before
SLICE_SECONDS = 0.5  # between looks at the clock and at requests to stop
CHECKPOINT_SECONDS = 10.0

T = TypeVar("T")


class Work(Protocol):
    """A batch of runs in progress."""

    total: int  # steps
    done: int

    def advance(self, steps: int) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    def results(self) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]: ...


@dataclass(frozen=True)
class Batch:
    """Runs that are computed in one call."""

    experiment: str  # for people; with the label and the hash it names the files
    label: str
    settings: dict[str, Any]  # what decides the numbers of all runs: numbers, strings, None
    runs: tuple[dict[str, Any], ...]  # what decides the numbers of each run
    cost: float  # expected seconds of one core, for the order and the estimate of the time left
    make: Callable[[Batch], Work] = field(compare=False)  # of a module: a worker imports it
    turn: int = 0  # batches of a smaller turn come first

    @property
    def name(self) -> str:
        decisive = json.dumps([self.experiment, self.settings, self.runs], sort_keys=True)
        facts = fingerprint(format=str(FORMAT), decisive=decisive)
        return f"{self.experiment}-{self.label}-{digest(facts)[:12]}"


def chunks(items: Iterable[T], largest: int) -> list[list[T]]:
    """Parts of the largest size; the last one may be smaller."""
    items = list(items)
    return [items[i : i + largest] for i in range(0, len(items), largest)]


# ---- files ---------------------------------------------------------------------------------------


def load_file(path: Path, *keys: str) -> dict[str, Any]:
    """A saved dictionary with these keys; RuntimeError names a file that is none."""
    try:
        return files.load(path, keys)
    except ValueError as error:
        reason = f"{error}; delete it to compute that batch again"
        raise RuntimeError(f"{path} cannot be read: {reason}") from None


@dataclass(frozen=True)
class Folder:
    """The folder in which batches keep their files."""

    path: Path

    def create(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        files.write(self.path / ".gitignore", "*\n")
        files.remove_leftovers(self.path)

    def done_path(self, batch: Batch) -> Path:
        return self.path / f"{batch.name}.done"

    def checkpoint_path(self, batch: Batch) -> Path:
        return self.path / f"{batch.name}.checkpoint"

    def is_done(self, batch: Batch) -> bool:
        return self.done_path(batch).exists()

    def result(self, batch: Batch) -> dict[str, Any]:
        """The rows, tensors and seconds of a finished batch."""
        return load_file(self.done_path(batch), "rows", "tensors", "seconds")


# ---- one batch -----------------------------------------------------------------------------------


def complete(
    batch: Batch, folder: Folder, report: Callable[[float, bool], None], stopped: Callable[[], bool]
) -> bool:
    """Run a batch from where it stands to its end; False if it was stopped, its checkpoint saved.

    `report` gets the share of the batch that was done since its last call, and whether an earlier
    process did it.
    """
    checkpoint = folder.checkpoint_path(batch)
    training, seconds = batch.make(batch), 0.0
    if checkpoint.exists():
        saved = load_file(checkpoint, "state", "seconds")
        training.restore(saved["state"])
        seconds = saved["seconds"]
        report(training.done / training.total, True)

    def save() -> None:
        state = {"state": training.state(), "seconds": seconds}
        try:
            files.save(checkpoint, state)
        except OSError as error:  # the work goes on without
            reason = error.strerror or error
            print(f"\n{checkpoint} could not be written: {reason}", file=sys.stderr)

    steps, last_save = 1, time.monotonic()
    while training.done < training.total:
        if stopped():
            save()
            return False
        steps = min(steps, training.total - training.done)
        start = time.monotonic()
        training.advance(steps)
        end = time.monotonic()
        seconds += end - start
        report(steps / training.total, False)
        if end - last_save > CHECKPOINT_SECONDS and training.done < training.total:
            save()
            last_save = end
        # Towards the slice's length, at most four times more at once: the first steps are slow.
        steps = max(1, min(4 * steps, int(steps * SLICE_SECONDS / max(end - start, 1e-6))))

    rows, tensors = training.results()
    done = folder.done_path(batch)
    try:
        files.save(done, {"rows": rows, "tensors": tensors, "seconds": seconds})
    except OSError as error:
        reason = f"{error.strerror or error}; the same command continues"
        raise RuntimeError(f"{done} could not be written: {reason}") from None
    checkpoint.unlink(missing_ok=True)
    return True


def order(batches: Sequence[Batch]) -> list[Batch]:
    """Sort by turns, in a turn the longest first, so that none runs alone at the end for long."""
    return sorted(batches, key=lambda batch: (batch.turn, -batch.cost))
