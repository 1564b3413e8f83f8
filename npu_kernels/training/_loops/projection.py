"""The projection of parameters into their intervals after an optimiser's step."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrize

from npu_kernels._common.checks import check_module, check_number
from npu_kernels.layers import Unit


@torch.no_grad()
def project_(model: nn.Module, *, gates: bool = True, weights: float | None = None) -> None:
    """Clamp the units' parameters into their intervals, in place, after an optimiser's step.

    A gate outside of [0, 1] has no gradient and stays outside. Projection after each step keeps its
    gradient.

    Args:
        model: a module; all its units are projected.
        gates: clamp the gates of NPU and RealNPU to [0, 1].
        weights: None leaves the weights; a bound w clamps the power units' weights to [-w, w], and
            the weights of NAU, NMU and NMRU to their own intervals, [-1, 1] and [0, 1].

    The tensors that the optimiser trains are projected: of a pruned parameter
    (`torch.nn.utils.prune`) its original, of a parametrized one (`torch.nn.utils.parametrize`) the
    original whose value is the projected one, by the right_inverse.

    Raises TypeError if the model is not a module, ValueError if it has no units, if the bound is
    not greater than 0, and for a parameter that cannot be projected, such as one with a
    parametrization without right_inverse.
    """
    check_module("project_", "model", model)
    if weights is not None:
        weights = check_number("project_", "weights", weights, above=0, finite=False, other="None")
    units = [(path, unit) for path, unit in model.named_modules() if isinstance(unit, Unit)]
    if not units:
        got = f"{type(model).__name__} without any"
        raise ValueError(f"project_: model must have units of npu_kernels, got {got}")
    for path, unit in units:
        for name, interval in unit.intervals.items():
            if name == "gate":
                if gates and interval is not None:
                    _project(path, unit, name, *interval)
            elif weights is not None:
                _project(path, unit, name, *(interval or (-weights, weights)))


def _project(path: str, unit: Unit, name: str, low: float, high: float) -> None:
    parameters = unit._parameters
    # The original of a pruned one, since 0 lies in every interval:
    parameter = parameters[name] if name in parameters else parameters.get(f"{name}_orig")
    if parameter is not None:
        parameter.clamp_(low, high)
        return
    value = getattr(unit, name, None)
    if value is None:
        return
    title = f"{name} of {type(unit).__name__}" + (f" {path!r}" if path else "")
    if not parametrize.is_parametrized(unit, name):
        rule = "must be a parameter, pruned or parametrized; it is computed from others"
        raise ValueError(f"project_: {title} {rule}")
    parts = unit.parametrizations[name]  # type: ignore[index]
    fixed = [type(part).__name__ for part in parts if not hasattr(part, "right_inverse")]
    if fixed:
        raise ValueError(
            f"project_: {title} is parametrized by {', '.join(fixed)} without right_inverse, so "
            "what the optimiser trains cannot be projected"
        )
    projected = value.clamp(low, high)
    if not torch.equal(projected, value):
        setattr(unit, name, projected)
        value, slack = getattr(unit, name), 1e-3 * (high - low)
        if ((value < low - slack) | (value > high + slack)).any():
            raise ValueError(
                f"project_: the right_inverse of {title} must give its value back, but it left "
                f"[{low}, {high}]"
            )
