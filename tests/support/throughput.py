"""Sizes and made-up rows of the tests of the throughput suite."""

from benchmarks.throughput import report
from benchmarks.throughput.cases import STEP, Case, Size

TINY, MODELS = Size(5, 3, 2), Size(5, 3, 2, 3)


def made_up(
    rival: str, ratio: float, size: Size = TINY, threads: int = 1, **more: object
) -> dict[str, object]:
    where = {
        "processor": "Abacus 3",
        "instruction_set": "beads",
        "torch": "9",
        "npu_kernels": "8",
        "commit": "c0ffee",
    }
    row = {**Case("npu", STEP, size).to_dict(), "threads": threads, "rival": rival, "ratio": ratio}
    return {**row, "median_us": 100 * ratio, "error": 1e-7, "environment": where, **more}


def all_tables(rows: list[dict[str, object]]) -> str:
    return "\n".join(report.pages(rows).values())
