"""Layers of other code become fused layers, and back."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import (
    check_choice,
    check_flag,
    check_floating,
    check_module,
    check_number,
)
from npu_kernels._operators.operands import EPS
from npu_kernels.interop._published import EPS_NAMES, PUBLIC_NAMES, Trial, names_of, stated_eps
from npu_kernels.interop.reference_layers import EAGER, LAYOUTS, PublishedNPU
from npu_kernels.layers import NPU, BaseLayer, NaiveNPU, RealNPU

_FUSED = {eager: fused for fused, eager in EAGER.items()}


def _layout_of(names: set[str]) -> str | None:
    for layout, (layout_names, _) in LAYOUTS.items():
        if layout_names[0] in names and len(names) > 1 and names <= set(layout_names):
            return layout
    return None


def _as_parameter(name: str, value: Any, transposed: bool) -> nn.Parameter:
    """Return a tensor or an array as a parameter ``[O, I]``; TypeError unless it has floats."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        rule = f"{name} must be a tensor or an array"
        raise TypeError(f"from_parameters: {rule}: {error}") from None
    check_floating("from_parameters", name, tensor)
    if transposed and tensor.dim() == 2:
        return nn.Parameter(tensor.detach().t().contiguous(), requires_grad=tensor.requires_grad)
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.detach().clone())


def from_parameters(
    parameters: Mapping[str, Any],
    *,
    eps: float | None = None,
    gate_gradient: str = "clip",
    layout: str | None = None,
) -> BaseLayer:
    """Return a fused layer with published parameters, ``{"Re": ..., "Im": ..., ...}``.

    Args:
        parameters: arrays or tensors of one layer by name, in the layout "julia" or "pytorch" (see
            this module). A `torch.nn.Parameter` that needs no transposition stays the same object.
        eps: added to ``|x|``; None for the machine epsilon of the dtype.
        gate_gradient: "clip" or "straight_through".
        layout: "julia" or "pytorch"; None: recognised by the names.

    Returns a `NPU`, `RealNPU` or `NaiveNPU`. Raises ValueError if names or
    shapes match no layout.
    """
    if not isinstance(parameters, Mapping):
        got = type(parameters).__name__
        raise TypeError(f"from_parameters: parameters must be a dictionary, got {got}")
    if layout not in (None, *LAYOUTS):
        rule = f"None or one of {', '.join(LAYOUTS)}"
        raise ValueError(f"from_parameters: layout must be {rule}, got {layout!r}")
    layout = layout or _layout_of(set(parameters))
    if layout is None:
        parameter_names = sorted(map(str, parameters))
        raise ValueError(f"from_parameters: no layout has the parameters {parameter_names}")
    names, transposed = LAYOUTS[layout]
    values = [parameters.get(name) for name in names]
    layer_parameters = [
        None if value is None else _as_parameter(name, value, transposed)
        for name, value in zip(names, values, strict=True)
    ]
    weight_re, weight_im, gate = layer_parameters
    if weight_re is None:
        rule = f"layout {layout!r} needs {names[0]}"
        raise ValueError(f"from_parameters: {rule}, got {sorted(parameters)}")
    shape = tuple(weight_re.shape)
    fits = len(shape) == 2 and (weight_im is None or weight_im.shape == shape)
    if not fits or (gate is not None and tuple(gate.shape) != (shape[1],)):
        shapes = {name: tuple(torch.as_tensor(value).shape) for name, value in parameters.items()}
        raise ValueError(f"from_parameters: shapes do not fit layout {layout!r}: {shapes}")
    pairs = zip(names, layer_parameters, strict=True)
    dtypes = {name: tensor.dtype for name, tensor in pairs if tensor is not None}
    if len(set(dtypes.values())) > 1:
        got = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise TypeError(f"from_parameters: all tensors must have one dtype, got {got}")
    options: dict[str, Any] = {"eps": eps, "device": "meta", "dtype": weight_re.dtype}
    layer: BaseLayer
    if weight_im is not None and gate is not None:
        layer = NPU(shape[1], shape[0], gate_gradient=gate_gradient, **options)
    elif gate is not None:
        layer = RealNPU(shape[1], shape[0], gate_gradient=gate_gradient, **options)
    else:
        layer = NaiveNPU(shape[1], shape[0], **options)
    for name, parameter in (("weight_re", weight_re), ("weight_im", weight_im), ("gate", gate)):
        if parameter is not None:
            layer.register_parameter(name, parameter)
    return layer


