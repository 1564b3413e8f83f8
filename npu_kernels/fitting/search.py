"""Many starts under Adam, all problems and starts in one batch of models."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from npu_kernels.fitting.batch import Template
from npu_kernels.fitting.data import Rows, stream
from npu_kernels.fitting.recipe import Recipe

BETAS, EPS = (0.9, 0.99), 1e-8
LAST_RATE = 0.05  # of the first, at the end of a stretch
BLOCK = 64  # steps whose rows are drawn at once


class Search:
    """Models under Adam: their parameters, moments, and which problem and start each is.

    A model whose gradient is not finite makes no step of that entry; what becomes of it shows when it is scored.
    """

    def __init__(self, template: Template, recipe: Recipe, tensors: list[Tensor], starts: int) -> None:
        self.template, self.recipe = template, recipe
        models, device = len(tensors[0]), template.device
        self.tensors = tensors
        self.moments = [torch.zeros_like(t) for t in tensors]
        self.squares = [torch.zeros_like(t) for t in tensors]
        self.problem = torch.arange(models, device=device) // starts
        self.start = torch.arange(models, device=device) % starts
        self.step = 0
        self._block, self._drawn = -1, torch.empty(0)

    def keep(self, index: Tensor) -> None:
        """Go on with these models only ``[A]``."""
        for tensors in (self.tensors, self.moments, self.squares):
            tensors[:] = [t[index] for t in tensors]
        self.problem, self.start = self.problem[index], self.start[index]

    def _rows(self, count: int) -> Tensor:
        """The rows of a step ``[B]``, the same for all problems, whose own order is their seed's."""
        block, index = divmod(self.step, BLOCK)
        if block != self._block:
            generator = stream("rows", 0, block)
            drawn = torch.randint(count, (BLOCK, min(count, self.recipe.batch)), generator=generator)
            self._block, self._drawn = block, drawn.to(self.template.device)
        return self._drawn[index]

    def advance(self, rows: Rows, rung: int, at: int, steps: int) -> None:
        """Step `at` (from 0) of the `steps` of a stretch, on rows in the models' dtype."""
        if not len(self.problem):
            return
        chosen = self._rows(rows.x.shape[1])
        x, y, weight = rows.x[:, chosen], rows.y[:, chosen], rows.weight[:, chosen]
        if len(x) > 1:
            x, y, weight = x[self.problem], y[self.problem], weight[self.problem]
        else:
            x = x[0]
        for tensor in self.tensors:
            tensor.requires_grad_()
        with torch.enable_grad():
            result = self.template(self.tensors, x)
        error = (result.detach() - y).mul_(weight).mul_(2 / (y.shape[1] * y.shape[2]))
        grads = torch.autograd.grad(result, self.tensors, error, allow_unused=True)
        falling = LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * at / steps)) / 2
        self._adam(grads, self.recipe.rate * 0.5**rung * falling)
        self.template.project_(self.tensors)

    def _adam(self, grads: tuple[Tensor | None, ...], rate: float) -> None:
        self.step += 1
        first, second = (1 - beta**self.step for beta in BETAS)
        for tensor, grad, moment, square in zip(self.tensors, grads, self.moments, self.squares, strict=True):
            tensor.requires_grad_(False)
            if grad is None:
                continue
            grad = grad.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            moment.lerp_(grad, 1 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
            tensor.addcdiv_(moment, square.sqrt().div_(math.sqrt(second)).add_(EPS), value=-rate / first)

    def flat(self) -> Tensor:
        """The parameters ``[A, P]`` in float64."""
        return self.template.flatten(self.tensors).double()

    def state(self) -> dict[str, Any]:
        names = ("tensors", "moments", "squares", "problem", "start", "step")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: dict[str, Any]) -> None:
        device = self.template.device
        for name in ("tensors", "moments", "squares"):
            setattr(self, name, [t.to(device).clone() for t in state[name]])
        self.problem, self.start = state["problem"].to(device).clone(), state["start"].to(device).clone()
        self.step = state["step"]
