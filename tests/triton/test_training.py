"""`training.run` by CUDA graphs on a GPU, against the ordinary loop there."""

import copy

import pytest
import torch
from torch import Tensor, nn

import npu_kernels
from npu_kernels.training import _run as _runs
from npu_kernels.training import run
from npu_kernels.training._captured import Captured
from tests.training.test_training_captured import SETTINGS, assert_same, data, model_of, ordinary

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("models", [None, 20])
@pytest.mark.parametrize("name", [name for name in SETTINGS if "weights" not in name])
def test_settings(name: str, models: int | None, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (t.to(gpu) for t in data())
    runs = []
    for make in (run, lambda *a, **k: ordinary(monkeypatch, *a, **k)):
        torch.manual_seed(3)
        settings = {"lr": 0.01, **copy.deepcopy(SETTINGS[name])}
        runs.append(make(model_of(models).to(gpu), x, y, steps=40, **settings))
    assert (runs[0].captured, runs[1].captured) == (True, False)
    is_fused = runs[0].optimizer.param_groups[0].get("fused")
    assert is_fused is (None if settings.get("optimizer") == "rmsprop" else True)
    assert_same(runs[0], runs[1], 1e-8)


@pytest.mark.parametrize(
    "unit", ["NPU", "RealNPU", "NaiveNPU", "NMU", "NMRU", "NAU", "NAC", "NALU", "iNALU"]
)
def test_units(unit: str, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (t.float().to(gpu) for t in data())
    runs = []
    for make in (run, lambda *a, **k: ordinary(monkeypatch, *a, **k)):
        torch.manual_seed(3)
        model = getattr(npu_kernels, unit)(2, 3, device=gpu)
        runs.append(make(model, x, y, steps=40, lr=0.01))
    assert runs[0].captured
    assert_same(runs[0], runs[1], 1e-3)


def test_every_device(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own stream for captures belongs to the device of a process's first capture."""
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip(f"needs two devices, there is {count}")
    for index in range(count):
        x, y = (t.to(f"cuda:{index}") for t in data())
        runs = [
            make(model_of(None).to(x.device), x, y, steps=40, lr=0.01)
            for make in (run, lambda *a, **k: ordinary(monkeypatch, *a, **k))
        ]
        assert runs[0].captured
        assert_same(runs[0], runs[1], 1e-8)


# torch's, of the steps before the capture.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
def test_while_a_result_is_alive(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is captured from torch 2.13 on; before, the notice names the cause."""
    (x, y), runs = (t.to(gpu) for t in data()), []
    able = hasattr(torch.autograd.graph, "set_override_stale_capture_stream")
    for make in (run, lambda *a, **k: ordinary(monkeypatch, *a, **k)):
        model = model_of(None).to(gpu)
        alive = model(x)
        if make is run and not able:
            with pytest.warns(UserWarning, match="If a tensor computed from the parameters"):
                runs.append(make(model, x, y, steps=40, lr=0.01))
        else:
            runs.append(make(model, x, y, steps=40, lr=0.01))
        assert alive.requires_grad
    assert runs[0].captured == able
    assert_same(runs[0], runs[1], 1e-8)


class Reads(nn.Module):
    """A value decides, which is read on the host: no graph can do so."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum().item() > 0 else 2 * x


def test_a_capture_that_fails(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ordinary loop goes on, on the user's stream."""
    (x, y), runs, before = (t.to(gpu) for t in data()), [], torch.cuda.current_stream()
    for make in (run, lambda *a, **k: ordinary(monkeypatch, *a, **k)):
        model = nn.Sequential(*model_of(None), Reads()).to(gpu)
        monkeypatch.setattr(_runs, "loop_for", lambda *_: (Captured, None))
        if make is run:
            with pytest.warns(UserWarning, match="no CUDA graph can be captured"):
                runs.append(make(model, x, y, steps=40, lr=0.01))
        else:
            runs.append(make(model, x, y, steps=40, lr=0.01))
        assert torch.cuda.current_stream() == before
    assert not runs[0].captured
    assert_same(runs[0], runs[1], 1e-8)
