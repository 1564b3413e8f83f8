"""The search for fast configurations; `--tune` and `--device cuda` without a GPU."""

import functools
import json
from pathlib import Path

import pytest
import torch

from benchmarks.throughput import __main__ as suite_main
from benchmarks.throughput import devices, suite, tune
from benchmarks.throughput.cases import STEP, Case, Size


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


def test_other_results_than_the_shipped_ones_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """More warps are faster, and eight of them compute something else."""
    tuning = pytest.importorskip("npu_kernels._triton.tuning")
    start = {"BLOCK_B": 16, "BLOCK_O": 4, "num_warps": 1}

    def warps() -> int:
        return int(tuning._overrides.get("nmu_forward", start)["num_warps"])

    def launch() -> list[torch.Tensor]:
        return [torch.full((2,), 9.0 if warps() == 8 else 1.0)]

    monkeypatch.setattr(tune.Task, "shipped", lambda task, device: start)
    monkeypatch.setattr(tune.Task, "launch", lambda task, device: launch)
    task = tune.Task("nmu_forward", Size(5, 3, 2))
    tuned = tune.tune(task, 20.0, lambda run: 1 / warps(), lambda: 0.0, "cpu")
    assert tuned.config["num_warps"] == 4
    assert tuned.failed["differs from the shipped one's results"] > 0


def test_a_table_is_tuned_task_by_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is faster is in the table as soon as its search ends."""
    tuning = pytest.importorskip("npu_kernels._triton.tuning")
    faster, table = {"BLOCK_B": 32, "num_warps": 4}, tmp_path / "table.json"
    done: list[str] = []

    def tuned(task: tune.Task, seconds: float) -> tune.Tuned:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(task.key)
        return tune.Tuned(faster, 1.0 if len(done) == 1 else 2.0, 2.0, 3, {})

    monkeypatch.setattr(tune, "tune", tuned)
    monkeypatch.setattr(tuning, "architecture_of", functools.cache(lambda device: "sm_90"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H")
    with pytest.raises(KeyboardInterrupt):
        tune.main([Size(5, 3, 2)], "highest", 1.0, table)
    assert json.loads(table.read_text())["sm_90"][done[0]] == faster
    assert done[1] not in json.loads(table.read_text())["sm_90"]
    said = capsys.readouterr().out
    assert "npu_small_forward 5x3x2: 2.0 us as shipped, 1.0 us with" in said
    table.write_text("no table")
    assert tune.main([Size(5, 3, 2)], "highest", 1.0, table) == 2
    assert f"--tune: {table} cannot be used" in capsys.readouterr().err
