"""The error by which a simplification is judged, and a refit that lowers it. Needs torch only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_floating

Score = Callable[[nn.Module], float]
Loss = Callable[[nn.Module], Tensor]
Refit = Callable[[nn.Module, Mapping[str, Tensor]], object]


def relative_error(prediction: Tensor, target: Tensor) -> Tensor:
    """The root mean square of the error, over outputs and rows, as a scalar.

    Each output counts relative to the root mean square of its target, or absolutely where its
    target is 0 throughout. prediction, target: both ``[B, O]``.
    """
    for name, tensor in (("prediction", prediction), ("target", target)):
        check_floating("relative_error", name, tensor)
    if prediction.shape != target.shape or target.dim() != 2:
        shapes = f"{tuple(prediction.shape)} and {tuple(target.shape)}"
        rule = "prediction and target must have one shape (B, O)"
        raise ValueError(f"relative_error: {rule}, got {shapes}")
    return _relative_error(prediction, target)


def _relative_error(prediction: Tensor, target: Tensor) -> Tensor:
    scale = target.square().mean(0)
    return ((prediction - target).square().mean(0) / scale.where(scale > 0, 1)).mean().sqrt()


def _number(value: Any) -> float:
    """Return a score as a float; inf for nan."""
    try:
        error = float(value)
    except (TypeError, ValueError):
        got = type(value).__name__
        raise TypeError(f"simplify: score must give a number, got {got}") from None
    return math.inf if math.isnan(error) else error


def _data_loss(module: nn.Module, x: Tensor, y: Tensor | None) -> Loss:
    """Return the differentiable error on data; without y, of the deviation from the module."""
    for name, tensor in (("x", x), ("y", y)):
        if tensor is not None:
            check_floating("simplify", name, tensor)
            if not tensor.numel() or not tensor.isfinite().all():
                rule = "must not be empty" if not tensor.numel() else "must be finite"
                raise ValueError(f"simplify: {name} {rule}, got shape {tuple(tensor.shape)}")
    with torch.no_grad():
        prediction: Tensor = module(x)
    target = prediction if y is None else y
    if target.shape != prediction.shape:
        rule = f"the shape of the model's output {tuple(prediction.shape)}"
        raise ValueError(f"simplify: y must have {rule}, got shape {tuple(target.shape)}")
    target = target.detach().reshape(-1, target.shape[-1])
    return lambda candidate: _relative_error(candidate(x).reshape(target.shape), target)


def scorer(
    module: nn.Module, x: Tensor | None, y: Tensor | None, score: Score | None
) -> tuple[Score, Loss | None]:
    """Return the score of a model as a float, and for data its differentiable form."""
    if (x is None) == (score is None) or (score is not None and y is not None):
        rule = "either x (with or without y) or score must be given"
        raise ValueError(f"simplify: {rule}, got both or neither")
    loss = None if x is None else _data_loss(module, x, y)
    function: Callable[[nn.Module], Any] | None = loss or score
    if not callable(function):
        got = type(function).__name__
        raise TypeError(f"simplify: score must be a function of the model, got {got}")

    def error(candidate: nn.Module) -> float:
        with torch.no_grad():
            return _number(function(candidate))

    return error, loss


def lbfgs(loss: Loss, iterations: int) -> Refit:
    """Return a refit by L-BFGS, in which fixed entries have no gradient and do not move."""

    def refit(module: nn.Module, fixed: Mapping[str, Tensor]) -> None:
        parameters = dict(module.named_parameters())
        options: dict[str, Any] = {"tolerance_grad": 0.0, "tolerance_change": 0.0}
        options |= {"max_iter": iterations, "line_search_fn": "strong_wolfe"}
        optimizer = torch.optim.LBFGS(parameters.values(), **options)

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
