"""Shapes, dtypes, autocast and the choice of a backend."""

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from npu_kernels import NAU, NPU, backend_for, functional, ode, use_backend
from tests.conftest import needs_library
from tests.support.building import run_forked
from tests.support.compare import assert_near
from tests.support.samples import RECORDS, Sample, normwise_error

every_operator = pytest.mark.parametrize("name", list(RECORDS))


@every_operator
@pytest.mark.parametrize("batch", [(), (0,), (1,), (5,), (2, 3), (2, 0, 3), (2, 1, 3, 2)])
def test_batch_shapes(name: str, batch: tuple[int, ...], backend: str) -> None:
    """Any batch shape is the flat batch, reshaped."""
    record = RECORDS[name]
    sample = record.sample(1, 4, 3)
    x = torch.randn(*batch, 4, dtype=torch.float64)
    y = record.function(x, *sample.tensors.values())
    assert y.shape == (*batch, 3)
    flat = record.function(
        x.reshape(-1, 4) if x.numel() else x.new_empty(0, 4), *sample.tensors.values()
    )
    assert normwise_error(y.reshape(-1, 3) if y.numel() else y.new_empty(0, 3), flat) < 1e-14


@every_operator
@pytest.mark.parametrize("batch", [(5,), (0,), (2, 3), (2, 0, 3), (2, 1, 3, 2)])
def test_batch_shapes_of_models(name: str, batch: tuple[int, ...], backend: str) -> None:
    record = RECORDS[name]
    sample = record.sample(1, 4, 3, num_models=2)
    x = torch.randn(2, *batch, 4, dtype=torch.float64)
    y = record.function(x, *sample.tensors.values())
    assert y.shape == (2, *batch, 3)
    for k in range(2):
        tensors = [None if t is None else t[k] for t in sample.tensors.values()]
        assert normwise_error(y[k], record.function(x[k], *tensors)) < 1e-14


def test_two_dimensional_rows_are_shared_even_when_their_number_is_k(backend: str) -> None:
    sample = RECORDS["npu"].sample(3, 4, 2, num_models=3, shared=True)
    expected = functional.npu(sample.x.expand(3, 3, 4), *sample.tensors.values())
    torch.testing.assert_close(sample.call(functional.npu), expected)


@needs_library
def test_no_graph_without_need() -> None:
    """No gradient wanted: nothing is saved, and the bits are those with one."""
    for name in ("npu", "nmu", "nmru"):
        sample = RECORDS[name].sample(7, 4, 3).requires_grad()
        y = sample.call(RECORDS[name].function)
        with torch.no_grad():
            assert not sample.call(RECORDS[name].function).requires_grad
            assert torch.equal(sample.call(RECORDS[name].function), y)
        with torch.inference_mode():
            assert torch.equal(sample.call(RECORDS[name].function), y)
        assert y.grad_fn is not None
        assert not sample.map(Tensor.detach).call(RECORDS[name].function).requires_grad


@every_operator
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name: str, dtype: torch.dtype, backend: str) -> None:
    """Computed in float32 and rounded once."""
    record = RECORDS[name]
    sample = record.sample(9, 5, 3, num_models=2, dtype=dtype)
    y = sample.call(record.function)
    assert y.dtype == dtype
    in_float32 = sample.map(Tensor.float).call(record.function).to(dtype)
    if name == "nac":  # by the formula in half precision, by a kernel in float32: two roundings
        torch.testing.assert_close(y, in_float32, rtol=torch.finfo(dtype).eps, atol=1e-6)
    else:
        assert torch.equal(y, in_float32)
    leaves = sample.requires_grad()
    leaves.call(record.function).float().square().sum().backward()
    assert all(leaf.grad is not None and leaf.grad.dtype == dtype for leaf in leaves.leaves())


