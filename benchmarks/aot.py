"""Neural Power Unit, a layer: what the Triton kernels compile to, for GPUs that are not there.

    python -m benchmarks.aot                            every kernel and shipped configuration, all targets
    python -m benchmarks.aot --target sm_90 --table t.json --quick

Runs the launchers themselves under a stub driver on CPU tensors: every launch becomes a compilation with exactly the
specialisation that it would have on the device, and nothing is executed. So it also proves that the launchers and
kernels agree on their arguments, which Triton's interpreter does not check. Each kernel must stay within its budget:

- no register spills, by the assembler's own count, and registers within the target's limit
- shared memory within the limit of the smallest GPU that uses the table
- not empty: some compilers turn a kernel that they cannot handle into a trap, without an error
- tensor-core instructions in the disassembly wherever the configuration promises them

Writes the resource table (one row per kernel), prints it, and exits with 1 if any budget is exceeded. Needs a process
without ``TRITON_INTERPRET``.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import io
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from npu_kernels import files

EPS = torch.finfo(torch.float32).eps

# Shared memory in bytes. The sm_80 table also serves 8.6, 8.9 and 12.x, which have less than 8.0.
SHARED_MEMORY = {"sm_80": 101376, "sm_90": 232448, "sm_100": 232448, "gfx942": 65536}
REGISTERS = {"sm_80": 255, "sm_90": 255, "sm_100": 255, "gfx942": 512}
TENSOR_CORE = {
    "sm_80": ("HMMA",),
    "sm_90": ("HGMMA", "HMMA"),
    "sm_100": ("UTCHMMA", "HMMA"),
    "gfx942": ("v_mfma_f32",),
}
TARGETS = tuple(SHARED_MEMORY)
LEAST_INSTRUCTIONS = 100
BLOCKS = ("BLOCK_B", "BLOCK_O", "BLOCK_I", "BLOCK_H", "BLOCK_D")
OPTIONS = (*BLOCKS, "PASSES", "num_warps", "num_stages", "maxnreg")

SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9_]+)")


# ---- the stub ------------------------------------------------------------------------------------------------------


class StubDriver:
    """Stands for a device that is not there."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class Compilation:
    """One launch that was compiled instead."""

    def __init__(self, name: str, arguments: dict[str, Any], kernel: Any, log: str, seconds: float) -> None:
        self.name, self.arguments, self.kernel, self.log, self.seconds = name, arguments, kernel, log, seconds


