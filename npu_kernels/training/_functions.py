"""Loss, penalties, schedule and projection: the parts of a training step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.utils import parametrize

from npu_kernels._backends import fast_path
from npu_kernels._common.checks import check_module, check_number, check_tensor, check_whole
from npu_kernels._operators import dispatch, operands
from npu_kernels.layers import Unit

__all__ = ["SteppedSchedule", "l1", "mse_loss", "project_", "regularizer"]

Parameters = nn.Module | Tensor | Iterable[Tensor]


def _models(name: str, module: nn.Module) -> int | None:
    """The number of models of a module's units."""
    found = {unit.num_models for unit in module.modules() if isinstance(unit, Unit)}
    if len(found) > 1:
        raise ValueError(
            f"{name}: the units of one model must have one num_models, got {sorted(found, key=str)}"
        )
    return found.pop() if found else None


def _collect(
    name: str, parameters: Parameters, num_models: int | None, only_whole: bool = False
) -> tuple[list[Tensor], int | None]:
    """The tensors to sum over, and the number of models that they belong to."""
    if num_models is not None:
        num_models = check_whole(name, "num_models", num_models)
    if isinstance(parameters, nn.Module):
        num_models = _models(name, parameters) if num_models is None else num_models
        modules = [
            m
            for m in parameters.modules()
            if not only_whole or (isinstance(m, Unit) and m.whole_weights)
        ]
        found = [pair for m in modules for pair in _in_use(m, originals=not only_whole)]
        tensors: list[Tensor] = list(
            {id(p): used for p, used in found}.values()
        )  # a shared parameter counts once
    elif isinstance(parameters, (Tensor, Iterable)):
        tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for tensor in tensors:
            check_tensor(name, "parameters", tensor)
            if not tensor.is_floating_point():
                raise TypeError(
                    f"{name}: parameters must have a floating-point dtype, got {tensor.dtype}"
                )
    else:
        raise TypeError(
            f"{name}: parameters must be a module, a tensor or tensors, got {type(parameters).__name__}"
        )
    if not tensors:
        raise ValueError(f"{name}: no parameters to sum over")
    if num_models is not None:
        for tensor in tensors:
            if tensor.dim() == 0 or tensor.shape[0] != num_models:
                raise ValueError(
                    f"{name}: every parameter must have leading dimension {num_models} (num_models), "
                    f"got shape {tuple(tensor.shape)}"
                )
    return tensors, num_models


def _in_use(module: nn.Module, originals: bool) -> list[tuple[Tensor, Tensor]]:
    """A module's own parameters, and each as it is used: with the mask of a pruned one.

    A parametrized parameter has its original in a separate module, which is visited separately where `originals` are
    wanted.
    """
    masks = module._buffers
    found: list[tuple[Tensor, Tensor]] = []
    for name, parameter in module.named_parameters(recurse=False):
        mask = masks.get(f"{name.removesuffix('_orig')}_mask") if name.endswith("_orig") else None
        found.append((parameter, parameter if mask is None else parameter * mask))
    if not originals and parametrize.is_parametrized(module):
        found += [
            (value, value) for value in (getattr(module, name) for name in module.parametrizations)
        ]  # type: ignore[union-attr]
    return found


def _total(terms: Iterable[Tensor], num_models: int | None) -> Tensor:
    return torch.stack(
        [t.sum() if num_models is None else t.reshape(num_models, -1).sum(1) for t in terms]
    ).sum(0)


def l1(
    parameters: Parameters, beta: float = 1.0, *, norm: str = "l1", num_models: int | None = None
) -> Tensor:
    """The sparsity penalty of the paper, ``beta * sum_k |theta_k|``, over all parameters, gates included.

    Args:
        parameters: a module, a tensor or tensors.
        beta: its weight, see `SteppedSchedule`.
        norm: "l1", the paper's text: the sum of absolute values. "frobenius", what its authors' code computed in the
            arithmetic tasks: the sum over the parameter tensors of their Frobenius norms, which hardly touches the
            large weights of a tensor that has some. Its gradient at an all-zero tensor is 0.
        num_models: K, when the tensors have a leading model dimension; found by itself in a module's units.

    Returns a scalar, or ``[K]`` with models. Raises ValueError for an unknown norm, and for tensors without that K.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, appendix and published code.
    """
    if not isinstance(beta, Tensor):
        beta = check_number("l1", "beta", beta, other="a tensor")
    tensors, num_models = _collect("l1", parameters, num_models)
    if norm == "l1":
        return beta * _total((t.abs() for t in tensors), num_models)
    if norm == "frobenius":
        flat = (t.reshape(1 if num_models is None else num_models, -1) for t in tensors)
        return beta * _total((torch.linalg.vector_norm(t, dim=1) for t in flat), num_models)
    raise ValueError(f"l1: norm must be 'l1' or 'frobenius', got {norm!r}")


