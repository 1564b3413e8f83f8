"""Autocast, half precision, gradient scaling, recomputation."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from npu_kernels.certify._checks import Column, check
from npu_kernels.certify._samples import ROUNDING, equal, inputs, model_of, require, step


@check("autocast, float16 and bfloat16: float32 results")
def _autocast(column: Column) -> None:
    model, x = model_of(column), inputs(column, 9, 3)
    expected = model[0](x)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(column.device, dtype):
            y = model[0](x)
        require(y.dtype == torch.float32 and bool(y.isfinite().all()), f"{dtype}: {y.dtype}")
        equal(y, expected, 1e-6, str(dtype))


@check("float16 and bfloat16 parameters: computed in float32, cast back")
def _half(column: Column) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model, x = model_of(column, dtype), inputs(column, 9, 3, dtype=dtype)
        y = model(x)
        y.float().square().mean().backward()
        require(y.dtype == dtype, f"{dtype}: {y.dtype}")
        grads = [p.grad for p in model.parameters()]
        finite = all(grad is not None and bool(grad.isfinite().all()) for grad in grads)
        require(finite, str(dtype))
        expected = copy.deepcopy(model).float()(x.float())
        equal(y.float(), expected, 30 * torch.finfo(dtype).eps, str(dtype))


@check("GradScaler")
def _scaler(column: Column) -> None:
    model, x = model_of(column), inputs(column, 9, 3)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, 1e-3)
    scaler = torch.amp.GradScaler(column.device, init_scale=1024.0)
    before = [p.detach().clone() for p in parameters]
    with torch.autocast(column.device, torch.float16):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    require(all(bool(p.isfinite().all()) for p in parameters), "not finite")
    require(not all(map(torch.equal, parameters, before)), "no step")


@check("torch.utils.checkpoint, reentrant and not")
def _checkpoint(column: Column) -> None:
    # In float64: under hooks of saved tensors other kernels may compute. Rounding in float32 would
    # hide a wrong gradient.
    model = model_of(column, torch.float64)
    x = inputs(column, 9, 3, dtype=torch.float64).requires_grad_()
    expected = step(model, model, x)[2:]
    for reentrant in (False, True):
        model.zero_grad()
        y: Any = checkpoint(model, x, use_reentrant=reentrant)
        y.square().mean().backward()
        for parameter, want in zip(model.parameters(), expected, strict=True):
            equal(parameter.grad, want, ROUNDING, f"reentrant {reentrant}")  # type: ignore[arg-type]
