"""Peak memory of one pass, measured in a process of its own, on Linux.

The process runs the pass at a tiny size first, so that libraries and thread pools are loaded, makes
the operands, resets the kernel's high-water mark of its resident memory (/proc/self/clear_refs),
runs the pass once, and takes the high-water mark less what was resident before. That counts
everything, whoever allocates it: scratch memory inside a library too, and what the pass leaves
behind (the gradients). glibc is told to return large blocks at once, so that none is reused
unnoticed. Accurate to about 0.3 MB: passes below a megabyte are not worth a row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

METHOD = (
    "high-water mark of the resident memory of one pass, less what was resident before, "
    "in a process of its own"
)
MIN_FLOATS = 2**17  # activations of a smaller case vanish in the noise
TIMEOUT = 300.0  # seconds
_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_PEAK = "5"


def _resident(field: str) -> int:
    """VmRSS or VmHWM in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no {field}")


def _measure(text: str) -> int:
    """The bytes that the pass takes, measured in the child."""
    import torch

    from benchmarks.throughput import rivals
    from benchmarks.throughput.cases import Case, draw

    order = json.loads(text)
    torch.set_num_threads(order["threads"])
    case = Case.from_dict(order["case"])
    compiled = order["rival"] in rivals.COMPILED  # for its size
    tiny = replace(case, size=replace(case.size, rows=8, inputs=8, outputs=8, models=1))
    warm = case if compiled else tiny
    rivals.build(order["rival"], warm, draw(warm)).run()
    workload = rivals.build(order["rival"], case, draw(case))
    if compiled:
        workload.run()
    before = _resident("VmRSS")
    _CLEAR.write_text(_RESET_PEAK)
    workload.run()
    return _resident("VmHWM") - before


def peak(rival: str, case: dict[str, object], threads: int) -> tuple[int | None, str]:
    """(bytes, "") or (None, why not), for a case in its dictionary form."""
    if not os.access(_CLEAR, os.W_OK):
        return None, f"{_CLEAR} cannot be written on this system"
    order = json.dumps({"rival": rival, "case": case, "threads": threads})
    sizes = {f"MALLOC_{name}_THRESHOLD_": "65536" for name in ("MMAP", "TRIM")}
    command = [sys.executable, "-m", "benchmarks.throughput.memory", order]
    root, environment = Path(__file__).resolve().parents[2], {**os.environ, **sizes}
    output: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT}
    try:
        done = subprocess.run(command, env=environment, cwd=root, **output)
    except subprocess.TimeoutExpired:
        return None, f"the process took more than {TIMEOUT:.0f} s"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return None, lines[-1] if lines else f"the process ended with {done.returncode}"
    return max(0, int(done.stdout.strip().splitlines()[-1])), ""


if __name__ == "__main__":
    print(_measure(sys.argv[1]))
