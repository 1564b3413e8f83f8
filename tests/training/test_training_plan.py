"""The operator `train`: a wrong plan is an error and no wrong access."""

import math
import mmap
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from npu_kernels.training import _plan as records
from tests.conftest import needs_library
from tests.support.building import run_forked

pytestmark = needs_library
ROOT = Path(__file__).resolve().parents[2]
K, STEPS, COUNT, BATCH, IN, HIDDEN, OUT = 3, 4, 6, 2, 2, 3, 2
SIZES = (HIDDEN * IN, HIDDEN * IN, IN, OUT * HIDDEN)  # of the parameters of an NPU and an NAU
NAMES = (
    "parameters", "state", "losses", "x", "y", "weight", "rows", "schedules", "integers", "numbers",
)  # fmt: skip


def right(rmsprop: bool = False) -> dict[str, Any]:
    """A plan of three models by names of its fields: a penalty, a frozen and clamped gate."""
    settings: Any = records.Adam(False, False, 0.9, 0.999, 1e-8, 0.0)
    if rmsprop:
        settings = records.RMSprop(False, True, 0.99, 1e-8, 0.0, 0.5)
    listed: list[tuple[str, Any]] = [
        ("call", records.Call(rmsprop, K, STEPS, 1, 2, True, False, False, 2)),
        ("layer 0", records.Layer(0, IN, HIDDEN)),
        ("npu", records.Npu(0, 1, 2, 1e-6, 0.0)),
        ("layer 1", records.Layer(3, HIDDEN, OUT)),
        ("nau", records.Nau(3, 1.0)),
    ]
    for n in range(len(SIZES)):
        low, high = (0.0, 1.0) if n == 2 else (-math.inf, math.inf)
        listed.append((f"parameter {n}", records.Parameter(n != 2, low, high)))
        if n != 2:
            listed.append((f"update {n}", records.Update(0, int(n == 3), 1.0)))
            if n == 3:
                listed.append(("penalty", records.Penalty(2, 1)))
            listed.append((f"settings {n}", settings))
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    moments = 3 if rmsprop else 2
    return {
        "records": dict(listed),
        "parameters": [draw(K, size) for size in SIZES],
        "state": [torch.full((K, SIZES[n]), 0.1) for n in (0, 1, 3) for _ in range(moments)],
        "losses": torch.zeros(3, K),
        "x": draw(COUNT, IN) + 0.5,
        "y": draw(K, COUNT, OUT),
        "weight": draw(K, COUNT, OUT),
        "rows": torch.randint(COUNT, (STEPS, BATCH), generator=generator),
        "schedules": torch.full((2, STEPS), 0.01, dtype=torch.float64),
    }


def call(plan: dict[str, Any]) -> None:
    lists = records.Plan()
    for record in plan["records"].values():
        lists.add(record)
    plan = {"integers": lists.integers, "numbers": lists.numbers, **plan}
    torch.ops.npu_kernels.train(*(plan[name] for name in NAMES))


def test_the_right_plans() -> None:
    for rmsprop in (False, True):
        plan = right(rmsprop)
        before = [p.clone() for p in plan["parameters"]]
        call(plan)
        changed = [
            not torch.equal(p, old) for p, old in zip(plan["parameters"], before, strict=True)
        ]
        assert changed == [True, True, False, True]
        assert (plan["losses"][1:] > 0).all()
        assert not plan["losses"][0].any()  # of steps before


@pytest.mark.parametrize(("low", "high"), [(0.5, math.inf), (-math.inf, 0.5)])
def test_intervals_of_one_end(low: float, high: float) -> None:
    """A parameter may be trained, or not."""
    plan = right()
    before = [p.clone() for p in plan["parameters"]]
    for n in (2, 3):
        field(f"parameter {n}", low=low, high=high)(plan)
    call(plan)
    assert torch.equal(plan["parameters"][2], before[2].clamp(low, high))
    assert not torch.equal(plan["parameters"][2], before[2])
    trained = plan["parameters"][3]
    assert torch.equal(trained, trained.clamp(low, high))


