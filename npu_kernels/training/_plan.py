"""Which training runs one C++ call can make, and the plan that the call gets."""

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

from npu_kernels import optim
from npu_kernels._operators import dispatch, ops
from npu_kernels._operators.precision import float32_matmul_precision
from npu_kernels.layers import NAU, NMRU, NMU, NPU, NaiveNPU, PowerUnit, RealNPU, Unit
from npu_kernels.training import _records as records

NPUS = (NPU, RealNPU, NaiveNPU)
KINDS: dict[type[Unit], type[tuple[Any, ...]]] = {
    **dict.fromkeys(NPUS, records.Npu), NMU: records.Nmu, NMRU: records.Nmru, NAU: records.Nau
}  # fmt: skip
PENALTIES = {**{name: name for name in records.PENALTIES}, "whole": "madsen"}  # and their formulas
_KIND_NUMBERS = {kind: records.KINDS.index(record) for kind, record in KINDS.items()}
_LETTERS = {kind: ops.WEIGHTS[record.__name__.lower()] for kind, record in KINDS.items()}
ONLY_WHOLE = ("madsen", "paper")  # penalties of the weights of NAU, NMU and NMRU alone
ADAMS = (optim.Adam, torch.optim.Adam, torch.optim.AdamW)
WIDEST_NAU = 64  # features; beyond, torch's own product is faster than our kernel for the NAU
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_METHODS = frozenset(
    {"forward", "_call_impl"}
)  # of a module, which a call takes from the instance if it has them
_NUMBERS = ("lr", "eps", "betas", "alpha", "weight_decay", "momentum")  # settings of an optimiser
_UNBOUNDED = (-math.inf, math.inf)


def chain(model: nn.Module) -> list[nn.Module]:
    """The layers that a model calls one after the other."""
    if type(model) is nn.Sequential:
        return [layer for part in model for layer in chain(part)]
    return [model]


def clamped(
    units: Sequence[nn.Module], gates: bool, bound: float | None
) -> Iterator[tuple[Tensor, float, float]]:
    """The parameters that `project_` clamps, and into what."""
    for unit in units:
        for name, interval in unit.intervals.items() if isinstance(unit, Unit) else ():
            parameter = unit._parameters.get(name)
            wanted = gates if name == "gate" else bound is not None
            if parameter is not None and wanted:
                low, high = interval or (-(bound or 0.0), bound or 0.0)
                yield parameter, low, high


def check_memory(model: nn.Module, **tensors: Any) -> None:
    """ValueError for a parameter of the model, or a tensor, whose storage was freed or made smaller."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor):
            _check_storage(name, tensor)
    for parameter in model.parameters():
        _check_storage("a parameter of model", parameter)


def _check_storage(name: str, tensor: Tensor) -> None:
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.numel() == 0:
        return
    if tensor.is_contiguous():
        last = tensor.numel()
    else:
        last = 1 + sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
    needed, storage = (
        (tensor.storage_offset() + last) * tensor.itemsize,
        tensor.untyped_storage().nbytes(),
    )
    if storage < needed:
        raise ValueError(
            f"run: {name} must have memory for its shape {tuple(tensor.shape)}, {needed} bytes, "
            f"got a storage of {storage} bytes"
        )


# ---- what is possible ------------------------------------------------------------------------------------------------


def obstacle(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> str | None:
    """Why these steps cannot be made in one call; None if they can."""
    if not (
        x.is_cpu and dispatch.backend_for(x) == "cpu" and dispatch.forced() in dispatch.FAST_PATH
    ):
        return "the C++ kernels are not used for these tensors"
    if x.dtype not in (torch.float32, torch.float64):
        return f"{x.dtype} is neither float32 nor float64"
    if is_compiling() or torch.is_autocast_enabled("cpu") or torch.is_inference_mode_enabled():
        return "of torch.compile, autocast or inference mode"
    return (
        call_obstacle(model)
        or _layers(model, chain(model), x)
        or optimizer_obstacle(optimizer)
        or _state_obstacle(optimizer)
    )


def call_obstacle(model: nn.Module) -> str | None:
    """Why a call of the model may do more, or something else, than its layers' classes say; None if it does not."""
    if torch_module._has_any_global_hook():
        return "a module has hooks"
    for part in model.modules():
        if any(getattr(part, name) for name in _HOOKS):
            return "a module has hooks"
        replaced = vars(part).keys() & _METHODS  # those of the class otherwise
        if replaced:
            return f"{min(replaced)} of {type(part).__name__} is replaced"
        if part._compiled_call_impl is not None:
            return f"{type(part).__name__} is compiled"
    return None


