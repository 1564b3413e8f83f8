"""Conversion of other code's layers into ours and back.

`swap` replaces the eager layers of a model by the fused modules, `to_reference` goes back, with the
weights carried over. Both change a copy of the model, unless ``inplace=True``. Eager layers of
other code are recognised by the names and shapes of their parameters, never by their class:

==========  ==============================  ======================================================
layout      parameters                      what differs from ours
==========  ==============================  ======================================================
reference   ours                            nothing (`npu_kernels.interop.reference_layers`)
julia       ``Re, Im [O, I], g [I]``        eps: machine epsilon of the dtype, as ours. Gate:
                                            clipped as ours; from NeuralArithmetic.jl 1.0.3 with
                                            a straight-through gradient: say
                                            ``gate_gradient="straight_through"``. Up to 1.0.2
                                            the gradient at a gate of exactly 0 is 0, where ours
                                            passes it.
pytorch     ``W_real, W_im [I, O], g [I]``  eps: its module's attribute ``eps``, float32's epsilon
                                            in every dtype. Gate: ``torch.clamp``, as ours.
                                            Clipping weights or gates in place after a step
                                            belongs to the training loop: `training.project_`.
==========  ==============================  ======================================================

In both, without ``Im`` or ``W_im`` it is a RealNPU, without ``g`` a NaiveNPU.

Build the optimizer after the swap: one that was made before belongs to the old model's parameters.

    >>> import torch
    >>> from npu_kernels import interop, reference_layers
    >>> model = interop.swap(torch.nn.Sequential(reference_layers.RealNPU(2, 6)))
    >>> type(model[0]).__module__
    'npu_kernels.layers._npu'
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import reference
from npu_kernels._common.checks import (
    check_choice,
    check_flag,
    check_floating,
    check_module,
    check_number,
)
from npu_kernels._operators import ops
from npu_kernels._time_loop import reference as time_loop
from npu_kernels.interop import reference_layers
from npu_kernels.interop.reference_layers import EAGER, LAYOUTS, PublishedNPU
from npu_kernels.layers import NPU, NaiveNPU, RealNPU, Unit

_FUSED = {eager: fused for fused, eager in EAGER.items()}


def _layout_of(names: set[str]) -> str | None:
    for layout, (layout_names, _) in LAYOUTS.items():
        if layout_names[0] in names and len(names) > 1 and names <= set(layout_names):
            return layout
    return None


def _copied(source: nn.Module, target: type[nn.Module]) -> nn.Module:
    """Return the module as another class that shares parameters, buffers, mode and options."""
    result = target.__new__(target)
    result.__dict__.update(source.__dict__)
    # Registers of its own, so that what is added to one is not added to the other.
    for name in ("_parameters", "_buffers", "_modules"):
        result.__dict__[name] = dict(source.__dict__[name])
    return result


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
) -> Unit:
    """Make a fused layer of arrays or tensors by published names, ``{"Re": ..., "Im": ..., ...}``.

    Args:
        parameters: of one layer, in the layout "julia" or "pytorch" (see this module). A
            `torch.nn.Parameter` that needs no transposition stays the same object.
        eps: added to ``|x|``; None for the machine epsilon of the dtype.
        gate_gradient: "clip" or "straight_through".
        layout: None to recognise it by the names.

    Returns a `NPU`, `RealNPU` or `NaiveNPU`. Raises ValueError for names or shapes of no layout.
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
    layer: Unit
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


def _outcome(module: nn.Module) -> str | None:
    """Return "new" or "transposed" for a published layer, as `_check_lost` takes it; else None."""
    layout = _layout_of({name for name, _ in module.named_parameters(recurse=False)})
    if layout is None or any(True for _ in module.children()):
        return None
    layout_names, transposed = LAYOUTS[layout]
    weight = getattr(module, layout_names[0])
    if weight.dim() != 2:
        return None
    inputs, outputs = weight.shape if transposed else tuple(weight.shape)[::-1]
    # Other code may use the same names for other shapes and another formula; it stays as it is.
    stated = (getattr(module, "in_features", inputs), getattr(module, "out_features", outputs))
    other, gate = getattr(module, layout_names[1], None), getattr(module, layout_names[2], None)
    fits = stated == (inputs, outputs) and (other is None or other.shape == weight.shape)
    if not fits or (gate is not None and gate.shape != (inputs,)):
        return None
    return "transposed" if transposed else "new"


# Attributes that a layer may have: the new module has them too, or they only describe the layer.
_CARRIED = {"in_features", "out_features", "eps", "gate_gradient", "layout", "num_models"}
_CARRIED |= {"init_im", "_scale_im"}
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


def _check_lost(
    function: str,
    model: nn.Module,
    allow: Collection[str],
    inplace: bool,
    kind: Callable[[nn.Module], str | None],
) -> None:
    """Raise ValueError for anything that a new module would not have, before any change.

    kind: what a module becomes: "same" attributes, "new" ones, new and "transposed", or None.
    """
    check_module(function, "model", model)
    check_flag(function, "inplace", inplace)
    if isinstance(allow, str) or not isinstance(allow, Collection):
        raise TypeError(f"{function}: allow must be a collection of names, got {allow!r}")
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for path, module in model.named_modules():
        outcome = kind(module)
        if outcome is None:
            continue
        who = type(module).__name__ + (f" {path!r}" if path else "")
        filled = (name for name, value in module.__dict__.items() if value)
        hooks = [name for name in filled if name.endswith("_hooks")]
        hooks = [name for name in hooks if outcome != "same" or "state_dict" not in name]
        if hooks:
            advice = "remove them first and add them after"
            raise ValueError(f"{who} has hooks ({', '.join(hooks)}); {advice}")
        lost = {} if outcome == "same" else _beyond_formula(module)
        if outcome == "transposed":
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
    except (RuntimeError, TypeError) as error:  # the result of a computation, a lock, a file
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


