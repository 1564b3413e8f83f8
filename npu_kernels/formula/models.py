"""A Sequential as a list of layers, and one model out of a batch of models."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import Tensor, nn

from npu_kernels.checks import is_whole
from npu_kernels.layers import NAC, NALU, NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, Unit, iNALU

POWER_UNITS = (NPU, RealNPU, NaiveNPU)
Layer = Unit | nn.Linear
KNOWN = (*POWER_UNITS, NAU, NMU, NMRU, NAC, NALU, iNALU, nn.Linear)


def layers_of(function: str, module: nn.Module) -> dict[str, Layer]:
    """The layers in the order in which they are applied, by their names in the module ("" for the module itself).

    Raises TypeError for what is neither one of our layers, a Linear, an Identity, nor a Sequential of these.
    """
    found: dict[str, Layer] = {}

    def visit(name: str, part: nn.Module) -> None:
        if isinstance(part, nn.Sequential):
            for child, inner in part.named_children():
                visit(f"{name}.{child}" if name else child, inner)
        elif isinstance(part, KNOWN):
            found[name] = part
        elif not isinstance(part, nn.Identity):
            at = f" {name!r}" if name else ""
            names = ", ".join(kind.__name__ for kind in KNOWN)
            raise TypeError(f"{function}: module{at} must be a Sequential of {names}, got {type(part).__name__}")

    if not isinstance(module, nn.Module):
        raise TypeError(f"{function}: module must be a torch.nn.Module, got {type(module).__name__}")
    visit("", module)
    if not found:
        raise ValueError(f"{function}: module must have at least one layer, got {module}")
    sizes = list(found.items())
    for (before, one), (after, two) in pairwise(sizes):
        if one.out_features != two.in_features:
            raise ValueError(
                f"{function}: {after!r} must have in_features {one.out_features} (out_features of {before!r}), "
                f"got {two.in_features}"
            )
    return found


def check_model(function: str, layers: dict[str, Layer], model: int | None) -> int | None:
    """The index of the model to read, counted from 0; None where the layers hold a single one. Raises ValueError."""
    found = (layer.num_models for layer in layers.values() if isinstance(layer, Unit))
    counts = {count for count in found if count is not None}
    if len(counts) > 1:
        raise ValueError(f"{function}: the layers must have one num_models, got {sorted(counts)}")
    if not counts:
        if model is not None:
            raise ValueError(f"{function}: model must be None where no layer has num_models, got {model!r}")
        return None
    (count,) = counts
    if not is_whole(model) or not -count <= model < count:
        raise ValueError(f"{function}: model must be an index into the {count} models, got {model!r}")
    return int(model) % count


def value(layer: Layer, name: str, model: int | None) -> Tensor | None:
    """A layer's parameter for one model, detached; None where the layer has none of this name."""
    original = layer._parameters.get(f"{name}_orig")
    # The attribute of a pruned layer dates from its last forward pass.
    tensor = getattr(layer, name, None) if original is None else original * layer.get_buffer(f"{name}_mask")
    if tensor is None:
        return None
    if isinstance(layer, Unit) and layer.num_models is not None and model is not None:
        tensor = tensor[model]
    return tensor.detach()


def epsilon(layer: Layer) -> float:
    """What a unit adds to ``|x|``: its own, or the machine epsilon of the dtype that it computes in."""
    eps: float | None = getattr(layer, "eps", None)
    if eps is not None:
        return float(eps)
    dtype = next(layer.parameters()).dtype
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def select(module: nn.Module, model: int | None = None) -> nn.Module:
    """One model of a batch of models, as a separate module: a copy, without the leading model dimension.

    Args:
        module: a layer of ours, a Linear, or a Sequential of these, nested or not.
        model: its index; None where the layers have no `num_models`, to copy the module as it is.

    Raises TypeError for other modules, ValueError for an index out of range or layers of different `num_models`.

        >>> import torch
        >>> from npu_kernels import NAU, RealNPU
        >>> from npu_kernels.formula import select
        >>> models = torch.nn.Sequential(RealNPU(2, 6, num_models=20), NAU(6, 1, num_models=20))
        >>> select(models, 7)(torch.rand(100, 2)).shape
        torch.Size([100, 1])
    """
    layers = layers_of("select", module)
    index = check_model("select", layers, model)
    for name, layer in layers.items():
        if hasattr(layer, "parametrizations"):
            raise ValueError(f"select: layer {name!r} must not be parametrized")
        if any(parameter.endswith("_orig") for parameter, _ in layer.named_parameters(recurse=False)):
            raise ValueError(
                f"select: layer {name!r} must not be pruned; torch.nn.utils.prune.remove makes it permanent"
            )
    result = copy.deepcopy(module)
    for layer in layers_of("select", result).values():
        if isinstance(layer, Unit) and layer.num_models is not None and index is not None:
            layer.num_models = None
            for name, parameter in list(layer.named_parameters(recurse=False)):
                own = nn.Parameter(parameter.detach()[index].clone(), requires_grad=parameter.requires_grad)
                setattr(layer, name, own)
    return result
