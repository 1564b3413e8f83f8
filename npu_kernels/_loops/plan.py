"""Which training runs one C++ call can make, and the plan that the call gets."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules import module as torch_module
from torch.optim import lr_scheduler
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from npu_kernels import functional, optim
from npu_kernels._common.chains import chain, replaced_method
from npu_kernels._loops import records
from npu_kernels._loops.steps import Loop
from npu_kernels._operators import dispatch, ops
from npu_kernels._operators.precision import float32_matmul_precision
from npu_kernels.layers import NAU, NMRU, NMU, NPU, NaiveNPU, PowerUnit, RealNPU, Unit

KINDS: dict[type[Unit], type[tuple[Any, ...]]] = {
    **dict.fromkeys((NPU, RealNPU, NaiveNPU), records.Npu),
    NMU: records.Nmu,
    NMRU: records.Nmru,
    NAU: records.Nau,
}
PENALTIES = {**{name: name for name in records.PENALTIES}, "whole": "madsen"}  # and their formulas
ONLY_WHOLE = ("madsen", "paper")  # penalties of the weights of NAU, NMU and NMRU alone
ADAMS = (optim.Adam, torch.optim.Adam, torch.optim.AdamW)
WIDEST_NAU = 64  # features; beyond, torch's own product is faster than our kernel for the NAU
_KIND_NUMBERS = {kind: records.KINDS.index(record) for kind, record in KINDS.items()}
_PENALTY_NUMBERS = {name: records.PENALTIES.index(form) for name, form in PENALTIES.items()}
_LETTERS = {kind: ops.WEIGHTS[record.__name__.lower()] for kind, record in KINDS.items()}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NUMBERS = ("lr", "eps", "betas", "alpha", "weight_decay", "momentum")  # settings of an optimiser
_FUNCTIONS = {kind: record.__name__.lower() for kind, record in KINDS.items()}  # of the layers
_FUNCTIONS_AT_IMPORT = {name: getattr(functional, name) for name in _FUNCTIONS.values()}
_UNBOUNDED = (-math.inf, math.inf)
_NO_ROWS = torch.empty(0, dtype=torch.int64, device="cpu")  # all rows at each step


def _defined(method: Any) -> Any:
    """Return the function of a method, without what torch's optimisers and schedulers wrap it in.

    What anybody else has wrapped it in stays, also by `functools.wraps`.
    """
    function = getattr(method, "__func__", method)
    variables = getattr(function, "__globals__", None)
    if variables is vars(torch_optimizer) or variables is vars(lr_scheduler):
        inner = getattr(function, "__wrapped__", None)
        return function if inner is None else _defined(inner)
    return function


# The methods of each optimiser's class as they are at import: somebody may replace them later.
_STEPS = ("step", "zero_grad")
_DEFINED_STEPS: dict[type[torch.optim.Optimizer], list[Any]] = {
    kind: [_defined(getattr(kind, name)) for name in _STEPS]
    for kind in (*ADAMS, torch.optim.RMSprop)
}


def clamped(
    units: Sequence[nn.Module], gates: bool, bound: float | None
) -> Iterator[tuple[Tensor, float, float]]:
    """Yield the parameters that `project_` clamps, with their intervals."""
    for unit in units:
        for name, interval in unit.intervals.items() if isinstance(unit, Unit) else ():
            parameter = unit._parameters.get(name)
            if parameter is not None and (gates if name == "gate" else bound is not None):
                low, high = interval or (-(bound or 0.0), bound or 0.0)
                yield parameter, low, high


def check_memory(modules: Iterable[nn.Module], **tensors: Any) -> None:
    """Raise ValueError for a parameter or tensor whose storage was freed or made smaller."""
    for name, tensor in tensors.items():
        _check_storage(name, tensor)
    for part in modules:
        for parameter in part._parameters.values():
            _check_storage("a parameter of model", parameter)


def _check_storage(name: str, tensor: Any) -> None:
    if type(tensor) not in (Tensor, nn.Parameter):
        return
    last = tensor.numel()
    if last == 0:
        return
    if not tensor.is_contiguous():
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        last = 1 + sum((size - 1) * stride for size, stride in pairs)
    needed = (tensor.storage_offset() + last) * tensor.itemsize
    storage = tensor.untyped_storage().nbytes()
    if storage < needed:
        rule = f"memory for its shape {tuple(tensor.shape)}, {needed} bytes"
        raise ValueError(f"run: {name} must have {rule}, got a storage of {storage} bytes")


# ---- what is possible ----------------------------------------------------------------------------


def obstacle(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, *data: Tensor
) -> str | None:
    """Return the reason why one call cannot make the steps; None if it can.

    Prehooks of a parameter's AccumulateGrad node cannot be seen from Python: the call ignores them.

    data: y, and the weight of errors if there is one. Raises the error of the layers' own call for
    options that they refuse.
    """
    fast = dispatch.forced() in dispatch.FAST_PATH
    if not (x.is_cpu and fast and dispatch.backend_for(x) == "cpu"):
        return "the C++ kernels are not used for these tensors"
    if x.dtype not in (torch.float32, torch.float64):
        return f"{x.dtype} is neither float32 nor float64"
    if is_compiling() or torch.is_autocast_enabled("cpu") or torch.is_inference_mode_enabled():
        return "of torch.compile, autocast or inference mode"
    modules, layers = list(model.modules()), [layer for _, layer in chain(model)]
    problem = call_obstacle(modules) or _layers_obstacle(modules, layers, x)
    problem = problem or optimizer_obstacle(optimizer) or _state_obstacle(optimizer)
    problem = problem or _memory_obstacle(layers, optimizer, (x, *data))
    if problem is None:
        for layer in layers:
            assert isinstance(layer, Unit)
            layer(x.new_empty(0, layer.in_features))  # checks its options
    return problem


def call_obstacle(modules: Iterable[nn.Module]) -> str | None:
    """Return the reason why a call may do something else than the layers' classes say, or None."""
    if torch_module._has_any_global_hook():
        return "a module has hooks"
    for part in modules:
        attributes = part.__dict__
        for name in _HOOKS:
            if attributes[name]:
                return "a module has hooks"
        method = replaced_method(part)
        if method is not None:
            return f"{method} of {type(part).__name__} is replaced"
        if part._compiled_call_impl is not None:
            return f"{type(part).__name__} is compiled"
    return None


