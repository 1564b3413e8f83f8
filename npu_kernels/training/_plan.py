"""The plan of a training: what one C++ call gets, to make many steps.

The records of a plan have the names of their fields in C++ too (csrc/operators/train.cpp). A plan
is two lists, of integers and of numbers. A record adds its integers to the one and its numbers to
the other, in the order of its fields. C++ reads them in the order of its fields: `check` compares
the names.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor, nn

from npu_kernels._operators import cpu
from npu_kernels.layers import NAU, NMRU, NMU, NPU, BaseLayer, NaiveNPU, PowerLayer, RealNPU
from npu_kernels.layers._chains import chain
from npu_kernels.training._steps import Loop


class Call(NamedTuple):
    rmsprop: bool  # otherwise Adam
    models: int
    steps: int
    before: int  # steps made before
    every: int  # steps from one recorded loss to the next
    shared_x: bool  # all models have the same x
    shared_y: bool
    finite: bool  # an entry of a gradient that is not finite counts as 0
    layers: int  # how many


class Layer(NamedTuple):
    kind: int  # in `LAYERS`
    in_features: int
    out_features: int


# A record for each kind of layer: the numbers of the parameters that are its weights, -1 for none;
# its options.
class Npu(NamedTuple):
    weight_re: int
    weight_im: int
    gate: int
    eps: float
    straight_through: float


class Nmu(NamedTuple):
    weight: int
    clip: float


class Nmru(NamedTuple):
    weight: int
    eps: float
    clip: float
    separate: float


class Nau(NamedTuple):
    weight: int
    clip: float


class Parameter(NamedTuple):
    trained: bool
    low: float  # the interval that it is clamped into, trained or not
    high: float


class Update(NamedTuple):
    rate: int  # a row of the schedules
    penalties: int  # how many
    steps_before: float  # that the optimizer has made


class Penalty(NamedTuple):
    kind: int  # in `FORMULAS`
    schedule: int  # a row of the schedules


class Adam(NamedTuple):
    maximize: bool
    decoupled: bool
    beta1: float
    beta2: float
    eps: float
    weight_decay: float


class RMSprop(NamedTuple):
    maximize: bool
    centered: bool
    alpha: float
    eps: float
    weight_decay: float
    momentum: float


LAYERS: tuple[type[tuple[Any, ...]], ...] = (Npu, Nmu, Nmru, Nau)
FORMULAS = ("l1", "frobenius", "madsen", "paper")
RECORDS = (Call, Layer, Parameter, Update, Penalty, Adam, RMSprop, *LAYERS)
# The number of integers of each record, which come before its numbers.
_INTEGERS = {
    record: sum(kind is not float for kind in get_type_hints(record).values()) for record in RECORDS
}


class Plan:
    """A plan, to which records are added in turn."""

    def __init__(self) -> None:
        self.integers: list[int] = []
        self.numbers: list[float] = []

    def add(self, record: tuple[Any, ...]) -> None:
        count = _INTEGERS[type(record)]
        self.integers += record[:count]
        self.numbers += record[count:]

    def extend(self, other: Plan) -> None:
        self.integers += other.integers
        self.numbers += other.numbers


def fields() -> list[str]:
    """Return a line of field names for each record: integers before the bar, numbers after it."""
    rows = [(r.__name__.lower(), list(get_type_hints(r)), _INTEGERS[r]) for r in RECORDS]
    rows.append(("penalties", list(FORMULAS), len(FORMULAS)))
    return [" ".join([f"{name}:", *names[:n], "|", *names[n:]]) for name, names, n in rows]


def check(text: str) -> None:
    """Raise RuntimeError unless the library's fields, a text, are those of Python, in order."""
    theirs = text.splitlines()
    if theirs != fields():
        other = sorted({*theirs} ^ {*fields()}) or ["the order of the records"]
        raise RuntimeError(
            "npu_kernels: the C++ library was built from other sources: the fields of its plan of "
            "training steps and of npu_kernels/training/_plan.py differ in "
            f"{'; '.join(other)}. "
            f"Build it with `{cpu.build_command()}`"
        )


cpu.load()
if cpu.available()[0]:
    check(cpu.plan_fields())


# ---- plan ----------------------------------------------------------------------------------------
#
# The plan of a training: what one C++ call gets, to make many steps.

