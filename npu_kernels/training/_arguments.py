"""What `run` and `make_step` are called with: checks, the rows of steps, values of schedules."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import optim
from npu_kernels._common import checks
from npu_kernels._common.checks import check_number, check_tensor, check_whole
from npu_kernels.layers import BaseLayer
from npu_kernels.layers._chains import chain
from npu_kernels.training import _fallbacks as fallbacks
from npu_kernels.training import _plan as plan
from npu_kernels.training._penalties import SteppedSchedule, regularizer

Schedule = float | SteppedSchedule | Callable[[int], float]


def check_data(
    function: str, model: nn.Module, parameter: Tensor | None, x: Any, y: Any, models: int | None
) -> None:
    """Check that x and y fit each other, the model and its first parameter."""
    if parameter is None:
        raise ValueError(
            f"{function}: model must have parameters, got {type(model).__name__} without any"
        )
    if parameter.is_inference():
        rule = "model must be made outside of torch.inference_mode() to have gradients"
        raise ValueError(f"{function}: {rule}, got parameters that are inference tensors")
    for name, tensor in (("x", x), ("y", y)):
        check_tensor(function, name, tensor)
        if tensor.dtype is not parameter.dtype:
            rule = f"must have the dtype of model, {parameter.dtype}"
            raise TypeError(f"{function}: {name} {rule}, got {tensor.dtype}")
        if tensor.device != parameter.device:
            rule = f"must be on the device of model, {parameter.device}"
            raise ValueError(f"{function}: {name} {rule}, got {tensor.device}")
        if tensor.requires_grad:
            raise ValueError(f"{function}: {name} must not require a gradient")
        if not (tensor.dim() == 2 or (tensor.dim() == 3 and len(tensor) == models)):
            rule = "" if models is None else f", or three and {models} models first"
            got = f"got shape {tuple(tensor.shape)}"
            raise ValueError(f"{function}: {name} must have two dimensions{rule}, {got}")
    if x.shape[-2] != y.shape[-2] or x.shape[-2] == 0:
        rule = "must have the same number of rows, at least 1"
        raise ValueError(
            f"{function}: x and y {rule}, got shapes {tuple(x.shape)}, {tuple(y.shape)}"
        )
    layers = [layer for _, layer in chain(model)]
    sides = (("x", x, layers[0], "in_features"), ("y", y, layers[-1], "out_features"))
    for name, tensor, layer, size in sides:
        if isinstance(layer, BaseLayer) and tensor.shape[-1] != getattr(layer, size):
            rule = f"last dimension {getattr(layer, size)} ({size} of model)"
            raise ValueError(
                f"{function}: {name} must have {rule}, got shape {tuple(tensor.shape)}"
            )


def check_sample_weight(function: str, weight: Any, y: Tensor) -> None:
    """Check that sample_weight is None or a tensor as y is."""
    if weight is None:
        return
    check_tensor(function, "sample_weight", weight)
    got, rule = ((tuple(t.shape), t.dtype, t.device) for t in (weight, y))
    if got != rule or weight.requires_grad:
        facts = f"shape, dtype and device of y, {_listed(rule)}, and no gradient"
        raise ValueError(f"{function}: sample_weight must have {facts}, got {_listed(got)}")


def check_weight_values(function: str, weight: Tensor | None) -> None:
    """Check the values of sample_weight. Its memory must have been checked: reading may crash."""
    if weight is None:
        return
    if len(wrong := weight[~((weight >= 0) & (weight < math.inf))]):
        raise ValueError(
            f"{function}: sample_weight must be finite and at least 0, got {wrong[0].item()}"
        )


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def checked_penalties(function: str, model: nn.Module, penalties: Any) -> dict[str, Schedule]:
    """Return the penalties as a dict of their weights, all of them valid."""
    if penalties is None:
        return {}
    if not isinstance(penalties, Mapping):
        got = type(penalties).__name__
        raise TypeError(f"{function}: penalties must be a dict of names and weights, got {got}")
    for name, weight in penalties.items():
        if name not in plan.PENALTIES:
            names = _listed(map(repr, plan.PENALTIES))
            raise ValueError(f"{function}: penalties must be of {names}, got {name!r}")
        if not (
            checks.is_number(weight) or isinstance(weight, SteppedSchedule) or callable(weight)
        ):
            rule = "must be a number, a SteppedSchedule or a function of the step"
            is_nan = isinstance(weight, float)
            got = repr(weight) if is_nan else type(weight).__name__
            error = ValueError if is_nan else TypeError
            raise error(f"{function}: the weight of penalty {name!r} {rule}, got {got}")
        if name in plan.INTEGERS_ONLY:
            units = [part for part in model.modules() if isinstance(part, BaseLayer)]
            if not any(unit.integer_weights for unit in units):
                rule = "must be none of 'madsen' and 'paper' for a model without NAU, NMU and NMRU"
                raise ValueError(f"{function}: penalties {rule}, got {name!r}")
            regularizer(model)  # raises for weights of another number of models
    return dict(penalties)


def projection(function: str, project: Any) -> tuple[bool, float | None]:
    """Return whether gates are clamped, and the bound of weights."""
    if isinstance(project, bool):
        return project, None
    return True, check_number(
        function, "project", project, above=0, finite=False, other="True, False"
    )


def made_optimizer(
    model: nn.Module, parameters: Iterable[Tensor], optimizer: Any, lr: Any
) -> torch.optim.Optimizer:
    """Return the optimizer of the call, with the call's learning rate.

    parameters: the model's.
    """
    if lr is not None and not callable(lr):
        lr = check_number("run", "lr", lr, minimum=0, other="a function of the step")
    if isinstance(optimizer, torch.optim.Optimizer):
        check_optimizer("run", parameters, optimizer)
        if lr is not None and not callable(lr):
            for group in optimizer.param_groups:
                group["lr"] = lr
        return optimizer
    kinds = {"adam": optim.Adam, "rmsprop": torch.optim.RMSprop}
    if not isinstance(optimizer, str) or optimizer not in kinds:
        rule = "optimizer must be 'adam', 'rmsprop' or a torch.optim.Optimizer"
        raise ValueError(f"run: {rule}, got {optimizer!r}")
    settings: dict[str, Any] = {}
    if lr is not None:
        settings["lr"] = checked_rate(lr(1), 1) if callable(lr) else lr
    trained = list(model.parameters())
    if optimizer == "adam" and all(p.is_cuda and p.is_floating_point() for p in trained):
        settings["fused"] = True  # one launch for all parameters, a third of a captured step's time
    return checks.make_optimizer(kinds[optimizer], trained, **settings)


def check_optimizer(
    function: str, parameters: Iterable[Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """Raise ValueError for an optimizer of other parameters, or whose step needs a closure."""
    of_model = set(map(id, parameters))
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    if of_model.isdisjoint(map(id, trained)):
        rule = "must have at least one parameter of model"
        kind = type(optimizer).__name__
        raise ValueError(
            f"{function}: optimizer {rule}, got {kind} of {len(trained)} other parameters"
        )
    if type(optimizer) in fallbacks.OPTIMIZERS:
        return
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except (TypeError, ValueError):  # a step without a signature
        closure = None
    if closure is not None and closure.default is closure.empty:
        kind = type(optimizer).__name__
        raise ValueError(f"{function}: optimizer must make its steps without a closure, got {kind}")


def listed_callbacks(callbacks: Any) -> list[Callable[[Any], Any]]:
    """Return the callbacks of the call; raise TypeError for what cannot be called."""
    if callbacks is None or callable(callbacks):
        return [] if callbacks is None else [callbacks]
    functions = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for function in functions:
        if not callable(function):
            rule = "must be a function, or several in a list"
            raise TypeError(f"run: callbacks {rule}, got {function!r}")
    return functions


class DrawnRows:
    """The rows of each step."""

    def __init__(self, count: int, steps: int, batch: Any, rows: Any, generator: Any) -> None:
        self.count, self.batch, self.indices = count, batch, rows
        if rows is not None:
            check_tensor("run", "batch_indices", rows)
            if batch is not None:
                raise ValueError("run: batch_size must be None where rows are given")
            shape = tuple(rows.shape)
            fits = len(shape) == 2 and shape[0] == steps and shape[1] > 0
            if rows.dtype is not torch.int64 or not fits:
                rule = f"int64 of shape (steps, batch), steps {steps}"
                raise ValueError(
                    f"run: batch_indices must be {rule}, got {rows.dtype} of shape {shape}"
                )
            if rows.min() < 0 or rows.max() >= count:
                got = f"{int(rows.min())} to {int(rows.max())}"
                raise ValueError(f"run: batch_indices must lie within [0, {count}), got {got}")
            self.indices = rows.contiguous()
        if batch is not None:
            self.batch = check_whole("run", "batch_size", batch)
        if not isinstance(generator, (torch.Generator, type(None))):
            rule = "must be a torch.Generator or None"
            raise TypeError(f"run: generator {rule}, got {type(generator).__name__}")
        self.seeded = generator is None  # by torch's generator
        if batch is None:  # none is used, so none is saved
            generator = None
        elif generator is None:
            generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
        self.generator = generator

    def draw(self, done: int, steps: int, device: torch.device) -> Tensor | None:
        """Return the row indices of the steps after `done`, ``[steps, batch]``; None: all rows."""
        if self.indices is not None:
            rows: Tensor = self.indices[done : done + steps]
            return rows.to(device)
        if self.batch is None:
            return None
        drawn_by, shape = self.generator, (steps, self.batch)
        drawn = torch.randint(self.count, shape, generator=drawn_by, device=drawn_by.device)
        return drawn.to(device)


def schedule_values(
    schedule: Schedule, check: Callable[[Any, int], float], done: int, steps: int
) -> Tensor:
    """Return the schedule's values at the steps after `done`, ``[steps]``.

    check: returns what a function gave at a step as a number.
    """
    if isinstance(schedule, SteppedSchedule):
        values = [schedule.step() for _ in range(steps)]
    elif callable(schedule):
        values = [check(schedule(step), step) for step in range(done + 1, done + steps + 1)]
    else:
        return torch.full((steps,), float(schedule), dtype=torch.float64, device="cpu")
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def checked_rate(value: Any, step: int) -> float:
    """Return the learning rate that a function gave at a step."""
    return check_number("run", f"lr at step {step}", _item(value), minimum=0)


def checked_weight(function: str, name: str, value: Any, step: int) -> float:
    """Return the weight of a penalty that a function gave at a step."""
    number = _item(value)
    if not checks.is_number(number):
        title = f"the weight of penalty {name!r} at step {step}"
        raise ValueError(f"{function}: {title} must be a number, got {value!r}")
    return float(number)


def _item(value: Any) -> Any:
    """Return the number of a tensor of one element; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