def _layers_obstacle(
    modules: Sequence[nn.Module], layers: Sequence[nn.Module], x: Tensor
) -> str | None:
    if not layers:
        return "the model is empty"
    seen: set[int] = set()
    for layer in layers:
        title = type(layer).__name__
        if not isinstance(layer, Unit) or type(layer) not in KINDS:
            return f"{title} has no place in a chain of NPU, RealNPU, NaiveNPU, NAU, NMU and NMRU"
        name = _FUNCTIONS[type(layer)]
        if getattr(functional, name) is not _FUNCTIONS_AT_IMPORT[name]:
            return f"functional.{name} is replaced"
        if type(getattr(layer, "clip", True)) is not bool:
            return f"clip of {title} is neither True nor False"
        if isinstance(layer, NAU):
            if max(layer.in_features, layer.out_features) > WIDEST_NAU:
                rule = f"a NAU with more than {WIDEST_NAU} features"
                return f"torch's own product is faster for {rule}"
            if x.dtype is torch.float32 and float32_matmul_precision("cpu") != "highest":
                return "the precision of float32 products is not 'highest'"
        for name in layer.intervals:
            if name not in layer._parameters:
                return f"{name} of {title} is pruned or parametrized"
        shapes = _shapes(layer)
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                problem = _parameter_obstacle(parameter, shapes.get(name), x.dtype, seen)
                if problem is not None:
                    return f"a parameter of {title} {problem}"
    nested = any(layer._modules for layer in layers)
    if nested or any(part._parameters for part in modules if not isinstance(part, Unit)):
        return "a parameter belongs to no layer of the chain"
    return None


def _shapes(layer: Unit) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters in the layer's formula, by its sizes."""
    sizes = {"O": layer.out_features, "I": layer.in_features, "J": 2 * layer.in_features}
    models = () if layer.num_models is None else (layer.num_models,)
    return {
        name: (*models, *map(sizes.__getitem__, letters))
        for name, letters in _LETTERS[type(layer)].items()
    }


def _parameter_obstacle(
    parameter: Tensor, shape: tuple[int, ...] | None, dtype: torch.dtype, seen: set[int]
) -> str | None:
    if type(parameter) is not nn.Parameter or not parameter.is_cpu or parameter.dtype is not dtype:
        return f"is no plain parameter of {dtype} on the CPU"
    if parameter.data_ptr() in seen:
        return "belongs to two layers"
    seen.add(parameter.data_ptr())
    if parameter.shape != shape:
        return f"has shape {tuple(parameter.shape)}, which is not the layer's"
    if not parameter.is_contiguous() or parameter.is_inference() or _is_lazy(parameter):
        return "is not contiguous, lazily negated, or made in inference mode"
    hooked = parameter._backward_hooks or parameter._post_accumulate_grad_hooks
    return "has hooks" if hooked else None


