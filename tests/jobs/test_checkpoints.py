"""What all work with a checkpoint shares: digests, fingerprints, saved values, the driver."""

import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from npu_kernels import NMRU, NPU
from npu_kernels._jobs import checkpoint, driver, files, fingerprint, saved
from npu_kernels._jobs.fingerprint import described, digest
from npu_kernels.layers import Unit

DTYPES = (
    torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64, torch.float8_e4m3fn,
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
    monkeypatch.setattr(fingerprint, "PIECE", 3)
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
        NMRU(2, 3), NMRU(2, 3, eps=1e-3), NMRU(2, 3, clip=False), NMRU(2, 3, num_models=2),
        NMRU(2, 3).eval(), NPU(2, 3), NPU(2, 3, gate_gradient="straight_through"),
        NPU(2, 3, eps=1e-3), nn.Linear(2, 3), nn.Sequential(nn.Linear(2, 3)), Buffered(1),
        Buffered(2), nn.Dropout(0.5), nn.Dropout(0.5).eval(),
    ]  # fmt: skip
    assert len({described(model, Unit) for model in models}) == len(models)
    assert described(NMRU(2, 3), Unit) == described(NMRU(2, 3), Unit)


# ---- values of a file ----------------------------------------------------------------------------


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
    for low, high in ((0, 1), (0, 4)):  # as an integer, True would lie within these
        with pytest.raises(ValueError, match=r"^its n must be an integer of at least 0, .* True$"):
            saved.integer(True, "n", low, high)
    for wrong in (1.9, math.inf, math.nan, True, "2", None, torch.tensor(2.0)):
        with pytest.raises(ValueError, match=r"^its n must be a number of at least 2.0, got"):
            saved.number(wrong, "n", 2.0)
    for wrong in (True, "2", None):
        with pytest.raises(ValueError, match=r"^its n must be a number, got"):
            saved.number(wrong, "n", finite=False)
    for finite in (True, False):
        with pytest.raises(ValueError, match=r"^its n must be a number"):
            saved.number(10**400, "n", finite=finite)
    with pytest.raises(ValueError, match=r"^its n must be a number"):
        saved.number(-1.0, "n", 0.0, finite=False)
    with pytest.raises(ValueError, match=r"^its n must be an integer of at least 0, got 9223"):
        saved.integer(2**63, "n")
    with pytest.raises(ValueError, match=r"got 'a{99}[.]{3}$"):
        saved.number("a" * 1000, "n")


# ---- the driver ----------------------------------------------------------------------------------


class Counting:
    """Work of ten steps, of which each takes a second of a clock that stands still otherwise."""

    function, fingerprint, total = "counting", {"a": "1"}, 10

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        press_at: int | None = None,
        signal_number: int = signal.SIGINT,
    ) -> None:
        self.done, self.now, self.press_at, self.sizes = 0, 0.0, press_at, list[int]()
        self.signal_number = signal_number
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def advance(self, steps: int) -> None:
        self.done += steps
        self.now += steps
        self.sizes.append(steps)
        if self.done == self.press_at:
            signal.raise_signal(self.signal_number)

    def state(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, "done": self.done}

    def restore(self, state: dict[str, Any]) -> None:
        fingerprint.check_same(state["fingerprint"], self.fingerprint, "count")
        self.done = state["done"]


def test_how_often_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last time is longer ago than that, and at the end; the first time soon."""
    counts: list[int] = []
    write = files.save
    monkeypatch.setattr(
        files, "save", lambda path, state: (counts.append(state["done"]), write(path, state))
    )
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 3.0)
    driver.drive(Counting(monkeypatch), False, tmp_path / "file")
    assert counts == [4, 8, 10]
    counts.clear()
    driver.drive(Counting(monkeypatch), False, tmp_path / "file")
    assert counts == [10]
    counts.clear()
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 30.0)
    driver.drive(Counting(monkeypatch), False, tmp_path / "third")
    assert counts == [4, 10]
    counts.clear()
    driver.drive(Counting(monkeypatch), False, tmp_path / "other", ended=lambda: True)
    assert counts == [1]


def test_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """They grow eightfold at most, to what takes that long, and a limit holds."""
    monkeypatch.setattr(driver, "SLICE_SECONDS", 3.0)
    job = Counting(monkeypatch)
    driver.drive(job, False, None)
    assert job.sizes == [1, 3, 3, 3]
    monkeypatch.setattr(driver, "SLICE_SECONDS", 100.0)
    job = Counting(monkeypatch)
    driver.drive(job, False, None)
    assert job.sizes == [1, 8, 1]
    job = Counting(monkeypatch)
    driver.drive(job, False, None, limit=lambda: 4)
    assert job.sizes == [1, 4, 4, 1]


def test_ctrl_c_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "SLICE_SECONDS", 0.0)
    job = Counting(monkeypatch, press_at=4)
    driver.drive(job, False, tmp_path / "file")
    assert job.done == 4
    assert files.load(tmp_path / "file", ["done"])["done"] == 4
    before = signal.getsignal(signal.SIGINT)
    with driver.interruptible() as pressed:
        assert not pressed
        signal.raise_signal(signal.SIGINT)
        assert pressed
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def sigterm() -> Iterator[list[Any]]:
    """A handler of SIGTERM, which calls what is in the list."""
    calls: list[Any] = []
    before = signal.signal(signal.SIGTERM, lambda *_: [call() for call in calls])
    yield calls
    signal.signal(signal.SIGTERM, before)


def test_sigterm_saves_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sigterm: list[Any]
) -> None:
    """The user's own handler is called after a saving, and may let the work go on."""
    seen: list[int] = []
    sigterm.append(lambda: seen.append(files.load(tmp_path / "file", ["done"])["done"]))
    monkeypatch.setattr(driver, "SLICE_SECONDS", 0.0)
    before = signal.getsignal(signal.SIGTERM)
    job = Counting(monkeypatch, press_at=4, signal_number=signal.SIGTERM)
    driver.drive(job, False, tmp_path / "file")
    assert seen == [4]
    assert job.done == 10
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_without_a_checkpoint_is_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sigterm: list[Any]
) -> None:
    job = Counting(monkeypatch, press_at=1, signal_number=signal.SIGTERM)
    sigterm.append(lambda: sys.exit(143))
    with pytest.raises(SystemExit):
        driver.drive(job, False, None)


