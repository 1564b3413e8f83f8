"""The layers that a module calls in turn, and K, the number of models in a batch of models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from torch import nn

from npu_kernels import layers
from npu_kernels.layers import BaseLayer, PowerLayer

# Layers whose forward does the same at every call: without random numbers, counters, branches.
STEADY: tuple[type[nn.Module], ...] = (
    *(getattr(layers, name) for name in vars(layers)["__all__"]),
    *(nn.Linear, nn.Identity, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
)
# The methods by which a call reaches forward, of each class as they are at import: somebody may
# replace them later. A Sequential calls its parts in the order of __iter__.
_CALLS = ("forward", "_call_impl", "__call__")
_methods_of, _methods_of_sequential = attrgetter(*_CALLS), attrgetter(*_CALLS, "__iter__")
_DEFINED: dict[type, tuple[Any, ...]] = {kind: _methods_of(kind) for kind in (*STEADY, PowerLayer)}
_DEFINED[nn.Sequential] = _methods_of_sequential(nn.Sequential)


def note_methods(kind: type[nn.Module]) -> None:
    """Note the present methods of a class as its own: it computes what its base classes do."""
    _DEFINED[kind] = _methods_of(kind)


def methods_of(kind: type[nn.Module]) -> Callable[[type[nn.Module]], tuple[Any, ...]]:
    """Return what gets the methods by which a call reaches forward of a class."""
    return _methods_of_sequential if issubclass(kind, nn.Sequential) else _methods_of


def replaced_method(part: nn.Module) -> str | None:
    """Return a method by which a call of a layer does something else than the layer's class says.

    It was replaced on the module, on its class, or by a derived class. None: no method was.
    The original methods are known of Sequential, of `STEADY`, and of classes that were noted.
    """
    attributes, kind = part.__dict__, type(part)
    if "forward" in attributes or "_call_impl" in attributes:
        return "forward" if "forward" in attributes else "_call_impl"
    defined = _DEFINED.get(kind)
    if defined is None:
        defined = next((_DEFINED[base] for base in kind.__mro__ if base in _DEFINED), None)
        if defined is None:
            return None
    methods = methods_of(kind)(kind)
    if methods == defined:
        return None
    names = zip((*_CALLS, "__iter__"), methods, defined, strict=False)
    return next(name for name, method, original in names if method is not original)


def full_name(path: str, name: str) -> str:
    """Return the name in a model of what a part, at this path, has by this name."""
    return f"{path}.{name}" if path else name


def chain(
    model: nn.Module, path: str = "", *, any_call: bool = False
) -> list[tuple[str, nn.Module]]:
    """Return the paths and layers of a model in the order in which they are called.

    A model that is no Sequential, or of which a method was replaced, is one layer with the path "".

    any_call: list also the layers of Sequentials of which a method was replaced.
    """
    if not isinstance(model, nn.Sequential) or not (any_call or replaced_method(model) is None):
        return [(path, model)]
    parts: list[tuple[str, nn.Module]] = []
    for name, part in model._modules.items():
        if isinstance(part, nn.Sequential):
            parts += chain(part, full_name(path, name), any_call=any_call)
        elif part is not None:
            parts.append((full_name(path, name), part))
    return parts


def units_of(model: nn.Module) -> list[tuple[str, BaseLayer]]:
    """Return the paths and units of a chain of different units and Identities; [] for others."""
    parts = [(path, layer) for path, layer in chain(model) if not isinstance(layer, nn.Identity)]
    units = [
        (path, layer)
        for path, layer in parts
        if isinstance(layer, BaseLayer) and replaced_method(layer) is None
    ]
    return units if len(parts) == len({id(unit) for _, unit in units}) else []


def num_models_of(function: str, modules: Iterable[nn.Module]) -> int | None:
    """Return the num_models of a model's units, None for none; ValueError for several.

    modules: all of the model, as `nn.Module.modules` gives them.
    """
    counts = {unit.num_models for unit in modules if isinstance(unit, BaseLayer)}
    if len(counts) > 1:
        rule, got = "the layers of one model must have one num_models", sorted(counts, key=str)
        raise ValueError(f"{function}: {rule}, got {got}")
    return counts.pop() if counts else None
