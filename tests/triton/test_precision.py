"""The arithmetic inside the Triton kernels: schemes of products, exp, sine and cosine."""

from typing import Any

import pytest
import torch
from torch import Tensor

from npu_kernels import reference
from tests.support.kernels import errors, outputs
from tests.support.samples import RECORDS, error_bound
from tests.triton.conftest import Launches

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from npu_kernels._triton import npu_large, tuning  # noqa: E402
from npu_kernels._triton.device_math import exp_accurate, sincos, split  # noqa: E402


@triton.jit
def _functions(v_ptr, exp_ptr, sin_ptr, cos_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(v_ptr + offs)
    tl.store(exp_ptr + offs, exp_accurate(v))
    sin_v, cos_v = sincos(v)
    tl.store(sin_ptr + offs, sin_v)
    tl.store(cos_ptr + offs, cos_v)


@triton.jit
def _planes(v_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    hi, mid, lo = split(tl.load(v_ptr + offs), 6)
    tl.store(out_ptr + offs, hi.to(tl.float32))
    tl.store(out_ptr + n + offs, mid.to(tl.float32))
    tl.store(out_ptr + 2 * n + offs, lo.to(tl.float32))


def _evaluate(values: Tensor) -> list[Tensor]:
    """exp, sin, cos of a float32 vector."""
    block = 1024
    padded = torch.cat([values, values.new_zeros(-len(values) % block)])
    results = [torch.full_like(padded, float("nan")) for _ in range(3)]
    _functions[(len(padded) // block,)](padded, *results, BLOCK=block)
    return [result[: len(values)].double() for result in results]


def _ulps(actual: Tensor, exact: Tensor) -> float:
    """The greatest error in units in the last place of float32."""
    rounded = exact.float().abs()
    ulp = (
        torch.nextafter(rounded, torch.full_like(rounded, float("inf"))).double() - rounded.double()
    )
    return ((actual - exact).abs() / ulp).max().item()


def test_exp(device: str) -> None:
    """Errors are at most 2 ulp, subnormal results included; saturates to 0 and inf."""
    values = torch.cat([torch.linspace(-104, 88.7, 20000), torch.linspace(-1, 1, 2000)]).to(device)
    assert _ulps(_evaluate(values)[0], values.double().exp()) <= 2
    inf, nan = float("inf"), float("nan")
    edges = torch.tensor([-1e30, -104.0, -0.0, 0.0, 88.8, 1e30, -inf, inf, nan], device=device)
    expected = torch.tensor([0, 0, 1, 1, inf, inf, 0, inf, nan], dtype=torch.float64, device=device)
    torch.testing.assert_close(_evaluate(edges)[0], expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("limit", [1.0, 100.0, 8192.0, 65536.0, 1e6, 2.0**28])
def test_sine_and_cosine(limit: float, device: str) -> None:
    """Absolute error below 1.2e-7 up to 2**28; a few ulp also where values are nearly 0."""
    generator = torch.Generator().manual_seed(0)
    values = ((torch.rand(20000, generator=generator) * 2 - 1) * limit).to(device)
    _, sin, cos = _evaluate(values)
    assert (sin - values.double().sin()).abs().max() < 1.2e-7
    assert (cos - values.double().cos()).abs().max() < 1.2e-7
    if limit <= 100:
        near = (torch.arange(-60, 61, device=device) * torch.pi / 2).float()
        _, sin, cos = _evaluate(near)
        assert max(_ulps(sin, near.double().sin()), _ulps(cos, near.double().cos())) <= 4


def test_sine_and_cosine_of_anything(device: str) -> None:
    """Values are in [-1, 1] for finite arguments, nan for inf and nan, others in the tile right."""
    values = torch.tensor(
        [1e10, -1e20, 3.4e38, torch.inf, -torch.inf, torch.nan, 0.5, -0.0], device=device
    )
    _, sin, cos = _evaluate(values)
    for result in (sin, cos):
        assert result[:3].abs().max() <= 1
        assert result[3:6].isnan().all()
    torch.testing.assert_close(sin[6:], values[6:].double().sin(), rtol=0, atol=1e-7)
    torch.testing.assert_close(cos[6:], values[6:].double().cos(), rtol=0, atol=1e-7)


def test_planes_hold_every_bit(device: str) -> None:
    """Three bfloat16 planes add up to the float32 value exactly, and each is a bfloat16 value."""
    generator = torch.Generator().manual_seed(0)
    n = 1024
    values = (
        torch.randn(n, generator=generator)
        .mul_(torch.randn(n, generator=generator).mul_(9).exp())
        .to(device)
    )
    planes = values.new_full((3, n), float("nan"))
    _planes[(1,)](values, planes, n, BLOCK=n)
    assert torch.equal(planes, planes.bfloat16().float())
    assert torch.equal(planes[0], values.bfloat16().float())  # rounded to nearest, ties to even
    assert torch.equal(planes.double().sum(0), values.double())


TILES: dict[str, dict[str, Any]] = {
    "npu_forward": {"BLOCK_B": 32, "BLOCK_O": 32, "BLOCK_I": 32},
    "npu_backward_x": {"BLOCK_B": 32, "BLOCK_O": 32, "BLOCK_I": 32},
    "npu_backward_w": {"BLOCK_B": 32, "BLOCK_O": 32, "BLOCK_I": 32, "programs": 4},
}


@pytest.mark.parametrize(("passes", "bound"), [(0, None), (6, None), (3, 1e-4), (1, 6e-2)])
def test_schemes(passes: int, bound: float | None, device: str, kernels: Any) -> None:
    """PASSES 0 and 6: at most twice the eager error; 3 and 1: errors of their class."""
    launch = {"PASSES": passes, "num_warps": 4, "num_stages": 2}
    with (
        tuning.use_config("npu_forward", TILES["npu_forward"] | launch),
        tuning.use_config("npu_backward_x", TILES["npu_backward_x"] | launch),
        tuning.use_config("npu_backward_w", TILES["npu_backward_w"] | launch),
    ):
        for without in ((), ("weight_im",)):
            sample = RECORDS["npu"].sample(
                50, 90, 40, without=without, dtype=torch.float32, device=device
            )
            for error, eager in errors(sample, kernels):
                # A GPU adds all products of a sum one after the other.
                ulps = 1.0 if device == "cpu" else 4.0
                limit = error_bound(eager, torch.float32, ulps) if bound is None else bound
                assert error <= limit, f"kernel {error:.1e}, eager {eager:.1e}"
                if bound is not None and eager:
                    assert error > 2 * eager  # or the scheme is not what it says


@pytest.mark.parametrize("name", ["nalu", "inalu"])
@pytest.mark.parametrize(("passes", "bound"), [(6, None), (3, 1e-3), (1, 0.3)])
def test_schemes_of_the_nalus(
    name: str, passes: int, bound: float | None, device: str, kernels: Any
) -> None:
    config = {
        "BLOCK_B": 32, "BLOCK_O": 32, "BLOCK_I": 32, "PASSES": passes, "num_warps": 4,
        "num_stages": 1,
    }  # fmt: skip
    with (
        tuning.use_config("nalu_forward", config),
        tuning.use_config("nalu_backward_x", config),
        tuning.use_config("nalu_backward_w", config | {"programs": 1}),
    ):
        pairs = errors(
            RECORDS[name].sample(40, 50, 20, dtype=torch.float32, device=device), kernels
        )
    for error, eager in pairs:
        assert error <= (error_bound(eager, torch.float32) if bound is None else bound), (
            f"{error:.1e}, {eager:.1e}"
        )
    if bound is not None:
        assert pairs[0][0] > 2 * pairs[0][1]  # or the scheme is not what it says


def test_precision_setting_is_obeyed(device: str, kernels: Any) -> None:
    """`torch.set_float32_matmul_precision` decides which products a large layer uses."""
    x = torch.rand(1, device=device)
    for kernel in tuning.PRODUCTS:
        passes = []
        for precision in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            passes.append(tuning.lookup(kernel, x, 256, 256, 1).options["PASSES"])
            assert tuning.lookup(kernel, x.double(), 256, 256, 1).options["PASSES"] == 0
        assert passes[0] in (0, 6)
        assert passes[1:] == [3, 1]


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("backends.mkldnn.matmul", "bf16", {"highest"}),  # the CPU's own
        ("backends.cuda.matmul", "tf32", {"high"}),
        ("backends.cuda.matmul", "ieee", {"highest"}),
        ("backends", "tf32", {"high"}),
    ],
)
def test_launches_obey_settings_of_devices(
    setting: str,
    value: str,
    expected: set[str],
    device: str,
    kernels: Any,
    launched: Launches,
) -> None:
    """CUDA's own setting counts, also where torch refuses to answer for all devices."""
    sample = RECORDS["npu"].sample(4, 256, 256, dtype=torch.float32, device=device)
    launched.runs = False  # what they compute is another test's

    def launch() -> set[str]:
        launched.clear()
        with npu_large.use_plan(None):  # the kernels of all sizes
            outputs(sample, kernels, torch.ones(4, 256, device=device))
        passes = {options["PASSES"] for _, _, options in launched if "PASSES" in options}
        return {{6: "highest", 3: "high", 1: "medium"}[n] for n in passes}

    holder: Any = torch
    for name in setting.split("."):
        holder = getattr(holder, name)
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.mkldnn.matmul.fp32_precision = "none"  # type: ignore[attr-defined]
    holder.fp32_precision = value
    assert launch() == expected
    for one_for_all in ("medium", "highest"):
        torch.set_float32_matmul_precision(one_for_all)
        assert launch() == {one_for_all}
    torch.set_float32_matmul_precision("medium")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert launch() == {"highest"}


def test_float64_constants(device: str, kernels: Any) -> None:
    """pi and eps - 1 enter float64 arithmetic as float64: a float32 constant would show."""
    x = torch.full((1, 1), -1.0, dtype=torch.float64, device=device)
    for weight in (x * -0.3, (x * -0.3).expand(20, 1)):
        y, s = kernels.npu_forward(x, weight, None, None, 1e-3, True)
        want = reference.npu_forward(x, weight, None, None, 1e-3, True)
        torch.testing.assert_close((y, s), want, rtol=1e-14, atol=0)