def _layers(model: nn.Module, layers: Sequence[nn.Module], x: Tensor) -> str | None:
    if not layers:
        return "the model is empty"
    seen: set[int] = set()
    for layer in layers:
        if not isinstance(layer, Unit) or type(layer) not in KINDS:
            return f"{type(layer).__name__} has no place in a chain of NPU, RealNPU, NaiveNPU, NAU, NMU and NMRU"
        if isinstance(layer, NAU):
            if max(layer.in_features, layer.out_features) > WIDEST_NAU:
                return (
                    f"torch's own product is faster for a NAU with more than {WIDEST_NAU} features"
                )
            if x.dtype is torch.float32 and float32_matmul_precision("cpu") != "highest":
                return "the precision of float32 products is not 'highest'"
        for name in layer.intervals:
            if name not in layer._parameters:
                return f"{name} of {type(layer).__name__} is pruned or parametrized"
        shapes = _shapes(layer)
        for name, parameter in layer._parameters.items():
            problem = (
                None
                if parameter is None
                else _parameter(parameter, shapes.get(name), x.dtype, seen)
            )
            if problem is not None:
                return f"a parameter of {type(layer).__name__} {problem}"
    others = [part for part in model.modules() if not isinstance(part, Unit)]
    if any(part._parameters for part in others) or any(layer._modules for layer in layers):
        return "a parameter belongs to no layer of the chain"
    return None


def _shapes(layer: Unit) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters in the layer's formula, by its sizes."""
    sizes = {"O": layer.out_features, "I": layer.in_features, "J": 2 * layer.in_features}
    models = () if layer.num_models is None else (layer.num_models,)
    return {
        name: (*models, *map(sizes.__getitem__, letters))
        for name, letters in _LETTERS[type(layer)].items()
    }


def _parameter(
    parameter: Tensor, shape: tuple[int, ...] | None, dtype: torch.dtype, seen: set[int]
) -> str | None:
    if type(parameter) is not nn.Parameter or not parameter.is_cpu or parameter.dtype is not dtype:
        return f"is no plain parameter of {dtype} on the CPU"
    if parameter.data_ptr() in seen:
        return "belongs to two layers"
    seen.add(parameter.data_ptr())
    if parameter.shape != shape:
        return f"has shape {tuple(parameter.shape)}, which is not the layer's"
    if not parameter.is_contiguous() or parameter.is_inference():
        return "is not contiguous, or made in inference mode"
    return (
        "has hooks" if parameter._backward_hooks or parameter._post_accumulate_grad_hooks else None
    )


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
        numbers = [value for name in _NUMBERS for value in _flat(group.get(name, 0.0))]
        if not all(isinstance(number, (int, float)) for number in numbers):
            return "a setting of the optimiser is a tensor"
    return None


