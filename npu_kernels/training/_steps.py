"""The base of all loops of training steps, and the standard one: single steps with autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels.layers import BaseLayer
from npu_kernels.layers._chains import num_models_of
from npu_kernels.training._penalties import l1, mse_loss, project_, regularizer

Term = Callable[[nn.Module, Any], Tensor]
TERMS: dict[str, Term] = {
    "l1": l1,
    "frobenius": lambda model, beta: l1(model, beta, norm="frobenius"),
    "madsen": lambda model, beta: beta * regularizer(model),
    "paper": lambda model, beta: beta * regularizer(model, form="paper"),
    "integer": lambda model, beta: (
        beta
        * regularizer(list(model.parameters()), num_models=num_models_of("run", model.modules()))
    ),
}


@dataclass
class Loop:
    """The steps of a run: the base of `Ordinary`, `plan.Fused` and `captured.Captured`."""

    model: nn.Module  # what is trained
    models: int | None  # K of its units
    optimizer: torch.optim.Optimizer  # whose state is continued
    x: Tensor  # contiguous [N, I] or [K, N, I]
    y: Tensor  # contiguous [N, O] or [K, N, O]
    weight: Tensor | None  # of the squared errors, as y; None: 1
    penalties: Sequence[str]  # the names of those that steps have
    gates: bool  # as of `project_`, which clamps parameters that are not trained as well
    bound: float | None  # the `weights` of `project_`
    finite: bool  # an entry of a gradient that is not finite counts as 0
    losses: Tensor  # [records] or [records, K]
    every: int  # steps from one recorded loss to the next; the first step's is recorded
    intervals: Mapping[str, tuple[float, float]] | None = None  # by name, instead of gates, bound

    def advance(self, done: int, rows: Tensor | None, schedules: Tensor) -> None:
        """Make as many steps as `schedules` has columns.

        Args:
            done: steps before.
            rows: ``[steps, batch]``; None: all rows at each step.
            schedules: ``[groups + penalties, steps]`` float64: the rate of each of the optimizer's
                groups, the weight of each penalty.
        """
        raise NotImplementedError


def chosen(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """Return the rows of ``[N, ...]`` or ``[K, N, ...]``, all for None."""
    return tensor if rows is None else tensor.index_select(tensor.dim() - 2, rows)


class Ordinary(Loop):
    """The standard PyTorch loop, of any model."""

    def advance(self, done: int, rows: Tensor | None, schedules: Tensor) -> None:
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for step, numbers in enumerate(schedules.T.tolist()):
            for group, rate, number in zip(groups, rates, numbers, strict=False):
                if not isinstance(rate, Tensor):  # the schedule has the value of a user's tensor
                    group["lr"] = number
            step_rows = None if rows is None else rows[step]
            self.record(done + step, self.step(step_rows, numbers[len(rates) :]))

    def record(self, number: int, error: Tensor) -> None:
        """Write the loss of a step, counted from 0, if it is one of those to record."""
        if number % self.every == 0:
            self.losses[number // self.every] = error

    def step(self, rows: Tensor | None, betas: Sequence[float | Tensor]) -> Tensor:
        """Make a step; return the loss before it, without penalties, of which betas are weights."""
        self.clear()
        with torch.enable_grad():
            error = self._error(rows)
            loss = error.detach()
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
                for name, (low, high) in self.intervals.items():
                    self.model.get_parameter(name).clamp_(low, high)
        elif (self.gates or self.bound is not None) and any(
            isinstance(part, BaseLayer) for part in self.model.modules()
        ):
            project_(self.model, gates=self.gates, weight_bound=self.bound)
        return loss

    def clear(self) -> None:
        """Remove the gradients, also those that the optimizer does not know of."""
        self.optimizer.zero_grad()
        groups = self.optimizer.param_groups
        optimized = {id(parameter) for group in groups for parameter in group["params"]}
        for parameter in self.model.parameters():
            if id(parameter) not in optimized:
                parameter.grad = None

    def _error(self, rows: Tensor | None) -> Tensor:
        y, target = self.model(chosen(self.x, rows)), chosen(self.y, rows)
        if self.weight is None:
            return mse_loss(y, target, num_models=self.models)
        squares: Tensor = (y - target).square() * chosen(self.weight, rows)
        return squares.mean() if self.models is None else squares.mean((1, 2))