@contextlib.contextmanager
def compile_instead(target: str, compiles: bool = True) -> Iterator[list[Compilation]]:
    """Within the block every kernel launch is compiled for the target and appended to the list.

    compiles: without it launches are listed only, and have no kernel. For a process that launches nothing else: the
    stub driver stays.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    from npu_kernels.backends.triton import tuning

    if triton.knobs.runtime.interpret:
        raise RuntimeError("benchmarks.aot: kernels cannot be compiled in a process with TRITON_INTERPRET=1")
    gpu = GPUTarget("hip", target, 64) if target.startswith("gfx") else GPUTarget("cuda", int(target[3:]), 32)
    done: list[Compilation] = []
    compiled: set[int] = set()
    run, log_option = JITFunction.run, triton.knobs.nvidia.dump_ptxas_log
    functions: list[JITFunction] = []

    def compile_launch(self: JITFunction, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> Any:
        arguments = {**dict(zip(self.arg_names, args, strict=False)), **options}
        if not compiles:
            done.append(Compilation(self.__name__, arguments, None, "", 0.0))
            return None
        if self not in functions:
            functions.append(self)
            self.device_caches.clear()  # of another target
        started, log = time.perf_counter(), io.StringIO()
        with contextlib.redirect_stdout(log):
            kernel = run(self, *args, grid=grid, warmup=True, **options)
            kernel = kernel.result() if callable(getattr(kernel, "result", None)) else kernel
        if id(kernel) not in compiled:  # else a launch like one before it
            compiled.add(id(kernel))
            done.append(Compilation(self.__name__, arguments, kernel, log.getvalue(), time.perf_counter() - started))
        return kernel

    with tempfile.TemporaryDirectory() as cache:
        previous = os.environ.get("TRITON_CACHE_DIR")
        os.environ["TRITON_CACHE_DIR"] = cache  # the assembler reports only what it assembles
        JITFunction.run = compile_launch
        triton.knobs.nvidia.dump_ptxas_log = True
        triton.runtime.driver.set_active(StubDriver(gpu))
        tuning.forget()
        try:
            yield done
        finally:
            JITFunction.run = run
            triton.knobs.nvidia.dump_ptxas_log = log_option
            tuning.forget()
            for function in functions:
                function.device_caches.clear()
            os.environ.pop("TRITON_CACHE_DIR")
            if previous is not None:
                os.environ["TRITON_CACHE_DIR"] = previous


# ---- reading what came out -----------------------------------------------------------------------------------------


def _tool(name: str) -> str:
    import triton

    return getattr(triton.knobs.nvidia, name).path


def _nvidia(kernel: Any, log: str) -> dict[str, Any]:
    spills, used = SPILLS.search(log), USED.search(log)
    if spills is None or used is None:
        raise RuntimeError(f"benchmarks.aot: the assembler's report was not understood: {log!r}")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [_tool("nvdisasm"), "-c", "-ndf", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    opcodes = collections.Counter(m[1] for line in text.splitlines() if (m := OPCODE.search(line)))
    tensor = {name: opcodes[name] for name in ("HGMMA", "HMMA", "UTCHMMA", "DMMA") if opcodes[name]}
    return {
        "registers": int(used[1]),
        "spill_bytes": int(spills[2]) + int(spills[3]),
        "instructions": sum(opcodes.values()),
        "stores": opcodes["STG"],
        "tensor_core": tensor,
    }


def _amd(kernel: Any) -> dict[str, Any]:
    text = kernel.asm["amdgcn"]

    def number(key: str) -> int:
        found = re.search(rf"\.{key}:\s*(\d+)", text)
        return int(found[1]) if found else 0

    return {
        "registers": number("vgpr_count"),
        "spill_bytes": 4 * number("vgpr_spill_count"),  # scalar registers spill into lanes of vector registers
        "instructions": len(re.findall(r"^\t[a-z]+_[a-z]", text, re.MULTILINE)),
        "stores": len(re.findall(r"\b(?:global|buffer)_store", text)),
        "tensor_core": dict(collections.Counter(re.findall(r"v_mfma_[a-z]+\d+", text))),
    }


def measure(compilation: Compilation, target: str) -> dict[str, Any]:
    """One row of the resource table: what was compiled and what it takes."""
    kernel, arguments = compilation.kernel, compilation.arguments
    blocks = [str(arguments[name]) for name in BLOCKS if name in arguments]
    row = {
        "target": target,
        "kernel": compilation.name.removesuffix("_kernel"),
        "options": {name: arguments[name] for name in OPTIONS if name in arguments},
        "tile": "x".join(blocks),
        "passes": arguments.get("PASSES"),
        "warps": kernel.metadata.num_warps,
        "stages": kernel.metadata.num_stages,
        "shared_bytes": kernel.metadata.shared,
    }
    row |= _amd(kernel) if target.startswith("gfx") else _nvidia(kernel, compilation.log)
    return row | {"seconds": round(compilation.seconds, 2)}


def faults(row: dict[str, Any]) -> list[str]:
    """Every budget that a row exceeds."""
    target, found = row["target"], []
    if row["spill_bytes"]:
        found.append(f"spills {row['spill_bytes']} bytes")
    if not 0 < row["registers"] <= REGISTERS[target]:
        found.append(f"{row['registers']} registers, limit {REGISTERS[target]}")
    if row["shared_bytes"] > SHARED_MEMORY[target]:
        found.append(f"{row['shared_bytes']} bytes of shared memory, limit {SHARED_MEMORY[target]}")
    if row["instructions"] < LEAST_INSTRUCTIONS or not row["stores"]:
        found.append(f"empty: {row['instructions']} instructions, {row['stores']} stores")
    if row["passes"] and not any(name.startswith(TENSOR_CORE[target]) for name in row["tensor_core"]):
        found.append("no tensor-core instruction")
    return found


# ---- what to compile -----------------------------------------------------------------------------------------------


def _operands(
    B: int,
    I: int,
    O: int,
    K: int | None = None,
    dtype: torch.dtype = torch.float32,
    shared: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``x, weight, gate, y``; memory that nobody touches."""
    lead = [] if K is None else [K]
    x = torch.empty([B, I] if shared or K is None else [K, B, I], dtype=dtype)
    weight, gate = torch.empty([*lead, O, I], dtype=dtype), torch.empty([*lead, I], dtype=dtype)
    return x, weight, gate, torch.empty([*lead, B, O], dtype=dtype)


