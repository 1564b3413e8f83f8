"""The processor's peak: multiply-adds in registers, and the share that rows quote."""

import json
import os
import shutil
import sys
import time

import pytest
import torch

from benchmarks.throughput import __main__ as command
from benchmarks.throughput import peak, rivals, suite, timing
from benchmarks.throughput.cases import STEP, Case, cost
from benchmarks.throughput.devices import DEVICES
from tests.support.building import run_python
from tests.support.machine import isa_in_use
from tests.support.throughput import MODELS

pytestmark = pytest.mark.usefixtures("one_thread")  # what they run sets another number


@pytest.fixture
def peaks():
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("there is no compiler")
    return peak.peaks(1)


def test_the_share_of_the_peak(peaks):
    case = Case("npu", STEP, MODELS)
    rows = suite.measure(case, [rivals.LINEAR], 1, 0.01, peaks=peaks)
    ours, linear = json.loads(json.dumps(rows))  # a row for each rival, none for the yardstick
    assert (ours["rival"], linear["rival"]) == ("ours", "linear")
    assert ours["peak_gflops"] == linear["peak_gflops"] > 0.1
    assert ("tile_gflops" in ours) == (isa_in_use() == "amx")
    assert 0 < ours["share_of_peak"] < 1
    assert "share_of_peak" not in linear
    assert "% of the peak" in suite.show(ours)


def test_the_share_is_of_the_same_rounds():
    case, vectors = Case("npu", STEP, MODELS), {peak.VECTORS: peak.Peak(lambda: 0, 10**6)}
    times = {peak.VECTORS: [1e-3, 2e-3, 4e-3], "ours": [1e-2, 2e-2, 4e-2]}
    row = suite._of_the_peak(case, "ours", times, vectors)
    assert row["peak_gflops"] == pytest.approx(1.0)  # 2e6 operations in 2 ms
    assert row["share_of_peak"] == pytest.approx(0.1 * cost(case)[0] / 2e6)


def test_the_peak_is_work_in_all_threads(peaks):
    single, both = peaks[peak.VECTORS], peak.peaks(2)[peak.VECTORS]
    assert both.multiply_adds == 2 * single.multiply_adds
    quiet_seconds = _processor_seconds(single)  # before the other thread is there, which spins
    torch.set_num_threads(2)
    assert _processor_seconds(both) > 1.5 * quiet_seconds
    # Faster than one multiply-add a cycle of 5 GHz: the widest unit of the instruction set, not one
    # lane of it.
    if isa_in_use() in ("avx512", "avx512_bf16", "amx"):
        seconds = min(timing._block(peaks[peak.VECTORS].run, 1, lambda: None) for _ in range(20))
        assert peaks[peak.VECTORS].multiply_adds / seconds > 5e9


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in Linux's /proc")
def test_the_peak_has_no_threads_of_its_own():
    code = """
import pathlib
import torch
from benchmarks.throughput import peak
torch.set_num_threads(2)
torch.randn(1000, 1000).exp()
threads = lambda: len(list(pathlib.Path("/proc/self/task").iterdir()))
before = threads()
for work in peak.peaks(2).values():
    work.run()
assert threads() == before, f"{threads()} threads, {before} before"
"""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr


def _processor_seconds(peak_work: peak.Peak) -> float:
    return timing._block(peak_work.run, 20, lambda: None, time.process_time)


def test_without_a_compiler_there_is_no_share(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    peak._library.cache_clear()
    said: list[str] = []
    assert command._peaks(1, DEVICES["cpu"], said.append) == {}
    assert said[0].startswith("without the share of the peak: ")
    assert "no-such-compiler" in said[0]
