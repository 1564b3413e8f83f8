"""Every allocation of a call fails, one after the other. A process of `test_allocations`.

``python -m tests.backends.allocations fast|operators`` runs with `csrc/tests/failing_malloc.cpp`
preloaded and prints a line of JSON per case. Counted are the allocations of npu_kernels' libraries
and of torch's allocator of tensors. Where our code was at work the error has to name memory.
Torch's code outside it (its operators, its autograd engine) may say "std::bad_alloc", as it does to
everyone.
"""

import contextlib
import copy
import ctypes
import json
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import NAU, NPU, ode
from npu_kernels.optim import Adam
from npu_kernels.training import mse_loss
from npu_kernels.training import run as run_steps
from tests.support.machine import without_fast_path
from tests.support.samples import RECORDS

OURS, TORCHS = re.compile(r"libnpu_kernels_cpu|fast_path-"), re.compile(r"libc10\.so")
IN_A_THREAD, IN_OURS = 2, 4  # flags of failing_malloc_disarm
# Around our backward torch's template of an autograd node, compiled into our library, asks for
# memory in three places: two vectors, and the node's name. An entry of ours that did not name
# memory would add dozens. Places are counted, not errors: how many allocations come before depends
# on whether the kernels use threads, so the n-th of one call may be the n + 1st of the next, and
# one place fails twice.
OF_THE_NODE = 3
BARE = "RuntimeError: std::bad_alloc"
DTYPES = (torch.float32, torch.float64)
# Rows, inputs, outs, models: narrow, wide, whole tiles, some models with one x, and work enough for
# torch's threads.
SIZES = (
    (7, 3, 2, None), (40, 33, 18, None), (64, 32, 32, None), (9, 5, 3, 2), (1024, 16, 16, None),
)  # fmt: skip

# A case's prepare() makes call(), which may be called until it succeeds.
Case = tuple[str, Callable[[], Callable[[], Any]]]


def layers(sizes: Any) -> Iterator[Case]:
    for name in ("npu", "nmu", "nmru", "nau", "nac", "nalu", "inalu"):
        for dtype in DTYPES:
            # The same code allocates in both: one of them has every size.
            for batch, ins, outs, models in sizes if dtype == torch.float32 else sizes[:1]:
                sample = RECORDS[name].sample(
                    batch, ins, outs, num_models=models, shared=models is not None,
                    layout="transposed", dtype=dtype,
                )  # fmt: skip

                def prepare(name: str = name, sample: Any = sample) -> Callable[[], Any]:
                    leaves = sample.requires_grad()

                    def call() -> Any:
                        y = leaves.call(RECORDS[name].function)
                        return y, torch.autograd.grad(y.square().sum(), leaves.leaves())

                    return call

                yield f"{sample.name} {dtype}", prepare


def others() -> Iterator[Case]:
    for dtype in DTYPES:
        for starts, memory in ((1, "full"), (5, "checkpointed"), (300, "full")):

            def rollout(
                dtype: torch.dtype = dtype, starts: int = starts, memory: str = memory
            ) -> Callable[[], Any]:
                torch.manual_seed(0)
                model = nn.Sequential(NPU(3, 9), NAU(9, 3)).to(dtype)
                u0 = torch.rand(starts, 3, dtype=dtype)

                def call() -> Any:
                    path = ode.rollout(model, u0, steps=10, dt=0.01, method="rk4", memory=memory)
                    assert isinstance(path, Tensor)
                    return path, torch.autograd.grad(path.square().sum(), list(model.parameters()))

                return call

            yield f"ode {starts} {memory} {dtype}", rollout

        def loss(dtype: torch.dtype = dtype) -> Callable[[], Any]:
            torch.manual_seed(0)
            y = torch.rand(3, 50, 4, dtype=dtype).transpose(1, 2).requires_grad_()
            target = torch.rand(4, 50, dtype=dtype)

            def call() -> Any:
                losses = mse_loss(y, target, num_models=3)
                return losses, torch.autograd.grad(losses.sum(), y)

            return call

        yield f"mse {dtype}", loss

        def adam(dtype: torch.dtype = dtype) -> Callable[[], Any]:
            torch.manual_seed(0)
            parameters = [nn.Parameter(torch.rand(4, 3, dtype=dtype)) for _ in range(3)]
            for parameter in parameters:
                parameter.grad = torch.rand(3, 4, dtype=dtype).T
            optimizer = Adam(parameters, 0.1)
            optimizer.step()  # torch's own, which makes the states

            def call() -> Any:
                optimizer.step()
                return parameters, [
                    [s["exp_avg"], s["exp_avg_sq"], s["step"]] for s in optimizer.state.values()
                ]

            return call

        yield f"adam {dtype}", adam


