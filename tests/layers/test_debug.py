"""The tracer of values that are not finite, and torch's anomaly mode."""

import math
import re
import warnings

import pytest
import torch
from torch import nn

from npu_kernels import NAU, NMU, NPU, RealNPU, interop
from npu_kernels.training import debug
from tests.conftest import needs_library
from tests.support.compare import assert_equal


def _model() -> nn.Sequential:
    model = nn.Sequential(NAU(3, 3), RealNPU(3, 2), NAU(2, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(3))  # type: ignore[operator, union-attr]
        model[1].weight_re.copy_(torch.tensor([[1.0, 1.0, 1.0], [1.0, -9.0, 0.5]]))  # type: ignore[operator, union-attr]
        model[1].gate.fill_(1.0)  # type: ignore[operator, union-attr]
        model[2].weight.fill_(1.0)  # type: ignore[operator, union-attr]
    return model


def test_names_everything(backend: str) -> None:
    """Module, unit, row, r, log r and exponent of the first value that overflows."""
    model, x = _model(), torch.ones(5, 3)
    x[3, 1] = 1e-9
    with pytest.raises(debug.NonFiniteError) as caught, debug.detect_nonfinite(model) as records:
        model(x)
    record = caught.value.found
    assert records == [record]
    assert (record.module, record.kind, record.what, record.output, record.row, record.model) == (
        "1",
        "RealNPU",
        "output",
        1,
        (3,),
        None,
    )
    eps = torch.finfo(torch.float32).eps
    assert record.value == math.inf
    assert record.r[1] == pytest.approx(eps + 1e-9, rel=1e-3)
    assert record.log_r[1] == pytest.approx(math.log(eps + 1e-9), rel=1e-3)
    assert record.exponent == pytest.approx(-9 * math.log(eps + 1e-9), rel=1e-3)
    message = (
        r"^npu: 1 \(RealNPU\): output 1 is inf for input row 3: exponent P = 143.4 \(exp overflows float32 "
        r"above 88.72\), phase Q = 0; the largest part is input 1: x = 1e-09, r = 1.202e-07, log r = -15.93, "
        r"weight_re = -9$"
    )
    assert re.match(message, str(caught.value)), str(caught.value)
    assert not any(module._forward_hooks for module in model.modules())


def test_models_and_leading_dimensions(backend: str) -> None:
    layer = NPU(3, 2, num_models=4, init_im=0.3)
    x = torch.ones(4, 2, 5, 3)
    x[2, 1, 4, 0] = math.nan
    with debug.detect_nonfinite(layer, "record") as records:
        layer(x)
    (record,) = records
    assert (record.module, record.model, record.row, record.output, record.bad_inputs) == (
        "",
        2,
        (1, 4),
        0,
        (0,),
    )
    assert "of model 2 is nan for input row (1, 4)" in record.message
    assert record.message.endswith("of the row's inputs 0 already not finite")
    with debug.detect_nonfinite(layer, "record") as records:
        layer(torch.full((5, 3), math.nan))  # shared rows
    assert (records[0].model, records[0].row) == (0, (0,))


def test_gradients_and_other_layers(backend: str) -> None:
    """Gradients at layers without exponents too, and weights that are not finite."""
    model = nn.Sequential(NMU(3, 2), NAU(2, 2))
    with debug.detect_nonfinite(model, "record") as records:
        (model(torch.rand(4, 3)) * torch.tensor([1.0, math.inf])).sum().backward()
    assert [(record.module, record.what, record.output) for record in records] == [
        ("1", "gradient", 1),
        ("0", "gradient", 0),
    ]
    assert records[0].exponent is None
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.warns(RuntimeWarning, match=r"^npu: 0 \(NMU\): .*; not finite itself: weight$"):  # noqa: SIM117
        with debug.detect_nonfinite(model, "warn"):
            model[0](torch.rand(4, 3))


def test_silent_where_nothing_is_wrong(backend: str) -> None:
    """The same gradients and no hook left, for eager modules, transforms and half dtypes too."""
    model, x = _model(), torch.rand(5, 3) + 0.5
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    with debug.detect_nonfinite(model) as records:
        loss = model(x).sum()
        actual = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        torch.func.vmap(model)(x)
        interop.to_reference(_model())(x)
    assert not records
    (loss * math.inf).backward()
    assert not records
    assert_equal(actual, expected)
    half = NPU(3, 2, dtype=torch.bfloat16)
    with pytest.raises(debug.NonFiniteError, match="input 2"), debug.detect_nonfinite(half):
        half(torch.tensor([[1.0, 1.0, math.inf]], dtype=torch.bfloat16))
    with (
        pytest.raises(
            ValueError, match="action must be one of 'raise', 'warn', 'record', got 'stop'"
        ),
        debug.detect_nonfinite(model, "stop"),
    ):
        pass


@needs_library
@pytest.mark.parametrize(
    ("layer", "name"), [(NPU, "NPUFunctionBackward"), (NMU, "NMUFunctionBackward")]
)
def test_anomaly_mode_names_the_layer(layer: type, name: str) -> None:
    """The error names the layer's Function, the warning the line of the layer that made it."""
    x = torch.tensor([[math.nan, 1.0]], requires_grad=True)
    with warnings.catch_warnings(record=True) as caught, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match=f"Function '{name}' returned nan values"):
            layer(2, 1)(x).sum().backward()
    assert any(
        "layers/" in str(warning.message) and name in str(warning.message) for warning in caught
    )
