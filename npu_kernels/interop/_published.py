"""A power layer of other code: which of its parameters are which.

Public code has several names for the weights, stores them as ``[O, I]`` or ``[I, O]``, and adds
different numbers to ``|x|``. Names and shapes do not determine which. So the module's forward is
called with random weights and inputs, and its results are compared with the formula's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import reference
from npu_kernels._common.checks import check_floating, check_number
from npu_kernels._operators.autograd import HALVES

PUBLIC_NAMES = {
    "weight_re": ("weight_re", "Re", "W_real", "W_hat"),
    "weight_im": ("weight_im", "Im", "W_im", "W_imag", "W_i"),
    "gate": ("gate", "g", "G"),
}
_OURS = {name: ours for ours, names in PUBLIC_NAMES.items() for name in names}
EPS_NAMES = ("eps", "epsilon")  # names of the attribute
REGISTERS = ("_parameters", "_buffers", "_modules")

TRIAL_ROWS = 64
WEIGHT_SIZES = 0.03, 1.0, 3.0
TRIAL_DRAWS = 6 * len(WEIGHT_SIZES)  # each gate is below 0, within (0, 1) and above 1 twice a size
LARGE_WEIGHTS = 4  # of one output, on average; more would overflow
SMALLEST_X, LARGEST_X = 1e-3, 1e8
TRIAL_TOLERANCE = 1e-6  # of a result, for each unit of its exponent; eight roundings of float32
EPS_TOLERANCE = 1e-2


def names_of(module: nn.Module) -> dict[str, str] | None:
    """Return the module's name of each of our parameters, ``{"weight_re": "W_real", ...}``.

    None where other parameters are among them, and for a module with modules within.
    """
    names = [name for name, parameter in module._parameters.items() if parameter is not None]
    ours = {_OURS.get(name, ""): name for name in names}
    all_ours = "" not in ours and len(ours) == len(names) > 1 and "weight_re" in ours
    return ours if all_ours and not any(True for _ in module.children()) else None


def stated_eps(module: nn.Module) -> float | None:
    """Return the module's attribute for what it adds to ``|x|``; None where it has none."""
    eps = next((getattr(module, name) for name in EPS_NAMES if hasattr(module, name)), None)
    return None if eps is None else check_number("swap", "eps", float(eps), above=0)


