"""Neural Power Unit, a layer: other people's layers into ours and back, and our operators into plain torch ones.

`swap` replaces the eager layers of a model by the fused modules, `to_reference` goes back, with the weights carried
over. Eager layers of other code are known by the names and shapes of their parameters, never by their class:

==========  ==============================  ==============================================================
layout      parameters                      what differs from ours
==========  ==============================  ==============================================================
reference   ours                            nothing (`npu_kernels.reference_layers`)
julia       ``Re, Im [O, I], g [I]``        eps: machine epsilon of the dtype, as ours. Gate: clipped as ours; from
                                            NeuralArithmetic.jl 1.0.3 with a straight-through gradient: say
                                            ``gate_gradient="straight_through"``. Up to 1.0.2 the gradient at a gate of
                                            exactly 0 is 0, where ours passes it.
pytorch     ``W_real, W_im [I, O], g [I]``  eps: its module's attribute ``eps``, float32's epsilon in every dtype. Gate:
                                            ``torch.clamp``, as ours. Clipping weights or gates in place after a step
                                            belongs to the training loop: `training.project_`.
==========  ==============================  ==============================================================

In both, without ``Im`` or ``W_im`` it is a RealNPU, without ``g`` a NaiveNPU.

Build the optimizer after the swap: parameters may be new ones.

    >>> import torch
    >>> from npu_kernels import interop, reference_layers
    >>> model = interop.swap(torch.nn.Sequential(reference_layers.RealNPU(2, 6)))
    >>> type(model[0]).__module__
    'npu_kernels.layers.npu'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import ops, reference, reference_layers, reference_ode
from npu_kernels.layers import NPU, NaiveNPU, RealNPU, Unit
from npu_kernels.reference_layers import EAGER, LAYOUTS, PublishedNPU

_FUSED = {eager: fused for fused, eager in EAGER.items()}


def _layout_of(names: set[str]) -> str | None:
    for layout, (own, _) in LAYOUTS.items():
        if own[0] in names and len(names) > 1 and names <= set(own):
            return layout
    return None


def _copied(source: nn.Module, target: type[nn.Module]) -> nn.Module:
    """The same module as another class with the same attributes: parameters, buffers, mode and options are shared."""
    result = target.__new__(target)
    result.__dict__.update(source.__dict__)
    # Registers of its own, so that what is added to one is not added to the other.
    for name in ("_parameters", "_buffers", "_modules"):
        result.__dict__[name] = dict(source.__dict__[name])
    return result


def from_parameters(
    parameters: Mapping[str, Any], *, eps: float | None = None, gate_gradient: str = "clip", layout: str | None = None
) -> Unit:
    """A fused layer from arrays or tensors by their published names, ``{"Re": ..., "Im": ..., "g": ...}``.

    Args:
        parameters: of one layer, in the layout "julia" or "pytorch" (see this module). A `torch.nn.Parameter` that
            needs no transposition stays the same object.
        eps: added to ``|x|``; None for the machine epsilon of the dtype.
        gate_gradient: "clip" or "straight_through".
        layout: None to tell it by the names.

    Returns a `NPU`, `RealNPU` or `NaiveNPU`. Raises ValueError for names or shapes of no layout.
    """
    layout = layout or _layout_of(set(parameters))
    if layout not in LAYOUTS:
        raise ValueError(f"from_parameters: no layout has the parameters {sorted(parameters)}")
    names, transposed = LAYOUTS[layout]
    found: list[nn.Parameter | None] = []
    for name in names:
        value = parameters.get(name)
        if value is None:
            found.append(None)
            continue
        tensor = value if isinstance(value, Tensor) else torch.tensor(value)
        if transposed and tensor.dim() == 2:
            tensor = nn.Parameter(tensor.detach().t().contiguous(), requires_grad=tensor.requires_grad)
        found.append(tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.detach().clone()))
    weight_re, weight_im, gate = found
    if weight_re is None:
        raise ValueError(f"from_parameters: layout {layout!r} needs {names[0]}, got {sorted(parameters)}")
    shape = tuple(weight_re.shape)
    if (
        len(shape) != 2
        or (weight_im is not None and weight_im.shape != shape)
        or (gate is not None and tuple(gate.shape) != (shape[1],))
    ):
        shapes = {name: tuple(torch.as_tensor(value).shape) for name, value in parameters.items()}
        raise ValueError(f"from_parameters: shapes do not fit layout {layout!r}: {shapes}")
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


def _recognised(module: nn.Module) -> bool:
    names = {name for name, _ in module.named_parameters(recurse=False)}
    layout = _layout_of(names)
    if layout is None or any(True for _ in module.children()):
        return False
    own, transposed = LAYOUTS[layout]
    weight = getattr(module, own[0])
    if weight.dim() != 2:
        return False
    inputs, outputs = weight.shape if transposed else tuple(weight.shape)[::-1]
    # Other code has the same names with other shapes and another formula; that stays as it is.
    stated = (getattr(module, "in_features", inputs), getattr(module, "out_features", outputs))
    other, gate = getattr(module, own[1], None), getattr(module, own[2], None)
    return (
        stated == (inputs, outputs)
        and (other is None or other.shape == weight.shape)
        and (gate is None or gate.shape == (inputs,))
    )


def _check_plain(module: nn.Module) -> None:
    """Nothing is lost in silence: what a new module would not have is an error."""
    state = module.__dict__
    hooks = [name for name in state if name.endswith(("_hooks", "_pre_hooks")) and state[name]]
    hooks = [name for name in hooks if "state_dict" not in name]
    if hooks:
        raise ValueError(
            f"{type(module).__name__} has hooks ({', '.join(hooks)}); remove them first and add them after"
        )


def _replace(model: nn.Module, change: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Change modules in place, a shared one once; returns the model, or its replacement."""
    memo: dict[nn.Module, nn.Module] = {}

    def visit(module: nn.Module) -> nn.Module:
        if module not in memo:
            memo[module] = module  # for cycles
            replacement = change(module)
            if replacement is not None:
                memo[module] = replacement.train(module.training)
            else:
                for name, child in list(module._modules.items()):
                    if child is not None:
                        module._modules[name] = visit(child)
        return memo[module]

    return visit(model)


