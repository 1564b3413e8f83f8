"""The modules: sizes, parameters, starts, representation."""

import copy
import doctest
import io
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from npu_kernels import functional, layers
from npu_kernels.layers import NAC, NALU, NAU, NMRU, NMU, NPU, BaseLayer, NaiveNPU, RealNPU, iNALU

UNITS: list[type[BaseLayer]] = [NPU, RealNPU, NaiveNPU, NAU, NMU, NMRU, NAC, NALU, iNALU]
PARAMETERS = {
    NPU: {"weight_re": "OI", "weight_im": "OI", "gate": "I"},
    RealNPU: {"weight_re": "OI", "gate": "I"},
    NaiveNPU: {"weight_re": "OI", "weight_im": "OI"},
    NAU: {"weight": "OI"},
    NMU: {"weight": "OI"},
    NMRU: {"weight": "OJ"},
    NAC: {"weight": "OI", "mask": "OI"},
    NALU: {"weight": "OI", "mask": "OI", "gate_weight": "OI"},
    iNALU: dict.fromkeys(("weight_add", "mask_add", "weight_mul", "mask_mul", "gate_weight"), "OI"),
}
every_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.__name__)


@every_unit
@pytest.mark.parametrize("num_models", [None, 1, 3])
def test_shapes(unit: type[BaseLayer], num_models: int | None, backend: str) -> None:
    layer = unit(4, 2, num_models=num_models)  # type: ignore[call-arg]
    models = () if num_models is None else (num_models,)
    sizes = {"O": 2, "I": 4, "J": 8}
    expected = {
        name: (*models, *(sizes[s] for s in letters)) for name, letters in PARAMETERS[unit].items()
    }
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == expected
    assert layer(torch.randn(5, 4)).shape == (*models, 5, 2)
    assert layer(torch.randn(*models, 5, 4)).shape == (*models, 5, 2)
    assert layer(torch.randn(*models, 7, 5, 4)).shape == (*models, 7, 5, 2)
    assert layer(torch.randn(*models, 0, 4)).shape == (*models, 0, 2)
    if num_models is None:
        assert layer(torch.randn(4)).shape == (2,)


@every_unit
def test_glorot(unit: type[BaseLayer]) -> None:
    """Uniform in the bounds of (O, I), for each model by itself."""
    layer = unit(30, 50, num_models=40)  # type: ignore[call-arg]
    low, high = {NMU: (0.0, 1.0), NMRU: (0.25, 0.75)}.get(
        unit, (-math.sqrt(6 / 80), math.sqrt(6 / 80))
    )
    for name, weight in layer.named_parameters():
        if PARAMETERS[unit][name] in ("OI", "OJ") and name != "weight_im":
            values = (weight.detach() - low) / (high - low)
            assert 0 <= values.min() < 1e-3
            assert 1 - 1e-3 < values.max() <= 1
            assert abs(values.mean() - 1 / 2) < 5e-3
            assert abs(values.var() - 1 / 12) < 2e-3
            assert len({tuple(model.flatten().tolist()) for model in weight[:, :2, :2]}) == 40


def test_published_start() -> None:
    layer = NPU(3, 4)
    assert not layer.weight_im.any()
    assert (layer.gate == 0.5).all()
    assert layer.eps is None
    assert layer.gate_gradient == "clip"
    assert (RealNPU(3, 4).gate == 0.5).all()
    assert not NaiveNPU(3, 4).weight_im.any()


@pytest.mark.parametrize(
    ("init_im", "scale"), [("zeros", 0.0), ("uniform", 1.0), (0.2, 0.2), (1, 1.0), (0.0, 0.0)]
)
def test_imaginary_start(init_im: Any, scale: float) -> None:
    for unit in (NPU, NaiveNPU):
        weight = unit(30, 50, init_im=init_im).weight_im
        assert weight is not None
        bound = scale * math.sqrt(6 / 80)
        assert weight.abs().max() <= bound * (1 + 1e-6)
        assert weight.abs().max() >= bound * 0.99