# Attributes that a layer may have: the new module has them too, or they only describe the layer.
_CARRIED = {"gate_gradient", "layout", "num_models", "init_im", "_scale_im", "device", *EPS_NAMES}
_CARRIED |= {
    f"{side}_{size}"
    for side in ("in", "out", "input", "output")
    for size in ("features", "dim", "size")
}
_CARRIED |= {"_is_torch_compile"}  # torch.compile leaves it on a module that it once wrapped
_OWN_METHODS = {"__init__", "__repr__", "forward", "extra_repr", "reset_parameters"}


def _is_off(value: Any) -> bool:
    """Whether an option does nothing."""
    return value is None or value is False or (isinstance(value, str) and value == "none")


def _beyond_formula(module: nn.Module) -> dict[str, str]:
    """Return what a layer has and does beyond its formula: name -> the text for a message."""
    extras: dict[str, str] = {}
    plain = nn.Module().__dict__.keys()
    for name, value in module.__dict__.items():
        if name not in plain and name not in _CARRIED and not _is_off(value):
            text = repr(value)
            extras[name] = f"{name}={text}" if len(text) < 40 else name
    buffers = [name for name, buffer in module._buffers.items() if buffer is not None]
    extras |= {name: f"buffer {name}" for name in buffers}
    kinds = [kind for kind in type(module).__mro__ if kind not in nn.Module.__mro__]
    kinds = [kind for kind in kinds if kind.__module__.split(".")[0] != "npu_kernels"]
    names = {name: value for kind in reversed(kinds) for name, value in vars(kind).items()}
    for name, value in names.items():
        # Private functions are the class's own business, unless they change one of nn.Module's.
        private = name.startswith("_") and not callable(nn.Module.__dict__.get(name))
        if name not in _OWN_METHODS | _CARRIED and not private and not _is_off(value):
            extras.setdefault(name, f"{name}()" if callable(value) else name)
    return extras


def _is_derived(module: nn.Module, classes: Mapping[type[nn.Module], type[nn.Module]]) -> bool:
    """Whether a layer's class derives from one that is changed; the layer itself is not changed.

    Parametrization and FSDP2 derive such classes.
    """
    kinds = {*classes, *classes.values()}  # an eager class derives from its fused one
    return isinstance(module, tuple(classes)) and type(module) not in kinds


def _replaced_parameters(module: nn.Module, owners: Mapping[int, int]) -> dict[str, str]:
    """Return what parameters ``[I, O]`` lose by becoming new ones: hooks, sharing with layers."""
    replaced = {}
    for name, parameter in module.named_parameters(recurse=False):
        hooks = parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
        if owners[id(parameter)] > 1:
            replaced[name] = f"{name}, which is shared with another layer"
        elif hooks:
            replaced[name] = f"hooks of {name}"
    return replaced


class _Change(NamedTuple):
    """A new layer in the place of another one."""

    make: Callable[[nn.Module], nn.Module]
    transposed: bool  # its parameters are new ones too


def _who(path: str, module: nn.Module) -> str:
    return type(module).__name__ + (f" {path!r}" if path else "")


def _check_calls(function: str, model: nn.Module, layers: set[nn.Module], inplace: bool) -> None:
    """Raise ValueError where a call would still run the old forward of a layer, or the old model.

    layers: those that are to be changed.
    """
    dynamo: Any = sys.modules.get("torch._dynamo")  # slow to import
    wrapper = getattr(dynamo, "OptimizedModule", ())
    compiled = {module._orig_mod for module in model.modules() if isinstance(module, wrapper)}
    for path, module in model.named_modules():
        who, forward = f"{function}: {_who(path, module)}", module.__dict__.get("forward")
        if module not in layers:
            if isinstance(forward, FunctionType) and not (inplace or isinstance(module, wrapper)):
                rule = "has a forward of its own, which a copy would run on the model itself"
                raise ValueError(f"{who} {rule}; say inplace=True")
        elif module in compiled or module._compiled_call_impl is not None:
            raise ValueError(f"{who} is compiled by itself; {function} first, compile after")
        elif forward is not None or "_call_impl" in module.__dict__:
            rule = "has a forward of its own, as by torch.compile(layer.forward) or another package"
            raise ValueError(f"{who} {rule}; {function} first, compile after")


