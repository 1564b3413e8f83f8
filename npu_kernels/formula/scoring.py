"""The error by which a simplification is judged, and a refit that lowers it. Needs torch only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels.checks import check_tensor

Score = Callable[[nn.Module], float]
Loss = Callable[[nn.Module], Tensor]
Refit = Callable[[nn.Module, Mapping[str, Tensor]], object]


def relative_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Root mean square over outputs and rows of the error, each output relative to the root mean square of its target.

    prediction, target: both ``[B, O]``. An output whose target is 0 throughout counts absolutely. The result is a
    scalar.
    """
    for name, tensor in (("prediction", prediction), ("target", target)):
        _check_floating("relative_error", name, tensor)
    if prediction.shape != target.shape or target.dim() != 2:
        shapes = f"{tuple(prediction.shape)} and {tuple(target.shape)}"
        raise ValueError(f"relative_error: prediction and target must have one shape (B, O), got {shapes}")
    return _relative_error(prediction, target)


def _check_floating(function: str, name: str, tensor: Any) -> None:
    check_tensor(function, name, tensor)
    if not tensor.is_floating_point():
        raise TypeError(f"{function}: {name} must have a floating-point dtype, got {tensor.dtype}")


def _relative_error(prediction: Tensor, target: Tensor) -> Tensor:
    scale = target.square().mean(0)
    return ((prediction - target).square().mean(0) / scale.where(scale > 0, 1)).mean().sqrt()


def scorer(module: nn.Module, x: Tensor | None, y: Tensor | None, score: Score | None) -> tuple[Score, Loss | None]:
    """The score, and for data its differentiable form."""
    if (x is None) == (score is None) or (score is not None and y is not None):
        raise ValueError("simplify: either x (with or without y) or score must be given, got both or neither")
    if score is not None:
        own = score
        if not callable(own):
            raise TypeError(f"simplify: score must be a function of the model, got {type(own).__name__}")

        def measured(candidate: nn.Module) -> float:
            with torch.no_grad():
                found = own(candidate)
            try:
                error = float(found)
            except (TypeError, ValueError):
                raise TypeError(f"simplify: score must give a number, got {type(found).__name__}") from None
            return math.inf if math.isnan(error) else error

        return measured, None
    for name, tensor in (("x", x), ("y", y)):
        if tensor is not None:
            _check_floating("simplify", name, tensor)
            if not tensor.numel() or not tensor.isfinite().all():
                what = "must not be empty" if not tensor.numel() else "must be finite"
                raise ValueError(f"simplify: {name} {what}, got shape {tuple(tensor.shape)}")
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
        return _relative_error(candidate(x).reshape(target.shape), target)

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
