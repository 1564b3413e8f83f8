"""What all work with a checkpoint shares: digests and fingerprints, and files that hold something
else."""

from __future__ import annotations

import copy
import math
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, NMRU, NPU, RealNPU, fit, fitting, ode
from npu_kernels._jobs import checkpoints, files, saved
from npu_kernels._jobs.checkpoints import described, digest
from npu_kernels._jobs.progress import Progress
from npu_kernels.fitting._scale import with_coefficient
from npu_kernels.layers import Unit
from npu_kernels.training import SteppedSchedule, run
from tests.conftest import needs_library
from tests.support.compare import assert_equal
from tests.support.fits import SHORT, hard
from tests.support.time_series import T, known, predators

pytestmark = pytest.mark.filterwarnings("ignore:.*makes its steps one by one")

DTYPES = (
    torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip


# ---- digests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_digest_of_every_dtype(dtype: torch.dtype) -> None:
    """It tells values, dtypes and shapes apart, and not how they lie in memory."""
    raw = (
        torch.arange(24, dtype=torch.uint8) % 2
        if dtype is torch.bool
        else torch.arange(24, dtype=torch.uint8)
    )
    tensor = raw.view(dtype).reshape(-1, 1).expand(-1, 2)
    changed = tensor.clone()
    changed.view(torch.uint8).view(-1)[-1] ^= 1
    assert digest(tensor) == digest(tensor.clone())
    assert digest(tensor) == digest(tensor.clone().T.contiguous().T)
    assert len(
        {
            digest(tensor),
            digest(changed),
            digest(tensor.flatten()),
            digest(tensor.clone().view(torch.uint8)),
        }
    ) == (3 if dtype is torch.uint8 else 4)
    assert digest(tensor[:0]) != digest(tensor[:0].flatten())
    assert digest(tensor.flatten()[::3]) == digest(tensor.flatten()[::3].clone())


def test_digest_of_lazy_signs() -> None:
    x = torch.randn(5, 3)
    assert digest(torch._neg_view(x)) == digest(-x)
    z = torch.randn(5, 3, dtype=torch.complex64)
    assert digest(z.conj()) == digest(torch.conj_physical(z))
    assert digest(z.conj().imag) == digest(-z.imag)


def test_digest_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for every size of the pieces, and every piece counts."""
    x = torch.randn(10)
    expected = digest(x)
    monkeypatch.setattr(checkpoints, "PIECE", 3)
    assert digest(x) == expected
    for index in range(10):
        other = x.clone()
        other[index] += 1
        assert digest(other) != expected


def test_digest_tells_parts_apart() -> None:
    @dataclass
    class One:
        a: Any
        b: Any

    parts = [(1, 23), (12, 3), ("1", 23), (123,), (One(1, 23),), (One(12, 3),), (None,), ()]
    assert len({digest(*values) for values in parts}) == len(parts)
    assert digest(One(torch.ones(2), 1)) == digest(One(torch.ones(2), 1))


# ---- fingerprints --------------------------------------------------------------------------------


def test_description_of_a_model() -> None:
    """All that decides its numbers, but for the values of its parameters."""

    class Buffered(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(size), persistent=False)

    models = [
        NMRU(2, 3), NMRU(2, 3, eps=1e-3), NMRU(2, 3, clip=False), NMRU(2, 3, num_models=2), NMRU(2, 3).eval(),
        NPU(2, 3), NPU(2, 3, gate_gradient="straight_through"), NPU(2, 3, eps=1e-3), nn.Linear(2, 3),
        nn.Sequential(nn.Linear(2, 3)), Buffered(1), Buffered(2), nn.Dropout(0.5), nn.Dropout(0.5).eval(),
    ]  # fmt: skip
    assert len({described(model, Unit) for model in models}) == len(models)
    assert described(NMRU(2, 3), Unit) == described(NMRU(2, 3), Unit)


X, Y = torch.rand(30, 2, generator=torch.Generator().manual_seed(0)) + 0.5, None
Y = torch.stack([X.prod(1), X[:, 0] / X[:, 1]], 1)


def chain(**options: Any) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(NPU(2, 3, **options), NAU(3, 2))


def trained(path: Path | None, end_at: int | None = None, **change: Any) -> Any:
    """A run of 60 steps, with some of its settings changed."""
    model = change.pop("model", None) or chain()
    settings: dict[str, Any] = {
        "steps": 60, "lr": 0.01, "batch_size": 8, "stretch": 10, "generator": torch.Generator().manual_seed(3),
        "penalties": {"l1": SteppedSchedule(1e-3, 1.0, step=15), "madsen": 0.1}, "progress": False,
    }  # fmt: skip
    settings |= change
    x, y = settings.pop("x", X), settings.pop("y", Y)
    make = settings.pop("make", None)
    if make is not None:
        settings["optimizer"] = make(model.parameters())
    callbacks = settings.pop("callbacks", [])
    return run(
        model,
        x,
        y,
        checkpoint=path,
        callbacks=[*callbacks, lambda part: part.steps == end_at],
        **settings,
    )


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
    "lr of an optimiser": ({"lr": None, "make": lambda p: ADAM(p, 0.01)},
                           {"make": lambda p: ADAM(p, 0.1)}, r"other optimizer.lr"),
    "lr, a tensor": ({"make": lambda p: ADAM(p, torch.tensor(0.01))},
                     {"make": lambda p: ADAM(p, torch.tensor(0.1))},
                     r"other optimizer.lr \(0.0\d+, here 0.1\d*\)$"),
    "optimiser": ({}, {"optimizer": "rmsprop"}, "other optimizer"),
    "betas": ({"make": ADAM}, {"make": lambda p: ADAM(p, betas=(0.5, 0.9))},
              r"other optimizer.betas \(\(0.9, 0.999\), here \(0.5, 0.9\)\)$"),
    "eps": ({"make": ADAM}, {"make": lambda p: ADAM(p, eps=0.1)},
            r"other optimizer.eps \(1e-08, here 0.1\)$"),
    "weight decay": ({"make": ADAM}, {"make": lambda p: ADAM(p, weight_decay=1)},
                     r"other optimizer.weight_decay \(0.0, here 1.0\)$"),
    "maximize": ({"make": ADAM}, {"make": lambda p: ADAM(p, maximize=True)},
                 r"other optimizer.maximize \(False, here True\)$"),
    "alpha": ({"make": RMS}, {"make": lambda p: RMS(p, alpha=0.5)},
              r"other optimizer.alpha \(0.99, here 0.5\)$"),
    "momentum": ({"make": RMS}, {"make": lambda p: RMS(p, momentum=0.5)},
                 r"other optimizer.momentum \(0.0, here 0.5\)$"),
    "centered": ({"make": RMS}, {"make": lambda p: RMS(p, centered=True)},
                 r"other optimizer.centered \(False, here True\)$"),
    "parameters": ({"make": ADAM}, {"make": lambda p: ADAM(list(p)[1:])},
                   r"other optimizer.params"),
    "groups": ({"make": ADAM}, {"make": lambda p: ADAM([{"params": [q]} for q in p])},
               r"other optimizer.params.*, optimizer.betas"),
    "penalty": ({}, {"penalties": {"l1": SteppedSchedule(1e-3, 1.0, step=15), "madsen": 0.2}},
                r"other penalties \(.*'madsen': '0.1'"),
    "penalties": ({}, {"penalties": {}}, r"other penalties"),
    "schedule's start": ({},
                         {"penalties": {"l1": SteppedSchedule(1e-4, 1.0, step=15), "madsen": 0.1}},
                         r"other penalties"),
    "schedule's end": ({},
                       {"penalties": {"l1": SteppedSchedule(1e-3, 2.0, step=15), "madsen": 0.1}},
                       r"other penalties"),
    "schedule's step": ({},
                        {"penalties": {"l1": SteppedSchedule(1e-3, 1.0, step=16), "madsen": 0.1}},
                        r"other penalties"),
    "schedule's growth": ({},
                          {"penalties": {"l1": SteppedSchedule(1e-3, 1.0, 15, 9.0), "madsen": 0.1}},
                          r"other penalties"),
    "frozen": ({}, {"model": frozen},
               r"other requires_grad \(.*, here \['0.weight_re', '0.weight_im', '0.gate'\]\)$"),
    "model": ({}, {"model": lambda: chain(eps=1e-3)}, "other model$"),
    "dtype": ({}, {"model": lambda: chain().double(), "x": X.double(), "y": Y.double()},
              r"other dtype \(torch.float32, here torch.float64\), data$"),
    "steps": ({}, {"steps": 61}, r"other steps \(60, here 61\)$"),
    "every": ({}, {"every": 2}, r"other every \(1, here 2\)$"),
    "batch": ({}, {"batch_size": 9}, r"other batch_size \(8, here 9\)$"),
    "rows": ({}, {"batch_size": None, "rows": torch.zeros(60, 8, dtype=torch.long)},
             r"other batch_size \(8, here None\), generator"),
    "other rows": ({"batch_size": None, "rows": torch.zeros(60, 8, dtype=torch.long)},
                   {"rows": torch.ones(60, 8, dtype=torch.long)}, r"other data$"),
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
    "stretch": ({}, {"stretch": 7}),
    "how the optimiser computes": ({"lr": None, "make": ADAM},
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
    """A callback's own learning rate, weight decay and betas come from the file; the run is the
    same run."""

    def slower(part: Any) -> None:
        group = part.optimizer.param_groups[0]
        group["lr"], group["weight_decay"], group["betas"] = (
            0.1 / part.steps,
            part.steps / 1e4,
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
    """An optimiser of its user's, whose state has numbers, text and tensors."""

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
def test_an_own_optimiser(make: Any, tmp_path: Path) -> None:
    path, settings = tmp_path / "run", {"make": make, "lr": None}
    undisturbed = trained(None, **settings)
    trained(path, 20, **settings)
    content = path.read_bytes()
    assert torch.equal(trained(path, **settings).losses, undisturbed.losses)
    for key, value in (("note", 3), ("count", "x"), ("count", True), ("sum", torch.zeros(1))):
        path.write_bytes(content)
        state = files.load(path, [])
        state["optimizer"]["state"][0][key] = value
        files.save(path, state)
        if make is Noted:
            with pytest.raises(
                ValueError, match=rf"its optimizer's state of parameter 0, {key}, must be "
            ):
                trained(path, **settings)
    state["optimizer"]["state"][0] = [1]
    files.save(path, state)
    with pytest.raises(ValueError, match=r"its optimizer's state of parameter 0 must be a dict"):
        trained(path, **settings)


@pytest.mark.parametrize("fused", [pytest.param(True, marks=needs_library), False])
def test_ended_at_the_beginning(
    fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C before the first step: the optimiser has no state yet."""
    models = [chain() if fused else chain().append(nn.Identity()) for _ in range(3)]
    undisturbed, enter = trained(None, model=models[0]), Progress.__enter__

    def press(bar: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return enter(bar)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "__enter__", press)
        assert trained(tmp_path / "run", model=models[1]).steps == 0
    assert torch.equal(trained(tmp_path / "run", model=models[2]).losses, undisturbed.losses)


def test_a_generator_where_no_rows_are_drawn(tmp_path: Path) -> None:
    path, settings = tmp_path / "run", {"batch_size": None, "generator": None}
    trained(path, 20, **settings)
    state = files.load(path, [])
    state["generator"] = torch.Generator().get_state()
    files.save(path, state)
    with pytest.raises(ValueError, match=r"its generator must be None, since no rows are drawn"):
        trained(path, **settings)


def test_tensors_of_a_file_get_memory_of_their_own() -> None:
    """Whatever strides, signs and records of gradients they have there: kernels write to them."""
    for value in (
        torch.ones(1).expand(5),
        torch.ones(10)[::2],
        nn.Parameter(torch.ones(5)),
        torch._neg_view(-torch.ones(5)),
    ):
        read = saved.tensor(value, "x", (5,), torch.float32)
        assert read.is_contiguous()
        assert not (read.requires_grad)
        assert not (read.is_neg())
        assert read.untyped_storage().nbytes() == 20
        assert read.data_ptr() != value.data_ptr()
    for wrong in (
        torch.ones(5, device="meta"),
        torch.ones(5).to_sparse(),
        torch.ones(5).to_mkldnn(),
        [1.0] * 5,
    ):
        with pytest.raises(
            ValueError, match=r"^its x must be a tensor of torch.float32 and shape \(5\), got"
        ):
            saved.tensor(wrong, "x", (5,), torch.float32)
    bounds: tuple[Any, ...] = ("x", (2,), torch.float32, "cpu", 0.0, 1.0)
    assert len(saved.tensor(torch.tensor([0.0, 1.0]), *bounds)) == 2
    for wrong in ([-0.1, 1.0], [0.0, 1.1], [0.0, math.nan]):
        with pytest.raises(ValueError, match=r"^its x must lie within \[0.0, 1.0\]"):
            saved.tensor(torch.tensor(wrong), *bounds)


def test_numbers_of_a_file() -> None:
    assert [saved.integer(n, "n", 2, 4) for n in (2, 4)] == [2, 4]
    assert [saved.number(n, "n", 2.0) for n in (2, 2.0, 1e300)] == [2, 2.0, 1e300]
    assert saved.number(math.inf, "n", finite=False) == math.inf
    for wrong in (1, 5, 2.0, True, "2", None, torch.tensor(2)):
        with pytest.raises(
            ValueError, match=r"^its n must be an integer of at least 2, at most 4, got"
        ):
            saved.integer(wrong, "n", 2, 4)
    for wrong in (1.9, math.inf, math.nan, True, "2", None, torch.tensor(2.0)):
        with pytest.raises(ValueError, match=r"^its n must be a number of at least 2.0, got"):
            saved.number(wrong, "n", 2.0)
    for wrong in (True, "2", None):
        with pytest.raises(ValueError, match=r"^its n must be a number, got"):
            saved.number(wrong, "n", finite=False)
    with pytest.raises(ValueError, match=r"got 'a{99}[.]{3}$"):
        saved.number("a" * 1000, "n")


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
    assert part.steps == 20
    assert torch.equal(undisturbed.losses, rest.losses)
    assert_equal(undisturbed.model.parameters(), rest.model.parameters())
    if kind != "bfloat16":
        assert torch.equal(undisturbed.losses, trained(None).losses)


def test_what_cannot_be_saved_fails_before_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is made once, before the first step, for all kinds of work."""
    calls: list[str] = []

    def failing(*_: Any) -> str:
        calls.append("digest")
        raise RuntimeError("no digest")

    for module in ("training._runs", "fitting._run"):
        monkeypatch.setattr(f"npu_kernels.{module}.digest", failing)
    model = chain()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match=r"no digest"):
        trained(tmp_path / "run", model=model)
    assert_equal(before, model.parameters())
    monkeypatch.setattr(fitting.Run, "advance", lambda *_: pytest.fail("work was done"))
    x, y = hard()
    with pytest.raises(RuntimeError, match=r"no digest"):
        fit(RealNPU(2, 1, num_models=6), x, y, recipe=SHORT, checkpoint=tmp_path / "fit")
    assert len(calls) == 2


def test_the_data_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(
        "npu_kernels.training._runs.digest", lambda *parts: calls.append(1) or digest(*parts)
    )
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 0.0)
    trained(tmp_path / "run", 20)
    assert len(calls) == 1
    trained(tmp_path / "run")
    assert len(calls) == 2


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None
import torch
from npu_kernels import NAU, NPU
from npu_kernels._jobs.checkpoints import digest
from npu_kernels.training import run
path = sys.argv[1]
x = torch.rand(20, 2)
for n in range(2):
    found = run(torch.nn.Sequential(NPU(2, 3), NAU(3, 2)), x, x, steps=20, lr=0.01, checkpoint=path, progress=False,
                stretch=5, callbacks=lambda part: n == 0)
    assert (found.steps, found.complete) == ((5, False), (20, True))[n]
