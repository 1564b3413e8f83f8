"""The streams of numbers that runs draw from: a model's depends on its seed alone.

A stream is named by (purpose, seed, block). Its generator is seeded with the first four bytes of
the BLAKE2b hash of "purpose:seed:block"; a resumed run makes the block that it needs, so no state
has to be kept. The draws are made on the CPU in float32, for every device and dtype of the
training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine


def stream(purpose: str, seed: int, block: int = 0) -> torch.Generator:
    """The generator of one stream."""
    digest = hashlib.blake2b(f"{purpose}:{seed}:{block}".encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


class Sobol:
    """The unscrambled Sobol sequence (Joe and Kuo's directions) from any point; point 0 is zero."""

    def __init__(self, dimension: int) -> None:
        self._engine = SobolEngine(dimension)
        self._next = 0

    def points(self, start: int, count: int) -> Tensor:
        """Points start, start + 1, ... as ``[count, dimension]`` float64 in [0, 1)."""
        if start != self._next:
            self._engine.reset()
            if start > 0:
                self._engine.fast_forward(start)
        self._next = start + count
        return self._engine.draw(count, dtype=torch.float64)


class Blocks:
    """What is drawn for blocks of steps; the last block is kept."""

    def __init__(self, steps: int, draw: Callable[[int], Any]) -> None:
        self._steps, self._draw = steps, draw
        self._number, self._block = -1, None

    def __call__(self, step: int) -> tuple[Any, int]:
        """The block of a step (from 1), and the step's index in it."""
        number, index = divmod(step - 1, self._steps)
        if number != self._number:
            self._number, self._block = number, self._draw(number)
        return self._block, index