KINDS: dict[type[BaseLayer], type[tuple[Any, ...]]] = {
    **dict.fromkeys((NPU, RealNPU, NaiveNPU), Npu),
    NMU: Nmu,
    NMRU: Nmru,
    NAU: Nau,
}
PENALTIES = {**{name: name for name in FORMULAS}, "integer": "madsen"}  # and their formulas
INTEGERS_ONLY = ("madsen", "paper")  # penalties of the weights of NAU, NMU and NMRU alone
_KIND_NUMBERS = {kind: LAYERS.index(record) for kind, record in KINDS.items()}
_PENALTY_NUMBERS = {name: FORMULAS.index(form) for name, form in PENALTIES.items()}
_UNBOUNDED = (-math.inf, math.inf)
_NO_ROWS = torch.empty(0, dtype=torch.int64, device="cpu")  # all rows at each step


def clamped(
    units: Sequence[nn.Module], gates: bool, bound: float | None
) -> Iterator[tuple[Tensor, float, float]]:
    """Yield the parameters that `project_` clamps, with their intervals."""
    for unit in units:
        for name, interval in unit.parameter_bounds.items() if isinstance(unit, BaseLayer) else ():
            parameter = unit._parameters.get(name)
            if parameter is not None and (gates if name == "gate" else bound is not None):
                low, high = interval or (-(bound or 0.0), bound or 0.0)
                yield parameter, low, high


class Data(NamedTuple):
    """The losses, which steps in C++ write, and what they read."""

    losses: Tensor
    x: Tensor
    y: Tensor
    weight: Tensor  # of each squared error; empty: all are equal
    rows: Tensor  # of each step; empty: all rows at each step


class Operands(NamedTuple):
    """What steps in C++ get of a model and its optimizer."""

    plan: Plan
    parameters: list[Tensor]  # of the layers
    trained: list[Tensor]
    states: list[dict[str, Tensor]]  # the optimizer's, of those that are trained
    moments: list[Tensor]
    written: list[Tensor]  # the parameters that change

    def passed(self, operator: Any, data: Data, schedules: Tensor) -> Any:
        """Call an operator of the library."""
        return operator(
            [p.detach() for p in self.parameters],
            self.moments,
            data.losses,
            data.x,
            data.y,
            data.weight,
            data.rows,
            schedules,
            self.plan.integers,
            self.plan.numbers,
        )


class Fused(Loop):
    """Steps by C++, of a model without an `fallbacks.reason`."""

    def advance(self, done: int, rows: Tensor | None, schedules: Tensor) -> None:
        """Write the plan, make the steps, and count them in the optimizer's state."""
        operands = self.operands(done, schedules.shape[1])
        weight = self._no_weight if self.weight is None else self.weight
        rows = _NO_ROWS if rows is None else rows
        data = Data(self.losses, self.x, self.y, weight, rows)
        operands.passed(torch.ops.npu_kernels.train, data, schedules)
        for state in operands.states:
            state["step"] += schedules.shape[1]
        for parameter in operands.parameters:
            parameter.grad = None
        changed = [*operands.written, *operands.moments, self.losses]
        torch.autograd.graph.increment_version(changed)

    def kept(self, schedules: Tensor) -> tuple[int, Operands]:
        """Return the number of a plan that the library keeps, of one step, and its operands."""
        operands = self.operands(0, 1)
        x, y = (t.new_empty((*t.shape[:-2], 1, t.shape[-1])) for t in (self.x, self.y))
        data = Data(self.losses, x, y, self._no_weight, _NO_ROWS)
        train_plan = torch.ops.npu_kernels.train_plan
        return operands.passed(train_plan, data, schedules.clone()), operands

    def operands(self, done: int, steps: int) -> Operands:
        """Return what a call gets that makes some steps after `done`."""
        plan, optimizer = Plan(), self.optimizer
        layers = [layer for _, layer in chain(self.model) if isinstance(layer, BaseLayer)]
        parameters: list[Tensor] = [
            p for layer in layers for p in layer._parameters.values() if p is not None
        ]
        result = Operands(plan, parameters, [], [], [], [])
        plan.add(self._call(done, steps, len(layers)))
        index = {id(p): n for n, p in enumerate(parameters)}
        for layer in layers:
            kind = _KIND_NUMBERS[type(layer)]
            plan.add(Layer(kind, layer.in_features, layer.out_features))
            plan.add(_formula(layer, index, self.x.dtype))
        intervals = self._intervals(layers)
        integer_layers = [layer for layer in layers if layer.integer_weights]
        integer_keys = {id(p) for layer in integer_layers for p in layer._parameters.values()}
        groups = {id(p): n for n, g in enumerate(optimizer.param_groups) for p in g["params"]}
        updates: dict[tuple[int, bool], _Update] = {}
        for parameter in parameters:
            key = id(parameter)
            group = groups.get(key) if parameter.requires_grad else None
            low, high = intervals.get(key, _UNBOUNDED)
            plan.add(Parameter(group is not None, low, high))
            if group is not None or key in intervals:
                result.written.append(parameter)
            if group is not None:
                update = updates.get((group, key in integer_keys))
                if update is None:
                    update = updates[group, key in integer_keys] = _Update(
                        self, group, key in integer_keys
                    )
                state = optimizer.state[parameter]
                if not state:
                    _begin_state(state, update.names, parameter)
                result.trained.append(parameter)
                result.states.append(state)
                plan.add(Update(group, update.penalties, float(state["step"])))
                plan.extend(update.settings)
                result.moments.extend(state[name] for name in update.names)
        return result

    @functools.cached_property
    def _no_weight(self) -> Tensor:
        return self.x.new_empty(0)

    def _call(self, done: int, steps: int, layers: int) -> Call:
        return Call(
            rmsprop=isinstance(self.optimizer, torch.optim.RMSprop),
            models=self.models or 1,
            steps=steps,
            before=done,
            every=self.every,
            shared_x=self.models is not None and self.x.dim() == 2,
            shared_y=self.models is not None and self.y.dim() == 2,
            finite=self.finite,
            layers=layers,
        )

    def _intervals(self, layers: Sequence[BaseLayer]) -> dict[int, tuple[float, float]]:
        """Return the intervals that parameters are clamped into, by their identity."""
        if self.intervals is None:
            return {id(p): (low, high) for p, low, high in clamped(layers, self.gates, self.bound)}
        get = self.model.get_parameter
        return {id(get(name)): interval for name, interval in self.intervals.items()}


