"""NPU, RealNPU and NaiveNPU.

Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definitions 3 and 4.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from npu_kernels import functional
from npu_kernels._common.checks import check_choice, check_number
from npu_kernels.layers._base import BaseLayer, Device, glorot_

__all__ = ["NPU", "NaiveNPU", "RealNPU"]


class PowerLayer(BaseLayer):
    """Options and initialisation of the three layers; a missing parameter is None."""

    parameter_bounds: ClassVar[dict[str, tuple[float, float] | None]] = {
        "weight_re": None,
        "weight_im": None,
        "gate": (0.0, 1.0),
    }
    weight_re: Tensor
    weight_im: Tensor | None
    gate: Tensor | None
    init_im: str | float = "zeros"
    gate_gradient: str = "clip"

    def _options(
        self, eps: float | None, init_im: str | float = "zeros", gate_gradient: str = "clip"
    ) -> None:
        unit = type(self).__name__
        self.eps = None if eps is None else check_number(unit, "eps", eps, above=0)
        check_choice(unit, "gate_gradient", gate_gradient, ("clip", "straight_through"))
        named = {"zeros": 0.0, "uniform": 1.0}
        scale: object = named.get(init_im, init_im) if isinstance(init_im, str) else init_im
        self._scale_im = check_number(unit, "init_im", scale, minimum=0, other="'zeros', 'uniform'")
        self.init_im = init_im if isinstance(init_im, str) else self._scale_im
        self.gate_gradient = gate_gradient

    def reset_parameters(self) -> None:
        """Sample the parameters again, in place: Glorot uniform, `init_im`, gate 0.5."""
        glorot_(self.weight_re)
        if self.weight_im is not None:
            glorot_(self.weight_im, self._scale_im)
        if self.gate is not None:
            nn.init.constant_(self.gate, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x [..., I]`` to ``[..., O]``; shapes with `num_models` are those of the class."""
        parameters: dict[str, Any] = self._parameters
        try:  # a parameter through the module's __getattr__ costs as much as a check of its shape
            weight_re, weight_im = parameters["weight_re"], parameters["weight_im"]
            gate = parameters["gate"]
        except KeyError:  # parametrized or pruned
            weight_re, weight_im, gate = self.weight_re, self.weight_im, self.gate
        eps, gate_gradient = self.eps, self.gate_gradient
        return functional.npu(x, weight_re, weight_im, gate, eps=eps, gate_gradient=gate_gradient)

    def extra_repr(self) -> str:
        options = "" if self.eps is None else f", eps={self.eps}"
        if self.init_im != "zeros":
            options += f", init_im={self.init_im!r}"
        if self.gate_gradient != "clip":
            options += f", gate_gradient={self.gate_gradient!r}"
        return super().extra_repr() + options