def _npu(*sizes: Any, im: bool = True, gated: bool = True, needs: int = 15, sin: bool = True, **options: Any) -> None:
    from npu_kernels.backends.triton import npu

    x, weight, gate, y = _operands(*sizes, **options)
    w_im, g = weight if im else None, gate if gated else None
    npu.npu_forward(x, weight, w_im, g, EPS, sin)
    if sin:
        npu.npu_backward(y, x, weight, w_im, g, y, y, EPS, False, needs)


def _nmu(*sizes: Any, **options: Any) -> None:
    from npu_kernels.backends.triton import nmu

    x, weight, _, y = _operands(*sizes, **options)
    nmu.nmu_forward(x, weight)
    nmu.nmu_backward(y, x, weight, 3)


def _nmru(*sizes: Any, separate: bool = True, **options: Any) -> None:
    from npu_kernels.backends.triton import nmu

    x, half, _, y = _operands(*sizes, **options)
    weight = torch.cat([half, half], -1)
    nmu.nmru_forward(x, weight, EPS, True, separate)
    nmu.nmru_backward(y, x, weight, EPS, True, separate, 3)


def _nalu(*sizes: Any, bias: bool = True, needs: int = 31, **options: Any) -> None:
    from npu_kernels.backends.triton import nalu

    x, w, _, y = _operands(*sizes, **options)
    b = w[..., 0].contiguous() if bias else None
    nalu.nalu_forward(x, w, w, w, b, EPS, True)
    nalu.nalu_backward(y, x, w, w, w, b, y, y, y, EPS, needs)


def _inalu(*sizes: Any, save: bool = True, needs: int = 63, **options: Any) -> None:
    from npu_kernels.backends.triton import nalu

    x, w, _, y = _operands(*sizes, **options)
    nalu.inalu_forward(x, w, w, w, w, w, EPS, 20.0, save)
    if save:
        nalu.inalu_backward(y, x, w, w, w, w, w, y, y, y, torch.empty_like(y, dtype=torch.int32), EPS, 20.0, needs)


def _ode(
    d: int,
    h: int,
    starts: int,
    method: str = "rk4",
    save: bool = True,
    im: bool = True,
    dtype: torch.dtype = torch.float32,
) -> None:
    from npu_kernels.backends.triton import ode
    from npu_kernels.ode.reference import METHODS

    weight, gate = torch.empty([3, h, d], dtype=dtype), torch.empty([3, d], dtype=dtype)
    u0, tableau = torch.empty([3, starts, d], dtype=dtype), list(METHODS[method])
    of_model = (weight, weight if im else None, gate, weight.mT)
    path, slopes, stages = ode.ode_forward(u0, *of_model, tableau, 10, 0.1, EPS, True, True, save)
    ode.ode_backward(path, slopes, path, *of_model, stages, tableau, 0.1, EPS, True, False, 31)


Case = tuple[str, str, Callable[[], None]]  # label, float32 matmul precision, what to launch