class _Update:
    """The part of the plan that a group's parameters with whole weights share, or its others."""

    def __init__(self, loop: Loop, group: int, integer_keys: bool) -> None:
        groups = loop.optimizer.param_groups
        self.names = state_names(loop.optimizer, groups[group])
        self.settings = Plan()
        self.penalties = 0  # their number
        for row, name in enumerate(loop.penalties, len(groups)):
            if integer_keys or name not in INTEGERS_ONLY:
                self.settings.add(Penalty(_PENALTY_NUMBERS[name], row))
                self.penalties += 1
        self.settings.add(_settings(loop.optimizer, groups[group]))


def state_names(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> list[str]:
    """Return the names of an optimizer's state of a parameter, without the number of steps."""
    if isinstance(optimizer, torch.optim.Adam):
        return ["exp_avg", "exp_avg_sq"]
    names = ["square_avg"]
    names += ["grad_avg"] if group["centered"] else []
    return names + (["momentum_buffer"] if group["momentum"] > 0 else [])


def _settings(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Adam | RMSprop:
    if isinstance(optimizer, torch.optim.RMSprop):
        values = {name: group[name] for name in RMSprop._fields}
        flags = {name: bool(group[name]) for name in ("maximize", "centered")}
        return RMSprop(**values | flags)
    beta1, beta2 = group["betas"]
    decoupled = group.get("decoupled_weight_decay", False)
    settings = {name: group[name] for name in ("maximize", "eps", "weight_decay")}
    settings["maximize"] = bool(settings["maximize"])
    return Adam(decoupled=bool(decoupled), beta1=beta1, beta2=beta2, **settings)


def _formula(layer: BaseLayer, index: Mapping[int, int], dtype: torch.dtype) -> tuple[Any, ...]:
    """Return the numbers of the parameters that are a layer's weights, and its options."""
    parameters = layer._parameters
    if isinstance(layer, PowerLayer):
        return Npu(
            weight_re=index.get(id(parameters["weight_re"]), -1),
            weight_im=index.get(id(parameters["weight_im"]), -1),
            gate=index.get(id(parameters["gate"]), -1),
            eps=torch.finfo(dtype).eps if layer.eps is None else layer.eps,
            straight_through=layer.gate_gradient == "straight_through",
        )
    weight = index.get(id(parameters["weight"]), -1)
    if isinstance(layer, NMRU):
        eps = layer.eps if layer.training else 0.0
        return Nmru(weight, eps, clip=layer.clip, separate=layer.sign == "separate")
    assert isinstance(layer, (NAU, NMU))
    return (Nau if isinstance(layer, NAU) else Nmu)(weight, layer.clip)


def _begin_state(state: dict[str, Tensor], names: Sequence[str], parameter: Tensor) -> None:
    """Fill an optimizer's empty state of a parameter as torch does at a first step."""
    number = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    state["step"] = torch.tensor(0.0, dtype=number, device="cpu")
    for name in names:
        state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
