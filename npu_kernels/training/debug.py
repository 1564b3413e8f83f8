"""The search for the first inf or nan of a model in training.

By default `detect_nonfinite` raises an error at the first layer with an output, or a gradient with
respect to its output, that is not finite. The message (in one line) is:

    npu: 0 (NPU): output 1 is inf for input row 3: exponent P = 92.1 (exp overflows float32 above
    88.7), phase Q = 3.14; the largest part is input 0: x = 1e-20, r = 1.19e-07, log r = -15.9,
    weight_re = -5.8

The check of a layer takes about as long as the layer, and on a GPU it waits for each result. It
does not work in a compiled model and under `torch.func` transforms.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import reference
from npu_kernels._common.checks import NonFiniteError, check_choice, warn
from npu_kernels._operators.autograd import eager_only
from npu_kernels.layers import BaseLayer, PowerLayer


@dataclass(frozen=True)
class NonFinite:
    """One value that is not finite. The fields r to phase are of NPU, RealNPU and NaiveNPU.

    Attributes:
        module: the module's name within the model; "" for the model itself.
        kind: the module's class.
        what: "output", or "gradient" for the gradient with respect to the output.
        value: the value itself: inf, -inf or nan.
        output: index of the output.
        row: the input row, an index for each leading dimension.
        model: index of the model; None without `num_models`.
        bad_inputs: indices of the row's inputs that are not finite.
        r: r of every input of the row (see `NPU`).
        log_r: log r of every input of the row.
        exponent: argument of exp for this output and row (P in the message).
        phase: argument of cos for this output and row (Q in the message).
        message: all of this as text.
    """

    module: str
    kind: str
    what: str
    value: float
    output: int
    row: tuple[int, ...]
    model: int | None
    bad_inputs: tuple[int, ...]
    r: tuple[float, ...] = ()
    log_r: tuple[float, ...] = ()
    exponent: float | None = None
    phase: float | None = None
    message: str = ""


def _power_facts(
    unit: PowerLayer, x: Tensor, out: int, model: int | None, bad_inputs: tuple[int, ...]
) -> tuple[dict[str, Any], str]:
    """Return r, log_r, exponent and phase of a power unit for a row x ``[I]``, and them as text."""
    half = x.dtype in (torch.float16, torch.bfloat16)
    x = x.float() if half else x

    def of_model(tensor: Tensor) -> Tensor:
        tensor = tensor if model is None else tensor[model]
        return tensor.float() if half else tensor

    re = of_model(unit.weight_re)
    im = None if unit.weight_im is None else of_model(unit.weight_im)
    gate = None if unit.gate is None else of_model(unit.gate).clamp(0.0, 1.0)
    eps = torch.finfo(x.dtype).eps if unit.eps is None else unit.eps
    p, q, r, log_r, m = (t[0] for t in reference.exponents(x[None], re, im, gate, eps))
    exponent, phase = p[out].item(), q[out].item()
    parts = re[out] * log_r
    if im is not None:
        parts = parts - math.pi * im[out] * m * (1 if gate is None else gate)
    worst = bad_inputs[0] if bad_inputs else int(parts.abs().nan_to_num(nan=math.inf).argmax())
    text, limit = f": exponent P = {exponent:.4g}", math.log(torch.finfo(x.dtype).max)
    if exponent > limit:
        text += f" (exp overflows {str(x.dtype).removeprefix('torch.')} above {limit:.4g})"
    text += f", phase Q = {phase:.4g}; the largest part is input {worst}: "
    text += f"x = {x[worst].item():.4g}, r = {r[worst].item():.4g}, "
    text += f"log r = {log_r[worst].item():.4g}, weight_re = {re[out, worst].item():.4g}"
    text += "" if im is None else f", weight_im = {im[out, worst].item():.4g}"
    facts = {"r": tuple(r.tolist()), "log_r": tuple(log_r.tolist())}
    return facts | {"exponent": exponent, "phase": phase}, text


@torch.no_grad()
def _examine(name: str, unit: BaseLayer, kind: str, x: Tensor, values: Tensor) -> NonFinite | None:
    """Return the first value that is not finite. The values are of a kind: output or gradient."""
    bad = values.isfinite().logical_not_()
    if not bad.any():
        return None
    index = tuple(int(i) for i in bad.nonzero()[0])
    model, row, out = None, index[:-1], index[-1]
    if unit.num_models is not None:
        model, row = index[0], index[1:-1]
    shared = model is not None and x.dim() == 2
    x_row = x[row if model is None or shared else index[:-1]]  # [I]
    bad_inputs = tuple(int(i) for i in x_row.isfinite().logical_not().nonzero().flatten())
    value = values[index].item()
    text = f"npu: {name or 'the model'} ({type(unit).__name__}): "
    text += "" if kind == "output" else "the gradient that arrives at "
    text += f"output {out}" + ("" if model is None else f" of model {model}")
    text += f" is {value} for input row {row[0] if len(row) == 1 else row}"
    facts: dict[str, Any] = {}
    if isinstance(unit, PowerLayer):
        facts, details = _power_facts(unit, x_row, out, model, bad_inputs)
        text += details
    if bad_inputs:
        text += f"; of the row's inputs {', '.join(map(str, bad_inputs))} already not finite"
    parameters = unit.named_parameters(recurse=False)
    weights = [key for key, parameter in parameters if not parameter.isfinite().all()]
    if weights:
        text += f"; not finite itself: {', '.join(weights)}"
    layer = type(unit).__name__
    return NonFinite(name, layer, kind, value, out, row, model, bad_inputs, **facts, message=text)


@contextlib.contextmanager
def detect_nonfinite(model: nn.Module, action: str = "raise") -> Iterator[list[NonFinite]]:
    """Watch the layers of this package in `model` for values that are not finite.

    It is a context manager. Within the block the outputs of the layers, and the gradients with
    respect to these outputs, are checked. action: "raise" a `NonFiniteError` at the first such
    value, "warn" of each, or "record" each. Yields the list of `NonFinite` records: for each call
    of a layer at most one of the forward pass, and one of the backward pass. Raises ValueError for
    any other action.

        >>> import torch
        >>> from npu_kernels import RealNPU, debug
        >>> model = torch.nn.Sequential(RealNPU(2, 1))
        >>> model[0].weight_re.data.fill_(100.0)
        tensor([[100., 100.]])
        >>> with debug.detect_nonfinite(model, "record") as records:
        ...     y = model(torch.tensor([[1.0, 1.0], [1e3, 1.0]]))
        >>> records[0].module, records[0].row, records[0].value
        ('0', (1,), inf)
    """
    check_choice("detect_nonfinite", "action", action, ("raise", "warn", "record"))
    records: list[NonFinite] = []
    active = True  # a graph, and its hooks, may outlive the block

    def look(name: str, unit: BaseLayer, kind: str, x: Tensor, values: Tensor) -> None:
        if not active or eager_only():
            return
        record = _examine(name, unit, kind, x, values)
        if record is None:
            return
        records.append(record)
        if action == "raise":
            raise NonFiniteError(record.message, found=record)
        if action == "warn":
            warn(record.message, RuntimeWarning)

    def watch(name: str, unit: BaseLayer) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], y: Tensor) -> None:
            x = inputs[0].detach()
            look(name, unit, "output", x, y.detach())
            if y.requires_grad and not eager_only():
                y.register_hook(lambda grad: look(name, unit, "gradient", x, grad))

        return unit.register_forward_hook(hook)

    modules = model.named_modules()
    handles = [watch(name, module) for name, module in modules if isinstance(module, BaseLayer)]
    try:
        yield records
    finally:
        active = False
        for handle in handles:
            handle.remove()


__all__ = ["NonFinite", "NonFiniteError", "detect_nonfinite"]
