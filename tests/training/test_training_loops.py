"""The loops of `training.run` make the same numbers: what is frozen, held in part, or called in
another way."""

import copy
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, backend_for, use_backend
from npu_kernels._loops import captured, plan
from npu_kernels._loops.steps import Ordinary
from npu_kernels.training import Run, run
from npu_kernels.training import _runs as runs
from tests.conftest import needs_library
from tests.training.test_training_run import MODELS, NOTICE, assert_same, data

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
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[nn.Module], Any],
    **settings: Any,
) -> list[Run]:
    """The run in C++, and by the ordinary loop; prepare: freezes parameters, returns an optimiser
    or None."""
    results = []
    for loop in (plan.Fused, Ordinary):
        with monkeypatch.context() as patch:
            patch.setattr(runs, "loop_for", lambda *_, loop=loop: (loop, None))
            twin = copy.deepcopy(model)
            optimizer = prepare(twin)
            more = {} if optimizer is None else {"optimizer": optimizer}
            x, y = data(None, NUMBERS)
            results.append(run(twin, x, y, steps=7, **{"lr": 0.01, **more, **settings}))
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
    name: str, project: bool | float, models: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loop clamps them as `project_` does, and changes them in no other way."""
    model = outside(models)
    penalties = {"l1": 1e-3, "madsen": 1e-3}
    fused, ordinary = in_each_loop(
        model, monkeypatch, PREPARED[name], project=project, penalties=penalties
    )
    assert [fused.fused, ordinary.fused] == [True, False]
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
def test_a_frozen_layer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and gradients of one layer come from one kernel."""
    model = RealNPU(2, 3, num_models=3, dtype=NUMBERS)
    with torch.no_grad():
        model.gate.copy_(torch.tensor([1.5, -0.5], dtype=NUMBERS).expand(3, 2))
    fused, ordinary = in_each_loop(model, monkeypatch, freeze("gate"))
    assert_same(fused, ordinary, 1e-11)
    assert torch.equal(fused.model.gate[0], torch.tensor([1.0, 0.0], dtype=NUMBERS))  # type: ignore[index]
    before = fused.model.gate._version
    run(fused.model, *data(None, NUMBERS), steps=1, lr=0.01)
    assert fused.model.gate._version > before  # type: ignore[operator]


def test_gradients_do_not_add_up() -> None:
    """Gradients of parameters that the optimiser does not hold do not add up either."""
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


def _forward(part: nn.Module) -> None:
    part.forward = _doubled(part)  # type: ignore[method-assign]


def _call(part: nn.Module) -> None:
    part._call_impl = _doubled(part)  # type: ignore[method-assign]


def _compiled(part: nn.Module) -> None:
    part._compiled_call_impl = _doubled(part)


