"""Compiles the tuner's candidates in worker processes, for a GPU that the workers do not touch.

A worker launches what the tuner will launch, on tensors whose memory nobody reads or writes, under
a driver that names the tuner's GPU and runs nothing. Triton then compiles, and keeps the result in
its cache folder, where the tuner's own launch finds it.
"""

from __future__ import annotations

import functools
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from benchmarks.throughput.environment import end_with_parent
from benchmarks.throughput.orders import Order, Task, order

Config = dict[str, int]
Target = tuple[str, Any, int]  # backend, architecture, threads of a warp

BATCH_SECONDS = 60.0  # for a batch: an assembler that takes longer spills, or never ends
NOT_IN_TIME = "not compiled in time"


def compile_only(target: Target) -> None:
    """Let every launch of this process be compiled for the target, and not run."""
    end_with_parent()
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    from tools.aot.compiling import StubDriver

    run = JITFunction.run

    def compile_launch(
        self: Any, *arguments: Any, grid: Any, warmup: bool = False, **options: Any
    ) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        return kernel.result() if callable(getattr(kernel, "result", None)) else kernel

    JITFunction.run = compile_launch
    triton.runtime.driver.set_active(StubDriver(GPUTarget(*target)))


@functools.lru_cache(maxsize=2)
def _order(task: Task) -> Order:
    torch.set_float32_matmul_precision(task.precision)
    return order(task, "cpu", values=False)


def _compile(task: Task, config: Config) -> str:
    """The reason why the configuration cannot be compiled; empty if it is."""
    from npu_kernels._triton import tuning

    with tuning.use_config(task.kernel, config):
        try:
            _order(task).launch()
        except Exception as error:  # registers, shared memory, a compiler's own failure
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _import() -> None:
    """Import what a worker needs seconds for before its first compilation."""
    from npu_kernels._triton import launchers

    launchers()
    time.sleep(0.1)  # so that another worker takes the next such order


class Pool:
    """Workers for one target, ready to compile: ``with Pool(...) as pool``."""

    def __init__(self, jobs: int, target: Target) -> None:
        self._jobs, self._target = jobs, target
        self._start()
        wait([self._executor.submit(_import) for _ in range(jobs)], timeout=BATCH_SECONDS)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._executor = ProcessPoolExecutor(self._jobs, context, compile_only, (self._target,))

    def compile(
        self, task: Task, configs: Sequence[Config], seconds: float = BATCH_SECONDS
    ) -> list[str]:
        """The reason why each configuration cannot be used; empty if its kernel is cached."""
        try:
            futures = [self._executor.submit(_compile, task, config) for config in configs]
            wait(futures, timeout=seconds)
            return [self._problem(future) for future in futures]
        except BrokenProcessPool:  # a compiler took its process along; whose is not known
            self.close()
            self._start()
            return ["a worker died"] * len(configs)

    @staticmethod
    def _problem(future: Future[str]) -> str:
        if future.done():
            return future.result()
        future.cancel()
        return NOT_IN_TIME

    def close(self) -> None:
        """End the workers, also those that are still at work."""
        for process in list((self._executor._processes or {}).values()):
            process.kill()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
