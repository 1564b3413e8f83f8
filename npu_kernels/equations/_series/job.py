"""The minimisations of one fit of time series: their progress, Ctrl-C, and their checkpoint.

Nearly all of a fit's time is spent in `laws.minimise`. The progress of each minimisation is saved
under a digest of its arguments. A fit that is started again reads those that are done, continues
the one that was interrupted, and so comes to the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels._jobs import saved
from npu_kernels._jobs.checkpoint import Checkpoint
from npu_kernels._jobs.fingerprint import check_same, digest, fingerprint
from npu_kernels._jobs.progress import Progress

VERSION = 3  # of a saved state


class Descent(NamedTuple):
    """The progress of a minimisation of K laws."""

    x: Tensor  # [K, N], the laws
    damping: Tensor  # [K]
    error: Tensor  # [K], half of the sum of squares
    calm: Tensor  # [K], last steps without a gain
    steps: int


class Job:
    """The progress of a fit.

    function: the user's. total: the steps that it may take. determined: its data and options by
    name, in text.
    """

    def __init__(self, function: str, total: int, determined: dict[str, str]) -> None:
        self.function = function
        self.total = total
        self.fingerprint = fingerprint(format=str(VERSION), **determined)
        self.checkpoint: Checkpoint | None = None
        self.bar: Progress | None = None
        self.pressed: Sequence[bool] = ()
        self._descents: dict[str, Descent] = {}
        self._done = self._before = 0
        self._seconds, self._begin = 0.0, time.monotonic()
        self._ended = False  # by Ctrl-C: later minimisations are no part of the fit

    @property
    def seconds(self) -> float:
        """The time of this process and those before it."""
        return self._seconds + time.monotonic() - self._begin

    def go_on(self) -> bool:
        """Count one step more; return False after Ctrl-C."""
        self._done = min(self._done + 1, self.total - 1)
        if self.bar is not None:
            self.bar.update(self._done, before=self._before)
        return not self.pressed

    # ---- minimisations -------------------------------------------------------------------------

    def key(self, *determined: Any) -> str:
        """Return the digest of a minimisation's arguments; empty without a checkpoint."""
        return "" if self.checkpoint is None else digest(*determined)

    def saved(self, key: str, x: Tensor, steps: int) -> Descent | None:
        """Return a minimisation's progress from the checkpoint, None without any.

        It must have laws like x, and at most `steps` steps.
        """
        descent = self._descents.get(key)
        if descent is not None:
            if descent.x.shape != x.shape or descent.steps > steps:
                assert self.checkpoint is not None
                file, self.checkpoint = self.checkpoint, None  # the file stays as it is
                raise file.refused(ValueError(f"its minimisation {key} is another one"))
            self._before = min(self._before + descent.steps, self.total - 1)
            self._done = min(self._done + descent.steps, self.total - 1)
        return descent

    def keep(self, key: str, descent: Descent) -> None:
        """Save a minimisation's progress."""
        if self.checkpoint is None or self._ended:
            return
        self._descents[key] = descent
        self._ended = bool(self.pressed)
        self.checkpoint.keep()

    def save(self) -> None:
        """Write the checkpoint, if there is one."""
        if self.checkpoint is not None:
            self.checkpoint.save()

    # ---- saved and continued -------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all that `restore` needs, in tensors and numbers."""
        descents = {key: tuple(descent) for key, descent in self._descents.items()}
        return {"fingerprint": self.fingerprint, "seconds": self.seconds, "kept": descents}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; raise ValueError, which says what differs, for another fit's."""
        check_same(state["fingerprint"], self.fingerprint)
        saved.record(state, "content", self.state().keys())
        seconds = saved.number(state["seconds"], "seconds", 0.0)
        parts = saved.mapping(state["kept"], "kept")
        descents = {key: _descent(part, f"minimisation {key}") for key, part in parts.items()}
        self._seconds, self._descents = seconds, descents


def _descent(parts: Any, name: str) -> Descent:
    """Return a minimisation that was saved."""
    x, damping, error, calm, steps = saved.sequence(parts, name, 5)
    x = saved.tensor(x, f"{name}, x,", (None, None), torch.float64)
    damping, error, calm = (
        saved.tensor(part, f"{name}, {word},", (len(x),), torch.float64)
        for part, word in ((damping, "damping"), (error, "error"), (calm, "calm"))
    )
    return Descent(x, damping, error, calm, saved.integer(steps, f"{name}, steps,"))
