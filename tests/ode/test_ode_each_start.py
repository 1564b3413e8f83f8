"""Time loops with times of each start's own."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, RealNPU, ode

ROWS = [
    [0.0, 0.5, 1.0, 2.0],
    [1.0, 1.5],
    [0.0, 0.25, 2.0],  # the ends of the first
    [3.0, 2.0, 1.5, 1.0, 0.0],
]
OPTIONS: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


def models(count: int | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(RealNPU(2, 3, num_models=count), NAU(3, 2, num_models=count)).double()
    with torch.no_grad():
        model[0].weight_re.abs_().mul_(0.3)  # type: ignore[operator]
        model[1].weight.mul_(0.1)  # type: ignore[operator]
    return model


def starts(*lead: int) -> Tensor:
    return torch.rand(*lead, len(ROWS), 2, dtype=torch.float64).add(1).requires_grad_()


def padded(rows: list[list[float]]) -> Tensor:
    length = max(map(len, rows))
    return torch.tensor([row + [math.nan] * (length - len(row)) for row in rows]).double()


@pytest.mark.parametrize("method", ["tsit5", "kvaerno5", "auto"])
@pytest.mark.parametrize("count", [None, 3])
def test_each_start_is_as_alone(method: str, count: int | None) -> None:
    """Its states and gradients, of times too, and its steps; nan after its last time."""
    model, u0 = models(count), starts(*(() if count is None else (count,)))
    t = padded(ROWS).requires_grad_()
    options = {**OPTIONS, "method": method}
    path, statistics = ode.rollout(model, u0, t=t, return_statistics=True, **options)
    assert path.shape == (*u0.shape[:-1], 5, 2)
    grad = torch.rand(path.shape, dtype=torch.float64)
    leaves = [u0, t, *model.parameters()]
    ours = torch.autograd.grad(path, leaves, grad)
    totals: list[Any] = [0.0] * len(leaves)
    for n, row in enumerate(ROWS):
        times = torch.tensor(row, dtype=torch.float64, requires_grad=True)
        single, steps = ode.rollout(
            model, u0[..., n : n + 1, :], t=times, return_statistics=True, **options
        )
        torch.testing.assert_close(path[..., n : n + 1, : len(row), :], single, rtol=0, atol=0)
        assert path[..., n, len(row) :, :].isnan().all()
        for our, alone in zip(statistics, steps, strict=True):
            assert torch.equal(our[..., n : n + 1], alone)
        of_u0, of_t, *rest = torch.autograd.grad(
            single, [u0, times, *model.parameters()], grad[..., n : n + 1, : len(row), :]
        )
        of_t = torch.cat([of_t, of_t.new_zeros(5 - len(row))])
        of_row = torch.zeros_like(t).index_copy(0, torch.tensor([n]), of_t.unsqueeze(0))
        totals = [a + b for a, b in zip(totals, [of_u0, of_row, *rest], strict=True)]
    for gradient, total in zip(ours, totals, strict=True):
        torch.testing.assert_close(gradient, total, rtol=1e-12, atol=1e-13)


def test_lists_and_starts_that_share_a_call() -> None:
    model, u0 = models(), starts()
    path = ode.rollout(model, u0, t=ROWS, **OPTIONS)
    tensors = [torch.tensor(row, dtype=torch.float64) for row in ROWS]
    assert torch.equal(ode.rollout(model, u0, t=tensors, **OPTIONS).nan_to_num(), path.nan_to_num())
    for n, row in enumerate(ROWS):
        single = ode.rollout(model, u0[n], t=row, **OPTIONS)
        torch.testing.assert_close(path[n, : len(row)], single, rtol=1e-12, atol=0)
    path.nansum().backward()
    assert u0.grad is not None
    assert u0.grad.isfinite().all()
    weights = model[0].weight_re, None, model[0].gate, model[1].weight
    again = ode.integrate(u0, *weights, t=ROWS, **OPTIONS)  # type: ignore[arg-type]
    assert torch.equal(again.nan_to_num(), path.nan_to_num())  # type: ignore[union-attr]


def test_inputs_at_times_of_each_start() -> None:
    model = nn.Sequential(RealNPU(2, 2), NAU(2, 1)).double()
    u0, inputs = starts()[:, :1], ([0, 1.2, 3], [1.0, 2.0, 0.5])
    path = ode.rollout(model, u0, t=ROWS, inputs=inputs, **OPTIONS)
    for n, row in enumerate(ROWS):
        single = ode.rollout(model, u0[n], t=row, inputs=inputs, **OPTIONS)
        torch.testing.assert_close(path[n, : len(row)], single, rtol=1e-9, atol=0)


def test_a_start_that_fails_has_its_number() -> None:
    model = nn.Sequential(RealNPU(1, 1), NAU(1, 1)).double()
    with torch.no_grad():
        model[0].weight_re.fill_(2)  # type: ignore[operator]
        model[0].gate.fill_(1)  # type: ignore[operator]
        model[1].weight.fill_(1)  # type: ignore[operator]  # a pole at t = 1 / u0
    u0 = torch.tensor([[0.1], [0.1], [1.0]]).double()
    with pytest.raises(ode.StepSizeError, match=r"^rollout: start 2 stops at t = \d"):
        ode.rollout(model, u0, t=[[0, 0.5], [0, 0.1, 2], [0, 2]])
