"""Neural Power Unit, a layer: every instruction set that this processor has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from npu_kernels import ops, reference
from npu_kernels.backends import cpu
from npu_kernels.testing import RECORDS, error_bound, relative_error
from tests.conftest import needs_library
from tests.kernels import errors, forward, outputs

pytestmark = needs_library
ISAS = cpu.supported_isas() if cpu.available()[0] else []


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = cpu.isa()
    cpu.set_isa(request.param)
    yield request.param
    cpu.set_isa(before)


@pytest.mark.parametrize("name", ["npu", "nmu"])
def test_float64_parity(isa: str, name: str) -> None:
    assert cpu.isa() == isa
    for sample in RECORDS[name].samples(torch.float64):
        grad_y = torch.ones_like(forward(sample, reference)[0])
        for actual, expected in zip(outputs(sample, ops, grad_y), outputs(sample, reference, grad_y), strict=True):
            assert relative_error(actual, expected) < 5e-14, sample.name


@pytest.mark.parametrize("name", ["npu", "nmu"])
@pytest.mark.parametrize("size", [(100, 6, 2), (64, 33, 35), (200, 64, 64)])
def test_float32_error(isa: str, name: str, size: tuple[int, int, int]) -> None:
    samples = [RECORDS[name].sample(*size, dtype=torch.float32, seed=seed) for seed in range(8)]
    pooled = torch.tensor([errors(sample) for sample in samples]).square().mean(0).sqrt()
    for error, eager in pooled.tolist():
        assert error <= error_bound(eager, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_values(isa: str, dtype: torch.dtype) -> None:
    inf = float("inf")
    x = torch.tensor([[0.0], [-0.0], [1e-40], [-1e-40], [1e38], [-1e38], [inf], [-inf], [float("nan")]], dtype=dtype)
    for in_features in (1, 3, 17):
        rows = x.expand(-1, in_features)
        weight = torch.linspace(0.1, 0.4, 5 * in_features, dtype=dtype).reshape(5, in_features) / in_features
        expected = reference.npu(rows, weight, weight)
        actual, _ = ops.npu_forward(rows, weight, weight, None, torch.finfo(dtype).eps, False)
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=0, equal_nan=True)


def test_order_and_restore() -> None:
    order = ["baseline", "avx2", "avx512"]
    assert cpu.supported_isas() == order[: len(ISAS)] or ISAS[0] == "baseline"
    assert cpu.isa() in ISAS


def test_unknown() -> None:
    before = cpu.isa()
    with pytest.raises(ValueError, match=r"unknown or unsupported instruction set 'mmx', this processor has"):
        cpu.set_isa("mmx")
    assert cpu.isa() == before


def _child(isa: str, code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, cpu.ISA_VARIABLE: isa}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_environment_variable() -> None:
    child = _child("baseline", "from npu_kernels.backends import cpu; import npu_kernels; print(cpu.isa())")
    assert child.stdout.split() == ["baseline"], child.stderr
    child = _child("mmx", "import npu_kernels")
    assert child.returncode != 0
    assert "ValueError: NPU_KERNELS_CPU_ISA=mmx: unknown or unsupported instruction set 'mmx'" in child.stderr
