"""Autocast, half precision, recomputation; copies, torch.nn's services, the source of a nan."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint

from npu_kernels import NPU, functional, interop
from npu_kernels.training import debug
from tools.certify.matrix import ROUNDING, Column, check, equal, inputs, model_of, require, step


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


# ---- copies, files, torch.nn, layers of other code ----


@check("deepcopy, pickle, state_dict, torch.load(weights_only=True), meta, skip_init")
def _copies(column: Column) -> None:
    model, x = model_of(column), inputs(column, 9, 3)
    y, file = model(x), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    with torch.device("meta"):
        empty = model_of(Column(column.backend, "meta"))
    empty.load_state_dict(torch.load(file, weights_only=True), assign=True)
    for copied in (empty, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        require(torch.equal(copied(x), y), "a copy computes something else")
    nn.utils.skip_init(NPU, 3, 2, device=column.device).reset_parameters()


@check("parametrize, prune, module hooks")
def _services(column: Column) -> None:
    class Double(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    x, seen = inputs(column, 9, 3), []
    layer = NPU(3, 2, device=column.device)
    expected = functional.npu(x, 2 * layer.weight_re, layer.weight_im, layer.gate)
    parametrize.register_parametrization(layer, "weight_re", Double())
    layer.register_forward_hook(lambda *_: seen.append(1))
    equal(layer(x), expected, 1e-6, "parametrize")
    layer(x).sum().backward()
    require(len(seen) == 2, "hooks")
    layer = NPU(3, 2, device=column.device)
    prune.l1_unstructured(layer, "weight_re", amount=2)
    layer(x).sum().backward()
    masked: Any = layer.weight_re_orig
    require(int((masked.grad == 0).sum()) == 2, "prune")


@check("swap and to_reference")
def _interop(column: Column) -> None:
    model, x = model_of(column), inputs(column, 9, 3)
    y = model(x)
    for layout in ("reference", "julia", "pytorch"):
        eager = interop.to_reference(model, layout)
        equal(eager(x), y, 1e-5, layout)
        equal(interop.swap(eager)(x), y, 1e-6, layout)
        interop.to_reference(model, layout, inplace=True)
        equal(model(x), y, 1e-5, layout)
        interop.swap(model, inplace=True)
        equal(model(x), y, 1e-6, layout)


@check("anomaly mode and the tracer name the layer")
def _anomaly(column: Column) -> None:
    x = torch.full((2, 3), math.nan, device=column.device, requires_grad=True)
    layer = NPU(3, 2, device=column.device)
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")
        try:
            layer(x).sum().backward()
        except RuntimeError as error:
            named = column.backend == "reference" or "NPUFunctionBackward" in str(error)
            require(named, str(error))
        else:
            raise AssertionError("no error")
    with debug.detect_nonfinite(layer, "record") as records:
        layer(x)
    require((records[0].kind, records[0].output, records[0].row) == ("NPU", 0, (0,)), str(records))
