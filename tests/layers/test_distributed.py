"""Several processes give the numbers of one."""

import copy
import itertools
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from npu_kernels import (
    NAC,
    NALU,
    NAU,
    NMRU,
    NMU,
    NPU,
    NaiveNPU,
    RealNPU,
    env,
    formula,
    functional,
    iNALU,
    interop,
    training,
    use_backend,
)
from npu_kernels.interop import reference_layers
from tests.conftest import needs_library
from tests.support.compare import assert_near
from tests.support.samples import RECORDS, CountCalls, Sample, normwise_error

pytestmark = [
    needs_library,
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
    ),
    pytest.mark.skipif(
        sys.platform == "win32", reason="DTensor over gloo is tested on Linux and macOS"
    ),
]
SHARDED_ROUNDING = 1e-12
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_distributed.py"


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def _child(
    rank: int, ranks: int, port: int, checks: tuple[Callable[[int, int], None], ...]
) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    for check in checks:
        torch.manual_seed(0)  # the same numbers on every rank
        check(rank, ranks)
    dist.barrier()
    # torch may abort when a thread of gloo drops a tensor while Python ends (pytorch#190489); all
    # is done here.
    os._exit(0)


def _spawn(ranks: int, *checks: Callable[[int, int], None]) -> None:
    """Run the checks on every rank, each a fork of a process that imports torch once for all."""
    multiprocessing.set_forkserver_preload([__name__, "torch.distributed.fsdp"])
    arguments = (ranks, _free_port(), checks)
    torch.multiprocessing.start_processes(  # type: ignore[no-untyped-call]
        _child, arguments, nprocs=ranks, start_method="forkserver"
    )


def _model() -> nn.Module:
    options: Any = {"dtype": torch.float64}
    return nn.Sequential(
        NPU(3, 8, init_im=0.3, **options), NAU(8, 4, **options), NMU(4, 2, **options)
    )


