"""Runs batches of models: spread, resumed, reported. Knows nothing of any experiment.

An experiment gives a list of `Batch`; a batch makes `Work` that advances by a number of steps, can
be saved and restored, and gives rows at its end. Two files of the folder hold all that is known of
a batch, under a name with a hash of everything that decides its numbers:

    NAME.checkpoint   the work in progress, replaced from time to time (`npu_kernels._jobs.driver`)
    NAME.done         its rows and tensors; a batch that has this file is never run again

A kill at any moment leaves the old file or the new one (`npu_kernels._jobs.files`). A later command
takes from the folder what it can use, whatever its other settings. Nothing but the order of work
depends on the number of processes.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from benchmarks.throughput.environment import end_with_parent
from npu_kernels._jobs import files
from npu_kernels._jobs.checkpoint import digest, fingerprint
from npu_kernels._jobs.driver import Progress, drive

FORMAT = 3  # raise it when the same settings give other numbers than before

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


class _Job:
    """A batch as `drive` takes work. What its file belongs to is in the file's name."""

    function = "benchmarks.paper"

    def __init__(self, batch: Batch) -> None:
        self.work, self.seconds = batch.make(batch), 0.0
        self.total, self.done = self.work.total, self.work.done
        self.fingerprint: dict[str, str] = {}

    def advance(self, steps: int) -> None:
        begin = time.monotonic()
        self.work.advance(steps)
        self.done = self.work.done
        self.seconds += time.monotonic() - begin

    def state(self) -> dict[str, Any]:
        progress = {"work": self.work.state(), "seconds": self.seconds}
        return {"fingerprint": self.fingerprint, **progress}

    def restore(self, state: dict[str, Any]) -> None:
        self.work.restore(state["work"])
        self.done, self.seconds = self.work.done, state["seconds"]


def complete(batch: Batch, folder: Folder) -> bool:
    """Run a batch from where it stands to its end; False if it was stopped, its checkpoint saved.

    Raises ValueError for a checkpoint that cannot be read, OSError where nothing can be written.
    """
    job, checkpoint = _Job(batch), folder.checkpoint_path(batch)
    drive(job, False, checkpoint, ended=lambda: any(stop.is_set() for stop in _stops))
    if job.done < job.total:
        return False
    rows, tensors = job.work.results()
    content = {"rows": rows, "tensors": tensors, "seconds": job.seconds}
    files.save(folder.done_path(batch), content)
    checkpoint.unlink(missing_ok=True)
    return True


# ---- all of them ---------------------------------------------------------------------------------


class Total:
    """The progress of a command, of all its experiments together, in seconds of expected work.

    Args:
        label: of the command.
        batches: of all experiments.
        folder: where the files are.
    """

    def __init__(self, label: str, batches: Sequence[Batch], folder: Folder) -> None:
        self.done = self.before = sum(batch.cost for batch in batches if folder.is_done(batch))
        self.progress = Progress(label, sum(batch.cost for batch in batches))

    def add(self, batch: Batch, note: str) -> None:
        """Show that a batch is done."""
        self.done += batch.cost
        self.progress.update(self.done, note, self.before)


@contextmanager
def _small_layers() -> Iterator[None]:
    """Settings of this process for small layers, within the block."""
    threads = torch.get_num_threads()
    _set_small_layers()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


def _set_small_layers() -> None:
    # One thread: layers this small do not fill two, and sums keep their order.
    torch.set_num_threads(1)
    # The penalty drives weights to 1e-40, where a processor is 3 to 5 times slower.
    torch.set_flush_denormal(True)


_stops: list[Any] = []  # in a process of --jobs the event by which its parent ends it


def _begin_worker(stop: Any) -> None:
    """Prepare a process of --jobs."""
    end_with_parent()
    _stops.append(stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # between batches: a terminal sends it to all
    _set_small_layers()


def _in_processes(
    batches: Sequence[Batch], folder: Folder, jobs: int
) -> Generator[Batch, None, None]:
    """Complete batches, several at once, and yield each when it is done.

    Where that is ended, each process saves its batch.
    """
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(jobs, context, _begin_worker, (stop,))
    try:
        futures = {pool.submit(complete, batch, folder): batch for batch in batches}
        for future in as_completed(futures):
            if future.result():
                yield futures[future]
    except BrokenProcessPool:
        rest = "what was done is kept, the same command continues"
        raise RuntimeError(f"a process died; {rest}") from None
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _in_this_process(batches: Sequence[Batch], folder: Folder) -> Generator[Batch, None, None]:
    with _small_layers():
        for batch in batches:
            if not complete(batch, folder):
                return
            yield batch


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt within the block, also in the background."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


Announce = Callable[[Batch, dict[str, Any]], None]


def run(
    name: str, batches: Sequence[Batch], folder: Folder, jobs: int, announce: Announce, total: Total
) -> bool:
    """Complete all batches that are not done; False if somebody stopped it.

    Args:
        name: of the experiment.
        batches: the work; the finished among it is only announced.
        folder: where the files are.
        jobs: processes.
        announce: gets each batch and its result as it ends, the earlier ones first.
        total: the progress of the command.
    """
    done = [batch for batch in batches if folder.is_done(batch)]
    # The longest first, so that none runs alone at the end for long.
    waiting = [batch for batch in batches if not folder.is_done(batch)]
    waiting.sort(key=lambda batch: -batch.cost)
    for batch in done:
        announce(batch, folder.result(batch))
    if done:
        print(f"{name}: {len(done)} of {len(batches)} batches were done before")
    jobs = min(jobs, len(waiting))
    several = jobs > 1
    ended = _in_processes(waiting, folder, jobs) if several else _in_this_process(waiting, folder)
    try:
        with _interruptible() if several else nullcontext(), closing(ended):
            for count, batch in enumerate(ended, len(done) + 1):
                with total.progress.aside():
                    announce(batch, folder.result(batch))
                total.add(batch, f"{name}: {count} of {len(batches)} batches")
    except KeyboardInterrupt:
        return False
    return all(map(folder.is_done, waiting))
