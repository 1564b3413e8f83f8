"""Spreads batches over processes and machines, and shows how it goes.

All processes share one of torch's key-value stores and the folder. The store holds counters only: `next`, the next
batch to take; `work` and `kept`, how much has been done in all, and by earlier commands; `stop`; `left`, processes that
are through.

    one process       HashStore
    --jobs N          TCPStore of this process, which only watches; N workers
    torchrun          torchrun's store; every rank works, rank 0 also watches; the folder must be one that all ranks see

A worker whose store is gone has lost its parent and ends. Nothing but the order of work depends on any of this.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed

from benchmarks.paper.runner import Batch, Folder, complete, order
from npu_kernels._jobs.progress import Progress

UNITS = 10_000  # of the counters, in one batch of mean cost
WATCH_SECONDS = 0.5
TICK_SECONDS = 5.0


@dataclass(frozen=True)
class Place:
    """This process among those that torchrun started; (0, 1) without it."""

    rank: int
    size: int

    @staticmethod
    def find() -> Place:
        return Place(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))


Announce = Callable[[Batch, dict[str, Any]], None]
Tick = Callable[[], object]


class Interrupt:
    """Whether a stop was requested: the first SIGINT or SIGTERM is noted, a second one acts as usual."""

    def __init__(self) -> None:
        self.seen = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True

    @contextmanager
    def watch(self) -> Iterator[None]:
        numbers = signal.SIGINT, signal.SIGTERM
        before = [signal.signal(number, self._note) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


class Whole:
    """The progress of a command, of all its experiments together: the time left is that of everything.

    Args:
        label: of the command.
        batches: of all experiments.
        folder: where the files are.
        shown: false shows nothing.
    """

    def __init__(
        self, label: str, batches: Sequence[Batch], folder: Folder, shown: bool = True
    ) -> None:
        self.total = sum(batch.cost for batch in batches)
        self.done = self.kept = sum(batch.cost for batch in batches if folder.is_done(batch))
        self.progress = Progress(label, self.total, shown=shown)

    def update(self, note: str, done: float, kept: float) -> None:
        """Show so much more work than that of the experiments that ended, of it so much by an earlier command."""
        self.progress.update(min(self.total, self.done + done), note, self.kept + kept)

    def ended(self, done: float, kept: float) -> None:
        """An experiment is through."""
        self.done += done
        self.kept += kept


class Watch:
    """Shows how it goes, announces what has been finished, and ticks."""

    def __init__(
        self,
        name: str,
        batches: Sequence[Batch],
        folder: Folder,
        announce: Announce,
        tick: Tick,
        whole: Whole,
    ) -> None:
        self.name, self.folder, self.announce, self.tick = name, folder, announce, tick
        self.count, self.waiting = len(batches), list(batches)
        self.last_tick = time.monotonic()
        self.whole, self.cost = whole, sum(batch.cost for batch in batches)
        self.done = self.kept = 0.0

    def show(self, work: float, kept: float, everything: float) -> None:
        """From work done, of that by earlier commands, and in all."""
        for batch in [b for b in self.waiting if self.folder.is_done(b)]:
            self.waiting.remove(batch)
            with self.whole.progress.aside():
                self.announce(batch, self.folder.result(batch))
        now = time.monotonic()
        if now - self.last_tick > TICK_SECONDS:
            self.tick()
            self.last_tick = now
        of_cost = self.cost / (everything or 1.0)
        self.done, self.kept = min(self.cost, work * of_cost), kept * of_cost
        note = f"{self.name}: {self.count - len(self.waiting)} of {self.count} batches"
        self.whole.update(note, self.done, self.kept)


def _units(batches: Sequence[Batch]) -> list[float]:
    mean = sum(batch.cost for batch in batches) / max(1, len(batches))
    return [UNITS * batch.cost / mean for batch in batches]


def _serve(
    batches: Sequence[Batch],
    folder: Folder,
    store: Any,
    interrupt: Interrupt,
    show: Callable[[], None] | None,
) -> None:
    """Take batches and complete them until there are none, or until somebody stops it."""
    torch.set_num_threads(
        1
    )  # one thread per process: layers this small do not fill two, and sums keep their order
    torch.set_flush_denormal(
        True
    )  # the penalty drives weights to 1e-40, where a processor is 3 to 5 times slower

    def stopped() -> bool:
        if interrupt.seen:
            store.add("stop", 1)
        return store.add("stop", 0) > 0

    last_show, units = time.monotonic(), _units(batches)
    while not stopped():
        index = store.add("next", 1) - 1
        if index >= len(batches):
            break
        fraction = 0.0  # units too small for a whole count are carried over

        def report(share: float, earlier: bool, index: int = index) -> None:
            nonlocal last_show, fraction
            fraction += share * units[index]
            whole = int(fraction)
            fraction -= whole
            store.add("work", whole)
            if earlier:
                store.add("kept", whole)
            if show is not None and time.monotonic() - last_show > WATCH_SECONDS:
                show()
                last_show = time.monotonic()

        complete(batches[index], folder, report, stopped)
    store.add("left", 1)


def _worker(batches: Sequence[Batch], folder: Folder, port: int) -> None:
    """A process of --jobs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    interrupt = Interrupt()
    try:
        with interrupt.watch():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _serve(batches, folder, torch.distributed.TCPStore("127.0.0.1", port), interrupt, None)
    except torch.distributed.DistError:
        sys.exit("the process that started this one is gone")


