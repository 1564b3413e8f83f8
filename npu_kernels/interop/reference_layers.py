"""Eager modules with the parameters of the fused modules, and with published layouts.

Names, arguments, checks and state dicts are the same as in `npu_kernels.layers`; the modules
compute with the formulas of `npu_kernels.reference`, on any device. `PublishedNPU` has the
parameters of published code, to convert weights for that code.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function

from npu_kernels import layers, reference
from npu_kernels._common.checks import check_choice
from npu_kernels._operators import ops
from npu_kernels._operators.operands import call, stands_in
from npu_kernels.layers._chains import note_methods

__all__ = [
    "NAC", "NALU", "NAU", "NMRU", "NMU", "NPU", "NaiveNPU", "PublishedNPU", "RealNPU", "iNALU",
]  # fmt: skip

# layout -> its names of weight_re, weight_im and gate, and whether its weights are [I, O]
LAYOUTS: dict[str, tuple[tuple[str, str, str], bool]] = {
    "julia": (("Re", "Im", "g"), False),
    "pytorch": (("W_real", "W_im", "g"), True),
}


def _by_formula(layer: str, x: Tensor, weights: Sequence[Tensor | None], **options: Any) -> Tensor:
    """Compute a layer by its formula; `torch.fx` records it as one call."""
    if stands_in(x, weights[0]):
        operands = (x, *weights)
        result: Tensor = handle_torch_function(_by_formula, operands, layer, x, weights, **options)
        return result
    return call(layer, getattr(reference, layer), x, weights, **options)


def _power(layer: layers.PowerLayer, x: Tensor) -> Tensor:
    weights = [getattr(layer, name) for name in ops.WEIGHTS["npu"]]
    return _by_formula("npu", x, weights, eps=layer.eps, gate_gradient=layer.gate_gradient)


class NPU(layers.NPU):
    """`npu_kernels.NPU` in eager PyTorch: `reference.npu`."""

    def forward(self, x: Tensor) -> Tensor:
        return _power(self, x)


class RealNPU(layers.RealNPU):
    """`npu_kernels.RealNPU` in eager PyTorch: `reference.npu`."""

    def forward(self, x: Tensor) -> Tensor:
        return _power(self, x)


class NaiveNPU(layers.NaiveNPU):
    """`npu_kernels.NaiveNPU` in eager PyTorch: `reference.npu`."""

    def forward(self, x: Tensor) -> Tensor:
        return _power(self, x)


class NMU(layers.NMU):
    """`npu_kernels.NMU` in eager PyTorch: `reference.nmu`."""

    def forward(self, x: Tensor) -> Tensor:
        return _by_formula("nmu", x, (self.weight,), clip=self.clip)


class NMRU(layers.NMRU):
    """`npu_kernels.NMRU` in eager PyTorch: `reference.nmru`."""

    def forward(self, x: Tensor) -> Tensor:
        eps = self.eps if self.training else 0.0
        return _by_formula("nmru", x, (self.weight,), eps=eps, clip=self.clip, sign=self.sign)


class iNALU(layers.iNALU):
    """`npu_kernels.iNALU` in eager PyTorch: `reference.inalu`."""

    def forward(self, x: Tensor) -> Tensor:
        weights = [getattr(self, name) for name in ops.WEIGHTS["inalu"]]
        return _by_formula("inalu", x, weights, eps=self.eps, omega=self.omega)


class NAU(layers.NAU):
    """`npu_kernels.NAU` in eager PyTorch: `reference.nau`."""

    def forward(self, x: Tensor) -> Tensor:
        return _by_formula("nau", x, [self.weight], clip=self.clip)


class NAC(layers.NAC):
    """`npu_kernels.NAC` in eager PyTorch: `reference.nac`."""

    def forward(self, x: Tensor) -> Tensor:
        return _by_formula("nac", x, [self.weight, self.mask])


class NALU(layers.NALU):
    """`npu_kernels.NALU` in eager PyTorch: `reference.nalu`."""

    def forward(self, x: Tensor) -> Tensor:
        weights = [getattr(self, name) for name in ops.WEIGHTS["nalu"]]
        return _by_formula("nalu", x, weights, eps=self.eps)


_KINDS: tuple[type[nn.Module], ...] = (
    NPU, RealNPU, NaiveNPU, NAU, NMU, NMRU, NAC, NALU, iNALU,
)  # fmt: skip
EAGER: dict[Any, type[nn.Module]] = {getattr(layers, kind.__name__): kind for kind in _KINDS}

for _fused, _eager in EAGER.items():
    note_methods(_eager)
    # So that help() of an eager layer is complete by itself.
    _eager.__doc__ = f"{_eager.__doc__}\n\n{inspect.cleandoc(_fused.__doc__ or '')}"


class PublishedNPU(nn.Module):
    """Neural Power Unit, a layer, eager, with the parameters of published code (one model).

    Args:
        layout: "julia": ``Re, Im [O, I], g [I]``; "pytorch": ``W_real, W_im [I, O], g [I]``.
        weight_re, weight_im, gate: ``[O, I]``, ``[O, I]`` or None (RealNPU), ``[I]`` or None
            (NaiveNPU).
        eps: added to ``|x|``. The Julia package uses the machine epsilon of the dtype (None), the
            PyTorch code float32's machine epsilon for any dtype. float16 and bfloat16 are computed
            in float32, with its epsilon.
        gate_gradient: "clip" or "straight_through" (the Julia package from 1.0.3).
    """

    def __init__(
        self,
        layout: str,
        weight_re: nn.Parameter,
        weight_im: nn.Parameter | None = None,
        gate: nn.Parameter | None = None,
        *,
        eps: float | None = None,
        gate_gradient: str = "clip",
    ) -> None:
        super().__init__()
        check_choice("PublishedNPU", "layout", layout, LAYOUTS)
        self.layout, self.gate_gradient = layout, gate_gradient
        self.eps = torch.finfo(torch.float32).eps if eps is None and layout == "pytorch" else eps
        keys, transposed = LAYOUTS[layout]
        for key, tensor in zip(keys, (weight_re, weight_im, gate), strict=True):
            if tensor is not None and transposed and tensor.dim() == 2:
                tensor = nn.Parameter(tensor.detach().t().contiguous(), tensor.requires_grad)
            if tensor is not None:
                self.register_parameter(key, tensor)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., I]`` to ``[..., O]``."""
        names, transposed = LAYOUTS[self.layout]
        weight_re: Tensor = getattr(self, names[0])
        weight_im, gate = (getattr(self, name, None) for name in names[1:])
        if transposed:
            weight_re, weight_im = weight_re.t(), None if weight_im is None else weight_im.t()
        weights, eps = (weight_re, weight_im, gate), self.eps
        return _by_formula("npu", x, weights, eps=eps, gate_gradient=self.gate_gradient)

    def extra_repr(self) -> str:
        return f"layout={self.layout!r}, eps={self.eps}"
