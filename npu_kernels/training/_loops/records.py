"""The records of a plan for C++, whose fields have names there too (csrc/train_operator.cpp).

A plan is two lists, of integers and of numbers. A record adds its integers to the one and its
numbers to the other, in the order of its fields. C++ reads them in the order of its fields: `check`
compares the names.
"""

from __future__ import annotations

from typing import Any, NamedTuple, get_type_hints

from npu_kernels._operators import cpu


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
    steps_before: float  # that the optimiser has made


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
            "training steps and of npu_kernels/training/_loops/records.py differ in "
            f"{'; '.join(other)}. "
            f"Build it with `{cpu.build_command()}`"
        )


cpu.load()
if cpu.available()[0]:
    check(cpu.plan_fields())
