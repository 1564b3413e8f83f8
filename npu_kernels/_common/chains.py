"""The layers that a model calls in turn, and the number of models that its units have."""

from __future__ import annotations

from torch import nn

from npu_kernels.layers import Unit

# The methods by which a Sequential calls its parts; a class with others of its own is one layer.
_CALLS = ("forward", "__call__", "_call_impl", "__iter__")


def chain(model: nn.Module, path: str = "") -> list[tuple[str, nn.Module]]:
    """Return the paths and layers of a model in the order in which they are called.

    The model itself, whose path is "", where it is no Sequential.
    """
    kind = type(model)
    if not issubclass(kind, nn.Sequential) or (
        kind is not nn.Sequential
        and any(getattr(kind, name) is not getattr(nn.Sequential, name) for name in _CALLS)
    ):
        return [(path, model)]
    layers: list[tuple[str, nn.Module]] = []
    for name, part in model._modules.items():
        if part is not None:
            layers += chain(part, f"{path}.{name}" if path else name)
    return layers


def units_of(model: nn.Module) -> list[tuple[str, Unit]]:
    """Return the paths and units of a chain of different units and Identities; [] for others."""
    layers = [(path, layer) for path, layer in chain(model) if not isinstance(layer, nn.Identity)]
    units = [(path, layer) for path, layer in layers if isinstance(layer, Unit)]
    return units if len(layers) == len({id(unit) for _, unit in units}) else []


def num_models_of(function: str, model: nn.Module) -> int | None:
    """Return the num_models of a model's units, None for none; ValueError for several."""
    counts = {unit.num_models for unit in model.modules() if isinstance(unit, Unit)}
    if len(counts) > 1:
        rule, got = "the units of one model must have one num_models", sorted(counts, key=str)
        raise ValueError(f"{function}: {rule}, got {got}")
    return counts.pop() if counts else None
