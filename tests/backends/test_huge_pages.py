"""Large results lie on huge pages, where the system has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from npu_kernels import NPU

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HUGE_PAGES_ON_REQUEST = ENABLED.exists() and "[madvise]" in ENABLED.read_text()
LARGE = 2**20  # rows of 16 features: 64 MiB, which malloc takes from the system at every call

pytestmark = pytest.mark.skipif(
    not HUGE_PAGES_ON_REQUEST, reason="the system gives huge pages to all memory, or to none"
)


def _asked_for(tensor: Tensor) -> bool:
    """Return whether the middle of a tensor's memory is marked for huge pages ("hg")."""
    address = tensor.data_ptr() + tensor.nbytes // 2
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        region = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if region:
            inside = int(region[1], 16) <= address < int(region[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise AssertionError("no region of the process has the tensor's memory")


@pytest.mark.parametrize("backend", ["cpu", "operators"], indirect=True)
def test_results_and_gradients(backend: str) -> None:
    layer = NPU(16, 16)
    x = torch.randn(LARGE, 16, requires_grad=True)
    y = layer(x)
    (grad_x,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert _asked_for(y)
    assert _asked_for(grad_x)


def test_without_a_request() -> None:
    assert not _asked_for(torch.empty(LARGE, 16))
