"""One thread and many."""

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from npu_kernels import NPU, env
from tests.conftest import needs_library
from tests.support.building import run_python
from tests.support.compare import assert_equal
from tests.support.samples import RECORDS, Sample

pytestmark = needs_library


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _everything(name: str, sample: Sample) -> list[Tensor]:
    leaves = sample.requires_grad()
    y = leaves.call(RECORDS[name].function)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves.leaves())]


@pytest.mark.parametrize("name", ["npu", "nmu", "nmru", "nalu", "inalu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("batch", "in_features", "out_features", "num_models", "shared"),
    [(1000, 33, 35, None, False), (3000, 6, 70, None, False), (70, 130, 300, None, False),
     (50, 20, 17, 40, False), (50, 20, 17, 40, True), (20000, 9, 5, 1, False)],
)  # fmt: skip
def test_same_bits_at_any_number(
    name: str,
    dtype: torch.dtype,
    batch: int,
    in_features: int,
    out_features: int,
    num_models: int | None,
    shared: bool,
) -> None:
    sample = RECORDS[name].sample(
        batch, in_features, out_features, num_models=num_models, shared=shared, dtype=dtype
    )
    torch.set_num_threads(1)
    expected = _everything(name, sample)
    for threads in (2, 3, 8):
        torch.set_num_threads(threads)
        assert_equal(_everything(name, sample), expected)


def test_python_threads_share_a_module() -> None:
    """Eight threads call one module at once, each with its own rows and its own gradients."""
    layer = NPU(16, 8)
    inputs = [torch.randn(300, 16) for _ in range(8)]

    def step(x: Tensor) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])]

    expected = [step(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for actual, want in zip(pool.map(step, inputs), expected, strict=True):
                assert_equal(actual, want)


def test_set_num_threads_while_others_compute() -> None:
    """The number of threads changes under running calls: the same bits."""
    sample = RECORDS["npu"].sample(1500, 33, 35, dtype=torch.float32)
    expected = _everything("npu", sample)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for threads in (1, 2, 4):
                torch.set_num_threads(threads)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            for outcome in pool.map(lambda _: _everything("npu", sample), range(12)):
                assert_equal(outcome, expected)
    finally:
        stop.set()
        changer.join()


def _in_child(sample: Sample, connection: multiprocessing.connection.Connection) -> None:
    # torch asks for this in a child that forks from a process with threads
    torch.set_num_threads(1)
    connection.send([t.numpy() for t in _everything("npu", sample)])
    connection.close()


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork"
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_fork_after_use() -> None:
    """A child that forks from a process that has used the kernels on several threads."""
    sample = RECORDS["npu"].sample(2000, 33, 35, dtype=torch.float32)
    torch.set_num_threads(2)
    expected = _everything("npu", sample)
    context = multiprocessing.get_context("fork")
    for _ in range(2):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_in_child, args=(sample, sender))
        child.start()
        sender.close()
        assert receiver.poll(60), "the child hangs"
        outcome = receiver.recv()
        child.join(60)
        assert child.exitcode == 0
        assert all(
            torch.equal(torch.from_numpy(a), e) for a, e in zip(outcome, expected, strict=True)
        )


class _Rows(Dataset[Tensor]):
    """Rows that went through a layer, in the worker that loads them."""

    def __init__(self, layer: NPU, x: Tensor) -> None:
        self.layer, self.x = layer, x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return self.layer(self.x[index])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers(method: str) -> None:
    """A layer in a DataLoader's workers, and the main process training meanwhile."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    layer, x = NPU(4, 3), torch.randn(24, 4)
    with torch.no_grad():
        expected = layer(x)
    loader = DataLoader(
        _Rows(layer, x), batch_size=8, num_workers=2, multiprocessing_context=method
    )
    batches = []
    for batch in loader:
        batches.append(batch)
        layer(x).sum().backward()
    torch.testing.assert_close(torch.cat(batches), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_busy_cores_do_not_make_it_collapse() -> None:
    """Threads of torch spin for each other: beside other work a call once took 80 times longer."""
    layer, x = NPU(100, 100), torch.randn(100, 100)
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    seconds: dict[int, list[float]] = {1: [], 2: []}
    try:
        time.sleep(0.5)  # until they compute
        with torch.no_grad():
            for _ in range(80):
                for threads, times in seconds.items():
                    torch.set_num_threads(threads)
                    for _ in range(10):
                        begin = time.perf_counter()
                        layer(x)
                        times.append(time.perf_counter() - begin)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    idle, together = (sum(times) for times in seconds.values())
    assert together < 3 * idle + 0.1


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_backoff_lasts_while_others_run() -> None:
    """Calls work alone after threads had to wait, until such work has paid for it: no time that
    passes between the calls does, and none that torch's own operators take. Tests decisions, no
    speed."""
    debt = ctypes.CDLL(env.environment()["cpu library"]).npu_kernels_thread_debt
    debt.restype = ctypes.c_int64
    layer, x, other = NPU(100, 100), torch.randn(100, 100), torch.randn(256, 256)
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        with torch.no_grad():
            end = time.monotonic() + 60
            # the threads' number changes, torch's own operators run
            while debt() == 0 and time.monotonic() < end:
                for threads in (1, 2):
                    torch.set_num_threads(threads)
                    other @ other
                    layer(x)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    if debt() == 0:
        pytest.skip("no call had to wait for a thread in a minute")
    with torch.no_grad():
        torch.set_num_threads(2)
        owed = debt()
        time.sleep(0.3)
        for _ in range(20):
            other @ other
        assert debt() == owed
        torch.set_num_threads(1)  # alone by the caller's own choice
        layer(x)
        assert debt() == owed
        torch.set_num_threads(2)
        while debt() > 0:
            begin, before = time.monotonic_ns(), debt()
            layer(x)
            assert 0 < before - debt() <= time.monotonic_ns() - begin


KEPT_SCRATCH = """
import resource, threading
import torch
from npu_kernels import NPU

model, x = NPU(100, 100), torch.randn(100, 100)

def work():
    for _ in range(2):  # what the first call needs, the thread keeps from the second on
        model(x).sum().backward()

def peak_after(threads):
    for _ in range(threads):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = peak_after(20)
print(peak_after(200) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_ended_threads_keep_no_scratch() -> None:
    run = run_python("-c", KEPT_SCRATCH)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 20_000, (
        "KiB more after 200 threads, each of which kept some 400 while it lived"
    )
