"""The modules NMU and NMRU."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from npu_kernels import functional
from npu_kernels._common.checks import check_choice, check_flag, check_number
from npu_kernels.layers._base import BaseLayer, ClippedLayer, Device

__all__ = ["NMRU", "NMU"]


class NMU(ClippedLayer):
    """Neural Multiplication Unit, a layer: ``y_o = prod_i (M_oi x_i + 1 - M_oi)``.

    M is the clipped weight, ``min(max(weight, 0), 1)``, or with ``clip=False`` the weight itself.

    Shapes: ``x [..., I]`` to ``y [..., O]``; with `num_models` K, ``x [K, ..., I]`` or a shared
    ``[B, I]`` to ``[K, ..., O]``.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None: one, without a leading dimension.
        device, dtype: of the parameters.
        clip: clip the weight to [0, 1], as "Neural Power Units" defines.

    Parameters: ``weight [O, I]``, U(0, 1) as in the published code of "Neural Power Units" (Madsen
    and Johansen use a narrower interval around 1/2).

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definition 2; Madsen, Johansen,
    "Neural Arithmetic Units", ICLR 2020.

        >>> import torch
        >>> from npu_kernels import NMU
        >>> NMU(6, 4)(torch.rand(100, 6)).shape
        torch.Size([100, 4])
    """

    parameter_bounds: ClassVar[dict[str, tuple[float, float] | None]] = {"weight": (0.0, 1.0)}

    def reset_parameters(self) -> None:
        """Sample the weight again, in place: U(0, 1)."""
        nn.init.uniform_(self.weight, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., I]`` to ``[..., O]``; shapes with `num_models` are those of the class."""
        return functional.nmu(x, self.weight, clip=self.clip)


class NMRU(BaseLayer):
    """Neural Multiplicative Reciprocal Unit, a layer that also divides.

    It multiplies the entries of ``x' = [x, 1 / (x + eps)]``. The argument `sign` selects one of two
    formulas. The default, "product", is the `NMU` of x':

        "product"    y_o = prod_i (M_oi x'_i + 1 - M_oi)                  M = min(max(weight, 0), 1)
        "separate"   y_o = prod_i (M_oi |x'_i| + 1 - M_oi) cos(pi sum_i n_i weight_oi)
                     n_i = 1 where x'_i < 0, else 0

    Shapes: ``x [..., I]`` to ``y [..., O]``; with `num_models` K, ``x [K, ..., I]`` or a shared
    ``[B, I]`` to ``[K, ..., O]``.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None: one, without a leading dimension.
        device, dtype: of the parameters.
        clip: True: the forward clips the weight to [0, 1]. False: it uses the weight as it is; then
            call ``training.project_(model, weight_bound=w)`` after each training step. Any number w
            clamps the weight of an NMRU to [0, 1]; w itself is for NPU, RealNPU and NaiveNPU. The
            cosine of "separate" always uses the unclipped weight.
        sign: how the sign of y is computed: "product" of the signs of the factors, or "separate",
            by a cosine as in the RealNPU. In the authors' code the class NMRU is "product", but
            they computed the published results with "separate".
        eps: added to x in the reciprocals in training mode; float32's machine epsilon for every
            dtype, as published. In evaluation mode (``eval()``) reciprocals are ``1 / x``.

    Parameters: ``weight [O, 2 I]``, first the columns of x, then those of its reciprocals; U(1/4,
    3/4) as published.

    Source: Mistry, Farrahi, Hare, "Exploring the Learning Mechanisms of Neural Division Modules",
    TMLR 2022, and its code, github.com/bmistry4/nalm-division.

        >>> import torch
        >>> from npu_kernels import NMRU
        >>> NMRU(6, 4)(torch.rand(100, 6)).shape
        torch.Size([100, 4])
    """

    parameter_bounds: ClassVar[dict[str, tuple[float, float] | None]] = {"weight": (0.0, 1.0)}
    integer_weights: ClassVar[bool] = True
    weight: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_models: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        clip: bool = True,
        sign: str = "product",
        eps: float = torch.finfo(torch.float32).eps,
    ) -> None:
        super().__init__(in_features, out_features, num_models)
        self.eps = check_number("NMRU", "eps", eps, minimum=0)
        check_choice("NMRU", "sign", sign, ("product", "separate"))
        self.clip, self.sign = check_flag("NMRU", "clip", clip), sign
        self._create({"weight": "OJ"}, device, dtype)

    def reset_parameters(self) -> None:
        """Sample the weight again, in place: U(1/4, 3/4)."""
        nn.init.uniform_(self.weight, 0.25, 0.75)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., I]`` to ``[..., O]``; shapes with `num_models` are those of the class."""
        eps = self.eps if self.training else 0.0
        return functional.nmru(x, self.weight, eps=eps, clip=self.clip, sign=self.sign)

    def extra_repr(self) -> str:
        options = "" if self.clip else ", clip=False"
        options += "" if self.sign == "product" else f", sign={self.sign!r}"
        return super().extra_repr() + options
