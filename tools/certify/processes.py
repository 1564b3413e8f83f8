"""Threads and processes."""

from __future__ import annotations

import contextvars
import datetime
import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import socket
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from npu_kernels import NMU, NPU, functional
from tests.support.samples import RECORDS, Sample
from tools.certify.matrix import (
    ROUNDING,
    Column,
    Unavailable,
    check,
    columns,
    equal,
    inputs,
    model_of,
    require,
)

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


@check("the same bits at 1, 2 and 4 threads, from 8 Python threads, and every time")
def _threads(column: Column) -> str | None:
    sizes = (40, 20, 18) if column.interpreted else (1500, 33, 35)  # the interpreter is slow
    sample = RECORDS["npu"].sample(*sizes, dtype=torch.float32, device=column.device)

    def everything() -> list[Tensor]:
        leaves = sample.requires_grad()
        y = leaves.call(functional.npu)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves.leaves())]

    def compare(actual: list[Tensor], expected: list[Tensor]) -> None:
        for a, e in zip(actual, expected, strict=True):
            if column.backend == "reference":  # a matrix library may split its sums by threads
                equal(a, e, 1e-4, "threads")
            else:
                require(torch.equal(a, e), "other bits")

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = everything()
        for number in (2, 4, 1):
            torch.set_num_threads(number)
            compare(everything(), expected)
        with ThreadPoolExecutor(8) as pool:
            # A thread has the backend that `use_backend` forces in its context only.
            calls = [pool.submit(contextvars.copy_context().run, everything) for _ in range(16)]
            for call in calls:
                compare(call.result(), expected)
    finally:
        torch.set_num_threads(threads)
    return "to rounding" if column.backend == "reference" else None


def _in_child(sample: Sample, connection: multiprocessing.connection.Connection) -> None:
    torch.set_num_threads(1)  # as torch asks in a child that forks from a process with threads
    connection.send(sample.call(functional.npu).numpy())
    connection.close()


class _Rows(Dataset[Tensor]):
    """Rows that go through a layer in the worker that loads them."""

    def __init__(self, layer: NPU, x: Tensor) -> None:
        self.layer, self.x = layer, x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return self.layer(self.x[index])


@check("fork after use, and DataLoader workers")
def _fork(column: Column) -> None:
    if column.device != "cpu":
        raise Unavailable("torch cannot use CUDA in a forked process")
    if "fork" not in multiprocessing.get_all_start_methods():
        raise Unavailable("this system has no fork")
    sample = RECORDS["npu"].sample(*((40, 20, 18) if column.interpreted else (1500, 33, 35)))
    expected = sample.call(functional.npu)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(sample, sender))
    child.start()
    sender.close()
    require(receiver.poll(60), "the child hangs")
    equal(torch.from_numpy(receiver.recv()), expected, ROUNDING, "in a child")
    child.join(60)
    require(child.exitcode == 0, f"the child ended with {child.exitcode}")

    layer, x = NPU(3, 2, dtype=torch.float64), inputs(column, 12, 3, dtype=torch.float64)
    options: Any = {"num_workers": 2, "multiprocessing_context": "fork"}
    loader = DataLoader(_Rows(layer, x), batch_size=4, **options)
    equal(torch.cat(list(loader)), layer(x), ROUNDING, "in workers")


def _distributed(rank: int, column: Column) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from npu_kernels.interop.sharding import shard_models

    x, single = inputs(column, 8, 3, dtype=torch.float64), model_of(column, torch.float64)
    single(x).square().mean().backward()
    mesh, rows = init_device_mesh(column.device, (2,)), x.chunk(2)[rank]
    sharded: Any = model_of(column, torch.float64)
    fully_shard(sharded, mesh=mesh)
    for model in (nn.parallel.DistributedDataParallel(model_of(column, torch.float64)), sharded):
        model(rows).square().mean().backward()
        for parameter, reference in zip(model.parameters(), single.parameters(), strict=True):
            grad: Any = parameter.grad
            assert reference.grad is not None
            grad = grad.full_tensor() if model is sharded else grad
            equal(grad, reference.grad, 1e-12, type(model).__name__)
    if column.backend == "reference":
        return  # plain torch, which has other rules
    leaves = RECORDS["npu"].sample(4, 4, 4, device=column.device).requires_grad().leaves()
    y = functional.npu(*leaves)
    expected = [y, *torch.autograd.grad(y.square().sum(), leaves)]
    copies, rows_apart = Replicate(), Shard(0)
    for of_x, of_weight in ((copies, copies), (rows_apart, copies), (copies, rows_apart)):
        placed: list[Any] = [of_x, of_weight, of_weight, copies]
        spread = [
            distribute_tensor(leaf.detach(), mesh, [placement]).requires_grad_()
            for leaf, placement in zip(leaves, placed, strict=True)
        ]
        y_spread: Any = functional.npu(*spread)
        grads: Any = torch.autograd.grad(y_spread.square().sum(), spread)
        for actual, expected_value in zip((y_spread, *grads), expected, strict=True):
            equal(actual.full_tensor(), expected_value, 1e-12, f"DTensor {of_x} {of_weight}")
    options: Any = {"num_models": 4, "dtype": torch.float64, "device": column.device}
    ensemble = nn.Sequential(NPU(3, 5, init_im=0.3, **options), NMU(5, 2, **options))
    grads = torch.autograd.grad(ensemble(x).square().sum(), list(ensemble.parameters()))
    all_models = [ensemble(x), *grads]
    shard_models(ensemble, mesh)
    outputs: Any = ensemble(x)
    parts: Any = torch.autograd.grad(outputs.square().sum(), list(ensemble.parameters()))
    for actual, expected_value in zip((outputs, *parts), all_models, strict=True):
        require(actual.to_local().shape[0] == 2, "a rank has all models")
        equal(actual.full_tensor(), expected_value, 1e-12, "models over ranks")


def _rank(rank: int, port: int, where: tuple[Column, ...], folder: str) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    limit = datetime.timedelta(seconds=60)
    if where[0].device == "cuda":
        torch.cuda.set_device(rank)
    group: Any = {"init_method": f"tcp://127.0.0.1:{port}", "world_size": 2, "timeout": limit}
    dist.init_process_group(BACKENDS[where[0].device], rank=rank, **group)
    failures = {}
    for column in where:
        try:
            with column.use():
                _distributed(rank, column)
        except Exception as error:
            failures[column.name] = f"{type(error).__name__}: {error}".strip()
    Path(folder, f"{rank}.json").write_text(json.dumps(failures))
    dist.barrier()
    # torch may abort when a thread of gloo drops a tensor while Python ends (pytorch#190489); all
    # is done here.
    os._exit(0)


@functools.cache
def _failures_of_two_processes(where: tuple[Column, ...]) -> dict[str, str]:
    """Column -> failure; one start of two processes for all these columns."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (port, where, folder), nprocs=2)
        for rank in range(2):
            failures.update(json.loads(Path(folder, f"{rank}.json").read_text()))
    return failures


@check("two processes: DistributedDataParallel, FSDP2, DTensor, models over ranks")
def _processes(column: Column) -> None:
    import torch.distributed as dist

    if column.device == "cuda" and torch.cuda.device_count() < 2:
        raise Unavailable("needs two GPUs")
    backend = BACKENDS[column.device]
    if not (dist.is_available() and dist.is_backend_available(backend)):
        raise Unavailable(f"this torch has no {backend}")
    kind = column.device, column.interpreted
    same_kind = tuple(c for c in columns() if (c.device, c.interpreted) == kind)
    failures = _failures_of_two_processes(same_kind)
    require(column.name not in failures, failures.get(column.name, ""))
