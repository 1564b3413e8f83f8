"""The work of each part's items, in a worker process: a function for each part."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.loops import loops
from benchmarks.gpu.plan import rows_of, words
from benchmarks.throughput import environment, suite, tune
from benchmarks.throughput.cases import STEP, Case, Size
from benchmarks.throughput.devices import DEVICES, Device
from benchmarks.throughput.orders import Task
from benchmarks.throughput.precompile import Pool
from npu_kernels import reference, use_backend
from npu_kernels._operators import dispatch
from npu_kernels.ode import METHODS
from npu_kernels.ode import _loop as ode_reference
from tests.support.kernels import ALL, backward, errors, forward, outputs
from tests.support.samples import RECORDS, error_bound, rms_error

Row = dict[str, Any]
Emit = Callable[[Row], None]
BENCH_SECONDS = 1.5  # of timing for all rivals of a case
TUNE_SECONDS = 10.0  # for a kernel at a size
PASSES = 25  # of which the median time counts
# Root mean square errors that are allowed whatever eager's are: of splits of float32 into fewer
# planes; in float64 the eager formula is the reference.
ALLOWED = {"high": 1e-3, "medium": 1e-1, "float64": 1e-12}
TABLE, BENCH_ROWS, TUNED_ROWS = "tables.json", "throughput.jsonl", "throughput-tuned.jsonl"


class Stage:
    """Where the items run: a GPU, or in a rehearsal the CPU with Triton's interpreter."""

    def __init__(self, out: Path, rehearsal: bool) -> None:
        self.out, self.rehearsal, self.table = out, rehearsal, out / TABLE
        self.device: Device = Rehearsal() if rehearsal else DEVICES["cuda"]
        self.limits: dict[str, environment.Limits] = {}
        self.pool: Pool | None = None


class Rehearsal(Device):
    """The CPU in place of a GPU. It captures no graphs: a captured pass is called as it is."""

    PEAK_METHOD = "none"
    product_size, copy_floats = 64, 2**16

    def capture(
        self, run: Callable[[], Any], calls_before: int = 1
    ) -> tuple[Callable[[], object], Any]:
        return run, run()

    def seconds(
        self, run: Callable[[], object], before: Callable[[], object] = lambda: None
    ) -> float:
        before()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def flush(self) -> Callable[[], object]:
        return lambda: None


def env(stage: Stage, item: str, emit: Emit) -> None:
    """Versions, the device, and why a backend does not run."""
    runs, reason = dispatch.reasons(stage.device.name)["triton"]
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0
    compiler = shutil.which("cc") or shutil.which("gcc")
    facts = environment.describe(stage.device)
    emit({"environment": facts, "free_bytes": free, "c_compiler": compiler})
    if not runs:
        raise RuntimeError(f"the Triton kernels do not run here: {reason}")


# ---- first launches ------------------------------------------------------------------------------


def smoke(stage: Stage, item: str, emit: Emit) -> None:
    """One layer's kernels: all errors, the seconds of the first call, the same bits twice."""
    (layer, text), named = words(item)[0].split(), words(item)[1]
    dtype = getattr(torch, named.get("dtype", "float32"))
    precision = named.get("precision", "highest")
    torch.set_float32_matmul_precision(precision)
    torch.manual_seed(0)  # the same numbers whatever ran before in this process
    launch = _loop if layer == "ode" else _layer
    start = time.perf_counter()
    pairs, first, second = launch(stage, layer, Size.parse(text), dtype, named)
    seconds = time.perf_counter() - start
    kind = precision if precision in ALLOWED else named.get("dtype", "")
    good = all(error <= _bound(eager, dtype, kind) for error, eager in pairs)
    same_bits = all(map(torch.equal, first, second))
    emit({
        "layer": layer, "size": text, "dtype": str(dtype).removeprefix("torch."),
        "precision": precision, "errors": [error for error, _ in pairs],
        "eager_errors": [eager for _, eager in pairs], "seconds": round(seconds, 2),
        "same_bits": same_bits, "good": good,
    })  # fmt: skip
    if not good or not same_bits:
        problem = "errors beyond the bound, or other bits at the second call"
        raise AssertionError(f"{problem}: see the row")


def _bound(eager: float, dtype: torch.dtype, kind: str) -> float:
    """The greatest error of ours beside eager's, at a precision or in a dtype."""
    return max(ALLOWED.get(kind, 0.0), error_bound(eager, dtype))


Errors = list[tuple[float, float]]  # ours, eager's


def _layer(
    stage: Stage, layer: str, size: Size, dtype: torch.dtype, named: dict[str, str]
) -> tuple[Errors, list[Tensor], list[Tensor]]:
    kernels = dispatch.triton()
    sample = RECORDS[layer].sample(
        size.rows, size.inputs, size.outputs, num_models=None if size.models == 1 else size.models,
        shared="shared" in named, dtype=dtype, device=stage.device.name,
        without=tuple(named["without"].split(",")) if "without" in named else (),
    )  # fmt: skip
    if dtype is torch.float32:
        pairs = errors(sample, kernels)
    else:
        exact = sample.map(Tensor.double)
        grad_y = torch.randn_like(forward(sample, reference)[0])
        truth = outputs(exact, reference, grad_y.double())
        results = outputs(sample, kernels, grad_y), outputs(sample, reference, grad_y)
        pairs = _errors(*results, truth)
    grad_y = torch.ones_like(forward(sample, kernels)[0])
    return pairs, outputs(sample, kernels, grad_y), outputs(sample, kernels, grad_y)


