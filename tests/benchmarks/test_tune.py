"""The search for fast configurations; `--tune` and `--device cuda` without a GPU."""

import contextlib
import json
from pathlib import Path

import pytest
import torch

from benchmarks.throughput import __main__ as suite_main
from benchmarks.throughput import devices, orders, precompile, suite, tune
from benchmarks.throughput.cases import STEP, Case, Size
from tests.support.building import run_python


@pytest.fixture(autouse=True)
def _compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and other processes compile, also where the tests' own process interprets."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_a_written_table_has_the_new_entries_and_the_shipped_ones(tmp_path: Path) -> None:
    tuning = pytest.importorskip("npu_kernels._triton.tuning")
    key = tuning.exact_key("npu_forward", torch.float32, "highest", (4096, 256, 1))
    entry = {
        "BLOCK_B": 32, "BLOCK_O": 32, "BLOCK_I": 16, "PASSES": 0, "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    shipped = tuning.TABLES.read_bytes()
    path = tune.write({key: entry}, "sm_90", tmp_path / "table.json")
    tables = json.loads(path.read_text())
    assert tables["sm_90"].pop(key) == entry
    assert tables == tuning.load_table()
    tune.write({"second": entry}, "sm_90", path)
    assert {key, "second"} <= json.loads(path.read_text())["sm_90"].keys()
    assert tuning.TABLES.read_bytes() == shipped
    try:
        tuning.use_tables(path)
        with pytest.raises(FileNotFoundError):
            tuning.use_tables(tmp_path / "none.json")
        assert tuning.tables_in_use()["sm_90"][key] == entry
    finally:
        tuning.use_tables()
    assert key not in tuning.tables_in_use()["sm_90"]


@pytest.mark.parametrize(
    ("arguments", "flag"), [(["--device", "cuda"], "--device cuda"), (["--tune"], "--tune")]
)
def test_without_a_gpu_the_reason_is_named(
    arguments: list[str],
    flag: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        devices.dispatch, "reasons", lambda device_type: {"triton": (False, "no driver here")}
    )
    with pytest.raises(SystemExit) as stop:
        suite_main.main(arguments)
    assert stop.value.code == 2
    assert (
        f"{flag} needs a GPU that runs the Triton kernels: no driver here"
        in capsys.readouterr().err
    )


class _Accelerator(devices.Cuda):
    """A device whose work is done at once, on the CPU, and whose counters are made up."""

    name = "cpu"

    def __init__(self) -> None:
        self.waits = self.cleared = 0

    def synchronize(self) -> None:
        self.waits += 1

    def profile(self, run: object) -> dict[str, float]:
        return {"device_us": 12.5, "launches": 3}

    def peak(self, clear: object, run: object) -> int:
        assert callable(clear)
        clear()
        self.cleared += 1
        return 1024


def test_rows_of_a_device() -> None:
    """Time includes waiting, and rows have what the device counts."""
    device = _Accelerator()
    case = Case("npu", STEP, Size(1024, 128, 2))
    rows = suite.measure(case, ["eager"], 1, 0.01, with_memory=True, device=device)
    assert device.waits > 10
    assert device.cleared == 2
    for row in rows:
        assert (row["device_us"], row["launches"], row["peak_bytes"]) == (12.5, 3, 1024)
        assert row["peak_method"] == devices.Cuda.PEAK_METHOD
        assert "device 12.5 us in 3 launches" in suite.show(row)


def test_workers_compile_for_a_gpu_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker has compiled is in Triton's cache for another process, or is said."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    task = orders.Task("nmu_forward", Size(5, 3, 2))
    good = {"BLOCK_B": 16, "BLOCK_O": 4, "num_warps": 1}
    with precompile.Pool(1, ("cuda", 90, 32)) as pool:
        problems = pool.compile(task, [good, good | {"num_warps": 3}])
        assert problems[0] == ""
        assert "num_warps" in problems[1]
        assert pool.compile(task, [good | {"BLOCK_B": 32}], 0.0) == [precompile.NOT_IN_TIME]
    code = f"""
import triton
from benchmarks.throughput import orders, precompile
from benchmarks.throughput.cases import Size
from npu_kernels._triton import tuning
precompile.compile_only(("cuda", 90, 32))
seen = []
triton.knobs.compilation.listener = lambda *, cache_hit, **more: seen.append(cache_hit)
order = orders.order(orders.Task("nmu_forward", Size(5, 3, 2)), "cpu", values=False)
with tuning.use_config("nmu_forward", {good}):
    order.launch()
with tuning.use_config("nmu_forward", {good | {"num_warps": 2}}):
    order.launch()
print(seen)
"""
    child = run_python("-c", code)
    assert child.stdout == "[True, False]\n", child.stderr


def test_tuning_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every search is a row at once; the next run does those that the file lacks."""
    pytest.importorskip("triton")
    asked: list[str] = []

    def run(self: tune.Tuner, task: orders.Task, seconds: float) -> tune.Row:
        asked.append(str(task))
        if len(asked) == 3:
            raise KeyboardInterrupt
        times = {
            "config": {"num_warps": 4}, "us": 1.0, "shipped_us": 2.0, "tried": 3, "failed": {},
            "seconds": 4.0,
        }  # fmt: skip
        return {**task.to_dict(), "key": task.key, **times, **self.where}

    where = {"gpu": "H", "torch": "2", "triton": "3"}
    monkeypatch.setattr(tune, "place", lambda: (where, "sm_90", ("cuda", 90, 32)))
    # nothing is compiled
    monkeypatch.setattr(tune, "Pool", lambda jobs, target: contextlib.nullcontext())
    monkeypatch.setattr(tune.Tuner, "run", run)
    table, file = tmp_path / "t.json", tmp_path / "rows.jsonl"
    tasks = [str(task) for task in orders.tasks([Size(5, 3, 2)], "highest")]
    assert tasks[:2] == ["npu_small_forward 5x3x2 highest", "npu_small_backward 5x3x2 highest"]
    with pytest.raises(KeyboardInterrupt):
        tune.main([Size(5, 3, 2)], "highest", 1.0, table, file)
    assert len(file.read_text().splitlines()) == 2
    assert tune.main([Size(5, 3, 2)], "highest", 1.0, table, file) == 0
    assert asked == tasks[:3] + tasks[2:]
    assert (
        "npu_small_forward 5x3x2 highest: 2.0 us as shipped, 1.0 us with" in capsys.readouterr().out
    )
    where["triton"] = "4"
    assert tune.main([Size(5, 3, 2)], "highest", 1.0, table, file) == 0
    assert len(asked) == 3 + len(tasks) - 2 + len(tasks)


def test_other_results_than_the_shipped_ones_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """More warps are faster, and eight of them compute something else."""
    tuning = pytest.importorskip("npu_kernels._triton.tuning")
    start = {"BLOCK_B": 16, "BLOCK_O": 4, "num_warps": 1}
    monkeypatch.setattr(tune, "shipped", lambda task, device: start)

    def warps() -> int:
        return int(tuning._overrides.get("nmu_forward", start)["num_warps"])

    def launch() -> list[torch.Tensor]:
        return [torch.full((2,), 9.0 if warps() == 8 else 1.0)]

    order = orders.Order(orders.Task("nmu_forward", Size(5, 3, 2)), launch)
    row = tune.tune(order, lambda run, best: 1 / warps(), 20.0, lambda: 0.0, "cpu")
    assert row["config"]["num_warps"] == 4
    assert row["failed"]["differs from the shipped one's results"] > 0
