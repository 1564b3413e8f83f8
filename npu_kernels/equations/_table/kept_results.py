"""What a fit has computed, kept in a checkpoint.

An interrupted fit continues from it to the same bits.

A fit is a sequence of steps, and each of them is determined by the data, the parameters and the
steps before it. The results of nearly all of its time are kept in their order. A fit that is
started again takes them and computes the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, fields
from typing import Any

import numpy as np
import torch

from npu_kernels._jobs import saved
from npu_kernels._jobs.checkpoint import Checkpoint
from npu_kernels._jobs.fingerprint import check_same, fingerprint
from npu_kernels.equations._table.refine import Sum
from npu_kernels.equations._table.varpro import Points

Array = Any

FORMAT = 2  # of a saved state


class Work:
    """The steps of a fit's outputs.

    seed: of the search. determined: the data and parameters, by name.

    drawn: whether the seed is another one each time; a fit that continues then has the seed of the
    one before. groups: the number of groups with coefficients of their own; None: there are none.
    """

    function = "NPURegressor.fit"

    def __init__(
        self, seed: int, drawn: bool, determined: dict[str, str], groups: int | None = None
    ) -> None:
        self.seed, self.drawn = seed, drawn
        self.of_term = () if groups is None else (groups,)  # the shape of its coefficients
        random_state = "None" if drawn else str(seed)
        self.fingerprint = fingerprint(
            format=str(FORMAT), numpy=np.__version__, **determined, random_state=random_state
        )
        self.checkpoint: Checkpoint | None = None
        self.kept: dict[str, Any] = {}

    def steps(self, output: int) -> Steps:
        """The steps of an output by its index."""
        return Steps(self, output)

    def save(self) -> None:
        """Write the checkpoint, if there is one."""
        if self.checkpoint is not None:
            self.checkpoint.save()

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, in tensors and numbers."""
        return {"fingerprint": self.fingerprint, "seed": self.seed, "kept": self.kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`.

        Raises ValueError, which says what differs, if it is another fit's.
        """
        check_same(state["fingerprint"], self.fingerprint)
        saved.record(state, "content", self.state().keys())
        low, high = (0, 2**31 - 1) if self.drawn else (self.seed, self.seed)
        seed = saved.integer(state["seed"], "seed", low, high)
        steps = saved.mapping(state["kept"], "kept").items()
        results = {key: _read(value, f"step {key}", self.of_term) for key, value in steps}
        self.seed, self.kept = seed, results


class Steps:
    """The steps of one output in their order; those that were made before are not made again.

    work: None keeps nothing.
    """

    def __init__(self, store: Work | None = None, output: int = 0) -> None:
        self._work, self._output, self._made = store, output, 0

    def points(
        self, generator: Any, terms: int, inputs: int, compute: Callable[[], Points]
    ) -> Points:
        """Return the points that `compute` gives, which draws from the generator.

        They have that many terms and effective inputs.
        """

        def pack() -> Any:
            points = compute()
            tensors = [getattr(points, field.name) for field in fields(points)]
            return [tensors, json.dumps(generator.bit_generator.state)]

        if self._work is None:
            return compute()
        tensors, state = self._step(
            pack, lambda step: _is_points(step) and step[0][0].shape[1:] == (terms, inputs)
        )
        generator.bit_generator.state = json.loads(state)
        return Points(*tensors)

    def sums(
        self, inputs: int, compute: Callable[[], list[Sum]], count: int | None = None
    ) -> list[Sum]:
        """Return the sums that `compute` gives, of that many effective inputs.

        count: the number of sums, if it is known.
        """
        if self._work is None:
            return compute()

        def fits(step: Any) -> bool:
            sizes = [parts[0].shape[1] for parts in step] if not _is_points(step) else [-1]
            return count in (None, len(sizes)) and all(size == inputs for size in sizes)

        steps = self._step(lambda: [_packed(law) for law in compute()], fits)
        return [_unpacked(parts) for parts in steps]

    def sum(self, inputs: int, compute: Callable[[], Sum]) -> Sum:
        """Return the sum that `compute` gives, of that many effective inputs."""
        [law] = self.sums(inputs, lambda: [compute()], 1)
        return law

    def _step(self, compute: Callable[[], Any], fits: Callable[[Any], bool]) -> Any:
        """The next step: kept, or computed now; ValueError for one of a file that does not fit."""
        assert self._work is not None
        key = f"{self._output}.{self._made}"
        self._made += 1
        if key not in self._work.kept:
            self._work.kept[key] = compute()
            if self._work.checkpoint is not None:
                self._work.checkpoint.keep()
        elif not fits(self._work.kept[key]) and self._work.checkpoint is not None:
            file, self._work.checkpoint = self._work.checkpoint, None  # the file stays as it is
            raise file.refused(ValueError(f"its step {key} is another one"))
        return self._work.kept[key]


def _is_points(step: Any) -> bool:
    """Whether a step has points, and else sums."""
    return len(step) == 2 and isinstance(step[1], str)


def _read(step: Any, name: str, of_term: tuple[int, ...]) -> Any:
    """A step that was saved. of_term: the shape of a term's coefficients."""
    saved.sequence(step, name)
    if _is_points(step):
        u, parity, c, rss = saved.sequence(step[0], name, 4)
        u = saved.tensor(u, name, (None, None, None), torch.float64)
        shapes = ((parity, u.shape), (c, (*u.shape[:2], *of_term)), (rss, u.shape[:1]))
        try:
            np.random.default_rng(0).bit_generator.state = json.loads(step[1])
        except Exception:  # of any kind, by what is wrong in it
            raise ValueError(f"its {name} has no state of a generator") from None
        parts = [saved.tensor(part, name, shape, torch.float64) for part, shape in shapes]
        return [[u, *parts], step[1]]
    return [_read_sum(parts, name, of_term) for parts in step]


def _read_sum(parts: Any, name: str, of_term: tuple[int, ...]) -> list[Any]:
    """A sum that was saved."""
    u, parity, free, c, rss, press, cost = saved.sequence(parts, name, len(fields(Sum)))
    largest = torch.finfo(torch.float64).max
    u = saved.tensor(u, name, (None, None), torch.float64, low=-largest, high=largest)
    parity = saved.tensor(parity, name, u.shape, torch.float64)
    free = saved.tensor(free, name, u.shape, torch.bool)
    c = saved.tensor(c, name, (*u.shape[:1], *of_term), torch.float64)
    rss, press = (saved.number(error, name, 0.0, finite=False) for error in (rss, press))
    return [u, parity, free, c, rss, press, saved.number(cost, name, finite=False)]


def _packed(law: Sum) -> list[Any]:
    """A sum in tensors and numbers; each has its own memory."""
    return [
        torch.from_numpy(part.copy()) if isinstance(part, np.ndarray) else float(part)
        for part in astuple(law)
    ]


def _unpacked(parts: list[Any]) -> Sum:
    values: list[Any] = [part.numpy() if isinstance(part, torch.Tensor) else part for part in parts]
    return Sum(*values)
