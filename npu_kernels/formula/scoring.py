"""Neural Power Unit, a layer: the error that simplifying is judged by, and a refit that lowers it. Needs torch only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

Score = Callable[[nn.Module], float]
Loss = Callable[[nn.Module], Tensor]
Refit = Callable[[nn.Module, Mapping[str, Tensor]], object]


def relative_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Root mean square over outputs and rows of the error, each output relative to the root mean square of its target.

    prediction, target: both ``[B, O]``. An output whose target is 0 throughout counts absolutely. The result is a
    scalar.
    """
    scale = target.square().mean(0)
    return ((prediction - target).square().mean(0) / scale.where(scale > 0, 1)).mean().sqrt()


def scorer(module: nn.Module, x: Tensor | None, y: Tensor | None, score: Score | None) -> tuple[Score, Loss | None]:
    """The score, and for data its differentiable form."""
    if (x is None) == (score is None) or (score is not None and y is not None):
        raise ValueError("simplify: either x (with or without y) or score must be given, got both or neither")
    if score is not None:
        own = score

        def measured(candidate: nn.Module) -> float:
            with torch.no_grad():
                error = float(own(candidate))
            return math.inf if math.isnan(error) else error

        return measured, None
    assert x is not None
    with torch.no_grad():
        prediction: Tensor = module(x)
    target = prediction if y is None else y
    if target.shape != prediction.shape:
        raise ValueError(
            f"simplify: y must have the shape of the model's output {tuple(prediction.shape)}, "
            f"got shape {tuple(target.shape)}"
        )
    target = target.detach().reshape(-1, target.shape[-1])

    def loss(candidate: nn.Module) -> Tensor:
        return relative_error(candidate(x).reshape(target.shape), target)

    def error(candidate: nn.Module) -> float:
        with torch.no_grad():
            found = float(loss(candidate))
        return math.inf if math.isnan(found) else found

    return error, loss


def lbfgs(loss: Loss, iterations: int) -> Refit:
    """A refit to data by L-BFGS, in which fixed entries have no gradient and so do not move."""

    def refit(module: nn.Module, fixed: Mapping[str, Tensor]) -> None:
        parameters = dict(module.named_parameters())
        optimizer = torch.optim.LBFGS(
            parameters.values(), max_iter=iterations, line_search_fn="strong_wolfe", tolerance_grad=0.0,
            tolerance_change=0.0,
        )  # fmt: skip

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss(module).square()
            value.backward()
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    parameter.grad[fixed[name]] = 0
            return value

        optimizer.step(closure)
        optimizer.zero_grad()

    return refit
