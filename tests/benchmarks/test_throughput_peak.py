"""The processor's peak: multiply-adds in registers, and the share that rows quote."""

import json
import os
import shutil
import time

import pytest
import torch

from benchmarks.throughput import peak, rivals, suite, timing
from benchmarks.throughput.cases import STEP, Case
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


def _processor_seconds(peak_work: peak.Peak) -> float:
    return timing._block(peak_work.run, 20, lambda: None, time.process_time)
