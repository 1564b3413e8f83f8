"""A training continues from its checkpoint with the same settings, and refuses others."""

import copy
import hashlib
import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from npu_kernels.training import SteppedSchedule
from tests.conftest import needs_library
from tests.jobs.runs import X, Y, chain, trained
from tests.support import checkpoints
from tests.support.building import ROOT
from tests.support.compare import assert_equal

pytestmark = pytest.mark.filterwarnings("ignore:.*makes its steps one by one")


def frozen() -> nn.Sequential:
    model = chain()
    model[1].weight.requires_grad_(False)
    return model


ADAM, RMS = torch.optim.Adam, torch.optim.RMSprop
OTHER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # name: settings of the first call, what the second one changes, what is said
    "lr": ({}, {"lr": 0.1}, r"other optimizer.lr \(0.01, here 0.1\)$"),
    "lr, a function": ({}, {"lr": lambda step: 0.01},
                       r"other optimizer.lr \(0.01, here a function\)$"),
    "lr of an optimizer": ({"lr": None, "make": lambda p: ADAM(p, 0.01)},
                           {"make": lambda p: ADAM(p, 0.1)}, r"other optimizer.lr"),
    "lr, a tensor": ({"make": lambda p: ADAM(p, torch.tensor(0.01))},
                     {"make": lambda p: ADAM(p, torch.tensor(0.1))},
                     r"other optimizer.lr \(0.0\d+, here 0.1\d*\)$"),
    "optimizer": ({}, {"optimizer": "rmsprop"}, "other optimizer"),
    "betas": ({"make": ADAM}, {"make": lambda p: ADAM(p, betas=(0.5, 0.9))},
              r"other optimizer.betas \(\(0.9, 0.999\), here \(0.5, 0.9\)\)$"),
    "weight decay": ({"make": ADAM}, {"make": lambda p: ADAM(p, weight_decay=1)},
                     r"other optimizer.weight_decay \(0.0, here 1.0\)$"),
    "centered": ({"make": RMS}, {"make": lambda p: RMS(p, centered=True)},
                 r"other optimizer.centered \(False, here True\)$"),
    "parameters": ({"make": ADAM}, {"make": lambda p: ADAM(list(p)[1:])},
                   r"other optimizer.params"),
    "groups": ({"make": ADAM}, {"make": lambda p: ADAM([{"params": [q]} for q in p])},
               r"other optimizer.params.*, optimizer.betas"),
    "penalty": ({}, {"penalties": {"l1": SteppedSchedule(1e-3, 1.0, step=15), "madsen": 0.2}},
                r"other penalties \(.*'madsen': '0.1'"),
    "penalties": ({}, {"penalties": {}}, r"other penalties"),
    **{f"schedule {values}": ({}, {"penalties": {"l1": SteppedSchedule(*values), "madsen": 0.1}},
                              r"other penalties")
       for values in ((1e-4, 1.0, 15), (1e-3, 2.0, 15), (1e-3, 1.0, 16), (1e-3, 1.0, 15, 9.0))},
    "frozen": ({}, {"model": frozen},
               r"other requires_grad \(.*, here \['0.weight_re', '0.weight_im', '0.gate'\]\)$"),
    "model": ({}, {"model": lambda: chain(eps=1e-3)}, "other model$"),
    "dtype": ({}, {"model": lambda: chain().double(), "x": X.double(), "y": Y.double()},
              r"other dtype \(torch.float32, here torch.float64\), data$"),
    "steps": ({}, {"steps": 61}, r"other steps \(60, here 61\)$"),
    "record_every": ({}, {"record_every": 2}, r"other record_every \(1, here 2\)$"),
    "batch": ({}, {"batch_size": 9}, r"other batch_size \(8, here 9\)$"),
    "batch_indices": ({}, {"batch_size": None, "batch_indices": torch.zeros(60, 8, dtype=torch.long)},
             r"other batch_size \(8, here None\), generator"),
    "other rows": ({"batch_size": None, "batch_indices": torch.zeros(60, 8, dtype=torch.long)},
                   {"batch_indices": torch.ones(60, 8, dtype=torch.long)}, r"other data$"),
    "generator's seed": ({}, {"generator": torch.Generator().manual_seed(4)},
                         r"other generator \(cpu, seed 3, here cpu, seed 4\)$"),
    "no generator": ({}, {"generator": None}, r"other generator \(cpu, seed 3, here None\)$"),
    "gates": ({}, {"project": False}, r"other project \(\(True, None\), here \(False, None\)\)$"),
    "bound": ({}, {"project": 2.0}, r"other project \(\(True, None\), here \(True, 2.0\)\)$"),
    "nonfinite": ({}, {"nonfinite": "zero"}, r"other nonfinite \(False, here True\)$"),
    "x": ({}, {"x": X + 1e-6}, r"other data$"),
    "y": ({}, {"y": Y + 1e-6}, r"other data$"),
    "sample weight": ({}, {"sample_weight": torch.ones_like(Y)}, r"other data$"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER)
