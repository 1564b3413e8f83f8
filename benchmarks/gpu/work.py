"""The items of `benchmarks.gpu`, one after the other in a process, with their rows in a folder.

An item has a row at its begin and one at its end, ``{"end": reason}``, the reason empty if it did
not fail. A process whose device no longer works ends after that row, and one whose item takes too
long at once.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import os
import shutil
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor

import npu_kernels
from benchmarks.gpu import loops
from benchmarks.gpu.__main__ import MACHINE, ROWS
from benchmarks.throughput import environment, suite, timing
from benchmarks.throughput.cases import STEP, Case, Size
from benchmarks.throughput.devices import DEVICES, Device
from npu_kernels import _triton, reference, use_backend
from npu_kernels._jobs import files
from npu_kernels._operators import dispatch
from npu_kernels._triton import npu_large, npu_planes, tuning
from npu_kernels._triton.costs import large_is_faster
from npu_kernels.ode import METHODS
from npu_kernels.ode import _loop as ode_reference
from tests.support.kernels import ALL, backward, errors, forward, outputs
from tests.support.samples import RECORDS, error_bound, rms_error

Row = dict[str, Any]
Emit = Callable[[Row], None]
Errors = list[tuple[float, float]]  # ours, eager's
BENCH_SECONDS = 1.5  # of timing for all rivals of a case
ROUNDS = 3  # of timing two kinds of kernels, one after the other
# Root mean square errors that are allowed whatever eager's are: of splits of float32 into fewer
# planes; in float64 the eager formula is the reference.
ALLOWED = {"high": 1e-3, "medium": 1e-1, "float64": 1e-12}
BENCH_ROWS = "throughput.jsonl"
# Words of an item, and what they are.
KINDS = {
    **dict.fromkeys(("high", "medium"), "precision"),
    **dict.fromkeys(("float64", "float16", "bfloat16"), "dtype"),
    "shared": "shared", "graph": "graph",
}  # fmt: skip


class Rehearsal(Device):
    """The CPU in place of a GPU. It captures no graphs: a captured pass is called as it is."""

    PEAK_METHOD = "none"
    product_size, copy_floats = 64, 2**16

    def capture(self, run: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        return run, run()

    def seconds(self, run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start


class Stage:
    """Where the items run: a GPU, or in a rehearsal the CPU with Triton's interpreter."""

    def __init__(self, out: Path, rehearsal: bool) -> None:
        self.out, self.rehearsal = out, rehearsal
        self.device: Any = Rehearsal() if rehearsal else DEVICES["cuda"]
        self.limits: dict[str, environment.Limits] = {}

    def kernels(self) -> contextlib.AbstractContextManager[object]:
        """The kernels for layers. On a GPU they are the first choice, which costs nothing."""
        return use_backend("triton") if self.rehearsal else contextlib.nullcontext()


class Words:
    """What an item says: "npu 5x3x2 high without=gate". `first`: all that has no name."""

    def __init__(self, text: str) -> None:
        self.named: dict[str, str] = {}
        self.first: list[str] = []
        for word in text.split():
            name, equals, value = word.partition("=")
            if equals:
                self.named[name] = value
            elif word in KINDS:
                self.named[KINDS[word]] = word
            else:
                self.first.append(word)
        self.precision = self.named.get("precision", "highest")

    def sample(self, stage: Stage, dtype: torch.dtype = torch.float32) -> Any:
        """The sample of a layer and a size."""
        layer, size = self.first[0], Size.parse(self.first[1])
        return RECORDS[layer].sample(
            size.rows, size.inputs, size.outputs, dtype=dtype, device=stage.device.name,
            num_models=None if size.models == 1 else size.models, shared="shared" in self.named,
            without=tuple(self.named["without"].split(",")) if "without" in self.named else (),
        )  # fmt: skip


def machine(stage: Stage) -> Row:
    """The facts of every row: the device and the versions that results depend on."""
    gpu = "none" if stage.rehearsal else torch.cuda.get_device_name()
    versions = {"torch": torch, "triton": triton, "npu_kernels": npu_kernels}
    numbers = {name: package.__version__ for name, package in versions.items()}
    return {"gpu": gpu, **numbers, "sources": environment.sources()}


def env(stage: Stage, item: str, emit: Emit) -> None:
    """Versions and the device, or why the kernels do not run; the facts of every row in a file."""
    runs, reason = dispatch.reasons(stage.device.name)["triton"]
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    compiler = shutil.which("cc") or shutil.which("gcc")
    facts = environment.describe(stage.device)
    emit({"environment": facts, "free_bytes": free, "c_compiler": compiler})
    if not runs:
        raise RuntimeError(f"the Triton kernels do not run here: {reason}")
    files.write(stage.out / MACHINE, json.dumps(machine(stage)))


