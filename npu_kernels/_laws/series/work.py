"""The least squares of one fit of time series: how far they are, Ctrl-C, and what a checkpoint keeps of them.

Nearly all of a fit's time is spent in `laws.minimise`. How far each of these minimisations got is kept by a digest of
what determines it. A fit that is started again finds those that were done, goes on with the one that was interrupted,
and so comes to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels._jobs import saved
from npu_kernels._jobs.checkpoints import Checkpoint, check_same, digest, fingerprint
from npu_kernels._jobs.progress import Progress

FORMAT = 1  # of a saved state


class Descent(NamedTuple):
    """How far a minimisation of K laws got. x ``[K, N]``, damping and error ``[K]``, steps without a gain, steps."""

    x: Tensor
    damping: Tensor
    error: Tensor
    calm: int
    steps: int


class Work:
    """What a fit has done. function: the user's. total: the steps that it may take. determined: its data and options,
    by name."""

    def __init__(self, function: str, total: int, determined: dict[str, str]) -> None:
        self.function = function
        self.total = total
        self.fingerprint = fingerprint(format=str(FORMAT), **determined)
        self.checkpoint: Checkpoint | None = None
        self.bar: Progress | None = None
        self.pressed: Sequence[bool] = ()
        self._kept: dict[str, Descent] = {}
        self._done = self._before = 0
        self._seconds, self._begin = 0.0, time.monotonic()
        self._ended = False  # by Ctrl-C: what comes now is no part of the whole fit

    @property
    def seconds(self) -> float:
        """Of this process and those before it."""
        return self._seconds + time.monotonic() - self._begin

    def go_on(self) -> bool:
        """One step more was made. False after Ctrl-C."""
        self._done = min(self._done + 1, self.total - 1)
        if self.bar is not None:
            self.bar.update(self._done, before=self._before)
        return not self.pressed

    # ---- minimisations ---------------------------------------------------------------------------------------------

    def key(self, *determined: Any) -> str:
        """Of a minimisation; empty where nothing is kept."""
        return "" if self.checkpoint is None else digest(*determined)

    def kept(self, key: str, x: Tensor, steps: int, calm: int) -> Descent | None:
        """How far it got before: laws like x, at most so many steps and so many of them without a gain."""
        found = self._kept.get(key)
        if found is not None:
            if found.x.shape != x.shape or found.steps > steps or found.calm > calm:
                assert self.checkpoint is not None
                file, self.checkpoint = self.checkpoint, None  # the file stays as it is
                raise file.refused(ValueError(f"its minimisation {key} is another one"))
            self._before = min(self._before + found.steps, self.total - 1)
            self._done = min(self._done + found.steps, self.total - 1)
        return found

    def keep(self, key: str, descent: Descent) -> None:
        """How far it is."""
        if self.checkpoint is None or self._ended:
            return
        self._kept[key] = descent
        self._ended = bool(self.pressed)
        self.checkpoint.keep()

    # ---- saved and continued ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, in tensors and numbers."""
        kept = {key: tuple(descent) for key, descent in self._kept.items()}
        return {"fingerprint": self.fingerprint, "seconds": self.seconds, "kept": kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; raises ValueError, which says what differs, if it is another fit's."""
        check_same(state["fingerprint"], self.fingerprint)
        saved.record(state, "content", self.state().keys())
        seconds = saved.number(state["seconds"], "seconds", 0.0)
        kept = saved.mapping(state["kept"], "kept")
        descents = {key: _descent(parts, f"minimisation {key}") for key, parts in kept.items()}
        self._seconds, self._kept = seconds, descents


def _descent(parts: Any, name: str) -> Descent:
    """One that was saved."""
    x, damping, error, calm, steps = saved.sequence(parts, name, 5)
    x = saved.tensor(x, f"{name}, x,", (None, None), torch.float64)
    damping, error = (
        saved.tensor(part, f"{name}, {word},", (len(x),), torch.float64)
        for part, word in ((damping, "damping"), (error, "error"))
    )
    return Descent(
        x,
        damping,
        error,
        saved.integer(calm, f"{name}, calm,"),
        saved.integer(steps, f"{name}, steps,"),
    )
