"""Training steps one by one, through autograd: what `run` makes of a model that is no chain of units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels.layers import Unit
from npu_kernels.training._functions import l1, mse_loss, project_, regularizer
from npu_kernels.training._plan import Loop

Term = Callable[[nn.Module, Any], Tensor]
TERMS: dict[str, Term] = {
    "l1": l1,
    "frobenius": lambda model, beta: l1(model, beta, norm="frobenius"),
    "madsen": lambda model, beta: beta * regularizer(model),
    "paper": lambda model, beta: beta * regularizer(model, form="paper"),
    "whole": lambda model, beta: (
        beta * regularizer(list(model.parameters()), num_models=_models(model))
    ),
}


def _models(model: nn.Module) -> int | None:
    return next((part.num_models for part in model.modules() if isinstance(part, Unit)), None)


def chosen(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """These rows of ``[N, ...]`` or ``[K, N, ...]``."""
    return tensor if rows is None else tensor.index_select(tensor.dim() - 2, rows)


class Ordinary(Loop):
    """The ordinary loop, of any model."""

    def advance(self, done: int, rows: Tensor | None, schedules: Tensor) -> None:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        columns = schedules.T.tolist()
        for step, numbers in enumerate(columns):
            for group, rate, number in zip(
                self.optimizer.param_groups, rates, numbers, strict=False
            ):
                if not isinstance(
                    rate, Tensor
                ):  # a tensor is the user's own; the schedule has its value
                    group["lr"] = number
            self.record(
                done + step, self.step(None if rows is None else rows[step], numbers[len(rates) :])
            )

    def record(self, number: int, error: Tensor) -> None:
        """Keep the loss of that step, from 0, if it is one of those."""
        if number % self.every == 0:
            self.losses[number // self.every] = error

    def step(self, rows: Tensor | None, betas: Sequence[float | Tensor]) -> Tensor:
        """One step; betas: the weights of the penalties. Returns the loss before it, without them."""
        self.clear()
        with torch.enable_grad():
            error = self._error(rows)
            found = error.detach()
            for name, beta in zip(self.penalties, betas, strict=True):
                error = error + TERMS[name](self.model, beta)
            if error.requires_grad:  # not where no parameter is trained
                error.sum().backward()
        if self.finite:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        self.optimizer.step()
        if self.intervals is not None:
            with torch.no_grad():
                for name, ends in self.intervals.items():
                    self.model.get_parameter(name).clamp_(*ends)
        elif (self.gates or self.bound is not None) and any(
            isinstance(part, Unit) for part in self.model.modules()
        ):
            project_(self.model, gates=self.gates, weights=self.bound)
        return found

    def clear(self) -> None:
        """Remove the gradients, also those that the optimiser does not know of."""
        self.optimizer.zero_grad()
        self.model.zero_grad()

    def _error(self, rows: Tensor | None) -> Tensor:
        y, target = self.model(chosen(self.x, rows)), chosen(self.y, rows)
        if self.weight is None:
            return mse_loss(y, target, num_models=self.models)
        squares: Tensor = (y - target).square() * chosen(self.weight, rows)
        return squares.mean() if self.models is None else squares.mean((1, 2))