# ---- first launches ------------------------------------------------------------------------------


def smoke(stage: Stage, item: str, emit: Emit) -> None:
    """One layer's kernels: all errors, the seconds of the first call, the same bits twice."""
    words = Words(item)
    layer, size = words.first
    dtype = getattr(torch, words.named.get("dtype", "float32"))
    torch.set_float32_matmul_precision(words.precision)
    torch.manual_seed(0)  # the same numbers whatever ran before in this process
    start = time.perf_counter()
    with _triton.for_graph() if "graph" in words.named else contextlib.nullcontext():
        if layer == "ode":
            pairs, first, second = _time_loop(stage, Size.parse(size), dtype)
        else:
            pairs, first, second = _layer(words.sample(stage, dtype))
    seconds = time.perf_counter() - start
    kind = words.precision if words.precision in ALLOWED else words.named.get("dtype", "")
    good = all(error <= _bound(eager, dtype, kind) for error, eager in pairs)
    same_bits = all(map(torch.equal, first, second))
    emit({
        "layer": layer, "size": size, "dtype": str(dtype).removeprefix("torch."),
        "precision": words.precision, "errors": [error for error, _ in pairs],
        "eager_errors": [eager for _, eager in pairs], "seconds": round(seconds, 2),
        "same_bits": same_bits, "good": good,
    })  # fmt: skip
    if not good or not same_bits:
        problem = "errors beyond the bound, or other bits at the second call"
        raise AssertionError(f"{problem}: see the row")


def _bound(eager: float, dtype: torch.dtype, kind: str) -> float:
    """The greatest error of ours beside eager's, at a precision or in a dtype."""
    return max(ALLOWED.get(kind, 0.0), error_bound(eager, dtype))


def _layer(sample: Any) -> tuple[Errors, list[Tensor], list[Tensor]]:
    """Errors of a layer's kernels, and their results of two calls."""
    kernels = SimpleNamespace(**_triton.launchers())
    if sample.x.dtype is torch.float32:
        pairs = errors(sample, kernels)
    else:
        grad_y = torch.randn_like(forward(sample, reference)[0])
        truth = outputs(sample.map(Tensor.double), reference, grad_y.double())
        results = outputs(sample, kernels, grad_y), outputs(sample, reference, grad_y)
        pairs = _errors(*results, truth)
    grad_y = torch.ones_like(forward(sample, kernels)[0])
    return pairs, outputs(sample, kernels, grad_y), outputs(sample, kernels, grad_y)


def _errors(ours: Sequence[Tensor], eager: Sequence[Tensor], truth: Sequence[Tensor]) -> Errors:
    triples = zip(ours, eager, truth, strict=True)
    return [(rms_error(o, true), rms_error(e, true)) for o, e, true in triples]


