"""The fractional SIR experiment: exact checks, phases, its dense rival, fronts, the command."""

import pytest
import torch
from torch import Tensor

from benchmarks.paper.fsir import dense as fsir_dense
from benchmarks.paper.fsir import task as fsir
from benchmarks.paper.runner import Batch

STEPS, ITERATIONS = 6, 4


def batch(model: str, h: int = 6, runs: int = 1, integrator: str = "euler") -> Batch:
    (planned,) = fsir.batches([model], [h], runs, STEPS, ITERATIONS, integrator, "cpu")
    return planned


# ---- the exact checks ----------------------------------------------------------------------------


def test_true_equation_by_eulers_method_scores_as_in_the_authors_setup() -> None:
    error = (fsir.predict("RealNPU", 3, fsir.truth())[0] - fsir.data()).square().mean()
    assert float(error) == pytest.approx(1.0846, abs=1e-3)


def test_true_equation_by_an_accurate_method_is_in_the_data() -> None:
    error = (fsir.predict("RealNPU", 3, fsir.truth(), "rk4")[0] - fsir.data()).square().mean()
    assert float(error) < 4e-4  # what is left: the first steps, from I = 0.01, are coarse


# ---- models --------------------------------------------------------------------------------------


def eager_dense(weights: list[Tensor], u: Tensor, steps: int, dt: float) -> tuple[Tensor, Tensor]:
    w1, b1, w2, b2, w3, b3 = weights
    u = u.expand(len(w1), 3).unsqueeze(1)
    states, derivatives = [], []
    for _ in range(steps + 1):
        hidden = torch.tanh(u @ w1.mT + b1.unsqueeze(1))
        derivative = torch.tanh(hidden @ w2.mT + b2.unsqueeze(1)) @ w3.mT + b3.unsqueeze(1)
        states.append(u)
        derivatives.append(derivative)
        u = u + dt * derivative
    return torch.cat(states, 1), torch.cat(derivatives, 1)


def test_dense_loop_is_autograds() -> None:
    generator = torch.Generator().manual_seed(2)
    weights = [
        (0.6 * torch.randn(5, *shape, dtype=torch.float64, generator=generator)).requires_grad_()
        for shape in fsir_dense.shapes(7)
    ]
    u0 = torch.tensor([1.0, 0.01, 0.0], dtype=torch.float64)
    ours, theirs = fsir_dense.rollout(u0, weights, 25, 0.3), eager_dense(weights, u0, 25, 0.3)
    factors = [
        torch.randn(ours[0].shape, dtype=torch.float64, generator=generator) for _ in range(2)
    ]
    gradients, expected = (
        torch.autograd.grad(
            sum((a * b).sum() for a, b in zip(result, factors, strict=True)), weights
        )  # type: ignore[arg-type]
        for result in (ours, theirs)
    )
    for a, b in zip([*ours, *gradients], [*theirs, *expected], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


# ---- training ------------------------------------------------------------------------------------


def test_loss_and_its_gradient() -> None:
    training = batch("NPU", h=3).make(batch("NPU", h=3))
    active = torch.tensor([0, 3])
    true = fsir.truth()[0]
    parameters = torch.cat([0.9 * true[:9], torch.zeros(9), 0.9 * true[9:]]).double().repeat(2, 1)
    loss, gradient = training.closure(parameters, active)
    weight_im = slice(9, 18)
    # Imaginary weights at 0 and no negative state: no gradient from the data, but +1 from |0| in
    # the penalty.
    assert (gradient[0, weight_im] == 0).all()
    assert (gradient[1, weight_im] == 1).all()
    torch.testing.assert_close(
        loss, training.errors(parameters) + training.beta[active] * parameters.abs().sum(1)
    )
    step = 1e-6
    for index in (1, 19, 24):  # a power, a gate, a weight of the NAU: by differences
        moved = parameters.clone()
        moved[:, index] += step
        up, _ = training.closure(moved, active)
        moved[:, index] -= 2 * step
        down, _ = training.closure(moved, active)
        torch.testing.assert_close(
            (up - down) / (2 * step), gradient[:, index], rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("model", fsir.MODELS)
def test_no_run_depends_on_the_others(model: str) -> None:
    few, several = batch(model), batch(model, runs=3)
    works = few.make(few), several.make(several)
    for training in works:
        training.advance(training.total)
    single = {(row["beta"], row["run"]): row for row in works[0].results()[0]}
    together = {(row["beta"], row["run"]): row for row in works[1].results()[0]}
    assert all(together[key] == row for key, row in single.items())


# ---- the report ----------------------------------------------------------------------------------
