"""Runs batches of models: spread, resumed, reported. Knows nothing of any experiment.

An experiment gives a list of `Batch`; a batch makes `Work` that advances by so many steps, can be saved and restored,
and gives rows at its end. All that is known about a batch lies in two files of the folder, under a name with a hash of
everything that decides its numbers:

    NAME.checkpoint   the work in progress, replaced every few seconds
    NAME.done         its rows and tensors; a batch that has this file is never run again

A kill at any moment leaves the old file or the new one (`npu_kernels._jobs.files`). Whatever other settings a later command
has, it takes from the folder what it can use.
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
from npu_kernels._jobs.checkpoints import digest, fingerprint

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
    """Runs that are computed in one call.

    Args:
        experiment, label: for people; with the hash they name the files.
        settings, runs: what decides the numbers, of all runs and of each: numbers, strings, None.
        cost: the expected seconds of one core, roughly; for the order and for the estimate of the time left.
        make: a function of a module (a worker process imports it) that makes the work.
        turn: batches of a smaller turn come first.
    """

    experiment: str
    label: str
    settings: dict[str, Any]
    runs: tuple[dict[str, Any], ...]
    cost: float
    make: Callable[[Batch], Work] = field(compare=False)
    turn: int = 0

    @property
    def name(self) -> str:
        decisive = json.dumps([self.experiment, self.settings, self.runs], sort_keys=True)
        facts = fingerprint(format=str(FORMAT), decisive=decisive)
        return f"{self.experiment}-{self.label}-{digest(facts)[:12]}"


def chunks(items: Iterable[T], largest: int) -> list[list[T]]:
    """Parts of the given size; the last one may be smaller."""
    items = list(items)
    return [items[i : i + largest] for i in range(0, len(items), largest)]


# ---- files -------------------------------------------------------------------------------------------------------


def load_file(path: Path, *keys: str) -> dict[str, Any]:
    """A saved dictionary with these keys; RuntimeError names a file that is none."""
    try:
        return files.load(path, keys)
    except ValueError as error:
        raise RuntimeError(
            f"{path} cannot be read: {error}; delete it to compute that batch again"
        ) from None


@dataclass(frozen=True)
class Folder:
    """Where batches keep their files."""

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


# ---- one batch ---------------------------------------------------------------------------------------------------


def complete(
    batch: Batch, folder: Folder, report: Callable[[float, bool], None], stopped: Callable[[], bool]
) -> bool:
    """Run a batch from where it stands to its end; False if it was stopped, with what is done saved.

    `report` gets the share of the batch that has been done since its last call, and whether an earlier process did it.
    """
    checkpoint = folder.checkpoint_path(batch)
    work, seconds = batch.make(batch), 0.0
    if checkpoint.exists():
        saved = load_file(checkpoint, "state", "seconds")
        work.restore(saved["state"])
        seconds = saved["seconds"]
        report(work.done / work.total, True)

    def save() -> None:
        state = {"state": work.state(), "seconds": seconds}
        try:
            files.save(checkpoint, state)
        except OSError as error:  # the work goes on without
            print(
                f"\n{checkpoint} could not be written: {error.strerror or error}", file=sys.stderr
            )

    steps, last_save = 1, time.monotonic()
    while work.done < work.total:
        if stopped():
            save()
            return False
        steps = min(steps, work.total - work.done)
        start = time.monotonic()
        work.advance(steps)
        now = time.monotonic()
        seconds += now - start
        report(steps / work.total, False)
        if now - last_save > CHECKPOINT_SECONDS and work.done < work.total:
            save()
            last_save = now
        # Towards the slice's length, at most four times more at once: the first steps are slow.
        steps = max(1, min(4 * steps, int(steps * SLICE_SECONDS / max(now - start, 1e-6))))

    rows, tensors = work.results()
    result = {"rows": rows, "tensors": tensors, "seconds": seconds}
    try:
        files.save(folder.done_path(batch), result)
    except OSError as error:
        raise RuntimeError(
            f"{folder.done_path(batch)} could not be written: {error.strerror or error}; the same command continues"
        ) from None
    checkpoint.unlink(missing_ok=True)
    return True


def order(batches: Sequence[Batch]) -> list[Batch]:
    """By their turns; of one turn the longest first, so that no process is left alone with a long one at the end."""
    return sorted(batches, key=lambda batch: (batch.turn, -batch.cost))
