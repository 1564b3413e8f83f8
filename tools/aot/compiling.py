"""Triton's launches as compilations under a stub driver, their resources and budgets."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tools.aot.loops import loops

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
# Chips that use another's tables and plans; the tools of Triton before 3.9 do not know them all.
TABLES_OF = {"sm_103": "sm_100", "sm_110": "sm_100", "sm_120": "sm_80", "sm_121": "sm_80"}
# Shared memory in bytes. The sm_80 table also serves 8.6, 8.9 and 12.x, which have less than 8.0.
SHARED_MEMORY = {"sm_80": 101376, "sm_90": 232448, "sm_100": 232448, "gfx942": 65536}
# In backward_w of large layers two registers, with the tiles that fill sm_80's registers.
SPILL_BYTES = {"sm_120": 8, "sm_121": 8}
REGISTERS = {"gfx942": 512}  # of others 255
TENSOR_CORE = {
    "sm_80": ("HMMA",),
    "sm_90": ("HGMMA", "HMMA"),
    "sm_100": ("UTCHMMA", "HMMA"),
    "gfx942": ("v_mfma_f32",),
}  # instructions
MIN_INSTRUCTIONS = 100
BLOCKS = ("BLOCK_B", "BLOCK_O", "BLOCK_I", "BLOCK_H", "BLOCK_D")
OPTIONS = (*BLOCKS, "PASSES", "ROWS", "PRODUCTS", "DEPTH", "num_warps", "num_stages", "maxnreg")

SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9_]+)")


# ---- the stub ----------------------------------------------------------------------------------


class StubDriver:
    """The driver of an absent device."""

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


class Compilation(NamedTuple):
    """A launch that was compiled instead."""

    name: str  # of the kernel
    arguments: dict[str, Any]  # and options
    kernel: Any  # as Triton compiled it; None where launches are only listed
    log: str  # of the assembler
    seconds: float  # to compile it


@contextlib.contextmanager
def compile_instead(target: str, compiles: bool = True) -> Iterator[list[Compilation]]:
    """Compile every kernel launch in the block for the target and append it to the list.

    Without `compiles` launches are only listed. For a process that launches nothing else: the stub
    driver stays.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    from npu_kernels._triton import tuning

    if triton.knobs.runtime.interpret:
        problem = "kernels cannot be compiled in a process with TRITON_INTERPRET=1"
        raise RuntimeError(f"tools.aot: {problem}")
    amd = target.startswith("gfx")
    gpu = GPUTarget("hip", target, 64) if amd else GPUTarget("cuda", int(target[3:]), 32)
    done: list[Compilation] = []
    compiled: dict[int, Any] = {}  # kept: the id of a kernel that is gone may be another one's
    run, log_option = JITFunction.run, triton.knobs.nvidia.dump_ptxas_log
    functions: list[JITFunction] = []

    def compile_launch(
        self: JITFunction, *args: Any, grid: Any, warmup: bool = False, **options: Any
    ) -> Any:
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
        seconds = time.perf_counter() - started
        if id(kernel) not in compiled:  # else a repeated launch
            compiled[id(kernel)] = kernel
            done.append(Compilation(self.__name__, arguments, kernel, log.getvalue(), seconds))
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


# ---- resources of compiled kernels -------------------------------------------------------------


def _tool(name: str) -> str:
    import triton

    return getattr(triton.knobs.nvidia, name).path


def _nvidia(kernel: Any, log: str) -> dict[str, Any]:
    spills, used = SPILLS.search(log), USED.search(log)
    if spills is None or used is None:
        raise RuntimeError(f"tools.aot: the assembler's report was not understood: {log!r}")
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
        "loops": loops(text),
    }


def _amd(kernel: Any) -> dict[str, Any]:
    text = kernel.asm["amdgcn"]

    def number(key: str) -> int:
        match = re.search(rf"\.{key}:\s*(\d+)", text)
        return int(match[1]) if match else 0

    return {
        "registers": number("vgpr_count"),
        # Scalar registers spill into lanes of vector registers.
        "spill_bytes": 4 * number("vgpr_spill_count"),
        "instructions": len(re.findall(r"^\t[a-z]+_[a-z]", text, re.MULTILINE)),
        "stores": len(re.findall(r"\b(?:global|buffer)_store", text)),
        "tensor_core": dict(collections.Counter(re.findall(r"v_mfma_[a-z]+\d+", text))),
    }


def measure(compilation: Compilation, target: str) -> dict[str, Any]:
    """A row of the resource table: the kernel, its options and its resources."""
    kernel, arguments = compilation.kernel, compilation.arguments
    blocks = [str(arguments[name]) for name in BLOCKS if name in arguments]
    row = {
        "target": target,
        "kernel": compilation.name.removesuffix("_kernel"),
        "options": {name: arguments[name] for name in OPTIONS if name in arguments},
        "tile": "x".join(blocks),
        "passes": arguments.get("PASSES", arguments.get("PRODUCTS")),
        "warps": kernel.metadata.num_warps,
        "stages": kernel.metadata.num_stages,
        "shared_bytes": kernel.metadata.shared,
    }
    row |= _amd(kernel) if target.startswith("gfx") else _nvidia(kernel, compilation.log)
    return row | {"seconds": round(compilation.seconds, 2)}


def faults(row: dict[str, Any]) -> list[str]:
    """Every budget that a row exceeds."""
    target, exceeded = row["target"], []
    of_table = TABLES_OF.get(target, target)
    registers, shared = REGISTERS.get(target, 255), SHARED_MEMORY[of_table]
    if row["spill_bytes"] > SPILL_BYTES.get(target, 0):
        exceeded.append(f"spills {row['spill_bytes']} bytes")
    if not 0 < row["registers"] <= registers:
        exceeded.append(f"{row['registers']} registers, limit {registers}")
    if row["shared_bytes"] > shared:
        exceeded.append(f"{row['shared_bytes']} bytes of shared memory, limit {shared}")
    if row["instructions"] < MIN_INSTRUCTIONS or not row["stores"]:
        exceeded.append(f"empty: {row['instructions']} instructions, {row['stores']} stores")
    tensor_core = any(name.startswith(TENSOR_CORE[of_table]) for name in row["tensor_core"])
    if row["passes"] and not tensor_core:
        exceeded.append("no tensor-core instruction")
    return exceeded