class NPU(PowerLayer):
    """Neural Power Unit, a layer with complex exponents and a relevance gate.

        r = g (|x| + eps) + (1 - g)      g = min(max(gate, 0), 1)
        k = g where x < 0, else 0
        y = exp(Wr log r - pi Wi k) cos(Wi log r + pi Wr k)

    Wr is weight_re, Wi is weight_im.

    Shapes: ``x [..., I]`` to ``y [..., O]``; with `num_models` K, ``x [K, ..., I]`` or a shared
    ``[B, I]`` to ``[K, ..., O]``.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None: one, without a leading dimension.
        device, dtype: of the parameters.
        init_im: initialisation of weight_im: "zeros" (as published), "uniform" (Glorot uniform, as
            weight_re) or a factor of Glorot's bound. Imaginary weights of 0 stay 0 as long as no
            input is negative.
        eps: added to ``|x|``; None for the machine epsilon of the dtype in which the layer computes
            (float32 for float16 and bfloat16), as published.
        gate_gradient: "clip" (no gradient for gates outside [0, 1], as published) or
            "straight_through" (such a gate gets the gradient of its clipped value).

    Parameters: ``weight_re [O, I]`` (Glorot uniform), ``weight_im [O, I]``, ``gate [I]`` (0.5);
    with `num_models` K, each has a leading dimension K, initialised independently.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definition 4.

        >>> import torch
        >>> from npu_kernels import NAU, NPU
        >>> model = torch.nn.Sequential(NPU(2, 6), NAU(6, 4))
        >>> model(torch.rand(100, 2)).shape
        torch.Size([100, 4])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_models: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        init_im: str | float = "zeros",
        eps: float | None = None,
        gate_gradient: str = "clip",
    ) -> None:
        super().__init__(in_features, out_features, num_models)
        self._options(eps, init_im, gate_gradient)
        self._create({"weight_re": "OI", "weight_im": "OI", "gate": "I"}, device, dtype)


class RealNPU(PowerLayer):
    """Real Neural Power Unit, a layer: the `NPU` with real weights, which are the exponents.

        r = g (|x| + eps) + (1 - g)      g = min(max(gate, 0), 1)
        k = g where x < 0, else 0
        y = exp(W log r) cos(pi W k)

    W is weight_re.

    Shapes: ``x [..., I]`` to ``y [..., O]``; with `num_models` K, ``x [K, ..., I]`` or a shared
    ``[B, I]`` to ``[K, ..., O]``.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None: one, without a leading dimension.
        device, dtype: of the parameters.
        eps: added to ``|x|``; None for the machine epsilon of the dtype in which the layer computes
            (float32 for float16 and bfloat16), as published.
        gate_gradient: "clip" (no gradient for gates outside [0, 1], as published) or
            "straight_through" (such a gate gets the gradient of its clipped value).

    Parameters: ``weight_re [O, I]`` (Glorot uniform), ``gate [I]`` (0.5); with `num_models`
    K, each has a leading dimension K.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definition 4.

        >>> import torch
        >>> from npu_kernels import RealNPU
        >>> RealNPU(2, 6)(torch.rand(100, 2)).shape
        torch.Size([100, 6])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_models: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        eps: float | None = None,
        gate_gradient: str = "clip",
    ) -> None:
        super().__init__(in_features, out_features, num_models)
        self._options(eps, gate_gradient=gate_gradient)
        self.register_parameter("weight_im", None)
        self._create({"weight_re": "OI", "gate": "I"}, device, dtype)


class NaiveNPU(PowerLayer):
    """Naive Neural Power Unit, a layer: the `NPU` without its gate.

        y = exp(Wr log r - pi Wi k) cos(Wi log r + pi Wr k)
        r = |x| + eps      k = 1 where x < 0, else 0

    Wr is weight_re, Wi is weight_im.

    Shapes: ``x [..., I]`` to ``y [..., O]``; with `num_models` K, ``x [K, ..., I]`` or a shared
    ``[B, I]`` to ``[K, ..., O]``.

    Args:
        in_features: number of inputs I.
        out_features: number of outputs O.
        num_models: K independent models in one call; None: one, without a leading dimension.
        device, dtype: of the parameters.
        init_im: initialisation of weight_im: "zeros" (as published), "uniform" (Glorot uniform, as
            weight_re) or a factor of Glorot's bound. Imaginary weights of 0 stay 0 as long as no
            input is negative.
        eps: added to ``|x|``; None for the machine epsilon of the dtype in which the layer computes
            (float32 for float16 and bfloat16), as published.

    Parameters: ``weight_re [O, I]`` (Glorot uniform), ``weight_im [O, I]``; with `num_models`
    K, each has a leading dimension K.

    Source: Heim, Pevny, Smidl, "Neural Power Units", NeurIPS 2020, definition 3.

        >>> import torch
        >>> from npu_kernels import NaiveNPU
        >>> NaiveNPU(2, 6)(torch.rand(100, 2)).shape
        torch.Size([100, 6])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_models: int | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
        init_im: str | float = "zeros",
        eps: float | None = None,
    ) -> None:
        super().__init__(in_features, out_features, num_models)
        self._options(eps, init_im)
        self.register_parameter("gate", None)
        self._create({"weight_re": "OI", "weight_im": "OI"}, device, dtype)
