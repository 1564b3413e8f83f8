"""Checks of arguments, shared by several modules."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor


def check_tensor(function: str, name: str, value: Any) -> None:
    """TypeError unless it is a dense tensor: not sparse, nested, nor of another library's layout (mkldnn)."""
    if not isinstance(value, Tensor):
        how = "; torch.as_tensor makes one" if hasattr(value, "__array__") else ""
        raise TypeError(f"{function}: {name} must be a torch.Tensor, got {type(value).__name__}{how}")
    if value.is_nested or value.layout is not torch.strided:
        kind = "a nested tensor" if value.is_nested else f"layout {value.layout}"
        raise TypeError(f"{function}: {name} must be a dense tensor, got {kind}")


def check_whole(function: str, name: str, value: Any, least: int = 1) -> None:
    """ValueError unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{function}: {name} must be an integer of at least {least}, got {value!r}")


def check_module(function: str, name: str, value: Any) -> None:
    """TypeError unless it is a module."""
    if not isinstance(value, torch.nn.Module):
        raise TypeError(f"{function}: {name} must be a torch.nn.Module, got {type(value).__name__}")