class Trial:
    """Calls a module's forward with drawn weights and inputs, and compares it with the formula.

    Args:
        module: a module that `names_of` supports.
        names: from `names_of`.
        eps: what the formula adds to ``|x|``; None for the machine epsilon.
    """

    def __init__(self, module: nn.Module, names: dict[str, str], eps: float | None) -> None:
        self.module = module
        self.parameters: dict[str, Any] = {o: module._parameters[n] for o, n in names.items()}
        self.names = names
        weight: Tensor = self.parameters["weight_re"]
        check_floating("swap", names["weight_re"], weight)
        self.dtype = torch.float32 if weight.dtype in HALVES else weight.dtype
        self.device = torch.device("cpu") if weight.is_meta else weight.device
        self.eps = torch.finfo(self.dtype).eps if eps is None else eps
        self.generator = torch.Generator("cpu")

    def transposed(self) -> bool:
        """Whether the weights are ``[I, O]``; ValueError where the module is no power unit.

        Float64 tells more. A forward that cannot compute in it is called in the module's own dtype.
        """
        reasons: dict[bool, str] = {}
        for dtype in dict.fromkeys((torch.float64, self.dtype)):
            for transposed in (False, True):
                with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
                    reason = self._difference(transposed, dtype)
                if not reason:
                    return transposed
                reasons[transposed] = reason
        orders = (f"with weights {'[I, O]' if t else '[O, I]'} {r}" for t, r in reasons.items())
        raise ValueError(f"computes a different function: {'; '.join(orders)}")

    def check_eps(self, transposed: bool, said: str) -> None:
        """Raise ValueError where the module adds another number to ``|x|``.

        said: what says the number, "attribute" or "argument"; "" for the machine epsilon. If the
        module adds none, the number that is said counts.
        """
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            at_zero = self._at_zero(transposed, self.dtype)
        adds = 0 < at_zero < math.inf
        if abs(at_zero - self.eps) <= EPS_TOLERANCE * self.eps or (said and not adds):
            return
        advice = f"say eps={at_zero:.3g}" if adds else "say which eps it shall add"
        if said == "attribute":
            advice = f"make it by from_parameters, with eps={at_zero:.3g}"
        raise ValueError(
            f"computes x ** 1 as {at_zero:.3g} at x = 0, where the new layer, which adds eps to "
            f"|x|, gives {self.eps:.3g}; {advice}"
        )

    def _features(self, transposed: bool) -> tuple[int, int]:
        first, second = self.parameters["weight_re"].shape
        return (second, first) if transposed else (first, second)

    def _uniform(self, low: float, high: float, shape: Sequence[int]) -> Tensor:
        drawn = torch.rand(shape, dtype=torch.float64, generator=self.generator)
        return low + (high - low) * drawn

    def _signs(self, shape: Sequence[int]) -> Tensor:
        return self._uniform(-1, 1, shape).sign()

    def _at_zero(self, transposed: bool, dtype: torch.dtype) -> float:
        """Return what the module computes for ``x ** 1`` at x = 0: what it adds to ``|x|``."""
        outputs, inputs = self._features(transposed)
        weights = {
            ours: torch.zeros(outputs, inputs, dtype=dtype)
            for ours in self.parameters
            if ours != "gate"
        }
        weights["weight_re"][0, 0] = 1.0
        if "gate" in self.parameters:
            weights["gate"] = torch.ones(inputs, dtype=dtype)
        x = torch.ones(TRIAL_ROWS, inputs, dtype=dtype)
        x[:, 0] = 0.0
        return float(self._call(weights, x, transposed)[0, 0])

    def _weights(self, transposed: bool, draw: int) -> dict[str, Tensor]:
        """Draw weights ``[O, I]`` and a gate ``[I]``, which is clipped where it is outside [0, 1].

        draw: its number; each gate is below 0, within (0, 1) and above 1 in turn.
        """
        outputs, inputs = self._features(transposed)
        size = WEIGHT_SIZES[draw // 3 % len(WEIGHT_SIZES)]
        weights: dict[str, Tensor] = {}
        for ours in self.parameters:
            if ours == "gate":
                kind = (torch.arange(inputs) + draw) % 3
                inside = self._uniform(0.1, 0.9, [inputs])
                weights[ours] = inside + (kind - 1) * self._uniform(1.0, 3.0, [inputs])
            else:
                shape = outputs, inputs
                few = self._uniform(0, 1, shape) * inputs < LARGE_WEIGHTS
                weights[ours] = self._uniform(0.7, 1, shape) * self._signs(shape) * size
                weights[ours] *= torch.where(few, 1.0, 1 / inputs)
        re = weights["weight_re"]  # each has both signs with each kind of gate and each size
        sign = torch.arange(outputs)[:, None] + torch.arange(inputs) + draw // (TRIAL_DRAWS // 2)
        weights["weight_re"] = re.abs() * (1 - 2 * (sign % 2))
        return weights

    def _inputs(self, inputs: int, dtype: torch.dtype) -> Tensor:
        """Draw inputs of both signs; the last two rows are very large, and not a number."""
        logs = self._uniform(math.log(SMALLEST_X), math.log(LARGEST_X), [TRIAL_ROWS, inputs])
        logs[::2] = self._uniform(-1, 1, logs[::2].shape)  # x ** w is of size 1
        x = logs.exp() * self._signs(logs.shape)
        x[0], x[1] = x[0].abs(), -x[1].abs()
        x[-2] = x[-2].sign() * torch.finfo(dtype).max ** 0.95
        x[-1, 0] = math.nan
        return x

    def _call(self, weights: dict[str, Tensor], x: Tensor, transposed: bool) -> Tensor:
        """Return what the module's forward gives for weights of ours; the module stays as it is.

        Its floating buffers get the dtype of `x`.
        """
        trial = type(self.module).__new__(type(self.module))
        trial.__dict__.update(self.module.__dict__)
        for register in REGISTERS:
            trial.__dict__[register] = dict(self.module.__dict__[register])
        for ours, weight in weights.items():
            tensor = weight.t().contiguous() if transposed else weight
            tensor = tensor.to(self.device)
            trial._parameters[self.names[ours]] = nn.Parameter(tensor, requires_grad=False)
        for name, buffer in trial._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                trial._buffers[name] = buffer.to(x.dtype)
        y = trial.forward(x.to(self.device))
        if not isinstance(y, Tensor):
            raise TypeError(f"the result is no tensor but {type(y).__name__}")
        return y

    def _difference(self, transposed: bool, dtype: torch.dtype) -> str:
        """Return how the module differs from a power unit with such weights; "" if it does not."""
        if self.parameters["weight_re"].dim() != 2:
            return f"{self.names['weight_re']} must have two dimensions"
        outputs, inputs = self._features(transposed)
        for ours, name in self.names.items():
            want = (inputs,) if ours == "gate" else tuple(self.parameters["weight_re"].shape)
            if (got := tuple(self.parameters[ours].shape)) != want:
                return f"{name} must have shape {want}, got {got}"
        self.generator.manual_seed(0)
        try:
            eps = self._at_zero(transposed, dtype)
            if not 0 < eps < math.inf:  # it adds none
                eps = torch.finfo(dtype).tiny
            for draw in range(TRIAL_DRAWS):
                drawn = self._weights(transposed, draw)
                weights = {ours: weight.to(dtype) for ours, weight in drawn.items()}
                x = self._inputs(inputs, dtype).to(dtype)
                y = self._call(weights, x, transposed)
                if y.shape != (TRIAL_ROWS, outputs):
                    got = tuple(y.shape)
                    return f"results must have shape {(TRIAL_ROWS, outputs)}, got {got}"
                exact = {ours: weight.double() for ours, weight in weights.items()}
                reason = _compare(y.cpu().double(), x.double(), exact, eps, dtype)
                if reason:
                    return reason
        except Exception as error:  # other code's, for what may be the wrong shapes
            return f"{type(error).__name__}: {error}"
        return ""


def _compare(y: Tensor, x: Tensor, weights: dict[str, Any], eps: float, dtype: torch.dtype) -> str:
    """Return how results differ from the formula's in float64; "" if they do not.

    The scale of a result is ``|exp(growth + i phase)|``, not its real part, which may be near 0.

    dtype: that of the module's computation, beyond whose range results are inf or NaN.
    """
    real = weights["weight_re"]
    imaginary = weights.get("weight_im", torch.zeros_like(real))
    gate = weights.get("gate", torch.ones_like(x[0])).clamp(0, 1)
    log_r = (gate * (x.abs() + eps) + 1 - gate).log()
    k = math.pi * gate * (x < 0)
    growth = log_r @ real.T - k @ imaginary.T
    exponent = (1 + log_r.abs() + k) @ (real.abs() + imaginary.abs()).T
    expected = reference.npu(x, **weights, eps=eps)

    limits = torch.finfo(dtype)
    low, high = math.log(limits.tiny) + 10, math.log(limits.max) - 10
    lost = growth.isnan() | (growth > high + 30)
    if bool((lost & y.isfinite()).any()):
        return "results are finite where they must be inf or NaN"
    in_range = (growth > low) & (growth < high)
    in_range[-2] = False  # where powers of one input may leave the range
    if dtype is not torch.float64:  # so may they in a narrower one
        in_range &= exponent < high
    difference = ((y - expected).abs() / growth.exp())[in_range]
    if bool((difference <= TRIAL_TOLERANCE * (1 + exponent[in_range])).all()):
        return ""
    return f"results differ by {float(difference.max()):.2g} of their size"
