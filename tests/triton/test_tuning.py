"""The tables of configurations, and how many launches a step takes."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.throughput import orders, tune
from benchmarks.throughput.cases import Size
from tests.support.kernels import ALL, backward, forward
from tests.support.samples import RECORDS
from tests.triton.conftest import Launches

pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget

from npu_kernels._triton import tuning

KEY = re.compile(
    r"(\w+) (float16|bfloat16|float32|float64) (highest|high|medium|any) (\w+( odd)?|i\d+ o\d+ k\d+)"
)
ARCHITECTURES = ("gfx942", "sm_100", "sm_80", "sm_90")
SPLIT = ("npu_backward_w", "npu_small_backward", "nalu_backward_w")  # rows among programs
BUCKETS = {"small": (6, 2), "narrow": (100, 1), "medium": (100, 100), "large": (256, 256)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tables_are_well_formed(architecture: str) -> None:
    for key, entry in tuning.load_table()[architecture].items():
        match = KEY.fullmatch(key)
        assert match, key
        assert match[1] in tuning.KERNELS
        for name, value in entry.items():
            keys = (
                "BLOCK_B", "BLOCK_O", "BLOCK_I", "PASSES", "num_warps", "num_stages", "maxnreg",
                "programs",
            )  # fmt: skip
            assert name in keys, key
            if name.startswith("BLOCK") or name == "num_warps":
                assert value & (value - 1) == 0, key
        if match[1] in tuning.PRODUCTS:
            # Matrix units take tiles of at least 16, float64 ones 8 columns of a product's right
            # operand.
            columns = "BLOCK_O" if match[1].endswith("_forward") else "BLOCK_I"
            for name in ("BLOCK_B", "BLOCK_O", "BLOCK_I"):
                assert entry[name] >= (8 if match[2] == "float64" and name == columns else 16), key
            # There are 65536 registers; for AMD's compiler there is no such option.
            assert entry.get("maxnreg", 0) * entry["num_warps"] * 32 <= 65536, key
            assert "maxnreg" not in entry or architecture != tuning.AMD, key
            assert entry["PASSES"] in ((0,) if match[2] == "float64" else (0, 1, 3, 6)), key
            if match[3] == "highest" or (match[3] == "any" and match[2] != "float64"):
                assert entry["PASSES"] in (0, 6), f"{key}: not as accurate as float32"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_shape_has_a_configuration(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "architecture_of", lambda device: architecture)
    tuning._find.cache_clear()
    try:
        for name, (i, o) in BUCKETS.items():
            assert tuning.bucket(i, o) == name
        dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        shapes = itertools.product((1, 15, 16, 17, 127, 128, 4096), (1, 16, 100, 512), (1, 100))
        for (i, o, k), dtype in itertools.product(shapes, dtypes):
            tiled = ("npu_forward", "npu_backward_x", "npu_backward_w")
            elsewhere = (
                tiled if tuning.is_small(i, o) else ("npu_small_forward", "npu_small_backward")
            )
            kernels = [kernel for kernel in tuning.KERNELS if kernel not in elsewhere]
            for kernel, precision in itertools.product(kernels, ("highest", "high", "medium")):
                config = tuning._find(kernel, torch.device("cpu"), dtype, precision, i, o, k)
                assert config.options["BLOCK_B"]
                assert config.programs > 0 or kernel not in SPLIT
    finally:
        tuning._find.cache_clear()


def test_architectures() -> None:
    names = {
        80: "sm_80", 86: "sm_80", 89: "sm_80", 90: "sm_90", 100: "sm_100", 103: "sm_100",
        120: "sm_80",
    }  # fmt: skip
    for capability, name in names.items():
        assert tuning.architecture(GPUTarget("cuda", capability, 32)) == name
    assert tuning.architecture(GPUTarget("hip", "gfx950", 64)) == "gfx942"
    with pytest.raises(
        RuntimeError, match=r"no configurations for compute capability 7.5, the minimum is 8.0"
    ):
        tuning.architecture(GPUTarget("cuda", 75, 32))


def test_the_table_is_that_of_the_device_whichever_is_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current = [0]

    class Device:
        """Stands for `torch.cuda.device`."""

        def __init__(self, device: torch.device) -> None:
            self.index = device.index

        def __enter__(self) -> None:
            current.append(self.index)

        def __exit__(self, *error: object) -> None:
            current.pop()

    def target() -> GPUTarget:
        return GPUTarget("cuda", (90, 100)[current[-1]], 32)

    driver = SimpleNamespace(active=SimpleNamespace(get_current_target=target))
    knobs = SimpleNamespace(runtime=SimpleNamespace(interpret=False))
    runtime = SimpleNamespace(driver=driver)
    monkeypatch.setattr(tuning, "triton", SimpleNamespace(knobs=knobs, runtime=runtime))
    monkeypatch.setattr(torch.cuda, "device", Device)
    architecture_of = tuning.architecture_of.__wrapped__  # without the cache
    names = [architecture_of(torch.device("cuda", index)) for index in (0, 1)]
    assert names == ["sm_90", "sm_100"]
    assert current == [0]
    assert architecture_of(torch.device("cpu")) == "sm_90"  # mocked launches: the current one


def test_tables_are_saved_as_they_are_shipped(tmp_path: Path) -> None:
    """Writing a table and reading it back changes nothing, not even the file."""
    tables = tuning.load_table()
    tuning.save_table(tables, tmp_path / "tables.json")
    assert tuning.load_table(tmp_path / "tables.json") == tables
    assert (tmp_path / "tables.json").read_text() == tuning.TABLES.read_text()


def test_measured_entries_win(monkeypatch: pytest.MonkeyPatch) -> None:
    key = tuning.exact_key("npu_forward", torch.float32, "highest", (200, 256, 1))
    assert key == "npu_forward float32 highest i256 o256 k1"
    assert tuning.exact_key("npu_forward", torch.float64, "high", (1, 1, 3)).split()[2:] == [
        "any",
        "i1",
        "o1",
        "k4",
    ]
    entry = {
        "BLOCK_B": 16, "BLOCK_O": 16, "BLOCK_I": 16, "PASSES": 0, "num_warps": 1, "num_stages": 1,
    }  # fmt: skip
    table: dict[str, Any] = dict(tuning.load_table()["sm_90"])
    monkeypatch.setattr(tuning, "tables_in_use", lambda: {"sm_90": table | {key: entry}})
    monkeypatch.setattr(tuning, "architecture_of", lambda device: "sm_90")
    tuning._find.cache_clear()
    try:
        options = tuning._find(
            "npu_forward", torch.device("cpu"), torch.float32, "highest", 200, 256, 1
        ).options
        assert options == entry | {"enable_fp_fusion": True}
        other = tuning._find(
            "npu_forward", torch.device("cpu"), torch.float32, "highest", 300, 256, 1
        ).options
        assert other["num_warps"] > 1
    finally:
        tuning._find.cache_clear()


def test_candidates_keep_the_promised_accuracy() -> None:
    for kernel in tuning.KERNELS:
        for dtype in (torch.float32, torch.float64):
            entries = list(tuning.candidates(kernel, dtype, "highest", "large"))
            assert len(entries) > 3
            allowed = {0} if dtype is torch.float64 else {0, 6}
            assert {entry["PASSES"] for entry in entries if "PASSES" in entry} <= allowed
            assert all(("programs" in entry) == (kernel in SPLIT) for entry in entries)


def test_tuning_with_a_made_up_clock(device: str, tmp_path: Path) -> None:
    """Every kernel of a small and of a larger layer is launched with candidates; what the timer
    likes is found.

    The timer here prefers few rows per program and cannot run more than 4 warps.
    """
    passed = 0.0

    def clock() -> float:
        nonlocal passed
        passed += 1
        return passed

    def timer(run: Callable[[], object], best: float) -> float:
        (config,) = tuning._overrides.values()
        if config["num_warps"] > 4:
            raise RuntimeError("out of resources")
        return 1 + config["BLOCK_B"] / 128

    tasks = orders.tasks([Size(3, 3, 2), Size(3, 17, 2, 2)], "highest")
    tuner = tune.Tuner(
        {"gpu": "none"}, "sm_90", tmp_path / "t.json", timer=timer, clock=clock, device=device
    )
    rows = [tuner.run(task, 3.0) for task in tasks]
    assert {row["kernel"] for row in rows} == set(tuning.KERNELS)
    assert len(rows) == 7 + 8
    table, shipped = tuning.load_table(tmp_path / "t.json")["sm_90"], tuning.load_table()["sm_90"]
    faster = {row["key"]: row["config"] for row in rows if row["us"] < row["shipped_us"]}
    assert faster == {key: entry for key, entry in table.items() if key not in shipped}
    for key, entry in faster.items():
        assert re.fullmatch(r"(\w+) float32 (any|highest) i(4|32) o2 k(1|2)", key), key
        assert entry["num_warps"] <= 4


def test_tuning_keeps_the_bound_on_registers(device: str) -> None:
    """Candidates have the shipped configuration's, else none would be its neighbour."""
    order = orders.order(orders.Task("nmu_forward", Size(5, 3, 2)), device)
    shipped = {"BLOCK_B": 64, "BLOCK_O": 16, "num_warps": 4, "maxnreg": 255}
    clock = itertools.count()
    with tuning.use_config("nmu_forward", shipped):
        timer = lambda run, best: 1 + tuning._overrides["nmu_forward"]["BLOCK_B"] / 128  # noqa: E731
        tuned = tune.tune(order, timer, 4.0, lambda: next(clock), device)
    assert tuned["config"]["BLOCK_B"] < shipped["BLOCK_B"]
    assert tuned["config"].keys() == shipped.keys()
    assert tuned["us"] < tuned["shipped_us"]


