"""A model's result depends on its seed alone, and a training goes on where it was saved."""

import copy

import pytest
import torch

from benchmarks.paper import gradient_surface
from benchmarks.paper.large import task as large
from benchmarks.paper.layers import sigmoid
from benchmarks.paper.runner import Batch
from benchmarks.paper.simple import task as simple

STEPS = 12


def simple_batch(model: str, seeds: int, variant: str = "code") -> Batch:
    (batch,) = simple.batches([model], seeds, STEPS, variant, "cpu")
    return batch


def large_batch(model: str, runs: list[tuple[str, int]], variant: str = "code") -> Batch:
    settings = {"model": model, "steps": STEPS, "variant": variant, "device": "cpu"}
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


@pytest.mark.parametrize("variant", ["code", "paper"])
@pytest.mark.parametrize("model", list(simple.RECIPES))
def test_simple_result_does_not_depend_on_the_batch(model: str, variant: str) -> None:
    together, single = rows(simple_batch(model, 3, variant)), rows(simple_batch(model, 1, variant))
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


@pytest.mark.parametrize("model", ["NPU", "NALU"])
def test_paper_variant_of_the_large_task_runs(model: str) -> None:
    (row,) = rows(large_batch(model, [("div", 0)], "paper"))
    assert row["test_mse"] > 0


@pytest.mark.parametrize(
    "batch",
    [
        simple_batch("iNALU", 2),
        large_batch("NPU", [("add", 0), ("mul", 3)]),
        large_batch("NALU", [("sqrt", 1)]),
    ],
    ids=["simple", "large", "float64"],
)
def test_restored_training_gives_the_same_numbers(batch: Batch) -> None:
    expected = rows(batch)
    first = batch.make(batch)
    first.advance(5)
    state = copy.deepcopy(first.state())
    first.advance(3)  # the state is not this one's any more
    second = batch.make(batch)
    second.restore(state)
    second.advance(STEPS - 5)
    assert second.results()[0] == expected


def test_starts_are_the_authors() -> None:
    npu = large_batch("NPU", [("add", 0)])
    real = large_batch("RealNPU", [("add", 0)])
    layers, real_layers = npu.make(npu).module, real.make(real).module
    assert torch.equal(layers[0].weight, real_layers[0].weight)
    assert torch.equal(layers[1].weight_re, real_layers[1].weight_re)
    assert layers[0].weight.amin() >= 0
    assert layers[0].weight.amax() < 0.1
    assert layers[1].gate.unique().tolist() == [1.0]
    assert real_layers[1].gate.unique().tolist() == [0.5]
    assert torch.count_nonzero(layers[1].weight_im) == 0


def test_plan_of_the_large_task() -> None:
    batches = large.batches(list(large.MODELS), None, large.TRAINING_STEPS, "code", "cpu")
    assert len({batch.name for batch in batches}) == len(batches)
    runs = [
        (batch.settings["model"], run["task"], run["seed"])
        for batch in batches
        for run in batch.runs
    ]
    assert len(set(runs)) == len(runs)
    for model in large.MODELS:
        for task in large.TASKS:
            count = sum(1 for run in runs if run[:2] == (model, task))
            assert count == large.default_seeds(task, model) + (
                20 if (task, model) in large.SHORT else 0
            )
    for batch in batches:
        assert {run["steps"] for run in batch.runs} == {batch.settings["steps"]}


def test_gradient_surfaces_show_the_plateau() -> None:
    (batch,) = gradient_surface.batches(2, "code", "cpu")
    training = batch.make(batch)
    training.advance(training.total)
    table, tensors = training.results()
    assert tensors["surfaces"].shape == (4, 3, 71, 61)
    for row in table:
        if row["panel"] == "NaiveNPU" and row["inputs"] == "code":
            assert row["median"] <= 0.12
        if row["panel"] == "NPU, gates 0.5" and row["inputs"] == "code":
            assert row["median"] >= 0.9
        if row["panel"] == "NPU, gates 1 and 0":
            assert row["w2_spread"] <= 1e-12


def test_sigmoid_rounds_the_same_everywhere() -> None:
    x = torch.randn(1003, dtype=torch.float64)
    torch.testing.assert_close(sigmoid(x), x.sigmoid())
    assert torch.equal(sigmoid(x)[5:905], sigmoid(x[5:905]))
