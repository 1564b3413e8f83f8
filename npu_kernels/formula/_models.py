"""A Sequential as a list of layers, and one model out of a batch of models."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import Tensor, nn

from npu_kernels._common.chains import chain, replaced_method
from npu_kernels._common.checks import check_module, is_whole
from npu_kernels.layers import NAC, NALU, NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, Unit, iNALU

POWER_UNITS = (NPU, RealNPU, NaiveNPU)
Layer = Unit | nn.Linear
KINDS = (*POWER_UNITS, NAU, NMU, NMRU, NAC, NALU, iNALU, nn.Linear)


def layers_of(function: str, module: nn.Module, *, any_call: bool = False) -> dict[str, Layer]:
    """Return the layers in the order in which they are applied, by their names in the module.

    The name of the module itself is "". Raises TypeError for what is neither one of our layers, a
    Linear, an Identity, nor a Sequential of such modules; and, unless `any_call`, for one that is
    called in another way than its class says.
    """
    check_module(function, "module", module)
    layers: dict[str, Layer] = {}
    for path, part in chain(module, any_call=any_call):
        method = None if any_call else replaced_method(part)
        title, got = f"module {path!r}" if path else "module", type(part).__name__
        if method is not None:
            rule = f"must have the {method} of its class"
            raise TypeError(f"{function}: {title} {rule}, got {got} with another")
        if isinstance(part, KINDS):
            layers[path] = part
        elif not isinstance(part, nn.Identity):
            names = ", ".join(kind.__name__ for kind in KINDS)
            raise TypeError(f"{function}: {title} must be a Sequential of {names}, got {got}")
    if not layers:
        raise ValueError(f"{function}: module must have at least one layer, got {module}")
    for (name, layer), (next_name, next_layer) in pairwise(layers.items()):
        size = layer.out_features
        if size != next_layer.in_features:
            raise ValueError(
                f"{function}: {next_name!r} must have in_features {size} "
                f"(out_features of {name!r}), got {next_layer.in_features}"
            )
    return layers


def check_model(function: str, layers: dict[str, Layer], model: int | None) -> int | None:
    """Return the index of the model to read, at least 0; None where the layers hold a single model.

    Raises ValueError.
    """
    sizes = {layer.num_models for layer in layers.values() if isinstance(layer, Unit)}
    counts = sorted(size for size in sizes if size is not None)
    if len(counts) > 1:
        raise ValueError(f"{function}: the layers must have one num_models, got {counts}")
    if not counts:
        if model is None:
            return None
        rule = "None where no layer has num_models"
    else:
        (count,) = counts
        if is_whole(model) and -count <= model < count:
            return int(model) % count
        rule = f"an index into the {count} models"
    raise ValueError(f"{function}: model must be {rule}, got {model!r}")


def value(layer: Layer, name: str, model: int | None) -> Tensor | None:
    """Return a layer's parameter for one model, detached; None where it has none of this name."""
    tensor: Tensor | None = getattr(layer, name, None)
    original = layer._parameters.get(f"{name}_orig")
    if original is not None:  # the attribute of a pruned layer dates from its last forward pass
        tensor = original * layer.get_buffer(f"{name}_mask")
    if tensor is None:
        return None
    if isinstance(layer, Unit) and layer.num_models is not None and model is not None:
        tensor = tensor[model]
    return tensor.detach()


def epsilon(layer: Layer) -> float:
    """Return what a unit adds to ``|x|``: its `eps`, or the machine epsilon where it computes."""
    eps: float | None = getattr(layer, "eps", None)
    if eps is not None:
        return float(eps)
    dtype = next(layer.parameters()).dtype
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def select(module: nn.Module, model: int | None = None) -> nn.Module:
    """One model of a batch of models, as a separate module: a copy without the model dimension.

    Args:
        module: a layer of ours, a Linear, or a Sequential of these, nested or not.
        model: its index; None where the layers have no `num_models`, to copy the module as it is.

    Raises TypeError for other modules, ValueError for an index out of range or layers of different
    `num_models`.

        >>> import torch
        >>> from npu_kernels import NAU, RealNPU
        >>> from npu_kernels.formula import select
        >>> models = torch.nn.Sequential(RealNPU(2, 6, num_models=20), NAU(6, 1, num_models=20))
        >>> select(models, 7)(torch.rand(100, 2)).shape
        torch.Size([100, 1])
    """
    layers = layers_of("select", module, any_call=True)
    index = check_model("select", layers, model)
    for name, layer in layers.items():
        if hasattr(layer, "parametrizations"):
            raise ValueError(f"select: layer {name!r} must not be parametrized")
        if any(key.endswith("_orig") for key, _ in layer.named_parameters(recurse=False)):
            way = "torch.nn.utils.prune.remove makes it permanent"
            raise ValueError(f"select: layer {name!r} must not be pruned; {way}")
    result = copy.deepcopy(module)
    for layer in layers_of("select", result, any_call=True).values():
        if isinstance(layer, Unit) and layer.num_models is not None and index is not None:
            layer.num_models = None
            for name, parameter in list(layer.named_parameters(recurse=False)):
                tensor = parameter.detach()[index].clone()
                setattr(layer, name, nn.Parameter(tensor, parameter.requires_grad))
    return result
