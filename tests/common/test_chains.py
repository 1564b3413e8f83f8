"""The walk through a chain of layers, and calls that are not those of the layers' classes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, NPU, RealNPU, fit, formula, ode
from npu_kernels.interop import reference_layers
from tests.support.fits import QUICK, rows


class Doubled(NAU):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Chain(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Same(NPU):
    """Has no method of a call."""


def model_of(last: Callable[..., nn.Module] = NAU) -> nn.Sequential:
    return nn.Sequential(NPU(2, 3), nn.Sequential(nn.Identity(), last(3, 2)))


def test_a_chain_of_different_units() -> None:
    """Nested, with Identities, and of classes that change no method of a call."""
    model = model_of()
    flat = nn.Sequential(model[0], model[1][1])
    assert str(formula.extract(model)) == str(formula.extract(flat))
    formula.extract(nn.Sequential(Same(2, 3), NAU(3, 2)))


@pytest.mark.parametrize("method", ["forward", "_call_impl", "__call__"])
@pytest.mark.parametrize("kind", [NPU, nn.Module])
def test_methods_replaced_on_a_class(
    kind: type[nn.Module], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (kind, method) == (nn.Module, "forward"):
        return  # every layer has a forward
    monkeypatch.setattr(kind, method, lambda self, x: x)
    for layer in (NPU(2, 3), Same(2, 3)):
        with pytest.raises(TypeError, match=r"^extract: module"):
            formula.extract(nn.Sequential(layer, NAU(3, 2)))


def test_a_chain_that_calls_its_parts_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    with monkeypatch.context() as patch:
        patch.setattr(nn.Sequential, "__iter__", lambda self: iter(()))
        with pytest.raises(TypeError, match=r"^extract: module"):
            formula.extract(model)
    formula.extract(model)
    model[1].forward = lambda x: x
    with pytest.raises(TypeError, match=r"^extract: module"):
        formula.extract(model)


def test_eager_layers_compute_what_their_classes_say() -> None:
    """Their forward is another one, of the same formula."""
    model = nn.Sequential(reference_layers.RealNPU(2, 3), NAU(3, 1))
    assert "cos" in str(formula.extract(model))
    with pytest.raises(TypeError, match=r"^rollout: .* with their own forward"):
        ode.rollout(nn.Sequential(model[0], NAU(3, 2)), torch.ones(2), steps=2, dt=0.1)


def test_formulas_of_other_calls() -> None:
    """A formula is read by the layers' classes; one model of several is copied with any call."""
    for model, name in ((model_of(Doubled), "Doubled"), (Chain(NAU(2, 2)), "Chain")):
        with pytest.raises(TypeError, match=rf"^extract: module .*got {name}.*"):
            formula.extract(model)
        x = torch.rand(5, 2)
        assert torch.equal(formula.select(model)(x), model(x))


def test_rollouts_of_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    model, u0 = nn.Sequential(RealNPU(1, 2), NAU(2, 1)), torch.ones(1)
    monkeypatch.setattr(NAU, "forward", lambda self, x: x.sum(-1, keepdim=True))
    with pytest.raises(TypeError, match=r"^rollout: .* with their own forward"):
        ode.rollout(model, u0, steps=2, dt=0.1)


def test_fit_of_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets of any size are divided for a sum alone: this unit adds 1 to it."""
    forward: Any = NAU.forward
    monkeypatch.setattr(NAU, "forward", lambda self, x: forward(self, x) + 1)
    x = rows(1, 2)
    model = nn.Sequential(
        RealNPU(2, 1, num_models=16, dtype=torch.float64),
        NAU(1, 1, num_models=16, clip=False, dtype=torch.float64),
    )
    x = x.double()
    y = 1000 * x[:, :1] * x[:, 1:] + 1
    result = fit(model, x, y, recipe=QUICK)
    torch.testing.assert_close(result.model(x), y, rtol=1e-4, atol=0)


def test_a_fit_sees_units_between_identities() -> None:
    """Their factors take up targets of any size."""
    options: Any = {"num_models": 16, "dtype": torch.float64}
    units = RealNPU(2, 1, **options), NAU(1, 1, clip=False, **options)
    x = rows(1, 2).double()
    y = 1e9 * x[:, :1] * x[:, 1:]
    result = fit(nn.Sequential(nn.Identity(), *units), x, y, recipe=QUICK)
    torch.testing.assert_close(result.model(x), y, rtol=1e-4, atol=0)
