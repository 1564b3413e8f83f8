"""Inputs of both signs: a fit of sizes and signs as separate inputs, and its law as one of inputs.

Between two whole exponents of a negative input, a power unit's cosine passes 0: training rarely
crosses such a barrier. The power of a size ``|x|`` has none, and that of a sign needs only 0 or 1.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.chains import units_of
from npu_kernels.layers import NPU, RealNPU


class Signs:
    """The signs of the inputs of a model's first power unit.

    Args:
        model: of any size; its other layers stay as they are.
        x: rows ``[N, I]``. `exist` says whether a number is negative, and the model takes signs.
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model, self.x, self.inputs = model, x, x.shape[1]
        units = units_of(model)
        takes_signs = bool(units) and isinstance(units[0][1], (NPU, RealNPU))
        self.negative = (x < 0).any(0).cpu()
        self.exist = takes_signs and bool(self.negative.any())

    def rows(self) -> Tensor:
        """Return the sizes of all inputs, and behind them the signs of those that have both."""
        signs = torch.where(self.x < 0, -1.0, 1.0).to(self.x)
        return torch.cat([self.x.abs(), signs[:, self.negative]], 1)

    def wide(self) -> nn.Module:
        """Return the model with as many more inputs."""
        model = copy.deepcopy(self.model)
        unit: Any = units_of(model)[0][1]
        for name, parameter in list(unit.named_parameters(recurse=False)):
            more = parameter.detach()[..., self.negative.to(parameter.device)]
            setattr(unit, name, nn.Parameter(torch.cat([parameter.detach(), more], -1)))
        unit.in_features += int(self.negative.sum())
        return model

    def merged(self, model: nn.Module) -> nn.Module | None:
        """Return a fitted wide model, without num_models, as one of the inputs.

        None where it is none: where the exponent of a sign is not that of the input, modulo 2.
        """
        model = copy.deepcopy(model)
        unit: Any = units_of(model)[0][1]
        gate, imaginary = unit.gate.detach(), getattr(unit, "weight_im", None)
        power = (unit.weight_re.detach() * gate)[:, : self.inputs][:, self.negative]
        of_sign = (unit.weight_re.detach() * gate)[:, self.inputs :]
        fits = (power == power.round()).all() and ((power - of_sign) % 2 == 0).all()
        is_real = imaginary is None or not (imaginary * gate).any()
        if not (fits and is_real and ((gate == 0) | (gate == 1)).all()):
            return None
        for name, parameter in list(unit.named_parameters(recurse=False)):
            inputs = parameter.detach()[..., : self.inputs].clone()
            setattr(unit, name, nn.Parameter(inputs, parameter.requires_grad))
        unit.in_features = self.inputs
        return model
