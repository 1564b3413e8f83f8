"""A worker process: reads orders, a line each, and answers with rows; all else goes to stderr.

The answer to an order ends with ``{"end": reason}``, the reason empty if the item did not fail. A
worker whose device no longer works ends after that line.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def _place(rehearsal: bool) -> dict[str, Any]:
    """The facts of every row: the device and the versions that results depend on."""
    import torch
    import triton

    import npu_kernels
    from benchmarks.throughput import environment

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() and not rehearsal else "none"
    versions = {"torch": torch, "triton": triton, "npu_kernels": npu_kernels}
    return {
        "gpu": gpu,
        **{name: package.__version__ for name, package in versions.items()},
        "sources": environment.sources(),
    }


def _settle() -> str:
    """Free an item's memory; return why the device no longer works in this process, or ""."""
    import torch

    if not torch.cuda.is_initialized():
        return ""
    try:
        gc.collect()  # graphs, with the memory that they keep
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def main(argv: list[str] | None = None) -> int:
    """Answer orders; return the exit status: 3 if the device broke."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.worker")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args(argv)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(row: dict[str, Any]) -> None:
        answers.write(json.dumps(row) + "\n")
        answers.flush()

    import torch

    from benchmarks.gpu.work import DO, Stage
    from benchmarks.throughput.precompile import end_with_parent

    end_with_parent()

    stage = Stage(options.out, options.rehearse)
    emit({"place": _place(options.rehearse)})
    for line in sys.stdin:
        order = json.loads(line)
        reason = ""
        torch.set_float32_matmul_precision("highest")  # whatever the last item has set
        try:
            DO[order["part"]](stage, order["item"], emit)
        except Exception as error:  # whatever it is, the next item comes
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"[:1000]
        broken = _settle()
        end = reason or (f"the device broke: {broken}" if broken else "")
        emit({"end": end, "broken": bool(broken)})
        if broken:
            os._exit(3)  # what is left to do on the device would hang or fail
    if stage.pool is not None:
        stage.pool.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