# One shape per coarse bucket of the tables; "odd" ones have sizes without a common factor with any vector width.
SHAPES = {
    "narrow": (4096, 101, 1),
    "medium": (4096, 64, 64),
    "medium odd": (128, 100, 100),
    "large": (4096, 256, 256),
    "large odd": (4099, 257, 259),
}


# D, h and starts of time loops: a warp of models with one or some starts, and the largest that one program holds.
ODE_SIZES = ((2, 6, 3), (3, 9, 1000), (4, 20, 1), (32, 32, 5))
ODE_SIZES_DOUBLE = ((2, 6, 3), (3, 9, 1), (4, 20, 1), (16, 32, 5))


def cases(quick: bool, variants: str) -> Iterator[Case]:
    """Calls that between them reach every shipped configuration; `quick`: only the smallest and the largest layers, and
    those that take the most registers.

    `variants`: "" for all operands and gradients only, "some" or "all" for calls without some of them too. A quick run
    with variants has every kernel.
    """
    highest, double = "highest", torch.float64
    yield "small 6 -> 2", highest, lambda: _npu(100, 6, 2)
    yield "large", highest, lambda: _npu(*SHAPES["large"])
    if quick:
        yield "inalu small", highest, lambda: _inalu(100, 6, 2)
        yield "inalu medium", highest, lambda: _inalu(*SHAPES["medium"])
        yield "inalu float64", highest, lambda: _inalu(*SHAPES["large odd"], dtype=double)
        if variants:
            yield "nmu large", highest, lambda: _nmu(1000, 100, 100)
            yield "nmru large", highest, lambda: _nmru(1000, 100, 100)
            yield "nalu small", highest, lambda: _nalu(100, 6, 2)
            yield "ode", highest, lambda: _ode(3, 9, 1000)
        return
    yield "small float64", highest, lambda: _npu(100, 6, 2, dtype=double)
    for precision in ("high", "medium"):
        yield f"large {precision}", precision, lambda: _npu(*SHAPES["large"])
    for precision in ("highest", "high", "medium"):
        yield f"large odd {precision}", precision, lambda: _npu(*SHAPES["large odd"])
    for name in ("narrow", "medium", "medium odd"):
        yield name, highest, lambda name=name: _npu(*SHAPES[name])  # type: ignore[misc]
    yield "float64", highest, lambda: _npu(*SHAPES["large odd"], dtype=double)
    yield "nmu small", highest, lambda: _nmu(100, 6, 2)
    yield "nmu small float64", highest, lambda: _nmu(100, 6, 2, dtype=double)
    yield "nmu large", highest, lambda: _nmu(1000, 100, 100)
    yield "nmru small", highest, lambda: _nmru(100, 6, 2)
    yield "nmru small float64", highest, lambda: _nmru(100, 6, 2, dtype=double)
    yield "nmru large", highest, lambda: _nmru(1000, 100, 100)
    yield "nmru large, product of signs", highest, lambda: _nmru(1000, 100, 100, separate=False)
    for layer, launch in (("nalu", _nalu), ("inalu", _inalu)):
        yield f"{layer} small", highest, lambda f=launch: f(100, 6, 2)  # type: ignore[misc]
        yield f"{layer} medium odd", highest, lambda f=launch: f(*SHAPES["medium odd"])  # type: ignore[misc]
        for precision in ("highest", "high", "medium"):
            yield f"{layer} large {precision}", precision, lambda f=launch: f(*SHAPES["large"])  # type: ignore[misc]
    for name in ("medium", "narrow", "large odd"):
        yield f"inalu {name}", highest, lambda name=name: _inalu(*SHAPES[name])  # type: ignore[misc]
    yield "inalu float64", highest, lambda: _inalu(*SHAPES["large odd"], dtype=double)
    yield "inalu float64 medium", highest, lambda: _inalu(*SHAPES["medium"], dtype=double)
    for dtype, sizes in ((torch.float32, ODE_SIZES), (double, ODE_SIZES_DOUBLE)):
        for size in sizes:
            name = f"ode {size[0]} -> {size[1]}, starts {size[2]} {str(dtype).removeprefix('torch.')}"
            yield name, highest, lambda s=size, t=dtype: _ode(*s, dtype=t)  # type: ignore[misc]
            yield f"{name} checkpointed", highest, lambda s=size, t=dtype: _ode(*s, dtype=t, save=False)  # type: ignore[misc]
    if variants:
        yield "ode RealNPU, euler", highest, lambda: _ode(3, 9, 1, "euler", im=False)
        yield "ode midpoint", highest, lambda: _ode(3, 9, 1, "midpoint")
        yield "small 15 -> 15, many rows", highest, lambda: _npu(10**6, 15, 15)
        optional: dict[str, dict[str, Any]] = {
            "RealNPU": {"im": False},
            "NaiveNPU": {"gated": False},
            "inference": {"sin": False},
            "models": {"K": 3},
            "models, shared x": {"K": 3, "shared": True},
            "bfloat16": {"dtype": torch.bfloat16},
            "float16": {"dtype": torch.float16},
            "x only": {"needs": 1},
            "real weight only": {"needs": 2},
            "imaginary weight only": {"needs": 4},
            "gate only": {"needs": 8},
        }
        for label, options in optional.items():
            yield f"small {label}", highest, lambda o=options: _npu(100, 6, 2, **o)  # type: ignore[misc]
        for label in list(optional)[: None if variants == "all" else 4]:
            options = optional[label]
            yield f"large {label}", highest, lambda o=options: _npu(*SHAPES["large"], **o)  # type: ignore[misc]
        yield "nmu models, shared x", highest, lambda: _nmu(100, 6, 2, K=3, shared=True)
        yield "nmu models", highest, lambda: _nmu(100, 6, 2, K=3)
        yield "nmru models, shared x", highest, lambda: _nmru(100, 6, 2, K=3, shared=True)
        yield "nalu models, shared x", highest, lambda: _nalu(100, 6, 2, K=3, shared=True)
        yield "nalu without bias", highest, lambda: _nalu(100, 6, 2, bias=False)
        yield "inalu inference", highest, lambda: _inalu(100, 6, 2, save=False)
        yield "inalu inference float64", highest, lambda: _inalu(100, 6, 2, save=False, dtype=double)
        yield "inalu bfloat16", highest, lambda: _inalu(100, 6, 2, dtype=torch.bfloat16)
        yield "inalu weights only", highest, lambda: _inalu(100, 6, 2, needs=2 + 16)


