"""Rows, settings and comparisons of the tests of `fit`."""

import contextlib
import signal
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from npu_kernels.fitting import FitJob, Recipe

SHORT = Recipe(
    rungs=((20, 1.0), (10, 0.5)), refine=12, settle=6, rows=(32, 64), denominators=(1, 2)
)
# enough for equations with a linear last layer
QUICK = Recipe(rungs=((100, 1.0), (100, 0.5)), refine=100, settle=20)


def rows(low: float, high: float, count: int = 400, seed: int = 1) -> Tensor:
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * (high - low) + low


def parameters(model: nn.Module) -> list[Tensor]:
    return [p.detach() for p in model.parameters()]


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(parameters(a), parameters(b), strict=True))


def hard() -> tuple[Tensor, Tensor]:
    """A sum, which no single power unit is: all stages run."""
    x = rows(1, 2, 90)
    return x, x.sum(1, keepdim=True)


@contextlib.contextmanager
def interrupted_fit(rounds_made: int) -> Iterator[None]:
    """Ctrl-C after so many rounds of a fit, made one by one."""
    advance = FitJob.advance

    def advance_one(self: FitJob, rounds: int) -> None:
        advance(self, 1)
        if self.done == rounds_made:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitJob, "advance", advance_one)
        yield
