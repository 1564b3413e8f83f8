"""Which training runs one C++ call can make, and the plan that the call gets.

csrc/training.cpp reads the plan: its integers and its numbers stand in the order in which they are read there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from npu_kernels import dispatch, optim
from npu_kernels.layers.base import Unit
from npu_kernels.layers.nau import NAU
from npu_kernels.layers.nmu import NMRU, NMU
from npu_kernels.layers.npu import NPU, NaiveNPU, PowerUnit, RealNPU
from npu_kernels.precision import float32_matmul_precision

NPUS = (NPU, RealNPU, NaiveNPU)
KINDS: dict[type[Unit], int] = {**dict.fromkeys(NPUS, 0), NMU: 1, NMRU: 2, NAU: 3}
PENALTIES = {"l1": 0, "frobenius": 1, "madsen": 2, "paper": 3, "whole": 2}  # and their formulas in C++
ONLY_WHOLE = ("madsen", "paper")  # penalties of the weights of NAU, NMU and NMRU alone
ADAMS = (optim.Adam, torch.optim.Adam, torch.optim.AdamW)
WIDEST_NAU = 64  # features; beyond, torch's own product is faster than our kernel for the NAU
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def chain(model: nn.Module) -> list[nn.Module]:
    """The layers that a model calls one after the other."""
    if type(model) is nn.Sequential:
        return [layer for part in model for layer in chain(part)]
    return [model]


def clamped(units: Sequence[nn.Module], gates: bool, bound: float | None) -> Iterator[tuple[Tensor, float, float]]:
    """The parameters that `project_` clamps, and into what."""
    for unit in units:
        for name, interval in unit.intervals.items() if isinstance(unit, Unit) else ():
            parameter = unit._parameters.get(name)
            wanted = gates if name == "gate" else bound is not None
            if parameter is not None and wanted:
                low, high = interval or (-(bound or 0.0), bound or 0.0)
                yield parameter, low, high


# ---- what is possible ------------------------------------------------------------------------------------------------


def obstacle(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> str | None:
    """Why these steps cannot be made in one call; None if they can."""
    if not (x.is_cpu and dispatch.backend_for(x) == "cpu" and dispatch.forced() in dispatch.FAST_PATH):
        return "the C++ kernels are not used for these tensors"
    if x.dtype not in (torch.float32, torch.float64):
        return f"{x.dtype} is neither float32 nor float64"
    if is_compiling() or torch.is_autocast_enabled("cpu") or torch.is_inference_mode_enabled():
        return "of torch.compile, autocast or inference mode"
    if has_hooks(model):
        return "a module has hooks"
    return _layers(chain(model), x) or optimizer_obstacle(optimizer) or _state_obstacle(optimizer)


def has_hooks(model: nn.Module) -> bool:
    """Whether a module of the model has hooks."""
    parts = list(model.modules())
    return any(getattr(part, name) for part in parts for name in _HOOKS) or torch_module._has_any_global_hook()


def _layers(layers: Sequence[nn.Module], x: Tensor) -> str | None:
    if not layers:
        return "the model is empty"
    seen: set[int] = set()
    for layer in layers:
        if not isinstance(layer, Unit) or type(layer) not in KINDS:
            return f"{type(layer).__name__} has no place in a chain of NPU, RealNPU, NaiveNPU, NAU, NMU and NMRU"
        if isinstance(layer, NAU):
            if max(layer.in_features, layer.out_features) > WIDEST_NAU:
                return f"torch's own product is faster for a NAU with more than {WIDEST_NAU} features"
            if x.dtype is torch.float32 and float32_matmul_precision("cpu") != "highest":
                return "the precision of float32 products is not 'highest'"
        for name in layer.intervals:
            if name not in layer._parameters:
                return f"{name} of {type(layer).__name__} is pruned or parametrized"
        for parameter in layer._parameters.values():
            problem = None if parameter is None else _parameter(parameter, x.dtype, seen)
            if problem is not None:
                return f"a parameter of {type(layer).__name__} {problem}"
    return None


def _parameter(parameter: Tensor, dtype: torch.dtype, seen: set[int]) -> str | None:
    if id(parameter) in seen:
        return "belongs to two layers"
    seen.add(id(parameter))
    if type(parameter) is not nn.Parameter or not parameter.is_cpu or parameter.dtype is not dtype:
        return f"is no plain parameter of {dtype} on the CPU"
    if not parameter.is_contiguous() or parameter.is_inference():
        return "is not contiguous, or made in inference mode"
    return "has hooks" if parameter._backward_hooks or parameter._post_accumulate_grad_hooks else None


def optimizer_obstacle(optimizer: torch.optim.Optimizer) -> str | None:
    """Why not just any of its steps is what torch's Adam, AdamW or RMSprop does with numbers as settings; or None."""
    if type(optimizer) not in (*ADAMS, torch.optim.RMSprop):
        return f"{type(optimizer).__name__} is neither torch's Adam, AdamW nor RMSprop"
    if (
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
    ):
        return "the optimiser has hooks"
    for group in optimizer.param_groups:
        if group.get("amsgrad") or group.get("capturable") or group.get("differentiable"):
            return "the optimiser is amsgrad, capturable or differentiable"
        numbers = [value for name in ("lr", "eps", "betas", "alpha") for value in _flat(group.get(name, 0.0))]
        if not all(isinstance(number, (int, float)) for number in numbers):
            return "a setting of the optimiser is a tensor"
    return None


