"""Counts of floating-point operations, for `torch.utils.flop_counter`.

Importing this module registers a formula for both operators of each layer, so that
``FlopCounterMode`` counts them. `import npu_kernels` does not import it, because the counter is
slow to import. Import this module before you create a counter.

    >>> import torch, npu_kernels, npu_kernels.interop.flops
    >>> from torch.utils.flop_counter import FlopCounterMode
    >>> layer, x = npu_kernels.NPU(3, 2), torch.rand(100, 3)
    >>> with FlopCounterMode(display=False) as counter:
    ...     y = layer(x)
    >>> counter.get_total_flops()  # 4 products of 100 rows and 2 x 3 weights
    4800

The counts follow the layers' formulas, even if a kernel skips or repeats operations: 2 for each
row, output and input of each product of rows and weights, as torch counts a matmul. The product
over the inputs of an NMU, an NMRU or an iNALU counts as one such product. Elementwise operations,
such as logarithms, exponentials and cosines, are not counted.

=========================  ========  ===========================================================
products of rows, weights  forward   backward
=========================  ========  ===========================================================
NPU                        4         2 for x or gate, 2 for each weight (a gate alone: 1 of each 2)
RealNPU                    2         1 for x or gate, 2 for the weight (a gate alone: 1 of the 2)
NaiveNPU                   4         2 for x, 2 for each weight
NMU                        1         1 for x, 1 for the weight
NMRU, of 2 I inputs        1         1 for x, 1 for the weight; with separate signs one more
                                     forward and one more for the weight
NALU                       3         3 for x, 2 for weight or mask, 1 for gate_weight
iNALU                      4         3 for x, 1 for what adds, 2 for what multiplies, 1 for
                                     gate_weight
=========================  ========  ===========================================================

torch counts NAU and NAC, which use its matmul, and calls with the eager implementation. The fused
ODE solvers and training loops are operators without a formula: they are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from npu_kernels._operators import ops

__all__: list[str] = []


def _count(layer: ops.Layer, operands: tuple[Any, ...], options: Any, needed: set[str]) -> int:
    """Return the operations of the products that are needed, from the shapes of x and the weights.

    options: the values of the layer's options, in their order. needed: "y", or the operands whose
    gradients are computed.
    """
    x, *weights = operands
    named = dict(zip(layer.weights, weights, strict=True))
    present = {name for name, shape in named.items() if shape is not None}
    present |= {name for name, value in zip(layer.options, options, strict=False) if value is True}
    products: int = sum(
        not needed.isdisjoint(uses.split())
        for name, purposes in layer.products.items()
        for uses in purposes
        if name in present
    )
    sizes: list[int] = [x[-2], *weights[0]]  # rows, and a product's weights of all models
    return 2 * products * math.prod(sizes)


def _formulas(layer: ops.Layer) -> tuple[Callable[..., int], Callable[..., int]]:
    """Return the formulas of the forward and the backward operator, which torch calls by shapes."""
    names = "x", *layer.weights

    def forward(*arguments: Any, **_: Any) -> int:
        operands, rest = arguments[: layer.operands], arguments[layer.operands :]
        return _count(layer, operands, rest, {"y"})

    def backward(_: Any, *arguments: Any, **__: Any) -> int:
        operands, rest = arguments[: layer.operands], arguments[layer.operands :]
        needs = arguments[-1]
        needed = {name for bit, name in enumerate(names) if needs >> bit & 1}
        return _count(layer, operands, rest[len(layer.saved) :], needed)

    return forward, backward


for _layer in ops.LAYERS.values():
    for _name, _formula in zip(("forward", "backward"), _formulas(_layer), strict=True):
        _packet = getattr(torch.ops.npu_kernels, f"{_layer.name}_{_name}")
        register_flop_formula(_packet)(_formula)
