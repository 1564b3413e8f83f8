"""Penalties, the schedule and the projection."""

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from npu_kernels import NAU, NMU, NPU, NaiveNPU, RealNPU, use_backend
from npu_kernels.training import SteppedSchedule, l1, mse_loss, project_, regularizer
from tests.conftest import needs_library


def _model(num_models: int | None = None) -> nn.Sequential:
    model = nn.Sequential(NPU(3, 5, num_models=num_models), NAU(5, 2, num_models=num_models))
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def test_l1() -> None:
    model = _model()
    expected = sum(p.abs().sum() for p in model.parameters())
    torch.testing.assert_close(l1(model, 0.25), 0.25 * expected)
    torch.testing.assert_close(l1(model.parameters()), expected)
    torch.testing.assert_close(l1(model[0].gate), model[0].gate.abs().sum())


def test_l1_as_the_authors_ran_it() -> None:
    """The sum of Frobenius norms: its gradient is beta w / |w|, and 0 for weights of 0."""
    model = nn.Sequential(NPU(3, 5), NAU(5, 2))
    penalty = l1(model, 0.5, norm="frobenius")
    torch.testing.assert_close(penalty, 0.5 * sum(p.detach().norm() for p in model.parameters()))
    penalty.backward()
    for parameter in model.parameters():
        expected = 0.5 * parameter.detach() / parameter.detach().norm().clamp(min=1e-30)
        torch.testing.assert_close(parameter.grad, expected)


@pytest.mark.parametrize("norm", ["l1", "frobenius"])
def test_penalties_per_model(norm: str) -> None:
    """One number for each of K models, that of the model by itself."""
    model = _model(num_models=4)
    penalty = l1(model, 2.0, norm=norm)
    assert penalty.shape == (4,)
    draw = regularizer(model)
    assert draw.shape == (4,)
    for k in range(4):
        single = [p[k].detach() for p in model.parameters()]
        torch.testing.assert_close(penalty[k], l1(single, 2.0, norm=norm))
        torch.testing.assert_close(draw[k], regularizer(model[1].weight[k]))
    torch.testing.assert_close(l1(list(model.parameters()), 2.0, norm=norm, num_models=4), penalty)
    penalty[2].backward()
    assert not model[0].weight_re.grad[[0, 1, 3]].any()
    assert model[0].weight_re.grad[2].any()


def test_a_shared_parameter_counts_once() -> None:
    model = nn.Sequential(NAU(3, 3), NAU(3, 3))
    model[1].weight = model[0].weight
    torch.testing.assert_close(l1(model), model[0].weight.abs().sum())


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("madsen", [0.5, 0.0, 0.25, 0.0, 0.5, 0.25, 0.0, 0.5]),
        ("paper", [1.5, 1.0, 0.25, 0.0, 0.5, 0.25, 0.0, 0.5]),
    ],
)
def test_regularizer(form: str, expected: list[float]) -> None:
    weights = torch.tensor([-1.5, -1.0, -0.25, 0.0, 0.5, 0.75, 1.0, 1.5])
    for weight, value in zip(weights, expected, strict=True):
        torch.testing.assert_close(regularizer(weight.reshape(1), form=form), torch.tensor(value))
    torch.testing.assert_close(regularizer(weights, form=form), torch.tensor(sum(expected)))


def test_regularizer_takes_nau_and_nmu_only() -> None:
    model = nn.Sequential(NPU(3, 5), NAU(5, 2), nn.Linear(2, 2), NMU(2, 1))
    expected = regularizer([model[1].weight, model[3].weight])
    torch.testing.assert_close(regularizer(model), expected)


def test_schedule() -> None:
    """The published schedule changes at each n that step divides, for n = 1, 2, ..."""
    schedule = SteppedSchedule(1e-5, 5e-4, step=10)
    betas = [schedule.step() for _ in range(45)]
    assert betas[:9] == [1e-5] * 9
    assert betas[9:19] == pytest.approx([1e-4] * 10)
    assert betas[19:] == [5e-4] * 26
    assert schedule.beta == 5e-4
    assert repr(schedule) == "SteppedSchedule(beta=0.0005, end=0.0005, step=10, growth=10.0)"


def test_schedule_continues() -> None:
    schedule = SteppedSchedule(1.0, 8.0, step=3, growth=2)
    for _ in range(4):
        schedule.step()
    other = SteppedSchedule(1.0, 8.0, step=3, growth=2)
    other.load_state_dict(schedule.state_dict())
    assert [schedule.step() for _ in range(9)] == [other.step() for _ in range(9)]


def _ranges(model: nn.Module) -> dict[str, tuple[float, float]]:
    return {name: (p.min().item(), p.max().item()) for name, p in model.named_parameters()}


