"""The module NAU."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from npu_kernels import functional
from npu_kernels.layers._base import Device, Unit, glorot_

__all__ = ["NAU"]


class NAU(Unit):
    """Neural Addition Unit, a layer: ``y = A x``, with ``A = min(max(weight, -1), 1)``.

    Shapes: ``x [..., I]`` to ``y [..., O]``; with `num_models` K, ``x [K, ..., I]`` or a shared
    ``[B, I]`` to ``[K, ..., O]``.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None: one, without a leading dimension.
        device, dtype: of the parameters.
        clip: clip the weight to [-1, 1] as the paper defines; false is what the paper's authors
            ran.

    Parameters: ``weight [O, I]``, Glorot uniform.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definition 2; Madsen, Johansen,
    "Neural Arithmetic Units", ICLR 2020.

        >>> import torch
        >>> from npu_kernels import NAU
        >>> NAU(6, 4)(torch.rand(100, 6)).shape
        torch.Size([100, 4])
    """

    intervals: ClassVar[dict[str, tuple[float, float] | None]] = {"weight": (-1.0, 1.0)}
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
        """Draw the weight anew, in place: Glorot uniform."""
        glorot_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., I]`` to ``[..., O]``; shapes with models are those of the class."""
        return functional.nau(x, self.weight, clip=self.clip)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.clip else ", clip=False")
