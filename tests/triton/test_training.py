"""`training.run` by CUDA graphs on a GPU, against the ordinary loop there."""

import copy

import pytest
import torch

import npu_kernels
from npu_kernels.training import run
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