KEY_OF_NMU = "nmu_forward float32 any large"
GOOD_ENTRY = {"BLOCK_B": 64, "BLOCK_O": 64, "num_warps": 8}


@pytest.mark.parametrize(("key", "entry", "rule"), [
    (KEY_OF_NMU, {}, "it must have BLOCK_B, BLOCK_O, num_warps, got {}"),
    (KEY_OF_NMU, {"BLOCK_B": 64, "num_warps": 8},
     "it must have BLOCK_B, BLOCK_O, num_warps, got"),
    (KEY_OF_NMU, GOOD_ENTRY | {"BLOCK_O": "64"}, "it must be an object of integers, got"),
    (KEY_OF_NMU, GOOD_ENTRY | {"BLOCK_O": False}, "it must be an object of integers, got"),
    (KEY_OF_NMU, [3, 64, 1], "it must be an object of integers, got [3, 64, 1]"),
])  # fmt: skip
def test_faults_of_tables(key: str, entry: Any, rule: str, tmp_path: Path) -> None:
    """The message names the file, the entry, the rule and what is there."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"sm_90": {key: entry}}))
    with pytest.raises(ValueError, match=re.escape(f"npu_kernels: {path}: sm_90: {key}: {rule}")):
        tuning.use_tables(path)
    for form in ([], {"sm_90": 3}):
        path.write_text(json.dumps(form))
        with pytest.raises(ValueError, match=re.escape(f"{path} must be an object of tables")):
            tuning.use_tables(path)


def test_tables_of_other_gpus_and_kernels(device: str, tmp_path: Path) -> None:
    """Unknown kernels do not matter; what a launch misses is named with the file."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"gfx942": {KEY_OF_NMU: GOOD_ENTRY, "other float32": {"a": "b"}}}))
    x = torch.empty(1, device=device)
    try:
        tuning.use_tables(path)
        problem = f"npu_kernels: {path} has no configuration for npu_forward float32 highest large"
        with pytest.raises(RuntimeError, match=re.escape(problem)):
            tuning.lookup("npu_forward", x, 512, 512, 1)
    finally:
        tuning.use_tables()