print(digest(torch.ones(3, dtype=torch.bfloat16)))
"""


def test_without_numpy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_NUMPY, str(tmp_path / "run")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest(torch.ones(3, dtype=torch.bfloat16))


# ---- files that hold something else --------------------------------------------------------------

Change = Callable[[dict[str, Any]], Any]


class Work:
    """Work that was interrupted: its file, a call that continues it, and what the call must leave
    alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def go_on(self) -> Any:
        raise NotImplementedError

    def moved(self) -> list[Any]:
        raise NotImplementedError


class Training(Work):
    def begin(self) -> None:
        trained(self.path, 20)
        self.model = chain()
        self.generator, self.schedule = (
            torch.Generator().manual_seed(3),
            SteppedSchedule(1e-3, 1.0, step=15),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)

    def go_on(self) -> Any:
        penalties = {"l1": self.schedule, "madsen": 0.1}
        return trained(
            self.path,
            model=self.model,
            generator=self.generator,
            optimizer=self.optimizer,
            penalties=penalties,
        )

    def moved(self) -> list[Any]:
        state = self.optimizer.state_dict()
        tensors = [p.detach().clone() for p in self.model.parameters()]
        return [*tensors, self.generator.get_state(), repr(state), repr(self.schedule)]


class Fitting(Work):
    AT = 7

    def begin(self) -> None:
        x, y = hard()
        self.model = nn.Sequential(NPU(2, 3, num_models=8), NAU(3, 1, num_models=8, clip=False))
        under_way = fitting.Run(with_coefficient(self.model), x[None], y[None], [0], SHORT, "fit")
        under_way.advance(self.AT)
        files.save(self.path, under_way.state())

    def go_on(self) -> Any:
        return fit(self.model, *hard(), recipe=SHORT, checkpoint=self.path)

    def moved(self) -> list[Any]:
        return [p.detach().clone() for p in self.model.parameters()]