def _forward_of_its_class(part: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = type(part).forward
    monkeypatch.setattr(type(part), "forward", lambda self, x: 2 * forward(self, x))


def _call_of_its_class(part: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    call = type(part).__call__
    monkeypatch.setattr(type(part), "__call__", lambda self, x: 2 * call(self, x))


REPLACED = {
    "forward": (_forward, "forward of {} is replaced"),
    "call": (_call, "_call_impl of {} is replaced"),
    "compiled": (_compiled, "{} is compiled"),
}


@pytest.mark.parametrize("path", ["", "0", "1", "1.0"])
@pytest.mark.parametrize("name", REPLACED)
def test_calls_that_are_replaced(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own losses; the reason names what is replaced."""
    change, reason = REPLACED[name]
    monkeypatch.setattr(runs, "_noticed", set())
    model = nn.Sequential(NPU(2, 4, dtype=NUMBERS), nn.Sequential(NAU(4, 3, dtype=NUMBERS)))
    part = model.get_submodule(path)
    change(part)
    x, y = data(None, NUMBERS)
    expected = nn.functional.mse_loss(model(x), y)
    for obstacle, tensor in ((plan.obstacle, x), (captured.obstacle, CUDA)):
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
            optimizer = torch.optim.Adam(model.parameters())
            if tensor is CUDA or backend_for(x) == "cpu":
                assert obstacle(model, optimizer, tensor) == reason.format(type(part).__name__)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{NOTICE}")
        result = run(model, x, y, steps=1, lr=0.01)
    assert not result.fused
    torch.testing.assert_close(result.losses[0], expected)


@pytest.mark.parametrize("change", [_forward_of_its_class, _call_of_its_class])
@pytest.mark.parametrize("path", ["", "0", "1.0"])
def test_calls_that_are_replaced_on_the_class(
    path: str, change: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's own losses, as where its instance has another forward."""
    model = nn.Sequential(NPU(2, 4, dtype=NUMBERS), nn.Sequential(NAU(4, 3, dtype=NUMBERS)))
    x, y = data(None, NUMBERS)
    part = model.get_submodule(path)
    change(part, monkeypatch)
    expected = nn.functional.mse_loss(model(x), y)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    reason = captured.obstacle(model, torch.optim.Adam(model.parameters()), CUDA)
    assert f"of {type(part).__name__} is replaced" in str(reason)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", f".*{NOTICE}")
        result = run(model, x, y, steps=1, lr=0.01)
    assert not result.fused
    torch.testing.assert_close(result.losses[0], expected)


class _Cuda:
    is_cuda, device = True, torch.device("cuda")


CUDA: Any = _Cuda()


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


# ---- obstacles -----------------------------------------------------------------------------------


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


MODEL_OBSTACLES: dict[str, tuple[Callable[[nn.Sequential], Any], str]] = {
    "empty": (lambda m: [m.pop(0) for _ in range(2)], "the model is empty"),
    "wide": (lambda m: m.append(NAU(3, plan.WIDEST_NAU + 1)),
             "torch's own product is faster for a NAU"),
    "deep": (lambda m: m.append(NAU(plan.WIDEST_NAU + 1, 3)),
             "torch's own product is faster for a NAU"),
    "pruned": (lambda m: m[1]._parameters.pop("weight"), "weight of NAU is pruned or parametrized"),
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


def _why(model: nn.Module, optimizer: Any = None, x: Tensor | None = None) -> str | None:
    x = torch.rand(5, 2) if x is None else x
    return plan.obstacle(model, optimizer or torch.optim.Adam(model.parameters()), x)


def _model() -> Any:
    return MODELS["npu nau"](None, torch.float32)


@needs_library
@pytest.mark.parametrize("name", MODEL_OBSTACLES)
def test_obstacles_of_the_model(name: str) -> None:
    change, reason = MODEL_OBSTACLES[name]
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    assert _why(model, optimizer) is None
    change(model)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(_why(model, optimizer))


@needs_library
def test_obstacles_of_the_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    assert _why(model, x=torch.rand(5, 2).half()) == "torch.float16 is neither float32 nor float64"
    assert "C++ kernels are not used" in str(_why(model, x=torch.rand(5, 2, device="meta")))
    with use_backend("reference"):
        assert "C++ kernels are not used" in str(_why(model))
    for name, x in (("cpu", torch.rand(5, 2, device="meta")), ("triton", torch.rand(5, 2))):
        with use_backend(name):  # it cannot run there: the model's call says so, if it has units
            assert "C++ kernels are not used" in str(_why(model, x=x))
    with monkeypatch.context() as patch:  # no library
        patch.setattr("npu_kernels._operators.dispatch._cpu_runs", False)
        patch.setattr("npu_kernels._operators.dispatch._chosen", {"cpu": "reference"})
        assert "C++ kernels are not used" in str(_why(model))
    with monkeypatch.context() as patch:
        patch.setattr(plan, "is_compiling", lambda: True)
        assert "torch.compile" in str(_why(model))
    with torch.autocast("cpu"):
        assert "autocast" in str(_why(model))
    with torch.inference_mode():
        assert "inference mode" in str(_why(model))
        made_within = _model()
    assert "inference mode" in str(_why(made_within))
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert _why(model) == "a module has hooks"
    finally:
        handle.remove()
    torch.set_float32_matmul_precision("medium")
    try:
        assert "precision of float32 products" in str(_why(model))
        assert _why(model.double(), x=torch.rand(5, 2).double()) is None
    finally:
        torch.set_float32_matmul_precision("highest")
    assert _why(model.float()) is None


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
    "no count": (lambda s: s.pop("step"), "state is of other settings"),
    "other names": (lambda s: s.update(square_avg=s.pop("exp_avg")), "state is of other settings"),
}


@needs_library
@pytest.mark.parametrize("name", STATES)
def test_states_that_are_not_plain(name: str) -> None:
    change, reason = STATES[name]
    model, optimizer, state = _stepped()
    assert _why(model, optimizer) is None
    change(state)
    assert reason in str(_why(model, optimizer))


@needs_library
def test_states_of_other_settings() -> None:
    """RMSprop keeps more where it is centered or has a momentum."""
    for name, value in (("centered", True), ("momentum", 0.5)):
        model, optimizer, _ = _stepped(torch.optim.RMSprop)
        assert _why(model, optimizer) is None
        optimizer.param_groups[0][name] = value
        assert "of other settings" in str(_why(model, optimizer))


@needs_library
@pytest.mark.parametrize("name", ["amsgrad", "capturable", "differentiable"])
def test_settings_of_optimizers(name: str) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.param_groups[0][name] = True
    assert _why(model, optimizer) == "the optimiser is amsgrad, capturable or differentiable"


@needs_library
@pytest.mark.parametrize("name", ["lr", "eps", "betas", "alpha", "weight_decay", "momentum"])
def test_settings_that_are_tensors(name: str) -> None:
    model = _model()
    kind: Any = torch.optim.RMSprop if name in ("alpha", "momentum") else torch.optim.Adam
    optimizer = kind(model.parameters())
    value: Any = torch.tensor(0.5)
    optimizer.param_groups[0][name] = (0.9, value) if name == "betas" else value
    assert _why(model, optimizer) == "a setting of the optimiser is a tensor"


@needs_library
@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_of_optimizers(register: str) -> None:
    model = _model()
    optimizer = torch.optim.Adam(model.parameters())
    handle = getattr(optimizer, register)(lambda *_: None)
    assert _why(model, optimizer) == "the optimiser has hooks"
    handle.remove()
    assert _why(model, optimizer) is None
    handle = getattr(
        sys.modules["torch.optim.optimizer"], register.replace("register_", "register_optimizer_")
    )(lambda *_: None)
    try:
        assert _why(model, optimizer) == "the optimiser has hooks"
    finally:
        handle.remove()


# ---- what C++ gets -------------------------------------------------------------------------------


@needs_library
@pytest.mark.parametrize("maximize", [False, True])
def test_rmsprop_maximizes(maximize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weight decay keeps its sign."""

    def prepare(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(
            model.parameters(), maximize=maximize, weight_decay=0.1, centered=True
        )

    fused, ordinary = in_each_loop(outside(2), monkeypatch, prepare, lr=1e-3, project=False)
    assert_same(fused, ordinary, 1e-10)


@needs_library
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop])
def test_infinite_weights_stay(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gradients that are not finite count as 0: no decay makes nan of them."""
    model = NAU(2, 3, clip=False, dtype=NUMBERS)
    with torch.no_grad():
        model.weight.fill_(torch.inf)
    for result in in_each_loop(
        model, monkeypatch, lambda m: kind(m.parameters()), project=False, nonfinite="zero"
    ):
        assert torch.equal(result.model.weight, model.weight)  # type: ignore[arg-type]


@needs_library
def test_groups_and_states_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
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
        outside(2), monkeypatch, prepare, project=False, penalties={"paper": 0.1, "l1": 0.2}
    )
    assert_same(fused, ordinary, 1e-10)


@needs_library
def test_options_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
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
        fused, ordinary = in_each_loop(layer, monkeypatch, lambda _: None, project=False, lr=1e-3)
        assert_same(fused, ordinary, 1e-9)