def _time_loop(
    stage: Stage, size: Size, dtype: torch.dtype
) -> tuple[Errors, list[Tensor], list[Tensor]]:
    """Errors of the ODE solver of NPU and NAU, and results of two; the size is starts x D x h."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return (0.4 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 0.2).to(dtype)

    starts, d, h = size.rows, size.inputs, size.outputs
    shapes = (1, h, d), (1, h, d), (1, d), (1, d, h)
    u0, weight_re, weight_im, gate, weight = draw(1, starts, d) + 1, *(draw(*s) for s in shapes)
    operands = [t.to(stage.device.name) for t in (u0, weight_re, weight_im, gate.abs(), weight)]
    tableau, steps, dt, eps = list(METHODS["rk4"]), 5, 0.1, 2.0**-23

    def run(functions: Any, *inputs: Tensor) -> list[Tensor]:
        flags = True, True, True
        path, du_dt, stages = functions.ode_forward(*inputs, tableau, steps, dt, eps, *flags)
        backward = path, du_dt, path, *inputs[1:], stages, tableau, dt, eps, True, False, 31
        return [path, du_dt, *functions.ode_backward(*backward)]

    truth = run(ode_reference, *(operand.double() for operand in operands))
    kernels = SimpleNamespace(**_triton.launchers())
    ours, second, eager = (run(f, *operands) for f in (kernels, kernels, ode_reference))
    return _errors(ours, eager, truth), ours, second


# ---- tests ---------------------------------------------------------------------------------------


class Shard:
    """A pytest plugin: every n-th test, how they end, and which fail."""

    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count
        self.outcomes, self.failed = Counter[str](), list[str]()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for n, item in enumerate(items) if n % self.count == self.number]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
            self.failed += [report.nodeid] if report.outcome == "failed" else []


def tests(stage: Stage, item: str, emit: Emit) -> None:
    """A part of a file of tests/triton: all of its tests, `only` some, or those `without` some."""
    try:
        import pytest
    except ImportError:
        emit({"skipped": "pytest is not installed"})
        return
    words = Words(item)
    name, part = words.first
    number, count = map(int, part.split("/"))
    shard = Shard(number, count)
    marks = [] if stage.rehearsal else ["-m", "gpu"]
    if words.named:
        named = words.named
        marks += ["-k", named["only"] if "only" in named else f"not {named['without']}"]
    folder = Path(__file__).resolve().parents[2] / "tests" / "triton"
    off = ("cacheprovider", "faulthandler")  # the latter would end the item's limit
    flags = ["-q", "--no-header", *(word for plugin in off for word in ("-p", f"no:{plugin}"))]
    with contextlib.redirect_stdout(sys.stderr):
        status = pytest.main([*flags, *marks, str(folder / name)], plugins=[shard])
    text = ", ".join(f"{count} {outcome}" for outcome, count in shard.outcomes.items())
    emit({"tests": shard.outcomes, "told": text})
    if shard.failed or status not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        failed = f"{len(shard.failed)} tests failed: {', '.join(shard.failed)[:500]}"
        raise AssertionError(f"{failed}; pytest ended {status}")


# ---- speed ---------------------------------------------------------------------------------------


def bench(stage: Stage, item: str, emit: Emit, warming: bool = False) -> None:
    """A case of the throughput suite, forward + backward: rows in the suite's form, in a file.

    warming: nothing is measured, but the code of the rivals is then in the compilers' caches.
    """
    words = Words(item)
    layer, size = words.first
    torch.set_float32_matmul_precision(words.precision)
    if not warming and words.precision not in stage.limits:
        stage.limits[words.precision] = environment.measure_limits(stage.device)
    with stage.kernels():
        rows = suite.measure(
            Case(layer, STEP, Size.parse(size)), words.named["rivals"].split(","),
            torch.get_num_threads(), 0.05 if stage.rehearsal or warming else BENCH_SECONDS,
            limits=stage.limits.get(words.precision), device=stage.device,
            with_memory=not (stage.rehearsal or warming), tell=lambda line: emit({"note": line}),
        )  # fmt: skip
    common = {
        "environment": environment.describe(stage.device), "backend": "triton",
        "matmul_precision": words.precision,
        "settings": {"seconds": BENCH_SECONDS, "memory": True},
    }  # fmt: skip
    for row in [] if warming else rows:
        emit({**row, **common, "threads": 1, "file": BENCH_ROWS})


def warm(stage: Stage, item: str, emit: Emit) -> None:
    """The code of a case's rivals, in the compilers' caches."""
    from torch._inductor import config

    config.compile_threads = 2  # other processes compile too
    kind, _, rest = item.partition(" ")
    if kind == "tiles":
        tiles(stage, rest, emit, warming=True)
    else:
        bench(stage, item, emit, warming=True)


def compare(stage: Stage, item: str, emit: Emit) -> None:
    """A layer by two kinds of kernels: microseconds of a forward and a backward, and their errors.

    of=planes: the fused kernels, and those on planes. of=tape: each launch by Triton, and
    repeated by the tape. Both are timed alone and in a CUDA graph, in several rounds. `taken` says
    whether the model of costs takes the kernels on planes.
    """
    words = Words(item)
    device, precision, sample = stage.device, words.precision, words.sample(stage)
    size, architecture = Size.parse(words.first[1]), tuning.architecture_of(sample.x.device)
    kernels = {"launches": _triton.launchers(), "tape": _triton.repeated()}
    blocks: dict[str, Any] = dict.fromkeys(kernels, contextlib.nullcontext())
    if words.named["of"] == "planes":
        plans = {"one-pass": None, "planes": npu_large.plan_for(architecture, precision)}
        blocks = {kind: npu_large.use_plan(plan) for kind, plan in plans.items()}
        kernels = dict.fromkeys(plans, kernels["tape"])
        if plans["planes"] is None:
            emit({"skipped": f"no plan for {architecture}"})
            return
    grad_y = torch.ones_like(forward(sample, reference)[0])
    want = _pass(reference, sample.map(Tensor.double), grad_y.double())
    torch.set_float32_matmul_precision(precision)
    pairs: dict[str, Errors] = {}
    eager, times = _pass(reference, sample, grad_y), defaultdict[tuple[str, str], list[float]](list)
    for _ in range(1 if stage.rehearsal else ROUNDS):
        for kind, block in blocks.items():
            run = partial(_pass, SimpleNamespace(**kernels[kind]), sample, grad_y)
            with block:
                replay, results = device.capture(run)
                replay()
                pairs[kind] = _errors(results, eager, want)
                for name, values in _timed(stage, {"alone_us": run, "graph_us": replay}).items():
                    times[kind, name] += values
    sizes = architecture, size.inputs, size.outputs, size.models
    chosen = {"alone": large_is_faster(*sizes), "graph": large_is_faster(*sizes, True)}
    bad = []
    for kind, errors_of in pairs.items():
        if not all(ours <= _bound(eager, torch.float32, precision) for ours, eager in errors_of):
            bad.append(kind)
        micro = {
            name: round(1e6 * timing.spread(times[kind, name]).median, 1)
            for name in ("alone_us", "graph_us")
        }
        emit({
            "size": words.first[1], "precision": precision, "kernels": kind, **micro,
            "errors": [ours for ours, _ in errors_of], "taken": chosen,
            "eager_errors": [eager for _, eager in errors_of], "good": kind not in bad,
            "told": f"{kind} {micro['alone_us']} us, in a graph {micro['graph_us']} us",
        })  # fmt: skip
    if bad:
        raise AssertionError(f"errors beyond the bound, see the row: {', '.join(bad)}")


TILE = npu_planes.TILE
# Other tiles of the kernels on planes: a plan's, or those that a name of `npu_planes` has.
Tiles, WeightTiles = npu_large.Tiles, npu_planes.WeightTiles
TILES: dict[str, tuple[tuple[str, Any], ...]] = {
    "highest": (
        ("FORWARD_WEIGHTS", WeightTiles(16, 128, 4)), ("FORWARD_WEIGHTS", WeightTiles(8, 128, 8)),
        ("FORWARD_WEIGHTS", WeightTiles(4, 128, 4)), ("BACKWARD_WEIGHTS", WeightTiles(16, 128, 8)),
        ("BACKWARD_WEIGHTS", WeightTiles(32, 64, 4)), ("BACKWARD_WEIGHTS", WeightTiles(16, 64, 4)),
        ("OPTIONS", npu_planes.OPTIONS | {"num_warps": 8}),
        ("forward", Tiles(64, 128, 3)), ("forward", Tiles(64, 64, 4)),
        ("backward_x", Tiles(64, 64, 2)), ("backward_x", Tiles(64, 32, 4)),
        ("backward_w", Tiles(64, 128, 3)), ("backward_w", Tiles(64, 64, 4)),
    ),
    "high": (
        ("forward", Tiles(TILE, 128, 3)), ("forward", Tiles(64, 64, 6)),
        ("backward_x", Tiles(TILE, 64, 4)), ("backward_x", Tiles(TILE, 128, 3)),
        ("backward_x", Tiles(64, 128, 2)), ("backward_w", Tiles(TILE, 64, 6)),
        ("backward_w", Tiles(64, 128, 3)),
    ),
}  # fmt: skip


def tiles(stage: Stage, item: str, emit: Emit, warming: bool = False) -> None:
    """A layer on planes by the shipped tiles, and by each of `TILES`: microseconds in a graph.

    warming: every kernel is compiled, nothing is measured.
    """
    words = Words(item)
    sample, precision = words.sample(stage), words.precision
    plan = npu_large.plan_for(tuning.architecture_of(sample.x.device), precision)
    if plan is None:
        emit({"skipped": "no plan for this device"})
        return
    torch.set_float32_matmul_precision(precision)
    grad_y = torch.ones_like(forward(sample, reference)[0])
    run = partial(_pass, SimpleNamespace(**_triton.launchers()), sample, grad_y)
    graphs: dict[str, Callable[[], object]] = {}
    results: dict[str, list[Tensor]] = {}
    for name, choice in [("shipped", None), *TILES[precision]][: 2 if stage.rehearsal else None]:
        key = name if choice is None else f"{name} {tuple(choice)}"
        if isinstance(choice, dict):
            key = f"{name} {choice['num_warps']}"
        in_plan = name in plan._fields
        kernels = npu_large.use_plan(plan._replace(**{name: choice}) if in_plan else plan)
        shipped = getattr(npu_planes, name, None)
        try:
            if shipped is not None:
                setattr(npu_planes, name, choice)
            with kernels:
                if warming:
                    run()
                else:
                    graphs[key], results[key] = stage.device.capture(run)
        except Exception as error:  # tiles that this chip or compiler cannot have
            emit({"tiles": key, "note": f"{type(error).__name__}: {error}"[:300]})
        finally:
            if shipped is not None:
                setattr(npu_planes, name, shipped)
    if warming:
        return
    for replay in graphs.values():
        replay()
    times = _timed(stage, graphs)
    for key, values in times.items():
        ratio = timing.ratios(values, times["shipped"])
        pairs = zip(results[key], results["shipped"], strict=True)
        emit({
            "size": words.first[1], "precision": precision, "tiles": key,
            "median_us": round(1e6 * timing.spread(values).median, 2), "ratio": ratio.median,
            "ratio_p20": ratio.p20, "ratio_p80": ratio.p80, "rival": key,
            "difference": max(rms_error(a, b) for a, b in pairs),
        })  # fmt: skip


def _timed(stage: Stage, runs: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each, in turns; of one call in a rehearsal."""
    if stage.rehearsal:
        return {name: [stage.device.seconds(run)] for name, run in runs.items()}
    return timing.interleaved(runs, BENCH_SECONDS / ROUNDS, finish=stage.device.synchronize)