def _state_obstacle(optimizer: torch.optim.Optimizer) -> str | None:
    for group in optimizer.param_groups:
        names = _names(optimizer, group)
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
    return (
        value.shape == parameter.shape
        and value.dtype is parameter.dtype
        and value.is_cpu
        and value.is_contiguous()
    )


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def _names(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> list[str]:
    """The names of what an optimiser keeps for a parameter, beside the number of its steps."""
    if isinstance(optimizer, torch.optim.Adam):
        return ["exp_avg", "exp_avg_sq"]
    names = {
        "square_avg": True,
        "grad_avg": group["centered"],
        "momentum_buffer": group["momentum"] > 0,
    }
    return [name for name, kept in names.items() if kept]


def _state(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: Tensor
) -> dict[str, Tensor]:
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
        gates, bound: of `project_`, which clamps parameters that are not trained as well.
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
        plan, steps = records.Plan(), schedules.shape[1]
        layers = [layer for layer in chain(self.model) if isinstance(layer, Unit)]
        parameters = [p for layer in layers for p in layer._parameters.values() if p is not None]
        plan.add(self._call(done, steps, len(layers)))
        names = [_names(self.optimizer, group) for group in self.optimizer.param_groups]
        updates = self._updates()
        index = {id(p): n for n, p in enumerate(parameters)}
        for layer in layers:
            kind = records.Layer(_KIND_NUMBERS[type(layer)], layer.in_features, layer.out_features)
            plan.add(kind, _formula(layer, index, self.x.dtype))
        intervals = self._intervals(layers)
        whole = {
            id(p) for layer in layers if layer.whole_weights for p in layer._parameters.values()
        }
        groups = {
            id(p): n for n, group in enumerate(self.optimizer.param_groups) for p in group["params"]
        }
        kept: list[Tensor] = []
        trained: list[Tensor] = []
        written: list[Tensor] = []
        for parameter in parameters:
            group = groups.get(id(parameter)) if parameter.requires_grad else None
            low, high = intervals.get(id(parameter), _UNBOUNDED)
            plan.add(records.Parameter(group is not None, low, high))
            if group is not None or id(parameter) in intervals:
                written.append(parameter)
            if group is not None:
                trained.append(parameter)
                state = _state(self.optimizer, self.optimizer.param_groups[group], parameter)
                penalties, update = updates[group, id(parameter) in whole]
                plan.add(records.Update(group, penalties, float(state["step"])))
                plan.integers += update.integers
                plan.numbers += update.numbers
                kept += [state[name] for name in names[group]]
        values = [p.detach() for p in parameters]
        weight = self.x.new_empty(0) if self.weight is None else self.weight
        rows = torch.empty(0, dtype=torch.int64) if rows is None else rows
        torch.ops.npu_kernels.train(
            values,
            kept,
            self.losses,
            self.x,
            self.y,
            weight,
            rows,
            schedules,
            plan.integers,
            plan.numbers,
        )
        for changed in trained:
            self.optimizer.state[changed]["step"] += steps
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.graph.increment_version([*written, *kept, self.losses])

    def _call(self, done: int, steps: int, layers: int) -> records.Call:
        shared_x, shared_y = (
            self.models is not None and tensor.dim() == 2 for tensor in (self.x, self.y)
        )
        return records.Call(
            rmsprop=isinstance(self.optimizer, torch.optim.RMSprop),
            models=self.models or 1,
            steps=steps,
            before=done,
            every=self.every,
            shared_x=shared_x,
            shared_y=shared_y,
            finite=self.finite,
            layers=layers,
        )

    def _intervals(self, layers: Sequence[Unit]) -> dict[int, tuple[float, float]]:
        """What parameters are clamped into, by their identity."""
        if self.intervals is None:
            return {id(p): (low, high) for p, low, high in clamped(layers, self.gates, self.bound)}
        return {id(self.model.get_parameter(name)): ends for name, ends in self.intervals.items()}

    def _updates(self) -> dict[tuple[int, bool], tuple[int, records.Plan]]:
        """The number of a parameter's penalties, and these with the settings of its optimiser.

        By the index of its group, and whether its layer has whole weights.
        """
        groups, updates = self.optimizer.param_groups, {}
        for whole in (False, True):
            penalties = [
                records.Penalty(records.PENALTIES.index(PENALTIES[name]), len(groups) + n)
                for n, name in enumerate(self.penalties)
                if whole or name not in ONLY_WHOLE
            ]
            for n, group in enumerate(groups):
                plan = records.Plan()
                plan.add(*penalties, _settings(self.optimizer, group))
                updates[n, whole] = len(penalties), plan
        return updates


def _settings(
    optimizer: torch.optim.Optimizer, group: dict[str, Any]
) -> records.Adam | records.RMSprop:
    if isinstance(optimizer, torch.optim.RMSprop):
        return records.RMSprop(
            maximize=group["maximize"],
            centered=group["centered"],
            alpha=group["alpha"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
        )
    beta1, beta2 = group["betas"]
    return records.Adam(
        maximize=group["maximize"],
        decoupled=group.get("decoupled_weight_decay", False),
        beta1=beta1,
        beta2=beta2,
        eps=group["eps"],
        weight_decay=group["weight_decay"],
    )


def _formula(layer: Unit, index: Mapping[int, int], dtype: torch.dtype) -> tuple[Any, ...]:
    """Which parameters a layer's weights are, and its options."""
    own = layer._parameters
    if isinstance(layer, PowerUnit):
        return records.Npu(
            weight_re=index.get(id(own["weight_re"]), -1),
            weight_im=index.get(id(own["weight_im"]), -1),
            gate=index.get(id(own["gate"]), -1),
            eps=torch.finfo(dtype).eps if layer.eps is None else layer.eps,
            straight_through=layer.gate_gradient == "straight_through",
        )
    weight = index.get(id(own["weight"]), -1)
    if isinstance(layer, NMRU):
        return records.Nmru(
            weight=weight,
            eps=layer.eps if layer.training else 0.0,
            clip=layer.clip,
            separate=layer.sign == "separate",
        )
    assert isinstance(layer, (NAU, NMU))
    return (
        records.Nau(weight, layer.clip)
        if isinstance(layer, NAU)
        else records.Nmu(weight, layer.clip)
    )
