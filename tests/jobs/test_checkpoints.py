"""What all work with a checkpoint shares: what it is known by, when it is saved, signals."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from npu_kernels import NMRU, NPU, training
from tests.jobs.runs import X, Y, chain, trained
from tests.support import checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:.*makes its steps one by one")
OTHER_DATA = "run: checkpoint must be .*: it is of another run: other data$"


def run(path: Path | None, steps: int = 2, **settings: Any) -> training.TrainingResult:
    """A run of one step after the other, of which the callbacks see each."""
    settings = {"model": None, "x": X, "y": Y, "lr": 0.01, "progress": False, **settings}
    model, x, y = settings.pop("model") or chain(), settings.pop("x"), settings.pop("y")
    return training.run(model, x, y, steps=steps, callback_every=1, checkpoint=path, **settings)


def begun(path: Path, **settings: Any) -> None:
    run(path, callbacks=lambda part: True, **settings)


# ---- what it is known by -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_number_of_the_data_counts(dtype: torch.dtype, tmp_path: Path) -> None:
    """And not how they lie in memory."""
    settings: dict[str, Any] = {"model": nn.Linear(2, 2, dtype=dtype), "x": X.to(dtype)}
    begun(tmp_path / "run", y=Y.to(dtype), **settings)
    begun(tmp_path / "run", y=Y.to(dtype).T.contiguous().T, **settings)
    for index in (0, -1):
        y = Y.to(dtype, copy=True)
        bits = y.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
        bits.view(-1)[index] ^= 1
        with pytest.raises(ValueError, match=OTHER_DATA):
            begun(tmp_path / "run", y=y, **settings)


def test_large_data_count_to_their_end(tmp_path: Path) -> None:
    """They are read in pieces of 2^24 numbers."""
    x = torch.ones(2**23 + 3, 2)
    settings: dict[str, Any] = {
        "x": x,
        "y": x,
        "batch_indices": torch.zeros(2, 1, dtype=torch.int64),
    }
    begun(tmp_path / "run", **settings)
    x[-1, -1] += 1
    with pytest.raises(ValueError, match=OTHER_DATA):
        begun(tmp_path / "run", **settings)


class Buffered(nn.Linear):
    def __init__(self, size: int) -> None:
        super().__init__(2, 2)
        self.register_buffer("kept", torch.zeros(size), persistent=False)


# All that decides a model's numbers, but for the values of its parameters.
MODELS: list[tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = [
    (lambda: NMRU(2, 2), lambda: NMRU(2, 2, eps=1e-3)),
    (lambda: NMRU(2, 2), lambda: NMRU(2, 2, clip=False)),
    (lambda: NMRU(2, 2), lambda: NMRU(2, 2, num_models=2)),
    (lambda: NMRU(2, 2), lambda: NMRU(2, 2).eval()),
    (lambda: NMRU(2, 2), lambda: NMRU(2, 2, sign="separate")),
    (lambda: NPU(2, 2), lambda: NPU(2, 2, gate_gradient="straight_through")),
    (lambda: nn.Linear(2, 2), lambda: nn.Sequential(nn.Linear(2, 2))),
    (lambda: Buffered(1), lambda: Buffered(2)),
    (lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout()),
     lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout().eval())),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MODELS)))
def test_another_model_is_refused(number: int, tmp_path: Path) -> None:
    first, second = MODELS[number]
    begun(tmp_path / "run", model=first())
    begun(tmp_path / "run", model=first())
    with pytest.raises(
        ValueError, match=r"it is of another run: other .*model(, requires_grad.*)?$"
    ):
        begun(tmp_path / "run", model=second())


def test_tensors_of_a_file_get_memory_of_their_own(tmp_path: Path) -> None:
    """Whatever strides and signs they have there: the numbers are the same, and kernels write them."""
    path = tmp_path / "run"
    expected = trained(None)
    trained(path, 20)
    state = checkpoints.load(path, [])
    moments = state["optimizer"]["state"]
    state["parameters"] = [
        nn.Parameter(torch.stack([t, t], -1)[..., 0]) for t in state["parameters"]
    ]
    moments[0]["exp_avg"] = torch._neg_view(-moments[0]["exp_avg"])
    moments[1]["exp_avg_sq"] = moments[1]["exp_avg_sq"].T.contiguous().T
    checkpoints.save(path, state)
    rest = trained(path)
    assert torch.equal(rest.losses, expected.losses)
    assert rest.fused == expected.fused


# ---- when it is saved ----------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test sets, as its last number."""
    times = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: times[-1])
    return times