def _pass(kernels: Any, sample: Any, grad_y: Tensor) -> list[Tensor]:
    """A forward and a backward by the launchers."""
    results = forward(sample, kernels)
    return [*results, *backward(sample, kernels, grad_y, ALL, results=results)]


def loop(measure: Callable[..., Iterator[Row]], stage: Stage, item: str, emit: Emit) -> None:
    """A training or a rollout: a row for each rival, also after one that is bad."""
    words, bad = Words(item), []
    for row in measure(Size.parse(words.first[0]), stage, **words.named):
        emit(row)
        if row["bad"]:
            bad.append(f"{row['rival']}: {row['bad']}")
    if bad:
        raise AssertionError("; ".join(bad))


# ---- the process ---------------------------------------------------------------------------------

DO: dict[str, Callable[[Stage, str, Emit], None]] = {
    "env": env, "smoke": smoke, "tests": tests, "warm": warm, "bench": bench, "compare": compare,
    "tiles": tiles,
    "training": partial(loop, loops.train), "rollout": partial(loop, loops.roll),
}  # fmt: skip


def told(row: Row) -> str:
    """A row as a line for the screen; empty for a row that is only for the file."""
    if "median_us" in row:
        return f"{row['rival']} {row['median_us']:.1f} us, {row['ratio']:.2f} of ours"
    if "errors" in row:
        ours, eager = (max(row[name], default=0) for name in ("errors", "eager_errors"))
        return f"error {ours:.1e}, eager's {eager:.1e}"
    if "environment" in row:
        facts = ((key, value) for key, value in row["environment"].items() if value is not None)
        return ", ".join(f"{key} {value}" for key, value in facts)
    return str(row.get("told") or row.get("note") or row.get("skipped") or "")


