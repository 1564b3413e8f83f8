"""Other code's layers into ours and back."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import npu_kernels
from npu_kernels import NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, iNALU, interop
from npu_kernels._testing.samples import normwise_error
from npu_kernels.interop import reference_layers


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
    slopes = torch.autograd.grad(theirs.sum(), list(model["a"].parameters()))
    old = {name: p for name, p in model["a"].named_parameters()}  # noqa: C416
    layer = interop.swap(model, inplace=True)["a"]
    assert type(layer) is unit
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    assert normwise_error(layer(x), theirs) < tolerance
    ours = torch.autograd.grad(layer(x).sum(), list(layer.parameters()))
    for (name, _), a, e in zip(old.items(), ours, slopes, strict=True):
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


def test_from_arrays() -> None:
    """Weights that came out of Julia as arrays."""
    np = pytest.importorskip("numpy")
    rng = np.random.default_rng(0)
    arrays = {
        "Re": rng.normal(size=(2, 3)),
        "Im": rng.normal(size=(2, 3)),
        "g": rng.uniform(size=3),
    }
    layer = interop.from_parameters(arrays)
    assert type(layer) is NPU
    assert layer.weight_re.dtype == torch.float64
    assert (layer.in_features, layer.out_features) == (3, 2)
    for bad, message in (
        ({"Re": arrays["Re"], "g": arrays["g"][:2]}, "shapes do not fit layout 'julia'"),
        ({"A": arrays["Re"]}, r"no layout has the parameters \['A'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            interop.from_parameters(bad)


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
    assert type(model[0]) is reference_layers.NPU
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
    wide = PyTorchPublished(3, 2)
    wide.in_features, wide.out_features = 2, 3
    model = nn.Sequential(other, wide, nn.Linear(3, 3))
    kinds = [type(m) for m in model]
    assert [type(m) for m in interop.swap(model)] == kinds  # type: ignore[attr-defined]
    hooked = JuliaPublished(3, 3)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="JuliaPublished has hooks"):
        interop.swap(hooked)
    with pytest.raises(ValueError, match="layout 'julia' has no num_models, this layer has 2"):
        interop.to_reference(NPU(3, 2, num_models=2), "julia")
    with pytest.raises(
        ValueError, match="layout must be one of 'reference', 'julia', 'pytorch', got 'flux'"
    ):
        interop.to_reference(NPU(3, 2), "flux")
    assert npu_kernels.interop is interop


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
    assert interop.to_reference(subclass, inplace=True) is subclass


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


def test_all_layers_are_replaced_or_none() -> None:
    good, bad = PyTorchPublished(3, 3), PyTorchPublished(3, 3)
    bad.eps = -1.0
    model = nn.Sequential(good, bad)
    with pytest.raises(ValueError, match=r"eps must be finite and greater than 0, got -1\.0"):
        interop.swap(model, inplace=True)
    assert model[0] is good


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
