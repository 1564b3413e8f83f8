"""Optimisers, schedules and generators of a checkpoint of `run`, checked before use."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import is_number
from npu_kernels._jobs import saved
from npu_kernels.training._loops.penalties import SteppedSchedule

# Settings of an optimiser's group that decide no numbers.
_IMPLEMENTATION = {"params", "foreach", "fused", "capturable", "differentiable"}


def described_setting(setting: Any) -> str:
    """Return a setting as text, numbers by their values; a function's values cannot be compared."""
    if isinstance(setting, Tensor):
        return described_setting(setting.tolist())
    if isinstance(setting, (bool, str, type(None))):
        return repr(setting)
    if isinstance(setting, Real):
        return repr(float(setting))
    if isinstance(setting, (tuple, list)):
        return f"({', '.join(map(described_setting, setting))})"
    if isinstance(setting, SteppedSchedule):
        settings = (setting.start, setting.end, setting.interval, setting.growth)
        return f"{type(setting).__name__}{described_setting(settings)}"
    return f"a {type(setting).__name__}"


def optimizer_settings(optimizer: torch.optim.Optimizer, model: nn.Module, lr: Any) -> dict[str, str]:
    """Return an optimiser's parameters and settings as text; lr: that of `run`."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = optimizer.param_groups
    trained = [[names.get(id(p), "another") for p in group["params"]] for group in groups]
    facts = {"optimizer": type(optimizer).__name__, "optimizer.params": str(trained)}
    for name in sorted({name for group in groups for name in group} - _IMPLEMENTATION):
        values = [described_setting(group.get(name)) for group in groups]
        facts[f"optimizer.{name}"] = ", ".join(values)
    if callable(lr):  # the groups have its last value
        facts["optimizer.lr"] = described_setting(lr)
    return facts


def optimizer_state(
    value: Any, optimizer: torch.optim.Optimizer, needed: Iterable[Tensor]
) -> dict[str, Any]:
    """Return the `state_dict` in a file, checked, for this optimiser.

    Only the numbers among the groups' settings are taken from it: callbacks may have changed them.

    Args:
        value: the file's.
        optimizer: with the settings that were asked for. It is not changed.
        needed: parameters that have made steps, if they require gradients: they have a state.
    """
    current = optimizer.state_dict()
    state = saved.record(value, "optimizer", current.keys())
    olds = current["param_groups"]
    groups = saved.sequence(state["param_groups"], "optimizer's param_groups", len(olds))
    checked_groups = []
    for number, (group, old) in enumerate(zip(groups, olds, strict=True)):
        group = saved.record(group, f"optimizer's group {number}", old.keys())
        title = f"optimizer's group {number}, params,"
        numbers = [saved.integer(n, title) for n in saved.sequence(group["params"], title)]
        if numbers != old["params"]:
            raise ValueError(f"its optimizer's group {number} has other params")
        checked_groups.append(
            {name: _setting(group[name], f"optimizer's {name}", old[name]) for name in old}
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    expected = _after_a_step(optimizer)
    moving = {id(parameter) for parameter in needed if parameter.requires_grad}
    trained = {n for n, p in enumerate(parameters) if id(p) in moving and expected.get(n)}
    states = state["state"]
    if not isinstance(states, dict) or not states.keys() <= set(range(len(parameters))):
        rule = f"a dict of parameters' numbers below {len(parameters)}"
        raise ValueError(f"its optimizer's state must be {rule}")
    if not trained <= states.keys():
        raise ValueError("its optimizer's state lacks parameters that were trained")
    checked = {}
    for number, entries in states.items():
        name = f"optimizer's state of parameter {number}"
        like: Any = expected.get(number, entries)
        entries = saved.record(entries, name, like.keys() if isinstance(like, Mapping) else ())
        checked[number] = {k: _entry(entries[k], f"{name}, {k},", like[k]) for k in entries}
    return {"state": checked, "param_groups": checked_groups}


def _after_a_step(optimizer: torch.optim.Optimizer) -> dict[int, Any]:
    """Return an optimiser's state after a step of a copy; empty where the copy can make none."""
    try:
        twin = copy.deepcopy(optimizer)
        for group in twin.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        with torch.no_grad():
            twin.step()
    except Exception:  # a class of its user's may need anything
        return {}
    state: dict[int, Any] = twin.state_dict()["state"]
    return state


def _setting(value: Any, name: str, old: Any) -> Any:
    """Return a group's setting: the file's value where it consists of numbers, else the old one."""
    if isinstance(old, Tensor):
        return saved.tensor(value, name, old.shape, old.dtype, old.device)
    if is_number(old):
        return saved.number(value, name)
    if isinstance(old, (tuple, list)) and name != "optimizer's params":
        parts = saved.sequence(value, name, len(old))
        return type(old)(_setting(part, name, was) for part, was in zip(parts, old, strict=True))
    return old


def _entry(value: Any, name: str, like: Any) -> Any:
    """Return an entry of a parameter's state, checked: of the kind of another, `like`."""
    if isinstance(like, Tensor):
        low = 0.0 if name.endswith(" step,") else -math.inf
        return saved.tensor(value, name, like.shape, like.dtype, low=low)
    if is_number(like):
        return saved.number(value, name)
    if type(value) is not type(like):
        rule = f"must be of type {type(like).__name__}, got {type(value).__name__}"
        raise ValueError(f"its {name} {rule}")
    return value


def generator_state(value: Any, generator: torch.Generator | None) -> Tensor | None:
    """Return the saved state, checked for this generator; None without a generator."""
    if generator is None:
        if value is not None:
            raise ValueError("its generator must be None, since no rows are drawn")
        return None
    current = generator.get_state()
    state = saved.tensor(value, "generator", current.shape, current.dtype)
    try:
        torch.Generator(generator.device).set_state(state)
    except RuntimeError as error:
        raise ValueError(f"its generator is no state of one: {error}") from None
    return state


def schedule_states(value: Any, schedules: Mapping[str, Any]) -> dict[str, Any]:
    """Return the saved states of those schedules that have one, each tried with a copy."""
    names = [name for name, schedule in schedules.items() if hasattr(schedule, "state_dict")]
    states = saved.record(value, "schedules", names)
    for name, state in states.items():
        try:
            copy.deepcopy(schedules[name]).load_state_dict(state)
        except Exception as error:  # a class of its user's may raise anything
            raise ValueError(f"its schedule of {name!r} cannot be loaded: {error}") from None
    return states