def test_a_run_of_other_settings_is_refused(name: str, tmp_path: Path) -> None:
    """Nothing of it is touched, and what differs is named."""
    first, change, said = OTHER[name]
    path = tmp_path / "run"
    lr = {"lr": None} if "make" in {**first, **change} else {}
    trained(path, 20, **{**lr, **first})
    content = path.read_bytes()
    change = {key: value() if key == "model" else value for key, value in change.items()}
    model = change.setdefault("model", chain())
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(
        ValueError,
        match=rf"^run: checkpoint must be .*{path.name}': it is of another run: .*{said}",
    ):
        trained(path, **{**lr, **first, **change})
    assert_equal(before, model.parameters())
    assert path.read_bytes() == content


SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "callback_every": ({}, {"callback_every": 7}),
    "how the optimizer computes": ({"lr": None, "make": ADAM},
                                   {"make": lambda p: ADAM(p, foreach=False)}),
    "numbers of other types": ({"make": lambda p: ADAM(p, weight_decay=1), "lr": 1},
                               {"make": lambda p: ADAM(p, weight_decay=1.0), "lr": 1.0}),
    "a tensor as rate": ({"lr": None, "make": lambda p: ADAM(p, torch.tensor(0.01))}, {}),
    "all rows": ({"batch_size": None}, {"generator": None}),
    "torch's generator": ({"generator": None}, {}),
    "functions": ({"lr": lambda step: 0.01 / step, "penalties": {"l1": lambda step: step / 100}},
                  {}),
    "a generator that was used": ({}, {"generator": "used"}),
    "a schedule that was used": ({}, {"penalties": "used"}),
}  # fmt: skip


@pytest.mark.parametrize("fused", [pytest.param(True, marks=needs_library), False])
@pytest.mark.parametrize("name", SAME)
def test_what_moves_comes_from_the_file(name: str, fused: bool, tmp_path: Path) -> None:
    """The numbers are those of a run without an interruption."""

    def model() -> nn.Sequential:
        return chain() if fused else chain().append(nn.Identity())

    first, change = SAME[name]
    torch.manual_seed(1)
    undisturbed = trained(None, model=model(), **copy.deepcopy(first))
    path = tmp_path / "run"
    torch.manual_seed(1)
    trained(path, 20, model=model(), **copy.deepcopy(first))
    if change.get("generator") == "used":
        generator = torch.Generator().manual_seed(3)
        torch.rand(5, generator=generator)
        change = {"generator": generator}
    if change.get("penalties") == "used":
        schedule = SteppedSchedule(1e-3, 1.0, step=15)
        for _ in range(40):
            schedule.step()
        change = {"penalties": {"l1": schedule, "madsen": 0.1}}
    torch.manual_seed(2)
    rest = trained(path, model=model(), **{**copy.deepcopy(first), **change})
    assert rest.fused is (fused and name != "a tensor as rate")
    assert torch.equal(undisturbed.losses, rest.losses)
    assert_equal(undisturbed.model.parameters(), rest.model.parameters())
    assert undisturbed.optimizer.param_groups[0]["lr"] == rest.optimizer.param_groups[0]["lr"]


