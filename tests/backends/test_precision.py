"""What the float32 matmul precision does on the CPU.

The NPU family obeys it, on every way to its kernels, by instruction sets that multiply bfloat16,
where that is faster; elsewhere everything is float32 whatever it says. The fast path's module reads
it for all of them.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from npu_kernels import NAU, env, functional, reference
from tests.conftest import needs_fast_path, needs_library
from tests.support.building import run_forked
from tests.support.machine import ISAS, isa_in_use, set_isa, without_fast_path
from tests.support.samples import RECORDS, Sample, normwise_error

pytestmark = [needs_library, needs_fast_path]  # which alone knows the setting
BFLOAT16 = [isa for isa in ISAS if isa in ("avx512_bf16", "amx")]
needs_bfloat16 = pytest.mark.skipif(
    not BFLOAT16, reason="this processor does not multiply bfloat16"
)
SIZE = (256, 64, 64)  # whole tiles


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    isa = isa_in_use()
    yield
    set_isa(isa)
    torch.backends.fp32_precision = "none"  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("highest")  # of every device


def sample(size: tuple[int, int, int] = SIZE, **options: object) -> Sample:
    drawn = RECORDS["npu"].sample(*size, **{"dtype": torch.float32, **options})
    drawn.x.add_(0.25 * drawn.x.sign())  # near 0 the gradient of one x outweighs all others
    return drawn.requires_grad()


def outcome(sample: Sample, forward: str = "highest", backward: str | None = None) -> list[Tensor]:
    """The result and the gradients, each way under a precision."""
    torch.set_float32_matmul_precision(forward)
    y = sample.call(functional.npu)
    assert "FastPath<npu::NpuLayer>" in y.grad_fn.name()
    torch.set_float32_matmul_precision(backward or forward)
    return [y.detach(), *torch.autograd.grad(y, sample.leaves(), torch.ones_like(y))]


def same(actuals: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(actuals, expected, strict=True))


@needs_bfloat16
@pytest.mark.parametrize("isa", BFLOAT16)
@pytest.mark.parametrize(
    ("size", "options"),
    [(SIZE, {}), (SIZE, {"num_models": 2, "shared": True}), ((1100, 264, 260), {})],
    ids=["one model", "two models", "several blocks of rows and outputs"],
)
def test_errors(isa: str, size: tuple[int, int, int], options: dict[str, object]) -> None:
    """Errors of one bfloat16 for each float32, or of two, and no larger."""
    case = sample(size, **options)
    exact = case.map(Tensor.double).requires_grad()
    y = reference.npu(exact.x, *exact.tensors.values(), eps=torch.finfo(torch.float32).eps)
    expected = [y.detach(), *torch.autograd.grad(y, exact.leaves(), torch.ones_like(y))]
    set_isa(isa)
    full, high, medium = outcome(case), outcome(case, "high"), outcome(case, "medium")
    for in_float32, in_two_products, in_one_product, want in zip(
        full, high, medium, expected, strict=True
    ):
        assert normwise_error(in_float32, want) < 3e-6
        assert normwise_error(in_two_products, want) < 6e-5
        assert 3e-4 < normwise_error(in_one_product, want) < 3e-2


@needs_bfloat16
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_avx512_bf16_is_avx512_above_medium(precision: str) -> None:
    case = sample()
    set_isa("avx512")
    expected = outcome(case, precision)
    set_isa("avx512_bf16")
    assert same(outcome(case, precision), expected)


@needs_bfloat16
def test_each_way_has_its_own_precision() -> None:
    case = sample()
    set_isa("avx512_bf16")
    full, mixed = outcome(case), outcome(case, "highest", "medium")
    assert torch.equal(mixed[0], full[0])
    assert not any(torch.equal(a, b) for a, b in zip(mixed[1:], full[1:], strict=True))


@needs_bfloat16
@pytest.mark.parametrize(
    "size", [(100, 6, 2), (63, 64, 64), (100, 100, 100), (256, 31, 64), (256, 64, 15)]
)
def test_layers_that_fill_no_tiles_are_float32(size: tuple[int, int, int]) -> None:
    case = sample(size)
    set_isa("avx512_bf16")
    assert same(outcome(case, "medium"), outcome(case))


@needs_bfloat16
def test_not_of_float64() -> None:
    case = sample(dtype=torch.float64)
    assert same(outcome(case, "medium"), outcome(case))


class Watching(TorchDispatchMode):
    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


def watched(*operands: Tensor) -> Tensor:
    with Watching():
        return functional.npu(*operands)


def autocast(*operands: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.npu(*operands)


def vmapped(x: Tensor, *weights: Tensor) -> Tensor:
    return torch.func.vmap(functional.npu, (None, 0, 0, 0))(
        x, *(weight.unsqueeze(0) for weight in weights)
    ).squeeze(0)


def distributed(*operands: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    import npu_kernels.interop.sharding  # noqa: F401

    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    placements = [Shard(0), *(Replicate() for _ in operands[1:])]
    replicated = [
        DTensor.from_local(t, mesh, [where]) for t, where in zip(operands, placements, strict=True)
    ]
    return functional.npu(*replicated).to_local()  # type: ignore[attr-defined]


@pytest.fixture
def _one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@needs_bfloat16
@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize("isa", BFLOAT16)
@pytest.mark.parametrize(
    "call_kernels",
    [watched, autocast, vmapped, distributed],
    ids=lambda call_kernels: call_kernels.__name__,
)
def test_every_way_to_the_kernels_obeys(call_kernels: Callable[..., Tensor], isa: str) -> None:
    """The result and the gradients have the bits of the plain call, which obeys."""
    case = sample()
    operands = case.leaves()

    def outcomes() -> list[list[Tensor]]:
        results = []
        for call in (functional.npu, call_kernels):
            y = call(*operands)
            results.append([y.detach(), *torch.autograd.grad(y, operands, torch.ones_like(y))])
        return results

    set_isa(isa)
    full, _ = outcomes()
    torch.set_float32_matmul_precision("medium")
    plain, other = outcomes()
    assert same(other, plain)
    assert not any(torch.equal(a, b) for a, b in zip(plain, full, strict=True))


@needs_bfloat16
@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch's compiler does
def test_a_compiled_graph_obeys_what_holds_when_it_runs() -> None:
    """Whatever held when it was compiled."""
    case = sample()
    operands = case.leaves()
    set_isa("avx512_bf16")
    plain = {precision: outcome(case, precision) for precision in ("highest", "medium")}
    torch._dynamo.reset()
    for first, second in (("highest", "medium"), ("medium", "highest")):
        torch.set_float32_matmul_precision(first)
        compiled = torch.compile(functional.npu, fullgraph=True, backend="aot_eager")
        for precision in (first, second):
            torch.set_float32_matmul_precision(precision)
            y = compiled(*operands)
            results = [y.detach(), *torch.autograd.grad(y, operands, torch.ones_like(y))]
            assert same(results, plain[precision])
    torch._dynamo.reset()


def test_without_the_fast_path_everything_is_float32() -> None:
    """Another torch: nothing there can read the setting."""
    code = """