def call_with_memory_that_is_only_read() -> None:
    plan = right()
    count = plan["parameters"][0].numel()
    memory = mmap.mmap(-1, 4 * count, prot=mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing may be written there
        plan["parameters"][0] = torch.frombuffer(memory, dtype=torch.float32, count=count).view(
            K, -1
        )
    plan["records"]["parameter 0"] = records.Parameter(False, -math.inf, math.inf)
    for name in ("update 0", "settings 0"):
        del plan["records"][name]
    del plan["state"][:2]
    call(plan)
    print((plan["losses"][1:] > 0).all().item())


@pytest.mark.skipif(sys.platform == "win32", reason="its mmap has other arguments")
def test_a_frozen_parameter_without_bounds_is_not_written() -> None:
    assert in_a_process("call_with_memory_that_is_only_read") == "True\n"


# ---- wrong ones ----------------------------------------------------------------------------------


def field(record: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    def change(plan: dict[str, Any]) -> None:
        plan["records"][record] = plan["records"][record]._replace(**values)

    return change


def tensor(
    name: str, change: Callable[[Tensor], Tensor], index: int | None = None
) -> Callable[[dict[str, Any]], None]:
    def replace(plan: dict[str, Any]) -> None:
        if index is None:
            plan[name] = change(plan[name])
        else:
            plan[name][index] = change(plan[name][index])

    return replace


def freed(t: Tensor) -> Tensor:
    t.untyped_storage().resize_(0)
    return t


def smaller(t: Tensor) -> Tensor:
    t.untyped_storage().resize_(t.nbytes - 1)
    return t


def same(
    name: str, index: int, other: str, of: int | None = None
) -> Callable[[dict[str, Any]], None]:
    """One of the lists' tensors is another one, of the same size."""

    def change(plan: dict[str, Any]) -> None:
        plan[name][index] = plan[other] if of is None else plan[other][of]

    return change


def overlap(plan: dict[str, Any]) -> None:
    memory = torch.zeros(2 * K * SIZES[0])
    plan["state"][0] = memory[: K * SIZES[0]].view(K, SIZES[0])
    plan["state"][1] = memory[K * SIZES[0] - 1 : -1].view(K, SIZES[0])


def losses_in_schedules(plan: dict[str, Any]) -> None:
    memory = torch.full((2, STEPS), 0.01, dtype=torch.float64)
    plan["schedules"] = memory
    plan["losses"] = memory.view(torch.float32).flatten()[:9]


def without(*names: str) -> Callable[[dict[str, Any]], None]:
    return lambda plan: [plan["records"].pop(name) for name in names] and None


Cases = dict[str, tuple[Callable[[dict[str, Any]], None], str]]


def fields(record: str, name: str, values: Iterable[int], message: str) -> Cases:
    """Cases "name value": one field of a record; the message may quote both."""
    return {
        f"{name} {n}": (field(record, **{name: n}), message.format(n=n, name=name)) for n in values
    }


def members(name: str, title: str, change: Callable[[Tensor], Tensor], indices: range) -> Cases:
    """Cases in which one tensor of a list has another size."""
    return {title.format(n): (tensor(name, change, n), SIZE) for n in indices}


def strided(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT


HUGE = 2**62
NOT_A_PARAMETER = "parameter {n}, {name} of .*, is not there, or belongs to two"
SIZE = "must have .* elements|sizes are too large|features from one that has others"
WRONG: Cases = {
    # sizes
    **fields("call", "models", (0, -1, -HUGE), "models must be positive"),
    **fields("call", "models", (2, 4, 2**32, 2**61, HUGE, 2**63 - 1), SIZE),
    **fields("call", "steps", (0, -1), "steps must be positive"),
    **fields("call", "steps", (3, 5, HUGE, 2**63 - 1), "schedules must have"),
    **fields("call", "every", (0, -2), "every must be positive"),
    **fields("call", "every", (1,), "losses must have 5 rows"),
    **fields("call", "before", (-1, -HUGE, 2**63 - 1), "before must be at least 0"),
    **fields("call", "before", (3, 2**61, HUGE), "losses must have|too large"),
    **fields("call", "layers", (0, -1), "layers must be positive"),
    **fields("call", "layers", (1, 3, HUGE), "train: "),
    **fields("layer 0", "in_features", (0,), "in_features must be positive"),
    **fields("layer 0", "out_features", (-1,), "out_features must be positive"),
    **fields("layer 0", "in_features", (1, 3, 2**40, HUGE, 2**63 - 1), SIZE),
    **fields("layer 1", "out_features", (1, 3, 2**40, HUGE, 2**63 - 1), SIZE),
    "features between": (field("layer 0", out_features=2), "features from one that has others"),
    # flags
    **{
        f"{name} {n}": (field("call", **{name: n}), f"{name} must be 0 or 1, got {n}")
        for name in ("rmsprop", "shared_x", "shared_y", "finite")
        for n in (-1, 2)
    },
    "trained 2": (field("parameter 0", trained=2), "trained must be 0 or 1"),
    "maximize 2": (field("settings 0", maximize=2), "maximize must be 0 or 1"),
    "decoupled -1": (field("settings 0", decoupled=-1), "decoupled must be 0 or 1"),
    "shared_x": (field("call", shared_x=False), "must have 12 elements"),
    "shared_y": (field("call", shared_y=True), "y must have"),
    "rmsprop": (field("call", rmsprop=True), "train: "),
    # indices
    **fields("layer 0", "kind", (-1, 4, HUGE), "there is no kind of layer"),
    "another kind": (field("layer 0", kind=1), "train: "),
    **fields("npu", "weight_re", (-1, -2, 4, HUGE), NOT_A_PARAMETER),
    **fields("npu", "weight_im", (-2, 0, 4), NOT_A_PARAMETER),
    **fields("npu", "gate", (-2, 0, 9), NOT_A_PARAMETER),
    **fields("nau", "weight", (-1, 0, 4, -HUGE), NOT_A_PARAMETER),
    "no gate": (field("npu", gate=-1), "parameter 2 belongs to no layer"),
    "swapped": (field("npu", weight_im=2, gate=1), "must have .* elements"),
    **fields("update 0", "rate", (-1, 2, HUGE), "there is no schedule"),
    **fields("penalty", "schedule", (-1, 2), "there is no schedule"),
    **{f"penalty {n}": (field("penalty", kind=n), "there is no kind of penalty") for n in (-1, 4)},
    "penalties -1": (field("update 0", penalties=-1), "penalties must be at least 0"),
    "penalties HUGE": (field("update 0", penalties=HUGE), "train: "),
    # numbers
    **{
        f"nan {record} {name}": (field(record, **{name: math.nan}), "number .* of the plan is nan")
        for record, names in (
            ("npu", ("eps", "straight_through")),
            ("nau", ("clip",)),
            ("parameter 0", ("low", "high")),
            ("update 0", ("steps_before",)),
            ("settings 0", ("beta1", "beta2", "eps", "weight_decay")),
        )
        for name in names
    },
    "interval": (field("parameter 2", low=2.0), "an interval must not be empty"),
    "steps_before": (field("update 0", steps_before=-1.0), "steps_before must be at least 0"),
    # lists
    "no records": (lambda plan: plan["records"].clear(), "ends too early"),
    "too few records": (without("settings 3"), "ends too early"),
    "too many records": (lambda plan: plan["records"].update(more=records.Layer(1, 1, 1)),
                         "more than its layers"),
    "too many numbers": (lambda plan: plan.update(numbers=[0.0] * 99), "train: "),
    "no numbers": (lambda plan: plan.update(numbers=[]), "ends too early"),
    "no integers": (lambda plan: plan.update(integers=[]), "ends too early"),
    "no parameters": (lambda plan: plan["parameters"].clear(), "is not there"),
    "too few parameters": (lambda plan: plan["parameters"].pop(), "is not there"),
    "too many parameters": (lambda plan: plan["parameters"].append(torch.rand(K)),
                            "belongs to no layer"),
    "no state": (lambda plan: plan["state"].clear(), "ends too early"),
    "too few states": (lambda plan: plan["state"].pop(), "ends too early"),
    "too many states": (lambda plan: plan["state"].append(torch.rand(K)), "more than its layers"),
    # tensors
    **{
        f"{name} {change.__name__}": (tensor(name, change), f"{name} must have memory for its shape")
        for name in ("losses", "x", "y", "weight", "rows", "schedules")
        for change in (freed, smaller)
    },
    **{
        f"{name} {n} {change.__name__}": (tensor(name, change, n), "must have memory for its shape")
        for name, indices in (("parameters", (0, 2, 3)), ("state", (0, 1, 5)))
        for n in indices
        for change in (freed, smaller)
    },
    **members("parameters", "parameter {} larger", lambda t: t.repeat(1, 2), range(4)),
    **members("parameters", "parameter {} smaller", lambda t: t[:, 1:].clone(), range(4)),
    **members("state", "state {} larger", lambda t: t.repeat(1, 2), range(6)),
    **members("state", "state {} smaller", lambda t: t[:-1].clone(), range(6)),
    "losses double": (tensor("losses", Tensor.double), "has another dtype"),
    "y double": (tensor("y", Tensor.double), "has another dtype"),
    "weight double": (tensor("weight", Tensor.double), "has another dtype"),
    "x half": (tensor("x", Tensor.half), "x must be float32 or float64"),
    "x double": (tensor("x", Tensor.double), "has another dtype"),
    "x integers": (tensor("x", Tensor.long), "x must be float32 or float64"),
    "parameter double": (tensor("parameters", Tensor.double, 0), "a parameter has another dtype"),
    "state double": (tensor("state", Tensor.double, 5), "a state has another dtype"),
    "rows int32": (tensor("rows", Tensor.int), "rows has another dtype"),
    "schedules float": (tensor("schedules", Tensor.float), "schedules has another dtype"),
    "y strided": (tensor("y", strided), "must be contiguous, on the CPU"),
    "weight strided": (tensor("weight", strided), "must be contiguous, on the CPU"),
    "rows strided": (tensor("rows", strided), "must be contiguous, on the CPU"),
    "schedules strided": (tensor("schedules", strided), "must be contiguous, on the CPU"),
    "parameter strided": (tensor("parameters", strided, 0), "must be contiguous"),
    "state strided": (tensor("state", strided, 0), "must be contiguous"),
    "parameter on meta": (tensor("parameters", lambda t: t.to("meta"), 0), ""),
    "x on meta": (tensor("x", lambda t: t.to("meta")), ""),
    "no rows in x": (tensor("x", lambda t: t[:0]), "there are no rows"),
    "rows of x": (tensor("x", lambda t: t[:5].clone()), "y must have"),
    "elements of x": (tensor("x", lambda t: t.flatten()[:-1].clone()), "x must have 10 elements"),
    "rows of y": (tensor("y", lambda t: t[:, 1:].clone()), "y must have 36 elements"),
    "weight of another size": (tensor("weight", lambda t: t[:1].clone()),
                               "weight must have 36 elements"),
    "row -1": (tensor("rows", lambda t: t.index_fill(1, torch.tensor([1]), -1)),
               "rows must lie within"),
    "row too large": (tensor("rows", lambda t: t.index_fill(1, torch.tensor([0]), COUNT)),
                      "rows must lie within"),
    "row huge": (tensor("rows", lambda t: t.index_fill(1, torch.tensor([0]), HUGE)),
                 "rows must lie within"),
    "rows of other steps": (tensor("rows", lambda t: t.flatten()[:-1].clone()),
                            "rows must have 4 elements"),
    "rows of fewer steps": (tensor("rows", lambda t: t[:1, :1].clone()),
                            "rows must have one for each step"),
    "schedules flat": (tensor("schedules", Tensor.flatten), "schedules must have 4 columns"),
    "schedules of other steps": (tensor("schedules", lambda t: t[:, 1:].clone()),
                                 "schedules must have 4 columns"),
    "one schedule": (tensor("schedules", lambda t: t[:1]), "there is no schedule 1"),
    "no schedules": (tensor("schedules", lambda t: t[:0]), "there is no schedule 0"),
    "no losses": (tensor("losses", lambda t: t[:0]), "losses must have 3 rows"),
    "too few losses": (tensor("losses", lambda t: t.flatten()[1:].clone()),
                       "losses must have 3 rows"),
    # memory that is written twice, or read and written
    "parameter twice": (same("parameters", 0, "parameters", 1),
                        "a parameter lies in the memory of a parameter"),
    "state twice": (same("state", 0, "state", 1), "a state lies in the memory of a state"),
    "state as parameter": (same("state", 0, "parameters", 0), "lies in the memory of"),
    "part of a state": (overlap, "a state lies in the memory of a state"),
    "losses as schedules": (losses_in_schedules, "lies in the memory of"),
}  # fmt: skip
SCRIPT = """
from tests.training import test_training_plan as plans
plans.{function}({argument})
"""


def call_wrong_plans() -> None:
    """Print each name before its call, and what the call raised after it."""
    for rmsprop in (False, True):
        for name, (change, _) in WRONG.items():
            plan = right(rmsprop)
            if rmsprop and name in (
                "rmsprop",
                "decoupled -1",
                "nan settings 0 beta1",
                "nan settings 0 beta2",
            ):
                continue  # the same plan, or a field that it does not have
            change(plan)
            print(f"{rmsprop} {name}", end=": ", flush=True)
            try:
                call(plan)
            except Exception as error:
                print(type(error).__name__, str(error).replace("\n", " "), flush=True)
            else:
                print("no error", flush=True)


def call_drawn_plans(count: int) -> None:
    """Call plans with fields changed at random: an error or a result, no crash."""
    draw, raised = random.Random(7), 0
    values = [-(2**63), -HUGE, -2, -1, 0, 1, 2, 3, 4, 5, 7, 2**31, 2**32, 2**61, HUGE, 2**63 - 1]
    for number in range(count):
        plan = right(bool(number % 2))
        lists = records.Plan()
        for record in plan["records"].values():
            lists.add(record)
        plan["integers"], plan["numbers"] = lists.integers, lists.numbers
        changes = [corrupt(plan, draw, values) for _ in range(draw.randint(1, 3))]
        print(number, *changes, end=": ", flush=True)
        try:
            call(plan)
        except RuntimeError as error:
            raised += 1
            print(str(error).partition("\n")[0], flush=True)
        else:
            print("returns", flush=True)
    print(f"{raised} of {count} raised")


def corrupt(plan: dict[str, Any], draw: random.Random, values: list[int]) -> str:
    name = draw.choice((*NAMES, "integers", "integers", "integers"))
    value = plan[name]
    if name in ("integers", "numbers"):
        index = draw.randrange(len(value)) if value else 0
        kind = draw.choice(("value", "value", "value", "remove", "insert"))
        new = draw.choice(values)
        if kind == "remove":
            del value[index : index + 1]
        else:
            value[index : index + (kind == "value")] = [
                new if name == "integers" else draw.choice((new, math.nan))
            ]
        return f"{name} {kind} {index} {new};"
    if isinstance(value, list):
        index = draw.randrange(len(value))
        value[index], how = another(value[index], draw)
        return f"{name} {index} {how};"
    plan[name], how = another(value, draw)
    return f"{name} {how};"


def another(t: Tensor, draw: random.Random) -> tuple[Tensor, str]:
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "freed": freed,
        "smaller": smaller,
        "shorter": lambda t: t[1:].clone(),
        "longer": lambda t: torch.cat([t, t]),
        "flat": Tensor.flatten,
        "empty": lambda t: t[:0],
        "double": Tensor.double,
        "long": Tensor.long,
        "large": lambda t: t * 2**40,
        "transposed": lambda t: t.mT,
        "expanded": lambda t: t.flatten()[:1].expand(t.shape),
    }
    how = draw.choice(list(changes))
    if t.untyped_storage().nbytes() < t.nbytes:  # freed before: torch would read it
        return t, "as before"
    return changes[how](t), how


def in_a_process(function: str, argument: str = "") -> str:
    """What the function prints; a crash fails the test, with the last call's name."""
    script = SCRIPT.format(function=function, argument=argument)
    process = run_forked(script)
    assert process.returncode == 0, process.stdout[-500:] + process.stderr[-2000:]
    return process.stdout


def test_wrong_plans_are_errors() -> None:
    assert len(WRONG) > 100
    rows = [line.partition(": ") for line in in_a_process("call_wrong_plans").splitlines()]
    answers = {
        name.removeprefix("False "): answer for name, _, answer in rows if name.startswith("False ")
    }
    assert answers.keys() == WRONG.keys()
    errors = "(RuntimeError|NotImplementedError) "
    assert not [
        line
        for line in answers.items()
        if not re.match(f"{errors}.*({WRONG[line[0]][1]})", line[1])
    ]
    rmsprop = {
        name.removeprefix("True "): answer for name, _, answer in rows if name.startswith("True ")
    }
    assert len(rmsprop) > 100
    # Some fields mean something else, with another message.
    assert not [line for line in rmsprop.items() if not re.match(errors, line[1])]


def test_drawn_plans_do_not_crash() -> None:
    raised = re.search(r"(\d+) of 400 raised", in_a_process("call_drawn_plans", "400"))
    assert raised
    assert 200 < int(raised[1]) < 400
