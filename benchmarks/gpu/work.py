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
from npu_kernels._triton import npu_large, tuning
from npu_kernels._triton.costs import large_is_faster
from npu_kernels.certify import Place, check_derivatives, check_values
from tests.support.kernels import ALL, backward, forward
from tests.support.samples import RECORDS, error_bound, rms_error

Row = dict[str, Any]
Emit = Callable[[Row], None]
Errors = list[tuple[float, float]]  # ours, eager's
BENCH_SECONDS = 1.5  # of timing for all rivals of a case
ROUNDS = 3  # of timing two kinds of kernels, one after the other
# Root mean square errors of splits of float32 into fewer planes, allowed whatever eager's are.
ALLOWED = {"high": 1e-3, "medium": 1e-1}
BENCH_ROWS = "throughput.jsonl"


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


class Words:
    """What an item says: "npu 5x3x2 high rivals=eager". `first`: all that has no name."""

    def __init__(self, text: str) -> None:
        words = text.split()
        self.named = dict(word.split("=") for word in words if "=" in word)
        self.precision = next((word for word in words if word in ALLOWED), "highest")
        self.first = [word for word in words if "=" not in word and word not in ALLOWED]


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


def certify(stage: Stage, item: str, emit: Emit) -> None:
    """One layer's kernels: values and derivatives, as `npu_kernels.certify` checks them."""
    place = Place("triton", stage.device.name)
    emit({"layer": item, "told": f"largest errors {check_values(item, place)}"})
    check_derivatives(item, place)


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
    with use_backend("triton") if stage.rehearsal else contextlib.nullcontext():
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
    bench(stage, item, emit, warming=True)


def compare(stage: Stage, item: str, emit: Emit) -> None:
    """A layer by the one-pass kernels and by those on planes: times of both passes, and errors.

    They are timed alone and in a CUDA graph, in several rounds. `taken` says
    whether the model of costs takes the kernels on planes.
    """
    words = Words(item)
    layer, text = words.first
    device, precision, size = stage.device, words.precision, Size.parse(text)
    sample = RECORDS[layer].sample(
        size.rows, size.inputs, size.outputs, dtype=torch.float32, device=device.name,
        num_models=None if size.models == 1 else size.models,
    )  # fmt: skip
    architecture = tuning.architecture_of(sample.x.device)
    plan = npu_large.plan_for(architecture, precision)
    if plan is None:
        emit({"skipped": f"no plan for {architecture}"})
        return
    blocks = {"one-pass": npu_large.use_plan(None), "planes": npu_large.use_plan(plan)}
    grad_y = torch.ones_like(forward(sample, reference)[0])
    want = _pass(reference, sample.map(Tensor.double), grad_y.double())
    torch.set_float32_matmul_precision(precision)
    run = partial(_pass, SimpleNamespace(**_triton.repeated()), sample, grad_y)
    pairs: dict[str, Errors] = {}
    allowed = ALLOWED.get(precision, 0.0)
    eager, times = _pass(reference, sample, grad_y), defaultdict[tuple[str, str], list[float]](list)
    for _ in range(1 if stage.rehearsal else ROUNDS):
        for kind, block in blocks.items():
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
        bounds = [max(allowed, error_bound(eager, torch.float32)) for _, eager in errors_of]
        if not all(ours <= bound for (ours, _), bound in zip(errors_of, bounds, strict=True)):
            bad.append(kind)
        micro = {
            name: round(1e6 * timing.spread(times[kind, name]).median, 1)
            for name in ("alone_us", "graph_us")
        }
        emit({
            "size": text, "precision": precision, "kernels": kind, **micro,
            "errors": [ours for ours, _ in errors_of], "taken": chosen,
            "eager_errors": [eager for _, eager in errors_of], "good": kind not in bad,
            "told": f"{kind} {micro['alone_us']} us, in a graph {micro['graph_us']} us",
        })  # fmt: skip
    if bad:
        raise AssertionError(f"errors beyond the bound, see the row: {', '.join(bad)}")


def _errors(ours: Sequence[Tensor], eager: Sequence[Tensor], truth: Sequence[Tensor]) -> Errors:
    triples = zip(ours, eager, truth, strict=True)
    return [(rms_error(o, true), rms_error(e, true)) for o, e, true in triples]


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
    "env": env, "certify": certify, "tests": tests, "warm": warm, "bench": bench,
    "compare": compare, "training": partial(loop, loops.train),
    "rollout": partial(loop, loops.roll),
}  # fmt: skip


def told(row: Row) -> str:
    """A row as a line for the screen; empty for a row that is only for the file."""
    if "median_us" in row:
        return f"{row['rival']} {row['median_us']:.1f} us, {row['ratio']:.2f} of ours"
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
