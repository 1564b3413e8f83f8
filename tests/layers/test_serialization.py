"""Copies, files, hooks and the other services of torch.nn, on a model of several layers."""

import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from npu_kernels import NAC, NALU, NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, iNALU
from npu_kernels.interop import reference_layers
from tests.support.compare import assert_equal, assert_near
from tests.support.samples import normwise_error

UNITS = [NPU, RealNPU, NaiveNPU, NAU, NMU, NMRU, NAC, NALU, iNALU]
every_unit = pytest.mark.parametrize("name", [unit.__name__ for unit in UNITS])


def _model() -> nn.Sequential:
    return nn.Sequential(NPU(3, 6, init_im=0.3), NAU(6, 4), NMU(4, 3), iNALU(3, 2))


def _gradients(
    model: Callable[[Tensor], Tensor], parameters: list[nn.Parameter], x: Tensor
) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).square().sum(), parameters))


@every_unit
@pytest.mark.parametrize("num_models", [None, 3])
def test_state_dict_both_ways_with_the_eager_layers(name: str, num_models: int | None) -> None:
    """Strictly, through a file with weights only; values and gradients agree."""
    import npu_kernels

    fused, eager = (
        getattr(module, name)(4, 3, num_models=num_models)
        for module in (npu_kernels, reference_layers)
    )
    x = torch.rand(5, 4) + 0.3
    for source, target in ((fused, eager), (eager, fused)):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.uniform_(0.1, 0.9)
        file = io.BytesIO()
        torch.save(source.state_dict(), file)
        file.seek(0)
        target.load_state_dict(torch.load(file, weights_only=True))
        assert normwise_error(target(x), source(x)) < 1e-6
        assert_near(
            _gradients(target, list(target.parameters()), x),
            _gradients(source, list(source.parameters()), x),
            1e-5,
        )


def test_assign_and_meta() -> None:
    """A model on `meta` takes weights by assignment, or memory by to_empty and a new start."""
    model = _model()
    with torch.device("meta"):
        empty = _model()
    assert all(p.is_meta for p in empty.parameters())
    assert empty(torch.empty(5, 3, device="meta")).shape == (5, 2)
    empty.load_state_dict(model.state_dict(), assign=True)
    x = torch.randn(5, 3)
    assert torch.equal(empty(x), model(x))

    with torch.device("meta"):
        empty = _model()
    empty.to_empty(device="cpu")
    torch.manual_seed(3)
    for layer in empty:
        layer.reset_parameters()
    torch.manual_seed(3)
    assert_equal(empty.parameters(), _model().parameters())


def test_hooks() -> None:
    """Forward, forward-pre and full backward hooks see what they see on nn.Linear."""
    layer, x = NPU(3, 2), torch.randn(5, 3, requires_grad=True)
    seen: dict[str, tuple[torch.Size, ...]] = {}
    layer.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    layer.register_forward_hook(lambda module, inputs, output: 3 * output)
    layer.register_full_backward_pre_hook(
        lambda module, grads: seen.update(pre=tuple(g.shape for g in grads))
    )
    layer.register_full_backward_hook(
        lambda module, grad_in, grad_out: seen.update(
            after=tuple(g.shape for g in (*grad_in, *grad_out))
        )
    )
    y = layer(x)
    assert torch.equal(y, 3 * layer.forward(2 * x))
    y.sum().backward()
    assert seen == {"pre": (torch.Size([5, 2]),), "after": (torch.Size([5, 3]), torch.Size([5, 2]))}
    order: list[str] = []
    for name, parameter in layer.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: order.append(name))
    layer(x).sum().backward()
    assert sorted(order) == ["gate", "weight_im", "weight_re"]


class _Exp(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.exp()

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight.log()


@every_unit
def test_parametrize_and_prune_every_unit(name: str) -> None:
    import npu_kernels

    for change in ("parametrize", "prune"):
        layer = getattr(npu_kernels, name)(4, 3)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(0.1, 0.9)
        x, which = torch.rand(5, 4) + 0.3, next(iter(dict(layer.named_parameters())))
        before = layer(x)
        if change == "parametrize":
            parametrize.register_parametrization(layer, which, _Exp())
            assert normwise_error(layer(x), before) < 1e-5
            layer(x).sum().backward()
            assert layer.parametrizations[which].original.grad.any()
            parametrize.remove_parametrizations(layer, which)
            assert normwise_error(layer(x), before) < 1e-5
        else:
            prune.random_unstructured(layer, which, amount=4)
            layer(x).sum().backward()
            assert (getattr(layer, which + "_orig").grad == 0).sum() >= 4
            prune.remove(layer, which)
            assert (getattr(layer, which) == 0).sum() == 4
            assert layer(x).isfinite().all()
