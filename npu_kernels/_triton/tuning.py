"""The tile sizes, warps, stages and precision scheme of a launch.

They are read from tables: no call of a layer measures anything. A table maps ``kernel dtype
precision bucket`` to a configuration:

- kernel: a name in :data:`KERNELS`
- dtype: float64, or float32, whose entries float16 and bfloat16 use where they have none
- precision: "highest", "high" or "medium" (`npu_kernels._operators.precision`), or ``any``
- bucket: ``small``, ``narrow``, ``medium`` or ``large`` (:func:`bucket`), the last two with ``odd``
  where I or O is no multiple of 16 (these tiles cannot be loaded in vectors and take more
  registers); or, for measured entries, exact sizes rounded up to powers of two: ``i256 o256 k1``

The number of rows is not in the bucket: a last batch with fewer rows launches the same kernels,
compiles nothing and rounds in the same way.

The most specific entry is used: exact before coarse, ``odd`` before not, a precision before
``any``. ``tables.json`` next to this file has one table per architecture; others use the nearest
one. To measure: :func:`candidates` lists configurations worth timing, :class:`use_config` makes
launches use one, :func:`load_table` and :func:`save_table` read and write tables,
:func:`use_tables` makes a process use another file.

A configuration has the block sizes ``BLOCK_B, BLOCK_O, BLOCK_I``, ``PASSES`` (scheme of the
products, `device_math`), ``num_warps``, ``num_stages``; for kernels that split rows ``programs``,
about how many programs to start; and, where NVIDIA's assembler would rather spill than take another
register, ``maxnreg``, the number of registers that it may take.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget

from npu_kernels._common.checks import check_choice
from npu_kernels._jobs import files
from npu_kernels._operators.precision import float32_matmul_precision

_NPU = ("npu_forward", "npu_backward_x", "npu_backward_w")
_NALU = ("nalu_forward", "nalu_backward_x", "nalu_backward_w")
_SMALL = ("npu_small_forward", "npu_small_backward")
KERNELS = (*_NPU, *_SMALL, "nmu_forward", "nmu_backward", *_NALU)
PRODUCTS = (*_NPU, *_NALU)  # of matrices: these follow the float32 matmul precision
TABLES = Path(__file__).with_name("tables.json")

# First and last compute capability (times 10) of a table. 12.x has 8.9's memory and instructions.
NVIDIA = ((100, 119, "sm_100"), (90, 99, "sm_90"), (80, 999, "sm_80"))
AMD = "gfx942"
SMALL = 16  # layers with fewer inputs and outputs than this run on the vector units

# Sums of partial results: strided rows times a block of columns.
REDUCTION = {"ROWS": 16, "BLOCK": 64, "num_warps": 4, "enable_fp_fusion": True}


class Config(NamedTuple):
    """The configuration of a launch."""

    options: dict[str, Any]  # of the kernel
    programs: int  # about how many to start where rows are split


def is_small(in_features: int, out_features: int) -> bool:
    """Return whether the layer is too small for matrix units."""
    return in_features < SMALL and out_features < SMALL


def bucket(in_features: int, out_features: int) -> str:
    """The coarse shape bucket of a layer."""
    features = min(in_features, out_features)
    if is_small(in_features, out_features):
        return "small"
    if features < 32:
        return "narrow"
    return "medium" if features < 128 else "large"


def exact_bucket(in_features: int, out_features: int, models: int) -> str:
    """The bucket of measured entries: every size rounded up to a power of two."""
    i, o, k = map(triton.next_power_of_2, (in_features, out_features, models))
    return f"i{i} o{o} k{k}"


def exact_key(kernel: str, dtype: torch.dtype, precision: str, sizes: tuple[int, int, int]) -> str:
    """The key of a measured entry; sizes are inputs, outputs, models.

    Kernels that are not made of float32 products do not depend on the precision.
    """
    mode = precision if kernel in PRODUCTS and dtype is not torch.float64 else "any"
    return f"{kernel} {str(dtype).removeprefix('torch.')} {mode} {exact_bucket(*sizes)}"


def architecture(target: GPUTarget) -> str:
    """The name of the table for a compilation target."""
    if target.backend == "hip":
        return AMD
    capability = int(target.arch)
    for low, high, name in NVIDIA:
        if low <= capability <= high:
            return name
    problem = f"no configurations for compute capability {capability / 10}, the minimum is 8.0"
    raise RuntimeError(f"npu_kernels: {problem}")


@functools.cache
def architecture_of(device: torch.device) -> str:
    """The name of the table for a device, whichever device is the current one."""
    if triton.knobs.runtime.interpret:
        return "sm_90"
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        return architecture(triton.runtime.driver.active.get_current_target())


def max_registers(device: torch.device) -> dict[str, int]:
    """The option that allows all registers: without it NVIDIA's assembler prefers to spill."""
    return {} if architecture_of(device) == AMD else {"maxnreg": 255}