def _is_lazy(tensor: Tensor) -> bool:
    """Whether a tensor's memory lacks its numbers: they are yet to be negated, or all are 0."""
    return tensor.is_neg() or tensor._is_zerotensor()


def _memory_obstacle(
    layers: Iterable[nn.Module], optimizer: torch.optim.Optimizer, data: Iterable[Tensor]
) -> str | None:
    if any(tensor._is_zerotensor() for tensor in data):
        return "the data are zeros without memory"
    parameters = [p for layer in layers for p in layer._parameters.values() if p is not None]
    moments = [t for p in parameters for t in optimizer.state.get(p, {}).values()]
    written = [*parameters, *(t for t in moments if isinstance(t, Tensor))]
    pieces = [(t.data_ptr(), t.data_ptr() + t.nbytes, True) for t in written]
    pieces += [(t.data_ptr(), t.data_ptr() + t.nbytes, False) for t in data]
    any_end = written_end = 0  # where the tensors before it end: all of them, those that change
    for begin, end, changes in sorted(pieces):
        if begin < (any_end if changes else written_end):
            return "a parameter shares its memory with another tensor"
        any_end = max(any_end, end)
        written_end = max(written_end, end) if changes else written_end
    return None


def optimizer_obstacle(optimizer: torch.optim.Optimizer) -> str | None:
    """Return the reason why a step may be another than that of torch's Adam, AdamW or RMSprop.

    None if it is one of these, with numbers as settings.
    """
    if type(optimizer) not in (*ADAMS, torch.optim.RMSprop):
        return f"{type(optimizer).__name__} is neither torch's Adam, AdamW nor RMSprop"
    for name, defined in zip(_STEPS, _DEFINED_STEPS[type(optimizer)], strict=True):
        if _defined(getattr(optimizer, name)) is not defined:
            return f"{name} of the optimiser is replaced"
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if hooks or _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return "the optimiser has hooks"
    for group in optimizer.param_groups:
        if group.get("amsgrad") or group.get("capturable") or group.get("differentiable"):
            return "the optimiser is amsgrad, capturable or differentiable"
        if len(set(map(id, group["params"]))) < len(group["params"]):
            return "the optimiser has a parameter twice"
        for name in _NUMBERS:
            setting = group.get(name, 0.0)
            for number in setting if isinstance(setting, (tuple, list)) else (setting,):
                if not isinstance(number, (int, float)):
                    return "a setting of the optimiser is a tensor"
    return None


def _state_obstacle(optimizer: torch.optim.Optimizer) -> str | None:
    for group in optimizer.param_groups:
        names = _state_names(optimizer, group)
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if not state:
                continue
            if state.keys() != {"step", *names}:
                return "the optimiser's state is of other settings"
            if not all(_like(state[name], parameter) for name in names):
                return "the optimiser's state is not plain"
    return None


def _like(value: Tensor, parameter: Tensor) -> bool:
    plain = value.is_cpu and value.is_contiguous() and not _is_lazy(value)
    return plain and value.shape == parameter.shape and value.dtype is parameter.dtype


def _state_names(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> list[str]:
    """Return the names of an optimiser's state of a parameter, beside the number of its steps."""
    if isinstance(optimizer, torch.optim.Adam):
        return ["exp_avg", "exp_avg_sq"]
    names = ["square_avg"]
    names += ["grad_avg"] if group["centered"] else []
    return names + (["momentum_buffer"] if group["momentum"] > 0 else [])


def _begin_state(state: dict[str, Tensor], names: Sequence[str], parameter: Tensor) -> None:
    """Fill an optimiser's empty state of a parameter as torch does at a first step."""
    number = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    state["step"] = torch.tensor(0.0, dtype=number)
    for name in names:
        state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)


# ---- the plan ------------------------------------------------------------------------------------


