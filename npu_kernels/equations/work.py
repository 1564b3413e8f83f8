"""What a fit has computed: kept in a checkpoint, from which an interrupted fit continues to the same bits.

A fit is a sequence of steps, and each of them is determined by the data, the parameters and the steps before it. The
results of nearly all of its time are kept in their order. A fit that is started again takes them and computes the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, fields
from typing import Any

import numpy as np
import torch

from npu_kernels.checkpoints import Checkpoint, check_same, fingerprint
from npu_kernels.equations.refine import Sum
from npu_kernels.equations.varpro import Points

Array = Any

FORMAT = 1  # of a saved state


class Work:
    """The steps of a fit's outputs. seed: of the search. determined: the data and parameters, by name.

    drawn: whether the seed is another one each time; a fit that continues then has the seed of the one before.
    """

    function = "NPURegressor.fit"

    def __init__(self, seed: int, drawn: bool, determined: dict[str, str]) -> None:
        self.seed = seed
        random_state = "None" if drawn else str(seed)
        self.fingerprint = fingerprint(
            format=str(FORMAT), numpy=np.__version__, **determined, random_state=random_state
        )
        self.checkpoint: Checkpoint | None = None
        self.kept: dict[str, Any] = {}

    def steps(self, output: int) -> Steps:
        """Of one output."""
        return Steps(self, output)

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, in tensors and numbers."""
        return {"fingerprint": self.fingerprint, "seed": self.seed, "kept": self.kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; raises ValueError, which says what differs, if it is another fit's."""
        missing = self.state().keys() - state.keys()
        if missing:
            raise ValueError(f"it is no state of {self.function}: without {', '.join(sorted(missing))}")
        check_same(state["fingerprint"], self.fingerprint)
        self.seed, self.kept = state["seed"], state["kept"]


class Steps:
    """The steps of one output in their order; those that were made before are not made again.

    work: None keeps nothing.
    """

    def __init__(self, work: Work | None = None, output: int = 0) -> None:
        self._work, self._output, self._made = work, output, 0

    def points(self, generator: Any, compute: Callable[[], Points]) -> Points:
        """The points that `compute` gives, which draws from the generator."""

        def pack() -> Any:
            found = compute()
            tensors = [getattr(found, field.name) for field in fields(found)]
            return [tensors, json.dumps(generator.bit_generator.state)]

        if self._work is None:
            return compute()
        tensors, state = self._step(pack)
        generator.bit_generator.state = json.loads(state)
        return Points(*tensors)

    def sums(self, compute: Callable[[], list[Sum]]) -> list[Sum]:
        """The sums that `compute` gives."""
        if self._work is None:
            return compute()
        return [_unpacked(parts) for parts in self._step(lambda: [_packed(one) for one in compute()])]

    def _step(self, compute: Callable[[], Any]) -> Any:
        """The next step: kept, or computed now."""
        assert self._work is not None
        key = f"{self._output}.{self._made}"
        self._made += 1
        if key not in self._work.kept:
            self._work.kept[key] = compute()
            if self._work.checkpoint is not None:
                self._work.checkpoint.keep()
        return self._work.kept[key]


def _packed(one: Sum) -> list[Any]:
    """A sum in tensors and numbers; each has its own memory."""
    return [torch.from_numpy(part.copy()) if isinstance(part, np.ndarray) else float(part) for part in astuple(one)]


def _unpacked(parts: list[Any]) -> Sum:
    values: list[Any] = [part.numpy() if isinstance(part, torch.Tensor) else part for part in parts]
    return Sum(*values)
