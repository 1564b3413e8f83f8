"""Spreads batches over the processes of a machine, and shows their progress.

All processes share the folder and a `Board`: which batch is the next to take, whether somebody
asked to stop, and the shares of each batch that are done. The process that has started the others
only watches; with one job it works itself. A worker whose parent is gone ends. Nothing but the
order of work depends on any of this. joblib has no place for the board: its workers tell nothing
before a batch ends, and do not stop within one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch

from benchmarks.paper.runner import Batch, Folder, complete, order
from npu_kernels._jobs.driver import Progress

WATCH_SECONDS = 0.5
TICK_SECONDS = 5.0
Announce = Callable[[Batch, dict[str, Any]], None]
Tick = Callable[[], object]


class Board:
    """What processes that share batches know in common; each batch's shares have one writer."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._next = context.Value("i", 0)
        self.stop = context.Value("b", 0, lock=False)
        self.done = context.Array("d", count, lock=False)  # share of a batch, in all
        self.earlier = context.Array("d", count, lock=False)  # and by an earlier process

    def take(self) -> int:
        """The number of the next batch, which may be beyond the last one."""
        with self._next.get_lock():
            self._next.value += 1
            return self._next.value - 1


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
    """

    def __init__(self, label: str, batches: Sequence[Batch], folder: Folder) -> None:
        self.total = sum(batch.cost for batch in batches)
        # Without the experiment that is at work.
        self.done = self.earlier = sum(batch.cost for batch in batches if folder.is_done(batch))
        self.progress = Progress(label, self.total)


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

    def show(self, board: Board) -> None:
        """Show the work that the board says is done."""
        for batch in [b for b in self.waiting if self.folder.is_done(b)]:
            self.waiting.remove(batch)
            with self.total.progress.aside():
                self.announce(batch, self.folder.result(batch))
        if time.monotonic() - self.last_tick > TICK_SECONDS:
            self.tick()
            self.last_tick = time.monotonic()
        shares = list(zip(self.batches, board.done, board.earlier, strict=True))
        self.done = sum(batch.cost * done for batch, done, _ in shares)
        self.earlier = sum(batch.cost * earlier for batch, _, earlier in shares)
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
    batches: Sequence[Batch], folder: Folder, board: Board, stopped: Callable[[], bool],
    show: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Take batches and complete them until there are none, or until somebody stops it."""
    last_show = time.monotonic()
    while not stopped() and (index := board.take()) < len(batches):

        def report(share: float, earlier: bool, index: int = index) -> None:
            nonlocal last_show
            board.done[index] += share
            board.earlier[index] += share * earlier
            if time.monotonic() - last_show > WATCH_SECONDS:
                show()
                last_show = time.monotonic()

        complete(batches[index], folder, report, stopped)


def _worker(batches: Sequence[Batch], folder: Folder, board: Board, parent: int) -> None:
    """A process of --jobs, started by the process `parent`."""
    interrupt = Interrupt()

    def stopped() -> bool:
        if os.getppid() != parent:
            sys.exit("the process that started this one is gone")
        board.stop.value |= interrupt.seen
        return bool(board.stop.value)

    with interrupt.watch():
        # A terminal sends it to all; the parent decides.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _serve(batches, folder, board, stopped)


def _watch(
    workers: Sequence[BaseProcess], board: Board, show: Callable[[], None], interrupt: Interrupt
) -> None:
    """Start workers and look after them."""
    for worker in workers:
        worker.start()
    try:
        while any(worker.is_alive() for worker in workers):
            workers[0].join(WATCH_SECONDS) if workers[0].is_alive() else time.sleep(WATCH_SECONDS)
            if interrupt.seen or any(worker.exitcode for worker in workers):
                board.stop.value = 1
            show()
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


def run(
    name: str, batches: Sequence[Batch], folder: Folder, jobs: int, announce: Announce,
    tick: Tick = lambda: None, total: Total | None = None,
) -> bool:  # fmt: skip
    """Complete all batches that are not done; False if somebody stopped it.

    Args:
        name: of the experiment.
        batches: the work; the finished among it is only announced.
        folder: where the files are.
        jobs: processes.
        announce: gets each batch and its result as it ends, the earlier ones first.
        tick: called every few seconds.
        total: the progress of all experiments of the command; by default of this one.
    """
    done = [batch for batch in batches if folder.is_done(batch)]
    waiting = order([batch for batch in batches if not folder.is_done(batch)])
    for batch in done:
        announce(batch, folder.result(batch))
    if done:
        print(f"{name}: {len(done)} of {len(batches)} batches were done before")
    if not waiting:
        return True
    progress, board = total or Total(name, batches, folder), Board(len(waiting))
    interrupt = Interrupt()
    watch = Watch(name, waiting, folder, announce, tick, progress)

    def show() -> None:
        watch.show(board)

    with interrupt.watch():
        if jobs > 1:
            context = multiprocessing.get_context("spawn")
            shared = waiting, folder, board, os.getpid()
            count = min(jobs, len(waiting))
            workers = [context.Process(target=_worker, args=shared) for _ in range(count)]
            _watch(workers, board, show, interrupt)
        else:
            _serve(waiting, folder, board, lambda: interrupt.seen, show)
    show()
    progress.done += watch.done
    progress.earlier += watch.earlier
    if total is None:
        progress.progress.close()
    return not (interrupt.seen or board.stop.value)
