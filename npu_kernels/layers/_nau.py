"""The module NAU."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from npu_kernels import functional
from npu_kernels.layers._base import ClippedLayer

__all__ = ["NAU"]


class NAU(ClippedLayer):
    """Neural Addition Unit, a layer: ``y = A x``, with ``A = min(max(weight, -1), 1)``.

    Shapes: ``x [..., I]`` to ``y [..., O]``; with `num_models` K, ``x [K, ..., I]`` or a shared
    ``[B, I]`` to ``[K, ..., O]``.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None: one, without a leading dimension.
        device, dtype: of the parameters.
        clip: clip the weight to [-1, 1], as "Neural Power Units" defines; the code of its authors
            does not clip. False: A is the weight.

    Parameters: ``weight [O, I]``, Glorot uniform.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definition 2; Madsen, Johansen,
    "Neural Arithmetic Units", ICLR 2020.

        >>> import torch
        >>> from npu_kernels import NAU
        >>> NAU(6, 4)(torch.rand(100, 6)).shape
        torch.Size([100, 4])
    """

    parameter_bounds: ClassVar[dict[str, tuple[float, float] | None]] = {"weight": (-1.0, 1.0)}

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., I]`` to ``[..., O]``; shapes with `num_models` are those of the class."""
        return functional.nau(x, self.weight, clip=self.clip)
