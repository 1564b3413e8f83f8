"""A Sequential as a list of layers, its parameters in a formula, and weights as fractions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_denominator, check_floating, check_module, is_whole
from npu_kernels.layers import NAC, NALU, NAU, NMRU, NMU, NPU, BaseLayer, NaiveNPU, RealNPU, iNALU
from npu_kernels.layers._chains import chain, full_name, replaced_method

# From this size on the numbers of float64 are at least 1/128 apart: too far for fractions.
FRACTION_LIMIT = 2.0**45


@torch.no_grad()
def as_fraction(weights: Tensor, max_denominator: int = 12) -> tuple[Tensor, Tensor]:
    """The nearest fraction of every weight, in lowest terms: ``(numerator, denominator)``.

    Both are integers in float64. Of two equally near fractions, the result has the smaller
    denominator. inf and nan keep their value, over 1. Weights of at least 2^45 become the nearest
    integer, because float64 has few or no fractions of that size.

    Args:
        weights: floating-point tensor of any shape.
        max_denominator: maximum denominator, from 1 (integers) to 1000.

    Raises TypeError unless weights is a floating-point tensor, ValueError for an invalid
    max_denominator.

        >>> import torch
        >>> from npu_kernels.formula import as_fraction
        >>> as_fraction(torch.tensor([0.3334, -0.5, 2.0]), 3)
        (tensor([ 1., -1.,  2.], dtype=torch.float64), tensor([3., 2., 1.], dtype=torch.float64))
    """
    check_floating("as_fraction", "weights", weights)
    max_denominator = check_denominator("as_fraction", "max_denominator", max_denominator)
    exact = weights.detach().double()
    numerator, denominator = exact.round(), torch.ones_like(exact)
    error = (exact - numerator).abs()
    # Smaller denominators come first, so the result is in lowest terms.
    for q in range(2, max_denominator + 1):
        p = (exact * q).round()
        distance = (exact - p / q).abs()
        better = (distance < error) & (exact.abs() < FRACTION_LIMIT)
        numerator, error = torch.where(better, p, numerator), torch.where(better, distance, error)
        denominator = denominator.masked_fill(better, q)
    return numerator + 0.0, denominator  # no -0


def nearest_fraction(weights: Tensor, max_denominator: int = 12) -> Tensor:
    """Return each weight's nearest fraction, as a new tensor without gradient.

    Args:
        weights: floating-point tensor.
        max_denominator: maximum denominator, from 1 to 1000.

    Returns a tensor of the same shape, dtype and device. Raises TypeError unless weights is a
    floating-point tensor, ValueError for an invalid denominator.

        >>> import torch
        >>> from npu_kernels.formula import nearest_fraction
        >>> nearest_fraction(torch.tensor([0.3334, -0.499, 1.98]), 2)
        tensor([ 0.5000, -0.5000,  2.0000])
    """
    numerator, denominator = as_fraction(weights, max_denominator)
    return (numerator / denominator).to(weights.dtype)


# ---- models --------------------------------------------------------------------------------------
#
# A Sequential as a list of layers, one model of a batch, and the parameters in a formula.

POWER_UNITS = (NPU, RealNPU, NaiveNPU)
Layer = BaseLayer | nn.Linear
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
    sizes = {layer.num_models for layer in layers.values() if isinstance(layer, BaseLayer)}
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
    raise ValueError(f"{function}: model_index must be {rule}, got {model!r}")


def value(layer: Layer, name: str, model: int | None) -> Tensor | None:
    """Return a layer's parameter for one model, detached; None where it has none of this name."""
    tensor: Tensor | None = getattr(layer, name, None)
    original = layer._parameters.get(f"{name}_orig")
    if original is not None:  # the attribute of a pruned layer dates from its last forward pass
        tensor = original * layer.get_buffer(f"{name}_mask")
    if tensor is None:
        return None
    if hasattr(tensor, "full_tensor"):  # a DTensor, of which each rank has a part
        tensor = tensor.full_tensor()
    if isinstance(layer, BaseLayer) and layer.num_models is not None and model is not None:
        tensor = tensor[model]
    return tensor.detach()


def epsilon(layer: Layer) -> float:
    """Return what a unit adds to ``|x|``: its `eps`, or the machine epsilon where it computes."""
    eps: float | None = getattr(layer, "eps", None)
    if eps is not None:
        return float(eps)
    dtype = next(layer.parameters()).dtype
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


