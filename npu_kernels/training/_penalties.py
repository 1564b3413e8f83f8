"""The loss of a training step, its penalties, and the projection after it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.utils import parametrize

from npu_kernels._common.checks import (
    as_number,
    check_choice,
    check_floating,
    check_module,
    check_number,
    check_whole,
)
from npu_kernels._operators import dispatch, fast_path
from npu_kernels._operators.operands import unrecorded
from npu_kernels.layers import BaseLayer
from npu_kernels.layers._chains import num_models_of


def mse_loss(y: Tensor, target: Tensor, *, num_models: int | None = None) -> Tensor:
    """Return the mean squared error, one for each model where there are several.

    Args:
        y: predictions, of any shape; with models ``[K, ...]``.
        target: targets, of the shape of y; with models also ``[...]``, the same for all of them.
        num_models: K, the first dimension of y. The sum of the ``[K]`` losses trains every model
            as if it were alone.

    Returns a scalar, or ``[K]`` with models. Raises TypeError unless both are tensors of one
    floating dtype, ValueError for other shapes.

    On the CPU the loss is one C++ call, and its gradient another. For a small model,
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
    with unrecorded():
        _check_loss(y, target, num_models)
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
    scale = grad_loss.reshape((-1, *(1,) * (y.dim() - 1))) if models else grad_loss
    return ((2 / count) * scale * (y - target),)


fast_path.set_backward("mse", _mse_backward)


# ---- penalties -----------------------------------------------------------------------------------
#
# The penalties "l1", "frobenius", "madsen", "paper" and "integer", and the schedule of their
# weights.
#
# `_steps` adds them to the loss; steps by C++ have their own in csrc/operators/training_loop.h.

Parameters = nn.Module | Tensor | Iterable[Tensor]


def _collect(
    name: str, parameters: Parameters, num_models: int | None, integers_only: bool = False
) -> tuple[list[Tensor], int | None]:
    """Return the tensors to sum over, and the number of models that they belong to."""
    if num_models is not None:
        num_models = check_whole(name, "num_models", num_models)
    if isinstance(parameters, nn.Module):
        modules = parameters.modules()
        num_models = num_models_of(name, modules) if num_models is None else num_models
        used: dict[int, Tensor] = {}  # by the parameter's identity: a shared one counts once
        for module in parameters.modules():
            if not integers_only or (isinstance(module, BaseLayer) and module.integer_weights):
                used |= _in_use(module, originals=not integers_only)
        tensors = list(used.values())
    elif isinstance(parameters, (Tensor, Iterable)):
        tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for tensor in tensors:
            check_floating(name, "parameters", tensor)
    else:
        rule, got = "parameters must be a module, a tensor or tensors", type(parameters).__name__
        raise TypeError(f"{name}: {rule}, got {got}")
    if not tensors:
        raise ValueError(f"{name}: no parameters to sum over")
    if num_models is not None:
        for tensor in tensors:
            if tensor.dim() == 0 or tensor.shape[0] != num_models:
                rule = f"every parameter must have leading dimension {num_models} (num_models)"
                raise ValueError(f"{name}: {rule}, got shape {tuple(tensor.shape)}")
    return tensors, num_models


def _in_use(module: nn.Module, originals: bool) -> dict[int, Tensor]:
    """Return a module's parameters as it uses them, by their identity: masked where pruned.

    Without `originals` also the values of parametrized ones, whose originals are in other modules.
    """
    used: dict[int, Tensor] = {}
    for name, parameter in module.named_parameters(recurse=False):
        pruned = name.endswith("_orig")
        mask = module._buffers.get(f"{name.removesuffix('_orig')}_mask") if pruned else None
        used[id(parameter)] = parameter if mask is None else parameter * mask
    if not originals and parametrize.is_parametrized(module):
        values = [getattr(module, name) for name in module.parametrizations]  # type: ignore[union-attr]
        used |= {id(value): value for value in values}
    return used


def _total(terms: Iterable[Tensor], num_models: int | None) -> Tensor:
    if num_models is None:
        return torch.stack([t.sum() for t in terms]).sum(0)
    return torch.stack([t.reshape(num_models, -1).sum(1) for t in terms]).sum(0)


