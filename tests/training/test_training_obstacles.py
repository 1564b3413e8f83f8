"""What keeps `training.run` from its fused loop: obstacles of the model, the optimizer and the
surroundings, and what a user replaces."""

import copy
import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from torch import Tensor, nn

from npu_kernels import (
    NAU,
    functional,
    optim,
    use_backend,
)
from npu_kernels.training import run
from tests.conftest import needs_library
from tests.support.building import run_forked
from tests.support.loops import NOTICE, new_notices, why
from tests.training.test_training_run import MODELS, data

OPTIMIZERS = (optim.Adam, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)


class OnGpu(Tensor):
    """A tensor of the CPU that says that it is on a GPU; what is computed from it does not."""

    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl


def _rename(layer: nn.Module) -> None:
    layer.register_parameter("more", nn.Parameter(torch.ones(1)))


def _other_shape(layer: Any) -> None:
    layer.weight = nn.Parameter(layer.weight.detach().view(6, 3))


def _transposed(layer: Any) -> None:
    layer.weight = nn.Parameter(torch.rand(6, 3).t())


def _doubles(layer: Any) -> None:
    layer.weight = nn.Parameter(layer.weight.detach().double())


def _subclass(layer: Any) -> None:
    class Own(nn.Parameter):
        pass

    layer.weight = Own(layer.weight.detach())


def _with_grad_hook(layer: Any) -> None:
    layer.weight.register_post_accumulate_grad_hook(lambda _: None)


def _made_in_inference_mode(chain: nn.Sequential) -> None:
    with torch.inference_mode():
        chain[1] = NAU(6, 3)


def _overlap(first: Tensor, second: Tensor) -> None:
    """Give parameters memory of which one number is shared."""
    memory = torch.rand(first.numel() + second.numel() - 1)
    first.data = memory[: first.numel()].view_as(first)
    second.data = memory[first.numel() - 1 :].view_as(second)


MODEL_OBSTACLES: dict[str, tuple[Callable[[nn.Sequential], Any], str]] = {
    "negated": (
        lambda m: setattr(m[1], "weight", nn.Parameter(torch._neg_view(m[1].weight.detach()))),
        "a parameter of NAU is not contiguous, lazily negated",
    ),
    "overlap": (
        lambda m: _overlap(m[0].weight_re, m[1].weight),
        "a parameter shares its memory with another tensor",
    ),
    "a clip that is no bool": (
        lambda m: setattr(m[1], "clip", "no"),
        "clip of NAU is neither True nor False",
    ),
    "wide": (lambda m: m.append(NAU(3, 129)),
             "torch's own product is faster for a NAU"),
    "deep": (lambda m: m.append(NAU(129, 3)),
             "torch's own product is faster for a NAU"),
    "widths that differ": (lambda m: m.append(NAU(4, 1)),
                           "NAU takes another number of features than it gets"),
    "pruned": (lambda m: m[1]._parameters.pop("weight"), "weight of NAU is pruned or parametrized"),
    "made in inference mode": (_made_in_inference_mode, "lazily negated, or made in inference mode"),
    "shared layer": (lambda m: m.append(m[1]), "a parameter of NAU belongs to two layers"),
    "shared memory": (
        lambda m: (
            m.append(NAU(6, 3)) and setattr(m[2], "weight", nn.Parameter(m[1].weight.detach()))
        ),
        "a parameter of NAU belongs to two layers",
    ),
    "other shape": (lambda m: _other_shape(m[1]),
                    r"a parameter of NAU has shape \(6, 3\), which is not the layer's"),
    "not contiguous": (lambda m: _transposed(m[1]), "a parameter of NAU is not contiguous"),
    "dtype": (lambda m: _doubles(m[1]),
              "a parameter of NAU is no plain parameter of torch.float32"),
    "subclass": (lambda m: _subclass(m[1]), "a parameter of NAU is no plain parameter"),
    "gradient hook": (lambda m: _with_grad_hook(m[1]), "a parameter of NAU has hooks"),
    "more parameters": (lambda m: _rename(m[1]), r"a parameter of NAU has shape \(1,\)"),
    "parameter of the chain": (_rename, "a parameter belongs to no layer"),
    "parameter of a part": (lambda m: m[1].add_module("part", nn.Linear(1, 1)),
                            "a parameter belongs to no layer"),
    "layer of a layer": (lambda m: m[1].add_module("part", NAU(1, 1)),
                         "a parameter belongs to no layer"),
    **{
        name: (
            lambda m, register=register: getattr(m[1], register)(lambda *_: None),
            "a module has hooks",
        )
        for name, register in (
            ("forward hook", "register_forward_hook"),
            ("forward pre-hook", "register_forward_pre_hook"),
            ("backward hook", "register_full_backward_hook"),
            ("backward pre-hook", "register_full_backward_pre_hook"),
        )
    },
}  # fmt: skip


