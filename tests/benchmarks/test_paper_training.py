"""A model's result depends on its seed alone, and a training goes on where it was saved."""

import pytest
import torch

from benchmarks.paper import gradient_surface
from benchmarks.paper.large import task as large
from benchmarks.paper.models import sigmoid
from benchmarks.paper.runner import Batch
from benchmarks.paper.simple import regularised
from benchmarks.paper.simple import task as simple
from npu_kernels.training import regularizer

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


def test_the_regulariser_grows_and_is_the_papers() -> None:
    assert regularised.whole_weight(50, 100) == 0
    assert regularised.whole_weight(60, 100) == pytest.approx(0.4 * regularised.WHOLE_WEIGHT)
    assert regularised.whole_weight(100, 100) == regularised.WHOLE_WEIGHT
    trainer = simple_batch("NMU", 2, "paper").make(simple_batch("NMU", 2, "paper"))
    buffer = trainer.buffer
    loss = regularizer(trainer.module, form="paper").sum()
    expected = torch.autograd.grad(0.3 * loss, buffer.parameters)
    regularised.whole(buffer, [torch.zeros_like(view) for view in buffer.views], torch.tensor(0.3))
    for got, want in zip(buffer.grads, expected, strict=True):
        torch.testing.assert_close(got, want)


def test_the_regulariser_moves_the_weights_by_either_way() -> None:
    batch = simple_batch("NMU", 2, "paper")
    fused, eager = batch.make(batch), batch.make(batch)
    eager._torchs = None
    for trainer in (fused, eager):
        trainer.advance(STEPS)
    torch.testing.assert_close(fused.buffer.flat, eager.buffer.flat, rtol=1e-4, atol=1e-6)
    code = simple_batch("NMU", 2)
    without = code.make(code)
    without.advance(STEPS)
    assert not torch.equal(without.buffer.flat, fused.buffer.flat)


def test_an_inalu_that_does_not_learn_starts_anew() -> None:
    batch = simple_batch("iNALU", 2, "paper")
    trainer = batch.make(batch)
    assert isinstance(trainer, regularised.INALUTraining)
    trainer.advance(2)  # not the last step of a period
    before = trainer.buffer.per_model().clone()
    trainer.losses.copy_(torch.tensor([[5.0, 0.5]]).expand(trainer.period, 2))
    trainer._start_anew(trainer.period)
    after = trainer.buffer.per_model()
    assert not torch.equal(after[0], before[0])
    assert after[0].abs().max() <= regularised.NEW_START
    assert torch.equal(after[1], before[1])
    trainer.losses[:, 0] = torch.linspace(9.0, 2.0, trainer.period).roll(1)  # falls
    trainer._start_anew(2 * trainer.period)
    assert torch.equal(trainer.buffer.per_model(), after)


def test_an_inalu_has_bounded_gradients() -> None:
    batch = simple_batch("iNALU", 2, "paper")
    trainer = batch.make(batch)
    seen = []
    update = trainer.optimizer.update
    trainer.optimizer.update = lambda flat, grads, step: (
        seen.append(grads.abs().max().item()),
        update(flat, grads, step),
    )
    trainer.advance(3)
    assert max(seen) == pytest.approx(regularised.CLIP)


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