def test_settings_that_callbacks_change_continue(tmp_path: Path) -> None:
    """Learning rate, weight decay and betas that a callback set come from the file."""

    def slower(part: Any) -> None:
        group = part.optimizer.param_groups[0]
        group["lr"], group["weight_decay"], group["betas"] = (
            0.1 / part.n_steps,
            part.n_steps / 1e4,
            (0.8, 0.9),
        )

    settings = {"callbacks": [slower], "lr": None, "make": lambda p: ADAM(p, 0.01, foreach=False)}
    undisturbed = trained(None, **settings)
    trained(tmp_path / "run", 20, **settings)
    rest = trained(tmp_path / "run", **settings)
    assert torch.equal(undisturbed.losses, rest.losses)
    assert undisturbed.optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    for name, value in undisturbed.optimizer.param_groups[0].items():
        assert name == "params" or rest.optimizer.param_groups[0][name] == value


class Noted(torch.optim.Optimizer):
    """An optimizer of its user's, whose state has numbers, text and tensors."""

    def __init__(self, parameters: Any, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "name": "noted", "amount": None})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("note", "begun")
                state["count"] = state.get("count", 0) + 1
                state["sum"] = 0.5 * state.get("sum", torch.zeros_like(parameter)) + parameter.grad
                parameter -= group["lr"] * self.factor() * state["sum"] / state["count"]

    def factor(self) -> float:
        return 1.0


class Own(Noted):
    """One whose step needs what no state of torch's has."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.given = 0.5

    def factor(self) -> float:
        return self.given


@pytest.mark.parametrize("make", [Noted, Own])
def test_an_own_optimizer(make: Any, tmp_path: Path) -> None:
    path, settings = tmp_path / "run", {"make": make, "lr": None}
    undisturbed = trained(None, **settings)
    trained(path, 20, **settings)
    assert torch.equal(trained(path, **settings).losses, undisturbed.losses)


@pytest.mark.parametrize("fused", [pytest.param(True, marks=needs_library), False])
def test_ended_at_the_beginning(
    fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C before the first step: the optimizer has no state yet."""
    models = [chain() if fused else chain().append(nn.Identity()) for _ in range(3)]
    undisturbed = trained(None, model=models[0])

    class Pressing(io.StringIO):
        def isatty(self) -> bool:  # the progress asks before the first step
            signal.raise_signal(signal.SIGINT)
            return False

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Pressing())
        assert trained(tmp_path / "run", model=models[1], progress=True).n_steps == 0
    assert torch.equal(trained(tmp_path / "run", model=models[2]).losses, undisturbed.losses)


TERMINATED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from tests.jobs.runs import trained

trained(Path(sys.argv[1]), callbacks=[lambda part: os.kill(os.getpid(), signal.SIGTERM)])
"""


def test_sigterm_ends_a_process_that_has_saved(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TERMINATED, str(tmp_path / "run"), str(ROOT)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGTERM
    part = checkpoints.load(tmp_path / "run", [])
    undisturbed, rest = trained(None), trained(tmp_path / "run")
    assert part["done"] == 10
    assert torch.equal(rest.losses, undisturbed.losses)


@pytest.mark.parametrize("kind", ["bfloat16", "negative bit", "conjugate bit"])
def test_a_run_of_any_data_is_saved_and_continued(kind: str, tmp_path: Path) -> None:
    if kind == "bfloat16":
        x, y, more = (
            X.bfloat16(),
            Y.bfloat16(),
            {"model": nn.Linear(2, 2, dtype=torch.bfloat16), "penalties": {}},
        )
    elif kind == "negative bit":
        x, y, more = torch._neg_view(-X), torch._neg_view(-Y), {"model": chain()}
        assert x.is_neg()
    else:
        x, y, more = torch.complex(X, -X).conj().imag, Y, {"model": chain()}
        assert x.is_neg()
    undisturbed, part, rest = (
        trained(path, end, x=x, y=y, **{**more, "model": copy.deepcopy(more["model"])})
        for path, end in ((None, None), (tmp_path / "run", 20), (tmp_path / "run", None))
    )
    assert part.n_steps == 20
    assert torch.equal(undisturbed.losses, rest.losses)
    assert_equal(undisturbed.model.parameters(), rest.model.parameters())
    if kind != "bfloat16":
        assert torch.equal(undisturbed.losses, trained(None).losses)


def test_the_data_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the run is saved: here behind each stretch, of a minute each."""
    digests, make, clock = [], hashlib.blake2b, [0.0]

    def noted(*arguments: Any, digest_size: int) -> Any:
        digests.append(digest_size)
        return make(*arguments, digest_size=digest_size)

    monkeypatch.setattr(hashlib, "blake2b", noted)
    monkeypatch.setattr(time, "monotonic", lambda: clock[-1])
    trained(tmp_path / "run", 30, callbacks=[lambda part: clock.append(clock[-1] + 60) and False])
    assert (digests.count(16), digests.count(32)) == (1, 3)  # of data, and of what is written


