"""The reasons why one C++ call cannot make the steps of a training, and what a fast step relies on.

`captured` asks for some of the reasons too, before it captures a step in a CUDA graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules import module as torch_module
from torch.optim import lr_scheduler
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from npu_kernels import functional, optim
from npu_kernels._operators import dispatch, ops
from npu_kernels._operators.precision import float32_matmul_precision
from npu_kernels.layers import NAU, BaseLayer
from npu_kernels.layers._chains import chain, methods_of, replaced_method
from npu_kernels.training._plan import KINDS, state_names

OPTIMIZERS = (optim.Adam, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
# Features; beyond, torch's own product for the NAU may gain more than a single call does.
WIDEST_NAU = 128
_LETTERS = {kind: ops.WEIGHTS[record.__name__.lower()] for kind, record in KINDS.items()}
_saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_PLAIN = (bool, int, float, str, type(None))  # of attributes that are settings
_NUMBERS = ("lr", "eps", "betas", "alpha", "weight_decay", "momentum")  # settings of an optimizer
_FUNCTIONS = {kind: record.__name__.lower() for kind, record in KINDS.items()}  # of the layers
_FUNCTIONS_AT_IMPORT = {name: getattr(functional, name) for name in _FUNCTIONS.values()}


def _defined(method: Any) -> Any:
    """Return the function of a method, without what torch's optimizers and schedulers wrap it in.

    What anybody else has wrapped it in stays, also by `functools.wraps`.
    """
    function = getattr(method, "__func__", method)
    variables = getattr(function, "__globals__", None)
    if variables is vars(torch_optimizer) or variables is vars(lr_scheduler):
        inner = getattr(function, "__wrapped__", None)
        return function if inner is None else _defined(inner)
    return function


# The methods of each optimizer's class as they are at import: somebody may replace them later.
_STEPS = ("step", "zero_grad")
_DEFINED_STEPS: dict[type[torch.optim.Optimizer], list[Any]] = {
    kind: [_defined(getattr(kind, name)) for name in _STEPS] for kind in OPTIMIZERS
}


def reason(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Sequence[Tensor]
) -> str | None:
    """Return the reason why one call cannot make the steps; None if it can.

    Prehooks of a parameter's AccumulateGrad node cannot be seen from Python: the call ignores them.

    data: x, and where they are known y and the weight of errors. Raises the error of the layers'
    own call for options that they refuse.
    """
    x, fast = data[0], dispatch.forced() in dispatch.FAST_PATH
    if not (x.is_cpu and fast and dispatch.backend_for(x) == "cpu"):
        return "the C++ kernels are not used for these tensors"
    if x.dtype not in (torch.float32, torch.float64):
        return f"{x.dtype} is neither float32 nor float64"
    if is_compiling() or torch.is_autocast_enabled("cpu") or torch.is_inference_mode_enabled():
        return "of torch.compile, autocast or inference mode"
    if torch.is_anomaly_enabled() or _saved_tensors_hooks(False) is not None:
        return "of anomaly mode or hooks of saved tensors"
    modules, layers = list(model.modules()), [layer for _, layer in chain(model)]
    problem = call_reason(modules) or _layers_reason(modules, layers, x)
    problem = problem or optimizer_reason(optimizer) or _state_reason(optimizer)
    problem = problem or _memory_reason(layers, optimizer, data)
    if problem is None:
        for layer in layers:
            assert isinstance(layer, BaseLayer)
            layer(x.new_empty(0, layer.in_features))  # checks its options
    return problem


def call_reason(modules: Iterable[nn.Module]) -> str | None:
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


def _layers_reason(
    modules: Sequence[nn.Module], layers: Sequence[nn.Module], x: Tensor
) -> str | None:
    if not layers:
        return "the model is empty"
    seen: set[int] = set()
    for layer in layers:
        title = type(layer).__name__
        if not isinstance(layer, BaseLayer) or type(layer) not in KINDS:
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
        for name in layer.parameter_bounds:
            if name not in layer._parameters:
                return f"{name} of {title} is pruned or parametrized"
        shapes = _shapes(layer)
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                problem = _parameter_reason(parameter, shapes.get(name), x.dtype, seen)
                if problem is not None:
                    return f"a parameter of {title} {problem}"
    for first, second in itertools.pairwise(layers):
        if first.out_features != second.in_features:
            return f"{type(second).__name__} takes another number of features than it gets"
    nested = any(layer._modules for layer in layers)
    if nested or any(part._parameters for part in modules if not isinstance(part, BaseLayer)):
        return "a parameter belongs to no layer of the chain"
    return None


def _shapes(layer: BaseLayer) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters in the layer's formula, by its sizes."""
    sizes = {"O": layer.out_features, "I": layer.in_features, "J": 2 * layer.in_features}
    models = () if layer.num_models is None else (layer.num_models,)
    return {
        name: (*models, *map(sizes.__getitem__, letters))
        for name, letters in _LETTERS[type(layer)].items()
    }