def _errors(ours: list[Tensor], eager: list[Tensor], truth: list[Tensor]) -> Errors:
    triples = zip(ours, eager, truth, strict=True)
    return [(rms_error(o, true), rms_error(e, true)) for o, e, true in triples]


def _loop(
    stage: Stage, layer: str, size: Size, dtype: torch.dtype, named: dict[str, str]
) -> tuple[Errors, list[Tensor], list[Tensor]]:
    """The time loop of NPU and NAU; the size is starts x D x h."""
    from npu_kernels import _triton as kernels

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
        path, slopes, stages = functions.ode_forward(*inputs, tableau, steps, dt, eps, *flags)
        backward = path, slopes, path, *inputs[1:], stages, tableau, dt, eps, True, False, 31
        return [path, slopes, *functions.ode_backward(*backward)]

    truth = run(ode_reference, *(operand.double() for operand in operands))
    ours, second, eager = (run(f, *operands) for f in (kernels, kernels, ode_reference))
    return _errors(ours, eager, truth), ours, second


def memcheck(stage: Stage, item: str, emit: Emit) -> None:
    """The first launches of an item in a process under compute-sanitizer; in a rehearsal alone."""
    checker = shutil.which("compute-sanitizer")
    log = stage.out / f"memcheck-{item}.txt".replace(" ", "-")
    command = [sys.executable, "-m", "benchmarks.gpu.worker", "--out", str(stage.out)]
    if stage.rehearsal:
        command.append("--rehearse")
    elif checker is None:
        emit({"skipped": "compute-sanitizer is not installed"})
        return
    else:
        command = [checker, "--error-exitcode", "9", "--log-file", str(log), *command]
    run = subprocess.run(
        command, input=json.dumps({"part": "smoke", "item": item}) + "\n", text=True,
        stdout=subprocess.PIPE, env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )  # fmt: skip
    answers = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    for row in answers:
        if "errors" in row:
            emit(row)
    end = answers[-1].get("end", "no answer") if answers else "no answer"
    if end or run.returncode:
        told = log.read_text()[-1000:] if log.exists() else ""
        raise AssertionError(
            f"{end or 'the memory checker found faults'}, {run.returncode}: {told}"
        )


# ---- tests ---------------------------------------------------------------------------------------


class Shard:
    """A pytest plugin: every n-th test, and a row for each."""

    def __init__(self, number: int, count: int, emit: Emit) -> None:
        self.number, self.count, self.emit = number, count, emit
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for n, item in enumerate(items) if n % self.count == self.number]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            seconds = round(report.duration, 2)
            row = {"test": report.nodeid, "outcome": report.outcome, "seconds": seconds}
            if report.outcome == "failed":
                self.failed.append(report.nodeid)
                row["message"] = str(report.longrepr)[-1500:]
            elif report.outcome == "skipped" and isinstance(report.longrepr, tuple):
                row["message"] = str(report.longrepr[-1])[:300]
            self.emit(row)


def tests(stage: Stage, item: str, emit: Emit) -> None:
    """A part of a file of tests/triton: all of its tests, `only` some, or those `without` some."""
    try:
        import pytest
    except ImportError:
        emit({"skipped": "pytest is not installed"})
        return
    first, named = words(item)
    name, part = first.split()
    number, count = map(int, part.split("/"))
    shard = Shard(number, count, emit)
    marks = [] if stage.rehearsal else ["-m", "gpu"]
    if named:
        marks += ["-k", named["only"] if "only" in named else f"not {named['without']}"]
    folder = Path(__file__).resolve().parents[2] / "tests" / "triton"
    flags = ["-q", "-p", "no:cacheprovider", "--no-header", *marks, str(folder / name)]
    status = pytest.main(flags, plugins=[shard])
    if shard.failed or status not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        failed = f"{len(shard.failed)} tests failed: {', '.join(shard.failed)[:500]}"
        raise AssertionError(f"{failed}; pytest ended {status}")


# ---- speed ---------------------------------------------------------------------------------------


def bench(stage: Stage, item: str, emit: Emit, tuned: bool = False) -> None:
    """A case of the throughput suite, forward + backward: rows in the suite's form, in a file."""
    text, named = words(item)
    precision = named.get("precision", "highest")
    from npu_kernels._triton import tuning

    tuning.use_tables(stage.table if tuned and stage.table.exists() else tuning.TABLES)
    torch.set_float32_matmul_precision(precision)
    if precision not in stage.limits:
        stage.limits[precision] = environment.measure_limits(stage.device)
    case, names = Case("npu", STEP, Size.parse(text)), named["rivals"].split(",")
    # A forced backend would cost a few microseconds of each call.
    with use_backend("triton") if stage.rehearsal else contextlib.nullcontext():
        rows = suite.measure(
            case, names, torch.get_num_threads(), 0.05 if stage.rehearsal else BENCH_SECONDS,
            limits=stage.limits[precision], with_memory=not stage.rehearsal,
            tell=lambda line: emit({"note": line}), device=stage.device,
        )  # fmt: skip
    common = {
        "environment": environment.describe(stage.device), "backend": "triton",
        "matmul_precision": precision, "tuned": tuned,
        "settings": {"seconds": BENCH_SECONDS, "memory": True},
    }  # fmt: skip
    for row in rows:
        emit({**row, **common, "threads": 1, "file": TUNED_ROWS if tuned else BENCH_ROWS})


