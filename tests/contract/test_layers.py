"""Every layer computes its formula and its derivatives, whatever computes it.

The formulas stand here in plain torch, for one model and rows ``[B, I]``.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from npu_kernels import backend_for, functional, layers, use_backend

BOUND = 2e-13  # of the greatest error over the greatest number; float64 gives a tenth of it


def power(x, weight_re, weight_im=None, gate=None, eps=2.0**-52, gate_gradient="clip") -> Tensor:
    """The real part of exp(w log z) with z = r exp(i pi k)."""
    r, k = x.abs() + eps, (x < 0).to(x.dtype)
    if gate is not None:
        g = gate.clamp(0, 1)
        g = g if gate_gradient == "clip" else gate + (g - gate).detach()
        r, k = g * r + 1 - g, g * k
    weight = torch.complex(weight_re, 0 * weight_re if weight_im is None else weight_im)
    return (torch.complex(r.log(), torch.pi * k) @ weight.T).exp().real


def nau(x, weight, clip=True) -> Tensor:
    return x @ (weight.clamp(-1, 1) if clip else weight).T


def nmu(x, weight, clip=True) -> Tensor:
    weight = weight.clamp(0, 1) if clip else weight
    return (weight * x[:, None] + 1 - weight).prod(2)


def nmru(x, weight, clip=True, sign="product", eps=2.0**-23) -> Tensor:
    both = torch.cat([x, 1 / (x + eps)], 1)
    if sign == "product":
        return nmu(both, weight, clip)
    turns = (both < 0).to(x.dtype) @ weight.T
    return nmu(both.abs(), weight, clip) * (torch.pi * turns).cos()


def nac(x, weight, mask) -> Tensor:
    return x @ (weight.tanh() * mask.sigmoid()).T


def nalu(x, weight, mask, gate_weight, gate_bias=0, eps=1e-8) -> Tensor:
    g = (x @ gate_weight.T + gate_bias).sigmoid()
    return g * nac(x, weight, mask) + (1 - g) * nac((x.abs() + eps).log(), weight, mask).exp()


def inalu(
    x, weight_add, mask_add, weight_mul, mask_mul, gate_weight, eps=1e-7, omega=20.0
) -> Tensor:
    g, w = (x @ gate_weight.T).sigmoid(), weight_mul.tanh() * mask_mul.sigmoid()
    size = (x.abs().clamp(min=eps).log() @ w.T).clamp(max=omega).exp()
    sign = (x.sign()[:, None] * w.abs() + 1 - w.abs()).prod(2)
    return g * nac(x, weight_add, mask_add) + (1 - g) * size * sign


# Each layer: its formula, its function, and the options that change the formula, one set a call.
GATE = {"gate_gradient": "straight_through"}
LAYERS: dict[str, tuple[Callable[..., Tensor], str, list[dict[str, Any]]]] = {
    "NPU": (power, "npu", [{}, {"eps": 0.1}, GATE]),
    "RealNPU": (power, "npu", [{}, {"eps": 0.1}, GATE]),
    "NaiveNPU": (power, "npu", [{}, {"eps": 0.1}]),
    "NAU": (nau, "nau", [{}, {"clip": False}]),
    "NMU": (nmu, "nmu", [{}, {"clip": False}]),
    "NMRU": (nmru, "nmru", [{}, {"clip": False}, {"sign": "separate"}, {"eps": 0.1}]),
    "NAC": (nac, "nac", [{}]),
    "NALU": (nalu, "nalu", [{}, {"bias": True}, {"eps": 0.1}]),
    "iNALU": (inalu, "inalu", [{}, {"eps": 0.5}, {"omega": 0.1}]),
}
WITHOUT_OPERATORS = ("NAU", "NAC")  # matrix products of torch
forms = pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name in LAYERS for options in LAYERS[name][2]]
)


def drawn(name: str, options: dict[str, Any], models: int | None = None) -> nn.Module:
    """Weights on both sides of the bounds of clipping."""
    torch.manual_seed(1)
    module = getattr(layers, name)(3, 2, num_models=models, dtype=torch.float64, **options)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -1.2, 1.2)
    return module


def inputs(*lead: int) -> Tensor:
    x = torch.rand(*lead, 4, 3, dtype=torch.float64) + 0.2
    return (x * (torch.randint(2, x.shape) * 2 - 1)).requires_grad_()


class Watch(TorchDispatchMode):
    """While something watches, calls reach the registered operators, whose packages it notes."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> Any:
        self.called.add(function.namespace)
        return function(*args, **(kwargs or {}))


@pytest.fixture(params=["reference", "cpu", "operators"])
def watch(request: pytest.FixtureRequest) -> Iterator[Watch | None]:
    """Every backend that runs here, the kernels called directly and as registered operators."""
    with use_backend("reference" if request.param == "reference" else "cpu"):
        try:
            backend_for(torch.empty(0))
        except RuntimeError as error:
            pytest.skip(str(error))
        yield Watch() if request.param == "operators" else None


def derivatives(function: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """The result, its gradients, and their derivatives along one direction."""
    torch.manual_seed(2)

    def along(tensor: Tensor) -> Tensor:
        return torch.rand(tensor.shape, dtype=torch.float64) - 0.3

    y = function(*tensors)
    first = torch.autograd.grad(y, tensors, along(y), create_graph=True)
    directional = sum((gradient * along(gradient)).sum() for gradient in first)
    second = torch.autograd.grad(directional, tensors, materialize_grads=True)
    return [tensor.detach() for tensor in (y, *first, *second)]


@forms
@pytest.mark.parametrize(
    ("models", "lead"), [(None, ()), (3, ()), (3, (3,))], ids=["one", "shared", "models"]
)
def test_formula_and_derivatives(name, options, models, lead, watch) -> None:
    module = drawn(name, options, models)
    weights = dict(module.named_parameters())
    tensors = [inputs(*lead), *weights.values()]
    plain = {key: value for key, value in options.items() if key != "bias"}

    def expected(x: Tensor, *values: Tensor) -> Tensor:
        return LAYERS[name][0](x, **dict(zip(weights, values, strict=True)), **plain)

    def actual(x: Tensor, *values: Tensor) -> Tensor:
        return functional_call(module, dict(zip(weights, values, strict=True)), (x,))

    with watch or contextlib.nullcontext():
        results = derivatives(actual, tensors)
        if options != GATE:  # which is no derivative of the formula
            torch.autograd.gradcheck(actual, tensors)
    if models:
        expected = torch.vmap(expected, (0 if lead else None, *[0] * len(weights)))
    for result, right in zip(results, derivatives(expected, tensors), strict=True):
        assert result.shape == right.shape
        assert (result - right).abs().max() <= BOUND * right.abs().max()
    if watch is not None:
        assert ("npu_kernels" in watch.called) is (name not in WITHOUT_OPERATORS)


@forms
def test_function(name: str, options: dict[str, Any]) -> None:
    """The function takes the module's weights by their names; a NMRU has no eps in evaluation."""
    module, x = drawn(name, options).eval(), inputs()
    left_out = ("bias", "eps") if name == "NMRU" else ("bias",)
    arguments = {key: value for key, value in options.items() if key not in left_out}
    function = getattr(functional, LAYERS[name][1])
    assert torch.equal(function(x, **dict(module.named_parameters()), **arguments), module(x))
