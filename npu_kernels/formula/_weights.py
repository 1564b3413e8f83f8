"""The parameters of layers that a formula contains. Needs torch only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels.formula._models import POWER_UNITS, layers_of, select
from npu_kernels.layers import NAC, NALU, NAU, NMRU, NMU, iNALU

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
            layer.weight.clamp_(*(layer.intervals["weight"] or (None, None)))


def _nonzero_columns(layer: Any) -> Tensor:
    """Return ``[I]``, true for the inputs with a weight that is not 0."""
    names = [name for name in names_of(layer, PRUNED) if "bias" not in name]
    # A reciprocal unit has two columns for each input: [O, 2 I].
    weights = [getattr(layer, name).bool().view(-1, layer.in_features) for name in names]
    return torch.cat(weights).any(0)


def _inputs_read(layer: Any) -> Tensor:
    """Return ``[I]``, true for the inputs that the layer's outputs depend on."""
    read = _nonzero_columns(layer)
    if getattr(layer, "gate", None) is not None:
        read = read & (layer.gate != 0)
    return read


@torch.no_grad()
def without_effect(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """Return the entries (parameter, index) that no output depends on.

    They are rows of units that no later layer reads, and columns behind closed gates.
    """
    entries: list[tuple[str, tuple[int, ...]]] = []
    used: Tensor | None = None  # true for the outputs of the layer that the next layer reads
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
            entries += [(prefix + name, tuple(index)) for index in dead.nonzero().tolist()]
        remainder = select(layer)
        if used is not None:
            for name, parameter in remainder.named_parameters():
                if name != "gate":
                    parameter[~used] = 0
        used = _inputs_read(remainder)
    return entries