def numpy_rate(part: Any) -> None:
    part.optimizer.param_groups[0]["lr"] = numpy.float64(0.01)


class Counted:
    """A schedule whose state has numbers of NumPy's."""

    def __init__(self) -> None:
        self.calls = numpy.int64(0)

    def __call__(self, step: int) -> float:
        self.calls += 1
        return 1e-3 * float(self.calls)

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls, "on": numpy.bool_(True), numpy.str_("name"): numpy.str_("l1")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert [type(value) for value in state.values()] == [int, bool, str]
        self.calls = numpy.int64(state["calls"])


NUMPY: dict[str, Callable[[], dict[str, Any]]] = {
    "lr": lambda: {"lr": None, "make": lambda p: ADAM(p, numpy.logspace(-3, -1, 5)[1])},
    "betas": lambda: {"make": lambda p: ADAM(p, betas=(numpy.float64(0.8), numpy.float64(0.5)))},
    "momentum": lambda: {"make": lambda p: RMS(p, momentum=numpy.float32(0.5))},
    "lr of a callback": lambda: {"lr": None, "make": ADAM, "callbacks": [numpy_rate]},
    "a schedule's state": lambda: {"penalties": {"l1": Counted()}},
}


@pytest.mark.parametrize("name", NUMPY)
def test_numbers_of_numpy_are_saved(name: str, tmp_path: Path) -> None:
    undisturbed = trained(None, **NUMPY[name]())
    part = trained(tmp_path / "run", 20, **NUMPY[name]())
    rest = trained(tmp_path / "run", **NUMPY[name]())
    assert part.n_steps == 20
    assert torch.equal(undisturbed.losses, rest.losses)
    assert_equal(undisturbed.model.parameters(), rest.model.parameters())


@pytest.mark.parametrize("value", [numpy.ones(2), Path("."), lambda: 0, {"a": [1, {2j}, print]}],
                         ids=["array", "path", "function", "nested"])  # fmt: skip
def test_what_a_file_cannot_hold(
    value: Any, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """An error before the first step; later, a warning, and the former file stays."""
    made: list[Any] = []

    def make(parameters: Any) -> Any:
        made.append(ADAM(parameters))
        return made[-1]

    def note(part: Any) -> None:
        if part.n_steps == 20:
            trained(tmp_path / "run", 10, make=ADAM)
            made[-1].param_groups[0]["note"] = value

    model = chain()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(
        TypeError, match=r"^run: state\['optimizer'\]\['param_groups'\]\[0\]\['note'\]"
    ):
        trained(tmp_path / "new", model=model, make=lambda p: _noted(p, value))
    assert_equal(before, model.parameters())
    assert not (tmp_path / "new").exists()
    rest = trained(tmp_path / "run", make=make, callbacks=[note])
    assert rest.n_steps == 60
    (warning,) = [w for w in recwarn if "could not be written" in str(w.message)]
    assert "['note']" in str(warning.message)
    assert checkpoints.load(tmp_path / "run", [])["done"] == 10


def _noted(parameters: Any, value: Any) -> Any:
    optimizer = ADAM(parameters)
    optimizer.param_groups[0]["note"] = value
    return optimizer


@needs_library
def test_parameters_outside_of_the_model(tmp_path: Path) -> None:
    """They make no steps, so they need no state."""

    def make(parameters: Any) -> Any:
        return ADAM([*parameters, *nn.Linear(2, 2).parameters()], lr=0.01)

    undisturbed = trained(None, make=make)
    assert undisturbed.fused
    trained(tmp_path / "run", 20, make=make)
    assert torch.equal(trained(tmp_path / "run", make=make).losses, undisturbed.losses)
