"""What `make gpu` starts: all of it without a GPU, and its workers' limits and failures."""

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
from benchmarks.throughput.cases import Size

ROOT = Path(__file__).resolve().parents[2]
Counts = tuple[int, int, int]
# A worker without torch: what it does is in the item's name.
WORKER = """
import json, os, sys, time
def say(**row): print(json.dumps(row), flush=True)
for item in map(str.strip, sys.stdin):
    if item == "hangs": time.sleep(60)
    if item == "breaks":
        say(end="the device broke", broken=True)
        time.sleep(60)
    if item == "dies": os._exit(7)
    if item == "machine": say(gpu=os.environ.get("FAKE_GPU", "a"), torch="2")
    else: say(rival="eager", median_us=1.0, ratio=2.0, file="bench.jsonl")
    say(end="ValueError: no" if item == "fails" and not os.environ.get("MENDED") else "")
"""


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ends(folder: Path) -> list[dict[str, Any]]:
    """The rows of items' ends; a line that a kill cut off is left out."""
    lines = (folder / "out" / "rows.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}") and '"end"' in line]


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(gpu, "PROGRAM", (str(tmp_path / "worker.py"),))
    monkeypatch.setattr(gpu, "SHORTEST", 0.5)

    def run(*items: str, jobs: int = 1, seconds: float = 20.0, item_seconds: float = 1.0) -> Counts:
        command = gpu.Run(tmp_path / "out", tmp_path / "copy", False, said.append)
        part = gpu.Part("", seconds, item_seconds, items, jobs)
        try:
            return command.part("bench", part, jobs, seconds)
        finally:
            command.close()

    said: list[str] = []
    run.said = said  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_fails_hangs_or_dies_does_not_stop_the_rest(
    jobs: int, team: Any, tmp_path: Path
) -> None:
    """Items take seconds, which are kept; the other folder has all files."""
    assert team("one", "fails", "hangs", "dies", "two", jobs=jobs) == (2, 3, 0)
    outcomes = {row["item"]: row["end"] for row in rows(tmp_path / "out" / "rows.jsonl")}
    assert outcomes.pop("one") == outcomes.pop("two") == ""
    assert outcomes["fails"] == "ValueError: no"
    assert outcomes["hangs"] == "took longer than 1 s"
    assert outcomes["dies"].startswith("the process ended with status 7")
    (row, *_) = rows(tmp_path / "out" / "bench.jsonl")
    assert (row["gpu"], row["torch"], row["part"], row["rival"]) == ("a", "2", "bench", "eager")
    assert {row["item"]: row["seconds"] >= 1 for row in ends(tmp_path)}["hangs"]
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
    assert [row["item"] for row in ends(tmp_path)] == ["fails", "one", "two", "fails"]
    assert team("fails", "one", "two") == (0, 0, 0)
    monkeypatch.setenv("FAKE_GPU", "b")
    assert team("one") == (1, 0, 0)


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
    assert [row["item"] for row in ends(tmp_path)] == ["fails", "one", "fails"]
    for _ in range(3):
        assert team("hangs", seconds=1.0, item_seconds=60.0) == (0, 0, 1)
    assert [row["item"] for row in ends(tmp_path)][3:] == ["hangs"] * 3


def test_the_next_item_has_a_worker_whose_device_works(team: Any, tmp_path: Path) -> None:
    assert team("breaks", "one", "two") == (2, 1, 0)
    assert [row["item"] for row in ends(tmp_path)] == ["breaks", "one", "two"]


