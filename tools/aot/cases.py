"""The compiled calls, which reach every shipped configuration, and the rows of a target."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from npu_kernels._operators.precision import float32_matmul_precision
from tools.aot import loops
from tools.aot.compiling import TARGETS, compile_instead, faults, measure

# The calls that are compiled for targets that use another's tables: large ones need the most
# registers. A quick run has them for the most common of these chips alone, and else the smallest.
FEW = ("large", "planes", "small 6 -> 2", "planes high")
QUICK = {"sm_120": ("large", "planes")}
SMALLEST = ("small 6 -> 2",)
MEASURED_ROWS = 4096  # of the calls for measured entries, which hold for any number of rows
EPS = torch.finfo(torch.float32).eps


def _operands(
    B: int, I: int, O: int, K: int | None = None, dtype: torch.dtype = torch.float32,
    shared: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """``x, weight, gate, y``; their memory is never read or written."""
    lead = [] if K is None else [K]
    x = torch.empty([B, I] if shared or K is None else [K, B, I], dtype=dtype)
    weight, gate = torch.empty([*lead, O, I], dtype=dtype), torch.empty([*lead, I], dtype=dtype)
    return x, weight, gate, torch.empty([*lead, B, O], dtype=dtype)


def _npu(
    *sizes: Any, im: bool = True, gated: bool = True, needs: int = 15, sin: bool = True,
    **options: Any,
) -> None:  # fmt: skip
    from npu_kernels._triton import npu

    x, weight, gate, y = _operands(*sizes, **options)
    w_im, g = weight if im else None, gate if gated else None
    npu.npu_forward(x, weight, w_im, g, EPS, sin)
    if sin:
        npu.npu_backward(y, x, weight, w_im, g, y, y, EPS, False, needs)


def _npu_in_one_pass(*sizes: Any, **options: Any) -> None:
    from npu_kernels._triton.npu_large import use_plan

    with use_plan(None):
        _npu(*sizes, **options)


def _nmu(*sizes: Any, **options: Any) -> None:
    from npu_kernels._triton import nmu

    x, weight, _, y = _operands(*sizes, **options)
    nmu.nmu_forward(x, weight)
    nmu.nmu_backward(y, x, weight, 3)


def _nmru(*sizes: Any, separate: bool = True, **options: Any) -> None:
    from npu_kernels._triton import nmu

    x, half, _, y = _operands(*sizes, **options)
    weight = torch.cat([half, half], -1)
    nmu.nmru_forward(x, weight, EPS, True, separate)
    nmu.nmru_backward(y, x, weight, EPS, True, separate, 3)


def _nalu(*sizes: Any, bias: bool = True, needs: int = 31, **options: Any) -> None:
    from npu_kernels._triton import nalu

    x, w, _, y = _operands(*sizes, **options)
    b = w[..., 0].contiguous() if bias else None
    nalu.nalu_forward(x, w, w, w, b, EPS, True)
    nalu.nalu_backward(y, x, w, w, w, b, y, y, y, EPS, needs)


def _inalu(*sizes: Any, save: bool = True, needs: int = 63, **options: Any) -> None:
    from npu_kernels._triton import nalu

    x, w, _, y = _operands(*sizes, **options)
    nalu.inalu_forward(x, w, w, w, w, w, EPS, 20.0, save)
    if save:
        flags = torch.empty_like(y, dtype=torch.int32)
        nalu.inalu_backward(y, x, w, w, w, w, w, y, y, y, flags, EPS, 20.0, needs)


def _ode(
    d: int, h: int, starts: int, method: str = "rk4", save: bool = True, im: bool = True,
    dtype: torch.dtype = torch.float32,
) -> None:  # fmt: skip
    from npu_kernels._triton import ode
    from npu_kernels.ode import METHODS

    weight, gate = torch.empty([3, h, d], dtype=dtype), torch.empty([3, d], dtype=dtype)
    u0, tableau = torch.empty([3, starts, d], dtype=dtype), list(METHODS[method])
    weights = (weight, weight if im else None, gate, weight.mT)
    path, du_dt, stages = ode.ode_forward(u0, *weights, tableau, 10, 0.1, EPS, True, True, save)
    ode.ode_backward(path, du_dt, path, *weights, stages, tableau, 0.1, EPS, True, False, 31)


HIGHEST = "highest"  # float32 matmul precision
Case = tuple[str, str, Callable[[], None]]  # label, float32 matmul precision, what to launch

# B, I and O for each coarse bucket of the tables; "odd" sizes are no multiples of a vector's width.
SHAPES = {
    "narrow": (4096, 101, 1),
    "medium": (4096, 64, 64),
    "medium odd": (128, 100, 100),
    "large": (4096, 256, 256),
    "large odd": (4099, 257, 259),
}

# D, h and starts of ODE solvers: a warp of models with one or more starts, and the largest.
ODE_SIZES = ((2, 6, 3), (3, 9, 1000), (4, 20, 1), (32, 32, 5))
ODE_SIZES_DOUBLE = ((2, 6, 3), (3, 9, 1), (4, 20, 1), (16, 32, 5))


def cases(quick: bool, variants: str) -> Iterator[Case]:
    """Calls that together reach every shipped configuration.

    `quick`: only the NPU with the most products and the iNALU with the most registers. `variants`:
    "" for calls with all operands and gradients, "some" or "all" for calls without some of them
    too. A quick run with variants has every kernel.
    """
    yield "large", HIGHEST, lambda: _npu_in_one_pass(*SHAPES["large"])
    if quick:
        yield "inalu float64", HIGHEST, lambda: _inalu(*SHAPES["large odd"], dtype=torch.float64)
        if variants:
            yield "small 6 -> 2", HIGHEST, lambda: _npu(100, 6, 2)
            yield "inalu medium", HIGHEST, lambda: _inalu(*SHAPES["medium"])
            yield "nmu large", HIGHEST, lambda: _nmu(1000, 100, 100)
            yield "nmru large", HIGHEST, lambda: _nmru(1000, 100, 100)
            yield "nalu small", HIGHEST, lambda: _nalu(100, 6, 2)
            yield "ode", HIGHEST, lambda: _ode(3, 9, 1000)
        return
    yield "small 6 -> 2", HIGHEST, lambda: _npu(100, 6, 2)
    yield from _layers()
    yield from _loops()
    if variants:
        yield from _variants(all_large=variants == "all")


def _layers() -> Iterator[Case]:
    yield "small float64", HIGHEST, lambda: _npu(100, 6, 2, dtype=torch.float64)
    for precision in ("high", "medium"):
        yield f"large {precision}", precision, lambda: _npu_in_one_pass(*SHAPES["large"])
    for precision in ("highest", "high", "medium"):
        yield f"large odd {precision}", precision, lambda: _npu_in_one_pass(*SHAPES["large odd"])
    for name in ("narrow", "medium", "medium odd"):
        yield name, HIGHEST, partial(_npu, *SHAPES[name])
    yield "float64", HIGHEST, lambda: _npu(*SHAPES["large odd"], dtype=torch.float64)
    yield "nmu small", HIGHEST, lambda: _nmu(100, 6, 2)
    yield "nmu small float64", HIGHEST, lambda: _nmu(100, 6, 2, dtype=torch.float64)
    yield "nmu large", HIGHEST, lambda: _nmu(1000, 100, 100)
    yield "nmru small", HIGHEST, lambda: _nmru(100, 6, 2)
    yield "nmru small float64", HIGHEST, lambda: _nmru(100, 6, 2, dtype=torch.float64)
    yield "nmru large", HIGHEST, lambda: _nmru(1000, 100, 100)
    yield "nmru large, product of signs", HIGHEST, lambda: _nmru(1000, 100, 100, separate=False)
    layers: dict[str, Callable[..., None]] = {"nalu": _nalu, "inalu": _inalu}
    for layer, launch in layers.items():
        yield f"{layer} small", HIGHEST, partial(launch, 100, 6, 2)
        yield f"{layer} medium odd", HIGHEST, partial(launch, *SHAPES["medium odd"])
        for precision in ("highest", "high", "medium"):
            yield f"{layer} large {precision}", precision, partial(launch, *SHAPES["large"])
    for name in ("medium", "narrow", "large odd"):
        yield f"inalu {name}", HIGHEST, partial(_inalu, *SHAPES[name])
    yield "inalu float64", HIGHEST, lambda: _inalu(*SHAPES["large odd"], dtype=torch.float64)
    yield "inalu float64 medium", HIGHEST, lambda: _inalu(*SHAPES["medium"], dtype=torch.float64)


def _loops() -> Iterator[Case]:
    for dtype, sizes in ((torch.float32, ODE_SIZES), (torch.float64, ODE_SIZES_DOUBLE)):
        for size in sizes:
            d, h, starts = size
            name = f"ode {d} -> {h}, starts {starts} {str(dtype).removeprefix('torch.')}"
            for label, save in ((name, True), (f"{name} checkpointed", False)):
                yield label, HIGHEST, partial(_ode, *size, dtype=dtype, save=save)


def _variants(all_large: bool) -> Iterator[Case]:
    """Calls without some operands or gradients, of large layers all or the first few."""
    yield "ode RealNPU, euler", HIGHEST, lambda: _ode(3, 9, 1, "euler", im=False)
    yield "ode midpoint", HIGHEST, lambda: _ode(3, 9, 1, "midpoint")
    yield "small 15 -> 15, many rows", HIGHEST, lambda: _npu(10**6, 15, 15)
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
        yield f"small {label}", HIGHEST, partial(_npu, 100, 6, 2, **options)
    for label in list(optional)[: None if all_large else 4]:
        options = optional[label]
        yield f"large {label}", HIGHEST, partial(_npu_in_one_pass, *SHAPES["large"], **options)
    yield "nmu models, shared x", HIGHEST, lambda: _nmu(100, 6, 2, K=3, shared=True)
    yield "nmu models", HIGHEST, lambda: _nmu(100, 6, 2, K=3)
    yield "nmru models, shared x", HIGHEST, lambda: _nmru(100, 6, 2, K=3, shared=True)
    yield "nalu models, shared x", HIGHEST, lambda: _nalu(100, 6, 2, K=3, shared=True)
    yield "nalu without bias", HIGHEST, lambda: _nalu(100, 6, 2, bias=False)
    yield "inalu inference", HIGHEST, lambda: _inalu(100, 6, 2, save=False)
    double = torch.float64
    yield "inalu inference float64", HIGHEST, lambda: _inalu(100, 6, 2, save=False, dtype=double)
    yield "inalu bfloat16", HIGHEST, lambda: _inalu(100, 6, 2, dtype=torch.bfloat16)
    yield "inalu weights only", HIGHEST, lambda: _inalu(100, 6, 2, needs=2 + 16)


def stored_cases(target: str) -> Iterator[Case]:
    """Calls for the measured entries of a table, whose keys have exact sizes."""
    from npu_kernels._triton import tuning

    pattern = re.compile(r"(\w+) (\w+) (\w+) i(\d+) o(\d+) k(\d+)")
    seen = set()
    for key in tuning.tables_in_use()[target]:
        match = pattern.fullmatch(key)
        if match:
            kernel, dtype, precision = match.group(1, 2, 3)
            i, o, k = map(int, match.group(4, 5, 6))
            launches = {"nmu": _nmu, "npu": _npu_in_one_pass, "nalu": _inalu}
            launch: Callable[..., None] = launches[kernel.partition("_")[0]]
            case = (launch, dtype, precision, i, o, k)
            if case not in seen:
                seen.add(case)
                options = {"K": k if k > 1 else None, "dtype": getattr(torch, dtype)}
                mode = "highest" if precision == "any" else precision
                yield key, mode, partial(launch, MEASURED_ROWS, i, o, **options)


def large_cases(target: str, quick: bool) -> Iterator[Case]:
    """Calls for the large kernels. `quick`: the NPU at `highest`, for targets with budgets."""
    size = (4096, 512, 512)
    if target.startswith("gfx") or (quick and target not in loops.TARGETS):
        return
    yield "planes", HIGHEST, lambda: _npu(*size)
    if quick:
        return
    yield "planes RealNPU", HIGHEST, lambda: _npu(*size, im=False)
    yield "planes high", "high", lambda: _npu(*size)
    for label, options in (
        ("NaiveNPU", {"gated": False}),
        ("inference", {"sin": False}),
        ("models, shared x", {"K": 3, "shared": True}),
        ("bfloat16", {"dtype": torch.bfloat16}),
    ):
        yield f"planes {label}", HIGHEST, partial(_npu, *size, **options)


def compile_target(target: str, quick: bool = False, variants: str = "") -> list[dict[str, Any]]:
    """The rows of a target; see `cases`. With `quick` other calls are launched but not compiled.

    Of a target that uses another's tables a few calls are compiled.
    """
    rows: list[dict[str, Any]] = []
    own = target in TARGETS
    chosen = [*cases(quick and own, variants), *large_cases(target, quick and own)]
    if not own:
        few = QUICK.get(target, SMALLEST) if quick else FEW
        chosen = [case for case in chosen if case[0] in few]
    with compile_instead(target) as done:
        for label, fault in _launch(target, chosen, stored=own and not quick):
            if fault is not None:
                rows.append({"target": target, "case": label, "faults": [fault]})
            for compilation in done:
                row = measure(compilation, target)
                rows.append({"case": label} | row | {"faults": faults(row)})
            done.clear()
    if not own:
        return rows
    loops.large_faults(rows)
    reached = [(row["kernel"], row["options"]) for row in rows if "kernel" in row]
    if quick:
        with compile_instead(target, compiles=False) as done:
            for label, fault in _launch(target, cases(False, variants), stored=True):
                if fault is not None:
                    rows.append({"target": target, "case": label, "faults": [fault]})
            reached = [(launch.name.removesuffix("_kernel"), launch.arguments) for launch in done]
    return rows + _not_reached(target, reached)


def _launch(target: str, chosen: Iterable[Case], stored: bool) -> Iterator[tuple[str, str | None]]:
    """Launch the cases and, if `stored`, the table's: yield the label and the error of each."""
    before = float32_matmul_precision()
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
    """A fault for every shipped configuration that no call used; `reached`: kernels and options."""
    from npu_kernels._triton import tuning

    missing = []
    for key, entry in tuning.tables_in_use()[target].items():
        kernel = key.split()[0]
        # The compiler does not see the first; the NMU's launcher makes the second fit the layer.
        ignored = {"programs"} | ({"BLOCK_O"} if kernel.startswith("nmu") else set())
        config = {name: value for name, value in entry.items() if name not in ignored}.items()
        if not any(name == kernel and config <= options.items() for name, options in reached):
            problem = "no call reached this configuration"
            missing.append({"target": target, "case": key, "faults": [problem]})
    return missing