def _replace(
    function: str,
    model: nn.Module,
    inplace: bool,
    change: Callable[[nn.Module], nn.Module | None],
) -> nn.Module:
    """Return the model with its modules changed, a shared one once; all of them or none."""
    model = model if inplace else _deep_copy(function, model)
    modules = list(model.modules())
    new = {module: replacement for module in modules if (replacement := change(module)) is not None}
    for module, module_after in new.items():
        module_after.train(module.training)
    for module in modules:
        for name, child in module._modules.items():
            if child in new:
                module._modules[name] = new[child]
    return new.get(model, model)


def swap(
    model: nn.Module,
    *,
    eps: float | None = None,
    gate_gradient: str = "clip",
    allow: Collection[str] = (),
    inplace: bool = False,
) -> nn.Module:
    """Return a model with its eager layers replaced by the fused modules, with their weights.

    Args:
        model: any module; if it is itself such a layer the result is the new module.
        eps: for layers that have no attribute ``eps``: None for the machine epsilon of the dtype.
        gate_gradient: of the replaced published layers, "clip" or "straight_through".
        allow: names of what a published layer has beyond its formula and may lose: methods of its
            class and of the classes that it derives from, such as a penalty or a clipping after
            each step, attributes such as ``npu_clip``, buffers; and of parameters ``[I, O]`` that
            lose hooks or their sharing.
        inplace: false changes a copy and leaves the model as it is; true changes the model itself.

    Returns the copy, or with `inplace` the model. The copy is a deep one: it shares no tensor with
    the model, what is shared within the model is shared within the copy, hooks of modules and
    parameters stay, gradients are not copied. In place, weights ``[I, O]`` become new parameters
    and others stay the same objects. In both cases build the optimizer afterwards: one that was
    made before changes the old parameters. Layers that fit no layout, pruned and parametrized ones,
    and subclasses of this package's layers, stay as they are. Raises ValueError, before anything is
    changed, for a layer with hooks and for one that would lose what `allow` does not name; and
    RuntimeError for a model that cannot be copied.
    """

    def kind(module: nn.Module) -> str | None:
        if type(module) in _FUSED:
            return "same"
        return None if isinstance(module, Unit) else _outcome(module)

    def change(module: nn.Module) -> nn.Module | None:
        outcome = kind(module)
        if outcome is None:
            return None
        if outcome == "same":
            return _copied(module, _FUSED[type(module)])
        own_eps = getattr(module, "eps", eps)
        return from_parameters(
            dict(module.named_parameters(recurse=False)),
            eps=eps if own_eps is None else float(own_eps),
            gate_gradient=getattr(module, "gate_gradient", gate_gradient),
        )

    if eps is not None:
        check_number("swap", "eps", eps, above=0, other="None")
    _check_lost("swap", model, allow, inplace, kind)
    return _replace("swap", model, inplace, change)


def to_reference(
    model: nn.Module,
    layout: str = "reference",
    *,
    allow: Collection[str] = (),
    inplace: bool = False,
) -> nn.Module:
    """Return a model with its fused modules replaced by eager ones; the way back of `swap`.

    The weights are carried over.

    layout: "reference" (`npu_kernels.interop.reference_layers`, the same parameters and state
    dict), or for NPU, RealNPU and NaiveNPU of one model "julia" or "pytorch" (`PublishedNPU`).
    allow: names of attributes that a layer may lose in a published layout, and of parameters that
    may lose their hooks or their sharing.
    inplace: false changes a copy, true the model itself, as in `swap`.

    Subclasses of the fused modules stay as they are. Returns the copy, or with `inplace` the model.
    Raises ValueError, before anything is changed, for other layouts, for a layer with hooks, for
    one that would lose what `allow` does not name, and for `num_models` in a published layout; and
    RuntimeError for a model that cannot be copied.
    """
    check_choice("to_reference", "layout", layout, ("reference", *LAYOUTS))

    def kind(module: nn.Module) -> str | None:
        if type(module) not in EAGER:
            return None
        if layout == "reference" or type(module) not in (NPU, RealNPU, NaiveNPU):
            return "same"
        count = getattr(module, "num_models", None)
        if count is not None:
            rule = f"layout {layout!r} has no num_models"
            raise ValueError(f"to_reference: {rule}, this layer has {count}")
        return "transposed" if LAYOUTS[layout][1] else "new"

    def change(module: nn.Module) -> nn.Module | None:
        outcome = kind(module)
        if outcome is None:
            return None
        if outcome == "same":
            return _copied(module, EAGER[type(module)])
        unit: Any = module
        eps, weights = unit.eps, (unit.weight_re, unit.weight_im, unit.gate)
        if eps is None and layout == "pytorch":
            eps = torch.finfo(unit.weight_re.dtype).eps
        return PublishedNPU(layout, *weights, eps=eps, gate_gradient=unit.gate_gradient)

    _check_lost("to_reference", model, allow, inplace, kind)
    return _replace("to_reference", model, inplace, change)


# ---- torch.export ----


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return a table for ``ExportedProgram.run_decompositions`` that leaves plain aten alone.

    C++ needs it, and `torch.onnx.export` of a program that is exported already. Of a module,
    `torch.onnx.export` records the formulas by itself.

    A program with the fused operators needs `import npu_kernels` where it runs; the decomposed one
    needs torch alone.
    """
    table: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions().items())
    for formulas, names in ((reference, ops.NAMES), (time_loop, ops.TIME_LOOPS)):
        table |= {getattr(ops, name): getattr(formulas, name) for name in names}
    return table


__all__ = ["decompositions", "from_parameters", "reference_layers", "swap", "to_reference"]