def test_how_often_it_is_saved(tmp_path: Path, clock: list[float]) -> None:
    """Soon for the first time, then every half a minute, and at the end."""
    path, counts = tmp_path / "run", [0]

    def tick(part: training.TrainingResult) -> None:
        clock.append(clock[-1] + 1.0)
        if path.exists() and (done := checkpoints.load(path, [])["done"]) != counts[-1]:
            counts.append(done)

    run(path, 80, callbacks=tick)
    assert counts == [0, 4, 35, 66]
    assert checkpoints.load(path, [])["done"] == 80


def press(number: int, step: int, times: int = 1) -> Callable[[training.TrainingResult], None]:
    """A callback that raises a signal behind a step."""

    def callback(part: training.TrainingResult) -> None:
        for _ in range(times if part.n_steps == step else 0):
            signal.raise_signal(number)

    return callback


def test_ctrl_c_saves(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert run(tmp_path / "run", 10, callbacks=press(signal.SIGINT, 4)).n_steps == 4
    assert checkpoints.load(tmp_path / "run", [])["done"] == 4
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", 10, callbacks=press(signal.SIGINT, 6, times=2))
    assert checkpoints.load(tmp_path / "run", [])["done"] == 4
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def sigterm() -> Iterator[list[Any]]:
    """A handler of SIGTERM, which calls what is in the list."""
    calls: list[Any] = []
    before = signal.signal(signal.SIGTERM, lambda *_: [call() for call in calls])
    yield calls
    signal.signal(signal.SIGTERM, before)


def test_sigterm_saves_first(tmp_path: Path, sigterm: list[Any]) -> None:
    """The user's own handler is called after a saving, and may let the work go on."""
    seen: list[int] = []
    sigterm.append(lambda: seen.append(checkpoints.load(tmp_path / "run", [])["done"]))
    before = signal.getsignal(signal.SIGTERM)
    result = run(tmp_path / "run", 10, callbacks=press(signal.SIGTERM, 4))
    assert (seen, result.n_steps) == ([4], 10)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("times", [1, 2])
def test_sigterm_that_does_not_wait(times: int, tmp_path: Path, sigterm: list[Any]) -> None:
    """No checkpoint, or a second signal."""
    sigterm.append(lambda: sys.exit(143))
    path = tmp_path / "run" if times == 2 else None
    with pytest.raises(SystemExit):
        run(path, 10, callbacks=press(signal.SIGTERM, 1, times))
    assert not (tmp_path / "run").exists()
    sigterm.clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_sigterm_ends_a_fork(tmp_path: Path) -> None:
    """A worker that the user's callback has started."""

    def work(part: training.TrainingResult) -> None:
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
        assert not (tmp_path / "run").exists()

    assert run(tmp_path / "run", 2, callbacks=work).complete


def test_a_handler_that_is_not_pythons_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("it was replaced"))
    assert run(tmp_path / "run").complete


# ---- wrong files ---------------------------------------------------------------------------------


def test_paths(tmp_path: Path) -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match=r"^run: checkpoint must be a path, got int$"):
        run(wrong)
    rule = r"^run: checkpoint must be a file that can be written, got .*udcff"
    with pytest.raises(ValueError, match=rule):
        run(tmp_path / "\udcff\ud800")


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "run")

    def failing(*_: Any) -> Any:
        raise PermissionError("no")

    monkeypatch.setattr(Path, "read_bytes", failing)
    rule = r"^run: checkpoint must be a new file or one of this same run"
    with pytest.raises(PermissionError, match=rule):
        run(tmp_path / "run")