@every_operator
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(name: str, dtype: torch.dtype, backend: str) -> None:
    """Float32 inside and out; mixed dtypes are welcome, float64 stays, the backward needs none."""
    record = RECORDS[name]
    sample = record.sample(9, 5, 3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        y = sample.call(record.function)
        mixed = Sample("", sample.x.to(dtype), sample.tensors, sample.options).call(record.function)
        double = sample.map(Tensor.double).call(record.function)
        leaves = sample.requires_grad()
        out = leaves.call(record.function)
        inside = torch.autograd.grad(out.sum(), leaves.leaves(), retain_graph=True)
    assert y.dtype == mixed.dtype == torch.float32
    assert double.dtype == torch.float64
    plain = sample.call(record.function)
    # under autocast the formula, otherwise a kernel
    if name in ("nau", "nac") and backend == "cpu":
        assert normwise_error(y, plain) < 1e-6
    else:
        assert torch.equal(y, plain)
    outside = torch.autograd.grad(out.sum(), leaves.leaves())
    for a, b in zip(inside, outside, strict=True):
        assert a.dtype == b.dtype == torch.float32
        if name in ("npu", "nmu") and backend == "cpu":
            assert torch.equal(a, b)


@needs_library
def test_autocast_of_the_second_derivative() -> None:
    """A double backward inside autocast is in float32; the eager formula's products are cast."""
    sample = RECORDS["npu"].sample(9, 5, 3, dtype=torch.float32).requires_grad()

    def second() -> tuple[Tensor, ...]:
        grads = torch.autograd.grad(
            sample.call(functional.npu).sum(), sample.leaves(), create_graph=True
        )
        return torch.autograd.grad(sum(g.square().sum() for g in grads), sample.leaves())

    expected = second()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = second()
    assert_near(actual, expected, 1e-5)


def test_autocast_of_another_device_changes_nothing() -> None:
    sample = RECORDS["npu"].sample(9, 5, 3, dtype=torch.float32)
    expected = sample.call(functional.npu)
    previous = torch.is_autocast_enabled("xpu")
    torch.set_autocast_enabled("xpu", True)
    try:
        assert torch._C._is_any_autocast_enabled()
        assert torch.equal(sample.call(functional.npu), expected)
    finally:
        torch.set_autocast_enabled("xpu", previous)


# ---- the choice of a backend ----------------------------------------------------------------


class _Spy(torch.utils._python_dispatch.TorchDispatchMode):
    """The names of this package's operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.backends: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "npu_kernels":
            self.names.append(func.name().removeprefix("npu_kernels::"))
            self.backends.append(backend_for(args[0]))
        return func(*args, **(kwargs or {}))


@needs_library
def test_use_backend_nests_and_decorates() -> None:
    x = torch.ones(1)
    assert backend_for(x) == "cpu"
    with use_backend("reference"):
        assert backend_for(x) == "reference"
        with use_backend("cpu"):
            assert backend_for(x) == "cpu"
        assert backend_for(x) == "reference"

    outer = use_backend("reference")

    @outer
    def inside(depth: int) -> str:
        return inside(depth - 1) if depth else backend_for(x)

    assert inside(3) == "reference"
    assert backend_for(x) == "cpu"
    with pytest.raises(KeyError), outer:
        raise KeyError
    assert backend_for(x) == "cpu"


def in_a_thread(function: Callable[[], Any]) -> Any:
    """What a function returns in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@needs_library
def test_use_backend_forces_for_its_thread_only() -> None:
    """Another thread makes its own choice; blocks that overlap do not touch each other."""
    x, shared = torch.ones(1), use_backend("reference")
    entered, finished = threading.Event(), threading.Event()

    def other() -> list[str]:
        backends = [backend_for(x)]
        with shared:  # the same object as in the main thread
            entered.set()
            finished.wait(10)
            backends.append(backend_for(x))
        return [*backends, backend_for(x)]

    with ThreadPoolExecutor(1) as pool:
        with use_backend("cpu"), shared:
            answer = pool.submit(other)
            entered.wait(10)
            assert backend_for(x) == "reference"
        assert backend_for(x) == "cpu"
        finished.set()
        assert answer.result() == ["cpu", "reference", "cpu"]


@needs_library
def test_use_backend_forces_for_its_task_and_those_that_it_starts() -> None:
    x = torch.ones(1)

    async def ask(name: str | None) -> list[str]:
        with use_backend(name) if name else contextlib.nullcontext():
            backends = []
            for _ in range(3):
                backends.append(backend_for(x))
                await asyncio.sleep(0)
            if name:
                backends += await asyncio.create_task(ask(None))
        return [*backends, backend_for(x)]

    async def everybody() -> list[list[str]]:
        return await asyncio.gather(ask("reference"), ask(None), ask("cpu"))

    reference, none, cpu_ = asyncio.run(everybody())
    assert reference == ["reference"] * 7 + ["cpu"]
    assert none == ["cpu"] * 4
    assert cpu_ == ["cpu"] * 8


@needs_library
@pytest.mark.parametrize("name", ["cpu", None])
def test_a_backward_has_the_choice_of_its_forward(name: str | None) -> None:
    """The choice holds in any thread, as in autograd's own for a GPU; no choice stays none."""
    sample = RECORDS["npu"].sample(4, 3, 2).requires_grad()
    u0 = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    model = torch.nn.Sequential(NPU(3, 2, dtype=torch.float64), NAU(2, 3, dtype=torch.float64))
    with _Spy(), use_backend(name) if name else contextlib.nullcontext():
        losses = [sample.call(functional.npu).sum(), ode.rollout(model, u0, steps=2, dt=0.1).sum()]

    def backward(loss: torch.Tensor) -> tuple[list[str], list[str], str]:
        with use_backend("reference"), _Spy() as spy:
            loss.backward()
            return spy.names, spy.backends, backend_for(loss)

    for loss, operator in zip(losses, ("npu_backward", "ode_backward"), strict=True):
        expected = ([operator], ["cpu"]) if name else ([], [])
        assert in_a_thread(lambda loss=loss: backward(loss)) == (*expected, "reference")


WITHOUT_LIBRARY = """
import torch, warnings
from npu_kernels import backend_for, functional, reference, use_backend
x, weight = torch.rand(4, 3), torch.rand(2, 3)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    y = functional.npu(x, weight)
    assert torch.equal(y, functional.npu(x, weight))
(notice,) = seen
print(notice.message)
assert torch.equal(y, reference.npu(x, weight)) and backend_for(x) == "reference"
eps = torch.finfo(torch.float32).eps
assert torch.equal(y, torch.ops.npu_kernels.npu_forward(x, weight, None, None, eps, True)[0])
with use_backend("cpu"):
    for tensor in (x, torch.ones(1, 2, device="meta")):
        try:
            functional.npu(tensor, tensor)
        except RuntimeError as error:
            print(error)
"""


def test_without_the_library(bare_package: Path) -> None:
    """One notice; formulas compute, also those of the operators; what is forced cannot run."""
    run = run_forked(WITHOUT_LIBRARY, cwd=bare_package)
    assert run.returncode == 0, run.stderr
    notice, *errors = run.stdout.splitlines()
    slow = "npu_kernels: cpu tensors are computed with the slower eager implementation "
    assert re.match(rf"{slow}.*not built.*build .* with `pip", notice), notice
    candidates = "Candidates: reference: available; cpu: .+; triton: .+"
    assert re.search(f"backend 'cpu' cannot run on cpu tensors. {candidates}", errors[0])
    assert re.search("on meta tensors.*cpu: runs on cpu tensors only", errors[1])


def test_all_operands_are_on_one_device() -> None:
    def operands(*devices: str) -> list[Tensor]:
        shapes = [(5, 3), (2, 3), (2, 3), (3,)]
        return [
            torch.empty(shape, device=device) for shape, device in zip(shapes, devices, strict=True)
        ]

    with FakeTensorMode(), use_backend("reference"):
        for device in ("cpu", "cuda:0"):
            y = functional.npu(*operands(*[device] * 4))
            assert (str(y.device), y.shape) == (device, (5, 2))
        for device, other in (("cuda:0", "cuda:1"), ("cuda:0", "cpu"), ("cpu", "cuda:0")):
            for position in range(1, 4):
                devices = [device] * 4
                devices[position] = other
                with pytest.raises(ValueError, match=r"^npu: all tensors must have one device"):
                    functional.npu(*operands(*devices))
