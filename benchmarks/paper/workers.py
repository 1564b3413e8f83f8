"""Spreads batches over processes and machines, and shows their progress.

All processes share one of torch's key-value stores and the folder. The store holds counters:
`next`, the next batch to take; `stop`; `left`, processes that have ended their work; and under the
number of a batch the shares of it that are done in all, and by earlier commands.

    one process       HashStore
    --jobs N          TCPStore of this process, which only watches; N workers
    torchrun          torchrun's store; every rank works, rank 0 also watches; one folder for all

A worker whose store is gone has lost its parent and ends. Nothing but the order of work depends on
any of this. joblib has no place for the store: its workers tell nothing before a batch ends, do not
stop within one, and know no second machine. What it would spare is `_watch`.
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
from npu_kernels._jobs.driver import Progress

WATCH_SECONDS = 0.5
TICK_SECONDS = 5.0
CONNECTION = timedelta(seconds=20)  # to a store of the same machine; torch would try for minutes


@dataclass(frozen=True)
class Rank:
    """This process among those that torchrun started; (0, 1) without it."""

    number: int
    size: int

    @staticmethod
    def current() -> Rank:
        return Rank(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))


Announce = Callable[[Batch, dict[str, Any]], None]
Tick = Callable[[], object]


class Interrupt:
    """A stop that was requested: a first SIGINT or SIGTERM is noted, a second one acts as usual."""

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


class Total:
    """The progress of a command, of all its experiments together.

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
        # Without the experiment that is at work.
        self.done = self.earlier = sum(batch.cost for batch in batches if folder.is_done(batch))
        self.progress = Progress(label, self.total, shown=shown)


class Watch:
    """Shows the progress, announces finished batches, and calls `tick`."""

    def __init__(
        self, name: str, batches: Sequence[Batch], folder: Folder, announce: Announce, tick: Tick,
        total: Total,
    ) -> None:  # fmt: skip
        self.name, self.folder, self.announce, self.tick = name, folder, announce, tick
        self.batches, self.waiting, self.total = batches, list(batches), total
        self.last_tick = time.monotonic()
        self.done = self.earlier = 0.0  # work beyond that of `total`, and what of it is older

    def show(self, store: Any) -> None:
        """Show the work that the store says is done."""
        for batch in [b for b in self.waiting if self.folder.is_done(b)]:
            self.waiting.remove(batch)
            with self.total.progress.aside():
                self.announce(batch, self.folder.result(batch))
        if time.monotonic() - self.last_tick > TICK_SECONDS:
            self.tick()
            self.last_tick = time.monotonic()
        self.done = self.earlier = 0.0
        for index, batch in enumerate(self.batches):
            if store.check([str(index)]):
                shares = map(float, store.get(str(index)).split())
                done, earlier = (batch.cost * share for share in shares)
                self.done, self.earlier = self.done + done, self.earlier + earlier
        count, total = len(self.batches), self.total
        note = f"{self.name}: {count - len(self.waiting)} of {count} batches"
        done = min(total.total, total.done + self.done)
        total.progress.update(done, note, total.earlier + self.earlier)


@contextmanager
def _small_layers() -> Iterator[None]:
    """Settings of this process for small layers, within the block."""
    threads = torch.get_num_threads()
    # One thread: layers this small do not fill two, and sums keep their order.
    torch.set_num_threads(1)
    # The penalty drives weights to 1e-40, where a processor is 3 to 5 times slower.
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


@_small_layers()
def _serve(
    batches: Sequence[Batch], folder: Folder, store: Any, interrupt: Interrupt,
    show: Callable[[Any], None] = lambda store: None,
) -> None:  # fmt: skip
    """Take batches and complete them until there are none, or until somebody stops it."""

    def stopped() -> bool:
        if interrupt.seen:
            store.add("stop", 1)
        return store.add("stop", 0) > 0

    last_show = time.monotonic()
    while not stopped():
        index = store.add("next", 1) - 1
        if index >= len(batches):
            break
        shares = [0.0, 0.0]  # done in all, and by an earlier process

        def report(
            share: float, earlier: bool, index: int = index, shares: list[float] = shares
        ) -> None:
            nonlocal last_show
            shares[0] += share
            shares[1] += share * earlier
            store.set(str(index), f"{shares[0]} {shares[1]}")
            if time.monotonic() - last_show > WATCH_SECONDS:
                show(store)
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
            store = torch.distributed.TCPStore("127.0.0.1", port, timeout=CONNECTION)
            _serve(batches, folder, store, interrupt)
    except torch.distributed.DistError:
        sys.exit("the process that started this one is gone")


