"""The mean squared error of one model or several, in one call on the CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from npu_kernels._common.checks import check_floating, check_whole
from npu_kernels._operators import dispatch, fast_path
from npu_kernels._operators.checks import unrecorded


def mse_loss(y: Tensor, target: Tensor, *, num_models: int | None = None) -> Tensor:
    """Return the mean squared error, one for each model where there are several.

    Args:
        y: of any shape; with models ``[K, ...]``.
        target: of the shape of y; with models also ``[...]``, the same for all of them.
        num_models: K, the first dimension of y. The sum of the ``[K]`` losses trains every model
            as if it were alone.

    Returns a scalar, or ``[K]`` with models. Raises TypeError unless both are tensors of one
    floating dtype, ValueError for other shapes.

    On the CPU one call computes it and one its gradient: for a small model,
    `torch.nn.functional.mse_loss` costs as much as the layers.

        >>> import torch
        >>> from npu_kernels.training import mse_loss
        >>> mse_loss(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, 2.0]), num_models=2)
        tensor([0., 4.])
    """
    fast = not is_compiling() and dispatch.forced() in dispatch.FAST_PATH
    if fast_path.mse is not None and fast and _leads(num_models, y):
        loss = fast_path.mse(y, target, num_models is not None)
        if loss is not NotImplemented:
            return loss  # type: ignore[no-any-return]
    unrecorded(_check_loss, y, target, num_models)
    if num_models is None:
        return nn.functional.mse_loss(y, target)
    count = math.prod(y.shape[1:])  # not -1: num_models may be 0
    return (y - target).square().reshape(num_models, count).mean(1)


def _leads(num_models: Any, y: Any) -> bool:
    """Return whether num_models is None, or an int and the first dimension of y."""
    if num_models is None:
        return True
    plain = type(num_models) is int and isinstance(y, Tensor) and not y.is_nested
    return plain and y.shape[:1] == (num_models,)


def _check_loss(y: Any, target: Any, num_models: int | None) -> None:
    if num_models is not None and not isinstance(num_models, torch.SymInt):
        check_whole("mse_loss", "num_models", num_models, 0)
    for name, tensor in (("y", y), ("target", target)):
        check_floating("mse_loss", name, tensor)
    if target.dtype != y.dtype:
        got = f"y {y.dtype}, target {target.dtype}"
        raise TypeError(f"mse_loss: y and target must have one dtype, got {got}")
    shape, got = tuple(y.shape), f"got shape {tuple(target.shape)}"
    if num_models is not None and shape[:1] != (num_models,):
        rule = f"y must have leading dimension {num_models!r} (num_models)"
        raise ValueError(f"mse_loss: {rule}, got shape {shape}")
    if target.shape != shape and (num_models is None or target.shape != shape[1:]):
        shared = "" if num_models is None else f" or {shape[1:]} (shared by all models)"
        raise ValueError(f"mse_loss: target must have the shape of y, {shape}{shared}, {got}")


def _mse_backward(grad_loss: Tensor, y: Tensor, target: Tensor, models: bool) -> tuple[Tensor]:
    """Return the gradient of y by torch's operations, which have any derivative and transform."""
    count = y.numel() // (y.shape[0] if models else 1)
    scale = grad_loss.reshape(-1, *(1,) * (y.dim() - 1)) if models else grad_loss
    return ((2 / count) * scale * (y - target),)


fast_path.set_backward("mse", _mse_backward)
