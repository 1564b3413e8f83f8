"""RMSProp and Adam, in place on one flat buffer that holds the parameters of all models of a batch.

One buffer: a step is a few passes whatever the number of parameters, and each tensor in it is
padded to whole vectors, so that an element's rounding does not depend on its position, nor a
model's result on the models that train with it. `rate` is a number, or a tensor like the buffer
where the models of a batch have different ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Optimizer(Protocol):
    state: list[Tensor]  # buffers to keep in a checkpoint

    def update(self, parameters: Tensor, grads: Tensor, step: int) -> None:
        """One step, the `step`-th, counted from 1. Overwrites `grads`."""

    def torchs(self, parameters: Sequence[Tensor]) -> tuple[torch.optim.Optimizer, tuple[str, ...]]:
        """Torch's optimiser of the same kind, with a number as rate; its names for `state`."""


class RMSProp:
    """torch.optim.RMSprop(alpha=0.9, eps=1e-8): Flux's, as the authors' (torch's alpha is 0.99)."""

    alpha, eps = 0.9, 1e-8

    def __init__(self, parameters: Tensor, rate: float | Tensor) -> None:
        self.rate = rate
        self.state = [torch.zeros_like(parameters)]
        self._scratch = torch.empty_like(parameters)

    def update(self, parameters: Tensor, grads: Tensor, step: int) -> None:
        (square,) = self.state
        square.mul_(self.alpha).addcmul_(grads, grads, value=1 - self.alpha)
        torch.sqrt(square, out=self._scratch).add_(self.eps)
        _subtract(parameters, grads, self._scratch, self.rate, 1.0)

    def torchs(self, parameters: Sequence[Tensor]) -> tuple[torch.optim.Optimizer, tuple[str, ...]]:
        rate: Any = self.rate
        return torch.optim.RMSprop(parameters, rate, alpha=self.alpha, eps=self.eps), (
            "square_avg",
        )


class Adam:
    """torch.optim.Adam with its defaults, betas (0.9, 0.999) and eps 1e-8."""

    betas, eps = (0.9, 0.999), 1e-8

    def __init__(self, parameters: Tensor, rate: float | Tensor) -> None:
        self.rate = rate
        self.state = [torch.zeros_like(parameters), torch.zeros_like(parameters)]
        self._scratch = torch.empty_like(parameters)

    def update(self, parameters: Tensor, grads: Tensor, step: int) -> None:
        mean, square = self.state
        mean.lerp_(grads, 1 - self.betas[0])
        square.mul_(self.betas[1]).addcmul_(grads, grads, value=1 - self.betas[1])
        correction = (1 - self.betas[1] ** step) ** 0.5
        torch.sqrt(square, out=self._scratch).div_(correction).add_(self.eps)
        grads.copy_(mean)
        _subtract(parameters, grads, self._scratch, self.rate, 1 / (1 - self.betas[0] ** step))

    def torchs(self, parameters: Sequence[Tensor]) -> tuple[torch.optim.Optimizer, tuple[str, ...]]:
        rate: Any = self.rate
        return torch.optim.Adam(parameters, rate, self.betas, self.eps), ("exp_avg", "exp_avg_sq")


def _subtract(
    parameters: Tensor, numerator: Tensor, denominator: Tensor, rate: float | Tensor, factor: float
) -> None:
    """parameters -= rate * factor * numerator / denominator; may overwrite the numerator."""
    if isinstance(rate, Tensor):
        parameters.addcdiv_(numerator.mul_(rate), denominator, value=-factor)
    else:
        parameters.addcdiv_(numerator, denominator, value=-rate * factor)
