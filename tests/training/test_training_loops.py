"""The loops of `training.run` make the same numbers: what is frozen, held in part, or called in
another way."""

import contextlib
import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from torch import Tensor, nn

from npu_kernels import (
    NAU,
    NMRU,
    NMU,
    NPU,
    NaiveNPU,
    RealNPU,
    backend_for,
)
from npu_kernels.training import TrainingResult, run
from tests.conftest import needs_library
from tests.support.loops import NOTICE, one_by_one, why
from tests.training.test_training_obstacles import OnGpu, _model, _overlap
from tests.training.test_training_run import MODELS, assert_same, data

NUMBERS = torch.float64


def outside(models: int | None) -> nn.Sequential:
    """A chain whose parameters lie outside of their intervals."""
    options: dict[str, Any] = {"num_models": models, "dtype": NUMBERS}
    model = nn.Sequential(
        NPU(2, 3, **options), NMU(3, 4, clip=False, **options), NAU(4, 3, clip=False, **options)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                torch.linspace(-1.6, 1.7, parameter.numel(), dtype=NUMBERS).view_as(parameter)
            )
    return model


def in_each_loop(
    model: nn.Module,
    prepare: Callable[[nn.Module], Any],
    **settings: Any,
) -> list[TrainingResult]:
    """The run in C++, and by the ordinary loop; prepare: freezes parameters, returns an optimizer
    or None."""
    results = []
    for loop in (contextlib.nullcontext(), one_by_one()):
        twin = copy.deepcopy(model)
        optimizer = prepare(twin)
        more = {} if optimizer is None else {"optimizer": optimizer}
        with loop:
            results.append(
                run(twin, *data(None, NUMBERS), steps=7, **{"lr": 0.01, **more, **settings})
            )
    assert [result.fused for result in results] == [True, False]
    return results


def freeze(*names: str) -> Callable[[nn.Module], None]:
    def prepare(model: nn.Module) -> None:
        for name in names:
            model.get_parameter(name).requires_grad_(False)

    return prepare


ALL = ("0.weight_re", "0.weight_im", "0.gate", "1.weight", "2.weight")
PREPARED: dict[str, Callable[[nn.Module], Any]] = {
    "gate": freeze("0.gate"),
    "weights": freeze("0.weight_re", "1.weight"),
    "first layers": freeze(*ALL[:4]),
    "all": freeze(*ALL),
    "held in part": lambda model: torch.optim.Adam([model[0].weight_im, model[2].weight]),
    "held in part, two groups": lambda model: torch.optim.RMSprop(
        [
            {"params": [model[2].weight], "alpha": 0.5},
            {"params": [model[0].weight_re], "momentum": 0.5},
        ]
    ),
}


@needs_library
@pytest.mark.parametrize("models", [None, 3, 40])
@pytest.mark.parametrize("project", [False, True, 0.4])
@pytest.mark.parametrize("name", PREPARED)
def test_parameters_that_are_not_trained(
    name: str, project: bool | float, models: int | None
) -> None:
    """Each loop clamps them as `project_` does, and changes them in no other way."""
    model = outside(models)
    penalties = {"l1": 1e-3, "madsen": 1e-3}
    fused, ordinary = in_each_loop(model, PREPARED[name], project=project, penalties=penalties)
    assert_same(fused, ordinary, 1e-10)
    held = {
        id(p) for group in fused.optimizer.param_groups for p in group["params"] if p.requires_grad
    }
    for (path, parameter), before in zip(
        fused.model.named_parameters(), model.parameters(), strict=True
    ):
        assert parameter.grad is None
        assert ordinary.model.get_parameter(path).grad is None or parameter.requires_grad
        if id(parameter) in held:
            continue
        clamps = project is not False and (path.endswith("gate") or project == 0.4)
        low, high = {"0": (-0.4, 0.4), "1": (0.0, 1.0), "2": (-1.0, 1.0)}[path[0]]
        low, high = (0.0, 1.0) if path.endswith("gate") else (low, high)
        assert torch.equal(parameter, before.clamp(low, high) if clamps else before)


