"""Compile the Triton kernels for absent GPUs and check their resources.

    python -m tools.aot                         every kernel and shipped configuration, all targets
    python -m tools.aot --target sm_90 --table t.json --quick

Runs the launchers under a stub driver on CPU tensors: every launch becomes a compilation with
exactly the specialisation that it would have on the device, and nothing is executed. So it also
proves that launchers and kernels agree on their arguments, which Triton's interpreter does not
check. Each kernel must stay within its budget:

- no register spills, by the assembler's own count, and registers within the target's limit
- shared memory within the limit of the smallest GPU that uses the table
- not empty: some compilers turn a kernel that they cannot handle into a trap, without an error
- tensor-core instructions in the disassembly wherever the configuration promises them
- large layers' kernels: multiply-adds and waits of their loops (`loops`)

Writes the resource table (one row per kernel), prints it, and exits with 1 if any budget is
exceeded. Needs a process without ``TRITON_INTERPRET``.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import sys
from typing import Any

import torch

from npu_kernels._jobs import files
from tools.aot.cases import compile_target
from tools.aot.compiling import TABLES_OF, TARGETS
from tools.aot.report import KEYS

COLUMNS = ("target", *KEYS[:-1])


def render(rows: list[dict[str, Any]]) -> str:
    """The resource table as text."""
    lines = [[*COLUMNS, "instructions", "tensor core"]]
    for row in rows:
        tensor = " ".join(f"{name}:{count}" for name, count in row.get("tensor_core", {}).items())
        cells = [str(row.get(name, "")) for name in (*COLUMNS, "instructions")]
        lines.append([*cells, tensor + "".join(f"  FAULT {f}" for f in row["faults"])])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    padded = [[*map(str.ljust, line, widths), line[-1]] for line in lines]
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def main(arguments: list[str] | None = None) -> int:
    """Compile, print and write the table; 1 if a budget is exceeded."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tools.aot", description=description)
    several = "repeat for several; default: all that this Triton's tools know"
    every = (*TARGETS, *TABLES_OF)
    parser.add_argument("--target", action="append", choices=every, help=several)
    parser.add_argument("--table", type=files.output, help="write the resource table here, as JSON")
    parser.add_argument(
        "--quick", action="store_true",
        help="compile an NPU and an iNALU, every kernel for sm_90; launch all",
    )  # fmt: skip
    parser.add_argument(
        "--variants", action="store_true",
        help="calls without some operands or gradients: all, on every target (slow)",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    options = parser.parse_args(arguments)
    import triton

    recent = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
    targets = options.target or (every if recent else TARGETS)

    variants = [
        "all" if options.variants else "some" if target == "sm_90" else "" for target in targets
    ]
    calls = targets, [options.quick] * len(targets), variants
    processes = min(options.jobs, len(targets))
    if processes == 1:
        compiled = list(map(compile_target, *calls))
    else:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
            compiled = list(pool.map(compile_target, *calls))
    rows = [row for of_target in compiled for row in of_target]
    print(render(rows))
    if options.table:
        table = {"triton": triton.__version__, "torch": torch.__version__, "rows": rows}
        files.write(options.table, json.dumps(table, indent=1) + "\n")
    broken = sum(bool(row["faults"]) for row in rows)
    kernels = f"{len(rows)} kernels for {', '.join(targets)}"
    print(f"triton {triton.__version__}: {kernels}, {broken} over budget")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
