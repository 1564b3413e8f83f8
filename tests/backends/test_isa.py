"""Every instruction set that this processor has."""

import itertools
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from npu_kernels import env, functional, reference
from tests.conftest import needs_library
from tests.support.building import run_forked
from tests.support.compare import assert_near
from tests.support.kernels import assert_parity, errors, forward, ops, outputs, with_zero_factors
from tests.support.machine import ISAS, isa_in_use, set_isa
from tests.support.samples import RECORDS, error_bound

pytestmark = needs_library
CPUINFO = Path("/proc/cpuinfo")


@pytest.mark.parametrize("name", ["npu", "nmu", "nmru", "nalu", "inalu"])
def test_float64_parity(isa: str, name: str) -> None:
    assert env.environment()["cpu instruction set"] == f"{isa} (of {', '.join(ISAS)})"
    for sample in RECORDS[name].samples(torch.float64):
        grad_y = torch.ones_like(forward(sample, reference)[0])
        assert_near(
            outputs(sample, ops, grad_y), outputs(sample, reference, grad_y), 5e-14, sample.name
        )


@pytest.mark.parametrize("name", ["npu", "nmu", "nmru", "nalu", "inalu"])
@pytest.mark.parametrize("size", [(100, 6, 2), (64, 33, 35), (200, 64, 64)])
def test_float32_error(isa: str, name: str, size: tuple[int, int, int]) -> None:
    seeds = 2 if size[2] > 40 else 8  # many outputs are many samples already
    samples = [RECORDS[name].sample(*size, dtype=torch.float32, seed=seed) for seed in range(seeds)]
    pooled = torch.tensor([errors(sample) for sample in samples]).square().mean(0).sqrt()
    for error, eager in pooled.tolist():
        assert error <= error_bound(eager, torch.float32)


@pytest.mark.parametrize(("num_models", "shared"), [(None, False), (2, True)])
def test_zero_inputs_and_factors(isa: str, num_models: int | None, shared: bool) -> None:
    """Gradients where x, or factors of iNALU's sign product, are 0 are products of the others."""
    sample = with_zero_factors(
        RECORDS["inalu"].sample(83, 5, 18, num_models=num_models, shared=shared)
    )
    assert_parity(sample)


@pytest.mark.parametrize("name", ["nalu", "inalu"])
@pytest.mark.parametrize("index", [0, 300, -1])
def test_a_single_zero_input(isa: str, name: str, index: int) -> None:
    """Wherever it is, also among the last values, which fill no register."""
    sample = RECORDS[name].sample(61, 5, 3)
    assert (sample.x != 0).all()
    sample.x.view(-1)[index] = 0
    assert_parity(sample)


@pytest.mark.parametrize("name", ["nalu", "inalu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outs", [3, 20])
def test_special_input(isa: str, name: str, dtype: torch.dtype, outs: int) -> None:
    """Output, saved tensors and grad_x of rows with one special input are the formula's."""
    inf = float("inf")
    special = torch.tensor(
        [0.0, -0.0, 1e-40, -1e-40, 1e38, -1e38, inf, -inf, float("nan")], dtype=dtype
    )
    sample = RECORDS[name].sample(len(special), 5, outs, dtype=dtype)
    sample.x[:, 1] = special
    grad_y = torch.ones_like(forward(sample, reference)[0])
    of_rows = len(forward(sample, reference)) + 1
    pairs = zip(outputs(sample, ops, grad_y), outputs(sample, reference, grad_y), strict=True)
    for actual, expected in itertools.islice(pairs, of_rows):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_inalu_builds_no_product_tensor() -> None:
    """No tensor of B O I elements comes into being, forward or backward."""
    sizes: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in tree_leaves(result) if isinstance(t, torch.Tensor))
            return result

    sample = RECORDS["inalu"].sample(32, 33, 34, dtype=torch.float32).requires_grad()
    with Sizes():
        y = sample.call(functional.inalu)
        torch.autograd.grad(y.sum(), sample.leaves())
    assert max(sizes) == 33 * 34


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_values(isa: str, dtype: torch.dtype) -> None:
    inf = float("inf")
    x = torch.tensor(
        [[0.0], [-0.0], [1e-40], [-1e-40], [1e38], [-1e38], [inf], [-inf], [float("nan")]],
        dtype=dtype,
    )
    for in_features in (1, 3, 17):
        rows = x.expand(-1, in_features)
        weight = (
            torch.linspace(0.1, 0.4, 5 * in_features, dtype=dtype).reshape(5, in_features)
            / in_features
        )
        expected = reference.npu(rows, weight, weight)
        actual, _ = ops.npu_forward(rows, weight, weight, None, torch.finfo(dtype).eps, False)
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=0, equal_nan=True)


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not CPUINFO.exists(),
    reason="reads Linux's list of x86 features",
)
def test_supported_are_those_of_the_processor() -> None:
    """The kernel's list of features. An old compiler leaves the last two out."""
    flags = set(
        next(line for line in CPUINFO.read_text().splitlines() if line.startswith("flags")).split()
    )
    needs = {"avx2": {"avx2", "fma"}, "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl"}}
    needs |= {"avx512_bf16": {"avx512_bf16"}, "amx": {"amx_bf16", "amx_tile"}}
    for name, features in needs.items():
        if name in ISAS or ("baseline" in ISAS and name in ("avx2", "avx512")):
            assert (name in ISAS) == (features <= flags), name


def test_unknown() -> None:
    before = isa_in_use()
    with pytest.raises(
        ValueError, match=r"unknown or unsupported instruction set 'mmx', this processor has"
    ):
        set_isa("mmx")
    assert isa_in_use() == before


def _child(isa: str, code: str) -> subprocess.CompletedProcess[str]:
    return run_forked(code, env={"NPU_KERNELS_CPU_ISA": isa})


@pytest.mark.parametrize("name", ISAS[:1])
def test_environment_variable(name: str) -> None:
    """The first one is never the choice of a processor that has others."""
    child = _child(
        name, "from npu_kernels.env import environment; print(environment()['cpu instruction set'])"
    )
    assert child.stdout.startswith(f"{name} (of "), child.stderr


def test_environment_variable_of_no_instruction_set() -> None:
    child = _child("mmx", "import npu_kernels")
    assert child.returncode != 0
    assert (
        "ValueError: NPU_KERNELS_CPU_ISA=mmx: unknown or unsupported instruction set 'mmx'"
        in child.stderr
    )
