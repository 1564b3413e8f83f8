"""`torch.jit.trace` records the eager formulas, in silence, with their derivatives."""

import io
from collections.abc import Callable, Iterator

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
    backend_for,
    functional,
    iNALU,
    ode,
    use_backend,
)
from npu_kernels.training import mse_loss
from tests.support.compare import assert_near

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

UNITS: dict[str, Callable[[], nn.Module]] = {
    "NPU": lambda: NPU(3, 2, init_im=0.3), "RealNPU": lambda: RealNPU(3, 2, num_models=4),
    "NaiveNPU": lambda: NaiveNPU(3, 2), "NAU": lambda: NAU(3, 2), "NMU": lambda: NMU(3, 2),
    "NMRU": lambda: NMRU(3, 2, sign="separate"), "NAC": lambda: NAC(3, 2),
    "NALU": lambda: NALU(3, 2), "iNALU": lambda: iNALU(3, 2, num_models=4),
}  # fmt: skip


def results(
    model: Callable[[Tensor], Tensor], parameters: Iterator[nn.Parameter], x: Tensor
) -> list[Tensor]:
    """The output, and the gradients of its square's sum."""
    x = x.clone().requires_grad_()
    y = model(x)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *parameters])]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", UNITS)
def test_a_trace_is_the_layer(name: str, grad: bool, backend: str) -> None:
    """Traces with or without gradients, saved and loaded, of other numbers of rows."""
    layer = UNITS[name]().double()
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(layer, (torch.randn(5, 3, dtype=torch.float64),))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    # of torch's own operators: it runs without this package
    assert "npu_kernels::" not in str(loaded.inlined_graph)
    for rows in (5, 7):
        x = torch.randn(rows, 3, dtype=torch.float64)
        expected = results(layer, layer.parameters(), x)
        for other in (traced, loaded):
            assert_near(results(other, other.parameters(), x), expected, 1e-12)


def test_the_backend_says_so() -> None:
    seen = []

    def call(x: Tensor) -> Tensor:
        seen.append(backend_for(x))
        return 2 * x

    torch.jit.trace(call, (torch.ones(2),), check_trace=False)
    assert seen == ["reference"]


def test_errors_are_the_layers() -> None:
    layer = NPU(3, 2)
    with pytest.raises(
        ValueError, match=r"^npu: x must have last dimension 3 \(in_features\), got shape \(5, 4\)$"
    ):
        torch.jit.trace(layer, (torch.randn(5, 4),))
    assert torch._C._get_tracing_state() is None
    assert layer(torch.randn(5, 3)).shape == (5, 2)


def test_half_precision_and_leading_dimensions() -> None:
    layer = NPU(3, 2).to(torch.bfloat16)
    traced = torch.jit.trace(layer, (torch.randn(2, 5, 3, dtype=torch.bfloat16),))
    x = torch.randn(4, 1, 3, dtype=torch.bfloat16)
    assert traced(x).dtype == torch.bfloat16
    torch.testing.assert_close(traced(x), layer(x))


class Loss(nn.Module):
    def __init__(self, nonfinite: str) -> None:
        super().__init__()
        self.model = nn.Sequential(NPU(3, 4), NAU(4, 3)).double()
        self.nonfinite = nonfinite

    def forward(self, u0: Tensor) -> Tensor:
        path = ode.rollout(self.model, u0, steps=3, dt=0.1, nonfinite=self.nonfinite)
        assert isinstance(path, Tensor)
        return mse_loss(path, torch.zeros_like(path))


# torch's own comparison of sizes; torch ignores these warnings in its own modules
@pytest.mark.filterwarnings(
    "ignore:Converting a tensor:torch.jit.TracerWarning:torch.nn.functional"
)
def test_loss_and_rollout() -> None:
    u0 = torch.rand(3, dtype=torch.float64)
    call = Loss("keep")
    traced = torch.jit.trace(call, (u0,))
    for start in (u0, 2 * u0):
        torch.testing.assert_close(traced(start), call(start))
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace cannot; say nonfinite='keep'"):
        torch.jit.trace(Loss("raise"), (u0,))


def test_a_forced_backend_is_no_obstacle() -> None:
    x = torch.randn(5, 3)
    with use_backend("reference"):
        traced = torch.jit.trace(functional.nmu, (x, torch.rand(2, 3)))
    assert traced(x, torch.ones(2, 3)).shape == (5, 2)
