"""The throughput suite on tiny sizes, and the guard: small layers are faster than eager."""

import functools
import json
import time

import pytest
import torch

from benchmarks.throughput import adaptives, environment, rivals, runs, suite, timing
from benchmarks.throughput.cases import (
    ADAPTIVE,
    DERIVATIVES,
    FORWARD,
    ROLLOUT,
    STEP,
    Case,
    Size,
    draw,
    training_cases,
)
from tests.conftest import needs_library
from tests.support.throughput import MODELS, TINY

WITHOUT_TOOLS = [name for name in rivals.RIVALS if name not in (*rivals.COMPILED, rivals.JAX)]


pytestmark = pytest.mark.usefixtures("one_thread")  # what they run sets another number


# ---- rivals --------------------------------------------------------------------------------------


def cases_to_compare() -> list[Case]:
    layers = [layer for layer in rivals.FORMULAS if layer != "npu-nau"]
    cases = [
        Case(layer, kind, size)
        for layer in layers
        for kind in (FORWARD, STEP)
        for size in (TINY, MODELS)
    ]
    rollouts = [Case("npu-nau", ROLLOUT, size, "positive") for size in (TINY, MODELS)]
    rollouts += [Case("npu-nau", ADAPTIVE, Size(5, 3, 9, models), "positive") for models in (1, 2)]
    derivatives = [
        Case("npu", kind, size, "positive") for kind in DERIVATIVES for size in (TINY, MODELS)
    ]
    return [*cases, Case("npu", STEP, TINY, "positive"), *training_cases(), *rollouts, *derivatives]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("case", cases_to_compare(), ids=str)
def test_rivals_compute_the_same(case, monkeypatch):
    monkeypatch.setattr(runs, "RUN_STEPS", 3)
    monkeypatch.setattr(adaptives, "END", 2.0)
    operands = draw(case)
    truth = rivals.exact(case, operands)
    compared = []
    for name in WITHOUT_TOOLS:
        if rivals.not_applicable(name, case, 1) is not None:
            continue
        workload = rivals.build(name, case, operands)
        if workload.results is not None:
            bound = 1e-3 if case.kind == ADAPTIVE else 2e-5  # a tolerance, not rounding
            assert rivals.error(workload.results(), truth) < bound, name
            compared.append(name)
        workload.run()
    assert compared[:2] == [rivals.OURS, rivals.EAGER]
    if case.layer in rivals.COMPLEX_FORMULAS and case.kind not in DERIVATIVES:
        assert rivals.COMPLEX in compared


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's
@pytest.mark.parametrize("size", [TINY, MODELS], ids=str)
@pytest.mark.parametrize("rival", [rivals.HAND_WRITTEN, *rivals.ONE_GRAPH])
def test_a_backward_by_hand(rival: str, size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled without a break of the graph."""
    monkeypatch.setattr(torch.nn.Module, "compile", compile_to_graphs)
    in_one_graph = functools.partial(torch.compile, backend="aot_eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", in_one_graph)
    case = Case("npu", STEP, size)
    operands = draw(case)
    workload = rivals.build(rival, case, operands)
    assert workload.results is not None
    assert rivals.error(workload.results(), rivals.exact(case, operands)) < 2e-5
    assert not rivals.not_applicable(rival, case, 1)


def compile_to_graphs(module: torch.nn.Module, **options: object) -> None:
    torch._dynamo.reset()
    module.forward = torch.compile(  # type: ignore[method-assign]
        module.forward, backend="aot_eager", fullgraph=True
    )


# ---- rows ----------------------------------------------------------------------------------------


def test_a_case_makes_rows():
    limits = environment.Limits(product_rate=1e10, copy_rate=1e9)
    said: list[str] = []
    names = [rivals.EAGER, rivals.LINEAR, rivals.ONE_MODEL]
    rows = suite.measure(Case("npu", STEP, MODELS), names, 1, 0.01, limits=limits, tell=said.append)
    assert [row["rival"] for row in rows] == ["ours", *names]
    ours, eager, linear, _ = json.loads(json.dumps(rows))
    assert ours["ratio"] == 1
    assert ours["p20_us"] <= ours["median_us"] <= ours["p80_us"]
    assert 0 < ours["error"] < 1e-5 > eager["error"]
    assert linear["error"] is None
    assert ours["share_of_limit"] > 0
    assert "share_of_limit" not in linear
    assert "ours" in suite.show(ours)
    assert said == []


# ---- the guard -----------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize(
    "case",
    [Case("npu", FORWARD, Size(100, 6, 2)), Case("npu", STEP, Size(100, 6, 2)),
     Case("npu", STEP, Size(100, 100, 1)), Case("realnpu", STEP, Size(100, 6, 2)),
     Case("npu", STEP, Size(100, 6, 2, 20))],
    ids=str,
)  # fmt: skip
def test_small_layers_are_faster_than_eager(case, benchmark):
    """The verdict by processor time, in one thread: there is one on a busy machine too."""
    operands = draw(case)
    runs = {name: rivals.build(name, case, operands).run for name in (rivals.OURS, rivals.EAGER)}
    times = timing.interleaved(runs, 0.2, clock=time.process_time)
    ratio = timing.ratios(times[rivals.EAGER], times[rivals.OURS])
    benchmark.extra_info["eager / ours"] = ratio.median
    benchmark.pedantic(runs[rivals.OURS], rounds=5, iterations=20)
    assert ratio.median > 1.5, f"eager / ours: {ratio}"
