"""What `make gpu` starts: all of it without a GPU, and its processes' limits and failures."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.throughput.cases import Size

ROOT = Path(__file__).resolve().parents[2]
Counts = tuple[int, int, int]
# A process without torch: what it does is in the item's name.
WORKER = """
import json, os, pathlib, sys, time
words = sys.argv[1:]
out = pathlib.Path(words[words.index("--out") + 1])
seconds = float(words[words.index("--seconds") + 1])
def say(file="rows.jsonl", **row):
    with open(out / file, "a") as rows: rows.write(json.dumps({**row, "gpu": "a"}) + "\\n")
for item in words[words.index("--seconds") + 2:]:
    say(item=item, begin=True)
    if item == "hangs":
        time.sleep(seconds)
        os._exit(1)
    if item == "dies": os._exit(7)
    if item == "env": (out / "machine.json").write_text(json.dumps({"gpu": "a"}))
    say(file="bench.jsonl", rival="eager")
    say(item=item, end="ValueError: no" if item == "fails" and not os.environ.get("MENDED") else "")
"""


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ends(folder: Path) -> dict[str, list[str]]:
    """The reasons of each item's ends, one after the other; a line that a kill cut off is left out."""
    lines = (folder / "out" / "rows.jsonl").read_text().splitlines()
    ended: dict[str, list[str]] = {}
    for row in (json.loads(line) for line in lines if line.endswith("}") and '"end"' in line):
        ended.setdefault(row["item"], []).append(row["end"])
    return ended


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(gpu, "PROGRAM", (str(tmp_path / "worker.py"),))
    monkeypatch.setattr(gpu, "SHORTEST", 0.5)

    def run(*items: str, jobs: int = 1, seconds: float = 20.0, item_seconds: float = 1.0) -> Counts:
        part = gpu.Part("", seconds, item_seconds, items, jobs)
        return gpu.Run(tmp_path / "out", False).part("bench", part, jobs, seconds)

    return run


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_fails_hangs_or_dies_does_not_stop_the_rest(
    jobs: int, team: Any, tmp_path: Path
) -> None:
    assert team("one", "fails", "hangs", "dies", "two", jobs=jobs) == (2, 3, 0)
    outcomes = ends(tmp_path)
    assert outcomes.pop("one") == outcomes.pop("two") == [""]
    assert outcomes.pop("fails") == ["ValueError: no"]
    assert set(outcomes) == {"hangs", "dies"}
    assert all("its process died: see log.txt" in end for (end,) in outcomes.values())


def test_the_next_command_does_what_is_left(
    team: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a line that a kill cut off counts; code that is kept elsewhere is made again."""
    assert team("fails", "one", "warm a") == (2, 1, 0)
    with open(tmp_path / "out" / "rows.jsonl", "a") as file:
        file.write('{"part": "bench", "item": "two", "en\n')
    monkeypatch.setenv("MENDED", "1")
    assert team("fails", "one", "two", "warm a") == (3, 0, 0)
    assert ends(tmp_path)["fails"] == ["ValueError: no", ""]
    assert team("fails", "one", "two") == (0, 0, 0)


def test_rows_of_another_device_do_not_count(team: Any, tmp_path: Path) -> None:
    assert team("one") == (1, 0, 0)
    run = gpu.Run(tmp_path / "out", False)
    assert run.begin()
    assert run.machine == {"gpu": "a"}
    assert [row["item"] for row in run.rows() if "end" in row] == ["one", "env"]
    run.machine = {"gpu": "b"}
    assert run.rows() == []


# ---- the plan ------------------------------------------------------------------------------------


def items(*parts: str) -> list[str]:
    return [item for name in parts or gpu.PARTS for item in gpu.PARTS[name].items]


def test_everything_of_the_plan_can_be_read() -> None:
    """Functions, sizes, layers, rivals and files are there."""
    from benchmarks.gpu import work
    from benchmarks.throughput import rivals
    from tests.support.samples import RECORDS

    assert gpu.PARTS.keys() == gpu.REHEARSED.keys()
    for part in gpu.PARTS.values():
        assert len(set(part.items)) == len(part.items)
        assert part.item_seconds <= part.seconds
    options = {
        "smoke": {"dtype", "precision", "shared", "without", "graph"},
        "bench": {"rivals", "precision"}, "compare": {"of", "precision"},
        "warm": {"rivals", "precision"}, "tests": {"only", "without"},
        "training": {"optimizer"}, "rollout": set(), "tiles": {"precision"},
    }  # fmt: skip
    for item in items():
        kind, _, rest = item.partition(" ")
        assert kind in work.DO
        words = work.Words(rest)
        assert words.named.keys() <= options[kind], item
        if kind in ("smoke", "bench", "warm", "compare", "tiles"):
            *_, layer, size = words.first
            Size.parse(size)
            assert layer == "ode" or layer in RECORDS
            assert set(words.named.get("rivals", "ours").split(",")) <= set(rivals.RIVALS)
        elif kind == "tests":
            text = (ROOT / "tests" / "triton" / words.first[0]).read_text()
            assert "gpu" in text or "device" in text, item
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
    copied = tmp_path / "benchmarks" / "throughput" / "environment.py"
    monkeypatch.setattr(environment, "__file__", str(copied))
    before = environment.sources()
    (tmp_path / "benchmarks" / "notes.txt").write_text("no code")
    assert environment.sources() == before
    prints = [before]
    for name in files:
        with open(tmp_path / name, "a") as changed:
            changed.write("# mended\n")
        prints.append(environment.sources())
    assert len(set(prints)) == len(prints)


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
    planned["env", "env"] = ""
    assert {(r["part"], r["item"]): r["end"] for r in results if "end" in r} == planned
    assert all(row["gpu"] == "none" and row["torch"] == torch.__version__ for row in results)
    launches = [row for row in results if "errors" in row]
    compared = [row for row in launches if "kernels" in row]
    assert [row["kernels"] for row in compared] == ["launches", "tape", "one-pass", "planes"]
    assert all(row["graph_us"] > 0 and row["good"] for row in compared)
    launches = [row for row in launches if "kernels" not in row]
    assert [row["part"] for row in launches] == ["smoke"] * 3
    assert all(row["good"] and row["same_bits"] and max(row["errors"]) < 1e-3 for row in launches)
    tests = {row["item"]: row["tests"] for row in results if "tests" in row}
    assert len(tests) == 2
    (huge,) = gpu.PARTS["huge"].items
    assert sum(tests[huge].values()) == 6
    times = rows(out / "throughput.jsonl")
    assert {row["rival"] for row in times} == {"ours", "graph", "eager", "linear"}
    assert all(row["error"] is None or row["error"] < 1e-5 for row in times)
    assert (tmp_path / "files" / "rows.jsonl").read_bytes() == (out / "rows.jsonl").read_bytes()