def _problem(key: str, entry: object) -> str | None:
    """Return what is wrong with an entry of a table: the rule and what is there."""
    if not isinstance(entry, dict) or any(type(value) is not int for value in entry.values()):
        return f"it must be an object of integers, got {json.dumps(entry)}"
    names = list(next(candidates(key.split()[0], torch.float32, "highest", "large")))
    if not entry.keys() >= set(names):
        return f"it must have {', '.join(names)}, got {json.dumps(entry)}"
    return None


def load_table(path: Path | str = TABLES) -> dict[str, dict[str, dict[str, int]]]:
    """Read ``{architecture: {"kernel dtype precision bucket": configuration}}``.

    A file of another form is a ValueError; entries of unknown kernels are not read.
    """
    tables: dict[str, dict[str, dict[str, int]]] = json.loads(Path(path).read_text())
    where = f"npu_kernels: {path}"
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise ValueError(f"{where} must be an object of tables, one for each architecture")
    for arch, table in tables.items():
        for key, entry in table.items():
            problem = _problem(key, entry) if key.partition(" ")[0] in KERNELS else None
            if problem is not None:
                raise ValueError(f"{where}: {arch}: {key}: {problem}")
    return tables


def save_table(tables: dict[str, dict[str, dict[str, int]]], path: Path | str = TABLES) -> None:
    """Write tables so that a change of one entry is a change of one line."""
    blocks = []
    for arch, table in sorted(tables.items()):
        rows = ",\n".join(f"    {json.dumps(k)}: {json.dumps(table[k])}" for k in sorted(table))
        blocks.append(f"  {json.dumps(arch)}: {{\n{rows}\n  }}")
    files.write(Path(path), "{\n" + ",\n".join(blocks) + "\n}\n")
    forget()


def generation() -> tuple[int, int]:
    """A value that changes when a call may take other kernels or configurations, for `tape`."""
    return _generation, SMALL


def changed() -> None:
    """Note that a call may take other kernels or configurations than before."""
    global _generation
    _generation += 1
    _find.cache_clear()


def forget() -> None:
    """Forget the tables and devices, which are then read again."""
    tables_in_use.cache_clear()
    architecture_of.cache_clear()
    changed()


_path = TABLES
_generation = 0


def use_tables(path: Path | str = TABLES) -> None:
    """Make the launches of this process read their configurations from this file."""
    global _path
    load_table(path)  # an unreadable file is an error here, and not at the next launch
    _path = Path(path)
    forget()


@functools.cache
def tables_in_use() -> dict[str, dict[str, dict[str, int]]]:
    """The shipped tables, or those of :func:`use_tables`."""
    return load_table(_path)


_overrides: dict[str, dict[str, int]] = {}


