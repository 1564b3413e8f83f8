"""Activation checkpoints whose forward and recomputation run under different modes of torch.

A recomputation pairs what it saves with what the forward has saved by its order alone. So both must
save the same tensors in the same order, whatever is active in one of them.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import npu_kernels
from npu_kernels import NAC, NAU, NMU, NPU, ode, training, use_backend
from tests.conftest import needs_library

pytestmark = [
    pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]


class _Functions(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        return function(*args, **(kwargs or {}))


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        return function(*args, **(kwargs or {}))


MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "nothing": contextlib.nullcontext,
    "anomaly": torch.autograd.detect_anomaly,
    "functions": _Functions,
    "dispatch": _Dispatch,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "profiler": torch.autograd.profiler.profile,
    "tangents": forward_ad.dual_level,
    "reference": lambda: use_backend("reference"),
}
BATCHED = ("batched", "vmap", "jvp")


def _gradients(y: Tensor, sources: Sequence[Tensor], mode: str) -> Sequence[Tensor]:
    upstream = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view_as(y)
    if mode not in BATCHED:
        with MODES[mode]():
            return torch.autograd.grad(y, sources, upstream)
    if mode == "jvp":
        return torch.func.jvp(
            lambda u: torch.autograd.grad(y, sources, u), (upstream,), (upstream,)
        )[0]
    two = torch.stack([upstream, upstream])
    if mode == "batched":
        grads = torch.autograd.grad(y, sources, two, is_grads_batched=True)
    else:
        grads = torch.func.vmap(lambda u: torch.autograd.grad(y, sources, u))(two)
    return [grad[0] for grad in grads]


def _check(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    parameters: Sequence[Tensor],
    forward: str,
    backward: str,
    error: float,
) -> None:
    """The gradients of a checkpoint are those of the call without one, in the same modes."""
    sources = [x, *parameters]
    with MODES[forward]():
        y, recomputed = function(x), checkpoint(function, x, use_reentrant=False)
    expected = _gradients(y, sources, backward)
    for actual, want in zip(_gradients(recomputed, sources, backward), expected, strict=True):
        scale = float(want.abs().max()) + 1e-30
        assert float((actual - want).abs().max()) <= error * scale, (forward, backward)


# The modes of forward and backward: each one in one of both, and some in both.
PAIRS = [
    *(("nothing", mode) for mode in (*MODES, *BATCHED)),
    *((mode, "nothing") for mode in MODES if mode != "nothing"),
    *(("dispatch", "functions"), ("tangents", "vmap"), ("autocast", "reference")),
    *(("reference", "dispatch"), ("reference", "tangents"), ("reference", "jvp")),
]


LAYERS = ["NPU", "RealNPU", "NaiveNPU", "NAU", "NMU", "NMRU", "NAC", "NALU", "iNALU"]


@pytest.mark.parametrize("models", [None, 3])
@pytest.mark.parametrize("name", [*LAYERS, "NMU unclipped", "NAU unclipped"])
def test_a_layer_in_any_modes(name: str, models: int | None) -> None:
    name, _, unclipped = name.partition(" ")
    options: dict[str, Any] = {"clip": False} if unclipped else {}
    shape = () if models is None else (models,)
    # Rows and outputs of one number fit where tensors are paired wrongly.
    for (rows, inputs, outputs), dtype, error in (
        ((4, 4, 4), torch.float32, 5e-6), ((4, 4, 4), torch.bfloat16, 0.03),
        ((4, 3, 4), torch.float64, 1e-13), ((5, 3, 2), torch.float64, 1e-13),
    ):  # fmt: skip
        torch.manual_seed(rows + inputs)
        layer = getattr(npu_kernels, name)(
            inputs, outputs, num_models=models, dtype=dtype, **options
        )
        x = (torch.rand(*shape, rows, inputs) + 0.5).to(dtype).requires_grad_()
        for pair in PAIRS:
            _check(layer, x, [*layer.parameters()], *pair, error)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_models_of_several_layers(pair: tuple[str, str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(NPU(4, 4), NAU(4, 4), NMU(4, 4), nn.Tanh(), NAC(4, 4)).double()
    x = torch.rand(2, 2, 4, dtype=torch.float64).add(0.5).requires_grad_()  # [2, 2] are four rows
    _check(model, x, [*model.parameters()], *pair, 1e-12)

    def loss(x: Tensor) -> Tensor:
        return training.mse_loss(model[0](x).float(), torch.ones(2, 4), num_models=2)

    if pair[1] != "jvp":  # torch's own loss has no derivative of that order there
        _check(loss, x, [*model[0].parameters()], *pair, 1e-6)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("models", [None, 2])
def test_rollouts(models: int | None, pair: tuple[str, str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(NPU(3, 3, num_models=models), NAU(3, 3, num_models=models)).double()
    for parameter in model.parameters():
        parameter.data.mul_(0.3)
    shape = (3,) if models is None else (models, 3, 3)
    u0 = torch.rand(shape, dtype=torch.float64).add(0.5).requires_grad_()
    options: list[dict[str, Any]] = [
        {"steps": 3, "dt": 0.1, "method": "rk4"},
        {"steps": 3, "dt": 0.1, "memory": "checkpointed"},
    ]
    if pair[1] != "jvp" and "reference" not in pair:  # those of adaptive steps take one backend
        options.append({"t": [0.0, 0.1, 0.3]})
    for choice in options:

        def trajectory(u0: Tensor, choice: dict[str, Any] = choice) -> Tensor:
            return ode.rollout(model, u0, nonfinite="keep", **choice)

        _check(trajectory, u0, [*model.parameters()], *pair, 1e-12)


@needs_library
def test_another_backend_of_adaptive_steps_is_an_error() -> None:
    model = nn.Sequential(NPU(3, 3), NAU(3, 3))
    u0 = torch.full((3,), 0.5, requires_grad=True)
    path = checkpoint(lambda u0: ode.rollout(model, u0, t=[0.0, 0.1]), u0, use_reentrant=False)
    with use_backend("reference"), pytest.raises(RuntimeError, match="checkpoint"):
        path.sum().backward()


def test_a_derivative_of_the_gradients_within_a_checkpoint() -> None:
    model = nn.Sequential(NPU(3, 4), NAU(4, 4), NMU(4, 2)).double()
    x = torch.rand(5, 3, dtype=torch.float64).add(0.5).requires_grad_()

    def gradients(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return gradient

    for mode in ("anomaly", "functions", "dispatch", "reference", "batched", "vmap"):
        _check(gradients, x, [*model.parameters()], "nothing", mode, 1e-12)
