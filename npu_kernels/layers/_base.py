"""The base of all modules: sizes and initialisation."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_flag, check_whole

Device = torch.device | str | int | None
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of parameters


def glorot_(parameter: Tensor, scale: float = 1.0) -> Tensor:
    """Fill ``[..., O, I]`` in place from U(-b, b), ``b = scale sqrt(6 / (I + O))``."""
    bound = scale * math.sqrt(6 / (parameter.shape[-1] + parameter.shape[-2]))
    return nn.init.uniform_(parameter, -bound, bound)


class BaseLayer(nn.Module):
    """Base of the modules of this package: their sizes, and the intervals of their parameters.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None for one model without a leading
            dimension.

    Raises ValueError unless sizes are integers of at least 1, and TypeError unless the dtype is
    float16, bfloat16, float32 or float64 and flags are True or False.
    """

    # What `training.project_` clamps: parameter -> its interval, None where the caller chooses the
    # bound.
    parameter_bounds: ClassVar[dict[str, tuple[float, float] | None]] = {}
    # Whether `training.regularizer` pulls its weights to integers.
    integer_weights: ClassVar[bool] = False

    def __init__(self, in_features: int, out_features: int, num_models: int | None = None) -> None:
        super().__init__()
        unit = type(self).__name__
        self.in_features = check_whole(unit, "in_features", in_features)
        self.out_features = check_whole(unit, "out_features", out_features)
        if num_models is not None:
            num_models = check_whole(unit, "num_models", num_models)
        self.num_models = num_models

    def _create(self, shapes: dict[str, str], device: Device, dtype: torch.dtype | None) -> None:
        """Register and draw parameters; shapes are in O, I and J for 2 I, and get K in front."""
        if dtype not in (None, *DTYPES):
            rule = f"one of {', '.join(map(str, DTYPES))}"
            raise TypeError(f"{type(self).__name__}: dtype must be {rule}, got {dtype!r}")
        sizes = {"O": self.out_features, "I": self.in_features, "J": 2 * self.in_features}
        models = [] if self.num_models is None else [self.num_models]
        for name, letters in shapes.items():
            shape = models + [sizes[letter] for letter in letters]
            parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sample the parameters again, in place: Glorot uniform."""
        for matrix in self.parameters(recurse=False):
            glorot_(matrix)

    def extra_repr(self) -> str:
        models = "" if self.num_models is None else f", num_models={self.num_models}"
        return f"in_features={self.in_features}, out_features={self.out_features}{models}"


class ClippedLayer(BaseLayer):
    """A unit of one weight ``[O, I]`` that `clip` bounds, and that training makes whole."""

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
    ) -> None:
        super().__init__(in_features, out_features, num_models)
        self.clip = check_flag(type(self).__name__, "clip", clip)
        self._create({"weight": "OI"}, device, dtype)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.clip else ", clip=False")
