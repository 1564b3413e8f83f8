"""A power unit of other code: what its parameters are, by their names and by its own forward.

Public code has several names for the weights, stores them as ``[O, I]`` or ``[I, O]``, and adds
different numbers to ``|x|``. Names and shapes do not tell which. So the module's forward is called
with drawn weights and inputs, and its results are compared with the formula's.
"""

from __future__ import annotations

import math
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

TRIAL_ROWS = 8
TOLERANCE = 1e-2  # for results of size 1; TF32 comes near it


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
        module: a module that `names_of` knows.
        names: from `names_of`.
        eps: what the formula adds to ``|x|``; None for the machine epsilon.
    """

    def __init__(self, module: nn.Module, names: dict[str, str], eps: float | None) -> None:
        self.module = module
        self.parameters: dict[str, Any] = {o: module._parameters[n] for o, n in names.items()}
        self.names = names
        weight: Tensor = self.parameters["weight_re"]
        check_floating("swap", names["weight_re"], weight)
        dtype = torch.float32 if weight.dtype in HALVES else weight.dtype
        device = torch.device("cpu") if weight.is_meta else weight.device
        self.options: Any = {"device": device, "dtype": dtype}
        self.eps = torch.finfo(dtype).eps if eps is None else eps
        self.generator = torch.Generator("cpu").manual_seed(0)

    def transposed(self) -> bool:
        """Whether the weights are ``[I, O]``; ValueError where the module is no power unit."""
        reasons = []
        for transposed in (False, True):
            with torch.no_grad(), torch.autocast(self.options["device"].type, enabled=False):
                reason = self._difference(transposed)
            if not reason:
                return transposed
            reasons.append(f"with weights {'[I, O]' if transposed else '[O, I]'} {reason}")
        raise ValueError(f"computes another function: {'; '.join(reasons)}")

    def check_eps(self, transposed: bool, said: str) -> None:
        """Raise ValueError where the module adds another number to ``|x|``.

        said: what says the number, "attribute" or "argument"; "" for the machine epsilon. If the
        module adds none, the number that is said counts.
        """
        weights = {ours: torch.zeros_like(w) for ours, w in self._weights(transposed).items()}
        weights["weight_re"][0, 0] = 1.0  # y_0 = |x_0| + eps where x_0 is not negative
        if "gate" in weights:
            weights["gate"][:] = 1.0
        x = torch.ones(TRIAL_ROWS, weights["weight_re"].shape[1], **self.options)
        x[:, 0] = 0.0
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            at_zero = float(self._call(weights, x, transposed)[0, 0])
        adds = 0 < at_zero < math.inf
        if abs(at_zero - self.eps) <= TOLERANCE * self.eps or (said and not adds):
            return
        advice = f"say eps={at_zero:.3g}" if adds else "say which eps it shall add"
        if said == "attribute":
            advice = f"make it by from_parameters, with eps={at_zero:.3g}"
        raise ValueError(
            f"computes x ** 1 as {at_zero:.3g} at x = 0, where the new layer, which adds eps to "
            f"|x|, gives {self.eps:.3g}; {advice}"
        )

    def _draw(self, *shape: int) -> Tensor:
        options: Any = {"device": "cpu", "dtype": torch.float64, "generator": self.generator}
        return torch.randn(shape, **options).to(**self.options)

    def _weights(self, transposed: bool) -> dict[str, Any]:
        """Draw weights ``[O, I]`` and a gate ``[I]``, also outside of [0, 1], where it is clipped.

        The results are of size 1.
        """
        first, second = self.parameters["weight_re"].shape
        outputs, inputs = (second, first) if transposed else (first, second)
        weights: dict[str, Any] = {}
        for ours in self.parameters:
            if ours == "gate":
                weights[ours] = self._draw(inputs) + 0.5
            else:
                weights[ours] = self._draw(outputs, inputs) / (3 * math.sqrt(inputs))
        return weights

    def _call(self, weights: dict[str, Any], x: Tensor, transposed: bool) -> Tensor:
        """Return what the module's forward gives for weights of ours; the module stays as it is."""
        trial = type(self.module).__new__(type(self.module))
        trial.__dict__.update(self.module.__dict__)
        for register in REGISTERS:
            trial.__dict__[register] = dict(self.module.__dict__[register])
        for ours, weight in weights.items():
            tensor = weight.t().contiguous() if transposed else weight
            trial._parameters[self.names[ours]] = nn.Parameter(tensor, requires_grad=False)
        y = trial.forward(x)
        if not isinstance(y, Tensor):
            raise TypeError(f"the result is no tensor but {type(y).__name__}")
        return y

    def _difference(self, transposed: bool) -> str:
        """Return how the module differs from a power unit with such weights; "" if it does not."""
        if self.parameters["weight_re"].dim() != 2:
            return f"{self.names['weight_re']} must have two dimensions"
        weights = self._weights(transposed)
        for ours, weight in weights.items():
            want = tuple(weight.t().shape if transposed else weight.shape)
            if (got := tuple(self.parameters[ours].shape)) != want:
                return f"{self.names[ours]} must have shape {want}, got {got}"
        shape = TRIAL_ROWS, weights["weight_re"].shape[1]
        x = (self._draw(*shape) / 2).exp()
        x *= self._draw(*shape).sign()
        x[0], x[1] = x[0].abs(), -x[1].abs()
        try:
            y = self._call(weights, x, transposed)
        except Exception as error:  # other code's, for what may be the wrong shapes
            return f"{type(error).__name__}: {error}"
        expected = reference.npu(x, **weights, eps=self.eps)
        if y.shape != expected.shape:
            return f"results must have shape {tuple(expected.shape)}, got {tuple(y.shape)}"
        difference = float(((y - expected).abs() / (1 + expected.abs())).max())
        return "" if difference <= TOLERANCE else f"results of size 1 differ by {difference:.2g}"