@pytest.mark.parametrize("num_models", [None, 3])
def test_project(num_models: int | None) -> None:
    model: Any = nn.Sequential(
        NPU(9, 9, num_models=num_models), RealNPU(9, 9, num_models=num_models)
    )
    model.append(
        nn.Sequential(NaiveNPU(9, 9, num_models=num_models), NAU(9, 9), NMU(9, 9), nn.Linear(9, 9))
    )
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -5, 5)
    before = {name: p.clone() for name, p in model.named_parameters()}

    project_(model, gates=False)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    project_(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(
            parameter, before[name].clamp(0, 1) if name.endswith("gate") else before[name]
        )
    project_(model, weight_bound=2.5)
    ranges = _ranges(model)
    for name in ("0.weight_re", "0.weight_im", "1.weight_re", "2.0.weight_re", "2.0.weight_im"):
        assert ranges[name] == (-2.5, 2.5)
    assert ranges["2.1.weight"] == (-1, 1)
    assert ranges["2.2.weight"] == (0, 1)
    assert torch.equal(model[2][3].weight, before["2.3.weight"])
    assert all(p.requires_grad and p.grad_fn is None for p in model.parameters())


@pytest.mark.parametrize("name", ["gate", "weight_re"])
def test_projection_of_pruned_layers(name: str) -> None:
    """What the optimizer trains is the original, which the mask does not show."""
    layer = RealNPU(4, 3)
    prune.random_unstructured(layer, name, amount=2)
    original = layer.get_parameter(f"{name}_orig")
    with torch.no_grad():
        original.copy_(torch.linspace(-4, 4, original.numel()).view_as(original))
    before = original.detach().clone()
    project_(layer, weight_bound=1.5)
    assert torch.equal(original, before.clamp(0, 1) if name == "gate" else before.clamp(-1.5, 1.5))
    model = nn.Sequential(NAU(2, 2))
    prune.random_unstructured(model[0], "weight", amount=2)
    mask = model[0].weight_mask
    torch.testing.assert_close(regularizer(model), regularizer(model[0].weight_orig * mask))


class Shifted(nn.Module):
    """w = original + 1, with or without the way back."""

    def forward(self, original: Tensor) -> Tensor:
        return original + 1


class ShiftedBack(Shifted):
    def right_inverse(self, value: Tensor) -> Tensor:
        return value - 1


class WrongBack(Shifted):
    def right_inverse(self, value: Tensor) -> Tensor:
        return value + 1


def test_projection_of_parametrized_layers() -> None:
    layer = RealNPU(4, 3)
    parametrize.register_parametrization(layer, "gate", ShiftedBack())
    original = layer.parametrizations.gate.original  # type: ignore[union-attr]
    with torch.no_grad():
        original.copy_(torch.tensor([-2.0, -1.0, -0.5, 3.0]))
    project_(layer)
    assert layer.gate.tolist() == [0, 0, 0.5, 1]  # type: ignore[union-attr]
    assert original.tolist() == [-1, -1, -0.5, 0]
    weight = NAU(2, 2)
    parametrize.register_parametrization(weight, "weight", ShiftedBack())
    plain = NAU(2, 2)
    both = regularizer([weight.weight, plain.weight])
    torch.testing.assert_close(regularizer(nn.Sequential(weight, plain)), both)
    for part, message in (
        (Shifted(),
         r"^project_: gate of ParametrizedRealNPU '0' is parametrized by Shifted without "
         r"right_inverse, so"),
        (WrongBack(),
         r"^project_: the right_inverse of gate of ParametrizedRealNPU '0' must give its value "
         r"back"),
    ):  # fmt: skip
        model = nn.Sequential(RealNPU(2, 2))
        parametrize.register_parametrization(model[0], "gate", part, unsafe=True)
        with torch.no_grad():
            model[0].parametrizations.gate.original.fill_(2.0)
        with pytest.raises(ValueError, match=message):
            project_(model)
        project_(model, gates=False)  # the others can be projected


def test_a_weight_that_is_computed_from_others_is_not_passed_over() -> None:
    layer = NAU(2, 2)
    value = layer.weight.detach()
    del layer.weight
    layer.register_buffer("weight", value)
    with pytest.raises(
        ValueError, match=r"^project_: weight of NAU must be a parameter, pruned or parametrized"
    ):
        project_(layer, weight_bound=1.0)


# ---- the loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 4, 5), (3,), (3, 7001), (3, 1, 2, 2)])
def test_mse_loss(shape: tuple[int, ...], dtype: torch.dtype, backend: str | None) -> None:
    """One loss, one per model, a target that all models share; and their gradients."""
    y = torch.randn(shape, dtype=dtype, requires_grad=True)
    target = torch.randn(shape, dtype=dtype)
    with use_backend(backend) if backend else contextlib.nullcontext():
        losses = [
            (mse_loss(y, target), (y - target).square().mean()),
            (mse_loss(y, target, num_models=3), (y - target).square().reshape(3, -1).mean(1)),
            (mse_loss(y, target[0], num_models=3), (y - target[0]).square().reshape(3, -1).mean(1)),
        ]
        for loss, expected in losses:
            assert backend is None or "FastPath" not in loss.grad_fn.name()
            torch.testing.assert_close(loss, expected)
            weights = torch.linspace(-1, 2, loss.numel(), dtype=dtype).reshape(loss.shape)
            grad, want = (torch.autograd.grad(value, y, weights)[0] for value in (loss, expected))
            torch.testing.assert_close(grad, want)


@needs_library
def test_mse_loss_takes_the_fast_path() -> None:
    y = torch.randn(3, 4, requires_grad=True)
    assert "MSEFastPath" in mse_loss(y, torch.zeros(3, 4)).grad_fn.name()
    assert "MSEFastPath" in mse_loss(y.t(), torch.zeros(3), num_models=4).grad_fn.name()
    trainable = torch.zeros(3, 4, requires_grad=True)
    mse_loss(y, trainable).backward()
    torch.testing.assert_close(trainable.grad, -y.grad)


@pytest.mark.parametrize("num_models", [None, 3])
def test_mse_loss_derivatives(num_models: int | None) -> None:
    y, target = torch.randn(2, 3, 4, dtype=torch.float64)
    y.requires_grad_()

    def loss(y: Tensor) -> Tensor:
        return mse_loss(y, target, num_models=num_models)

    assert torch.autograd.gradcheck(loss, (y,), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(loss, (y,))
    (jacobian,) = torch.func.jacrev(lambda y: mse_loss(y, target).unsqueeze(0))(y.detach())
    torch.testing.assert_close(jacobian, (y - target).detach() / 6)
