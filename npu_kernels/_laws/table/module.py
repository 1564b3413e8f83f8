"""The layer of a law's products of powers."""

from __future__ import annotations

import torch
from torch import Tensor

from npu_kernels.layers import RealNPU


class Products(RealNPU):
    """A `RealNPU` whose products are 0 where an input with a positive exponent is 0.

    Without it ``eps**w`` would stand there, which is far from 0 if w is near 0.
    """

    def forward(self, x: Tensor) -> Tensor:
        zeros = (x == 0).to(x.dtype) @ (self.weight_re > 0).to(x.dtype).mT
        return torch.where(zeros > 0, 0.0, super().forward(x))