class Refining(Fitting):
    AT = 35


class Equations(Work):
    def begin(self) -> None:
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
        from npu_kernels.equations import NPURegressor
        from tests.support.laws import uniform

        self.x = uniform(2, 60)
        self.regressor = NPURegressor(random_state=0, max_terms=1, output_powers=(1,), starts=4)
        self.go_on()
        self.regressor = NPURegressor(random_state=0, max_terms=1, output_powers=(1,), starts=4)

    def go_on(self) -> Any:
        return self.regressor.fit(self.x, self.x[:, 0] / self.x[:, 1], checkpoint=self.path)

    def moved(self) -> list[Any]:
        return [hasattr(self.regressor, "equations_")]


class Series(Work):
    def begin(self) -> None:
        pytest.importorskip("scipy.optimize", reason="scipy is not installed")
        self.model = known()
        self.go_on()

    def go_on(self) -> Any:
        return ode.fit(
            self.model, T, predators(T), start="model", simplify=False, checkpoint=self.path
        )

    def moved(self) -> list[Any]:
        return [p.detach().clone() for p in self.model.parameters()]


def of(*path: Any, to: Any) -> Change:
    """Change an entry; to: a value, or a function of the old one. A number stands for that key in
    order."""

    def change(state: dict[str, Any]) -> None:
        inner: Any = state
        for part in path[:-1]:
            inner = inner[_key(inner, part)]
        key = _key(inner, path[-1])
        inner[key] = to(inner[key]) if callable(to) else to

    return change


