"""Times of the main sizes, a group for each, and their ratios to eager beside those kept.

The figures of the documents are those of `benchmarks.throughput`, whose programs take turns. Here
each program is timed by itself, by pytest-benchmark, with its options: `--benchmark-json FILE`,
`--benchmark-compare`. `RESULTS` has such files. A case fails where eager's time over ours, each
the least of its rounds, is below `LOWEST_SHARE` of the least ratio of the files with torch's
instruction set of this processor, because our kernels gain more from wide registers than torch
does. Without such a file, the least ratio of all files counts.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.throughput import rivals, timing
from benchmarks.throughput.cases import FORWARD, ROLLOUT, RUN, STEP, TRAIN, Case, Size, draw
from benchmarks.throughput.rivals import COMPILE, EAGER, OURS

RESULTS = Path(__file__).resolve().parents[1] / "results"
LOWEST_SHARE = 0.7  # of a kept ratio
SECONDS_OF_A_CASE = 1.0  # of a case that is timed again
CASES = {
    str(case): case
    for case in (
        Case("npu", FORWARD, Size(100, 6, 2)),
        Case("npu", STEP, Size(100, 6, 2)),
        Case("npu", STEP, Size(100, 6, 2, 20)),
        Case("npu", STEP, Size(100, 100, 100)),
        Case("npu", STEP, Size(1024, 64, 64)),
        Case("realnpu", STEP, Size(1024, 64, 64)),
        Case("nmu", STEP, Size(128, 100, 100)),
        Case("npu-nau", TRAIN, Size(100, 2, 4), "positive"),
        Case("npu-nau", RUN, Size(100, 2, 4, 20), "positive"),
        Case("npu-nau", ROLLOUT, Size(200, 3, 9), "positive"),
    )
}
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's compiler
min_seconds: dict[tuple[str, str], float] = {}  # by case and program, of this run


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("program", [OURS, EAGER, COMPILE])
@pytest.mark.parametrize("name", CASES)
def test_speed(benchmark: Any, name: str, program: str) -> None:
    case = CASES[name]
    reason = rivals.not_applicable(program, case, threads=1)
    if reason is not None:
        pytest.skip(reason or f"{program} is not for this case")
    workload = rivals.build(program, case, draw(case))
    workload.run()  # compiles
    benchmark.group = name
    benchmark(workload.run)
    if benchmark.stats is not None:
        min_seconds[name, program] = benchmark.stats.stats.min


def kept_ratios(files: list[Path], instruction_set: str) -> dict[str, float]:
    """The least ratio of eager's time to ours, by case, of pytest-benchmark's files.

    instruction_set: torch's. Files of others count only where no file has it.
    """
    runs = [json.loads(file.read_text()) for file in files]
    comparable = [r for r in runs if r["machine_info"]["torch_instruction_set"] == instruction_set]
    ratios: dict[str, float] = {}
    for run in comparable or runs:
        seconds = {
            (row["params"]["name"], row["params"]["program"]): row["stats"]["min"]
            for row in run["benchmarks"]
        }
        for name in CASES:
            if {(name, OURS), (name, EAGER)} <= seconds.keys():
                ratio = seconds[name, EAGER] / seconds[name, OURS]
                ratios[name] = min(ratio, ratios.get(name, ratio))
    return ratios


@pytest.mark.parametrize("name", CASES)
def test_ratio(name: str) -> None:
    """A ratio that is too low is measured again: other work may have had the core."""
    if not {(name, OURS), (name, EAGER)} <= min_seconds.keys():
        pytest.skip("ours and eager were not both timed")
    instruction_set = torch.backends.cpu.get_cpu_capability()
    ratios = kept_ratios(sorted(RESULTS.glob("speed-*.json")), instruction_set)
    lowest = LOWEST_SHARE * ratios[name]
    ratio = min_seconds[name, EAGER] / min_seconds[name, OURS]
    if ratio < lowest:
        operands = draw(CASES[name])
        runs = {p: rivals.build(p, CASES[name], operands).run for p in (OURS, EAGER)}
        times = timing.interleaved(runs, SECONDS_OF_A_CASE)
        ratio = timing.ratios(times[EAGER], times[OURS]).median
    assert ratio >= lowest, f"{name}: {ratio:.2f} times eager's speed"
