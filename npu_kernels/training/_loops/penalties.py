"""The penalties "l1", "frobenius", "madsen" and "paper", and the schedule of their weights.

steps.py adds them to the loss; steps by C++ have their own in csrc/training_loop.h.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from npu_kernels._common.chains import num_models_of
from npu_kernels._common.checks import (
    as_number,
    check_choice,
    check_floating,
    check_number,
    check_whole,
)
from npu_kernels.layers import Unit

__all__ = ["SteppedSchedule", "l1", "regularizer"]

Parameters = nn.Module | Tensor | Iterable[Tensor]


def _collect(
    name: str, parameters: Parameters, num_models: int | None, only_whole: bool = False
) -> tuple[list[Tensor], int | None]:
    """Return the tensors to sum over, and the number of models that they belong to."""
    if num_models is not None:
        num_models = check_whole(name, "num_models", num_models)
    if isinstance(parameters, nn.Module):
        modules = parameters.modules()
        num_models = num_models_of(name, modules) if num_models is None else num_models
        used: dict[int, Tensor] = {}  # by the parameter's identity: a shared one counts once
        for module in parameters.modules():
            if not only_whole or (isinstance(module, Unit) and module.whole_weights):
                used |= _in_use(module, originals=not only_whole)
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
            Frobenius norms, which hardly touches the large weights of a tensor that has some. Its
            gradient at an all-zero tensor is 0.
        num_models: K, when the tensors have a leading model dimension; a module's units say it.

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
    """Return the regulariser of NAU, NMU and NMRU, which draws weights to whole numbers.

        "madsen"   sum min(|w|, |1 - |w||)    0 at -1, 0 and 1, as Madsen and Johansen have it
        "paper"    sum min(|w|, |1 - w|)      0 at 0 and 1 only, as "Neural Power Units" prints it

    The two agree where w >= 0, so for NMU and NMRU. Madsen and Johansen take the mean: divide by
    the weight's size.

    Args:
        parameters: a module, of which the weights of all NAU, NMU and NMRU units are taken, a
            tensor or tensors.
        form: "madsen" or "paper".
        num_models: K, when the tensors have a leading model dimension; a module's units say it.

    Returns a scalar, or ``[K]`` with models. Raises ValueError for an unknown form and a module
    without such units.

    Source: Madsen, Johansen, "Neural Arithmetic Units", ICLR 2020; Heim, Pevny, Smidl, NeurIPS
    2020, section 2.2.
    """
    check_choice("regularizer", "form", form, ("madsen", "paper"))
    tensors, num_models = _collect("regularizer", parameters, num_models, only_whole=True)
    ones = ((1 - (t.abs() if form == "madsen" else t)).abs() for t in tensors)  # distances to 1
    return _total(map(torch.minimum, (t.abs() for t in tensors), ones), num_models)


class SteppedSchedule:
    """The paper's schedule of beta: ``min(beta * growth, end)`` at every `step`-th iteration.

    Call `step` at the start of each iteration n = 1, 2, ...; it returns the beta of that iteration,
    so with step = 10000 iteration 10000 is the first with a larger one. `beta` is the current
    value.

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
        """Continue from a `state_dict`; raise ValueError for another dictionary."""
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
