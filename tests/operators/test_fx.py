"""torch.fx.symbolic_trace: a layer is one call in the graph, which has its values and gradients."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import (
    NAC,
    NALU,
    NAU,
    NMRU,
    NMU,
    NPU,
    NaiveNPU,
    RealNPU,
    functional,
    iNALU,
    interop,
)

LAYERS: list[tuple[Any, dict[str, Any]]] = [
    (NPU, {"init_im": 0.3, "eps": 1e-2, "gate_gradient": "straight_through"}),
    (RealNPU, {}),
    (NaiveNPU, {"init_im": 0.3}),
    (NAU, {"clip": False}),
    (NMU, {"clip": False}),
    (NMRU, {"clip": False, "sign": "separate", "eps": 0.1}),
    (NAC, {}),
    (NALU, {"bias": True, "eps": 0.1}),
    (iNALU, {"eps": 0.1, "omega": 1.0}),
]


def _results(model: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y.sum(), [x, *model.parameters()])]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("num_models", [None, 2])
@pytest.mark.parametrize(("kind", "options"), LAYERS)
def test_values_and_gradients(
    kind: Any, options: dict[str, Any], num_models: int | None, dtype: torch.dtype
) -> None:
    """The graph, its copy and its pickled one give the values of the layer, eager ones too."""
    layer = kind(3, 2, num_models=num_models, dtype=dtype, **options)
    with torch.no_grad():  # also where something is clipped
        for parameter in layer.parameters():
            parameter.mul_(1.5)
    layouts = ["reference"]
    if kind in (NPU, RealNPU, NaiveNPU) and num_models is None:
        layouts += ["julia", "pytorch"]
    layers = [layer, *(interop.to_reference(layer, layout) for layout in layouts)]
    x = torch.randn(2, 5, 3).to(dtype) if num_models else torch.randn(5, 3).to(dtype)
    for layer in layers:
        model = nn.Sequential(layer, nn.Tanh())
        traced = torch.fx.symbolic_trace(model)
        calls = [node.target for node in traced.graph.nodes if node.op == "call_function"]
        assert len(calls) == 1
        assert type(layer) is not kind or calls[0].__module__ == functional.__name__
        expected = _results(model, x)
        for other in (traced, copy.deepcopy(traced), pickle.loads(pickle.dumps(traced))):
            assert all(map(torch.equal, _results(other, x), expected))


def test_functions() -> None:
    """A function of the inputs of a graph, and one of a weight alone."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return functional.nau(x, weight) + functional.nmu(torch.ones(4, 3), weight, clip=False)

    traced = torch.fx.symbolic_trace(function)
    x, weight = torch.randn(4, 3), torch.randn(2, 3)
    assert torch.equal(traced(x, weight), function(x, weight))
    targets = [n.target for n in traced.graph.nodes if n.op == "call_function"]
    assert targets[:2] == [functional.nau, functional.nmu]
