"""The paper's experiments: exact checks, streams, test sets, optimizers."""

import pytest
import torch

import npu_kernels
from benchmarks.paper import tables
from benchmarks.paper.large import task as large
from benchmarks.paper.streams import Sobol
from benchmarks.paper.training import Adam, Buffer, RMSProp, frobenius
from npu_kernels import training

# ---- the exact checks ----------------------------------------------------------------------------


@pytest.mark.parametrize("row", tables.load("test_sets"), ids=lambda row: row["task"])
def test_zero_predictor_scores_as_on_the_published_test_set(row: dict[str, float]) -> None:
    tolerance = 1e-4 if row["task"] == "mul" else 1e-5  # a product of float32 sums
    task = large.TASKS[str(row["task"])]
    answers = task.operation(*large.sums(large.extrapolation_points(*task.test)))
    error = float(answers.double().square().mean())
    assert error == pytest.approx(row["zero_predictor_mse"], rel=tolerance)


def test_training_inputs_start_as_in_the_authors_stream() -> None:
    x = large.training_points(Sobol(100), 0, 3, -1.0, 1.0)
    # the middle of every range: the zero point is left out
    assert torch.equal(x[0], torch.zeros(100))
    assert x[1, :5].tolist() == [0.5, -0.5, -0.5, -0.5, 0.5]
    assert x.dtype == torch.float32


def test_sobol_is_joe_and_kuos() -> None:
    qmc = pytest.importorskip("scipy.stats.qmc", reason="scipy is not installed")
    expected = qmc.Sobol(100, scramble=False).random(1024)
    assert torch.equal(Sobol(100).points(0, 1024), torch.from_numpy(expected))


def test_sobol_from_any_point_on() -> None:
    together, parts = Sobol(5).points(0, 300), Sobol(5)
    assert torch.equal(together[:100], parts.points(0, 100))
    assert torch.equal(together[100:101], parts.points(100, 1))
    assert torch.equal(together[250:], parts.points(250, 50))
    assert torch.equal(together[1:9], parts.points(1, 8))


# ---- one step ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.01, torch.full((128,), 0.01)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", ["RMSProp", "Adam"])
def test_optimizers_are_torchs(name: str, rate: float | torch.Tensor) -> None:
    start = torch.randn(128)
    ours, theirs = start.clone(), torch.nn.Parameter(start.clone())
    optimizer = (RMSProp if name == "RMSProp" else Adam)(ours, rate)
    expected: torch.optim.Optimizer = torch.optim.Adam([theirs], 0.01)
    if name == "RMSProp":
        expected = torch.optim.RMSprop([theirs], 0.01, alpha=0.9)
    for step in range(1, 30):
        grad = torch.randn(128)
        theirs.grad = grad.clone()
        expected.step()
        optimizer.update(ours, grad, step)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_the_penalty_has_the_packages_gradient() -> None:
    layer = npu_kernels.NPU(3, 2, num_models=4, dtype=torch.float64)
    beta = torch.rand(4, dtype=torch.float64)
    (beta * training.l1(layer, norm="frobenius")).sum().backward()
    expected = [parameter.grad for parameter in layer.parameters()]
    buffer = Buffer(layer)
    zeros = [torch.zeros_like(view) for view in buffer.views]
    frobenius(buffer, zeros, beta)
    for grad, reference in zip(buffer.grads, expected, strict=True):
        torch.testing.assert_close(grad, reference)