def _check_sharded(
    function: str,
    named: Mapping[str, nn.Module],
    renewed: Collection[str],
    classes: Mapping[type[nn.Module], type[nn.Module]],
) -> None:
    """Raise ValueError for sharded layers that cannot be changed.

    They are those that would get new parameters, and those of a class that FSDP2 derived.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # slow to import
    derived = getattr(fsdp, "FSDPModule", ())
    for path, module in named.items():
        sharded = any(hasattr(p, "full_tensor") for p in module._parameters.values())
        if (sharded and path in renewed) or (
            isinstance(module, derived) and _is_derived(module, classes)
        ):
            rule = f"has sharded parameters (DTensor); {function} first, shard after"
            raise ValueError(f"{function}: {_who(path, module)} {rule}")


def _check_lost(
    function: str, model: nn.Module, allow: Collection[str], changes: Mapping[str, _Change]
) -> None:
    """Raise ValueError for anything that a new layer would not have."""
    named = dict(model.named_modules())
    parameters = [p for module in named.values() for p in module._parameters.values()]
    owners = Counter(map(id, parameters))
    parallel = nn.parallel.DistributedDataParallel
    wrappers = [module for module in named.values() if isinstance(module, parallel)]
    wrapped = {module for wrapper in wrappers for module in wrapper.modules()}
    for path, change in changes.items():
        module = named[path]
        who = _who(path, module)
        filled = (name for name, value in module.__dict__.items() if value)
        if hooks := [name for name in filled if name.endswith("_hooks")]:
            advice = "remove them first and add them after"
            raise ValueError(f"{who} has hooks ({', '.join(hooks)}); {advice}")
        lost = _beyond_formula(module)
        if change.transposed:
            if module in wrapped:
                rule = "is within DistributedDataParallel, which would not see its new parameters"
                raise ValueError(f"{function}: {who} {rule}; {function} first, wrap after")
            lost |= _replaced_parameters(module, owners)
        lost = {name: text for name, text in lost.items() if name not in allow}
        if lost:
            names = ", ".join(map(repr, lost)) + ("," if len(lost) == 1 else "")
            raise ValueError(
                f"{function}: {who} has more than its formula, which the new layer would not have: "
                f"{', '.join(lost.values())}; say allow=({names}) to do without"
            )


def _deep_copy(function: str, model: nn.Module) -> nn.Module:
    """Return a copy of the model, its parameters with the hooks and attributes of the originals."""
    try:
        copied = copy.deepcopy(model)
    except Exception as error:  # the result of a computation, a lock, a file, a sharded model
        raise RuntimeError(
            f"{function}: model cannot be copied ({error}); say inplace=True"
        ) from error
    for old, new in zip(model.parameters(), copied.parameters(), strict=True):
        new.__dict__.update(old.__dict__)  # torch's copy of a parameter has values alone
        hooks = old._backward_hooks or {}
        hooks_after = getattr(old, "_post_accumulate_grad_hooks", None) or {}
        if hooks or hooks_after:
            new.requires_grad_()  # without which torch takes no hooks
        for hook in hooks.values():
            new.register_hook(hook)
        for hook in hooks_after.values():
            new.register_post_accumulate_grad_hook(hook)
        new.requires_grad_(old.requires_grad)
    return copied


def _become(module: nn.Module, new: type[nn.Module] | nn.Module) -> None:
    """Turn the module itself into another class or layer, so that whatever holds it has that."""
    if isinstance(new, type):
        module.__class__ = new
        return
    new.train(module.training)
    module.__class__ = type(new)
    module.__dict__.clear()
    module.__dict__.update(new.__dict__)


def _convert(
    function: str,
    model: nn.Module,
    allow: Collection[str],
    inplace: bool,
    classes: Mapping[type[nn.Module], type[nn.Module]],
    is_renewed: Callable[[nn.Module], bool],
    change: Callable[[str, nn.Module], _Change],
) -> nn.Module:
    """Return the model, or a copy, with its layers changed; all of them or none.

    classes: those that become others. is_renewed: whether a new layer is made instead; change:
    which one, by its title for messages and the old layer.
    """
    check_module(function, "model", model)
    check_flag(function, "inplace", inplace)
    if isinstance(allow, str) or not isinstance(allow, Collection):
        raise TypeError(f"{function}: allow must be a collection of names, got {allow!r}")
    named = dict(model.named_modules())
    renewed = {path: module for path, module in named.items() if is_renewed(module)}
    reclassed = [
        path for path, module in named.items() if type(module) in classes and path not in renewed
    ]
    layers = {named[path] for path in (*renewed, *reclassed)}
    _check_sharded(function, named, renewed, classes)
    results = (BaseLayer, PublishedNPU)
    done = (isinstance(m, results) and not _is_derived(m, classes) for m in named.values())
    if not layers and not any(done):
        kinds = ", ".join(sorted({type(module).__name__ for module in named.values()}))
        rule = f"model must have a layer that {function} supports (see the docstring of interop)"
        raise ValueError(f"{function}: {rule}, got {kinds}")
    _check_calls(function, model, layers, inplace)
    changes = {path: change(_who(path, module), module) for path, module in renewed.items()}
    _check_lost(function, model, allow, changes)

    model = model if inplace else _deep_copy(function, model)
    named = dict(model.named_modules())
    new: list[tuple[nn.Module, type[nn.Module] | nn.Module]] = [
        (named[path], classes[type(named[path])]) for path in reclassed
    ]
    new += [(named[path], change.make(named[path])) for path, change in changes.items()]
    for module, module_after in new:
        _become(module, module_after)
    return model


def swap(
    model: nn.Module,
    *,
    eps: float | None = None,
    gate_gradient: str = "clip",
    allow: Collection[str] = (),
    inplace: bool = False,
) -> nn.Module:
    """Return a model whose eager layers are replaced by fused modules with the same weights.

    It replaces the layers of `npu_kernels.interop.reference_layers`, and third-party layers that
    compute an NPU, RealNPU or NaiveNPU. A third-party layer is recognised by the names of its
    parameters, and its forward is called to check that it computes the same function:

    - real weights ``Re``, ``W_real``, ``W_hat`` or ``weight_re``;
    - imaginary weights ``Im``, ``W_im``, ``W_imag``, ``W_i`` or ``weight_im``; a RealNPU has none;
    - gate ``g``, ``G`` or ``gate``; a NaiveNPU has none.

    Args:
        model: any module; if it is itself such a layer the result is the new module.
        eps: for third-party layers without an attribute ``eps`` or ``epsilon``; None: the machine
            epsilon of the dtype.
        gate_gradient: for third-party layers without an attribute ``gate_gradient``: "clip" or
            "straight_through".
        allow: names of extras of third-party layers that may be dropped: methods of the class and
            its base classes, such as a penalty or a clipping after each step; attributes, such as
            ``npu_clip``; buffers. Also names of weights that are stored as ``[I, O]`` and have
            hooks or are shared (tied): such a weight is replaced by a new parameter ``[O, I]``,
            which has no hooks and is not shared.
        inplace: False changes a copy and leaves the model as it is. True changes the model itself:
            each layer remains the same object and gets a different class.

    Returns:
        The copy, or with `inplace` the model. The copy is deep: it shares no tensor with the model,
            and parameters that are shared (tied) within the model are shared within the copy. Hooks
            are kept; those that cannot be kept, such as module hooks of third-party layers, raise
            an error. Gradients are not copied. A module that was compiled by ``module.compile()``
            is not compiled in the copy. In place, weights ``[I, O]`` become new parameters, and
            other parameters remain the same objects.
            Build the optimizer afterwards: an earlier optimizer holds the parameters of the
            original model, or in place the replaced weights ``[I, O]``.

    Raises:
        ValueError: before anything is changed: the model has no layer that is recognised and none
            of this package; a layer has the parameter names but computes a different function, or
            adds a different eps; a layer was compiled on its own (``layer.compile()``), or its
            forward was replaced on the instance; a third-party layer has hooks of the module, is
            sharded, or would lose something that `allow` does not name, such as hooks of a weight
            ``[I, O]``.
        RuntimeError: the model cannot be copied.

    Layers with parameter names other than these, parametrized layers, and classes derived from this
    package's layers are not changed.
    """

    def is_renewed(module: nn.Module) -> bool:
        ours = isinstance(module, (BaseLayer, torch.jit.ScriptModule))
        return not ours and names_of(module) is not None

    def change(who: str, module: nn.Module) -> _Change:
        names = names_of(module) or {}
        stated = stated_eps(module)
        own_eps = eps if stated is None else stated
        said = "argument" if stated is None and eps is not None else "attribute" if stated else ""
        trial = Trial(module, names, own_eps)
        try:
            transposed = trial.transposed()
            trial.check_eps(transposed, said)
        except ValueError as error:
            parameters = f"has the names of a power unit's parameters ({', '.join(names.values())})"
            raise ValueError(f"swap: {who} {parameters} but {error}") from None
        layout = "pytorch" if transposed else "julia"

        def make(module: nn.Module) -> nn.Module:
            keys = dict(zip(PUBLIC_NAMES, LAYOUTS[layout][0], strict=True))
            return from_parameters(
                {keys[ours]: module._parameters[name] for ours, name in names.items()},
                eps=own_eps,
                gate_gradient=getattr(module, "gate_gradient", gate_gradient),
                layout=layout,
            )

        return _Change(make, transposed)

    if eps is not None:
        check_number("swap", "eps", eps, above=0, other="None")
    return _convert("swap", model, allow, inplace, _FUSED, is_renewed, change)


def to_reference(
    model: nn.Module,
    layout: str = "reference",
    *,
    allow: Collection[str] = (),
    inplace: bool = False,
) -> nn.Module:
    """Return a model whose fused modules are replaced by eager modules with the same weights.

    Args:
        model: any module.
        layout: "reference" (`npu_kernels.interop.reference_layers`, the same parameters and state
            dict), or for NPU, RealNPU and NaiveNPU without `num_models` "julia" or "pytorch"
            (`PublishedNPU`).
        allow: names of attributes that a layer may lose in a published layout, and of parameters
            that may lose their hooks or no longer be shared (tied).
        inplace: False changes a copy, True the model itself, as in `swap`.

    Returns the copy, or with `inplace` the model. Parametrized layers and classes derived from the
    fused modules stay as they are. Raises ValueError, before anything is changed, for an unknown
    layout; for a model without any layer of this package; for a layer that was compiled on its own
    or whose forward was replaced; in a published layout also for `num_models`, and for a layer that
    has hooks, is sharded, or would lose something that `allow` does not name. Raises RuntimeError
    for a model that cannot be copied.
    """
    check_choice("to_reference", "layout", layout, ("reference", *LAYOUTS))
    published = () if layout == "reference" else (NPU, RealNPU, NaiveNPU)

    def change(who: str, module: nn.Module) -> _Change:
        count = getattr(module, "num_models", None)
        if count is not None:
            rule = f"layout {layout!r} has no num_models"
            raise ValueError(f"to_reference: {rule}, this layer has {count}")
        return _Change(make, LAYOUTS[layout][1])

    def make(module: nn.Module) -> nn.Module:
        unit: Any = module
        eps = unit.eps
        if eps is None and layout == "pytorch":
            eps = EPS[unit.weight_re.dtype]
        return PublishedNPU(
            layout,
            unit.weight_re,
            unit.weight_im,
            unit.gate,
            eps=eps,
            gate_gradient=unit.gate_gradient,
        )

    def is_renewed(module: nn.Module) -> bool:
        return type(module) in published

    return _convert("to_reference", model, allow, inplace, EAGER, is_renewed, change)