def regularizer(
    parameters: Parameters, *, form: str = "madsen", num_models: int | None = None
) -> Tensor:
    """The regulariser of NAU and NMU, also of NMRU, which draws weights to whole numbers.

        "madsen"   sum min(|w|, |1 - |w||)    0 at -1, 0 and 1: Madsen and Johansen's bias towards {-1, 0, 1}
        "paper"    sum min(|w|, |1 - w|)      0 at 0 and 1 only, as "Neural Power Units" prints it

    The two agree where w >= 0, so for NMU and NMRU. Madsen and Johansen take the mean: divide by the weight's size.

    Args:
        parameters: a module, of which the weights of all NAU, NMU and NMRU units are taken, a tensor or tensors.
        form: "madsen" or "paper".
        num_models: K, when the tensors have a leading model dimension; found by itself in a module's units.

    Returns a scalar, or ``[K]`` with models. Raises ValueError for an unknown form and a module without such units.

    Source: Madsen, Johansen, "Neural Arithmetic Units", ICLR 2020; Heim, Pevny, Smidl, NeurIPS 2020, section 2.2.
    """
    if form not in ("madsen", "paper"):
        raise ValueError(f"regularizer: form must be 'madsen' or 'paper', got {form!r}")
    tensors, num_models = _collect("regularizer", parameters, num_models, only_whole=True)
    distance = (
        torch.minimum(t.abs(), (1 - (t.abs() if form == "madsen" else t)).abs()) for t in tensors
    )
    return _total(distance, num_models)


def mse_loss(y: Tensor, target: Tensor, *, num_models: int | None = None) -> Tensor:
    """The mean squared error, one for each model where there are several.

    Args:
        y: of any shape; with models ``[K, ...]``.
        target: of the shape of y; with models also ``[...]``, the same for all of them.
        num_models: K, the first dimension of y. The sum of the ``[K]`` losses trains every model as if it were alone.

    Returns a scalar, or ``[K]`` with models. Raises TypeError unless both are tensors of one floating dtype, ValueError
    for other shapes.

    On the CPU one call computes it and one its gradient: for a small model, `torch.nn.functional.mse_loss` costs as
    much as the layers.

        >>> import torch
        >>> from npu_kernels.training import mse_loss
        >>> mse_loss(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, 2.0]), num_models=2)
        tensor([0., 4.])
    """
    if (
        fast_path.mse is not None
        and not is_compiling()
        and dispatch.forced() in dispatch.FAST_PATH
        and (
            num_models is None
            or (
                type(num_models) is int
                and isinstance(y, Tensor)
                and not y.is_nested
                and y.shape[:1] == (num_models,)
            )
        )
    ):
        loss = fast_path.mse(y, target, num_models is not None)
        if loss is not NotImplemented:
            return loss  # type: ignore[no-any-return]
    operands.unrecorded(_check_loss, y, target, num_models)
    if num_models is None:
        return nn.functional.mse_loss(y, target)
    return (
        (y - target).square().reshape(num_models, math.prod(y.shape[1:])).mean(1)
    )  # not -1: there may be no models


def _check_loss(y: Any, target: Any, num_models: int | None) -> None:
    if num_models is not None and not isinstance(num_models, torch.SymInt):
        check_whole("mse_loss", "num_models", num_models, 0)
    for name, tensor in (("y", y), ("target", target)):
        check_tensor("mse_loss", name, tensor)
        if not tensor.is_floating_point():
            raise TypeError(
                f"mse_loss: {name} must have a floating-point dtype, got {tensor.dtype}"
            )
    if target.dtype != y.dtype:
        raise TypeError(
            f"mse_loss: y and target must have one dtype, got y {y.dtype}, target {target.dtype}"
        )
    shapes = tuple(y.shape), tuple(target.shape)
    if num_models is not None and shapes[0][:1] != (num_models,):
        raise ValueError(
            f"mse_loss: y must have leading dimension {num_models!r} (num_models), got shape {shapes[0]}"
        )
    if shapes[1] != shapes[0] and (num_models is None or shapes[1] != shapes[0][1:]):
        shared = "" if num_models is None else f" or {shapes[0][1:]} (shared by all models)"
        raise ValueError(
            f"mse_loss: target must have the shape of y, {shapes[0]}{shared}, got shape {shapes[1]}"
        )


def _mse_backward(grad_loss: Tensor, y: Tensor, target: Tensor, models: bool) -> tuple[Tensor]:
    """Made of plain torch operations, so that any transform and any order of derivative works."""
    count = y.numel() // (y.shape[0] if models else 1)
    scale = grad_loss.reshape(-1, *(1,) * (y.dim() - 1)) if models else grad_loss
    return ((2 / count) * scale * (y - target),)


fast_path.set_backward("mse", _mse_backward)