def _watch(
    batches: Sequence[Batch],
    folder: Folder,
    jobs: int,
    show: Callable[[Any], None],
    interrupt: Interrupt,
) -> Any:
    """Start workers and look after them; returns the store."""
    os.environ.setdefault(
        "TORCH_CPP_LOG_LEVEL", "ERROR"
    )  # no C++ traces from workers whose parent is gone
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_worker, args=(batches, folder, store.port)) for _ in range(jobs)
    ]
    for worker in workers:
        worker.start()
    told = False
    try:
        while any(worker.is_alive() for worker in workers):
            workers[0].join(WATCH_SECONDS) if workers[0].is_alive() else time.sleep(WATCH_SECONDS)
            dead = [w.exitcode for w in workers if w.exitcode]
            if (interrupt.seen or dead) and not told:
                store.add("stop", 1)
                told = True
            show(store)
    except KeyboardInterrupt:
        for worker in workers:
            worker.kill()
        raise
    finally:
        for worker in workers:
            worker.join()
    dead = [w.exitcode for w in workers if w.exitcode]
    if dead:
        how = ", ".join(f"signal {-code}" if code < 0 else f"code {code}" for code in dead)
        raise RuntimeError(
            f"a worker died ({how}); what was done is kept, the same command continues"
        )
    return store


def shared_store(place: Place, path: Path) -> Any:
    """The store of torchrun's processes, after a check that they share the folder."""
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", place.rank, place.size, timeout=timedelta(minutes=5)))
    store = torch.distributed.PrefixStore(f"npu_kernels paper {path}", store)
    token = path / ".token"
    if place.rank == 0:
        text = f"{os.getpid()} {time.time()}"
        token.write_text(text)
        store.set("token", text)
    text = store.get("token").decode()
    same = token.exists() and token.read_text() == text
    store.set(f"sees {place.rank}", "yes" if same else "no")
    blind = [rank for rank in range(place.size) if store.get(f"sees {rank}") != b"yes"]
    if blind:
        raise RuntimeError(
            f"{path} must be one folder that all processes see; ranks {blind} do not see that of rank 0"
        )
    return store


def run(
    name: str,
    batches: Sequence[Batch],
    folder: Folder,
    jobs: int,
    announce: Announce,
    tick: Tick = lambda: None,
    *,
    store: Any = None,
    place: Place | None = None,
    whole: Whole | None = None,
) -> bool:
    """Complete all batches that are not done; False if somebody stopped it.

    Args:
        name: of the experiment.
        batches: the work; the finished among it is only announced.
        folder: where the files are.
        jobs: processes on this machine.
        announce: gets every batch and its result as it ends, those of earlier commands first; on rank 0 only.
        tick: called every few seconds, on rank 0 only.
        store, place: of torchrun's processes.
        whole: the progress of all experiments of the command; of this one alone unless given.
    """
    place = place or Place(0, 1)
    waiting = order([batch for batch in batches if not folder.is_done(batch)])
    units = _units(waiting)
    if place.rank == 0:
        for batch in batches:
            if folder.is_done(batch):
                announce(batch, folder.result(batch))
        if len(waiting) < len(batches):
            print(
                f"{name}: {len(batches) - len(waiting)} of {len(batches)} batches were done before"
            )
    if not waiting and place.size == 1:
        return True

    alone = whole is None
    whole = whole or Whole(name, batches, folder, place.rank == 0)
    watch = Watch(name, waiting, folder, announce, tick, whole)

    def show(store: Any) -> None:
        if place.rank == 0:
            watch.show(store.add("work", 0), store.add("kept", 0), sum(units))

    interrupt = Interrupt()
    with interrupt.watch():
        if place.size > 1:
            store = torch.distributed.PrefixStore(name, store)
            # Every rank sees the same files here: no rank begins before all have looked.
            store.add("looked", 1)
            while store.add("looked", 0) < place.size:
                time.sleep(0.05)
            _serve(waiting, folder, store, interrupt, lambda: show(store))
            while store.add("left", 0) < place.size:
                time.sleep(WATCH_SECONDS)
                show(store)
        elif jobs > 1:
            store = _watch(waiting, folder, min(jobs, len(waiting)), show, interrupt)
        else:
            store = torch.distributed.HashStore()
            _serve(waiting, folder, store, interrupt, lambda: show(store))
    show(store)
    whole.ended(watch.done, watch.kept)
    if alone:
        whole.progress.close()
    return not store.add("stop", 0)