def stored_cases(target: str) -> Iterator[Case]:
    """Calls for the measured entries of a table, which have exact sizes in their keys."""
    from npu_kernels.backends.triton import tuning

    pattern = re.compile(r"(\w+) (\w+) (\w+) b(\d+) i(\d+) o(\d+) k(\d+)")
    seen = set()
    for key in tuning.tables_in_use()[target]:
        match = pattern.fullmatch(key)
        if match:
            kernel, dtype, precision = match.group(1, 2, 3)
            b, i, o, k = map(int, match.group(4, 5, 6, 7))
            launches = {"nmu": _nmu, "npu": _npu, "nalu": _inalu}
            case = (launches[kernel.partition("_")[0]], dtype, precision, b, i, o, k)
            if case not in seen:
                seen.add(case)
                options = {"K": k if k > 1 else None, "dtype": getattr(torch, dtype)}
                mode = "highest" if precision == "any" else precision
                yield key, mode, lambda c=case, n=options: c[0](*c[3:6], **n)  # type: ignore[misc]


def compile_target(target: str, quick: bool = False, variants: str = "") -> list[dict[str, Any]]:
    """The rows of one target; see `cases`. `quick`: what is left out is launched all the same, and not compiled."""
    rows: list[dict[str, Any]] = []
    with compile_instead(target) as done:
        for label, fault in _launch(target, cases(quick, variants), stored=not quick):
            if fault is not None:
                rows.append({"target": target, "case": label, "faults": [fault]})
            for compilation in done:
                row = measure(compilation, target)
                rows.append({"case": label} | row | {"faults": faults(row)})
            done.clear()
    reached = [(row["kernel"], row["options"]) for row in rows if "kernel" in row]
    if quick:
        with compile_instead(target, compiles=False) as done:
            for label, fault in _launch(target, cases(False, variants), stored=True):
                if fault is not None:
                    rows.append({"target": target, "case": label, "faults": [fault]})
            reached = [(launch.name.removesuffix("_kernel"), launch.arguments) for launch in done]
    return rows + _not_reached(target, reached)


