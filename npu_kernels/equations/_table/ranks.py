"""Results of a process group's ranks, exchanged without a collective.

A collective waits no longer than the group's timeout.

The results go by the group's store. Each rank shows signs of life there, so that a slow rank is
waited for as long as it takes, and one that has died is not.
"""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from npu_kernels._common.notices import warn

BEAT = 1.0  # seconds between signs of life
SILENCE = 300.0  # seconds without one, after which a rank counts as lost
POLL = 0.05  # seconds between two looks, times the ranks: the store's load does not grow with them
PIECE = 2**22  # bytes of one value; a TCPStore takes 8 MiB

_numbers = itertools.count()  # of the exchanges, the same on every rank


class Exchange:
    """One exchange of all ranks.

    ``with Exchange("fit_many") as exchange: ... exchange.gather(value)``.

    function: for warnings. A rank that leaves the block by an error tells the others that it has no
    value.
    """

    def __init__(self, function: str) -> None:
        self.function, self.rank, self.size = function, dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
        self.store = dist.PrefixStore(f"npu_kernels/{function}/{next(_numbers)}", store)
        self.sent = False
        self.ended = threading.Event()
        self.beating = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Exchange:
        self.beating.start()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if not self.sent:
                self._send(None)
            self.store.set(f"left/{self.rank}", "1")
        except RuntimeError:
            pass  # the store went with the process that had it
        finally:
            self.ended.set()
            self.beating.join()

    def gather(self, value: Any) -> list[Any | None]:
        """Return every rank's value.

        It is None for a rank that has none, is lost, or had not finished at Ctrl-C.
        """
        values: list[Any | None] = [None] * self.size
        values[self.rank] = value
        silent = set(range(self.size)) - {self.rank}
        try:
            self._send(value)
            for rank in self._arrivals("value"):
                values[rank] = self._receive(rank)
                silent.discard(rank)
            self.store.set(f"left/{self.rank}", "1")
            for _ in self._arrivals("left", silent):
                pass  # who has the store stays until the others have read
        except KeyboardInterrupt:
            return values
        except RuntimeError:
            pass  # the store went with the process that had it
        missing = [str(rank) for rank, its in enumerate(values) if its is None]
        if missing:
            warn(
                f"{self.function}: the results of {len(missing)} of {self.size} ranks are missing, "
                f"as these failed or gave no sign of life for {SILENCE:g} seconds: "
                f"{', '.join(missing)}",
            )
        return values

    def _beat(self) -> None:
        try:
            while not self.ended.wait(BEAT):
                self.store.add(f"beat/{self.rank}", 1)
        except RuntimeError:
            pass  # the store went with the process that had it

    def _send(self, value: Any) -> None:
        data = pickle.dumps(value)
        pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)]
        for index, piece in enumerate(pieces):
            self.store.set(f"piece/{self.rank}/{index}", piece)  # type: ignore[arg-type]
        self.store.set(f"value/{self.rank}", str(len(pieces)))
        self.sent = True

    def _receive(self, rank: int) -> Any:
        pieces = range(int(self.store.get(f"value/{rank}")))
        return pickle.loads(b"".join([self.store.get(f"piece/{rank}/{index}") for index in pieces]))

    def _arrivals(self, key: str, lost: set[int] | None = None) -> Iterator[int]:
        """Yield the other ranks that have set `key`, as they do so.

        It ends when the remaining ranks are silent. lost: ranks not to wait for.
        """
        awaited = set(range(self.size)) - {self.rank} - (lost or set())
        beats = dict.fromkeys(awaited, -1)
        heard = dict.fromkeys(awaited, time.monotonic())
        while awaited:
            for rank in sorted(awaited):
                if self.store.check([f"{key}/{rank}"]):
                    awaited.discard(rank)
                    yield rank
                    continue
                count, seconds = self.store.add(f"beat/{rank}", 0), time.monotonic()
                if count != beats[rank]:
                    beats[rank], heard[rank] = count, seconds
                elif seconds - heard[rank] > SILENCE:
                    awaited.discard(rank)
            if awaited:
                time.sleep(POLL * self.size)