def l1(
    parameters: Parameters, beta: float = 1.0, *, norm: str = "l1", num_models: int | None = None
) -> Tensor:
    """Return the sparsity penalty of the paper, ``beta * sum_k |theta_k|``, gates included.

    Args:
        parameters: a module, a tensor or tensors.
        beta: its weight, see `SteppedSchedule`.
        norm: "l1", the paper's text: the sum of absolute values. "frobenius", what its authors'
            code computed in the arithmetic tasks: the sum over the parameter tensors of their
            Frobenius norms, which hardly reduces large weights. Its gradient at an all-zero tensor
            is 0.
        num_models: K, if the tensors have a leading model dimension; a module's layers define it.

    Returns a scalar, or ``[K]`` with models. Raises ValueError for an unknown norm, and for tensors
    without that K.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, appendix and published code.
    """
    if not isinstance(beta, Tensor):
        beta = check_number("l1", "beta", beta, other="a tensor")
    check_choice("l1", "norm", norm, ("l1", "frobenius"))
    tensors, num_models = _collect("l1", parameters, num_models)
    if norm == "l1":
        return beta * _total((t.abs() for t in tensors), num_models)
    flat = (t.reshape(1 if num_models is None else num_models, -1) for t in tensors)
    return beta * _total((torch.linalg.vector_norm(t, dim=1) for t in flat), num_models)


def regularizer(
    parameters: Parameters, *, form: str = "madsen", num_models: int | None = None
) -> Tensor:
    """Return the regulariser of NAU, NMU and NMRU, which pulls weights to integers.

        "madsen"   sum min(|w|, |1 - |w||)    0 at -1, 0 and 1, as Madsen and Johansen have it
        "paper"    sum min(|w|, |1 - w|)      0 at 0 and 1 only, as "Neural Power Units" prints it

    The two forms agree where w >= 0, as in NMU and NMRU. Madsen and Johansen take the mean: divide
    by the weight's number of elements.

    Args:
        parameters: a module, for the weights of all its NAU, NMU and NMRU layers; or a tensor or
            tensors.
        form: "madsen" or "paper".
        num_models: K, if the tensors have a leading model dimension; a module's layers define it.

    Returns a scalar, or ``[K]`` with models. Raises ValueError for an unknown form and a module
    without such layers.

    Source: Madsen, Johansen, "Neural Arithmetic Units", ICLR 2020; Heim, Pevny, Smidl, NeurIPS
    2020, section 2.2.
    """
    check_choice("regularizer", "form", form, ("madsen", "paper"))
    tensors, num_models = _collect("regularizer", parameters, num_models, integers_only=True)
    ones = ((1 - (t.abs() if form == "madsen" else t)).abs() for t in tensors)  # distances to 1
    return _total(map(torch.minimum, (t.abs() for t in tensors), ones), num_models)


class SteppedSchedule:
    """The paper's schedule of the weight beta of a penalty.

    At every `step`-th iteration beta becomes ``min(beta * growth, end)``.

    Call the method ``step()`` at the start of each iteration n = 1, 2, ...; it returns the beta of
    that iteration. With the argument ``step=10000``, iteration 10000 is the first with a larger
    beta. `beta` is the current value.

    Args:
        start, end: first and largest beta, 0 <= start <= end.
        step: iterations between changes.
        growth: factor at each change, greater than 1; 10 in the paper.

    Raises ValueError for values outside of these.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, appendix and published code.
    """

    def __init__(self, start: float, end: float, step: int, growth: float = 10.0) -> None:
        self.beta = check_number("SteppedSchedule", "start", start)
        self.end = check_number("SteppedSchedule", "end", end)
        if not 0 <= self.beta <= self.end:
            got = f"start={start!r}, end={end!r}"
            raise ValueError(f"SteppedSchedule: 0 <= start <= end must hold, got {got}")
        self.interval = check_whole("SteppedSchedule", "step", step)
        self.growth = check_number("SteppedSchedule", "growth", growth, above=1)
        self.start, self.iteration = self.beta, 0

    def step(self) -> float:
        """Begin the next iteration; return its beta."""
        self.iteration += 1
        if self.iteration % self.interval == 0:
            self.beta = min(self.beta * self.growth, self.end)
        return self.beta

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state, to save with a checkpoint."""
        return {"beta": self.beta, "iteration": self.iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; raise ValueError for a different dictionary."""
        if not isinstance(state, dict) or not {"beta", "iteration"} <= state.keys():
            raise ValueError(f"SteppedSchedule: state must be one of state_dict(), got {state!r}")
        check_whole("SteppedSchedule", "iteration", state["iteration"], 0)
        beta = state["beta"]
        if not 0 <= as_number(beta) <= self.end:
            rule = f"beta must be a number within [0, {self.end}]"
            raise ValueError(f"SteppedSchedule: {rule}, got {beta!r}")
        self.beta, self.iteration = beta, state["iteration"]

    def __repr__(self) -> str:
        settings = f"end={self.end}, step={self.interval}, growth={self.growth}"
        return f"SteppedSchedule(beta={self.beta}, {settings})"


