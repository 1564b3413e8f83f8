"""What is timed of a rival: a pass of its module or function, and the results to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    """run: one pass, timed. results: outputs and gradients, for the error; None: a yardstick."""

    run: Callable[[], object]
    results: Callable[[], Sequence[Tensor]] | None
    clear: Callable[[], object] = lambda: None  # frees what a pass leaves: the gradients
    keeps: object = None  # has the operands whose addresses are in a graph


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def filled(module: nn.Module, parameters: Sequence[Tensor]) -> nn.Module:
    """The module on the values' device with these values, in the order of its parameters."""
    module.to(parameters[0].device)
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), parameters, strict=True):
            parameter.copy_(value)
    return module


def both_ways(
    forward: Callable[[], Tensor], leaves: Sequence[Tensor], grad_y: Tensor, compare: bool = True
) -> Workload:
    """Forward and backward, with gradients for all leaves."""

    def clear() -> None:
        for tensor in leaves:
            tensor.grad = None

    def step() -> Tensor:
        clear()
        y = forward()
        y.backward(grad_y)
        return y

    def results() -> list[Tensor]:
        y = step()
        return [y.detach(), *(tensor.grad for tensor in leaves if tensor.grad is not None)]

    return Workload(step, results if compare else None, clear)
