"""What a checkpoint of `run` holds of optimisers, schedules and generators: compared, and checked before it is used."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._jobs import saved
from npu_kernels.training._functions import SteppedSchedule

HOW = (
    "params",
    "foreach",
    "fused",
    "capturable",
    "differentiable",
)  # of a group: they decide no numbers


def told(setting: Any) -> str:
    """A setting as text, numbers by their values. Of a function only that it is one: its values cannot be compared."""
    if isinstance(setting, Tensor):
        return told(setting.tolist())
    if isinstance(setting, (bool, str, type(None))):
        return repr(setting)
    if isinstance(setting, Real):
        return repr(float(setting))
    if isinstance(setting, (tuple, list)):
        return f"({', '.join(map(told, setting))})"
    if isinstance(setting, SteppedSchedule):
        settings = (setting.start, setting.end, setting.interval, setting.growth)
        return f"{type(setting).__name__}{told(settings)}"
    return f"a {type(setting).__name__}"


def settings(optimizer: torch.optim.Optimizer, model: nn.Module, lr: Any) -> dict[str, str]:
    """What an optimiser does to which parameters, a fact for each setting; lr: that of `run`."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = optimizer.param_groups
    trained = [[names.get(id(p), "another") for p in group["params"]] for group in groups]
    facts = {"optimizer": type(optimizer).__name__, "optimizer.params": str(trained)}
    for name in sorted({name for group in groups for name in group} - {*HOW}):
        facts[f"optimizer.{name}"] = ", ".join(told(group.get(name)) for group in groups)
    if callable(lr):  # the groups have its last value
        facts["optimizer.lr"] = told(lr)
    return facts


def optimizer_state(value: Any, optimizer: torch.optim.Optimizer, needed: bool) -> dict[str, Any]:
    """A `state_dict` that this optimiser can load.

    Of the groups' settings only numbers are taken, which callbacks may have changed during the run.

    Args:
        value: what the file has.
        optimizer: with the settings that were asked for. It is not changed.
        needed: every parameter that requires a gradient has made steps, so it has a state.
    """
    own = optimizer.state_dict()
    state = saved.record(value, "optimizer", own.keys())
    groups = saved.sequence(
        state["param_groups"], "optimizer's param_groups", len(own["param_groups"])
    )
    taken = []
    for number, (group, mine) in enumerate(zip(groups, own["param_groups"], strict=True)):
        group = saved.record(group, f"optimizer's group {number}", mine.keys())
        if group["params"] != mine["params"]:
            raise ValueError(f"its optimizer's group {number} has other params")
        taken.append(
            {name: _setting(group[name], f"optimizer's {name}", old) for name, old in mine.items()}
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    expected = _after_a_step(optimizer)
    trained = [
        n for n, parameter in enumerate(parameters) if parameter.requires_grad and expected.get(n)
    ]
    found = state["state"]
    if not isinstance(found, dict) or not set(found) <= set(range(len(parameters))):
        raise ValueError(
            f"its optimizer's state must be a dict of parameters' numbers below {len(parameters)}"
        )
    if needed and not set(trained) <= set(found):
        raise ValueError("its optimizer's state lacks parameters that were trained")
    kept = {}
    for number, entries in found.items():
        name = f"optimizer's state of parameter {number}"
        like: Any = expected.get(number, entries)
        entries = saved.record(entries, name, like.keys() if isinstance(like, Mapping) else ())
        kept[number] = {key: _entry(entries[key], f"{name}, {key},", like[key]) for key in entries}
    return {"state": kept, "param_groups": taken}


def _after_a_step(optimizer: torch.optim.Optimizer) -> dict[int, Any]:
    """What an optimiser keeps after a step, by a step of a copy; empty where a copy of its state alone makes none."""
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


def _setting(value: Any, name: str, own: Any) -> Any:
    """A setting of a group: a number of the file, or else its own."""
    if isinstance(own, Tensor):
        return saved.tensor(value, name, own.shape, own.dtype, own.device)
    if isinstance(own, Real) and not isinstance(own, bool):
        return saved.number(value, name)
    if isinstance(own, (tuple, list)) and name != "optimizer's params":
        parts = saved.sequence(value, name, len(own))
        return type(own)(_setting(part, name, mine) for part, mine in zip(parts, own, strict=True))
    return own


def _entry(value: Any, name: str, like: Any) -> Any:
    """An entry of a parameter's state."""
    if isinstance(like, Tensor):
        low = 0.0 if name.endswith(" step,") else -math.inf
        return saved.tensor(value, name, like.shape, like.dtype, low=low)
    if isinstance(like, Real) and not isinstance(like, bool):
        return saved.number(value, name)
    if type(value) is not type(like):
        raise ValueError(
            f"its {name} must be of type {type(like).__name__}, got {type(value).__name__}"
        )
    return value


def generator_state(value: Any, generator: torch.Generator | None) -> Tensor | None:
    """A state that this generator can have; None if there is none."""
    if generator is None:
        if value is not None:
            raise ValueError("its generator must be None, since no rows are drawn")
        return None
    own = generator.get_state()
    state = saved.tensor(value, "generator", own.shape, own.dtype)
    try:
        torch.Generator(generator.device).set_state(state)
    except RuntimeError as error:
        raise ValueError(f"its generator is no state of one: {error}") from None
    return state


def schedule_states(value: Any, schedules: Mapping[str, Any]) -> dict[str, Any]:
    """States that these schedules can load, those of them that have one."""
    names = [name for name, schedule in schedules.items() if hasattr(schedule, "state_dict")]
    states = saved.record(value, "schedules", names)
    for name, state in states.items():
        try:
            copy.deepcopy(schedules[name]).load_state_dict(state)
        except Exception as error:  # a class of its user's may raise anything
            raise ValueError(f"its schedule of {name!r} cannot be loaded: {error}") from None
    return states
