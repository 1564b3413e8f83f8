"""Neural Power Unit, a layer: where the first inf or nan comes from, for a model in training.

    >>> import torch
    >>> from npu_kernels import RealNPU, trace
    >>> model = torch.nn.Sequential(RealNPU(2, 1))
    >>> model[0].weight_re.data.fill_(100.0)
    tensor([[100., 100.]])
    >>> with trace.non_finite(model, "record") as found:
    ...     y = model(torch.tensor([[1.0, 1.0], [1e3, 1.0]]))
    >>> found[0].module, found[0].unit, found[0].row, found[0].value
    ('0', 0, (1,), inf)

Without "record" it raises at the first module whose output, or whose arriving gradient, has a value that is not finite,
and says which:

    npu: 0 (NPU): the output of unit 1 is inf for input row 3: exponent P = 92.1 (exp overflows float32 above 88.7),
    phase Q = 3.14; the greatest part is input 0: x = 1e-20, r = 1.19e-07, log r = -15.9, weight_re = -5.8

It checks every output. This costs as much as a layer, and on a GPU it waits for each result. It does not work in
a compiled model and under `torch.func` transforms.
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
from npu_kernels.autograd import eager_only
from npu_kernels.layers import Unit
from npu_kernels.layers.npu import PowerUnit
from npu_kernels.notices import warn

ACTIONS = ("raise", "warn", "record")


@dataclass(frozen=True)
class NonFinite:
    """One value that is not finite.

    module: its name in the model, "" for the model itself. kind: its class. what: "output" or "gradient" (the one that
    arrives). value: the value. unit: which output o. row: which input row, an index for each leading dimension. model:
    which of `num_models`. bad_inputs: which inputs are not finite themselves. message: all of it as text. Of NPU,
    RealNPU and NaiveNPU also, for this row: r and log_r of every input, exponent P and phase Q of this unit.
    """

    module: str
    kind: str
    what: str
    value: float
    unit: int
    row: tuple[int, ...]
    model: int | None
    bad_inputs: tuple[int, ...]
    r: tuple[float, ...] = ()
    log_r: tuple[float, ...] = ()
    exponent: float | None = None
    phase: float | None = None
    message: str = ""


class NonFiniteError(ArithmeticError):
    """Raised by `non_finite`; `found` is the `NonFinite` value."""

    def __init__(self, found: NonFinite) -> None:
        super().__init__(found.message)
        self.found = found


@torch.no_grad()
def _examine(name: str, unit: Unit, what: str, x: Tensor, values: Tensor) -> NonFinite | None:
    bad = values.isfinite().logical_not_()
    if not bad.any():
        return None
    index = tuple(int(i) for i in bad.nonzero()[0])
    model, row, out = None, index[:-1], index[-1]
    if unit.num_models is not None:
        model, row = index[0], index[1:-1]
    shared = model is not None and x.dim() == 2
    at = x[row if model is None or shared else index[:-1]]  # [I]
    bad_inputs = tuple(int(i) for i in at.isfinite().logical_not().nonzero().flatten())
    facts: dict[str, Any] = {}
    value = values[index].item()
    where = f"unit {out}" + ("" if model is None else f" of model {model}")
    text = f"npu: {name or 'the model'} ({type(unit).__name__}): "
    text += "the output of " if what == "output" else "the gradient that arrives at "
    text += f"{where} is {value} for input row {row[0] if len(row) == 1 else row}"
    if isinstance(unit, PowerUnit):
        half = at.dtype in (torch.float16, torch.bfloat16)
        re, im, gate = unit.weight_re, unit.weight_im, unit.gate
        if model is not None:
            re, im, gate = re[model], None if im is None else im[model], None if gate is None else gate[model]
        if half:
            at, re = at.float(), re.float()
            im, gate = (t if t is None else t.float() for t in (im, gate))
        eps = torch.finfo(at.dtype).eps if unit.eps is None else unit.eps
        p, q, r, log_r, m = reference.exponents(at[None], re, im, None if gate is None else gate.clamp(0, 1), eps)
        exponent, phase = p[0, out].item(), q[0, out].item()
        facts = {"r": tuple(r[0].tolist()), "log_r": tuple(log_r[0].tolist()), "exponent": exponent, "phase": phase}
        limit = math.log(torch.finfo(at.dtype).max)
        parts = re[out] * log_r[0]
        if im is not None:
            parts = parts - math.pi * im[out] * m[0] * (1 if gate is None else gate.clamp(0, 1))
        worst = bad_inputs[0] if bad_inputs else int(parts.abs().nan_to_num(nan=math.inf).argmax())
        text += f": exponent P = {exponent:.4g}"
        if exponent > limit:
            text += f" (exp overflows {str(at.dtype).removeprefix('torch.')} above {limit:.4g})"
        text += f", phase Q = {phase:.4g}; the greatest part is input {worst}: x = {at[worst].item():.4g}, "
        text += f"r = {facts['r'][worst]:.4g}, log r = {facts['log_r'][worst]:.4g}, "
        text += f"weight_re = {re[out, worst].item():.4g}"
        text += "" if im is None else f", weight_im = {im[out, worst].item():.4g}"
    if bad_inputs:
        text += f"; of the row's inputs {', '.join(map(str, bad_inputs))} already not finite"
    weights = [key for key, parameter in unit.named_parameters(recurse=False) if not parameter.isfinite().all()]
    if weights:
        text += f"; not finite itself: {', '.join(weights)}"
    return NonFinite(name, type(unit).__name__, what, value, out, row, model, bad_inputs, **facts, message=text)


@contextlib.contextmanager
def non_finite(model: nn.Module, action: str = "raise") -> Iterator[list[NonFinite]]:
    """Watch the layers of this package in `model` for values that are not finite, in forward and backward.

    action: "raise" a `NonFiniteError` at the first, "warn" of each, or "record" each. Yields the list of those found,
    one at most for each layer, direction and call. Raises ValueError for another action.
    """
    if action not in ACTIONS:
        raise ValueError(f"non_finite: action must be one of {', '.join(map(repr, ACTIONS))}, got {action!r}")
    found: list[NonFinite] = []
    active = True  # a graph, and its hooks, may outlive the block

    def look(name: str, unit: Unit, what: str, x: Tensor, values: Tensor) -> None:
        one = _examine(name, unit, what, x, values) if active and not eager_only() else None
        if one is None:
            return
        found.append(one)
        if action == "raise":
            raise NonFiniteError(one)
        if action == "warn":
            warn(one.message, RuntimeWarning)

    def watch(name: str, unit: Unit) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], y: Tensor) -> None:
            x = inputs[0].detach()
            look(name, unit, "output", x, y.detach())
            if y.requires_grad and not eager_only():
                y.register_hook(lambda grad: look(name, unit, "gradient", x, grad))

        return unit.register_forward_hook(hook)

    handles = [watch(name, module) for name, module in model.named_modules() if isinstance(module, Unit)]
    try:
        yield found
    finally:
        active = False
        for handle in handles:
            handle.remove()


__all__ = ["NonFinite", "NonFiniteError", "non_finite"]
