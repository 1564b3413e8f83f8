"""The time loop's operators: which backend has them, and what runs where no backend has them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from npu_kernels._operators import dispatch, ops
from npu_kernels.ode import _reference as reference


@dispatch.constant_in_graphs
def _fits_one_launch(d: int, h: int, dtype: torch.dtype) -> bool:
    return bool(dispatch.triton().ode_fits(d, h, dtype))


def has_time_loop(weight_re: Tensor) -> bool:
    """Whether the backend computes the whole time loop of such models in one call, rather than step by step."""
    backend = dispatch.backend_for(weight_re)
    h, d = weight_re.shape[-2:]
    return backend == "cpu" or (backend == "triton" and _fits_one_launch(d, h, weight_re.dtype))


def _run(name: str, *args: Any) -> Any:
    """A time loop on a device other than the CPU, or interpreted: by Triton's kernel where the model fits it."""
    weight_re = args[1 if name == "ode_forward" else 3]
    if dispatch.backend_for(weight_re) == "triton" and has_time_loop(weight_re):
        return dispatch.launch(name, *args)
    return tuple(output.contiguous() for output in getattr(reference, name)(*args))


for _name in ops.TIME_LOOPS:
    ops.library.impl(_name, functools.partial(_run, _name), "CompositeExplicitAutograd")
    dispatch.interpreted[_name] = _run