def test_a_worker_that_does_not_start_is_told(team: Any, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("raise ImportError('no torch here')")
    assert team("one") == (0, 1, 1)
    assert "no torch here" in (tmp_path / "out" / "log.txt").read_text()
    assert "a worker does not start: the process ended with status 1" in team.said[-1]


# Items that set the precision, say which there is, and have a bad row before a good one.
ITEMS = """
import sys, torch
from benchmarks.gpu import loops, work
def sets(stage, item, emit): torch.set_float32_matmul_precision("high")
def says(stage, item, emit): emit({"precision": torch.get_float32_matmul_precision()})
def measured(size, stage): yield from ({"rival": "a", "bad": "slow"}, {"rival": "b", "bad": ""})
def bad(stage, item, emit): work.loop(measured, stage, item, emit)
work.DO.update(sets=sets, says=says, bad=bad)
work.main(["--out", sys.argv[1], "--rehearse"])
"""


def test_an_item_changes_nothing_for_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ITEMS, str(tmp_path)]
    orders = "sets\nsays\nbad 3x2x2\n"
    run = subprocess.run(command, input=orders, capture_output=True, text=True, cwd=ROOT)
    assert [json.loads(line) for line in run.stdout.splitlines()] == [
        {"end": "", "broken": False},
        {"precision": "highest"}, {"end": "", "broken": False},
        {"rival": "a", "bad": "slow"}, {"rival": "b", "bad": ""},
        {"end": "AssertionError: a: slow", "broken": False},
    ], run.stderr  # fmt: skip


# ---- the plan ------------------------------------------------------------------------------------


def items(*parts: str) -> list[str]:
    return [item for name in parts or gpu.PARTS for item in gpu.PARTS[name].items]


def test_everything_of_the_plan_can_be_read() -> None:
    """Functions, sizes, layers, rivals and files are there."""
    from benchmarks.gpu import questions, work
    from benchmarks.throughput import rivals
    from npu_kernels._triton import tuning
    from tests.support.samples import RECORDS

    assert gpu.PARTS.keys() == gpu.REHEARSED.keys()
    for part in gpu.PARTS.values():
        assert len(set(part.items)) == len(part.items)
        assert part.item_seconds <= part.seconds
    known = {
        "smoke": {"dtype", "precision", "shared", "without", "graph"}, "memcheck": set(),
        "bench": {"rivals", "table", "precision"}, "compare": {"of", "precision"},
        "warm": {"rivals", "precision"}, "tests": {"only", "without"},
        "training": {"optimizer"}, "rollout": set(), "tune": {"precision"}, "tiles": {"precision"},
    }  # fmt: skip
    for item in items():
        kind, _, rest = item.partition(" ")
        assert kind in work.DO
        words = work.Words(rest)
        if kind == "decide":
            assert rest in questions.QUESTIONS
        elif kind != "env":
            assert words.named.keys() <= known[kind], item
        if kind in ("smoke", "memcheck", "bench", "warm", "compare", "tiles"):
            *_, layer, size = words.first
            Size.parse(size)
            assert layer == "ode" or layer in RECORDS
            assert set(words.named.get("rivals", "ours").split(",")) <= set(rivals.RIVALS)
        elif kind == "tests":
            text = (ROOT / "tests" / "triton" / words.first[0]).read_text()
            assert "gpu" in text or "device" in text, item
        elif kind == "tune":
            kernel, size, more_rows = work.rows_of(" ".join(words.first))
            sizes = Size.parse(size)
            assert kernel in tuning.KERNELS
            assert sizes.rows not in more_rows
            assert ("small" in kernel) == tuning.is_small(sizes.inputs, sizes.outputs)
    layers = {item.split()[1] for item in items("smoke")}
    assert layers == {"ode", "npu", "nmu", "nmru", "nalu", "inalu"}


# Rows where the faster kernels are not those that the model takes, with the reason.
SLOWER = {
    ("128x100x100x20", "highest", "alone"): "the model counts 4096 rows, whatever the batch: with "
    "them the planes gain, with 128 their launches cost more than the products",
    ("4096x64x64", "highest", "graph"): "the model leaves out that the one-pass kernels' few "
    "programs leave multiprocessors idle: the planes gain a twentieth",
    ("4096x256x256", "high", "alone"): "the model is for highest, where the products take longer",
}


def test_the_model_takes_the_faster_kernels_of_measured_rows() -> None:
    """Measured on an H200; of times that differ by less than 5 % either may be taken."""
    costs = pytest.importorskip("npu_kernels._triton.costs")
    times: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for path in sorted((ROOT / "benchmarks" / "results").glob("gpu-nvidia-h200-*.jsonl")):
        for row in rows(path):
            if row["part"] == "crossover" and "kernels" in row:
                times.setdefault((row["size"], row["precision"]), {})[row["kernels"]] = row
    slower = set()
    for item, kernels in times.items():
        size = Size.parse(item[0])
        for label in ("alone", "graph"):
            sizes = size.inputs, size.outputs, size.models or 1
            large = costs.large_is_faster("sm_90", *sizes, label == "graph")
            chosen, other = ("planes", "one-pass") if large else ("one-pass", "planes")
            if kernels[chosen][f"{label}_us"] > 1.05 * kernels[other][f"{label}_us"]:
                slower.add((*item, label))
    assert len(times) >= 11
    assert slower == SLOWER.keys()


