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


def made_up_rows() -> list[dict[str, object]]:
    return [
        made_up("ours", 1.0, peak_bytes=2**20, share_of_limit=0.5),
        made_up("eager", 5.0, error=2e-7, peak_bytes=4 * 2**20),
        made_up("compile", 0.8),
        made_up("linear", 0.5, error=None),
        made_up("ours", 1.0, Size(500, 30, 20)),
        made_up("eager", 4.0, Size(500, 30, 20)),
    ]


def all_tables(rows: list[dict[str, object]]) -> str:
    return "\n".join(report.pages(rows).values())