def _launch(target: str, chosen: Iterator[Case], stored: bool) -> Iterator[tuple[str, str | None]]:
    """Launches these and, if `stored`, the table's own: after each its label and the error that it ended with."""
    before = torch.get_float32_matmul_precision()
    for label, precision, launch in [*chosen, *(stored_cases(target) if stored else ())]:
        torch.set_float32_matmul_precision(precision)
        fault = None
        try:
            launch()
        except Exception as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            fault = f"{type(cause).__name__}: {cause}"
        finally:
            torch.set_float32_matmul_precision(before)
        yield label, fault


def _not_reached(target: str, reached: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """A fault for every shipped configuration that no call has used; `reached`: kernels and their launches' options."""
    from npu_kernels.backends.triton import tuning

    missing = []
    for key, entry in tuning.tables_in_use()[target].items():
        kernel = key.split()[0]
        # Not seen by the compiler, and what the NMU's launcher makes no wider than the layer.
        ignored = {"programs"} | ({"BLOCK_O"} if kernel.startswith("nmu") else set())
        wanted = {name: value for name, value in entry.items() if name not in ignored}
        if not any(name == kernel and wanted.items() <= options.items() for name, options in reached):
            missing.append({"target": target, "case": key, "faults": ["no call reached this configuration"]})
    return missing


# ---- the command ---------------------------------------------------------------------------------------------------

COLUMNS = ("target", "kernel", "case", "tile", "passes", "warps", "stages", "registers", "spill_bytes", "shared_bytes")


def render(rows: list[dict[str, Any]]) -> str:
    """The resource table as text."""
    lines = [[*COLUMNS, "instructions", "tensor core"]]
    for row in rows:
        tensor = " ".join(f"{name}:{count}" for name, count in row.get("tensor_core", {}).items())
        cells = [str(row.get(name, "")) for name in COLUMNS]
        lines.append(
            [*cells, str(row.get("instructions", "")), tensor + "".join(f"  FAULT {f}" for f in row["faults"])]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    return "\n".join("  ".join([*map(str.ljust, line, widths), line[-1]]).rstrip() for line in lines)


def main(arguments: list[str] | None = None) -> int:
    """Compile, print and write the table; 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aot", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", action="append", choices=TARGETS, help="repeat for several; default: all")
    parser.add_argument("--table", type=files.output, help="write the resource table here, as JSON")
    parser.add_argument(
        "--quick", action="store_true",
        help="compile the smallest and the largest NPU, some iNALUs, and every kernel for sm_90; launch all",
    )  # fmt: skip
    parser.add_argument(
        "--variants", action="store_true", help="calls without some operands or gradients: all, on every target (slow)"
    )
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    options = parser.parse_args(arguments)
    targets = options.target or TARGETS

    def variants(target: str) -> str:
        return "all" if options.variants else "some" if target == "sm_90" else ""

    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(options.jobs, len(targets)), mp_context=context) as pool:
        pending = [pool.submit(compile_target, target, options.quick, variants(target)) for target in targets]
        rows = [row for future in pending for row in future.result()]
    import triton

    print(render(rows))
    if options.table:
        table = {"triton": triton.__version__, "torch": torch.__version__, "rows": rows}
        files.write(options.table, json.dumps(table, indent=1) + "\n")
    broken = [row for row in rows if row["faults"]]
    print(f"triton {triton.__version__}: {len(rows)} kernels for {', '.join(targets)}, {len(broken)} over budget")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
