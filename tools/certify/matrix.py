"""The table's columns and cells, how they are filled, and what the checks share."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import NAU, NMU, NPU, iNALU, use_backend
from npu_kernels._operators import cpu, dispatch, ops
from tests.support.samples import RECORDS, normwise_error

ROUNDING = 1e-11  # of float64
FUSED = tuple(ops.LAYERS)
_INTERPRET = "TRITON_INTERPRET"
# Checks that `--quick` leaves out: they start compilers or processes, and run no kernel that other
# checks do not run.
SLOW = ("torch.compile, inductor", "AOTInductor", "ONNX", "two processes")
# Checks of the eager formulas on every backend, and of threads that the interpreter does not use:
# `--quick` leaves them out where Triton interprets.
SLOW_INTERPRETED = ("gradgradcheck", "forward-mode AD", "the same bits at 1, 2 and 4 threads")


class Unavailable(Exception):
    """A check cannot run here, and why."""


@dataclass(frozen=True)
class Column:
    """Where a check runs, and how much of it."""

    backend: str  # as in `use_backend`
    device: str = "cpu"
    isa: str | None = None  # the CPU's instruction set
    quick: bool = False  # one size of each layer, derivatives along one direction

    @property
    def interpreted(self) -> bool:
        """Whether Triton's interpreter runs the kernels: it does so in a separate process."""
        return self.backend == "triton" and self.device == "cpu"

    @property
    def name(self) -> str:
        """The name of the column in the table."""
        if self.interpreted:
            return "triton interpreted"
        return f"{self.backend} {self.isa}" if self.isa else f"{self.backend} on {self.device}"

    def of(self, titles: list[str]) -> list[str]:
        """Return those checks that run in this column."""
        quick = self.quick and self.interpreted
        return [title for title in titles if not (quick and title.startswith(SLOW_INTERPRETED))]

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Force the column's backend and instruction set in the block."""
        before = cpu.isa() if self.isa else None
        try:
            if self.isa:
                cpu.set_isa(self.isa)
            with use_backend(self.backend):
                yield
        finally:
            if before:
                cpu.set_isa(before)


@dataclass(frozen=True)
class Result:
    """One cell."""

    check: str
    column: str
    status: str  # "ok", "fail" or "n/a"
    detail: str
    seconds: float


CHECKS: dict[str, Callable[[Column], str | None]] = {}


def check(title: str) -> Callable[[Callable[[Column], str | None]], Callable[[Column], str | None]]:
    """Register a row of the table: returns a detail for its cell, raises if it fails."""

    def register(function: Callable[[Column], str | None]) -> Callable[[Column], str | None]:
        CHECKS[title] = function
        return function

    return register


def _interpreter_problem() -> str:
    """Say why a process with TRITON_INTERPRET=1 could not run the kernels; "" if it could."""
    runs, reason = dispatch.reasons("cpu")["triton"]
    return "" if runs or _INTERPRET in reason else reason  # that it is not set here is no problem


def columns(quick: bool = False) -> list[Column]:
    """What can run here; quick: every backend, the CPU's with the instruction set in use."""
    available = [Column("reference")]
    if cpu.available()[0]:
        isas = [cpu.isa()] if quick else cpu.supported_isas()
        available += [Column("cpu", isa=isa) for isa in isas]
    if not _interpreter_problem():
        available.append(Column("triton"))
    if torch.cuda.is_available():
        available.append(Column("reference", "cuda"))
        if dispatch.reasons("cuda")["triton"][0]:
            available.append(Column("triton", "cuda"))
    return [replace(column, quick=quick) for column in available]


def not_run() -> dict[str, str]:
    """What has no column here, and why."""
    absent = {}
    if not cpu.available()[0]:
        absent["cpu"] = cpu.available()[1]
    if problem := _interpreter_problem():
        absent["triton interpreted"] = problem
    if not torch.cuda.is_available():
        absent["reference on cuda"] = "torch finds no CUDA device"
    runs, reason = dispatch.reasons("cuda")["triton"]
    if not runs:
        absent["triton on cuda"] = reason
    return absent


