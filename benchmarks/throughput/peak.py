"""The processor's peak: multiply-adds in registers, timed in the rounds of a case's rivals.

They run in torch's own threads. Torch's threads spin for a while after an operation, and would
share the cores with any others. peak.cpp is compiled for the instruction set in use by the compiler
that ``CXX`` names, else c++. Without one, rows have no share of the peak.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from npu_kernels._operators import cpu

SOURCE = Path(__file__).with_name("peak.cpp")
VECTORS, TILES = "multiply-adds", "tiles"
# Half a millisecond on a processor of 2.5 GHz with two units.
ROUNDS = {VECTORS: 100_000, TILES: 20_000}
_AVX512 = ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma"]
FLAGS = {  # as in CMakeLists.txt
    "baseline": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": _AVX512,
    "avx512_bf16": _AVX512,
    "amx": [*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
}


@dataclass(frozen=True)
class Peak:
    """Work in registers: `run` makes `multiply_adds` of them, in all of torch's threads."""

    run: Callable[[], object]
    multiply_adds: int


@functools.cache
def _library(isa: str) -> ctypes.CDLL:
    """Raises OSError or CalledProcessError where it cannot be compiled."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "peak.so")
        headers = SOURCE.parents[2] / "csrc"
        flags = ["-std=c++17", "-O3", "-ffp-contract=off", "-shared", "-fPIC", "-w"]
        flags += [*FLAGS[isa], f"-DNPU_ISA={isa}", f"-I{headers}", f"-I{headers / 'core'}"]
        command = [
            *shlex.split(os.environ.get("CXX") or "c++"),
            *flags,
            str(SOURCE),
            "-o",
            str(target),
        ]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return ctypes.CDLL(str(target))


def peaks(threads: int) -> dict[str, Peak]:
    """The peaks of float32 in vector registers and, with "amx", of bfloat16 in tiles, by name.

    `threads` work at once: torch must have as many when they run. Raises OSError or
    CalledProcessError without a compiler for that instruction set, RuntimeError without our
    library.
    """
    isa = cpu.isa()
    library = _library(isa)
    functions = {VECTORS: (library.vector_multiply_adds, library.vector_tasks)}
    if isa == "amx":
        functions[TILES] = library.tile_multiply_adds, library.tile_tasks
    return {name: _peak(*pair, ROUNDS[name], threads) for name, pair in functions.items()}


def _peak(once: Any, tasks: Any, rounds: int, threads: int) -> Peak:
    once.argtypes, once.restype = [ctypes.c_int64], ctypes.c_int64
    argument = ctypes.c_int64(rounds)

    def run() -> None:
        if _in_threads()(0, threads, 1, tasks, ctypes.byref(argument)):
            raise RuntimeError("torch_parallel_for failed")

    return Peak(run, threads * once(rounds))


@functools.cache
def _in_threads() -> Any:
    """torch's parallel_for(begin, end, grain size, function, its argument); not 0 if it failed."""
    name = "libtorch_cpu.dylib" if sys.platform == "darwin" else "libtorch_cpu.so"
    function = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name)).torch_parallel_for
    function.argtypes = [*[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 2]
    return function