def _state_obstacle(optimizer: torch.optim.Optimizer) -> str | None:
    for parameter, state in optimizer.state.items():
        kept = [value for name, value in state.items() if name != "step"]
        if not all(value.is_contiguous() and value.dtype is parameter.dtype and value.is_cpu for value in kept):
            return "the optimiser's state is not plain"
        if state and kept and len(kept) != len(_names(optimizer, _group_of(optimizer, parameter))):
            return "the optimiser's state is of other settings"
    return None


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _group_of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Any]:
    return next(group for group in optimizer.param_groups if any(p is parameter for p in group["params"]))


def _names(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> list[str]:
    """Of what an optimiser keeps for a parameter, beside the number of its steps."""
    if isinstance(optimizer, torch.optim.Adam):
        return ["exp_avg", "exp_avg_sq"]
    names = {"square_avg": True, "grad_avg": group["centered"], "momentum_buffer": group["momentum"] > 0}
    return [name for name, kept in names.items() if kept]


def _state(optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
    """What the optimiser keeps for a parameter, begun as torch begins it."""
    state: dict[str, Tensor] = optimizer.state[parameter]
    if not state:
        number = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        state["step"] = torch.tensor(0.0, dtype=number)
        for name in _names(optimizer, group):
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return state


# ---- the plan --------------------------------------------------------------------------------------------------------


@dataclass
class Loop:
    """What makes the steps of a run: C++ (`Fused`), CUDA graphs (`captured.Captured`) or one by one (`steps.Ordinary`).

    Args:
        model: what is trained.
        models: K, or None.
        optimizer: whose state is continued.
        x, y: contiguous ``[N, I]`` and ``[N, O]``, each also with a leading K.
        weight: of the squared errors, as y; None: 1.
        penalties: the names of those that steps have.
        gates, bound: of `project_`.
        finite: an entry of a gradient that is not finite counts as 0.
        losses: ``[records]``, also with K behind; one is written at every `every`-th step from the first on.
        intervals: of parameters by name, instead of `gates` and `bound`.
    """

    model: nn.Module
    models: int | None
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor
    weight: Tensor | None
    penalties: Sequence[str]
    gates: bool
    bound: float | None
    finite: bool
    losses: Tensor
    every: int
    intervals: Mapping[str, tuple[float, float]] | None = None

    def advance(self, done: int, rows: Tensor | None, schedules: Tensor) -> None:
        """As many steps as `schedules` has columns, after `done` of them.

        Args:
            done: steps before.
            rows: ``[steps, batch]``; None: all rows at each step.
            schedules: ``[groups + penalties, steps]`` float64: the rate of each of the optimiser's groups, the weight
                of each penalty.
        """
        raise NotImplementedError


class Fused(Loop):
    """Steps by C++, of a model without an `obstacle`."""

    def advance(self, done: int, rows: Tensor | None, schedules: Tensor) -> None:
        layers, steps = [layer for layer in chain(self.model) if isinstance(layer, Unit)], schedules.shape[1]
        parameters = [p for layer in layers for p in layer._parameters.values() if p is not None]
        index = {id(p): n for n, p in enumerate(parameters)}
        whole = {id(p) for layer in layers if layer.whole_weights for p in layer._parameters.values()}
        if self.intervals is None:
            intervals = {id(p): (low, high) for p, low, high in clamped(layers, self.gates, self.bound)}
        else:
            intervals = {id(self.model.get_parameter(name)): ends for name, ends in self.intervals.items()}
        shared = [int(self.models is not None and tensor.dim() == 2) for tensor in (self.x, self.y)]
        plan = [int(isinstance(self.optimizer, torch.optim.RMSprop)), self.models or 1, steps, done, self.every]
        plan += [*shared, int(self.finite), len(layers)]
        numbers: list[float] = []
        for layer in layers:
            plan += [KINDS[type(layer)], layer.in_features, layer.out_features, *_weights(layer, index)]
            numbers += _options(layer, self.x.dtype)
        kept: list[Tensor] = []
        trained: list[Tensor] = []
        groups = {id(p): n for n, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        for parameter in parameters:
            group = groups.get(id(parameter)) if parameter.requires_grad else None
            plan.append(int(group is not None))
            if group is None:
                continue
            trained.append(parameter)
            plan += [group, *self._penalties(id(parameter) in whole)]
            numbers += intervals.get(id(parameter), (-math.inf, math.inf))
            kept += self._update(parameter, self.optimizer.param_groups[group], plan, numbers)
        values = [p.detach() for p in parameters]
        weight = self.x.new_empty(0) if self.weight is None else self.weight
        rows = torch.empty(0, dtype=torch.int64) if rows is None else rows
        torch.ops.npu_kernels.train(values, kept, self.losses, self.x, self.y, weight, rows, schedules, plan, numbers)
        for changed in trained:
            self.optimizer.state[changed]["step"] += steps
            changed.grad = None
        torch.autograd.graph.increment_version([*trained, *kept, self.losses])

    def _penalties(self, whole: bool) -> list[int]:
        """How many a parameter has; of each its kind and its row in the schedules."""
        first = len(self.optimizer.param_groups)
        own = [(n, name) for n, name in enumerate(self.penalties) if whole or name not in ONLY_WHOLE]
        return [len(own), *(number for n, name in own for number in (PENALTIES[name], first + n))]

    def _update(self, parameter: Tensor, group: dict[str, Any], plan: list[int], numbers: list[float]) -> list[Tensor]:
        """Writes a parameter's optimiser into the plan; returns its state."""
        state = _state(self.optimizer, group, parameter)
        if isinstance(self.optimizer, torch.optim.RMSprop):
            plan += [group["maximize"], group["centered"]]
            numbers += [group["alpha"], group["eps"], group["weight_decay"], group["momentum"]]
        else:
            plan += [group["maximize"], group.get("decoupled_weight_decay", False)]
            numbers += [*group["betas"], group["eps"], group["weight_decay"]]
        numbers.append(float(state["step"]))
        return [state[name] for name in _names(self.optimizer, group)]


def _weights(layer: Unit, index: dict[int, int]) -> list[int]:
    """Which parameters a layer's weights are; -1: it has none of that name."""
    names = ("weight_re", "weight_im", "gate") if isinstance(layer, NPUS) else ("weight",)
    return [index.get(id(layer._parameters.get(name)), -1) for name in names]


def _options(layer: Unit, dtype: torch.dtype) -> list[float]:
    if isinstance(layer, PowerUnit):
        eps = torch.finfo(dtype).eps if layer.eps is None else layer.eps
        return [eps, layer.gate_gradient == "straight_through"]
    if isinstance(layer, NMRU):
        return [layer.eps if layer.training else 0.0, layer.clip, layer.sign == "separate"]
    assert isinstance(layer, (NAU, NMU))
    return [layer.clip]