# ---- projection ----------------------------------------------------------------------------------
#
# The projection of parameters into their intervals after an optimizer's step.


@torch.no_grad()
def project_(model: nn.Module, *, gates: bool = True, weight_bound: float | None = None) -> None:
    """Clamp the layers' parameters to their intervals, in place, after an optimizer's step.

    A gate outside of [0, 1] gets no gradient, unless `gate_gradient` is "straight_through".
    Projection after each step keeps the gates where they have a gradient.

    Args:
        model: a module; all its layers of this package are projected.
        gates: clamp the gates of NPU and RealNPU to [0, 1].
        weight_bound: None leaves the weights. A bound w clamps the weights of NPU, RealNPU and
            NaiveNPU to [-w, w], and the weights of NAU to [-1, 1], of NMU and NMRU to [0, 1], also
            with ``clip=False``.

    Projection changes the tensors that the optimizer trains. For a pruned parameter
    (`torch.nn.utils.prune`) this is ``<name>_orig``. For a parametrized one
    (`torch.nn.utils.parametrize`) the projected value is assigned through its right_inverse.

    Raises TypeError if the model is not a module, ValueError if it has none of these layers, if
    the bound is not greater than 0, and for a parameter that cannot be projected, such as one with
    a parametrization without right_inverse.
    """
    check_module("project_", "model", model)
    if weight_bound is not None:
        weight_bound = check_number(
            "project_", "weight_bound", weight_bound, above=0, finite=False, other="None"
        )
    units = [(path, unit) for path, unit in model.named_modules() if isinstance(unit, BaseLayer)]
    if not units:
        got = f"{type(model).__name__} without any"
        raise ValueError(f"project_: model must have layers of npu_kernels, got {got}")
    for path, unit in units:
        for name, interval in unit.parameter_bounds.items():
            if name == "gate":
                if gates and interval is not None:
                    _project(path, unit, name, interval)
            elif weight_bound is not None:
                _project(path, unit, name, interval or (-weight_bound, weight_bound))


def _project(path: str, unit: BaseLayer, name: str, interval: tuple[float, float]) -> None:
    (low, high), parameters = interval, unit._parameters
    # The original of a pruned one, since 0 lies in every interval:
    parameter = parameters[name] if name in parameters else parameters.get(f"{name}_orig")
    if parameter is not None:
        parameter.clamp_(low, high)
        return
    value = getattr(unit, name, None)
    if value is None:
        return
    title = f"{name} of {type(unit).__name__}" + (f" {path!r}" if path else "")
    if not parametrize.is_parametrized(unit, name):
        rule = "must be a parameter, pruned or parametrized; it is computed from others"
        raise ValueError(f"project_: {title} {rule}")
    parts = unit.parametrizations[name]  # type: ignore[index]
    fixed = [type(part).__name__ for part in parts if not hasattr(part, "right_inverse")]
    if fixed:
        raise ValueError(
            f"project_: {title} is parametrized by {', '.join(fixed)} without right_inverse, so "
            "what the optimizer trains cannot be projected"
        )
    projected = value.clamp(low, high)
    if not torch.equal(projected, value):
        setattr(unit, name, projected)
        value, slack = getattr(unit, name), 1e-3 * (high - low)
        if ((value < low - slack) | (value > high + slack)).any():
            raise ValueError(
                f"project_: the right_inverse of {title} must give its value back, but it left "
                f"[{low}, {high}]"
            )