def test_gate_bias_start() -> None:
    bias = NALU(3, 1000, bias=True).gate_bias
    assert bias is not None
    bound = math.sqrt(6 / 1001)
    assert 0.95 * bound < bias.abs().max() <= bound * (1 + 1e-6)
    assert NALU(3, 4).gate_bias is None


@every_unit
def test_reset_parameters(unit: type[BaseLayer]) -> None:
    layer = unit(4, 3)
    before = {name: p.clone() for name, p in layer.named_parameters()}
    pointers = [p.data_ptr() for p in layer.parameters()]
    layer.reset_parameters()
    assert [p.data_ptr() for p in layer.parameters()] == pointers
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter, before[name]) == (name in ("weight_im", "gate"))


@every_unit
def test_device_and_dtype(unit: type[BaseLayer]) -> None:
    layer = unit(4, 3, dtype=torch.float64)  # type: ignore[call-arg]
    assert all(p.dtype == torch.float64 for p in layer.parameters())
    assert layer(torch.rand(2, 4, dtype=torch.float64)).dtype == torch.float64
    meta = unit(4, 3, num_models=2, device="meta")  # type: ignore[call-arg]
    assert all(p.is_meta for p in meta.parameters())
    assert meta(torch.empty(5, 4, device="meta")).shape == (2, 5, 3)
    assert all(not p.is_meta for p in nn.utils.skip_init(unit, 4, 3).parameters())
    half = unit(4, 3, dtype=torch.bfloat16)  # type: ignore[call-arg]
    y = half(torch.rand(2, 4, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.bfloat16 for p in half.parameters())


@every_unit
@pytest.mark.parametrize("num_models", [None, 3])
def test_copies(unit: type[BaseLayer], num_models: int | None) -> None:
    """Copies by state_dict, torch.save, deepcopy and pickle: same outputs, other parameters."""
    layer = unit(4, 3, num_models=num_models)  # type: ignore[call-arg]
    x = torch.randn(5, 4)
    y = layer(x)
    assert set(layer.state_dict()) == set(PARAMETERS[unit])

    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    loaded = unit(4, 3, num_models=num_models)  # type: ignore[call-arg]
    loaded.load_state_dict(torch.load(file, weights_only=True))
    for copied in (loaded, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x), y)
        assert repr(copied) == repr(layer)
        with torch.no_grad():
            next(copied.parameters()).add_(1)
        assert torch.equal(layer(x), y)


@every_unit
def test_trains(unit: type[BaseLayer], backend: str) -> None:
    """Every parameter has a gradient where inputs have both signs, and a step lowers the loss."""
    layer = unit(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
    x = torch.rand(64, 3) * 2 - 0.5
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (layer(x) - x[:, :2]).square().mean()
        loss.backward()
        assert all(
            p.grad is not None and p.grad.isfinite().all() and p.grad.any()
            for p in layer.parameters()
        )
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_representations() -> None:
    assert repr(NPU(2, 6)) == "NPU(in_features=2, out_features=6)"
    assert repr(
        NPU(2, 6, num_models=3, eps=1e-3, init_im=0.2, gate_gradient="straight_through")
    ) == (
        "NPU(in_features=2, out_features=6, num_models=3, eps=0.001, init_im=0.2, gate_gradient='straight_through')"
    )
    assert repr(NAU(2, 6, clip=False)) == "NAU(in_features=2, out_features=6, clip=False)"
    assert repr(NMU(2, 6)) == "NMU(in_features=2, out_features=6)"
    assert "clip=False, sign='separate'" in repr(NMRU(2, 6, clip=False, sign="separate"))
    assert (
        repr(NALU(2, 6, bias=True)) == "NALU(in_features=2, out_features=6, bias=True, eps=1e-08)"
    )
    assert repr(iNALU(2, 6)) == "iNALU(in_features=2, out_features=6, eps=1e-07, omega=20.0)"


@pytest.mark.parametrize(
    "module", [functional, layers._npu, layers._nau, layers._nmu, layers._nalu]
)
def test_examples(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
