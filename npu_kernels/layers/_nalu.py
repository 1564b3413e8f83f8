"""The modules NAC, NALU and iNALU."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from npu_kernels import functional
from npu_kernels._common.checks import check_flag, check_number
from npu_kernels.layers._base import BaseLayer, Device, glorot_

__all__ = ["NAC", "NALU", "iNALU"]


class NAC(BaseLayer):
    """Neural Accumulator, a layer, the additive path of the NALU.

        y = (tanh(weight) * sigmoid(mask)) x

    Shapes: ``x [..., I]`` to ``y [..., O]``; with `num_models` K, ``x [K, ..., I]`` or a shared
    ``[B, I]`` to ``[K, ..., O]``.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None: one, without a leading dimension.
        device, dtype: of the parameters.

    Parameters: ``weight, mask [O, I]``, Glorot uniform.

    Source: Trask et al., "Neural Arithmetic Logic Units", NeurIPS 2018; equation 1 of "Neural Power
    Units".

        >>> import torch
        >>> from npu_kernels import NAC
        >>> NAC(6, 4)(torch.rand(100, 6)).shape
        torch.Size([100, 4])
    """

    weight: Tensor
    mask: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_models: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, num_models)
        self._create({"weight": "OI", "mask": "OI"}, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., I]`` to ``[..., O]``; shapes with `num_models` are those of the class."""
        return functional.nac(x, self.weight, self.mask)


class NALU(BaseLayer):
    """Neural Arithmetic Logic Unit, a layer.

        a = nac(x)      m = exp(nac(log(|x| + eps)))      g = sigmoid(gate_weight x + gate_bias)
        y = g a + (1 - g) m

    ``nac(v) = (tanh(weight) * sigmoid(mask)) v``, as in `NAC`.

    Shapes: ``x [..., I]`` to ``y [..., O]``; with `num_models` K, ``x [K, ..., I]`` or a shared
    ``[B, I]`` to ``[K, ..., O]``.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None: one, without a leading dimension.
        device, dtype: of the parameters. The published code computes this layer in float64.
        bias: a bias in the gate. "Neural Power Units" has none (the default); the code of its
            authors has one.
        eps: added to ``|x|``, 1e-8 as published.

    Parameters: ``weight, mask, gate_weight [O, I]``, Glorot uniform; with `bias` ``gate_bias [O]``,
    U(-b, b) with ``b = sqrt(6 / (1 + O))``, as in the published code (Glorot).

    Source: Trask et al., "Neural Arithmetic Logic Units", NeurIPS 2018; definition 1 of "Neural
    Power Units".

        >>> import torch
        >>> from npu_kernels import NALU
        >>> NALU(6, 4)(torch.rand(100, 6)).shape
        torch.Size([100, 4])
    """

    weight: Tensor
    mask: Tensor
    gate_weight: Tensor
    gate_bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_models: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        bias: bool = False,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(in_features, out_features, num_models)
        self.eps = check_number("NALU", "eps", eps, above=0)
        shapes = {"weight": "OI", "mask": "OI", "gate_weight": "OI"}
        if check_flag("NALU", "bias", bias):
            shapes["gate_bias"] = "O"
        else:
            self.register_parameter("gate_bias", None)
        self._create(shapes, device, dtype)

    def reset_parameters(self) -> None:
        """Sample the parameters again, in place: Glorot uniform."""
        for matrix in (self.weight, self.mask, self.gate_weight):
            glorot_(matrix)
        if self.gate_bias is not None:
            bound = math.sqrt(6 / (1 + self.out_features))
            nn.init.uniform_(self.gate_bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., I]`` to ``[..., O]``; shapes with `num_models` are those of the class."""
        return functional.nalu(
            x, self.weight, self.mask, self.gate_weight, self.gate_bias, eps=self.eps
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bias={self.gate_bias is not None}, eps={self.eps}"


class iNALU(BaseLayer):
    """Improved Neural Arithmetic Logic Unit, a layer.

        a = (tanh(weight_add) * sigmoid(mask_add)) x
        W = tanh(weight_mul) * sigmoid(mask_mul)
        m = exp(min(W log(max(|x|, eps)), omega))
        s_o = prod_i (sign(x_i) |W_oi| + 1 - |W_oi|)   g = sigmoid(gate_weight x)
        y = g a + (1 - g) m s

    a is the output of a `NAC`.

    Shapes: ``x [..., I]`` to ``y [..., O]``; with `num_models` K, ``x [K, ..., I]`` or a shared
    ``[B, I]`` to ``[K, ..., O]``.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None: one, without a leading dimension.
        device, dtype: of the parameters.
        eps: the smallest ``|x|`` in the logarithm, 1e-7 as published.
        omega: largest argument of exp, 20 as published.

    Parameters: ``weight_add, mask_add, weight_mul, mask_mul, gate_weight [O, I]``, Glorot uniform.

    The weight and gradient clipping, the regulariser and the re-initialisation of the original are
    not part of the layer; the authors of "Neural Power Units" ran it without them.

    Source: Schloer, Ring, Hotho, "iNALU: Improved Neural Arithmetic Logic Unit", Frontiers in AI
    2020.

        >>> import torch
        >>> from npu_kernels import iNALU
        >>> iNALU(6, 4)(torch.rand(100, 6)).shape
        torch.Size([100, 4])
    """

    weight_add: Tensor
    mask_add: Tensor
    weight_mul: Tensor
    mask_mul: Tensor
    gate_weight: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_models: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        eps: float = 1e-7,
        omega: float = 20.0,
    ) -> None:
        super().__init__(in_features, out_features, num_models)
        self.eps = check_number("iNALU", "eps", eps, above=0)
        self.omega = check_number("iNALU", "omega", omega, above=0)
        names = ("weight_add", "mask_add", "weight_mul", "mask_mul", "gate_weight")
        self._create(dict.fromkeys(names, "OI"), device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., I]`` to ``[..., O]``; shapes with `num_models` are those of the class."""
        return functional.inalu(
            x,
            self.weight_add,
            self.mask_add,
            self.weight_mul,
            self.mask_mul,
            self.gate_weight,
            eps=self.eps,
            omega=self.omega,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, eps={self.eps}, omega={self.omega}"
