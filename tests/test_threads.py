"""Neural Power Unit, a layer: one thread and many."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from npu_kernels import NPU
from npu_kernels.testing import RECORDS, Sample
from tests.conftest import needs_library

pytestmark = needs_library


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _everything(name: str, sample: Sample) -> list[Tensor]:
    leaves = sample.requires_grad()
    y = leaves.call(RECORDS[name].function)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves.leaves())]


@pytest.mark.parametrize("name", ["npu", "nmu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("batch", "in_features", "out_features", "num_models", "shared"),
    [
        (1000, 33, 35, None, False),
        (3000, 6, 70, None, False),
        (70, 130, 300, None, False),
        (50, 20, 17, 40, False),
        (50, 20, 17, 40, True),
        (20000, 9, 5, 1, False),
    ],
)
def test_same_bits_at_any_number(
    name: str,
    dtype: torch.dtype,
    batch: int,
    in_features: int,
    out_features: int,
    num_models: int | None,
    shared: bool,
) -> None:
    sample = RECORDS[name].sample(batch, in_features, out_features, num_models=num_models, shared=shared, dtype=dtype)
    torch.set_num_threads(1)
    expected = _everything(name, sample)
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        for actual, want in zip(_everything(name, sample), expected, strict=True):
            assert torch.equal(actual, want)


def test_same_bits_every_time() -> None:
    sample = RECORDS["npu"].sample(2000, 33, 35, dtype=torch.float32)
    expected = _everything("npu", sample)
    for _ in range(10):
        assert all(torch.equal(a, e) for a, e in zip(_everything("npu", sample), expected, strict=True))


def test_python_threads_share_a_module() -> None:
    """Eight threads call one module at once, each with its own rows and its own gradients."""
    layer = NPU(16, 8)
    inputs = [torch.randn(300, 16) for _ in range(8)]

    def step(x: Tensor) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])]

    expected = [step(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for actual, want in zip(pool.map(step, inputs), expected, strict=True):
                assert all(torch.equal(a, w) for a, w in zip(actual, want, strict=True))