def _single(x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    model = _model()
    model(x).square().mean().backward()
    return [p.grad for p in model.parameters()]


def _data_parallel(rank: int, ranks: int) -> None:
    """DistributedDataParallel and FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    x = torch.randn(8 * ranks, 3, dtype=torch.float64)
    expected = _single(x)
    local_rows = x.chunk(ranks)[rank]

    torch.manual_seed(1)
    replicated = nn.parallel.DistributedDataParallel(_model())
    replicated(local_rows).square().mean().backward()
    for parameter, want in zip(replicated.parameters(), expected, strict=True):
        assert normwise_error(parameter.grad, want) < SHARDED_ROUNDING

    torch.manual_seed(1)
    sharded = _model()
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in sharded.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    sharded(local_rows).square().mean().backward()
    for parameter, want in zip(sharded.parameters(), expected, strict=True):
        assert isinstance(parameter.grad, DTensor)
        assert normwise_error(parameter.grad.full_tensor(), want) < SHARDED_ROUNDING


def _what_reads_a_sharded_model(rank: int, ranks: int) -> None:
    """`interop`, formulas and penalties of FSDP2's models."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks,))
    x = torch.randn(8 * ranks, 3, dtype=torch.float64)
    plain = _model()
    (plain(x).square().mean() + training.l1(plain, 0.1)).backward()
    sharded: Any = fully_shard(interop.to_reference(plain), mesh=mesh)
    with pytest.raises(RuntimeError, match=r"^swap: model cannot be copied .*; say inplace=True$"):
        interop.swap(sharded)
    interop.swap(sharded, inplace=True)
    assert [type(layer) for layer in sharded] == [NPU, NAU, NMU]
    if find_spec("sympy"):
        assert str(formula.extract(sharded[2])) == str(formula.extract(plain[2]))
    with pytest.raises(ValueError, match=r"^select: layer '0' must not be sharded"):
        formula.select(sharded)
    penalty: Any = training.l1(sharded, 0.1)
    (sharded(x.chunk(ranks)[rank]).square().mean() + penalty.full_tensor()).backward()
    for parameter, want in zip(sharded.parameters(), plain.parameters(), strict=True):
        assert normwise_error(parameter.grad.full_tensor(), want.grad) < SHARDED_ROUNDING

    layer = reference_layers.NMU(3, 3)
    rule = r"has sharded parameters \(DTensor\); swap first, shard after$"
    for unit in (layer, interop.to_reference(NPU(3, 3), "julia")):
        with pytest.raises(ValueError, match=rf"^swap: FSDP{type(unit).__name__} {rule}"):
            interop.swap(fully_shard(unit, mesh=mesh), inplace=True)
    layout = interop.to_reference(NPU(3, 3), "pytorch")
    replicated = nn.parallel.DistributedDataParallel(layout)
    with pytest.raises(
        ValueError, match=r"^swap: PublishedNPU 'module' is within Dist.* wrap after$"
    ):
        interop.swap(replicated, inplace=True)


_TWO = ((None, False), (4, True))
# models, whether x is shared
_SETTINGS = {
    "npu": ((None, False), (4, False), (4, True)),
    "nmu": _TWO,
    "nmru": _TWO,
    "nalu": _TWO,
    "inalu": _TWO,
}


def _shardings(k: int, num_models: int | None, shared: bool) -> dict[str, tuple[Any, Any]]:
    """Placements of x and of a weight matrix, by name; k is the dimension of the rows."""
    from torch.distributed.tensor import Replicate, Shard

    shardings: dict[str, tuple[Any, Any]] = {
        "replicated": (Replicate(), Replicate()),
        "batch": (Shard(0 if shared else k), Replicate()),
        "outputs": (Replicate(), Shard(k)),
        "inputs": (Shard(0 if shared else k), Shard(k + 1)),  # not legal: gathered
    }
    if num_models is not None:
        shardings["models"] = (Replicate() if shared else Shard(0), Shard(0))
    return shardings


def _sharded(sample: Sample, mesh: Any, of_x: list[Any], of_weight: list[Any], k: int) -> list[Any]:
    """The sample's tensors as distributed leaves; a vector is split between models alone."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    leaves = [distribute_tensor(sample.x.detach(), mesh, of_x).requires_grad_()]
    for tensor in sample.tensors.values():
        assert tensor is not None
        matrix = tensor.dim() == k + 2
        placements = [p if matrix or (p == Shard(0) and k) else Replicate() for p in of_weight]
        leaves.append(distribute_tensor(tensor.detach(), mesh, placements).requires_grad_())
    return leaves


def _operators(
    rank: int, ranks: int, mesh_shape: tuple[int, ...], sizes: dict[str, Any] = _SETTINGS
) -> None:
    """Check operators and backwards under every placement of operands, gathered where illegal."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    import npu_kernels.interop.sharding  # noqa: F401

    mesh = init_device_mesh("cpu", mesh_shape)
    cases = [(name, *setting) for name, settings in sizes.items() for setting in settings]
    for name, num_models, shared in cases:
        sample = RECORDS[name].sample(8, 4, 4, num_models=num_models, shared=shared).requires_grad()
        y = sample.call(RECORDS[name].function)
        grad_y = torch.randn_like(y)
        expected = [y, *torch.autograd.grad(y, sample.leaves(), grad_y)]
        k = 0 if num_models is None else 1
        shardings = _shardings(k, num_models, shared)
        choices = list(itertools.product(shardings, repeat=len(mesh_shape)))
        if len(mesh_shape) == 2:  # a few of the many
            choices = [("batch", "outputs"), ("outputs", "batch"), ("replicated", "outputs")]
            choices += [("models", "batch"), ("outputs", "models")] if num_models else []
        results = {
            ("batch",): (Shard(k),),
            ("outputs",): (Shard(k + 1),),
            ("models",): (Shard(0),),
            ("batch", "outputs"): (Shard(k), Shard(k + 1)),
        }
        for choice in choices:
            of_x, of_weight = ([shardings[word][i] for word in choice] for i in (0, 1))
            leaves = _sharded(sample, mesh, of_x, of_weight, k)
            function: Any = getattr(functional, name)
            output = function(*leaves, **sample.options)
            assert isinstance(output, DTensor)
            assert output.placements == results.get(choice, output.placements)
            upstream = distribute_tensor(grad_y, mesh, [Replicate()] * len(mesh_shape))
            gradients = torch.autograd.grad(output, leaves, upstream)
            gathered = [actual.full_tensor() for actual in (output, *gradients)]  # type: ignore[attr-defined]
            case = f"{name} {num_models} {shared} {choice}"
            assert_near(gathered, expected, SHARDED_ROUNDING, case)
            if choice in (("inputs",), ("outputs",)):  # all but the last operand frozen
                *frozen, last = (leaf.detach() for leaf in leaves)
                output = function(*frozen, last.requires_grad_(), **sample.options)
                (gradient,) = torch.autograd.grad(output, [last], upstream)
                assert_near([gradient.full_tensor()], expected[-1:], SHARDED_ROUNDING, case)  # type: ignore[attr-defined]


def _on_a_line(rank: int, ranks: int) -> None:
    _operators(rank, ranks, (ranks,))


def _triton_on_a_line(rank: int, ranks: int) -> None:
    """The operators of one layer by Triton's kernels."""
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    assert env.environment()["triton on cpu"] == "available"
    with use_backend("triton"), CountCalls() as counted:
        # the interpreter takes seconds for each placement
        _operators(rank, ranks, (ranks,), {"nalu": _TWO[1:]})
    assert counted.calls["nalu_backward"] > 0


def _on_a_mesh(rank: int, ranks: int) -> None:
    _operators(rank, ranks, (2, ranks // 2))


class _Larger(NAU):
    """A unit with a parameter that is not one of a unit."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.more = nn.Linear(2, 2)


class _Scaled(nn.Module):
    """A model whose call takes more than tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, factor: float) -> Tensor:
        return factor * self.model(x)


def _inputs_of_models(spread: nn.Module, unsharded: nn.Module, ranks: int) -> None:
    """A DTensor stays one, and what is no tensor stays what it is."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    from npu_kernels.interop.sharding import shard_models

    mesh = init_device_mesh("cpu", (ranks,))
    x = torch.randn(9, 3, dtype=torch.float64)
    gathered = spread(distribute_tensor(x, mesh, [Replicate()])).full_tensor()
    assert normwise_error(gathered, unsharded(x)) < 1e-10
    scaled = shard_models(_Scaled(copy.deepcopy(unsharded)), mesh)
    assert normwise_error(scaled(x, 2.0).full_tensor(), 2.0 * unsharded(x)) < 1e-10


def _models(rank: int, ranks: int) -> None:
    """An ensemble over the ranks: each keeps its share, and trains it as one process does."""
    from torch.distributed.device_mesh import init_device_mesh

    from npu_kernels.interop.sharding import shard_models

    options: Any = {"num_models": 4, "dtype": torch.float64}
    layers = NAU(5, 4, **options), RealNPU(4, 4, **options), NMU(4, 2, **options)
    unsharded = nn.Sequential(NPU(3, 5, init_im=0.3, **options), *layers)
    spread = nn.Sequential(NPU(3, 5, **options), *copy.deepcopy(layers))
    spread.load_state_dict(unsharded.state_dict())
    for model in (unsharded, spread):
        model[0].gate.requires_grad_(False)
    spread = shard_models(spread, init_device_mesh("cpu", (ranks,)))
    assert all(p.to_local().shape[0] == 4 // ranks for p in spread.parameters())  # type: ignore[attr-defined]
    assert [name for name, p in spread.named_parameters() if not p.requires_grad] == ["0.gate"]
    optimizers = [torch.optim.Adam(model.parameters(), 1e-2) for model in (unsharded, spread)]
    for shape in ((9, 3), (4, 9, 3), (9, 3)):
        x = torch.randn(shape, dtype=torch.float64)
        for model, optimizer in zip((unsharded, spread), optimizers, strict=True):
            optimizer.zero_grad()
            y = model(x)
            y = y if model is unsharded else y.to_local()
            y.square().mean((1, 2)).sum().backward()
            optimizer.step()
    for parameter, want in zip(spread.parameters(), unsharded.parameters(), strict=True):
        assert normwise_error(parameter.full_tensor(), want) < 1e-10  # type: ignore[attr-defined]
    _inputs_of_models(spread, unsharded, ranks)
    with pytest.raises(ValueError, match=r"units with one num_models, got \['None'\]"):
        shard_models(_model(), init_device_mesh("cpu", (ranks,)))
    for stranger in (nn.Linear(5, 5), _Larger(5, 5, num_models=4)):
        with pytest.raises(ValueError, match=r"units with one num_models, got \['4'\]"):
            shard_models(
                nn.Sequential(NPU(3, 5, num_models=4), stranger), init_device_mesh("cpu", (ranks,))
            )
    with pytest.raises(ValueError, match=r"units with one num_models, got \['2', '4'\]"):
        shard_models(
            nn.Sequential(NPU(3, 5, num_models=2), NAU(5, 4, num_models=4)),
            init_device_mesh("cpu", (ranks,)),
        )


def _styles(rank: int, ranks: int) -> None:
    """Every unit spread over rows, outputs and models; nothing is sent in its forward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import parallelize_module

    from npu_kernels.interop.sharding import LayerParallel

    mesh = init_device_mesh("cpu", (ranks,))
    units = NPU, RealNPU, NaiveNPU, NAU, NMU, NMRU, NAC, NALU, iNALU
    for kind, over, count in itertools.product(
        units, ("batch", "outputs", "models"), (None, 2 * ranks)
    ):
        if over == "models" and count is None:
            continue
        unit = kind(3, 4, num_models=count, dtype=torch.float64)
        for shape in ((6, 3),) if count is None else ((6, 3), (count, 6, 3)):
            x = torch.rand(shape, dtype=torch.float64, requires_grad=True)
            want_y = unit(x)
            want = torch.autograd.grad(want_y.square().sum(), [x, *unit.parameters()])
            model = nn.Sequential(copy.deepcopy(unit))
            style = LayerParallel(over, output_layouts=Replicate())
            y = parallelize_module(model, mesh, {"0": style})(x)
            grads = torch.autograd.grad(y.square().sum(), [x, *model.parameters()])
            assert normwise_error(y, want_y) < SHARDED_ROUNDING, (kind, over, count)
            for grad, other in zip(grads, want, strict=True):
                full: Any = grad
                full = full if grad is grads[0] else full.full_tensor()
                assert normwise_error(full, other) < SHARDED_ROUNDING, (kind, over, count)
            style = LayerParallel(over, use_local_output=False)
            placed = parallelize_module(copy.deepcopy(unit), mesh, style)
            with CommDebugMode() as sent:
                y = placed(x)
            dimension = {"batch": y.dim() - 2, "outputs": y.dim() - 1, "models": 0}[over]
            assert (y.placements, sent.get_total_counts()) == ((Shard(dimension),), 0)
    plain = parallelize_module(NPU(3, 4), mesh, LayerParallel("outputs"))
    assert plain(torch.ones(5, 3)).shape == (5, 4 // ranks)
    style = LayerParallel("batch", input_layouts=Shard(0), use_local_output=False)
    y = parallelize_module(NPU(3, 4), mesh, style)(torch.ones(5, 3))
    assert (y.shape, y.placements) == ((5 * ranks, 4), (Shard(0),))


def _styles_with_fsdp(rank: int, ranks: int) -> None:
    """Outputs over one dimension of a mesh, rows by FSDP2 over the other one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import parallelize_module

    from npu_kernels.interop.sharding import LayerParallel

    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("data", "outputs"))
    x = torch.randn(16, 3, dtype=torch.float64)
    expected = _single(x)
    torch.manual_seed(1)
    model = _model()
    style = LayerParallel("outputs", output_layouts=Replicate())
    parallelize_module(model, mesh["outputs"], {"0": style, "1": style})
    fully_shard(model, mesh=mesh["data"])
    model(x.chunk(2)[mesh.get_local_rank("data")]).square().mean().backward()
    for parameter, want in zip(model.parameters(), expected, strict=True):
        assert normwise_error(parameter.grad.full_tensor(), want) < SHARDED_ROUNDING  # type: ignore[union-attr]


def test_styles_that_cannot_be_used() -> None:
    from npu_kernels.interop.sharding import LayerParallel

    with pytest.raises(
        ValueError, match=r"over must be one of 'batch', 'outputs', 'models', got 'in'"
    ):
        LayerParallel("in")
    mesh: Any = None
    with pytest.raises(TypeError, match=r"must be a layer of npu_kernels, got Linear"):
        LayerParallel("batch")._apply(nn.Linear(2, 2), mesh)
    with pytest.raises(ValueError, match=r"num_models must not be None where over='models'"):
        LayerParallel("models")._apply(NPU(2, 2), mesh)


def test_two_processes() -> None:
    """DDP, FSDP2 and what reads its models, every sharding of operators, models, styles."""
    _spawn(2, _data_parallel, _what_reads_a_sharded_model, _on_a_line, _models, _styles)


def test_nalu_by_triton() -> None:
    """Interpreted, in processes that have not imported Triton before."""
    state = env.environment()["triton on cpu"]
    if state != "available" and "TRITON_INTERPRET" not in state:
        pytest.skip(state)
    _spawn(2, _triton_on_a_line)


def test_a_mesh_of_four_processes() -> None:
    _spawn(4, _on_a_mesh, _styles_with_fsdp)


def test_example() -> None:
    """The script runs under torchrun."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        str(EXAMPLE), "--models", "6", "--steps", "3",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLE.parents[1])}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("6 model(s) on 2 rank(s): best loss") == 1