def _model() -> Any:
    return MODELS["npu nau"](None, torch.float32)


@needs_library
@pytest.mark.parametrize("name", MODEL_OBSTACLES)
def test_obstacles_of_the_model(name: str) -> None:
    change, reason = MODEL_OBSTACLES[name]
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    assert why(model, optimizer) is None
    change(model)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(why(model, optimizer))


@needs_library
def test_obstacles_of_the_surroundings() -> None:
    model, x, y = _model(), torch.rand(5, 2), torch.rand(5, 3)
    half = copy.deepcopy(model).half(), None, x.half(), y.half()
    assert why(*half) == "torch.float16 is neither float32 nor float64"
    for name in ("reference", "triton"):  # the model's call may say that it cannot run
        with use_backend(name):
            assert "C++ kernels are not used" in str(why(model))
    with torch.autocast("cpu"):
        assert "autocast" in str(why(model))
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert why(model) == "a module has hooks"
    finally:
        handle.remove()
    torch.set_float32_matmul_precision("medium")
    try:
        assert "precision of float32 products" in str(why(model))
        assert why(model.double(), x=x.double()) is None
    finally:
        torch.set_float32_matmul_precision("highest")
    assert why(model.float()) is None


WITHOUT_LIBRARY = """
import torch, npu_kernels
x = torch.rand(5, 2)
result = npu_kernels.training.run(npu_kernels.NPU(2, 2), x, x, steps=1, lr=0.1)
print(result.fused)
"""


def test_without_the_library(bare_package: Path) -> None:
    run = run_forked(WITHOUT_LIBRARY, cwd=bare_package)
    assert run.stdout == "False\n"
    assert f"{NOTICE}, because the C++ kernels are not used for these tensors" in run.stderr


def _stepped(kind: Any = torch.optim.Adam, **options: Any) -> tuple[Any, Any, dict[str, Any]]:
    model = _model()
    optimizer = kind(model.parameters(), **options)
    run(model, torch.rand(5, 2), torch.rand(5, 3), steps=1, optimizer=optimizer)
    return model, optimizer, optimizer.state[model[1].weight]


STATES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "shape": (lambda s: s.update(exp_avg=s["exp_avg"].view(6, 3)), "state is not plain"),
    "fewer elements": (
        lambda s: s.update(exp_avg_sq=s["exp_avg_sq"][:1].clone()),
        "state is not plain",
    ),
    "dtype": (lambda s: s.update(exp_avg=s["exp_avg"].double()), "state is not plain"),
    "device": (lambda s: s.update(exp_avg=s["exp_avg"].to("meta")), "state is not plain"),
    "strides": (lambda s: s.update(exp_avg=torch.zeros(6, 3).t()), "state is not plain"),
    "less": (lambda s: s.pop("exp_avg_sq"), "state is of other settings"),
    "more": (
        lambda s: s.update(max_exp_avg_sq=s["exp_avg_sq"].clone()),
        "state is of other settings",
    ),
    "negated": (
        lambda s: s.update(exp_avg=torch._neg_view(s["exp_avg"])),
        "state is not plain",
    ),
    "shared memory": (
        lambda s: s.update(exp_avg=s["exp_avg_sq"]),
        "a parameter shares its memory with another tensor",
    ),
    "no count": (lambda s: s.pop("step"), "state is of other settings"),
    "other names": (lambda s: s.update(square_avg=s.pop("exp_avg")), "state is of other settings"),
}


@needs_library
@pytest.mark.parametrize("name", STATES)
def test_states_that_are_not_plain(name: str) -> None:
    change, reason = STATES[name]
    model, optimizer, state = _stepped()
    assert why(model, optimizer) is None
    change(state)
    assert reason in str(why(model, optimizer))


@needs_library
def test_states_of_other_settings() -> None:
    """RMSprop keeps more where it is centered or has a momentum."""
    for name, value in (("centered", True), ("momentum", 0.5)):
        model, optimizer, _ = _stepped(torch.optim.RMSprop)
        assert why(model, optimizer) is None
        optimizer.param_groups[0][name] = value
        assert "of other settings" in str(why(model, optimizer))


@needs_library
@pytest.mark.parametrize("name", ["amsgrad", "capturable", "differentiable"])
def test_settings_of_optimizers(name: str) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.param_groups[0][name] = True
    assert why(model, optimizer) == "the optimizer is amsgrad, capturable or differentiable"


