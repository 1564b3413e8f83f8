"""`torch.inference_mode`, which takes the fast path as `torch.no_grad` does.

Results are inference tensors, for which torch's own rules hold.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NALU, NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, iNALU, ode
from npu_kernels.optim import Adam
from npu_kernels.training import mse_loss
from tests.conftest import needs_fast_path, needs_library
from tests.support.building import run_forked
from tests.support.samples import CountCalls

pytestmark = [needs_library, needs_fast_path]

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "NPU": lambda: NPU(3, 2, init_im=0.3),
    "RealNPU": lambda: RealNPU(3, 2, num_models=4),
    "NaiveNPU": lambda: NaiveNPU(3, 2),
    "NMU": lambda: NMU(3, 2),
    "NMU-as-it-is": lambda: NMU(3, 2, clip=False),
    "NMRU": lambda: NMRU(3, 2),
    "NAU": lambda: NAU(3, 2, num_models=4),
    "NALU": lambda: NALU(3, 2, bias=True),
    "iNALU": lambda: iNALU(3, 2),
}


def operators(call: Callable[[Tensor], Tensor], x: Tensor) -> set[str]:
    """The names of torch's and our operators that a call runs; the fast path only makes outputs."""
    with torch.profiler.profile(acc_events=True) as profile:
        call(x)
    return {event.name for event in profile.events() if "::" in event.name} - {"aten::empty"}


def calls(name: str) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A call that takes the fast path, and an input."""
    if name == "mse_loss":
        target = torch.randn(4, 5)
        return lambda y: mse_loss(y, target, num_models=4), torch.randn(4, 5)
    if name == "rollout":
        model = nn.Sequential(NPU(3, 4), NAU(4, 3))
        return (
            lambda u0: ode.rollout(model, u0, steps=3, dt=0.1, return_derivatives=True)[1],
            torch.rand(3),
        )
    return LAYERS[name](), torch.randn(5, 3)


@pytest.mark.parametrize("name", [*LAYERS, "mse_loss", "rollout"])
def test_it_takes_the_fast_path(name: str) -> None:
    """Normal and inference tensors give the bits of `torch.no_grad`; torch decides their kind."""
    call, x = calls(name)
    with torch.no_grad():
        expected = call(x)
        assert operators(call, x) == set()
    with torch.inference_mode():
        of_normal, inference = call(x), x.clone()
        of_inference = call(inference)
        assert operators(call, x) == operators(call, inference) == set()
    with torch.no_grad():
        outside = call(inference)
        assert operators(call, inference) == set()
    assert all(torch.equal(y, expected) for y in (of_normal, of_inference, outside))
    assert [y.is_inference() for y in (expected, of_normal, of_inference, outside)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("name", LAYERS)
def test_an_inference_tensor_cannot_be_saved_for_backward(name: str) -> None:
    """An inference tensor cannot, as in torch's own layers; a clone can."""
    layer, x = calls(name)
    with torch.inference_mode():
        inference = x.clone()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        layer(inference)
    y = layer(inference.clone())
    assert "FastPath" in y.grad_fn.name()
    y.sum().backward()


def test_modes_are_seen_in_it() -> None:
    layer, x = NPU(3, 2), torch.randn(5, 3)
    with torch.inference_mode(), CountCalls() as count:
        layer(x)
    assert count.calls == {"npu_forward": 1}
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert "npu_kernels::npu_forward" in operators(layer, x)
    with torch.inference_mode(), torch.inference_mode(False):
        assert "FastPath<npu::NpuLayer>" in layer(x).grad_fn.name()


def test_it_may_be_the_first_call_of_a_process() -> None:
    code = """
import torch
from npu_kernels import NPU
layer, x = NPU(3, 2), torch.randn(5, 3)
with torch.inference_mode():
    layer(x)
print(layer(x).grad_fn.name())
"""
    child = run_forked(code)
    assert "FastPath<npu::NpuLayer>" in child.stdout, child.stderr


def test_adam() -> None:
    """Parameters change to the same bits, and their version with them."""
    updated = []
    for mode in (torch.no_grad, torch.inference_mode):
        parameter = torch.linspace(-1, 1, 5).requires_grad_()
        optimizer = Adam([parameter], lr=0.1)
        parameter.grad = torch.ones(5)
        optimizer.step()  # torch's own: it makes the state
        version = parameter._version
        with mode():
            optimizer.step()
        assert parameter._version == version + 1
        updated.append(parameter.detach())
    assert torch.equal(*updated)


def test_adam_refuses_what_torch_refuses() -> None:
    """A state made in inference mode cannot be changed outside of it."""
    for kind in (Adam, torch.optim.Adam):
        parameter = torch.ones(3, requires_grad=True)
        optimizer = kind([parameter])
        parameter.grad = torch.ones(3)
        with torch.inference_mode():
            optimizer.step()
            optimizer.step()
        with pytest.raises(
            RuntimeError, match="Inplace update to inference tensor outside InferenceMode"
        ):
            optimizer.step()
