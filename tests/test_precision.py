"""Neural Power Unit, a layer: what `torch.set_float32_matmul_precision` does on the CPU.

It is obeyed on the fast path, by instruction sets that multiply bfloat16, where that is faster; elsewhere everything
is float32 whatever it says.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from npu_kernels import functional, reference
from npu_kernels.backends import cpu, direct
from npu_kernels.testing import RECORDS, Sample, relative_error
from tests.conftest import needs_library

pytestmark = [needs_library, pytest.mark.skipif(direct.npu is None, reason="only the fast path knows the setting")]
ISAS = cpu.supported_isas() if cpu.available()[0] else []
BFLOAT16 = [isa for isa in ISAS if isa in ("avx512_bf16", "amx")]
needs_bfloat16 = pytest.mark.skipif(not BFLOAT16, reason="this processor does not multiply bfloat16")
SIZE = (256, 64, 64)  # whole tiles


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    isa = cpu.isa()
    yield
    cpu.set_isa(isa)
    torch.set_float32_matmul_precision("highest")  # of every device


def sample(size: tuple[int, int, int] = SIZE, **options: object) -> Sample:
    found = RECORDS["npu"].sample(*size, **{"dtype": torch.float32, **options})
    found.x.add_(0.25 * found.x.sign())  # near 0 the gradient of one x outweighs all others
    return found.requires_grad()


def outcome(sample: Sample, forward: str = "highest", backward: str | None = None) -> list[Tensor]:
    """The result and the gradients, each way under a precision."""
    torch.set_float32_matmul_precision(forward)
    y = sample.call(functional.npu)
    assert "NPUDirect" in y.grad_fn.name() or direct.npu is None
    torch.set_float32_matmul_precision(backward or forward)
    return [y.detach(), *torch.autograd.grad(y, sample.leaves(), torch.ones_like(y))]


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@needs_bfloat16
@pytest.mark.parametrize("isa", BFLOAT16)
@pytest.mark.parametrize("options", [{}, {"num_models": 2, "shared": True}])
def test_medium(isa: str, options: dict[str, object]) -> None:
    """Errors of bfloat16, and no larger."""
    case = sample(**options)
    exact = case.map(Tensor.double).requires_grad()
    y = reference.npu(exact.x, *exact.tensors.values(), eps=torch.finfo(torch.float32).eps)
    expected = [y.detach(), *torch.autograd.grad(y, exact.leaves(), torch.ones_like(y))]
    cpu.set_isa(isa)
    full, medium = outcome(case), outcome(case, "medium")
    for whole, one, want in zip(full, medium, expected, strict=True):
        assert relative_error(whole, want) < 3e-6
        assert 3e-4 < relative_error(one, want) < 3e-2


@needs_bfloat16
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_avx512_bf16_is_avx512_above_medium(precision: str) -> None:
    case = sample()
    cpu.set_isa("avx512")
    expected = outcome(case, precision)
    cpu.set_isa("avx512_bf16")
    assert same(outcome(case, precision), expected)


@needs_bfloat16
def test_each_way_has_its_own_precision() -> None:
    case = sample()
    cpu.set_isa("avx512_bf16")
    full, mixed = outcome(case), outcome(case, "highest", "medium")
    assert torch.equal(mixed[0], full[0])
    assert not any(torch.equal(a, b) for a, b in zip(mixed[1:], full[1:], strict=True))


@needs_bfloat16
@pytest.mark.parametrize("size", [(100, 6, 2), (63, 64, 64), (100, 100, 100), (256, 31, 64), (256, 64, 15)])
def test_layers_that_fill_no_tiles_are_float32(size: tuple[int, int, int]) -> None:
    case = sample(size)
    cpu.set_isa("avx512_bf16")
    assert same(outcome(case, "medium"), outcome(case))


@needs_bfloat16
def test_not_of_float64() -> None:
    case = sample(dtype=torch.float64)
    assert same(outcome(case, "medium"), outcome(case))


@needs_bfloat16
def test_operators_are_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stable interface does not tell them the setting."""
    case = sample()
    expected = outcome(case)
    monkeypatch.setattr(direct, "npu", None)
    assert same(outcome(case, "medium"), outcome(case))
    if cpu.isa() != "amx":
        assert same(outcome(case, "medium"), expected)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa not in BFLOAT16])
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_other_instruction_sets_are_float32(isa: str, precision: str) -> None:
    case = sample()
    cpu.set_isa(isa)
    assert same(outcome(case, precision), outcome(case))


@needs_bfloat16
def test_settings_of_devices() -> None:
    """The CPU's own setting counts, also where torch does not answer because CUDA's says something else."""
    case = sample()
    cpu.set_isa("avx512_bf16")
    full, medium = outcome(case), outcome(case, "medium")
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    y = case.call(functional.npu)
    assert torch.equal(y, medium[0])
    assert not torch.equal(y, full[0])