@needs_library
@pytest.mark.parametrize("name", ["lr", "eps", "betas", "alpha", "weight_decay", "momentum"])
def test_settings_that_are_tensors(name: str) -> None:
    model = _model()
    kind: Any = torch.optim.RMSprop if name in ("alpha", "momentum") else torch.optim.Adam
    optimizer = kind(model.parameters())
    value: Any = torch.tensor(0.5)
    optimizer.param_groups[0][name] = (0.9, value) if name == "betas" else value
    assert why(model, optimizer) == "a setting of the optimizer is a tensor"


@needs_library
@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_of_optimizers(register: str) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    handle = getattr(optimizer, register)(lambda *_: None)
    assert why(model, optimizer) == "the optimizer has hooks"
    handle.remove()
    assert why(model, optimizer) is None
    handle = getattr(
        sys.modules["torch.optim.optimizer"], register.replace("register_", "register_optimizer_")
    )(lambda *_: None)
    try:
        assert why(model, optimizer) == "the optimizer has hooks"
    finally:
        handle.remove()


# ---- what a user replaces ------------------------------------------------------------------------


def _replace(patch: pytest.MonkeyPatch, target: Any, name: str, factor: Any) -> None:
    """Replace a method by one that also does what `factor` says to the parameters."""
    inner = getattr(target, name)

    @functools.wraps(inner)  # which copies the marks that torch sets on its own wrappers
    def method(*arguments: Any, **options: Any) -> Any:
        result = inner(*arguments, **options)
        groups = (arguments[0] if isinstance(target, type) else target).param_groups
        with torch.no_grad():
            for parameter in groups[0]["params"]:
                parameter.mul_(factor)
        return result

    patch.setattr(target, name, method)


@needs_library
@pytest.mark.parametrize("name", ["step", "zero_grad"])
@pytest.mark.parametrize("of_class", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_methods_of_an_optimizer_that_are_replaced(
    kind: Any, of_class: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = _model(), *data(None, torch.float32)
    optimizer = kind(model.parameters(), lr=0.0)
    assert why(model, optimizer) is None
    target = kind if of_class else optimizer
    with monkeypatch.context() as patch:
        _replace(patch, target, name, 0.5)
        assert why(model, optimizer) == f"{name} of the optimizer is replaced"
        before = [p.detach().clone() for p in model.parameters()]
        with new_notices(), pytest.warns(UserWarning, match=f"{name} of the optimizer is replaced"):
            result = run(model, x, y, steps=2, optimizer=optimizer, project=False)
    assert not result.fused
    for parameter, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), 0.25 * old)


@needs_library
def test_a_scheduler_does_not_replace_a_step() -> None:
    """Torch's wrappers, which count the calls, are no other step."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 5)
    assert "step" in vars(optimizer)
    assert why(model, optimizer) is None


def test_gradients_that_a_replaced_zero_grad_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """They add up in the ordinary loop, but for parameters of which the optimizer knows nothing."""
    model, x, y = _model(), *data(None, torch.float32)
    optimizer = torch.optim.SGD([model[1].weight], lr=0.0)
    monkeypatch.setattr(optimizer, "zero_grad", lambda *_: None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{NOTICE}")
        run(model, x, y, steps=1, optimizer=optimizer)
        first = [p.grad.clone() for p in (model[1].weight, model[0].gate)]
        run(model, x, y, steps=2, optimizer=optimizer)
    torch.testing.assert_close(model[1].weight.grad, 3 * first[0])
    torch.testing.assert_close(model[0].gate.grad, first[1])


@needs_library
@pytest.mark.parametrize("name", ["npu", "nau"])
def test_a_function_that_is_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = _model(), *data(None, torch.float32)
    inner = getattr(functional, name)
    monkeypatch.setattr(functional, name, lambda *a, **options: 2 * inner(*a, **options))
    assert why(model) == f"functional.{name} is replaced"
    expected = nn.functional.mse_loss(model(x), y)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{NOTICE}")
        result = run(model, x, y, steps=1, lr=0.01)
    torch.testing.assert_close(result.losses[0], expected)


@needs_library
@pytest.mark.filterwarnings("ignore:.*parameters")  # torch's, of a parameter twice
def test_a_parameter_twice_in_a_group() -> None:
    model = _model()
    optimizer = torch.optim.Adam([model[1].weight, model[1].weight])
    assert why(model, optimizer) == "the optimizer has a parameter twice"


@needs_library
def test_obstacles_of_the_data() -> None:
    model, x, y = _model(), torch.rand(5, 2), torch.rand(5, 3)
    assert why(model, x=torch._neg_view(x)) is None  # torch resolves it
    assert "zeros without memory" in str(why(model, y=torch._efficientzerotensor((5, 3))))
    weights = model[1].weight.detach()
    for shared in ({"x": weights.view(-1)[:10].view(5, 2)}, {"y": weights.view(-1)[3:].view(5, 3)}):
        reason = why(model, **{"x": x, "y": y, **shared})
        assert reason == "a parameter shares its memory with another tensor"
