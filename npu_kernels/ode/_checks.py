"""The time loop: what the arguments must be, and whether the result is finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import is_tracing

from npu_kernels._common.checks import as_number, check_tensor, check_whole
from npu_kernels._operators import operands
from npu_kernels.layers import NAU, PowerUnit
from npu_kernels.ode._pairs import PAIRS
from npu_kernels.ode._reference import METHODS
from npu_kernels.reference import CLIP, STRAIGHT_THROUGH


class NonFiniteError(FloatingPointError):
    """A trajectory left the finite numbers.

    message: names the model and the step. first: what `first_nonfinite` gives for all trajectories.
    """

    def __init__(self, message: str, first: Tensor) -> None:
        super().__init__(message)
        self.first = first


def check_choice(function: str, name: str, value: Any, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{function}: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}"
        )


def check_grid(function: str, steps: Any, dt: Any) -> tuple[int, float]:
    """The steps and their size; ValueError for what is no such number."""
    return check_whole(function, "steps", steps), check_dt(function, dt)


def check_dt(function: str, dt: Any) -> float:
    """The size of a step, which may be negative; ValueError for what is no such number."""
    size = as_number(dt)
    if not math.isfinite(size) or size == 0:
        raise ValueError(f"{function}: dt must be finite and other than 0, got {dt!r}")
    return size


def check_options(
    function: str, steps: Any, dt: Any, method: Any, memory: Any, nonfinite: Any
) -> tuple[int, float]:
    """The steps and their size; ValueError for an option that is not valid."""
    grid = check_grid(function, steps, dt)
    check_choice(function, "method", method, (*METHODS, *PAIRS))
    check_choice(function, "memory", memory, ("full", "checkpointed"))
    check_choice(function, "nonfinite", nonfinite, ("raise", "keep"))
    return grid


def layers_of(
    model: Any,
    function: str = "rollout",
    units: str = "NPU, RealNPU or NaiveNPU",
    instead: str = "; ode.rollout_any runs any model, through torchdiffeq",
) -> tuple[PowerUnit, NAU]:
    """The two layers of a model that the fused loop knows; TypeError or ValueError says what it is not.

    units: what the messages call the first layer. instead: what they advise.
    """
    rule = f"{function}: model must be an nn.Sequential of {units} and NAU"
    if not isinstance(model, nn.Sequential) or len(model) != 2:
        what = type(model).__name__
        if isinstance(model, nn.Sequential):
            what += f"({', '.join(type(layer).__name__ for layer in model)})"
        raise TypeError(f"{rule}, got {what}{instead}")
    power, nau = model
    for layer, base in ((power, PowerUnit), (nau, NAU)):
        if not isinstance(layer, base) or type(layer).forward is not base.forward:
            found = ", ".join(type(part).__name__ for part in model)
            raise TypeError(f"{rule} with their own forward, got Sequential({found}){instead}")
    for part in (model, power, nau):
        if (
            part._forward_hooks
            or part._forward_pre_hooks
            or part._backward_hooks
            or part._backward_pre_hooks
        ):
            raise ValueError(
                f"{function}: model must have no hooks, one call computes all of its steps; {type(part).__name__} has "
                f"some{instead}"
            )
    if (nau.in_features, nau.out_features, nau.num_models) != (
        power.out_features,
        power.in_features,
        power.num_models,
    ):
        raise ValueError(
            f"{function}: model must map D to h to D features for the same models, got {power} and {nau}"
        )
    return power, nau  # type: ignore[return-value]


def fits(u0: Any, weight_re: Any, weight_im: Any, gate: Any, weight: Any) -> bool:
    """The common valid case on the CPU, by the cheapest comparisons; what does not fit goes to `check_tensors`."""
    try:
        dtype, shape = weight_re.dtype, weight_re.shape
        *models, h, d = shape
        return (
            (dtype is torch.float64 or dtype is torch.float32)
            and len(models) < 2
            and all(
                t is None
                or (t.dtype is dtype and t.is_cpu and t.layout is torch.strided and t.shape == want)
                for t, want in ((weight_im, shape), (gate, (*models, d)), (weight, (*models, d, h)))
            )
            and weight is not None
            and u0.dtype is dtype
            and u0.is_cpu
            and weight_re.is_cpu
            and u0.layout is weight_re.layout is torch.strided
            and not u0.is_nested
        )
    except (AttributeError, ValueError, RuntimeError):  # not a tensor, not a matrix, nested
        return False


def check_tensors(function: str, u0: Any, weights: dict[str, Tensor | None]) -> None:
    """Types, one dtype, one device, and the weights' shapes."""
    optional = ("weight_im", "gate")
    present: dict[str, Any] = {
        name: w for name, w in weights.items() if w is not None or name not in optional
    }
    for name, tensor in {"u0": u0, **present}.items():
        check_tensor(function, name, tensor)
        if tensor.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{function}: {name} must be float32 or float64, got {tensor.dtype}")
    for what, error in (("dtype", TypeError), ("device", ValueError)):
        if any(getattr(tensor, what) != getattr(u0, what) for tensor in present.values()):
            found = ", ".join(
                f"{name} {getattr(t, what)}" for name, t in {"u0": u0, **present}.items()
            )
            raise error(f"{function}: all tensors must have one {what}, got {found}")
    shape = tuple(present["weight_re"].shape)
    if len(shape) not in (2, 3):
        raise ValueError(
            f"{function}: weight_re must have shape (h, D) or (num_models, h, D), got shape {shape}"
        )
    models, (h, d) = shape[:-2], shape[-2:]
    expected = {"weight_im": shape, "gate": (*models, d), "weight": (*models, d, h)}
    for name, want in expected.items():
        if name in present and tuple(present[name].shape) != want:
            raise ValueError(
                f"{function}: {name} must have shape {want} beside weight_re of shape {shape}, "
                f"got shape {tuple(present[name].shape)}"
            )