def select(module: nn.Module, model_index: int | None = None) -> nn.Module:
    """Return one model of a batch of models, as a copy without the model dimension.

    Args:
        module: a layer of this package, a Linear, or a Sequential of these, nested or not.
        model_index: index of the model; None if the layers have no `num_models`, to copy the
            module.

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
    index = check_model("select", layers, model_index)
    for name, layer in layers.items():
        if hasattr(layer, "parametrizations"):
            raise ValueError(f"select: layer {name!r} must not be parametrized")
        if any(hasattr(parameter, "full_tensor") for parameter in layer.parameters()):
            advice = "load its full state dict into a model that is not"
            raise ValueError(f"select: layer {name!r} must not be sharded; {advice}")
        if any(key.endswith("_orig") for key, _ in layer.named_parameters(recurse=False)):
            advice = "torch.nn.utils.prune.remove makes it permanent"
            raise ValueError(f"select: layer {name!r} must not be pruned; {advice}")
    result = copy.deepcopy(module)
    for layer in layers_of("select", result, any_call=True).values():
        if isinstance(layer, BaseLayer) and layer.num_models is not None and index is not None:
            layer.num_models = None
            for name, parameter in list(layer.named_parameters(recurse=False)):
                tensor = parameter.detach()[index].clone()
                setattr(layer, name, nn.Parameter(tensor, parameter.requires_grad))
    return result


# ---- the parameters of layers that a formula contains ----

GATES: dict[Any, tuple[str, ...]] = dict.fromkeys(POWER_UNITS, ("gate",))
# The parameters of which a 0 removes something from the formula.
PRUNED: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys(POWER_UNITS, ("weight_re", "weight_im")),
    NAU: ("weight",),
    NMU: ("weight",),
    NMRU: ("weight",),
    NAC: ("weight",),
    NALU: ("weight", "gate_weight", "gate_bias"),
    iNALU: ("weight_add", "weight_mul", "gate_weight"),
    nn.Linear: ("weight", "bias"),
}
# The parameters that are in the formula unchanged. (A NAC's has tanh(weight) sigmoid(mask).)
ROUNDED = {kind: names for kind, names in PRUNED.items() if kind not in (NAC, NALU, iNALU)}


def names_of(layer: Any, table: Mapping[Any, tuple[str, ...]]) -> list[str]:
    """Return the parameters that a table names for a layer and that the layer has."""
    names = next((names for kind, names in table.items() if isinstance(layer, kind)), ())
    return [name for name in names if getattr(layer, name) is not None]


@torch.no_grad()
def clip_(module: nn.Module) -> None:
    """Clip gates, and weights that the layer clips, in place; the function stays the same."""
    for layer in layers_of("simplify", module).values():
        if isinstance(layer, POWER_UNITS) and layer.gate is not None:
            layer.gate.clamp_(0, 1)
        unclipped = getattr(layer, "sign", "product") != "product"  # an NMRU's cosine has no clip
        if isinstance(layer, (NAU, NMU, NMRU)) and layer.clip and not unclipped:
            low, high = layer.parameter_bounds["weight"] or (None, None)
            layer.weight.clamp_(low, high)


def _nonzero_columns(layer: Any) -> Tensor:
    """Return ``[I]``, true for the inputs with a weight that is not 0."""
    names = [name for name in names_of(layer, PRUNED) if "bias" not in name]
    # A reciprocal unit has two columns for each input: [O, 2 I].
    weights = [getattr(layer, name).bool().view(-1, layer.in_features) for name in names]
    return torch.cat(weights).any(0)


@torch.no_grad()
def without_effect(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Return the entries (parameter, index) that no output depends on.

    They are rows of units that no later layer reads, and columns behind closed gates.
    """
    entries: list[tuple[str, tuple[int, ...]]] = []
    used: Tensor | None = None  # true for the outputs of the layer that the next layer reads
    for path, layer in reversed(layers_of("simplify", module).items()):
        for name, parameter in layer.named_parameters(recurse=False):
            dead = torch.zeros_like(parameter, dtype=torch.bool)
            if used is not None and name != "gate":
                dead[~used] = True
            if name in ("weight_re", "weight_im") and getattr(layer, "gate", None) is not None:
                dead[:, layer.gate == 0] = True
            if name == "gate":
                dead = ~_nonzero_columns(layer)
            entries += [(full_name(path, name), tuple(index)) for index in dead.nonzero().tolist()]
        remainder = select(layer)
        if used is not None:
            for name, parameter in remainder.named_parameters():
                if name != "gate":
                    parameter[~used] = 0
        used = _nonzero_columns(remainder)
        if getattr(remainder, "gate", None) is not None:
            used = used & (remainder.gate != 0)
    return entries