class SteppedSchedule:
    """The paper's schedule of beta: ``beta = min(beta * growth, end)`` at every `step`-th iteration.

    Call `step` at the start of each iteration n = 1, 2, ...; it returns the beta of that iteration, so with step =
    10000 iteration 10000 is the first with a larger one. `beta` is the current value.

    Args:
        start, end: first and greatest beta, 0 <= start <= end.
        step: iterations between changes.
        growth: factor at each change, greater than 1; 10 in the paper.

    Raises ValueError for values outside of these.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, appendix and published code.
    """

    def __init__(self, start: float, end: float, step: int, growth: float = 10.0) -> None:
        self.beta = check_number("SteppedSchedule", "start", start)
        self.end = check_number("SteppedSchedule", "end", end)
        if not 0 <= self.beta <= self.end:
            raise ValueError(
                f"SteppedSchedule: 0 <= start <= end must hold, got start={start!r}, end={end!r}"
            )
        self.interval = check_whole("SteppedSchedule", "step", step)
        self.growth = check_number("SteppedSchedule", "growth", growth, above=1)
        self.start, self.iteration = self.beta, 0

    def step(self) -> float:
        """Begin the next iteration; returns its beta."""
        self.iteration += 1
        if self.iteration % self.interval == 0:
            self.beta = min(self.beta * self.growth, self.end)
        return self.beta

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state, to save with a checkpoint."""
        return {"beta": self.beta, "iteration": self.iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`; raises ValueError for another dictionary."""
        if not isinstance(state, dict) or not {"beta", "iteration"} <= state.keys():
            raise ValueError(f"SteppedSchedule: state must be one of state_dict(), got {state!r}")
        check_whole("SteppedSchedule", "iteration", state["iteration"], 0)
        beta = state["beta"]
        if (
            isinstance(beta, bool)
            or not isinstance(beta, (int, float))
            or not 0 <= beta <= self.end
        ):
            raise ValueError(
                f"SteppedSchedule: beta must be a number within [0, {self.end}], got {beta!r}"
            )
        self.beta, self.iteration = state["beta"], state["iteration"]

    def __repr__(self) -> str:
        return f"SteppedSchedule(beta={self.beta}, end={self.end}, step={self.interval}, growth={self.growth})"


@torch.no_grad()
def project_(model: nn.Module, *, gates: bool = True, weights: float | None = None) -> None:
    """Clamp the units' parameters into their intervals, in place; call it after an optimiser's step.

    A gate outside of [0, 1] has no gradient and stays there. Projection after each step keeps its gradient.

    Args:
        model: a module; all its units are projected.
        gates: clamp the gates of NPU and RealNPU to [0, 1].
        weights: None leaves the weights; a bound w clamps the power units' weights to [-w, w], and the weights of NAU,
            NMU and NMRU to their own intervals, [-1, 1] and [0, 1].

    The tensors that the optimiser trains are projected: of a pruned parameter (`torch.nn.utils.prune`) its original, of
    a parametrized one (`torch.nn.utils.parametrize`) the original whose value is the projected one, by the
    right_inverse.

    Raises TypeError if it is not a module, ValueError if it has no units, if the bound is not greater than 0, and for
    a parameter that cannot be projected, such as one with a parametrization without right_inverse.
    """
    check_module("project_", "model", model)
    if weights is not None:
        weights = check_number("project_", "weights", weights, above=0, finite=False, other="None")
    units = [(path, unit) for path, unit in model.named_modules() if isinstance(unit, Unit)]
    if not units:
        raise ValueError(
            f"project_: model must have units of npu_kernels, got {type(model).__name__} without any"
        )
    for path, unit in units:
        for name, interval in unit.intervals.items():
            if name == "gate":
                if gates and interval is not None:
                    _project(path, unit, name, *interval)
            elif weights is not None:
                _project(path, unit, name, *(interval or (-weights, weights)))


def _project(path: str, unit: Unit, name: str, low: float, high: float) -> None:
    own = unit._parameters
    parameter = (
        own[name] if name in own else own.get(f"{name}_orig")
    )  # pruned: 0 lies in every interval
    if parameter is not None:
        parameter.clamp_(low, high)
        return
    value = getattr(unit, name, None)
    if value is None:
        return
    who = f"{name} of {type(unit).__name__}" + (f" {path!r}" if path else "")
    if not parametrize.is_parametrized(unit, name):
        raise ValueError(
            f"project_: {who} must be a parameter, pruned or parametrized; it is computed from others"
        )
    chain = unit.parametrizations[name]  # type: ignore[index]
    fixed = [type(part).__name__ for part in chain if not hasattr(part, "right_inverse")]
    if fixed:
        raise ValueError(
            f"project_: {who} is parametrized by {', '.join(fixed)} without right_inverse, so what the optimiser "
            "trains cannot be projected"
        )
    wanted = value.clamp(low, high)
    if not torch.equal(wanted, value):
        setattr(unit, name, wanted)
        found = getattr(unit, name)
        slack = 1e-3 * (high - low)
        if ((found < low - slack) | (found > high + slack)).any():
            raise ValueError(
                f"project_: the right_inverse of {who} must give its value back, but it left [{low}, {high}]"
            )