def _key(inner: Any, part: Any) -> Any:
    return (
        list(inner)[part]
        if isinstance(inner, dict) and isinstance(part, int) and part not in inner
        else part
    )


def without(*path: Any) -> Change:
    def change(state: dict[str, Any]) -> None:
        inner: Any = state
        for part in path[:-1]:
            inner = inner[_key(inner, part)]
        del inner[path[-1]]

    return change


def item(number: int, to: Any) -> Callable[[Any], Any]:
    """A list or tuple with another entry."""

    def change(old: Any) -> Any:
        parts = list(old)
        parts[number] = to(parts[number]) if callable(to) else to
        return type(old)(parts)

    return change


def longer(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor[:1]])


def beyond(tensor: Tensor) -> Tensor:
    return tensor + 10**6


COUNTS = {
    "huge": 10**12, "negative": -1, "a bool": True, "a float": 3.0, "text": "3", "nothing": None,
}  # fmt: skip
CRAFTED: dict[type[Work], dict[str, Change]] = {
    Training: {
        **{f"done is {name}": of("done", to=value) for name, value in COUNTS.items()},
        "done beyond the end": of("done", to=61),
        "without done": without("done"),
        "without parameters": without("parameters"),
        "something more": lambda state: state.update(more=1),
        "parameters are a dict": of("parameters", to={}),
        "a parameter less": of("parameters", to=lambda old: old[:-1]),
        "the last parameter is larger": of("parameters", to=item(-1, longer)),
        "a parameter of another dtype": of("parameters", to=item(-1, torch.Tensor.double)),
        "a parameter that broadcasts": of("parameters", to=item(0, lambda old: old[:1, :1])),
        "a parameter is a number": of("parameters", to=item(-1, 0.0)),
        "a sparse parameter": of("parameters", to=item(-1, torch.Tensor.to_sparse)),
        "a buffer more": of("buffers", to=[torch.zeros(1)]),
        "losses of another length": of("losses", to=lambda old: old[:-1]),
        "losses are None": of("losses", to=None),
        "the optimiser is a list": of("optimizer", to=[]),
        "the optimiser has no groups": without("optimizer", "param_groups"),
        "a group more": of("optimizer", "param_groups", to=lambda old: old * 2),
        "a group without lr": without("optimizer", "param_groups", 0, "lr"),
        "a group of other parameters": of("optimizer", "param_groups", 0, "params",
                                          to=[0, 1, 2, 7]),
        "lr is text": of("optimizer", "param_groups", 0, "lr", to="0.01"),
        "lr is infinite": of("optimizer", "param_groups", 0, "lr", to=math.inf),
        "three betas": of("optimizer", "param_groups", 0, "betas", to=(0.9, 0.9, 0.9)),
        "betas are a number": of("optimizer", "param_groups", 0, "betas", to=0.9),
        "the optimiser's state is a list": of("optimizer", "state", to=[]),
        "a state of a parameter that is not there": of("optimizer", "state",
                                                       to=lambda old: {**old, 9: old[0]}),
        "a state without a moment": without("optimizer", "state", 0, "exp_avg"),
        "a state with something more": lambda state: state["optimizer"]["state"][0].update(more=1),
        "a moment of another size": of("optimizer", "state", 0, "exp_avg", to=lambda old: old[:1]),
        "a moment of another dtype": of("optimizer", "state", 3, "exp_avg_sq",
                                        to=torch.Tensor.double),
        "a moment is a number": of("optimizer", "state", 0, "exp_avg", to=0.0),
        "a step of several numbers": of("optimizer", "state", 0, "step", to=torch.zeros(2)),
        "a negative step": of("optimizer", "state", 0, "step", to=torch.tensor(-3.0)),
        "a generator's state of another size": of("generator", to=lambda old: old[:-8]),
        "a generator's state without sense": of("generator", to=torch.zeros_like),
        "no generator's state": of("generator", to=None),
        "a schedule less": of("schedules", to={}),
        "a schedule of another penalty": of("schedules", to=lambda old: {"madsen": old["l1"]}),
        "a schedule without beta": without("schedules", "l1", "beta"),
        "a schedule's beta is text": of("schedules", "l1", "beta", to="1"),
        "a schedule's beta is beyond its end": of("schedules", "l1", "beta", to=2.0),
        "a schedule before its beginning": of("schedules", "l1", "iteration", to=-1),
        "no fingerprint": of("fingerprint", to=3),
        "a fingerprint of other things": of("fingerprint", to=lambda old: {**old, "more": "1"}),
    },
    Fitting: {
        **{f"done is {name}": of("done", to=value) for name, value in COUNTS.items()},
        "stage beyond the end": of("stage", to=10**12),
        "another stage": of("stage", to=2),
        "at beyond its stage": of("at", to=20),
        "_moved is negative": of("_moved", to=-1),
        "_moved is huge": of("_moved", to=10**12),
        "without pool": without("pool"),
        "something more": lambda state: state.update(more=1),
        "seconds are nan": of("seconds", to=math.nan),
        "seconds are text": of("seconds", to="1"),
        "a history of nothing": of("history", to=[{}]),
        "a history is text": of("history", to="none"),
        "scores of another size": of("scores", to=lambda old: old[:, :-1]),
        "scores of another dtype": of("scores", to=torch.Tensor.float),
        "solved is a list": of("solved", to=[False]),
        "the pool is a list": of("pool", to=[]),
        "a pool without scores": without("pool", "score"),
        "no search": of("search", to=None),
        "a search without its moments": without("search", "moments"),
        "a search of a tensor less": of("search", "tensors", to=lambda old: old[:-1]),
        "a search's tensor of another size": of("search", "tensors",
                                                to=item(-1, lambda old: old[..., :-1])),
        "a search's moments of other models": of("search", "moments", to=item(-1, longer)),
        "a search of another dtype": of("search", "squares", to=item(0, torch.Tensor.double)),
        "a search of another problem": of("search", "problem", to=beyond),
        "a search's start of another length": of("search", "start", to=longer),
        "a search's step is huge": of("search", "step", to=10**12),
        "a refinement in the search": of("refinement", to={}),
        "an origin in the search": of("origin", to=[1]),
    },
    Refining: {
        "a history less": of("history", to=lambda old: old[:-1]),
        "a history's error is text": of("history", 0, "worst", to="1"),
        "a search in the refinement": of("search", to={}),
        "no refinement": of("refinement", to=None),
        "a refinement without start": without("refinement", "start"),
        "a refinement of wider models": of("refinement", "start",
                                           to=lambda old: torch.cat([old, old], 1)),
        "a refinement that holds others": of("refinement", "held", to=longer),
        "a refinement of other problems": of("refinement", "problem", to=beyond),
        "a refinement of float32": of("refinement", "start", to=torch.Tensor.float),
        "a solver without x": without("refinement", "solver", "x"),
        "a solver of another size": of("refinement", "solver", "end_g", to=longer),
        "a solver of another dtype": of("refinement", "solver", "f", to=torch.Tensor.float),
        "a solver's end that is not there": of("refinement", "solver", "low", to=beyond),
        "a solver's negative pairs": of("refinement", "solver", "pairs", to=lambda old: old - 100),
        "a solver's status": of("refinement", "solver", "status", to=beyond),
        "a solver's purpose": of("refinement", "solver", "purpose", to=beyond),
        "a rounding that is not there": of("rounding", to=beyond),
        "a rounding of other models": of("rounding", to=longer),
        "an origin that is not there": of("origin", to=beyond),
        "a candidate of another problem": of("pool", "problem", to=beyond),
        "a candidate of another start": of("pool", "start", to=lambda old: old - 100),
        "a candidate of another kind": of("pool", "kind", to=beyond),
        "a candidate's denominator": of("pool", "denominator", to=beyond),
        "a candidate that is not finite": of("pool", "score", to=lambda old: old * math.nan),
        "candidates of other sizes": of("pool", "flat", to=lambda old: old[:, :-1]),
        "candidates without a base": of("pool", "base", to=lambda old: old[:-1]),
    },
    Equations: {
        **{f"seed is {name}": of("seed", to=value) for name, value in COUNTS.items()},
        "another seed": of("seed", to=5),
        "without seed": without("seed"),
        "kept is a list": of("kept", to=[]),
        "kept by numbers": of("kept", to=lambda old: {3: old["0.0"]}),
        "a step is a number": of("kept", "0.0", to=3),
        "points of a part less": of("kept", "0.0", to=item(0, lambda old: old[:-1])),
        "points of another dtype": of("kept", "0.0", to=item(0, item(0, torch.Tensor.float))),
        "points of other coefficients": of("kept", "0.0", to=item(0, item(2, longer))),
        "points of other inputs": of("kept", "0.0",
                                     to=item(0,
                                             lambda old: [*(t[..., :1] for t in old[:2]),
                                                          *old[2:]])),
        "points of other terms": of("kept", "0.0",
                                    to=item(0,
                                            lambda old: [*(t.repeat(1, 2, 1) for t in old[:2]),
                                                         old[2].repeat(1, 2), old[3]])),
        "no state of a generator": of("kept", "0.0", to=item(1, "{}")),
        "a generator's state that is no JSON": of("kept", "0.0", to=item(1, "{")),
        "sums instead of points": lambda state: state["kept"].update({"0.0": state["kept"]["0.1"]}),
        "points instead of sums": lambda state: state["kept"].update({"0.1": state["kept"]["0.0"]}),
        "a sum of a part less": of("kept", "0.1", to=item(0, lambda old: old[:-1])),
        "a sum of other inputs": of("kept", "0.1",
                                    to=item(0,
                                            lambda old: [*(t[:, :1] for t in old[:3]), *old[3:]])),
        "a sum of other coefficients": of("kept", "0.1", to=item(0, item(3, longer))),
        "a sum's exponents are nan": of("kept", "0.1",
                                        to=item(0, item(0, lambda old: old * math.nan))),
        "a sum's flags are numbers": of("kept", "0.1", to=item(0, item(2, torch.Tensor.double))),
        "a sum's cost is text": of("kept", "0.1", to=item(0, item(-1, "0"))),
        "two sums where one is expected": of("kept", -1, to=lambda old: old * 2),
    },
    Series: {
        "seconds are negative": of("seconds", to=-1.0),
        "seconds are infinite": of("seconds", to=math.inf),
        "seconds are a bool": of("seconds", to=True),
        "without kept": without("kept"),
        "kept is None": of("kept", to=None),
        "kept by numbers": of("kept", to={3: ()}),
        "a descent is a number": of("kept", 0, to=3),
        "a descent of a part less": of("kept", 0, to=lambda old: old[:-1]),
        "a descent of more numbers": of(
            "kept", 0, to=item(0, lambda old: torch.cat([old, old], 1))
        ),
        "a descent of more laws": of("kept", 0, to=lambda old: (*map(longer, old[:3]), *old[3:])),
        "a descent of another dtype": of("kept", 0, to=item(0, torch.Tensor.float)),
        "another error": of("kept", 0, to=item(2, longer)),
        "another damping": of("kept", 0, to=item(1, lambda old: old[0])),
        **{f"steps are {name}": of("kept", 0, to=item(4, value)) for name, value in COUNTS.items()},
        **{
            f"steps without a gain are {name}": of("kept", 0, to=item(3, value))
            for name, value in COUNTS.items()
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Callable[[type[Work]], Work]:
    """Each kind of work, begun once."""
    begun: dict[type[Work], tuple[Work, bytes]] = {}

    def work(kind: type[Work]) -> Work:
        if kind not in begun:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                first = kind(tmp_path_factory.mktemp(kind.__name__) / "the.file")
            begun[kind] = first, first.path.read_bytes()
        job, content = begun[kind]
        job.path.write_bytes(content)
        return job

    return work


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, changes in CRAFTED.items() for name in changes],
    ids=str,
)
def test_a_crafted_file_is_an_error(
    kind: type[Work], name: str, works: Callable[[type[Work]], Work]
) -> None:
    """It names the file, and nothing is touched: model, optimiser, generator, schedules, file."""
    job = works(kind)
    state = files.load(job.path, [])
    CRAFTED[kind][name](state)
    files.save(job.path, state)
    content, before = job.path.read_bytes(), job.moved()
    with pytest.raises(
        ValueError, match=r"(run|fit): checkpoint must be .*the\.file': (lbfgs: )?it.*"
    ):
        job.go_on()
    for old, new in zip(before, job.moved(), strict=True):
        assert torch.equal(old, new) if isinstance(old, Tensor) else old == new
    assert job.path.read_bytes() == content


@pytest.mark.parametrize("kind", CRAFTED)
def test_an_unchanged_file_is_none(kind: type[Work], works: Callable[[type[Work]], Work]) -> None:
    job = works(kind)
    files.save(job.path, files.load(job.path, []))
    copy.copy(job).go_on()


# ---- the driver ----------------------------------------------------------------------------------


class Counting:
    """Work of ten steps, of which each takes a second of a clock that stands still otherwise."""

    function, fingerprint, total = "counting", {"a": "1"}, 10

    def __init__(self, monkeypatch: pytest.MonkeyPatch, press_at: int | None = None) -> None:
        self.done, self.now, self.press_at, self.sizes = 0, 0.0, press_at, list[int]()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def advance(self, steps: int) -> None:
        self.done += steps
        self.now += steps
        self.sizes.append(steps)
        if self.done == self.press_at:
            signal.raise_signal(signal.SIGINT)

    def state(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, "done": self.done}

    def restore(self, state: dict[str, Any]) -> None:
        checkpoints.check_same(state["fingerprint"], self.fingerprint, "count")
        self.done = state["done"]


def test_how_often_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last time is longer ago than that, and at the end."""
    counts: list[int] = []
    write = files.save
    monkeypatch.setattr(
        files, "save", lambda path, state: (counts.append(state["done"]), write(path, state))
    )
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SECONDS", 3.0)
    checkpoints.drive(Counting(monkeypatch), False, tmp_path / "file")
    assert counts == [4, 8, 10]
    counts.clear()
    checkpoints.drive(Counting(monkeypatch), False, tmp_path / "file")
    assert counts == [10]
    counts.clear()
    checkpoints.drive(Counting(monkeypatch), False, tmp_path / "other", ended=lambda: True)
    assert counts == [1]


def test_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """They grow eightfold at most, to what takes that long, and a limit holds."""
    monkeypatch.setattr(checkpoints, "SLICE_SECONDS", 3.0)
    job = Counting(monkeypatch)
    checkpoints.drive(job, False, None)
    assert job.sizes == [1, 3, 3, 3]
    monkeypatch.setattr(checkpoints, "SLICE_SECONDS", 100.0)
    job = Counting(monkeypatch)
    checkpoints.drive(job, False, None)
    assert job.sizes == [1, 8, 1]
    job = Counting(monkeypatch)
    checkpoints.drive(job, False, None, limit=lambda: 4)
    assert job.sizes == [1, 4, 4, 1]


def test_ctrl_c_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "SLICE_SECONDS", 0.0)
    job = Counting(monkeypatch, press_at=4)
    checkpoints.drive(job, False, tmp_path / "file")
    assert job.done == 4
    assert files.load(tmp_path / "file", ["done"])["done"] == 4
    before = signal.getsignal(signal.SIGINT)
    with checkpoints.interruptible() as pressed:
        assert not pressed
        signal.raise_signal(signal.SIGINT)
        assert pressed
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_is_not_pythons_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("it was replaced"))
    with checkpoints.interruptible() as pressed:
        assert not pressed


@pytest.mark.parametrize(
    ("asked", "terminal", "shown"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_whether_progress_is_shown(
    asked: Any, terminal: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class Bar:
        def __init__(self, function: str, total: int, stream: Any, shown: bool) -> None:
            seen.extend((function, total, shown))

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def update(self, done: float, note: str, before: float) -> None:
            seen.append((done, note, before))

    monkeypatch.setattr(checkpoints, "Progress", Bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    job = Counting(monkeypatch)
    job.done = 7
    checkpoints.drive(job, asked, None, note=lambda: "note", limit=lambda: 1)
    assert seen == ["counting", 10, shown, (8, "note", 7), (9, "note", 7), (10, "note", 7)]


def test_what_differs_is_said() -> None:
    """Values where they are short; of model and data only that they differ."""
    check = checkpoints.check_same
    fingerprint = {"model": "a", "data": "b", "x": "1", "long": "c"}
    check(dict(fingerprint), fingerprint)
    for change, said in (
        ({"x": "2"}, r"^it is of another fit: other x \(2, here 1\)$"),
        ({"model": "2", "data": "3"}, "^it is of another fit: other model, data$"),
        ({"long": "d" * 200}, "^it is of another fit: other long$"),
        ({"more": "4"}, r"^it is of another fit: other more \(4, here None\)$"),
    ):
        with pytest.raises(ValueError, match=said):
            check({**fingerprint, **change}, fingerprint)
    with pytest.raises(ValueError, match=r"^it is of another run: other x \(None, here 1\)$"):
        check({name: fingerprint[name] for name in ("model", "data", "long")}, fingerprint, "run")
    for nothing in (None, "x", []):
        with pytest.raises(ValueError, match=r"^it is of an earlier version of npu_kernels$"):
            check(nothing, fingerprint)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Counting(monkeypatch)
    with pytest.raises(TypeError, match=r"^counting: checkpoint must be a path, got int$"):
        checkpoints.Checkpoint(job, 3)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"^counting: checkpoint must be a file that can be written, got .*udcff"
    ):
        checkpoints.Checkpoint(job, str(tmp_path / "\udcff\ud800"))
    checkpoints.Checkpoint(job, str(tmp_path / "new")).save()
    assert files.load(tmp_path / "new", ["done"])["done"] == 0


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Counting(monkeypatch)
    checkpoints.Checkpoint(job, tmp_path / "file").save()

    def failing(*_: Any) -> Any:
        raise PermissionError("no")

    monkeypatch.setattr(files, "load", failing)
    with pytest.raises(
        PermissionError,
        match=r"^counting: checkpoint must be a new file or one of this same counting",
    ):
        checkpoints.Checkpoint(job, tmp_path / "file")