class use_config:
    """Make every launch of a kernel in the block use this configuration: for timing and tests."""

    def __init__(self, kernel: str, config: dict[str, int]) -> None:
        check_choice("use_config", "kernel", kernel, KERNELS)
        self.kernel, self.config = kernel, config

    def __enter__(self) -> None:
        self.outer = _overrides.get(self.kernel)
        _overrides[self.kernel] = self.config
        changed()

    def __exit__(self, *error: object) -> None:
        _overrides.pop(self.kernel)
        if self.outer is not None:
            _overrides[self.kernel] = self.outer
        changed()


def overridden(kernels: Iterable[str]) -> bool:
    """Return whether one of these kernels has a configuration of :class:`use_config`."""
    return not _overrides.keys().isdisjoint(kernels)


def _split_config(entry: dict[str, int]) -> Config:
    options: dict[str, Any] = {name: value for name, value in entry.items() if name != "programs"}
    # Named, because its default changes between versions of Triton.
    return Config(options | {"enable_fp_fusion": True}, entry.get("programs", 0))


@functools.lru_cache(maxsize=4096)
def _find(
    kernel: str, device: torch.device, dtype: torch.dtype, precision: str, i: int, o: int, k: int
) -> Config:
    if kernel in _overrides:
        return _split_config(_overrides[kernel])
    table = tables_in_use().get(architecture_of(device), {})
    name = str(dtype).removeprefix("torch.")
    coarse = bucket(i, o)
    shapes = (exact_bucket(i, o, k), *((f"{coarse} odd",) if i % 16 or o % 16 else ()), coarse)
    dtypes = (name,) if name in ("float32", "float64") else (name, "float32")
    for shape, stored, mode in itertools.product(shapes, dtypes, (precision, "any")):
        entry = table.get(f"{kernel} {stored} {mode} {shape}")
        if entry is not None:
            return _split_config(entry)
    raise RuntimeError(
        f"npu_kernels: {_path} has no configuration for {kernel} {name} {precision} {coarse} "
        f"on {architecture_of(device)}"
    )


def lookup(kernel: str, x: torch.Tensor, i: int, o: int, k: int) -> Config:
    """The configuration of a launch on the device of x."""
    return _find(kernel, x.device, x.dtype, float32_matmul_precision(), i, o, k)


def candidates(
    kernel: str, dtype: torch.dtype, precision: str, shape_bucket: str
) -> Iterator[dict[str, int]]:
    """Configurations worth timing; those that spill or do not fit raise or lose.

    At ``highest`` only schemes as accurate as float32 are offered, at ``high`` also two planes, at
    ``medium`` two planes or one.
    """
    if kernel in PRODUCTS:
        double = dtype is torch.float64
        passes = {"highest": (0, 6), "high": (0, 6, 3), "medium": (3, 1)}
        rows = (32, 64) if double else (32, 64, 128)
        cols = (16, 32) if double or shape_bucket in ("small", "narrow") else (16, 32, 64, 128)
        right = (8, *cols) if double else cols  # matrix units of float64 are 8 columns wide
        choices: dict[str, tuple[int, ...]] = {
            "BLOCK_B": rows,
            "BLOCK_O": right if kernel.endswith("_forward") else cols,
            "BLOCK_I": cols if kernel.endswith("_forward") else right,
            "PASSES": (0,) if double else passes[precision],
            "num_warps": (4, 8),
            "num_stages": (1, 2, 3),
        }
        if kernel.endswith("_backward_w"):
            choices |= {"BLOCK_B": (16, *rows), "programs": (132, 264, 528)}
    elif kernel.startswith("npu_small"):
        choices = {"BLOCK_B": (32, 64, 128, 256), "num_warps": (1, 2, 4, 8)}
        if kernel == "npu_small_backward":
            choices |= {"programs": (528, 1056, 2112)}
    else:
        warps = (1, 2, 4, 8)
        choices = {"BLOCK_B": (16, 32, 64, 128), "BLOCK_O": (4, 16, 32, 64), "num_warps": warps}
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))