def swap(model: nn.Module, *, eps: float | None = None, gate_gradient: str = "clip") -> nn.Module:
    """Replace the eager layers of a model by the fused modules, in place, with their weights.

    Args:
        model: any module; if it is itself such a layer the result is the new module.
        eps: for layers that have no attribute ``eps``: None for the machine epsilon of the dtype.
        gate_gradient: of the replaced published layers, "clip" or "straight_through".

    Returns the model. Weights ``[I, O]`` become new parameters, others stay the same objects: build the optimizer
    afterwards. Layers that fit no layout, and pruned or parametrized ones, stay as they are. Raises ValueError for a
    layer with hooks.
    """

    def change(module: nn.Module) -> nn.Module | None:
        if type(module) in _FUSED:
            _check_plain(module)
            return _copied(module, _FUSED[type(module)])
        if isinstance(module, Unit) or not _recognised(module):
            return None
        _check_plain(module)
        own_eps = getattr(module, "eps", eps)
        return from_parameters(
            dict(module.named_parameters(recurse=False)),
            eps=eps if own_eps is None else float(own_eps),
            gate_gradient=getattr(module, "gate_gradient", gate_gradient),
        )

    return _replace(model, change)


def to_reference(model: nn.Module, layout: str = "reference") -> nn.Module:
    """Replace the fused modules of a model by eager ones, in place, with their weights; the way back of `swap`.

    layout: "reference" (`npu_kernels.reference_layers`, the same parameters and state dict), or for NPU, RealNPU and
    NaiveNPU of one model "julia" or "pytorch" (`PublishedNPU`). Returns the model. Raises ValueError for others,
    for a layer with hooks, and for `num_models` in a published layout.
    """
    if layout != "reference" and layout not in LAYOUTS:
        raise ValueError(f"to_reference: layout must be 'reference', 'julia' or 'pytorch', got {layout!r}")

    def change(module: nn.Module) -> nn.Module | None:
        kind = type(module)
        if kind not in EAGER:
            return None
        _check_plain(module)
        if layout == "reference" or kind not in (NPU, RealNPU, NaiveNPU):
            return _copied(module, EAGER[kind])
        unit: Any = module
        if unit.num_models is not None:
            raise ValueError(f"to_reference: layout {layout!r} has no num_models, this layer has {unit.num_models}")
        eps = torch.finfo(unit.weight_re.dtype).eps if unit.eps is None and layout == "pytorch" else unit.eps
        return PublishedNPU(
            layout, unit.weight_re, unit.weight_im, unit.gate, eps=eps, gate_gradient=unit.gate_gradient
        )

    return _replace(model, change)


# ---- torch.export ---------------------------------------------------------------------------------------------------


def decompositions() -> dict[Any, Callable[..., Any]]:
    """A table for ``ExportedProgram.run_decompositions`` that leaves nothing but plain aten, for ONNX and for C++.

    A program with the fused operators needs `import npu_kernels` where it runs; the decomposed one needs torch alone.
    """
    table: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions().items())
    for name in ops.NAMES:
        table[getattr(ops, name)] = getattr(reference, name)
    for name in ops.TIME_LOOPS:
        table[getattr(ops, name)] = getattr(reference_ode, name)
    return table


__all__ = ["decompositions", "from_parameters", "reference_layers", "swap", "to_reference"]