@needs_library
def test_a_frozen_layer_alone() -> None:
    """Losses and gradients of one layer come from one kernel."""
    model = RealNPU(2, 3, num_models=3, dtype=NUMBERS)
    with torch.no_grad():
        model.gate.copy_(torch.tensor([1.5, -0.5], dtype=NUMBERS).expand(3, 2))
    fused, ordinary = in_each_loop(model, freeze("gate"))
    assert_same(fused, ordinary, 1e-11)
    assert torch.equal(fused.model.gate[0], torch.tensor([1.0, 0.0], dtype=NUMBERS))  # type: ignore[index]
    before = fused.model.gate._version
    run(fused.model, *data(None, NUMBERS), steps=1, lr=0.01)
    assert fused.model.gate._version > before  # type: ignore[operator]


def test_gradients_do_not_add_up() -> None:
    """Gradients of parameters that the optimizer does not hold do not add up either."""
    model = nn.Sequential(NPU(2, 3, dtype=NUMBERS), nn.Identity())
    x, y = data(None, NUMBERS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{NOTICE}")
        for steps in (1, 5):
            twin = copy.deepcopy(model)
            optimizer = torch.optim.Adam([twin[0].gate], lr=0.0)  # type: ignore[list-item]
            run(twin, x, y, steps=steps, optimizer=optimizer, project=False)
            last = twin[0].weight_re.grad
            if steps == 1:
                first = last
    torch.testing.assert_close(first, last)


# ---- calls that are not the class's --------------------------------------------------------------


def _doubled(part: nn.Module) -> Callable[[Tensor], Tensor]:
    forward = type(part).forward
    return lambda x: 2 * forward(part, x)


def _forward(part: nn.Module, patch: pytest.MonkeyPatch) -> None:
    part.forward = _doubled(part)  # type: ignore[method-assign]


def _call(part: nn.Module, patch: pytest.MonkeyPatch) -> None:
    part._call_impl = _doubled(part)  # type: ignore[method-assign]


def _compiled(part: nn.Module, patch: pytest.MonkeyPatch) -> None:
    part._compiled_call_impl = _doubled(part)


def _forward_of_its_class(part: nn.Module, patch: pytest.MonkeyPatch) -> None:
    forward = type(part).forward
    patch.setattr(type(part), "forward", lambda self, x: 2 * forward(self, x))


def _call_of_its_class(part: nn.Module, patch: pytest.MonkeyPatch) -> None:
    call = type(part).__call__
    patch.setattr(type(part), "__call__", lambda self, x: 2 * call(self, x))


REPLACED = {
    "forward": (_forward, "forward of {} is replaced"),
    "call": (_call, "_call_impl of {} is replaced"),
    "compiled": (_compiled, "{} is compiled"),
    "forward of the class": (_forward_of_its_class, "of {} is replaced"),
    "call of the class": (_call_of_its_class, "of {} is replaced"),
}


@pytest.mark.parametrize("path", ["", "0", "1", "1.0"])
@pytest.mark.parametrize("name", REPLACED)
def test_calls_that_are_replaced(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own losses; the reason names what is replaced."""
    change, reason = REPLACED[name]
    model = nn.Sequential(NPU(2, 4, dtype=NUMBERS), nn.Sequential(NAU(4, 3, dtype=NUMBERS)))
    part = model.get_submodule(path)
    change(part, monkeypatch)
    x, y = data(None, NUMBERS)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for tensor in (x, x.as_subclass(OnGpu)):
        if tensor is not x or backend_for(x) == "cpu":
            assert reason.format(type(part).__name__) in str(why(model, x=tensor, y=y))
    expected = nn.functional.mse_loss(model(x), y)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{NOTICE}")
        result = run(model, x, y, steps=1, lr=0.01)
    assert not result.fused
    torch.testing.assert_close(result.losses[0], expected)


@needs_library
def test_subclasses_call_their_own() -> None:
    class Chain(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Layer(NAU):
        def __call__(self, x: Tensor) -> Tensor:
            return 2 * super().__call__(x)

    x, y = data(None, torch.float32)
    for model in (Chain(NAU(2, 3)), nn.Sequential(Layer(2, 3))):
        expected = nn.functional.mse_loss(model(x), y)
        with pytest.warns(UserWarning, match="(forward of Chain|__call__ of Layer) is replaced"):
            result = run(model, x, y, steps=1, lr=0.01)
        assert not result.fused
        torch.testing.assert_close(result.losses[0], expected)


# ---- what C++ gets -------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize("maximize", [False, True])
def test_rmsprop_maximizes(maximize: bool) -> None:
    """Weight decay keeps its sign."""

    def prepare(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(
            model.parameters(), maximize=maximize, weight_decay=0.1, centered=True
        )

    fused, ordinary = in_each_loop(outside(2), prepare, lr=1e-3, project=False)
    assert_same(fused, ordinary, 1e-10)


@needs_library
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop])
def test_infinite_weights_stay(kind: Any) -> None:
    """Where gradients that are not finite count as 0: no decay makes nan of them."""
    model = NAU(2, 3, clip=False, dtype=NUMBERS)
    with torch.no_grad():
        model.weight.fill_(torch.inf)
    for result in in_each_loop(
        model, lambda m: kind(m.parameters()), project=False, nonfinite="zero"
    ):
        assert torch.equal(result.model.weight, model.weight)  # type: ignore[arg-type]


@needs_library
def test_groups_and_states_in_another_order() -> None:
    """Each parameter has its own group's settings; a state has names, not an order."""

    def prepare(model: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam([
            {"params": [model[2].weight, model[0].gate], "betas": (0.5, 0.6), "weight_decay": 0.1},
            {"params": [model[1].weight, model[0].weight_re], "maximize": True, "eps": 1e-2},
            {"params": [model[0].weight_im], "decoupled_weight_decay": True, "weight_decay": 0.5},
        ])  # fmt: skip
        for parameter in model.parameters():
            ones = torch.ones_like(parameter)
            optimizer.state[parameter] = {
                "exp_avg_sq": 4 * ones,
                "exp_avg": ones,
                "step": torch.tensor(3.0),
            }
        return optimizer

    fused, ordinary = in_each_loop(
        outside(2), prepare, project=False, penalties={"paper": 0.1, "l1": 0.2}
    )
    assert_same(fused, ordinary, 1e-10)


@needs_library
def test_options_of_layers() -> None:
    """Each option reaches its kernel; the NMRU's eps counts in training mode only."""
    chains = [
        NaiveNPU(2, 3, eps=0.3, dtype=NUMBERS),
        RealNPU(2, 3, gate_gradient="straight_through", dtype=NUMBERS),
        NMU(2, 3, clip=False, dtype=NUMBERS),
        NAU(2, 3, clip=False, dtype=NUMBERS),
        *MODELS["nmru"](None, NUMBERS),
    ]
    chains += [
        NMRU(2, 3, clip=False, eps=0.2, dtype=NUMBERS),
        NMRU(2, 3, eps=0.2, dtype=NUMBERS).eval(),
    ]
    for layer in chains:
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(3)
        fused, ordinary = in_each_loop(layer, lambda _: None, project=False, lr=1e-3)
        assert_same(fused, ordinary, 1e-9)


# ---- memory and data -----------------------------------------------------------------------------

LAZY: dict[str, Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "a negated parameter": lambda m, x, y: (
        setattr(m[1], "weight", nn.Parameter(torch._neg_view(-m[1].weight.detach()))) or (x, y)
    ),
    "overlapping parameters": lambda m, x, y: (_overlap(m[0].weight_re, m[1].weight) or (x, y)),
    "targets without memory": lambda m, x, y: (x, torch._efficientzerotensor(y.shape)),
    "x in a parameter": lambda m, x, y: (
        m[0].weight_re.data.copy_(x[:6]).detach(), y[:6],
    ),
}  # fmt: skip


@needs_library
@pytest.mark.parametrize("name", LAZY)
@pytest.mark.filterwarnings(f"ignore:.*{NOTICE}")
def test_memory_that_the_ordinary_loop_trains(name: str) -> None:
    """The losses of a loop written by hand."""
    results = []
    for by_hand in (True, False):
        torch.manual_seed(0)
        model = _model()
        x, y = LAZY[name](model, *data(None, torch.float32))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        if not by_hand:
            result = run(model, x, y, steps=3, optimizer=optimizer, project=False)
            assert not result.fused
            results.append(result.losses)
            continue
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        results.append(torch.stack(losses))
    torch.testing.assert_close(*results)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a forward hook": lambda m: m[0].register_forward_hook(lambda module, x, y: 2 * y),
    "a gradient hook": lambda m: m[0].weight_re.register_hook(torch.neg),
    "another forward": lambda m: setattr(m[0], "forward", lambda x: type(m[0]).forward(m[0], 2 * x)),
    "one more layer": lambda m: m.append(nn.Tanh()),
    "pruned": lambda m: nn.utils.prune.l1_unstructured(m[0], "weight_re", 0.5),
    "parametrized": lambda m: nn.utils.parametrizations.weight_norm(m[1], "weight"),
    "other strides": lambda m: setattr(
        m[0].weight_re, "data", m[0].weight_re.data.t().contiguous().t()
    ),
}  # fmt: skip


@needs_library
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings(f"ignore:.*{NOTICE}")
def test_what_a_callback_changes(name: str) -> None:
    """The ordinary loop makes the steps from then on: the losses of a loop written by hand."""
    x, y = data(None, torch.float32)
    models = [_model() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    by_hand, in_run = (torch.optim.Adam(model.parameters(), 0.01) for model in models)
    losses = []
    for step in range(8):
        if step == 4:
            CHANGES[name](models[0])
        by_hand.zero_grad()
        loss = nn.functional.mse_loss(models[0](x), y)
        loss.backward()
        by_hand.step()
        losses.append(loss.detach())

    def change(part: TrainingResult) -> None:
        assert part.fused == (part.n_steps <= 4)
        if part.n_steps == 4:
            CHANGES[name](models[1])

    result = run(
        models[1],
        x,
        y,
        steps=8,
        optimizer=in_run,
        project=False,
        callback_every=2,
        callbacks=change,
    )
    assert not result.fused
    torch.testing.assert_close(result.losses, torch.stack(losses))


@needs_library
@pytest.mark.parametrize(("layer", "attribute", "value", "message"), [
    (NPU, "eps", 1e-45, "npu: eps must be finite and greater than 0 in float32, got 1e-45"),
    (NPU, "eps", 1e39, "npu: eps must be finite and greater than 0 in float32, got 1e"),
    (NPU, "gate_gradient", "both", "npu: gate_gradient must be"),
    (NMRU, "eps", -1.0, "nmru: eps must be 0, or finite and greater than 0"),
    (NMRU, "sign", "none", "nmru: sign must be"),
])  # fmt: skip
def test_options_that_a_layer_refuses(layer: Any, attribute: str, value: Any, message: str) -> None:
    model, (x, y) = layer(2, 3), data(None, torch.float32)
    setattr(model, attribute, value)
    before = [p.detach().clone() for p in model.parameters()]
    for call in (lambda: model(x), lambda: run(model, x, y, steps=1, lr=0.01)):
        with pytest.raises(ValueError, match=message):
            call()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@needs_library
def test_centered_rmsprop_of_a_large_gradient() -> None:
    """A finite mean whose square is infinite makes the step 0, and no nan."""
    model = NAU(1, 1, clip=False)
    nn.init.constant_(model.weight, 0.5)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, centered=True)
    x, y = torch.tensor([[1e12], [1.0]]), torch.zeros(2, 1)
    assert run(model, x, y, steps=2, optimizer=optimizer).fused
    assert optimizer.state[model.weight]["square_avg"].isinf()
    assert model.weight.item() == 0.5
