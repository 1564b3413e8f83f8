"""RMSProp and Adam, in place on one flat buffer that holds the parameters of all models of a batch.

One buffer: a step is a few passes whatever the number of parameters, and each tensor in it is
padded to whole vectors, so that an element's rounding does not depend on its position, nor a
model's result on the models that train with it. `rate` is a number, or a tensor like the buffer
where the models of a batch have different ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Optimizer:
    """The state of an optimiser: buffers to keep in a checkpoint."""

    kind: type[torch.optim.Optimizer]  # torch's of the same kind
    options: dict[str, Any]  # its arguments
    names: tuple[str, ...]  # of the state's buffers there

    def __init__(self, parameters: Tensor, rate: float | Tensor) -> None:
        self.rate = rate
        self.state = [torch.zeros_like(parameters) for _ in self.names]
        self._scratch = torch.empty_like(parameters)

    def update(self, parameters: Tensor, grads: Tensor, step: int) -> None:
        """One step, the `step`-th, counted from 1. Overwrites `grads`."""
        raise NotImplementedError

    def torchs(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        """Torch's optimiser, where the rate is a number."""
        kind: Any = self.kind
        return kind(parameters, self.rate, **self.options)

    def _subtract(self, parameters: Tensor, numerator: Tensor, factor: float) -> None:
        """parameters -= rate * factor * numerator / scratch; may overwrite the numerator."""
        if isinstance(self.rate, Tensor):
            parameters.addcdiv_(numerator.mul_(self.rate), self._scratch, value=-factor)
        else:
            parameters.addcdiv_(numerator, self._scratch, value=-self.rate * factor)


class RMSProp(Optimizer):
    """torch.optim.RMSprop(alpha=0.9, eps=1e-8): Flux's, as the authors' (torch's alpha is 0.99)."""

    kind, names = torch.optim.RMSprop, ("square_avg",)
    options = {"alpha": 0.9, "eps": 1e-8}  # noqa: RUF012

    def update(self, parameters: Tensor, grads: Tensor, step: int) -> None:
        (square,), alpha = self.state, self.options["alpha"]
        square.mul_(alpha).addcmul_(grads, grads, value=1 - alpha)
        torch.sqrt(square, out=self._scratch).add_(self.options["eps"])
        self._subtract(parameters, grads, 1.0)


class Adam(Optimizer):
    """torch.optim.Adam with its defaults, betas (0.9, 0.999) and eps 1e-8."""

    kind, names = torch.optim.Adam, ("exp_avg", "exp_avg_sq")
    options = {"betas": (0.9, 0.999), "eps": 1e-8}  # noqa: RUF012

    def update(self, parameters: Tensor, grads: Tensor, step: int) -> None:
        (mean, square), (low, high) = self.state, self.options["betas"]
        mean.lerp_(grads, 1 - low)
        square.mul_(high).addcmul_(grads, grads, value=1 - high)
        torch.sqrt(square, out=self._scratch).div_((1 - high**step) ** 0.5).add_(
            self.options["eps"]
        )
        grads.copy_(mean)
        self._subtract(parameters, grads, 1 / (1 - low**step))