def test_rows_belong_to_the_code_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy without a repository has another fingerprint after a change in any of its folders."""
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
    before = environment.sources()
    (tmp_path / "benchmarks" / "notes.txt").write_text("no code")
    assert environment.sources() == before
    prints = [before]
    for name in files:
        with open(tmp_path / name, "a") as changed:
            changed.write("# mended\n")
        prints.append(environment.sources())
    assert len(set(prints)) == len(prints)
    run = gpu.Run(tmp_path / "out", None, False, lambda line: None)
    run.add({"part": "smoke", "item": "one", "sources": before, "end": ""})
    assert run.attempts({"sources": before})[0] == {"one"}
    assert run.attempts({"sources": prints[-1]})[0] == set()


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["smoke", "race"], f"PART must be one of {', '.join(gpu.PARTS)}, got race"),
        (["--seconds", "0"], "--seconds: must be greater than 0, got 0"),
        (["--jobs", "0"], "--jobs: must be a whole number of at least 1, got '0'"),
    ):
        with pytest.raises(SystemExit) as stop:
            gpu.main(arguments)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err


NEEDED = (
    "benchmarks/gpu", "benchmarks/throughput", "npu_kernels", "tests/support", "tests/training",
    "tests/triton", "tools",
)  # fmt: skip


def test_rehearsal(tmp_path: Path) -> None:
    """All parts, from the script on, in a copy without a repository or anything built."""
    pytest.importorskip("triton")
    copy, out, ignored = tmp_path / "copy", tmp_path / "out", shutil.ignore_patterns
    for folder in NEEDED:
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored("lib", "__pycache__"))
    for pattern in ("*.toml", "benchmarks/*.py", "benchmarks/*.sh", "tests/*.py", "tests/*.txt"):
        for path in ROOT.glob(pattern):
            shutil.copy(path, copy / path.relative_to(ROOT))
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(tmp_path / "files")}
    # A worker imports for seconds.
    command = [copy / "benchmarks" / "gpu.sh", "--rehearse", "--seconds", "560", "--jobs", "1"]
    command += ["--out", out]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr + (out / "log.txt").read_text()[-3000:]
    results = rows(out / "rows.jsonl")
    planned = {(name, item): "" for name, part in gpu.REHEARSED.items() for item in part}
    assert {(r["part"], r["item"]): r["end"] for r in results if "end" in r} == planned
    assert all(row["gpu"] == "none" and row["torch"] == torch.__version__ for row in results)
    assert all(row["right"] for row in results if row["part"] == "decide" and "right" in row)
    launches = [row for row in results if "errors" in row]
    compared = [row for row in launches if "kernels" in row]
    assert [row["kernels"] for row in compared] == ["launches", "tape", "one-pass", "planes"]
    assert all(row["graph_us"] > 0 and row["good"] for row in compared)
    launches = [row for row in launches if "kernels" not in row]
    assert [row["part"] for row in launches] == ["smoke"] * 3 + ["check"]
    assert all(row["good"] and row["same_bits"] and max(row["errors"]) < 1e-3 for row in launches)
    tests = {(row["part"], row["test"].rpartition("::")[2]) for row in results if "test" in row}
    assert {part for part, _ in tests} == {"check", "huge", "more"}
    assert sum(part == "huge" for part, _ in tests) == 6
    assert all((part == "huge") == (gpu.HUGE in name) for part, name in tests)
    times = rows(out / "throughput.jsonl")
    assert {row["rival"] for row in times} == {"ours", "graph", "eager", "linear"}
    assert all(row["error"] is None or row["error"] < 1e-5 for row in times)
    table = json.loads((tmp_path / "files" / "tables.json").read_text())["sm_90"]
    assert any(key.startswith("nmu_forward ") for key in table)
