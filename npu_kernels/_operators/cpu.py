"""The C++ library with the CPU kernels, and its instruction sets.

``NPU_KERNELS_CPU_ISA`` forces an instruction set lower than the best one of the processor:
"baseline", "avx2", "avx512", "avx512_bf16" (float32 products of bfloat16 where the float32 matmul
precision "medium" allows them, otherwise avx512) or "amx" (the NPU family in float32 by tiles of
bfloat16, otherwise avx512); on arm64 "baseline", which is NEON.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import torch

LIBRARY = Path(__file__).resolve().parent.parent / "lib" / "libnpu_kernels_cpu.so"
_TREE = LIBRARY.parents[2]
ISA_VARIABLE = "NPU_KERNELS_CPU_ISA"

_symbols: ctypes.CDLL | None = None
_reason = "not loaded yet"


def direct_url() -> dict[str, Any]:
    """Return what an installer wrote of the folder, archive or repository that it was given.

    Empty where the package came from an index, or is not installed. The standard: PEP 610.
    """
    try:
        text = importlib.metadata.distribution("npu_kernels").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return {}
    record: dict[str, Any] = json.loads(text or "{}")
    return record


def _source() -> str:
    """Return what pip is to be told to install, so that it builds what is installed here."""
    if (_TREE / "setup.py").exists():
        return f"-e {shlex.quote(str(_TREE))}"  # into the tree: it is what Python imports
    record = direct_url()
    url = record.get("url", "")
    path = Path(unquote(urlsplit(url).path))
    if "vcs_info" in record:
        return shlex.quote(f"{record['vcs_info']['vcs']}+{url}@{record['vcs_info']['commit_id']}")
    if "dir_info" in record and (path / "setup.py").exists():
        return shlex.quote(str(path))
    exists = path.exists() or not url.startswith("file:")
    if "archive_info" in record and path.suffix != ".whl" and exists:
        return shlex.quote(url)
    return "--no-binary npu_kernels npu_kernels"  # the source distribution of the index


def build_command() -> str:
    """Return the command that builds the library and the fast path for the installed torch."""
    install = "pip install"
    if importlib.util.find_spec("pip") is None:  # an environment of uv, whose builds see no torch
        folder = shlex.quote(str(Path(torch.__file__).parent))
        install = f"NPU_KERNELS_TORCH={folder} uv pip install"
    # pip would keep a package of the same version, and take its own copy of an earlier build.
    return f"{install} --force-reinstall --no-deps --no-cache-dir {_source()}"


def load() -> None:
    """Load the library and register its kernels; does nothing when it is loaded.

    A missing library, or one that this torch cannot load, is no error here: `available` gives the
    reason. Raises ValueError when ``NPU_KERNELS_CPU_ISA`` names an instruction set that this
    processor does not have.
    """
    global _symbols, _reason
    if _symbols is not None:
        return
    if not LIBRARY.exists():
        _reason = f"the C++ library is not built (build it with `{build_command()}`)"
        return
    try:
        torch.ops.load_library(str(LIBRARY))
        symbols = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        _reason = f"the C++ library does not load with torch {torch.__version__}: {error}"
        return
    symbols.npu_kernels_isa.restype = ctypes.c_char_p
    symbols.npu_kernels_supported_isas.restype = ctypes.c_char_p
    symbols.npu_kernels_set_isa.argtypes = [ctypes.c_char_p]
    if not symbols.npu_kernels_supported_isas():
        needed = symbols.npu_kernels_isa().decode()
        _reason = (
            f"the C++ library was built for processors with {needed}, which this one lacks (for "
            f"all processors: `{build_command()}`)"
        )
        return
    _symbols, _reason = symbols, ""
    forced_isa = os.environ.get(ISA_VARIABLE)
    if forced_isa:
        try:
            set_isa(forced_isa)
        except ValueError as error:
            raise ValueError(f"{ISA_VARIABLE}={forced_isa}: {error}") from None


def available(device_type: str = "cpu") -> tuple[bool, str]:
    """Whether the kernels run on tensors of that device, and if not, why."""
    if device_type != "cpu":
        return False, "runs on cpu tensors only"
    return _symbols is not None, _reason


def _loaded() -> ctypes.CDLL:
    if _symbols is None:
        raise RuntimeError(f"npu_kernels: the cpu backend cannot run: {_reason}")
    return _symbols


def isa() -> str:
    """Return the name of the instruction set in use; RuntimeError without the library."""
    name: str = _loaded().npu_kernels_isa().decode()
    return name


def supported_isas() -> list[str]:
    """Return this processor's instruction sets that the library has kernels for, lowest first."""
    names: str = _loaded().npu_kernels_supported_isas().decode()
    return names.split(",")


def set_isa(name: str) -> None:
    """Use the kernels of another instruction set, process-wide; ValueError if there are none."""
    if _loaded().npu_kernels_set_isa(name.encode()) != 0:
        rule = f"this processor has {supported_isas()}"
        raise ValueError(f"unknown or unsupported instruction set {name!r}, {rule}")


def plan_fields() -> str:
    """Return the fields of the plan that the operator `train` reads, one record a line.

    An older library has none: "".
    """
    function = getattr(_loaded(), "npu_kernels_plan_fields", None)
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    names: str = function().decode()
    return names
