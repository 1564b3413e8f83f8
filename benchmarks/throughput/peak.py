"""The processor's peak: multiply-adds in registers alone, timed in the same rounds as the rivals of a case.

peak.cpp is compiled for the instruction set in use by the compiler that ``CXX`` names, else c++. Without one, rows have
no share of the peak.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from npu_kernels.backends import cpu

SOURCE = Path(__file__).with_name("peak.cpp")
VECTORS, TILES = "multiply-adds", "tiles"
ROUNDS = {VECTORS: 100_000, TILES: 20_000}  # half a millisecond on a processor of 2.5 GHz with two units
_AVX512 = ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma"]
FLAGS = {  # as in CMakeLists.txt
    "baseline": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": _AVX512,
    "avx512_bf16": _AVX512,
    "amx": [*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
    "neon": ["-DNPU_USE_NEON"],
}


@dataclass(frozen=True)
class Peak:
    """Work in registers alone: `run` makes `multiply_adds` of them, in all threads together."""

    run: Callable[[], object]
    multiply_adds: int


@functools.cache
def _library(isa: str) -> ctypes.CDLL:
    """Raises OSError or CalledProcessError where it cannot be compiled."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "peak.so")
        command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O3", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
        command += [*FLAGS[isa], f"-DNPU_ISA={isa}", f"-I{SOURCE.parents[2] / 'csrc'}", str(SOURCE), "-o", str(target)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return ctypes.CDLL(str(target))


def peaks(threads: int) -> dict[str, Peak]:
    """By name: float32 in vector registers, and where the instruction set in use is "amx" bfloat16 in tiles.

    `threads` work at once. Raises OSError or CalledProcessError without a compiler for that instruction set, and
    RuntimeError without our library.
    """
    isa = cpu.isa()
    library = _library(isa)
    kernels = {VECTORS: library.vector_multiply_adds}
    if isa == "amx":
        kernels[TILES] = library.tile_multiply_adds
    helpers = ThreadPoolExecutor(max(1, threads - 1))
    return {name: _peak(kernel, ROUNDS[name], threads, helpers) for name, kernel in kernels.items()}


def _peak(kernel: Callable[[int], int], rounds: int, threads: int, helpers: ThreadPoolExecutor) -> Peak:
    kernel.argtypes, kernel.restype = [ctypes.c_int64], ctypes.c_int64  # type: ignore[attr-defined]

    def run() -> int:  # ctypes lets other threads run meanwhile
        others = [helpers.submit(kernel, rounds) for _ in range(threads - 1)]
        return kernel(rounds) + sum(other.result() for other in others)

    return Peak(run, run())