def test_unknown_kernel() -> None:
    with pytest.raises(
        ValueError, match=r"^use_config: kernel must be one of 'npu_forward', .+, got 'fast'$"
    ):
        tuning.use_config("fast", {})


@pytest.mark.parametrize(("name", "sizes", "num_models", "shared", "limit"), [
    ("npu", (100, 6, 2), None, False, 2), ("npu", (100, 6, 2), 5, False, 2),
    ("npu", (100, 6, 2), 5, True, 3), ("npu", (50, 17, 16), None, False, 4),
    ("npu", (20, 17, 16), 2, True, 4), ("nmu", (20, 6, 2), None, False, 2),
    ("nmu", (50, 6, 2), 2, True, 3), ("nalu", (16, 6, 2), None, False, 3),
    ("nalu", (20, 6, 2), 2, True, 4), ("inalu", (100, 6, 2), None, False, 4),
    ("inalu", (20, 17, 16), 2, True, 4),
])  # fmt: skip
def test_launches_of_a_step(
    name: str,
    sizes: tuple[int, int, int],
    num_models: int | None,
    shared: bool,
    limit: int,
    device: str,
    kernels: Any,
    launched: Launches,
) -> None:
    """Forward and backward: at most four, two or (NALU) three where rows fit one program."""
    sample = RECORDS[name].sample(*sizes, num_models=num_models, shared=shared, device=device)
    grad_y = torch.ones_like(forward(sample, kernels)[0])
    launched.clear()
    backward(sample, kernels, grad_y, ALL)  # runs the forward first
    assert 0 < len(launched) <= limit, launched.names()