def trainings() -> Iterator[Case]:
    # The last in threads. More steps take no more memory.
    for dtype, models, steps in (
        (torch.float32, None, 3),
        (torch.float32, None, 12),
        (torch.float64, 16, 3),
    ):

        def training(
            dtype: torch.dtype = dtype, models: int | None = models, steps: int = steps
        ) -> Callable[[], Any]:
            torch.manual_seed(0)
            start = nn.Sequential(NPU(2, 6, num_models=models), NAU(6, 4, num_models=models)).to(
                dtype
            )
            x, y = torch.rand(64, 2, dtype=dtype), torch.rand(64, 4, dtype=dtype)

            def call() -> Any:
                model = copy.deepcopy(start)
                result = run_steps(
                    model, x, y, steps=steps, record_every=steps, lr=0.1, progress=False
                )
                assert result.fused
                return result.losses, [p.detach() for p in model.parameters()]

            return call

        yield f"training {steps} {models} {dtype}", training


def tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [t for part in result for t in tensors(part)]


class Malloc:
    """The preloaded allocator."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self.arm, self.disarm = library.failing_malloc_arm, library.failing_malloc_disarm
        self.arm.argtypes = [ctypes.c_long]
        self.path = library.failing_malloc_path
        self.path.restype = ctypes.c_uint64
        watch = library.failing_malloc_watch
        watch.argtypes, watch.restype = (
            [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_bool],
            ctypes.c_bool,
        )
        names = set()
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, rights, *_, path = line.split()
            name = Path(path).name
            if "x" in rights and (OURS.match(name) or TORCHS.match(name)):
                begin, end = (int(address, 16) for address in addresses.split("-"))
                assert watch(begin, end, bool(OURS.match(name)))
                names.add(name)
        assert len(names) == 3, names


def run(case: Case, malloc: Malloc) -> dict[str, Any]:
    """Allocations fail in turn until none is left; each call after one gives the same bits."""
    title, prepare = case
    want = [t.clone() for t in tensors(prepare()())]
    failures, in_threads, in_ours, wrong = 0, 0, 0, []
    unnamed: set[int] = set()  # the places

    def attempt() -> tuple[Any, str, int]:
        result, said = None, "nothing"
        malloc.arm(failures + 1)
        try:
            # It is kept until nothing fails any more: torch asks for memory when a graph goes, and
            # may not fail there.
            result = call()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        return result, said, malloc.disarm()

    while True:
        call = prepare()
        # Kernels keep scratch in each thread, and in a new one they have none yet.
        with ThreadPoolExecutor(1) as thread:
            result, said, came = thread.submit(attempt).result()
        if not came:
            assert result is not None, said
            if len(unnamed) > OF_THE_NODE:
                wrong.append(
                    f"in {len(unnamed)} places our code was at work, and the error did not name memory"
                )
            return {
                "case": title, "failures": failures, "in_threads": in_threads, "in_ours": in_ours, "wrong": wrong
            }  # fmt: skip
        failures += 1
        in_threads += bool(came & IN_A_THREAD)
        in_ours += bool(came & IN_OURS)
        if came & IN_OURS and said == BARE:
            unnamed.add(malloc.path())
        if said != BARE and not re.match("(MemoryError|RuntimeError): .*memory", said):
            wrong.append(f"allocation {failures}: raised {said}")
        elif not all(map(torch.equal, tensors(call()), want)):
            wrong.append(f"allocation {failures}: other bits in the next call")


def main(path: str) -> None:
    torch.set_num_threads(2)
    malloc = Malloc()
    with without_fast_path() if path == "operators" else contextlib.nullcontext():
        # The kernels' own allocations are those of the fast path, which has every size.
        sizes = (SIZES[0], *SIZES[3:]) if path == "operators" else SIZES
        for case in (*layers(sizes), *others(), *trainings()):
            if path == "operators" and case[0].startswith("adam"):
                continue  # torch's own step, which stops halfway
            print(json.dumps(run(case, malloc)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
