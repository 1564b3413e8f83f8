"""What torch's FlopCounterMode counts for the layers."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import npu_kernels.interop.flops
from npu_kernels import NALU, NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, iNALU, interop, use_backend
from tests.conftest import needs_library
from tests.support.building import run_forked

ROWS, INPUTS, OUTPUTS = 7, 3, 2
PRODUCT = 2 * ROWS * INPUTS * OUTPUTS


def products(
    layer: torch.nn.Module, x_needs: bool, backward: bool = True, negative: bool = True
) -> float:
    """The count of a forward, and a backward, in products of the rows and one weight."""
    models = getattr(layer, "num_models", None) or 1
    x = torch.rand(ROWS, INPUTS) + 0.1
    if negative:
        x[::2] *= -1
    x.requires_grad_(x_needs)
    with FlopCounterMode(display=False) as counter:
        y = layer(x).sum()
        if backward:
            y.backward()
    return counter.get_total_flops() / PRODUCT / models


def frozen(layer: Any, *names: str) -> Any:
    for name in names:
        getattr(layer, name).requires_grad_(False)
    return layer


# A layer -> products of the forward; of the backward for the weights; for x beside these.
COUNTS = {
    "NPU": (lambda **k: NPU(INPUTS, OUTPUTS, **k), 4, 6, 0),
    "NPU without gate's gradient": (
        lambda **k: frozen(NPU(INPUTS, OUTPUTS, **k), "gate"),
        4,
        4,
        2,
    ),
    "NPU with gate's gradient alone": (
        lambda **k: frozen(NPU(INPUTS, OUTPUTS, **k), "weight_re", "weight_im"),
        4,
        4,
        0,
    ),
    "RealNPU": (lambda **k: RealNPU(INPUTS, OUTPUTS, **k), 2, 3, 0),
    "NaiveNPU": (lambda **k: NaiveNPU(INPUTS, OUTPUTS, **k), 4, 4, 2),
    "NaiveNPU of one weight": (
        lambda **k: frozen(NaiveNPU(INPUTS, OUTPUTS, **k), "weight_im"),
        4,
        2,
        2,
    ),
    "NAU": (lambda **k: NAU(INPUTS, OUTPUTS, **k), 1, 1, 1),
    "NMU": (lambda **k: NMU(INPUTS, OUTPUTS, **k), 1, 1, 1),
    "NMRU": (lambda **k: NMRU(INPUTS, OUTPUTS, **k), 2, 2, 2),
    "NMRU of separate signs": (
        lambda **k: NMRU(INPUTS, OUTPUTS, sign="separate", **k),
        4,
        4,
        2,
    ),
    "NALU": (lambda **k: NALU(INPUTS, OUTPUTS, **k), 3, 3, 3),
    "NALU of a mask": (
        lambda **k: frozen(NALU(INPUTS, OUTPUTS, **k), "weight", "gate_weight"),
        3,
        2,
        3,
    ),
    "iNALU": (lambda **k: iNALU(INPUTS, OUTPUTS, **k), 4, 4, 3),
}


@needs_library
@pytest.mark.parametrize("num_models", [None, 5])
@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str, num_models: int | None) -> None:
    make, forward, of_weights, of_x = COUNTS[name]
    layer = make(num_models=num_models)
    assert products(layer, False, backward=False) == forward
    assert products(layer, False) == forward + of_weights
    assert products(layer, True) == forward + of_weights + of_x
    with torch.no_grad():
        assert products(layer, False, backward=False) == forward


# The eager formula's products over inputs are no matrix products: torch counts none of these.
ELEMENTWISE = {"NMU": 3, "NMRU": 6, "NMRU of separate signs": 6, "iNALU": 2}
# For the gate, autograd forms products of its own where the formula takes those of the weights.
GATES = {"NPU": 2, "RealNPU": 1}


@needs_library
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("name", COUNTS)
def test_the_eager_formula_has_these_matrix_products(name: str, negative: bool) -> None:
    layer = COUNTS[name][0]()
    count = products(layer, True, negative=negative)
    with use_backend("reference"):
        eager = products(layer, True, negative=negative)
    assert eager == count - ELEMENTWISE.get(name, 0) + GATES.get(name, 0)


@needs_library
def test_the_parts_of_a_model() -> None:
    """Modules, stacked modules under vmap, and the eager modules, which torch counts by itself."""
    model = torch.nn.Sequential(NaiveNPU(INPUTS, OUTPUTS), NAU(OUTPUTS, 1))
    x = torch.rand(ROWS, INPUTS)
    with FlopCounterMode(display=False) as counter:
        model(x)
    power, add = torch.ops.npu_kernels.npu_forward, torch.ops.aten.mm
    assert counter.get_flop_counts()["Sequential.0"] == {power: 4 * PRODUCT}
    assert counter.get_flop_counts()["Sequential"] == {power: 4 * PRODUCT, add: 2 * ROWS * OUTPUTS}
    layers = [NPU(INPUTS, OUTPUTS) for _ in range(3)]
    stacked = torch.func.stack_module_state(layers)
    with FlopCounterMode(display=False) as counter:
        torch.func.vmap(lambda p, b: torch.func.functional_call(layers[0], (p, b), x))(*stacked)
    assert counter.get_total_flops() == 3 * 4 * PRODUCT
    assert products(interop.to_reference(NPU(INPUTS, OUTPUTS)), False, backward=False) == 4


def test_the_package_does_not_import_the_counter() -> None:
    code = "import sys, npu_kernels; print('torch.utils.flop_counter' in sys.modules)"
    assert run_forked(code).stdout.strip() == "False"
    assert npu_kernels.interop.flops.__all__ == []