def _settle() -> str:
    """Free an item's memory; return why the device no longer works in this process, or ""."""
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
    """Do the items; return the exit status: 3 if the device broke."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.work")
    parser.add_argument("items", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", required=True)
    parser.add_argument("--seconds", type=float, required=True, help="for an item at most")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args(argv)
    environment.end_with_parent()
    stage = Stage(options.out, options.rehearse)
    common = {"part": options.part, **machine(stage)}
    for item in options.items:

        def emit(row: Row, item: str = item) -> None:
            if text := told(row):
                print(f"{item}: {text}", flush=True)
            with open(stage.out / row.pop("file", ROWS), "a") as file:
                file.write(json.dumps({"item": item, **common, **row}) + "\n")

        word, _, rest = item.partition(" ")
        reason, begin = "", time.monotonic()
        emit({"begin": True})
        torch.set_float32_matmul_precision("highest")  # whatever the last item has set
        faulthandler.dump_traceback_later(options.seconds, exit=True)
        try:
            DO[word](stage, rest, emit)
        except Exception as error:  # whatever it is, the next item comes
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"[:1000]
        broken, seconds = _settle(), round(time.monotonic() - begin, 2)
        faulthandler.cancel_dump_traceback_later()
        reason = reason or (f"the device broke: {broken}" if broken else "")
        told_end = f"FAILED: {reason}" if reason else "done"
        emit({"end": reason, "seconds": seconds, "told": f"{told_end} in {seconds:.1f} s"})
        if broken:
            os._exit(3)  # what is left to do on the device would hang or fail
    return 0


if __name__ == "__main__":
    sys.exit(main())
