"""A batch of models in training, as work for the runner.

One step of all K models: the package's layers and their fused gradients through autograd, then the penalty, whose
gradient is a line of algebra, then the optimiser. All parameters lie in one flat buffer, one block for each tensor
``[K, ...]``; the modules hold views of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.paper.optimizers import Optimizer

ALIGNMENT = 64  # elements; a whole number of any machine's vectors

NO_BETA = torch.zeros(())

Rows = list[dict[str, Any]]


class Buffer:
    """The parameters of a module, moved into one flat tensor, and a second one for their gradients."""

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        sizes = [-(-p.numel() // ALIGNMENT) * ALIGNMENT for p in parameters]
        self.flat = parameters[0].new_zeros(sum(sizes))
        self.flat_grads = torch.zeros_like(self.flat)
        self.parameters, self.views, self.grads = parameters, list[Tensor](), list[Tensor]()  # [K, ...]
        offset = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            here = slice(offset, offset + parameter.numel())
            view = self.flat[here].view_as(parameter)
            view.copy_(parameter.detach())
            parameter.data = view
            self.views.append(view)
            self.grads.append(self.flat_grads[here].view_as(parameter))
            offset += size
        self.rows = [view.flatten(1) for view in self.views]  # [K, elements]

    def spread(self, values: Tensor) -> Tensor:
        """A tensor like `flat` with model k's value ``[K]`` at each of its parameters."""
        spread, offset = torch.zeros_like(self.flat), 0
        for row in self.rows:
            spread[offset : offset + row.numel()].view_as(row).copy_(values.unsqueeze(1))
            offset += -(-row.numel() // ALIGNMENT) * ALIGNMENT
        return spread

    def per_model(self) -> Tensor:
        """All parameters of each model, ``[K, P]``, a copy."""
        return torch.cat(self.rows, 1)

    def load_per_model(self, values: Tensor) -> None:
        """The inverse of `per_model`."""
        for row, part in zip(self.rows, values.split([row.shape[1] for row in self.rows], 1), strict=True):
            row.copy_(part)


# A penalty writes gradients plus beta [K] times its own gradient into the buffer's gradients.
Penalty = Callable[[Buffer, Sequence[Tensor], Tensor], None]


def _along(values: Tensor, like: Tensor) -> Tensor:
    """``[K]`` so that it broadcasts against ``[K, ...]``."""
    return values.view(-1, *[1] * (like.dim() - 1))


def frobenius(buffer: Buffer, grads: Sequence[Tensor], beta: Tensor) -> None:
    """``beta sum_k |theta_k|_F`` over a model's tensors: what the authors' `norm(ps, 1)` computes. Gradient 0 at 0."""
    norms = torch.stack([torch.linalg.vector_norm(row, dim=1) for row in buffer.rows])  # [tensors, K]
    scales = torch.where(norms > 0, beta / norms, 0.0)
    for grad, view, kept, scale in zip(grads, buffer.views, buffer.grads, scales, strict=True):
        torch.addcmul(grad, view, _along(scale, view), out=kept)


def l1(buffer: Buffer, grads: Sequence[Tensor], beta: Tensor) -> None:
    """``beta sum |theta|``, as the paper writes. Gradient 0 at 0."""
    for grad, view, kept in zip(grads, buffer.views, buffer.grads, strict=True):
        torch.addcmul(grad, view.sign(), _along(beta, view), out=kept)


def unpenalised(buffer: Buffer, grads: Sequence[Tensor], beta: Tensor) -> None:
    """The gradients alone."""
    for grad, kept in zip(grads, buffer.grads, strict=True):
        kept.copy_(grad)


class Training:
    """K models, trained on mean squared error plus a penalty.

    Args:
        module: takes the rows of `data`, gives ``[K, B, O]``.
        optimizer: makes an optimiser from a buffer.
        data: step (from 1) to x, ``[B, I]`` or ``[K, B, I]``, and targets ``[K, B, O]``.
        steps: how many.
        penalty, beta: the penalty and its weights ``[K]`` at a step.
        evaluate: rows and tensors to keep, at the end; gets this object.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Callable[[Buffer], Optimizer],
        data: Callable[[int], tuple[Tensor, Tensor]],
        steps: int,
        evaluate: Callable[[Training], tuple[Rows, dict[str, Tensor]]],
        penalty: Penalty = unpenalised,
        beta: Callable[[int], Tensor] = lambda step: NO_BETA,
    ) -> None:
        self.module, self.data, self.total, self.done = module, data, steps, 0
        self.buffer = Buffer(module)
        self.optimizer = optimizer(self.buffer)
        self.penalty, self.beta, self._evaluate = penalty, beta, evaluate
        self.last_loss: Tensor | None = None  # [K], of the last step's rows, before the step

    def advance(self, steps: int) -> None:
        """Train for so many more steps."""
        for step in range(self.done + 1, self.done + steps + 1):
            self._step(step)
        self.done += steps

    def _step(self, step: int) -> None:
        x, target = self.data(step)
        y = self.module(x)
        error = y.detach() - target
        if step == self.total:
            self.last_loss = error.double().square().mean((1, 2))
        scale = 2 / (error.shape[1] * error.shape[2])
        grads = torch.autograd.grad(y, self.buffer.parameters, error.mul_(scale))
        with torch.no_grad():
            self.penalty(self.buffer, grads, self.beta(step))
            self.optimizer.update(self.buffer.flat, self.buffer.flat_grads, step)

    def state(self) -> dict[str, Any]:
        """All that a checkpoint needs."""
        return {"done": self.done, "tensors": [self.buffer.flat, *self.optimizer.state]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.done = state["done"]
        for tensor, kept in zip([self.buffer.flat, *self.optimizer.state], state["tensors"], strict=True):
            tensor.copy_(kept)

    @torch.no_grad()
    def results(self) -> tuple[Rows, dict[str, Tensor]]:
        """The rows of the runs, and tensors with a leading K."""
        return self._evaluate(self)
