"""Neural Multiplication Unit, a layer."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from npu_kernels import functional
from npu_kernels.layers.base import Device, Unit

__all__ = ["NMU"]


class NMU(Unit):
    """Neural Multiplication Unit, a layer: ``y_o = prod_i (M_oi x_i + 1 - M_oi)``, ``M = min(max(weight, 0), 1)``.

    Shapes: ``x [..., I]`` to ``y [..., O]``; with `num_models` K, ``x [K, ..., I]`` or a shared ``[B, I]`` to
    ``[K, ..., O]``.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None for one model without a leading dimension.
        device, dtype: of the parameters.
        clip: clip the weight to [0, 1] as the paper defines.

    Parameters: ``weight [O, I]``, U(0, 1) as in the published code of "Neural Power Units" (Madsen and Johansen start
    in a narrower interval around 1/2).

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definition 2; Madsen, Johansen, "Neural Arithmetic
    Units", ICLR 2020.

        >>> import torch
        >>> from npu_kernels import NMU
        >>> NMU(6, 4)(torch.rand(100, 6)).shape
        torch.Size([100, 4])
    """

    intervals: ClassVar[dict[str, tuple[float, float] | None]] = {"weight": (0.0, 1.0)}
    whole_weights: ClassVar[bool] = True
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
    ) -> None:
        super().__init__(in_features, out_features, num_models)
        self.clip = clip
        self._create({"weight": "OI"}, device, dtype)

    def reset_parameters(self) -> None:
        """Draw the weight anew, in place: U(0, 1)."""
        nn.init.uniform_(self.weight, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., I]`` (``[K, ..., I]`` or a shared ``[B, I]`` with models) to ``[..., O]`` (``[K, ..., O]``)."""
        return functional.nmu(x, self.weight, clip=self.clip)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.clip else ", clip=False")