def warm(stage: Stage, item: str, emit: Emit) -> None:
    """The code of a case's rivals, in the compilers' caches: nothing is measured."""
    from torch._inductor import config

    config.compile_threads = 2  # other processes compile too
    text, named = words(item)
    torch.set_float32_matmul_precision(named.get("precision", "highest"))
    case, names = Case("npu", STEP, Size.parse(text)), named["rivals"].split(",")
    with use_backend("triton") if stage.rehearsal else contextlib.nullcontext():
        suite.measure(case, names, torch.get_num_threads(), 0.01, device=stage.device)


def crossover(stage: Stage, item: str, emit: Emit) -> None:
    """A layer by the one-pass kernels and by those on planes: times, and errors beside them.

    Microseconds of a forward and a backward, alone and in a CUDA graph.
    """
    from npu_kernels._triton import npu_large, repeated, tuning

    text, named = words(item)
    size, kernels = Size.parse(text), SimpleNamespace(**repeated())
    device: Any = stage.device
    precision = named.get("precision", "highest")
    architecture = "sm_90" if stage.rehearsal else tuning.architecture_of(torch.device("cuda", 0))
    passes = 1 if stage.rehearsal else PASSES
    plans = {"one-pass": None, "planes": npu_large.plan_for(architecture, precision)}
    sample = RECORDS["npu"].sample(
        size.rows, size.inputs, size.outputs, num_models=None if size.models == 1 else size.models,
        dtype=torch.float32, device=stage.device.name,
    )  # fmt: skip
    grad_y = torch.ones_like(forward(sample, reference)[0])
    want = _pass(reference, sample.map(Tensor.double), grad_y.double())
    torch.set_float32_matmul_precision(precision)
    eager = [rms_error(*pair) for pair in zip(_pass(reference, sample, grad_y), want, strict=True)]
    bad = []
    for label, chosen in plans.items():
        if label == "planes" and chosen is None:
            emit({"skipped": f"no plan for {architecture}"})
            continue
        with npu_large.use_plan(chosen):
            run = partial(_pass, kernels, sample, grad_y)
            replay, results = device.capture(run)
            alone, graph = (
                1e6 * statistics.median(device.seconds(call) for _ in range(passes))
                for call in (run, replay)
            )
            error = [rms_error(*pair) for pair in zip(results, want, strict=True)]
        bounds = [_bound(each, torch.float32, precision) for each in eager]
        if not all(map(operator.le, error, bounds)):
            bad.append(label)
        emit({
            "size": text, "precision": precision, "kernels": label, "alone_us": round(alone, 1),
            "graph_us": round(graph, 1), "errors": error, "eager_errors": eager,
            "good": label not in bad,
        })  # fmt: skip
    if bad:
        raise AssertionError(f"errors beyond the bound, see the row: {', '.join(bad)}")


def _pass(kernels: Any, sample: Any, grad_y: Tensor) -> list[Tensor]:
    """A forward and a backward by the launchers."""
    results = forward(sample, kernels)
    return [*results, *backward(sample, kernels, grad_y, ALL, results=results)]


def tune_one(stage: Stage, item: str, emit: Emit) -> None:
    """The fastest configuration of one kernel at one size, into the table."""
    text, named = words(item)
    kernel, size, more_rows = rows_of(text)
    if stage.rehearsal:
        where, architecture = {"gpu": "none"}, "sm_90"
    else:
        where, architecture, target = tune.place()
        if stage.pool is None:
            stage.pool = Pool(max(1, (os.cpu_count() or 1) - 2), target)
    tuner = tune.Tuner(
        where, architecture, stage.table, device=stage.device.name, pool=stage.pool,
        timer=lambda run, best: tune.device_time(run, best, stage.device),
    )  # fmt: skip
    task = Task(kernel, Size.parse(size), named.get("precision", "highest"))
    row = tuner.run(task, 1 if stage.rehearsal else TUNE_SECONDS, more_rows)
    emit({**row, "told": tune.describe(row)})


DO: dict[str, Callable[[Stage, str, Emit], None]] = {
    "env": env, "smoke": smoke, "tests": tests, "memcheck": memcheck, "bench": bench,
    "warm": warm, "compile": bench, "loops": loops, "crossover": crossover, "huge": tests,
    "more": tests, "tune": tune_one,
    # With the table that the tuner has written.
    "rebench": partial(bench, tuned=True), "autotune": partial(bench, tuned=True),
}  # fmt: skip