def _parameter_reason(
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


def _memory_reason(
    layers: Iterable[nn.Module], optimizer: torch.optim.Optimizer, data: Iterable[Tensor]
) -> str | None:
    if any(tensor._is_zerotensor() for tensor in data):
        return "the data are zeros without memory"
    parameters = [p for layer in layers for p in layer._parameters.values() if p is not None]
    moments = [t for p in parameters for t in optimizer.state.get(p, {}).values()]
    written = [*parameters, *(t for t in moments if isinstance(t, Tensor))]
    ranges = [(t.data_ptr(), t.data_ptr() + t.nbytes, True) for t in written]
    ranges += [(t.data_ptr(), t.data_ptr() + t.nbytes, False) for t in data]
    any_end = written_end = 0  # where the tensors before it end: all of them, those that change
    for begin, end, changes in sorted(ranges):
        if begin < (any_end if changes else written_end):
            return "a parameter shares its memory with another tensor"
        any_end = max(any_end, end)
        written_end = max(written_end, end) if changes else written_end
    return None


def optimizer_reason(optimizer: torch.optim.Optimizer) -> str | None:
    """Return the reason why a step may be another than that of torch's Adam, AdamW or RMSprop.

    None if it is one of these, with numbers as settings.
    """
    if type(optimizer) not in OPTIMIZERS:
        return f"{type(optimizer).__name__} is neither torch's Adam, AdamW nor RMSprop"
    for name, defined in zip(_STEPS, _DEFINED_STEPS[type(optimizer)], strict=True):
        if _defined(getattr(optimizer, name)) is not defined:
            return f"{name} of the optimizer is replaced"
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if hooks or _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return "the optimizer has hooks"
    for group in optimizer.param_groups:
        if group.get("amsgrad") or group.get("capturable") or group.get("differentiable"):
            return "the optimizer is amsgrad, capturable or differentiable"
        if len(set(map(id, group["params"]))) < len(group["params"]):
            return "the optimizer has a parameter twice"
        for name in _NUMBERS:
            setting = group.get(name, 0.0)
            for number in setting if isinstance(setting, (tuple, list)) else (setting,):
                if not isinstance(number, (int, float)):
                    return "a setting of the optimizer is a tensor"
    return None


def _state_reason(optimizer: torch.optim.Optimizer) -> str | None:
    for group in optimizer.param_groups:
        names = state_names(optimizer, group)
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if not state:
                continue
            if state.keys() != {"step", *names}:
                return "the optimizer's state is of other settings"
            if not (
                _counts(state["step"]) and all(_like(state[name], parameter) for name in names)
            ):
                return "the optimizer's state is not plain"
    return None


def _like(value: Any, parameter: Tensor) -> bool:
    plain = _is_plain(value) and value.is_contiguous()
    return plain and value.shape == parameter.shape and value.dtype is parameter.dtype


def _counts(number: Any) -> bool:
    plain = _is_plain(number) and number.dtype in (torch.float32, torch.float64)
    return plain and number.numel() == 1


def _is_plain(value: Any) -> bool:
    plain = type(value) is Tensor and value.is_cpu
    return plain and not value.is_inference() and not _is_lazy(value)


def check_memory(function: str, modules: Iterable[nn.Module], **tensors: Any) -> None:
    """Raise ValueError for a parameter or tensor whose storage was freed or made smaller."""
    for name, tensor in tensors.items():
        _check_storage(function, name, tensor)
    for part in modules:
        for parameter in part._parameters.values():
            _check_storage(function, "a parameter of model", parameter)


def _check_storage(function: str, name: str, tensor: Any) -> None:
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
        raise ValueError(f"{function}: {name} must have {rule}, got a storage of {storage} bytes")


class Facts:
    """A model and its optimizer without the tensors: a fast step is valid while they are unchanged.

    The tensors are compared by those who know them: C++ for a plan (csrc/fast_path/train.h),
    `_captured` for a graph.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.forced = optimizer, dispatch.forced()
        self.empty: list[Any] = [_global_optimizer_pre_hooks, _global_optimizer_post_hooks]
        self.settings: list[tuple[dict[str, Any], int, Any, Any]] = []
        self.modules: list[tuple[nn.Module, type, dict[str, Any], bool]] = []
        self.contents: list[tuple[dict[str, Any], str, dict[str, Any], tuple[Any, ...]]] = []
        methods: dict[type, Callable[[Any], tuple[Any, ...]]] = {}
        methods[type(optimizer)] = attrgetter("step", "zero_grad")
        for module in model.modules():
            attributes, kind = vars(module), type(module)
            has_own = "forward" in attributes or "_call_impl" in attributes
            self.modules.append((module, kind, attributes, has_own))
            self._add(attributes, _PLAIN, _HOOKS)
            self.contents += [
                (attributes, name, attributes[name], tuple(attributes[name].values()))
                for name in ("_modules", "_parameters")
            ]
            methods[kind] = methods_of(kind)
        self.methods = [(get, kind, get(kind)) for kind, get in methods.items()]
        functions = type(functional.npu), type(self.rates)
        self._add(vars(functional), functions)
        self._add(vars(optimizer), (*_PLAIN, *functions), _OPTIMIZER_HOOKS)
        self.groups = [(group, tuple(group["params"])) for group in optimizer.param_groups]
        for group, _ in self.groups:
            self._add(group, (*_PLAIN, tuple, list), but=("lr", "params"))

    def _add(
        self,
        values: dict[str, Any],
        kinds: Any,
        hooks: tuple[str, ...] = (),
        but: tuple[str, ...] = (),
    ) -> None:
        names = [n for n, value in values.items() if isinstance(value, kinds) and n not in but]
        names += hooks
        if names:
            get = itemgetter(*names, names[0])  # a tuple: of two names at least
            before = tuple(list(v) if isinstance(v, list) else v for v in get(values))
            self.settings.append((values, len(values), get, before))
        self.empty += [values[name] for name in hooks]

    def hold(self) -> bool:
        """Return whether all facts are those of the construction."""
        if any(self.empty) or torch_module._has_any_global_hook() or is_compiling():
            return False
        if dispatch.forced() != self.forced:
            return False
        for module, kind, attributes, has_own in self.modules:
            if type(module) is not kind or module.__dict__ is not attributes:
                return False
            if ("forward" in attributes or "_call_impl" in attributes) is not has_own:
                return False
        try:
            for values, count, get, before in self.settings:
                if len(values) != count or get(values) != before:
                    return False
        except KeyError:  # another name
            return False
        for attributes, name, parts, before in self.contents:
            if attributes[name] is not parts or len(parts) != len(before):
                return False
            if not all(map(is_, parts.values(), before)):
                return False
        for methods, kind, defined in self.methods:
            if methods(kind) != defined:
                return False
        groups = self.optimizer.param_groups
        if len(groups) != len(self.groups):
            return False
        for group, (known_group, parameters) in zip(groups, self.groups, strict=True):
            if group is not known_group or len(group["params"]) != len(parameters):
                return False
            if not all(map(is_, group["params"], parameters)):
                return False
        return True

    def rates(self) -> list[float] | None:
        """Return the rates of the optimizer's groups; None if a fact is another now."""
        if not self.hold():
            return None
        rates = []
        for group in self.optimizer.param_groups:
            rate = group["lr"]
            if not isinstance(rate, (float, int)):
                return None
            rates.append(rate)
        return rates
