"""Batches are spread over processes, stopped, killed and resumed, with the same numbers."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.paper import runner
from benchmarks.paper.runner import Batch, Folder, complete

TRACE_STEPS = 40


class Sums:
    """Work whose result depends on every step having been done once, in order."""

    def __init__(self, batch: Batch) -> None:
        self.runs, self.total, self.done = batch.runs, batch.settings["steps"], 0
        self.pause, self.trace = batch.settings["pause"], Path(batch.settings["trace"])
        self.value = torch.tensor([float(run["seed"]) for run in batch.runs], dtype=torch.float64)

    def advance(self, steps: int) -> None:
        for step in range(self.done, self.done + steps):
            self.value = (self.value * 1.5 + step) % 1000
            time.sleep(self.pause)
        self.done += steps
        with open(self.trace, "a") as file:
            file.write(f"{self.done}\n")

    def state(self) -> dict[str, Any]:
        return {"done": self.done, "value": self.value}

    def restore(self, state: dict[str, Any]) -> None:
        self.done, self.value = state["done"], state["value"].clone()

    def results(self) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
        return [
            {"seed": run["seed"], "value": float(v)}
            for run, v in zip(self.runs, self.value, strict=True)
        ], {}


def make(batch: Batch) -> Sums:
    return Sums(batch)


def die(batch: Batch) -> Sums:
    os.kill(os.getpid(), signal.SIGKILL)
    return Sums(batch)


def plan(trace: Path, count: int, pause: float = 0.0, steps: int = TRACE_STEPS) -> list[Batch]:
    settings = {"steps": steps, "pause": pause, "trace": str(trace)}
    return [
        Batch("test", f"{i}", settings, ({"seed": i}, {"seed": 10 + i}), 1.0 + i, make)
        for i in range(count)
    ]


def expected(steps: int, seed: int) -> float:
    value = float(seed)
    for step in range(steps):
        value = (value * 1.5 + step) % 1000
    return value


class Announced:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.values: dict[int, float] = {}

    def __call__(self, batch: Batch, result: dict[str, Any]) -> None:
        self.names.append(batch.name)
        for row in result["rows"]:
            assert row["seed"] not in self.values
            self.values[row["seed"]] = row["value"]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    created = Folder(tmp_path / "work")
    created.create()
    return created


def run(batches: list[Batch], folder: Folder, jobs: int, announce: Announced) -> bool:
    total = runner.Total("test", batches, folder)
    with total.progress:
        return runner.run("test", batches, folder, jobs, announce, total)


# ---- one process ---------------------------------------------------------------------------------


def test_stopped_batch_goes_on_where_it_was(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (batch,) = plan(tmp_path / "trace", 1)
    advance = Sums.advance

    def interrupted(self: Sums, steps: int) -> None:
        advance(self, steps)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Sums, "advance", interrupted)
        assert not complete(batch, folder)
    assert not folder.is_done(batch)
    done = runner.load_file(folder.checkpoint_path(batch))["work"]["done"]
    assert 0 < done < TRACE_STEPS
    assert complete(batch, folder)
    assert not folder.checkpoint_path(batch).exists()
    assert [row["value"] for row in folder.result(batch)["rows"]] == [
        expected(TRACE_STEPS, 0),
        expected(TRACE_STEPS, 10),
    ]


def test_finished_batches_are_announced_and_not_repeated(folder: Folder, tmp_path: Path) -> None:
    trace, first, second = tmp_path / "trace", Announced(), Announced()
    assert run(plan(trace, 2), folder, 1, first)
    before = trace.read_text()
    assert run(plan(trace, 2), folder, 1, second)
    assert trace.read_text() == before
    assert first.values == second.values == {s: expected(TRACE_STEPS, s) for s in (0, 1, 10, 11)}


@pytest.mark.parametrize("jobs", [1, 2])
def test_unreadable_file_is_named(folder: Folder, tmp_path: Path, jobs: int) -> None:
    batches = plan(tmp_path / "trace", 2)
    folder.checkpoint_path(batches[1]).write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"checkpoint .* got '.*test-1-.*': it is no file that"):
        run(batches, folder, jobs, Announced())


# ---- several processes ---------------------------------------------------------------------------


def test_workers_give_the_same(folder: Folder, tmp_path: Path) -> None:
    announced = Announced()
    assert run(plan(tmp_path / "trace", 3), folder, 2, announced)
    assert announced.values == {s: expected(TRACE_STEPS, s) for s in (0, 1, 2, 10, 11, 12)}


def test_dead_worker_is_named_and_the_rest_is_kept(folder: Folder, tmp_path: Path) -> None:
    first, second = plan(tmp_path / "trace", 2)
    with pytest.raises(RuntimeError, match=r"a process died; .* the same command continues"):
        run([first, replace(second, make=die)], folder, 2, Announced())
    assert run([first, second], folder, 1, Announced())