def _watch(
    batches: Sequence[Batch], folder: Folder, jobs: int, show: Callable[[Any], None],
    interrupt: Interrupt,
) -> Any:  # fmt: skip
    """Start workers and look after them; returns the store."""
    # No C++ traces from workers whose parent is gone.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context, arguments = multiprocessing.get_context("spawn"), (batches, folder, store.port)
    workers = [context.Process(target=_worker, args=arguments) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    told = False
    try:
        while any(worker.is_alive() for worker in workers):
            workers[0].join(WATCH_SECONDS) if workers[0].is_alive() else time.sleep(WATCH_SECONDS)
            if not told and (interrupt.seen or any(worker.exitcode for worker in workers)):
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
    codes = [worker.exitcode for worker in workers if worker.exitcode]
    if codes:
        causes = ", ".join(f"signal {-code}" if code < 0 else f"code {code}" for code in codes)
        rest = "what was done is kept, the same command continues"
        raise RuntimeError(f"a worker died ({causes}); {rest}")
    return store


def shared_store(rank: Rank, path: Path) -> Any:
    """The store of torchrun's processes, after a check that they share the folder."""
    from torch.distributed.rendezvous import rendezvous

    store, _, _ = next(rendezvous("env://", rank.number, rank.size, timeout=timedelta(minutes=5)))
    store = torch.distributed.PrefixStore(f"npu_kernels paper {path}", store)
    token = path / ".token"
    if rank.number == 0:
        text = f"{os.getpid()} {time.time()}"
        token.write_text(text)
        store.set("token", text)
    text = store.get("token").decode()
    sees = token.exists() and token.read_text() == text
    store.set(f"sees {rank.number}", "yes" if sees else "no")
    blind = [number for number in range(rank.size) if store.get(f"sees {number}") != b"yes"]
    if blind:
        rule = "must be one folder that all processes see"
        raise RuntimeError(f"{path} {rule}; ranks {blind} do not see that of rank 0")
    return store


def run(
    name: str, batches: Sequence[Batch], folder: Folder, jobs: int, announce: Announce,
    tick: Tick = lambda: None, *, store: Any = None, rank: Rank | None = None,
    total: Total | None = None,
) -> bool:  # fmt: skip
    """Complete all batches that are not done; False if somebody stopped it.

    Args:
        name: of the experiment.
        batches: the work; the finished among it is only announced.
        folder: where the files are.
        jobs: processes on this machine.
        announce: gets each batch and its result as it ends, the earlier ones first; on rank 0 only.
        tick: called every few seconds, on rank 0 only.
        store, rank: of torchrun's processes.
        total: the progress of all experiments of the command; by default of this one.
    """
    rank = rank or Rank(0, 1)
    done = [batch for batch in batches if folder.is_done(batch)]
    waiting = order([batch for batch in batches if not folder.is_done(batch)])
    if rank.number == 0:
        for batch in done:
            announce(batch, folder.result(batch))
        if done:
            print(f"{name}: {len(done)} of {len(batches)} batches were done before")
    if not waiting and rank.size == 1:
        return True

    progress = total or Total(name, batches, folder, rank.number == 0)
    watch = Watch(name, waiting, folder, announce, tick, progress)

    def show(store: Any) -> None:
        if rank.number == 0:
            watch.show(store)

    interrupt = Interrupt()
    with interrupt.watch():
        if rank.size > 1:
            store = torch.distributed.PrefixStore(name, store)
            # Every rank sees the same files here: no rank begins before all have looked.
            store.add("looked", 1)
            while store.add("looked", 0) < rank.size:
                time.sleep(0.05)
            _serve(waiting, folder, store, interrupt, show)
            while store.add("left", 0) < rank.size:
                time.sleep(WATCH_SECONDS)
                show(store)
        elif jobs > 1:
            store = _watch(waiting, folder, min(jobs, len(waiting)), show, interrupt)
        else:
            store = torch.distributed.HashStore()
            _serve(waiting, folder, store, interrupt, show)
    show(store)
    progress.done += watch.done
    progress.earlier += watch.earlier
    if total is None:
        progress.progress.close()
    return not store.add("stop", 0)
