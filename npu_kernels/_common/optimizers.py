"""Torch's optimisers without torch's compiler, whose import takes longer than a short training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a bound method of an optimiser that does not import torch's compiler.

    torch wraps what must not be compiled in a function that imports `torch._dynamo` when it is
    called. Before that import nothing is compiled, so the wrapped function does the same. A method
    that somebody has replaced or wrapped is returned as it is.
    """
    wrapper = getattr(method, "__func__", None)
    inner = getattr(wrapper, "__wrapped__", None)
    by_torch = getattr(wrapper, "__globals__", None) is vars(torch._compile)
    if inner is None or not by_torch or "torch._dynamo" in sys.modules:
        return method
    return MethodType(inner, method.__self__)  # type: ignore[attr-defined]


def make(kind: type[_Optimizer], parameters: Iterable[Tensor], **settings: Any) -> _Optimizer:
    """Return an optimiser of this class; making it does not import torch's compiler."""
    optimizer = kind.__new__(kind)
    optimizer.add_param_group = plain(optimizer.add_param_group)  # type: ignore[method-assign]
    optimizer.__init__(parameters, **settings)  # type: ignore[misc]
    del optimizer.add_param_group
    return optimizer
