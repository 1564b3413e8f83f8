"""Which numbers a layer's parameters bring into the formula. Needs torch only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels.formula.models import POWER_UNITS, layers_of, select
from npu_kernels.layers import NAC, NALU, NAU, NMRU, NMU, iNALU

GATES: dict[Any, tuple[str, ...]] = dict.fromkeys(POWER_UNITS, ("gate",))
# The parameters whose 0 takes something out of the formula.
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
# Those that appear in the formula unchanged. (A NAC's do not: the formula has tanh(weight) sigmoid(mask).)
ROUNDED = {kind: names for kind, names in PRUNED.items() if kind not in (NAC, NALU, iNALU)}


def names_of(layer: Any, table: Mapping[Any, tuple[str, ...]]) -> list[str]:
    """The parameters that a table names for a layer, without those that the layer does not have."""
    names = next((names for kind, names in table.items() if isinstance(layer, kind)), ())
    return [name for name in names if getattr(layer, name) is not None]


@torch.no_grad()
def clip_(module: nn.Module) -> None:
    """Gates, and weights of layers that clip them, into their intervals, in place; the function stays the same."""
    for layer in layers_of("simplify", module).values():
        if isinstance(layer, POWER_UNITS) and layer.gate is not None:
            layer.gate.clamp_(0, 1)
        # The cosine of an NMRU with separate signs has the weight as it is: clipping it would change the function.
        elif isinstance(layer, (NAU, NMU, NMRU)) and layer.clip and getattr(layer, "sign", "product") == "product":
            layer.weight.clamp_(*(layer.intervals["weight"] or (None, None)))


def _nonzero_columns(layer: Any) -> Tensor:
    """For which inputs a layer has a weight that is not 0, ``[I]``."""
    weights: list[Tensor] = [getattr(layer, name) for name in names_of(layer, PRUNED) if "bias" not in name]
    # A reciprocal unit has two columns for each input: [O, 2 I].
    return torch.cat([weight.bool().view(-1, layer.in_features) for weight in weights]).any(0)


def _reads(layer: Any) -> Tensor:
    """Which inputs a layer's outputs depend on, ``[I]``."""
    read = _nonzero_columns(layer)
    if getattr(layer, "gate", None) is not None:
        read = read & (layer.gate != 0)
    return read


@torch.no_grad()
def without_effect(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Entries of parameters that no output depends on: rows of units that nobody reads, columns behind closed gates."""
    found: list[tuple[str, tuple[int, ...]]] = []
    used: Tensor | None = None  # which outputs of this layer are read
    for path, layer in reversed(layers_of("simplify", module).items()):
        prefix = f"{path}." if path else ""
        for name, parameter in layer.named_parameters(recurse=False):
            dead = torch.zeros_like(parameter, dtype=torch.bool)
            if used is not None and name != "gate":
                dead[~used] = True
            if name in ("weight_re", "weight_im") and getattr(layer, "gate", None) is not None:
                dead[:, layer.gate == 0] = True
            if name == "gate":
                dead = ~_nonzero_columns(layer)
            found += [(prefix + name, tuple(index)) for index in dead.nonzero().tolist()]
        one = select(layer)
        if used is not None:
            for name, parameter in one.named_parameters():
                if name != "gate":
                    parameter[~used] = 0
        used = _reads(one)
    return found