import torch
torch.__version__ = "2.10.0"
from npu_kernels import env, functional
x, weight = torch.randn(256, 64), torch.randn(64, 64) / 8
found = []
for precision in ("highest", "medium"):
    torch.set_float32_matmul_precision(precision)
    found.append(functional.npu(x, weight))
print(env.environment()["fast path"][:3], torch.equal(*found))
"""
    child = run_forked(code)
    assert child.stdout == "no: True\n", child.stderr


@pytest.mark.parametrize(
    ("models", "size"), [(None, (200, 64, 64)), (3, (100, 16, 16)), (None, (100, 6, 2))]
)
@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_nau_has_one_precision(
    models: int | None, size: tuple[int, int, int], precision: str
) -> None:
    """The fast path must not be more accurate than torch's product, which obeys above some size."""
    rows, features, outputs = size
    layer, x = NAU(features, outputs, num_models=models), torch.randn(rows, features)
    torch.set_float32_matmul_precision(precision)
    with torch.no_grad():
        plain = layer(x)
        with Watching():
            other = layer(x)
    assert normwise_error(plain, other) < 1e-6
    small = rows * features * outputs * (models or 1) <= 4096
    with torch.profiler.profile(acc_events=True) as profile:
        layer(x)
    by_kernel = not any(event.name in ("aten::mm", "aten::bmm") for event in profile.events())
    assert by_kernel == (small or precision == "highest")


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa not in BFLOAT16])
@pytest.mark.parametrize("precision", ["high", "medium"])
def test_other_instruction_sets_are_float32(isa: str, precision: str) -> None:
    case = sample()
    set_isa(isa)
    assert same(outcome(case, precision), outcome(case))


@needs_bfloat16
@pytest.mark.parametrize("setting", ["backends", "backends.mkldnn", "backends.mkldnn.matmul"])
def test_settings_of_devices(setting: str) -> None:
    """The CPU's own setting counts, also where it differs from the one for all devices."""
    case = sample()
    set_isa("avx512_bf16")
    full, medium = outcome(case), outcome(case, "medium")
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.matmul.fp32_precision = "none"  # so that the wider settings hold
    holder: Any = torch
    for name in setting.split("."):
        holder = getattr(holder, name)
    holder.fp32_precision = "bf16"
    try:
        with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
            torch.get_float32_matmul_precision()
        assert env.environment()["float32 matmul precision"].startswith("cpu medium, cuda ")
        for route in (contextlib.nullcontext(), without_fast_path()):
            with route:
                y = case.call(functional.npu)
            assert torch.equal(y, medium[0])
            assert not torch.equal(y, full[0])
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"


@needs_bfloat16
def test_the_cpus_own_setting_may_be_the_stricter() -> None:
    case = sample()
    full = outcome(case)
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    assert torch.equal(case.call(functional.npu), full[0])
