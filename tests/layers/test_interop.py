"""Other code's layers into ours and back."""

import copy
import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils import parametrizations, prune

import npu_kernels
from npu_kernels import (
    NAC,
    NALU,
    NAU,
    NMRU,
    NMU,
    NPU,
    NaiveNPU,
    RealNPU,
    functional,
    iNALU,
    interop,
)
from npu_kernels.interop import reference_layers
from tests.conftest import compiles
from tests.support.samples import normwise_error


class PyTorchPublished(nn.Module):
    """The published PyTorch layout: [I, O] weights, torch.clamp, float32's epsilon in any dtype."""

    def __init__(
        self, in_features: int, out_features: int, imaginary: bool = True, gate: bool = True
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.eps = torch.finfo(torch.float32).eps
        self.W_real = nn.Parameter(torch.randn(in_features, out_features) / 2)
        if imaginary:
            self.W_im = nn.Parameter(torch.randn(in_features, out_features) / 2)
        if gate:
            self.g = nn.Parameter(torch.rand(in_features))

    def forward(self, x: Tensor) -> Tensor:
        g = self.g.clamp(0, 1) if hasattr(self, "g") else torch.ones_like(x[0])
        w = torch.complex(
            self.W_real, self.W_im if hasattr(self, "W_im") else torch.zeros_like(self.W_real)
        )
        r = g * (x.abs() + self.eps) + (1 - g)
        k = g * math.pi * torch.relu(-x.sign())
        return (torch.complex(r.log(), k) @ w).exp().real


class JuliaPublished(nn.Module):
    """The Julia package's layout: [O, I], the machine epsilon of the dtype, complex powers."""

    def __init__(
        self, in_features: int, out_features: int, imaginary: bool = True, gate: bool = True
    ) -> None:
        super().__init__()
        self.Re = nn.Parameter(torch.randn(out_features, in_features) / 2)
        if imaginary:
            self.Im = nn.Parameter(torch.randn(out_features, in_features) / 2)
        if gate:
            self.g = nn.Parameter(torch.rand(in_features))

    def forward(self, x: Tensor) -> Tensor:
        g = self.g.clamp(0, 1) if hasattr(self, "g") else torch.ones_like(x[0])
        w = torch.complex(self.Re, self.Im if hasattr(self, "Im") else torch.zeros_like(self.Re))
        r = g * (x.abs() + torch.finfo(x.dtype).eps) + (1 - g)
        k = g * math.pi * (x < 0)
        return (torch.complex(r.log(), k) @ w.T).exp().real


@pytest.mark.parametrize("published", [PyTorchPublished, JuliaPublished])
@pytest.mark.parametrize(
    ("imaginary", "gate", "unit"),
    [(True, True, NPU), (False, True, RealNPU), (True, False, NaiveNPU)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_published_layouts(
    published: Any, imaginary: bool, gate: bool, unit: type, dtype: torch.dtype
) -> None:
    """Values and gradients are theirs, zeros among the inputs, where another eps would show."""
    model = nn.ModuleDict({"a": published(3, 2, imaginary, gate), "b": nn.Linear(2, 1)}).to(dtype)
    x = torch.randn(9, 3, dtype=dtype)
    x[0, 0] = 0.0
    theirs = model["a"](x)
    gradients = torch.autograd.grad(theirs.sum(), list(model["a"].parameters()))
    old = {name: p for name, p in model["a"].named_parameters()}  # noqa: C416
    layer = interop.swap(model, inplace=True)["a"]
    assert type(layer) is unit
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    assert normwise_error(layer(x), theirs) < tolerance
    ours = torch.autograd.grad(layer(x).sum(), list(layer.parameters()))
    for (name, _), a, e in zip(old.items(), ours, gradients, strict=True):
        assert normwise_error(a, e.T if name in ("W_real", "W_im") else e) < tolerance

    layout = "pytorch" if published is PyTorchPublished else "julia"
    back = interop.to_reference(model, layout, inplace=True)["a"]
    assert {name: tuple(p.shape) for name, p in back.named_parameters()} == {
        n: tuple(p.shape) for n, p in old.items()
    }
    assert all(torch.equal(p, old[name]) for name, p in back.named_parameters())
    assert normwise_error(back(x), theirs) < tolerance
    swapped = interop.swap(back)
    assert type(swapped) is unit
    assert normwise_error(swapped(x), theirs) < tolerance


def test_our_modules_both_ways() -> None:
    """All layers, K models, options, mode and parameter objects."""
    model = nn.Sequential(
        NPU(3, 6, eps=1e-3, gate_gradient="straight_through", num_models=2),
        NAU(6, 5, num_models=2),
        NMU(5, 4, clip=False, num_models=2),
        NMRU(4, 4, clip=False, sign="separate", eps=1e-3, num_models=2),
        iNALU(4, 3, omega=3.0, num_models=2),
        RealNPU(3, 2, num_models=2),
        NaiveNPU(2, 2, num_models=2),
        NALU(2, 2, bias=True, num_models=2),
        NAC(2, 2, num_models=2),
    ).eval()
    x = torch.randn(2, 7, 3)
    y, objects, kinds, text = (
        model(x),
        list(model.parameters()),
        [type(m) for m in model],
        repr(model),
    )
    eager = interop.to_reference(model, inplace=True)
    assert eager is model
    assert {type(m).__module__ for m in model} == {reference_layers.__name__}
    assert repr(model) == text
    assert not any(m.training for m in model.modules())
    assert normwise_error(model(x), y) < 1e-5
    assert normwise_error(model(x.unsqueeze(1)), y.unsqueeze(1)) < 1e-5
    interop.swap(model, inplace=True)
    assert [type(m) for m in model] == kinds
    assert all(a is b for a, b in zip(model.parameters(), objects, strict=True))
    assert torch.equal(model(x), y)


def test_the_model_itself_and_shared_layers() -> None:
    layer = interop.swap(JuliaPublished(3, 3))
    assert type(layer) is NPU
    shared = PyTorchPublished(3, 3)
    model = interop.swap(nn.Sequential(shared, nn.Tanh(), shared))
    assert model[0] is model[2]
    frozen = PyTorchPublished(3, 3).requires_grad_(False)
    assert not any(p.requires_grad for p in interop.swap(frozen).parameters())


def test_what_is_not_swapped() -> None:
    """Other shapes under the same names, other layers, and what would lose something."""
    other = PyTorchPublished(3, 3)
    other.g = nn.Parameter(torch.rand(3, 3))  # a gate per weight
    with pytest.raises(
        ValueError, match=r"a different function: .* g must have shape \(3,\), got \(3,"
    ):
        interop.swap(nn.Sequential(JuliaPublished(3, 3), other))
    hooked = JuliaPublished(3, 3)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="JuliaPublished has hooks"):
        interop.swap(hooked)
    assert npu_kernels.interop is interop


# ---- public cells ---------------------------------------------------------------------------


class Cell(nn.Module):
    """A power unit as public code writes it: its own names, order of weights and eps."""

    def __init__(
        self, inputs: int, outputs: int, names: tuple[str, ...], transposed: bool, eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.in_dim, self.out_dim = inputs, outputs
        if eps:
            self.epsilon = eps
        self._names, self._transposed = names, transposed
        for name in names:
            shape = (inputs, outputs) if transposed else (outputs, inputs)
            value = torch.rand(inputs) if name in ("g", "G", "gate") else torch.randn(shape) / 2
            self.register_parameter(name, nn.Parameter(value))
        self.register_parameter("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        matrices = [p.t() if self._transposed else p for p in self.parameters() if p.dim() == 2]
        re, im = matrices if len(matrices) == 2 else (matrices[0], torch.zeros_like(matrices[0]))
        gates = [p for p in self.parameters() if p.dim() == 1]
        g = gates[0].clamp(0, 1) if gates else torch.ones_like(x[0])
        log_r = (g * (x.abs() + getattr(self, "epsilon", 1e-8)) + (1 - g)).log()
        k = math.pi * g * (x < 0)
        growth = linear(log_r, re) - linear(k, im)
        return growth.exp() * (linear(log_r, im) + linear(k, re)).cos()


PRIVATE = ("_names", "_transposed")  # attributes of Cell, and what its layers do without


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "names", [("W_real", "W_im"), ("W_real", "W_imag", "G"), ("W_hat", "W_i", "gate"), ("Re", "g")]
)
def test_cells_in_both_orders_of_their_weights(names: tuple[str, ...], transposed: bool) -> None:
    """The module's own forward tells which order it is, also where the weights are square."""
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-12)):
        for inputs, outputs in ((3, 3), (2, 4), (5, 1)):
            cell = Cell(inputs, outputs, names, transposed).to(dtype)
            layer = interop.swap(cell, allow=PRIVATE)
            x = torch.randn(9, inputs, dtype=dtype)
            x[0, 0] = 0.0
            assert isinstance(layer, (NPU, RealNPU, NaiveNPU))
            assert (layer.in_features, layer.out_features) == (inputs, outputs)
            assert normwise_error(layer(x), cell(x)) < tolerance


class _NoEps(Cell):
    def forward(self, x: Tensor) -> Tensor:
        z = x.to(torch.complex64).log()
        return linear(z, torch.complex(self.W_real, self.W_im)).exp().real


def test_a_number_that_a_cell_adds_and_does_not_state() -> None:
    cell = Cell(3, 2, ("W_real", "W_im"), False, eps=0.0)
    message = r"^swap: Cell 'a' .* x \*\* 1 as 1e-08 at x = 0, .* gives 1\.19e-07; say eps=1e-08$"
    with pytest.raises(ValueError, match=message):
        interop.swap(nn.ModuleDict({"a": cell}), allow=PRIVATE)
    with pytest.raises(ValueError, match=r"gives 0\.001; say eps=1e-08$"):
        interop.swap(cell, allow=PRIVATE, eps=1e-3)
    assert interop.swap(cell, allow=PRIVATE, eps=1e-8).eps == 1e-8
    none = _NoEps(3, 2, ("W_real", "W_im"), False, eps=0.0)
    with pytest.raises(ValueError, match="say which eps it shall add"):
        interop.swap(none, allow=PRIVATE)
    assert interop.swap(none, allow=PRIVATE, eps=1e-20).eps == 1e-20


@pytest.mark.parametrize(
    "change",
    [
        lambda forward, x: forward(x) + 0.1,
        lambda forward, x: forward(x.abs()),
        lambda forward, x: forward(x)[:, :1],
        lambda forward, x: forward(x).no_such_attribute,
        lambda forward, x: (forward(x),),
    ],
)
@pytest.mark.parametrize("inputs", [1, 3])
def test_another_function_is_refused(change: Callable[[Any, Tensor], Any], inputs: int) -> None:
    class Other(Cell):
        def forward(self, x: Tensor) -> Tensor:
            return change(super().forward, x)

    names = ("W_real", "W_im")
    model = nn.Sequential(NPU(2, inputs), Other(inputs, 3, names, False))
    message = (
        r"^swap: Other '1' .*\(W_real, W_im\) but computes a different function: with weights \[O"
    )
    with pytest.raises(ValueError, match=message):
        interop.swap(model, allow=PRIVATE)


class Altered(PyTorchPublished):
    """The published layer with one step that may be another."""

    def __init__(self, inputs: int, outputs: int, imaginary: bool, steps: dict[str, Any]) -> None:
        super().__init__(inputs, outputs, imaginary)
        self.steps = steps

    def _step(self, name: str, value: Tensor) -> Tensor:
        return self.steps.get(name, lambda value: value)(value)

    def forward(self, x: Tensor) -> Tensor:
        x = self._step("x", x)
        re = self._step("weight", self.W_real)
        im = self._step("weight", self.W_im) if hasattr(self, "W_im") else torch.zeros_like(re)
        g = self.steps.get("gate", lambda g: g.clamp(0, 1))(self.g)
        log_r = (g * (x.abs() + self.eps) + (1 - g)).log()
        k = math.pi * self._step("phase", g) * (x < 0)
        y = (log_r @ re - k @ im).exp() * (log_r @ im + k @ re).cos()
        return self._step("y", y)


WRONG_STEPS: dict[str, dict[str, Any]] = {
    "phase without gate": {"phase": torch.ones_like},
    "relu": {"y": torch.relu},
    "gate from below": {"gate": lambda g: g.clamp(min=0)},
    "gate from above": {"gate": lambda g: g.clamp(max=1)},
    "abs gate": {"gate": torch.abs},
    "rounded gate": {"gate": lambda g: (g > 0.5).to(g)},
    "free gate": {"gate": lambda g: g},
    "weights to 1": {"weight": lambda w: w.clamp(-1, 1)},
    "weights to 2": {"weight": lambda w: w.clamp(-2, 2)},
    "inputs to 10": {"x": lambda x: x.clamp(-10, 10)},
    "results to 100": {"y": lambda y: y.clamp(-100, 100)},
    "results from -100": {"y": lambda y: y.clamp(min=-100)},
    "finite results": {"y": torch.nan_to_num},
    "finite inputs": {"x": torch.nan_to_num},
}


@pytest.mark.parametrize("imaginary", [False, True])
@pytest.mark.parametrize("wrong", WRONG_STEPS)
def test_a_layer_with_one_other_step_is_refused(wrong: str, imaginary: bool) -> None:
    """However few inputs it has: the trial sees each kind of gate, weight, input and result."""
    for inputs, outputs in ((1, 1), (1, 4), (3, 3)):
        for dtype in (torch.float32, torch.float64):
            right = Altered(inputs, outputs, imaginary, {}).to(dtype)
            assert interop.swap(right, allow=["steps"]).out_features == outputs
            other = Altered(inputs, outputs, imaginary, WRONG_STEPS[wrong]).to(dtype)
            with pytest.raises(ValueError, match="computes a different function"):
                interop.swap(other, allow=["steps"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_layer_that_computes_in_float32_alone_is_accepted(dtype: torch.dtype) -> None:
    """It casts whatever it gets."""

    class Casting(Cell):
        def forward(self, x: Tensor) -> Tensor:
            single = copy.copy(self)
            single._parameters = {
                name: None if p is None else nn.Parameter(p.float())
                for name, p in self._parameters.items()
            }
            return Cell.forward(single, x.float())

    for inputs, outputs in ((1, 1), (3, 3), (40, 5)):
        for transposed in (False, True):
            cell = Casting(inputs, outputs, ("W_real", "W_im", "g"), transposed).to(dtype)
            assert interop.swap(cell, allow=PRIVATE).in_features == inputs


def test_a_trial_leaves_the_module_and_the_random_numbers_as_they_are() -> None:
    class Counting(Cell):
        def forward(self, x: Tensor) -> Tensor:
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(x)

    cell = Counting(3, 3, ("Re", "Im"), True).bfloat16()
    values, state = copy.deepcopy(cell.state_dict()), torch.get_rng_state()
    with torch.autocast("cpu", torch.bfloat16):
        assert interop.swap(cell, allow=PRIVATE).weight_re.dtype is torch.bfloat16
    assert torch.equal(state, torch.get_rng_state())
    assert "calls" not in vars(cell)
    assert all(torch.equal(value, cell.state_dict()[name]) for name, value in values.items())
    assert interop.swap(cell.to("meta"), allow=PRIVATE).weight_re.is_meta


def test_a_model_without_any_known_layer() -> None:
    """Nothing is swapped without a word; a model of our layers needs no change."""
    plain = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    for change in (interop.swap, interop.to_reference):
        message = rf"model must have a layer that {change.__name__} supports .* got Linear, Seq"
        with pytest.raises(ValueError, match=message):
            change(plain)
        change(nn.Sequential(NAU(2, 3), nn.Tanh()))
    derived = nn.Sequential(parametrizations.weight_norm(reference_layers.NMU(3, 3), "weight"))
    with pytest.raises(ValueError, match="got ModuleDict, ParametrizationList, ParametrizedNMU"):
        interop.swap(derived)
    eager = interop.to_reference(nn.Sequential(NPU(2, 3)))
    assert type(interop.to_reference(eager)[0]) is reference_layers.NPU
    assert type(interop.swap(interop.swap(eager))[0]) is NPU


LAYERS = (NPU, RealNPU, NaiveNPU, NAU, NMU, NMRU, NAC, NALU, iNALU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)
def test_every_dtype_to_every_layout_and_back(kind: Any, dtype: torch.dtype) -> None:
    """The same function, near 0 too: half precision computes in float32, with float32's eps."""
    layer = kind(3, 4, dtype=dtype)
    if getattr(layer, "gate", None) is not None:
        nn.init.ones_(layer.gate)  # an open gate passes eps
    x = torch.randn(8, 3).to(dtype)
    x[0], x[1, 1] = 1e-3, 0.0
    y = layer(x)
    power_unit = kind in LAYERS[:3]
    for layout in ("reference", "julia", "pytorch") if power_unit else ("reference",):
        eager = interop.to_reference(layer, layout)
        back = interop.swap(eager)
        assert type(back) is kind
        tolerance = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float64: 1e-11}
        rtol = tolerance.get(dtype, 1e-4)
        for module in (eager, back):
            assert torch.allclose(module(x), y, rtol=rtol, atol=0, equal_nan=True)


# ---- what goes on to run the old forward ----------------------------------------------------


def _compiled_in_place(layer: nn.Module) -> nn.Module:
    layer.compile(backend="eager")
    return layer


def _with_forward(layer: Any) -> nn.Module:
    forward = layer.forward
    layer.forward = lambda x: forward(x)
    return layer


def _with_compiled_forward(layer: Any) -> nn.Module:
    layer.forward = torch.compile(layer.forward, backend="eager")
    return layer


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("wrap", "path", "rule"),
    [
        (_compiled_in_place, "1", "is compiled by itself"),
        (lambda layer: torch.compile(layer, backend="eager"), "1._orig_mod", "is compiled by itself"),
        (_with_forward, "1", "has a forward of its own"),
        (_with_compiled_forward, "1", "has a forward of its own"),
    ],
)  # fmt: skip
def test_layers_that_are_compiled_or_wrapped(
    wrap: Callable[[nn.Module], nn.Module], path: str, rule: str, inplace: bool
) -> None:
    """Their calls would go on to run the old layer's formula, with the old weights."""
    eager = (reference_layers.NMU(3, 3), PyTorchPublished(3, 3))
    for function, layers in (("swap", eager), ("to_reference", (NMU(3, 3), NPU(3, 3)))):
        for layer in layers:
            model = nn.Sequential(nn.Tanh(), wrap(layer))
            message = (
                rf"^{function}: {type(layer).__name__} '{path}' {rule}.*; {function} first, comp"
            )
            with pytest.raises(ValueError, match=message):
                getattr(interop, function)(model, inplace=inplace)


@compiles
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("inplace", [False, True])
def test_a_compiled_model(inplace: bool) -> None:
    """Its layers are swapped, and later weights count: in the wrapper, and compiled in place."""
    x = torch.rand(6, 3)
    for in_place in (False, True):
        model = nn.Sequential(reference_layers.NPU(3, 3), nn.Tanh())
        compiled: Any = torch.compile(model, backend="eager")
        compiled = _compiled_in_place(model) if in_place else compiled
        y = compiled(x)
        swapped: Any = interop.swap(compiled, inplace=inplace)
        assert (swapped is compiled) == inplace
        assert type(swapped[0] if in_place else swapped._orig_mod[0]) is NPU
        assert normwise_error(swapped(x), y) < 1e-5
        state = {name: value / 2 for name, value in swapped.state_dict().items()}
        swapped.load_state_dict(state, assign=True)
        re, im, gate = state.values()
        expected = functional.npu(x, re, im, gate).tanh()
        assert normwise_error(swapped(x), expected) < 1e-5


def test_a_forward_of_a_containers_own() -> None:
    """A copy would run a function on the old container; a method is copied with its module."""
    model: Any = nn.Sequential(reference_layers.NMU(3, 3))
    with pytest.raises(ValueError, match=r"^swap: Sequential has a forward .*; say inplace=True$"):
        interop.swap(_with_forward(model))
    interop.swap(model, inplace=True)
    assert type(model[0]) is NMU
    model.forward = types.MethodType(nn.Sequential.forward, model)
    eager: Any = interop.to_reference(model)
    with torch.no_grad():
        eager[0].weight.fill_(0.5)
    x = torch.rand(6, 3)
    assert torch.equal(eager(x), eager[0](x))


@pytest.mark.parametrize("inplace", [False, True])
def test_hooks_pruning_and_buffers_of_our_layers_stay(inplace: bool) -> None:
    """Nothing but the class of the layer changes."""
    layer: Any = reference_layers.NPU(3, 3)
    layer.register_buffer("note", torch.ones(2))
    seen: list[type] = []
    layer.register_forward_hook(lambda module, *_: seen.append(type(module)))
    prune.random_unstructured(layer, "weight_re", 0.5)
    x = torch.rand(6, 3)
    y, layer.weight_re = layer(x).detach(), layer.weight_re.detach()
    swapped: Any = interop.swap(layer, inplace=inplace)
    assert (swapped is layer) == inplace
    assert normwise_error(swapped(x), y) < 1e-5
    assert seen == [reference_layers.NPU, NPU]
    assert set(swapped.state_dict()) == {
        "weight_re_orig", "weight_re_mask", "weight_im", "gate", "note"
    }  # fmt: skip


# ---- what would be lost ---------------------------------------------------------------------


class WithPenalties(PyTorchPublished):
    """A published layer that clips after each step and has a penalty."""

    def __init__(self, npu_clip: str | None = "wg") -> None:
        super().__init__(3, 3)
        self.npu_clip = npu_clip
        self._steps = None

    def optimize(self, loss: Tensor) -> None:
        self.g.data.clamp_(0, 1)

    def regularizer(self) -> Tensor:
        return self.W_real.abs().sum()

    def _helper(self) -> None:
        """A method of the class itself."""


class Quiet(WithPenalties):
    """A subclass: what it inherits counts too."""

    optimize = None

    def train(self, mode: bool = True) -> Any:
        return self


def test_what_a_layer_does_beside_its_formula_is_not_lost_in_silence() -> None:
    """Neither is anything replaced before that is sure."""
    model = nn.Sequential(JuliaPublished(3, 3), WithPenalties(), nn.Linear(3, 1))
    kinds = [type(m) for m in model]
    message = (
        r"^swap: WithPenalties '1' has more than its formula, which the new layer would not have: npu_clip='wg', "
        r"optimize\(\), regularizer\(\); say allow=\('npu_clip', 'optimize', 'regularizer'\) to do without$"
    )
    with pytest.raises(ValueError, match=message):
        interop.swap(model)
    with pytest.raises(
        ValueError, match=r"would not have: regularizer\(\); say allow=\('regularizer',\)"
    ):
        interop.swap(model, allow=("npu_clip", "optimize"))
    assert [type(m) for m in model] == kinds
    interop.swap(model, allow=("npu_clip", "optimize", "regularizer"), inplace=True)
    assert [type(m) for m in model] == [NPU, NPU, nn.Linear]


def test_options_that_are_off_and_private_helpers_are_no_loss() -> None:
    for off in (None, "none"):
        layer = WithPenalties(off)
        assert type(interop.swap(layer, allow={"optimize", "regularizer"})) is NPU


def test_subclasses_buffers_and_changed_methods_count() -> None:
    with pytest.raises(
        ValueError, match=r"would not have: npu_clip='wg', regularizer\(\), train\(\); say allow"
    ):
        interop.swap(Quiet())
    layer = JuliaPublished(3, 3)
    hook = layer.register_state_dict_post_hook(lambda *_: None)
    with pytest.raises(ValueError, match="JuliaPublished has hooks"):
        interop.swap(layer)
    hook.remove()
    layer.register_buffer("mask", torch.ones(3))
    layer.penalty = lambda: layer.Re.sum()
    with pytest.raises(
        ValueError, match=r"would not have: penalty.*, buffer mask; say allow=\('penalty', 'mask'\)"
    ):
        interop.swap(layer)
    assert type(interop.swap(layer, allow=["penalty", "mask"])) is NPU

    class Own(NPU):
        """A subclass of our layer stays as it is, as documented."""

    subclass = Own(2, 2)
    assert interop.swap(subclass, inplace=True) is subclass
    model = nn.Sequential(subclass, NPU(2, 2))
    interop.to_reference(model, inplace=True)
    assert [type(m) for m in model] == [Own, reference_layers.NPU]


def test_transposed_weights_do_not_lose_hooks_or_sharing() -> None:
    first, second = PyTorchPublished(3, 3), PyTorchPublished(3, 3)
    second.W_real = first.W_real
    model = nn.ModuleDict({"a": first, "b": second})
    with pytest.raises(
        ValueError,
        match=r"^swap: PyTorchPublished 'a' .*: W_real, which is shared with another layer",
    ):
        interop.swap(model)
    assert interop.swap(model, allow=["W_real"], inplace=True) is model
    hooked = PyTorchPublished(3, 3)
    hooked.W_im.register_hook(lambda grad: 2 * grad)
    with pytest.raises(ValueError, match=r"would not have: hooks of W_im; say allow=\('W_im',\)"):
        interop.swap(hooked)
    fused = NPU(3, 3)
    fused.note = "measured on Monday"
    with pytest.raises(
        ValueError, match=r"^to_reference: NPU has more .*: note='measured on Monday'; say allow"
    ):
        interop.to_reference(fused, "julia")
    assert interop.to_reference(fused).note == "measured on Monday"  # the same attributes


# ---- the copy -------------------------------------------------------------------------------


@pytest.mark.parametrize("back", [False, True])
def test_a_copy_is_changed_and_the_model_is_not(back: bool) -> None:
    """Values, sharing, modes and frozen parameters are the copy's too; tensors are not shared."""
    shared = NPU(3, 3)
    tied, frozen = RealNPU(3, 3), NaiveNPU(3, 2).requires_grad_(False)
    tied.weight_re = shared.weight_re
    model: Any = nn.Sequential(shared, nn.Tanh(), tied, shared, nn.Linear(3, 3), frozen).eval()
    if back:
        interop.to_reference(model, inplace=True)
    before, modules = copy.deepcopy(model), list(model.modules())
    change = interop.swap if back else interop.to_reference
    changed: Any = change(model)
    assert changed is not model
    assert type(changed[0]) is (NPU if back else reference_layers.NPU)
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert changed[0] is changed[3]
    assert changed[0].weight_re is changed[2].weight_re
    assert not any(m.training for m in changed.modules())
    assert not any(p.requires_grad for p in changed[5].parameters())
    x = torch.randn(7, 3)
    assert normwise_error(changed(x), model(x)) < 1e-5
    ours = {p.data_ptr() for p in model.parameters()}
    assert ours.isdisjoint(p.data_ptr() for p in changed.parameters())
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(1.0)
    assert torch.equal(model(x), before(x))


def test_the_copy_has_the_hooks() -> None:
    """Hooks of modules that are not replaced and of all parameters stay, of frozen ones too."""
    model: Any = nn.Sequential(JuliaPublished(3, 3), nn.Linear(3, 1))
    seen: list[str] = []
    model.register_forward_hook(lambda *_: seen.append("forward"))
    model[1].register_forward_pre_hook(lambda *_: seen.append("pre"))
    model[0].Re.register_hook(lambda grad: seen.append("Re"))
    model[0].Re.no_decay = True
    model[1].bias.register_hook(lambda grad: seen.append("bias"))
    model[1].weight.register_post_accumulate_grad_hook(lambda p: seen.append("weight"))
    model[1].bias.requires_grad_(False)
    x = torch.rand(4, 3)
    model(x).sum().backward()
    expected, seen[:] = sorted(seen), []
    swapped: Any = interop.swap(model)
    assert not swapped[1].bias.requires_grad
    assert swapped[0].weight_re.no_decay
    assert swapped[0].weight_re.grad is None
    swapped(x).sum().backward()
    assert sorted(seen) == expected == ["Re", "forward", "pre", "weight"]
    swapped[1].bias.requires_grad_()
    swapped(x).sum().backward()
    assert "bias" in seen


def test_a_model_that_cannot_be_copied() -> None:
    model: Any = nn.Sequential(JuliaPublished(3, 3))
    model.latest = model(torch.rand(4, 3))
    message = r"^swap: model cannot be copied \(Only Tensors created .*\); say inplace=True$"
    with pytest.raises(RuntimeError, match=message):
        interop.swap(model)
    assert type(interop.swap(model, inplace=True)[0]) is NPU


def test_a_copy_of_a_model_with_whole_numbers_as_parameters():
    model = torch.nn.Sequential(NPU(2, 3))
    model.register_parameter("codes", torch.nn.Parameter(torch.arange(3), requires_grad=False))
    copied = interop.to_reference(model)
    assert torch.equal(copied.codes, model.codes)
    assert not copied.codes.requires_grad
