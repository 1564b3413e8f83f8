"""A model's result depends on its seed alone, and a training goes on where it was saved."""

import pytest
import torch

from benchmarks.paper.large import task as large
from benchmarks.paper.models import sigmoid
from benchmarks.paper.runner import Batch
from benchmarks.paper.simple import task as simple

STEPS = 12


def simple_batch(model: str, seeds: int) -> Batch:
    (batch,) = simple.batches([model], seeds, STEPS, "cpu")
    return batch


def large_batch(model: str, runs: list[tuple[str, int]]) -> Batch:
    settings = {"model": model, "steps": STEPS, "device": "cpu"}
    keys = tuple(
        {"task": t, "seed": s, "steps": STEPS, "beta_start": large.TASKS[t].beta_start}
        for t, s in runs
    )
    return Batch("large", "test", settings, keys, 1.0, large.make)


def rows(batch: Batch) -> list[dict[str, object]]:
    training = batch.make(batch)
    training.advance(training.total)
    table, tensors = training.results()
    assert len(table) == len(tensors["parameters"]) == len(batch.runs)
    return table


@pytest.mark.parametrize("model", list(simple.RECIPES))
def test_simple_result_does_not_depend_on_the_batch(model: str) -> None:
    together, single = rows(simple_batch(model, 3)), rows(simple_batch(model, 1))
    for task in simple.TASKS:
        assert together[0][task] == pytest.approx(single[0][task], rel=1e-4)
        assert together[0][task] != together[1][task]


@pytest.mark.parametrize("model", list(large.MODELS))
def test_large_result_does_not_depend_on_the_batch(model: str) -> None:
    runs = [("add", 0), ("mul", 0), ("add", 1)]
    together, single = (
        rows(large_batch(model, runs)),
        [rows(large_batch(model, [run]))[0] for run in runs],
    )
    for row, other in zip(together, single, strict=True):
        assert row["test_mse"] == pytest.approx(other["test_mse"], rel=1e-3)
        assert row["train_mse"] == pytest.approx(other["train_mse"], rel=1e-3)
        assert row["n_params"] == other["n_params"]


def test_sigmoid_rounds_the_same_everywhere() -> None:
    x = torch.randn(1003, dtype=torch.float64)
    torch.testing.assert_close(sigmoid(x), x.sigmoid())
    assert torch.equal(sigmoid(x)[5:905], sigmoid(x[5:905]))