def test_a_second_sigterm_does_not_wait(sigterm: list[Any]) -> None:
    sigterm.append(lambda: sys.exit(143))
    saved_work: list[str] = []
    with driver.terminable(lambda: saved_work.append("saved")):
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        assert not saved_work
        sigterm.clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("at_once", [False, True])
def test_sigterm_ends_a_fork(tmp_path: Path, at_once: bool) -> None:
    """A worker that the user's callback has started."""
    with driver.terminable(lambda: (tmp_path / "saved").touch(), at_once):
        ready, tell = os.pipe()
        child = os.fork()
        if not child:
            os.write(tell, b"x")  # Python drops signals that come while it forks
            for _ in range(1000):  # one long pause may begin behind the signal
                time.sleep(0.01)
            os._exit(1)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    assert not (tmp_path / "saved").exists()


def test_a_handler_that_is_not_pythons_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("it was replaced"))
    with driver.interruptible() as pressed, driver.terminable(lambda: None):
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

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def update(self, done: float, note: str, before: float) -> None:
            seen.append((done, note, before))

    monkeypatch.setattr(driver, "Progress", Bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    job = Counting(monkeypatch)
    job.done = 7
    driver.drive(job, asked, None, note=lambda: "note", limit=lambda: 1)
    updates = [(8, "note", 7), (9, "note", 7), (10, "note", 7)] if shown else []
    assert seen == ["counting", 10, shown, *updates]


def test_what_differs_is_said() -> None:
    """Values where they are short; of model and data only that they differ."""
    check = fingerprint.check_same
    current = {"model": "a", "data": "b", "x": "1", "long": "c"}
    check(dict(current), current)
    for change, said in (
        ({"x": "2"}, r"^it is of another fit: other x \(2, here 1\)$"),
        ({"model": "2", "data": "3"}, "^it is of another fit: other model, data$"),
        ({"long": "d" * 200}, "^it is of another fit: other long$"),
        ({"more": "4"}, r"^it is of another fit: other more \(4, here None\)$"),
    ):
        with pytest.raises(ValueError, match=said):
            check({**current, **change}, current)
    with pytest.raises(ValueError, match=r"^it is of another run: other x \(None, here 1\)$"):
        check({name: current[name] for name in ("model", "data", "long")}, current, "run")
    for nothing in (None, "x", []):
        with pytest.raises(ValueError, match=r"^it is of an earlier version of npu_kernels$"):
            check(nothing, current)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Counting(monkeypatch)
    with pytest.raises(TypeError, match=r"^counting: checkpoint must be a path, got int$"):
        checkpoint.Checkpoint(job, 3)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"^counting: checkpoint must be a file that can be written, got .*udcff"
    ):
        checkpoint.Checkpoint(job, str(tmp_path / "\udcff\ud800"))
    checkpoint.Checkpoint(job, str(tmp_path / "new")).save()
    assert files.load(tmp_path / "new", ["done"])["done"] == 0


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Counting(monkeypatch)
    checkpoint.Checkpoint(job, tmp_path / "file").save()

    def failing(*_: Any) -> Any:
        raise PermissionError("no")

    monkeypatch.setattr(files, "load", failing)
    with pytest.raises(
        PermissionError,
        match=r"^counting: checkpoint must be a new file or one of this same counting",
    ):
        checkpoint.Checkpoint(job, tmp_path / "file")
