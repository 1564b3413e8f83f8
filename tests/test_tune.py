"""The search for fast configurations; `--tune` and `--device cuda` without a GPU."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks.throughput import __main__ as suite_main
from benchmarks.throughput import devices, suite, tune
from benchmarks.throughput.cases import STEP, Case, Size

GRID = {"BLOCK_B": (16, 32, 64, 128), "num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3)}


def _grid() -> list[tune.Config]:
    return [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]


def _never() -> bool:
    return False


def _bowl(config: tune.Config) -> float:
    """Least at 64 rows, 4 warps, 2 stages."""
    rows, warps = math.log2(config["BLOCK_B"]) - 6, math.log2(config["num_warps"]) - 2
    return 1 + 0.1 * (abs(rows) + abs(warps) + abs(config["num_stages"] - 2))


def test_search_goes_downhill_one_number_at_a_time() -> None:
    seen: list[tune.Config] = []

    def seconds(config: tune.Config) -> float:
        seen.append(config)
        return _bowl(config)

    start = {"BLOCK_B": 16, "num_warps": 8, "num_stages": 1}
    best, time, first = tune.search(start, _grid(), seconds, enough=_never)
    assert best == {"BLOCK_B": 64, "num_warps": 4, "num_stages": 2}
    assert (time, first) == (1, _bowl(start))
    assert len(seen) < len(_grid())
    assert len({tuple(config.items()) for config in seen[1:]}) == len(seen) - 1  # none twice


def test_search_keeps_the_start_where_nothing_is_faster_by_more_than_noise() -> None:
    start = {"BLOCK_B": 16, "num_warps": 1, "num_stages": 1}
    assert tune.search(start, _grid(), lambda c: 1.0 if c == start else 0.99, enough=_never) == (start, 1.0, 1.0)
    assert tune.search(start, [], lambda c: 1.0, enough=_never)[0] == start


def test_search_passes_over_what_does_not_work_and_starts_outside_the_candidates() -> None:
    start = {"BLOCK_B": 16, "num_warps": 16, "num_stages": 1}  # not a candidate

    def seconds(config: tune.Config) -> float:
        return math.inf if config["BLOCK_B"] == 64 else _bowl(config)

    best, _, _ = tune.search(start, _grid(), seconds, enough=_never)
    assert best["num_warps"] == 4
    assert best["BLOCK_B"] == 32


def test_search_ends_when_time_is_up() -> None:
    calls = 0

    def seconds(config: tune.Config) -> float:
        nonlocal calls
        calls += 1
        return 1 / calls

    tune.search(_grid()[0], _grid(), seconds, enough=lambda: calls >= 3)
    assert calls == 3


def test_a_written_table_has_the_new_entries_and_the_shipped_ones(tmp_path: Path) -> None:
    tuning = pytest.importorskip("npu_kernels.backends.triton.tuning")
    key = tuning.exact_key("npu_forward", torch.float32, "highest", (4096, 256, 256, 1))
    entry = {"BLOCK_B": 32, "BLOCK_O": 32, "BLOCK_I": 16, "PASSES": 0, "num_warps": 4, "num_stages": 1}
    shipped = tuning.TABLES.read_bytes()
    path = tune.write({key: entry}, "sm_90", tmp_path / "table.json")
    tables = json.loads(path.read_text())
    assert tables["sm_90"].pop(key) == entry
    assert tables == tuning.load_table()
    tune.write({"second": entry}, "sm_90", path)
    assert {key, "second"} <= json.loads(path.read_text())["sm_90"].keys()
    assert tuning.TABLES.read_bytes() == shipped


@pytest.mark.parametrize(("arguments", "flag"), [(["--device", "cuda"], "--device cuda"), (["--tune"], "--tune")])
def test_without_a_gpu_the_reason_is_named(
    arguments: list[str], flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices.dispatch, "reasons", lambda device_type: {"triton": (False, "no driver here")})
    with pytest.raises(SystemExit) as stop:
        suite_main.main(arguments)
    assert stop.value.code == 2
    assert f"{flag} needs a GPU that runs the Triton kernels: no driver here" in capsys.readouterr().err


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