def run(title: str, column: Column) -> Result:
    """One cell, in this process."""
    start = time.perf_counter()
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings(), column.use():
            warnings.simplefilter("ignore")
            detail = CHECKS[title](column) or "ok"
            status = "ok"
    except Unavailable as reason:
        status, detail = "n/a", str(reason)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        status, detail = "fail", f"{type(error).__name__}: {lines[-1][:300]}"
    return Result(title, column.name, status, detail, round(time.perf_counter() - start, 2))


@contextlib.contextmanager
def _interpreting_process() -> Iterator[ProcessPoolExecutor]:
    """One process in which Triton interprets: Triton decides that when it is imported."""
    before = os.environ.get(_INTERPRET)
    os.environ[_INTERPRET] = "1"
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, initializer=torch.set_num_threads, initargs=(1,))
    try:
        pool.submit(os.getpid).result()  # started, with that variable
    finally:
        if before is None:
            del os.environ[_INTERPRET]
        else:
            os.environ[_INTERPRET] = before
    with pool:
        yield pool


def _awaited(future: Future[Result], title: str, column: Column) -> Result:
    try:
        return future.result()
    except Exception as error:  # the process died
        return Result(title, column.name, "fail", f"{type(error).__name__}: {error}", 0.0)


def measure(
    titles: list[str], where: list[Column], progress: Callable[[Result], None] = lambda result: None
) -> list[Result]:
    """Return the matrix, column by column; Triton interprets at the same time in a process."""
    interprets = dispatch.reasons("cpu")["triton"][0]
    apart = [column for column in where if column.interpreted and not interprets]
    results: dict[Column, list[Result]] = {column: [] for column in where}
    with _interpreting_process() if apart else contextlib.nullcontext() as pool:
        pairs = [(title, column) for column in apart for title in column.of(titles)]
        waiting = [(pool.submit(run, *pair), *pair) for pair in pairs if pool]
        for column in where:
            for title in column.of(titles) if column not in apart else ():
                results[column].append(run(title, column))
                progress(results[column][-1])
        for future, title, column in waiting:
            results[column].append(_awaited(future, title, column))
            progress(results[column][-1])
    return [result for column in where for result in results[column]]


# ---- what the checks share: models, inputs, comparisons ----


def equal(actual: Tensor, expected: Tensor, tolerance: float, title: str) -> float:
    """Raise AssertionError unless the relative error is at most the tolerance; returns it."""
    error = normwise_error(actual.cpu(), expected.cpu())
    if not error <= tolerance:
        limit = f"at most {tolerance:.2g} allowed"
        raise AssertionError(f"{title}: relative error {error:.2g}, {limit}")
    return error


def require(condition: bool, message: str) -> None:
    """Raise AssertionError unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def leaves_of(name: str, column: Column, rows: int = 3, **options: Any) -> list[Tensor]:
    """A sample away from the places without a derivative."""
    sample = RECORDS[name].sample(rows, 3, 2, device=column.device, **options).requires_grad()
    with torch.no_grad():
        sample.x.add_(0.25 * sample.x.sign())
        for tensor in sample.leaves()[1:]:
            for clip in (0, 1):
                near = (tensor - clip).abs() < 0.05
                tensor.add_(0.1 * near * (tensor - clip).sign())
    return sample.leaves()


def model_of(column: Column, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A small model of four layers, the same at every call."""
    torch.manual_seed(0)
    options: Any = {"dtype": dtype, "device": column.device}
    first, second = NPU(3, 6, init_im=0.3, **options), NAU(6, 4, **options)
    return nn.Sequential(first, second, NMU(4, 3, **options), iNALU(3, 2, **options))


def inputs(column: Column, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random rows, the same at every call."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(column.device, dtype)


def step(function: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    """The loss of a training step, and its gradients for x and all parameters."""
    x = x.detach().clone().requires_grad_()
    loss = function(x).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]