def has_starts(function: str, u0: Tensor, weight_re: Tensor) -> bool:
    """Whether u0 has a dimension of starts; ValueError for a shape that does not fit."""
    d, found = weight_re.shape[-1], tuple(u0.shape)
    if weight_re.dim() == 2:
        if len(found) not in (1, 2) or found[-1] != d:
            raise ValueError(
                f"{function}: u0 must have shape ({d},) or (starts, {d}), got shape {found}"
            )
        return len(found) == 2
    k = weight_re.shape[0]
    fits = len(found) in (1, 2, 3) and found[-1] == d
    if (
        not fits
        or (len(found) == 2 and found[0] != k)
        or (len(found) == 3 and found[0] not in (1, k))
    ):
        raise ValueError(
            f"{function}: u0 must have shape ({d},), ({k}, {d}) (num_models, D), ({k}, starts, {d}) or (1, starts, {d})"
            f" (shared by all models), got shape {found}"
        )
    return len(found) == 3


def check_operands(
    function: str,
    u0: Tensor,
    weights: tuple[Tensor | None, ...],
    eps: float | None,
    gate_gradient: Any,
) -> tuple[float, bool]:
    """eps, by default the dtype's machine epsilon, and whether u0 has a dimension of starts; raises what is wrong."""
    if is_tracing() or not fits(u0, *weights):
        names = "weight_re", "weight_im", "gate", "weight"
        operands.unrecorded(check_tensors, function, u0, dict(zip(names, weights, strict=True)))
    eps = (
        operands.EPS[u0.dtype]
        if eps is None
        else operands.check_positive(function, "eps", eps, u0.dtype)
    )
    check_choice(function, "gate_gradient", gate_gradient, (CLIP, STRAIGHT_THROUGH))
    return eps, operands.unrecorded(has_starts, function, u0, weights[0])


def check_trajectory(function: str, trajectory: Any, states: int, name: str = "trajectory") -> None:
    check_tensor(function, name, trajectory)
    if not trajectory.is_floating_point():
        raise TypeError(
            f"{function}: {name} must have a floating-point dtype, got {trajectory.dtype}"
        )
    if trajectory.dim() < 2 or trajectory.shape[-2] < states:
        least = " with at least one step" if states > 1 else ""
        raise ValueError(
            f"{function}: {name} must have shape (..., steps + 1, D){least}, got shape {tuple(trajectory.shape)}"
        )


def first_nonfinite(trajectory: Tensor) -> Tensor:
    """The first step at which a trajectory ``[..., steps + 1, D]`` is inf or nan, ``[...]``; -1 where it is finite."""
    check_trajectory("first_nonfinite", trajectory, 1)
    return first_true(~trajectory.detach().isfinite().all(-1))


def first_true(flags: Tensor) -> Tensor:
    """The first True along the last dimension; -1 where there is none."""
    return torch.where(flags.any(-1), flags.int().argmax(-1), -1)


def who(at: tuple[int, ...], models: bool, many: bool) -> str:
    """The name of the trajectory with index `at`, for a message."""
    names = [name for name, there in (("model", models), ("start", many)) if there]
    return (
        " ".join(f"{name} {index}" for name, index in zip(names, at, strict=True))
        or "the trajectory"
    )


def raise_nonfinite(
    function: str, trajectory: Tensor, derivatives: Tensor | None, models: bool, many: bool
) -> None:
    """NonFiniteError with model and step unless all is finite.

    What is not finite stays so: ``u + dt k`` of an inf or a nan is one again. So the last state tells of all of them.
    """
    with torch.no_grad():
        last = trajectory.select(-2, -1).sum()
        if derivatives is not None:
            last = last + derivatives.select(-2, -1).sum()
    if math.isfinite(last.item()):  # may overflow where no state does: then the whole is looked at
        return
    whole = trajectory if derivatives is None else torch.cat([trajectory, derivatives], -1)
    first = first_nonfinite(whole)
    where = (first >= 0).nonzero()
    if not len(where):
        return
    at = tuple(where[0].tolist())
    number = (
        f", the first of {len(where)} of {first.numel()} trajectories" if first.numel() > 1 else ""
    )
    raise NonFiniteError(
        f"{function}: {who(at, models, many)} is not finite from step {int(first[at])} on{number}; nonfinite='keep' "
        "returns it as it is",
        first,
    )
