"""`torch.inference_mode`, which takes the fast path as `torch.no_grad` does.

Results are inference tensors, for which torch's own rules hold.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from npu_kernels import NALU, NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, iNALU, ode
from npu_kernels._backends import fast_path
from npu_kernels.optim import Adam
from npu_kernels.training import mse_loss
from tests.conftest import needs_library
from tests.support.building import run_python

pytestmark = [
    needs_library,
    pytest.mark.skipif(fast_path.npu is None, reason="without the fast path nothing differs"),
]

LAYERS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "NPU": ("npu", lambda: NPU(3, 2, init_im=0.3)),
    "RealNPU": ("npu", lambda: RealNPU(3, 2, num_models=4)),
    "NaiveNPU": ("npu", lambda: NaiveNPU(3, 2)),
    "NMU": ("nmu", lambda: NMU(3, 2)),
    "NMU-as-it-is": ("nmu", lambda: NMU(3, 2, clip=False)),
    "NMRU": ("nmru", lambda: NMRU(3, 2)),
    "NAU": ("nau", lambda: NAU(3, 2, num_models=4)),
    "NALU": ("nalu", lambda: NALU(3, 2, bias=True)),
    "iNALU": ("inalu", lambda: iNALU(3, 2)),
}


class Counting:
    """A function of the fast path that counts its own results and those left to the general way."""

    def __init__(self, name: str) -> None:
        self.function: Callable[..., Any] = getattr(fast_path, name)
        self.taken = self.left = 0

    def __call__(self, *arguments: Any) -> Any:
        answer = self.function(*arguments)
        self.taken += answer is not NotImplemented
        self.left += answer is NotImplemented
        return answer


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Counting]:
    def count(name: str) -> Counting:
        counter = Counting(name)
        monkeypatch.setattr(fast_path, name, counter)
        return counter

    return count


def calls(name: str) -> tuple[str, Callable[[Tensor], Tensor], Tensor]:
    """The fast path's function, a call that takes it, and an input."""
    if name == "mse_loss":
        target = torch.randn(4, 5)
        return "mse", lambda y: mse_loss(y, target, num_models=4), torch.randn(4, 5)
    if name == "rollout":
        model = nn.Sequential(NPU(3, 4), NAU(4, 3))
        return (
            "ode",
            lambda u0: ode.rollout(model, u0, steps=3, dt=0.1, derivatives=True)[1],
            torch.rand(3),
        )
    function, make = LAYERS[name]
    return function, make(), torch.randn(5, 3)


@pytest.mark.parametrize("name", [*LAYERS, "mse_loss", "rollout"])
def test_it_takes_the_fast_path(name: str, counting: Callable[[str], Counting]) -> None:
    """Normal and inference tensors give the bits of `torch.no_grad`; torch decides their kind."""
    function, call, x = calls(name)
    count = counting(function)
    with torch.no_grad():
        expected = call(x)
    with torch.inference_mode():
        of_normal, inference = call(x), x.clone()
        of_inference = call(inference)
    with torch.no_grad():
        outside = call(inference)
    assert (count.taken, count.left) == (4, 0)
    assert all(torch.equal(y, expected) for y in (of_normal, of_inference, outside))
    assert [y.is_inference() for y in (expected, of_normal, of_inference, outside)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("name", [*LAYERS, "mse_loss", "rollout"])
def test_results_have_the_rules_of_inference_tensors(name: str) -> None:
    _, call, x = calls(name)
    with torch.inference_mode():
        y = call(x)
        y.mul_(1)
    with pytest.raises(RuntimeError, match="Inference tensors do not track version counter"):
        _ = y._version
    with pytest.raises(
        RuntimeError,
        match="Inplace update to inference tensor outside InferenceMode is not allowed",
    ):
        y.mul_(1)
    with pytest.raises(
        RuntimeError, match="Setting requires_grad=True on inference tensor outside InferenceMode"
    ):
        y.requires_grad_()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        y * torch.ones_like(y).requires_grad_()
    assert not y.clone().is_inference()


@pytest.mark.parametrize("name", LAYERS)
def test_an_inference_tensor_cannot_be_saved_for_backward(name: str) -> None:
    """An inference tensor cannot, as in torch's own layers; a clone can."""
    _, layer, x = calls(name)
    with torch.inference_mode():
        inference = x.clone()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        layer(inference)
    y = layer(inference.clone())
    assert "FastPath" in y.grad_fn.name()
    y.sum().backward()


def test_modes_are_seen_in_it(counting: Callable[[str], Counting]) -> None:
    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return function(*args, **(kwargs or {}))

    layer, x, count = NPU(3, 2), torch.randn(5, 3), counting("npu")
    with torch.inference_mode(), Watching():
        layer(x)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x)
    assert (count.taken, count.left) == (0, 2)
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
    child = run_python("-c", code)
    assert "FastPath<npu::NpuLayer>" in child.stdout, child.stderr


def test_adam(counting: Callable[[str], Counting]) -> None:
    """Parameters change to the same bits, and their version with them."""
    updated = []
    for mode in (torch.no_grad, torch.inference_mode):
        parameter = torch.linspace(-1, 1, 5).requires_grad_()
        optimizer = Adam([parameter], lr=0.1)
        parameter.grad = torch.ones(5)
        optimizer.step()  # torch's own: it makes the state
        count, version = counting("adam"), parameter._version
        with mode():
            optimizer.step()
        assert (count.taken, count.left) == (1, 0)
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
