"""The processor's peak: multiply-adds in registers, and the share that rows quote."""

import json
import os
import shutil

import pytest

from benchmarks.throughput import peak, rivals, suite
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
