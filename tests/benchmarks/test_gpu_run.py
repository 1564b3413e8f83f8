"""What `make gpu` starts: all of it without a GPU, and its workers' limits and failures."""

import ast
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import crew, plan
from benchmarks.throughput.cases import Size

ROOT = Path(__file__).resolve().parents[2]
# A worker without torch: what it does is in the item's name.
WORKER = """
import json, os, sys, time
def say(**row): print(json.dumps(row), flush=True)
say(place={"gpu": os.environ.get("FAKE_GPU", "a"), "torch": "2"})
for line in sys.stdin:
    item = json.loads(line)["item"]
    if item == "hangs": time.sleep(60)
    if item == "breaks":
        say(end="the device broke", broken=True)
        time.sleep(60)
    if item == "dies": os._exit(7)
    say(rival="eager", median_us=1.0, ratio=2.0, file="bench.jsonl")
    say(end="ValueError: no" if item == "fails" and not os.environ.get("MENDED") else "")
"""


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(crew, "PROGRAM", (str(tmp_path / "worker.py"),))
    monkeypatch.setattr(crew, "SHORTEST", 0.5)

    def run(
        *items: str, jobs: int = 1, seconds: float = 20.0, item_seconds: float = 1.0
    ) -> tuple[int, int, int]:
        record = crew.Record(tmp_path / "out", tmp_path / "copy")
        with crew.Crew(record, False, said.append) as people:
            return people.run("bench", items, jobs, seconds, item_seconds)

    said: list[str] = []
    run.said = said  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_fails_hangs_or_dies_does_not_stop_the_rest(
    jobs: int, team: Any, tmp_path: Path
) -> None:
    assert team("one", "fails", "hangs", "dies", "two", jobs=jobs) == (2, 3, 0)
    outcomes = {row["item"]: row["end"] for row in rows(tmp_path / "out" / "rows.jsonl")}
    assert outcomes.pop("one") == outcomes.pop("two") == ""
    assert outcomes["fails"] == "ValueError: no"
    assert outcomes["hangs"] == "took longer than 1 s"
    assert outcomes["dies"].startswith("the process ended with status 7")
    (row, *_) = rows(tmp_path / "out" / "bench.jsonl")
    assert (row["gpu"], row["torch"], row["part"], row["rival"]) == ("a", "2", "bench", "eager")
    for name in ("rows.jsonl", "bench.jsonl"):
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_the_next_command_does_what_is_left(
    team: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed items last; nothing of another device, or of a line that a kill cut off, counts."""
    assert team("fails", "one") == (1, 1, 0)
    with open(tmp_path / "out" / "rows.jsonl", "a") as file:
        file.write('{"part": "bench", "item": "two", "en\n')
    monkeypatch.setenv("MENDED", "1")
    assert team("fails", "one", "two") == (2, 0, 0)
    order = [row["item"] for row in rows_of_ends(tmp_path)]
    assert order == ["fails", "one", "two", "fails"]
    assert team("fails", "one", "two") == (0, 0, 0)
    monkeypatch.setenv("FAKE_GPU", "b")
    assert team("one") == (1, 0, 0)


def rows_of_ends(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "out" / "rows.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}") and '"end"' in line]


def test_a_part_ends_with_its_time(team: Any) -> None:
    begin = time.monotonic()
    done, failed, waiting = team("hangs", "one", "two", seconds=2.0, item_seconds=60.0)
    assert time.monotonic() - begin < 8
    assert (done, failed, waiting) == (0, 0, 3)  # the part's end has cut the first off


def test_an_item_that_fails_twice_costs_no_more_time(team: Any, tmp_path: Path) -> None:
    """The part's end is no failure of the item that it cuts off."""
    assert team("fails", "one") == (1, 1, 0)
    assert team("fails", "one") == (0, 1, 0)
    assert team("fails", "one") == (0, 1, 0)
    assert [row["item"] for row in rows_of_ends(tmp_path)] == ["fails", "one", "fails"]
    for _ in range(3):
        assert team("hangs", seconds=1.0, item_seconds=60.0) == (0, 0, 1)
    assert [row["item"] for row in rows_of_ends(tmp_path)][3:] == ["hangs"] * 3


def test_the_next_item_has_a_worker_whose_device_works(team: Any, tmp_path: Path) -> None:
    assert team("breaks", "one", "two") == (2, 1, 0)
    assert [row["item"] for row in rows_of_ends(tmp_path)] == ["breaks", "one", "two"]


def test_another_machine_goes_on_from_the_copies(team: Any, tmp_path: Path) -> None:
    assert team("one", "fails") == (1, 1, 0)
    shutil.rmtree(tmp_path / "out")
    assert team("one", "fails", "two") == (1, 1, 0)
    for folder in ("out", "copy"):
        end_rows = [row for row in rows(tmp_path / folder / "rows.jsonl") if "end" in row]
        assert [row["item"] for row in end_rows] == ["one", "fails", "two", "fails"]


def test_rows_after_a_bad_one_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu import loops

    measured = [
        {"rival": name, "bad": bad} for name, bad in (("a", "slow"), ("b", ""), ("c", "off"))
    ]
    monkeypatch.setattr(loops, "roll", lambda *_: iter(measured))
    emitted: list[dict[str, Any]] = []
    with pytest.raises(AssertionError, match="a: slow; c: off"):
        loops.loops(None, "rollout 3x2x2", emitted.append)
    assert emitted == measured


# An item that sets the precision, and one that says which there is.
PRECISIONS = """
import sys, torch
from benchmarks.gpu import work, worker
def sets(stage, item, emit): torch.set_float32_matmul_precision("high")
def says(stage, item, emit): emit({"precision": torch.get_float32_matmul_precision()})
work.DO.update(sets=sets, says=says)
worker.main(["--out", sys.argv[1], "--rehearse"])
"""


def test_no_item_has_the_precision_of_the_item_before(tmp_path: Path) -> None:
    orders = "".join(json.dumps({"part": part, "item": ""}) + "\n" for part in ("sets", "says"))
    command = [sys.executable, "-c", PRECISIONS, str(tmp_path)]
    run = subprocess.run(command, input=orders, capture_output=True, text=True, cwd=ROOT)
    assert {"precision": "highest"} in map(json.loads, run.stdout.splitlines()), run.stderr


def test_a_worker_that_does_not_start_is_told(
    team: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "worker.py").write_text("raise ImportError('no torch here')")
    assert team("one") == (0, 1, 1)
    assert "no torch here" in (tmp_path / "out" / "log.txt").read_text()
    assert "a worker does not start: the process ended with status 1" in team.said[-1]


def test_everything_of_the_plan_can_be_read() -> None:
    """Sizes, layers, rivals and files are there; the limits fit so many commands."""
    from benchmarks.gpu.work import DO
    from benchmarks.throughput import rivals
    from tests.support.samples import RECORDS

    seconds = plan.COMMANDS * plan.COMMAND_SECONDS
    assert sum(part.seconds for part in plan.PARTS.values()) <= seconds == 5 * 380
    assert plan.PARTS.keys() == plan.REHEARSAL.keys() == DO.keys()
    for part in plan.PARTS.values():
        assert len(set(part.items)) == len(part.items)
        assert part.item_seconds <= part.seconds <= 600 - 2 * crew.SHORTEST
    for item in plan.LAUNCHES:
        (layer, size), named = plan.words(item)[0].split(), plan.words(item)[1]
        Size.parse(size)
        assert layer == "ode" or layer in RECORDS
        assert not named.keys() - {"dtype", "precision", "shared", "without"}
    assert {item.split()[0] for item in plan.LAUNCHES} == {
        "ode",
        "npu",
        "nmu",
        "nmru",
        "nalu",
        "inalu",
    }
    for item in (*plan.BENCH, *plan.AGAIN, *plan.AUTOTUNE):
        size, named = plan.words(item)
        Size.parse(size)
        assert set(named["rivals"].split(",")) <= set(rivals.RIVALS)
    for item in (*plan.PARTS["tests"].items, *plan.PARTS["huge"].items, *plan.PARTS["more"].items):
        (file, _), named = plan.words(item)[0].split(), plan.words(item)[1]
        assert not named.keys() - {"only", "without"}
    for file, _ in (*plan.FIRST_TESTS, *plan.TESTS):  # with tests that run on a GPU
        text = (ROOT / "tests" / "triton" / file).read_text()
        assert "gpu" in text or "device" in text, file


def test_right_results_come_before_times() -> None:
    """The order of the parts; two commands, in a quarter of an hour with their starts, have those
    that a change of the kernels needs."""
    first, second = ["env", "smoke", "tests", "memcheck"], ["bench", "loops", "crossover", "huge"]
    rest = ["warm", "compile", "more", "tune", "rebench", "autotune"]
    assert list(plan.PARTS) == list(plan.REHEARSED) == [*first, *second, *rest]
    for parts in (first, second):
        assert sum(plan.PARTS[name].seconds for name in parts) <= plan.COMMAND_SECONDS
    assert 2 * (plan.COMMAND_SECONDS + 60) <= 900


# GiB that a process finds free on an H100 of 80 GB.
FREE_MEMORY = 78


def test_huge_tensors_are_tested_one_test_after_the_other() -> None:
    """An item has all tests that need most of the memory; no test needs more than there is."""
    tree = ast.parse((ROOT / "tests" / "triton" / "test_gpu.py").read_text())
    needs = {
        function.name: call.args[0].value
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "_needs_memory"
        and isinstance(call.args[0], ast.Constant)
    }
    assert len(needs) == 2
    assert all(plan.HUGE in name for name in needs)
    assert all(isinstance(size, int) and size <= FREE_MEMORY for size in needs.values()), needs
    huge = plan.PARTS["huge"]
    assert huge.items == (f"test_gpu.py 0/1 only={plan.HUGE}",)
    assert huge.jobs == 1
    others = [item for part in ("tests", "more") for item in plan.PARTS[part].items]
    others = [item for item in others if item.startswith("test_gpu.py")]
    assert others
    assert all(plan.words(item)[1] == {"without": plan.HUGE} for item in others)


def test_large_layers_are_checked_before_they_are_timed() -> None:
    """The first launches are those of the kernels on planes, in each of their forms."""
    costs = pytest.importorskip("npu_kernels._triton.costs")

    def is_large(item: str) -> bool:
        size = Size.parse(item.split()[1])
        models = size.models or 1
        return item.startswith("npu ") and bool(
            costs.large_is_faster("sm_90", size.inputs, size.outputs, models)
        )

    large = [item for item in plan.LAUNCHES if is_large(item)]
    assert large == list(plan.LAUNCHES[: len(large)])
    forms = {"highest", "high", "bfloat16", "without=gate", "shared"}
    assert {[*item.split(), "highest"][2] for item in large} == forms
    assert any(Size.parse(item.split()[1]).inputs % 64 for item in large)
    assert {"test_large.py", "test_half.py"} <= {file for file, _ in plan.FIRST_TESTS}
    assert not any(is_large(f"npu {plan.rows_of(plan.words(item)[0])[1]}") for item in plan.TUNED)


# Rows where the faster kernels are not those that the model takes, with the reason.
SLOWER = {
    ("128x100x100x20", "alone"): "the model counts 4096 rows, whatever the batch: with them the "
    "planes gain, with 128 their launches cost more than the products",
    ("4096x64x64", "graph"): "the model leaves out that the one-pass kernels' few programs leave "
    "multiprocessors idle: the planes gain a twentieth",
    ("4096x256x256 high", "alone"): "the model is for highest, where the products take longer",
}


def test_the_model_takes_the_faster_kernels_of_measured_rows() -> None:
    """Measured on an H200; of times that differ by less than 5 % either may be taken."""
    costs = pytest.importorskip("npu_kernels._triton.costs")
    times: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted((ROOT / "benchmarks" / "results").glob("gpu-nvidia-h200-*.jsonl")):
        for row in rows(path):
            if row["part"] == "crossover" and "kernels" in row:
                times.setdefault(row["item"], {})[row["kernels"]] = row
    slower = set()
    for item, kernels in times.items():
        size = Size.parse(item.split()[0])
        for label in ("alone", "graph"):
            sizes = size.inputs, size.outputs, size.models or 1
            large = costs.large_is_faster("sm_90", *sizes, label == "graph")
            chosen, other = ("planes", "one-pass") if large else ("one-pass", "planes")
            if kernels[chosen][f"{label}_us"] > 1.05 * kernels[other][f"{label}_us"]:
                slower.add((item, label))
    assert len(times) >= 11
    assert slower == SLOWER.keys()


def test_rows_belong_to_the_code_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy without a repository has another fingerprint after a change in any of its folders."""
    from benchmarks.gpu import worker
    from benchmarks.throughput import environment

    files = (
        "benchmarks/gpu/work.py", "npu_kernels/_triton/npu_planes.py",
        "tests/triton/test_gpu.py", "tests/support/kernels.py",
    )  # fmt: skip
    for file in (*files, "benchmarks/throughput/environment.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    here = tmp_path / "benchmarks" / "throughput" / "environment.py"
    monkeypatch.setattr(environment, "__file__", str(here))
    before = worker._place(True)
    assert worker._place(True) == before
    (tmp_path / "benchmarks" / "notes.txt").write_text("no code")
    assert worker._place(True) == before
    places = [before]
    for name in files:
        with open(tmp_path / name, "a") as changed:
            changed.write("# mended\n")
        after = worker._place(True)
        assert after not in places, name
        places.append(after)
    record = crew.Record(tmp_path / "out")
    record.add({"part": "smoke", "item": "one", **before, "end": ""})
    assert record.attempts("smoke", before)[0] == {"one"}
    assert record.attempts("smoke", after)[0] == set()


def test_a_profiler_that_counts_nothing_gives_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.throughput.devices import Cuda

    class Profile(contextlib.nullcontext):  # type: ignore[type-arg]
        def events(self) -> list[Any]:
            return []

    monkeypatch.setattr(torch.profiler, "profile", lambda **_: Profile(Profile()))
    device = Cuda()
    monkeypatch.setattr(device, "synchronize", lambda: None)
    monkeypatch.setattr(device, "seconds", lambda run: 1e-6)
    row = device.profile(lambda: None)
    assert row == {"event_us": 1.0, "profiler": "the profiler counted no work of the device"}


def test_tuned_kernels_are_known() -> None:
    tuning = pytest.importorskip("npu_kernels._triton.tuning")
    for item in plan.TUNED:
        kernel, size, more_rows = plan.rows_of(plan.words(item)[0])
        assert kernel in tuning.KERNELS
        assert Size.parse(size).rows not in more_rows
        assert ("small" in kernel) == (
            tuning.is_small(Size.parse(size).inputs, Size.parse(size).outputs)
        )


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (
            ["smoke", "race"],
            "PART must be one of env, smoke, tests, memcheck, bench, loops, crossover, huge, warm, "
            "compile, more, tune, rebench, autotune, got race",
        ),
        (["--seconds", "0"], "--seconds: must be greater than 0, got 0"),
        (["--jobs", "0"], "--jobs: must be a whole number of at least 1, got '0'"),
    ):
        with pytest.raises(SystemExit) as stop:
            gpu.main(arguments)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


def test_rehearsal(tmp_path: Path) -> None:
    """All parts, from the script on, without a GPU: rows with errors, tests, times, a table."""
    pytest.importorskip("triton")
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(tmp_path / "copy")}
    script, out = str(ROOT / "benchmarks" / "gpu.sh"), str(tmp_path / "out")
    command = [script, "--rehearse", "--seconds", "560", "--out", out]
    command += ["--jobs", "1"]  # a worker imports for seconds
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    log = (tmp_path / "out" / "log.txt").read_text()
    assert run.returncode == 0, run.stdout + run.stderr + log[-3000:]
    results = rows(tmp_path / "out" / "rows.jsonl")
    outcomes = {(row["part"], row["item"]): row["end"] for row in results if "end" in row}
    assert outcomes == {
        (name, item): "" for name, part in plan.REHEARSAL.items() for item in part.items
    }
    assert all(row["gpu"] == "none" and row["torch"] == torch.__version__ for row in results)
    launches = [row for row in results if "errors" in row]
    compared = [row for row in launches if row["part"] == "crossover"]
    assert [row["kernels"] for row in compared] == ["one-pass", "planes"]
    assert all(row["graph_us"] > 0 and row["good"] for row in compared)
    launches = [row for row in launches if row["part"] != "crossover"]
    assert [row["part"] for row in launches] == ["smoke", "smoke", "memcheck"]
    assert all(row["good"] and row["same_bits"] and max(row["errors"]) < 1e-3 for row in launches)
    tests = {(row["part"], row["test"].rpartition("::")[2]) for row in results if "test" in row}
    assert {part for part, _ in tests} == {"tests", "huge", "more"}
    assert sum(part == "huge" for part, _ in tests) == 6
    assert all((part == "huge") == (plan.HUGE in name) for part, name in tests)
    times = rows(tmp_path / "out" / "throughput.jsonl")
    assert {row["rival"] for row in times} == {"ours", "graph", "eager", "linear"}
    assert all(row["error"] is None or row["error"] < 1e-5 for row in times)
    table = json.loads((tmp_path / "copy" / "tables.json").read_text())["sm_90"]
    assert any(key.startswith("nmu_forward ") for key in table)