class Fused(Loop):
    """Steps by C++, of a model without an `obstacle`."""

    def advance(self, done: int, rows: Tensor | None, schedules: Tensor) -> None:
        plan, steps, optimizer = records.Plan(), schedules.shape[1], self.optimizer
        layers = [layer for _, layer in chain(self.model) if isinstance(layer, Unit)]
        parameters = [p for layer in layers for p in layer._parameters.values() if p is not None]
        plan.add(self._call(done, steps, len(layers)))
        index = {id(p): n for n, p in enumerate(parameters)}
        for layer in layers:
            kind = _KIND_NUMBERS[type(layer)]
            plan.add(records.Layer(kind, layer.in_features, layer.out_features))
            plan.add(_formula(layer, index, self.x.dtype))
        intervals = self._intervals(layers)
        summed = [layer for layer in layers if layer.whole_weights]
        whole_weights = {id(p) for layer in summed for p in layer._parameters.values()}
        groups = {id(p): n for n, g in enumerate(optimizer.param_groups) for p in g["params"]}
        updates: dict[tuple[int, bool], _Update] = {}
        states: list[dict[str, Tensor]] = []
        moments: list[Tensor] = []
        written: list[Tensor] = []
        for parameter in parameters:
            key = id(parameter)
            group = groups.get(key) if parameter.requires_grad else None
            low, high = intervals.get(key, _UNBOUNDED)
            plan.add(records.Parameter(group is not None, low, high))
            if group is not None or key in intervals:
                written.append(parameter)
            if group is not None:
                update = updates.get((group, key in whole_weights))
                if update is None:
                    update = updates[group, key in whole_weights] = _Update(
                        self, group, key in whole_weights
                    )
                state = optimizer.state[parameter]
                if not state:
                    _begin_state(state, update.names, parameter)
                states.append(state)
                plan.add(records.Update(group, update.penalties, float(state["step"])))
                plan.extend(update.settings)
                moments += [state[name] for name in update.names]
        weight = self._no_weight if self.weight is None else self.weight
        data = self.losses, self.x, self.y, weight, _NO_ROWS if rows is None else rows
        detached = [p.detach() for p in parameters]
        torch.ops.npu_kernels.train(
            detached, moments, *data, schedules, plan.integers, plan.numbers
        )
        for state in states:
            state["step"] += steps
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.graph.increment_version([*written, *moments, self.losses])

    @functools.cached_property
    def _no_weight(self) -> Tensor:
        return self.x.new_empty(0)

    def _call(self, done: int, steps: int, layers: int) -> records.Call:
        return records.Call(
            rmsprop=isinstance(self.optimizer, torch.optim.RMSprop),
            models=self.models or 1,
            steps=steps,
            before=done,
            every=self.every,
            shared_x=self.models is not None and self.x.dim() == 2,
            shared_y=self.models is not None and self.y.dim() == 2,
            finite=self.finite,
            layers=layers,
        )

    def _intervals(self, layers: Sequence[Unit]) -> dict[int, tuple[float, float]]:
        """Return the intervals that parameters are clamped into, by their identity."""
        if self.intervals is None:
            return {id(p): (low, high) for p, low, high in clamped(layers, self.gates, self.bound)}
        get = self.model.get_parameter
        return {id(get(name)): interval for name, interval in self.intervals.items()}


class _Update:
    """The part of the plan that a group's parameters with whole weights share, or its others."""

    def __init__(self, loop: Loop, group: int, whole_weights: bool) -> None:
        groups = loop.optimizer.param_groups
        self.names = _state_names(loop.optimizer, groups[group])
        self.settings = records.Plan()
        self.penalties = 0  # their number
        for row, name in enumerate(loop.penalties, len(groups)):
            if whole_weights or name not in ONLY_WHOLE:
                self.settings.add(records.Penalty(_PENALTY_NUMBERS[name], row))
                self.penalties += 1
        self.settings.add(_settings(loop.optimizer, groups[group]))


def _settings(
    optimizer: torch.optim.Optimizer, group: dict[str, Any]
) -> records.Adam | records.RMSprop:
    if isinstance(optimizer, torch.optim.RMSprop):
        return records.RMSprop(**{name: group[name] for name in records.RMSprop._fields})
    beta1, beta2 = group["betas"]
    decoupled = group.get("decoupled_weight_decay", False)
    settings = {name: group[name] for name in ("maximize", "eps", "weight_decay")}
    return records.Adam(decoupled=decoupled, beta1=beta1, beta2=beta2, **settings)


def _formula(layer: Unit, index: Mapping[int, int], dtype: torch.dtype) -> tuple[Any, ...]:
    """Return the numbers of the parameters that are a layer's weights, and its options."""
    parameters = layer._parameters
    if isinstance(layer, PowerUnit):
        return records.Npu(
            weight_re=index.get(id(parameters["weight_re"]), -1),
            weight_im=index.get(id(parameters["weight_im"]), -1),
            gate=index.get(id(parameters["gate"]), -1),
            eps=torch.finfo(dtype).eps if layer.eps is None else layer.eps,
            straight_through=layer.gate_gradient == "straight_through",
        )
    weight = index.get(id(parameters["weight"]), -1)
    if isinstance(layer, NMRU):
        eps = layer.eps if layer.training else 0.0
        return records.Nmru(weight, eps, clip=layer.clip, separate=layer.sign == "separate")
    assert isinstance(layer, (NAU, NMU))
    return (records.Nau if isinstance(layer, NAU) else records.Nmu)(weight, layer.clip)
