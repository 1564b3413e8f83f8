"""Formulas read from models: equal to the model at inputs of both signs and 0, as torch code and as
expressions."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from npu_kernels import (
    NAC,
    NALU,
    NAU,
    NMRU,
    NMU,
    NPU,
    NaiveNPU,
    RealNPU,
    formula,
    iNALU,
    use_backend,
)
from npu_kernels.formula import extract
from tests.support import exact
from tests.support.formulas import in_float64, inputs

sympy = pytest.importorskip("sympy", reason="sympy is not installed")


class SeparateNMRU(NMRU):
    """A formula with the signs in a cosine."""

    def __init__(self, in_features, out_features, **options):
        super().__init__(in_features, out_features, sign="separate", **options)


UNITS = (NPU, RealNPU, NaiveNPU, NAU, NMU, NMRU, SeparateNMRU, NAC, NALU, iNALU, nn.Linear)
SIMPLE = torch.tensor(
    [0.0, 1.0, 2.0, -1.0, -2.0, 3.0, 0.5, -0.5, 1.5, 1 / 3, -2 / 3, 0.25], dtype=torch.float64
)
GATES = torch.tensor([0.0, 1.0, 0.5, -0.3, 1.7, 0.25], dtype=torch.float64)


def fill(module: nn.Module, generator: torch.Generator) -> None:
    """Parameters that are partly simple fractions and partly not."""

    def pick(values: Tensor, like: Tensor, low: float, high: float) -> Tensor:
        simple = values[torch.randint(len(values), like.shape, generator=generator)]
        odd = torch.rand(like.shape, generator=generator, dtype=torch.float64) * (high - low) + low
        return torch.where(torch.rand(like.shape, generator=generator) < 0.6, simple, odd).to(
            like.dtype
        )

    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("gate"):
                parameter.copy_(pick(GATES, parameter, -0.2, 1.2))
            elif name.endswith("weight_im"):
                parameter.copy_(pick(SIMPLE[:1], parameter, -1, 1))
            else:
                parameter.copy_(pick(SIMPLE, parameter, -2, 2))


TOLERANCE = {torch.float32: 3e-5, torch.float64: 5e-13}


@settings(max_examples=120)
@given(
    st.sampled_from(UNITS), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2**31),
    st.booleans(), st.sampled_from([torch.float32, torch.float64]),
)  # fmt: skip
def test_a_layer_is_its_formula(unit, width, out, seed, eps, dtype):
    generator = torch.Generator().manual_seed(seed)
    layer = unit(width, out, dtype=dtype)
    fill(layer, generator)
    layer.train(eps)  # an NMRU has its eps in training mode only
    x = inputs(30, width, generator, eps, dtype)
    formula_of_layer = extract(layer, eps=eps)
    y = formula_of_layer(x)
    assert y.dtype == dtype
    scale = in_float64(layer, x).abs() + amplitude(layer, x)
    # its eps is 1e-8 in float64 too, and |x| >= 0.2
    left_out = 1e-7 if isinstance(layer, NALU) and not eps else 0
    assert ((y.double() - in_float64(layer, x)).abs() / scale).max() < TOLERANCE[dtype] + left_out


def amplitude(layer: nn.Module, x: Tensor) -> Tensor:
    """The scale of rounding: the factor before a cosine, or a sum's absolute terms."""
    double = copy.deepcopy(layer).double()
    if isinstance(layer, (NPU, RealNPU, NaiveNPU)):
        from npu_kernels.reference import npu_forward

        eps = layer.eps or torch.finfo(x.dtype).eps
        y, s = npu_forward(x.double(), double.weight_re, double.weight_im, double.gate, eps, True)
        return torch.hypot(y, s).detach()
    if isinstance(layer, NMRU):
        from npu_kernels.reference import nmu

        x = x.double()
        return (
            nmu(torch.cat([x, 1 / (x + layer.eps * layer.training)], -1).abs(), double.weight)
            .clamp(min=1e-30)
            .detach()
        )
    return 10 + x.double().abs().sum(-1, keepdim=True)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([u for u in UNITS if u is not SeparateNMRU]), min_size=1, max_size=3),
    st.integers(0, 2**31), st.booleans(),
    st.sampled_from([None, 3]),
)  # fmt: skip
def test_sequentials_are_their_formulas(units, seed, nested, models):
    generator = torch.Generator().manual_seed(seed)
    sizes = [2, *torch.randint(1, 3, (len(units),), generator=generator).tolist()]
    layers = []
    for unit, before, after in zip(units, sizes, sizes[1:], strict=False):
        options = {} if unit is nn.Linear else {"num_models": models}
        layers.append(unit(before, after, **options, dtype=torch.float64))
    fill(nn.Sequential(*layers), generator)
    module = (
        nn.Sequential(nn.Sequential(*layers[:1], nn.Identity()), *layers[1:])
        if nested
        else nn.Sequential(*layers)
    )
    index = None if all(isinstance(layer, nn.Linear) for layer in layers) or models is None else 1
    single = formula.select(module, index)
    x = inputs(20, 2, generator, False, torch.float64)
    # Where a later power unit's input is rounding noise around 0, its sign is anybody's guess.
    x = x[(smallest(single, x) > 1e-9) & (largest(single, x) < 1e9)]
    if len(x) == 0:
        return
    expression = extract(module, ["a", "b"], model_index=index, eps=True)
    expected = in_float64(single, x)
    with torch.no_grad():
        torch.testing.assert_close(single(x), expected, rtol=1e-9, atol=1e-9)  # select
    error = (expression(x) - expected).abs() / (1 + largest(single, x)[:, None])
    assert error.max() < 1e-9


def test_a_deep_formula_is_not_factored(monkeypatch):
    """sympy's Max and Min factor their arguments: a NALU before an iNALU took six seconds."""
    layers = [unit(2, 2, dtype=torch.float64) for unit in (NALU, iNALU)]
    module = nn.Sequential(*layers)
    fill(module, torch.Generator().manual_seed(0))
    monkeypatch.setattr("sympy.functions.elementary.miscellaneous.factor_terms", _refuse)
    extract(module, ["a", "b"], eps=True)


def _refuse(*_):
    raise AssertionError("factor_terms was called")


def steps(module: nn.Module, x: Tensor) -> list[Tensor]:
    """The values after each layer."""
    states = []
    for layer in formula._models.layers_of("test", module).values():
        x = in_float64(layer, x)
        states.append(x)
    return states


def smallest(module: nn.Module, x: Tensor) -> Tensor:
    return torch.stack(
        [values.abs().masked_fill(values == 0, 1).amin(1) for values in steps(module, x)]
    ).amin(0)


def largest(module: nn.Module, x: Tensor) -> Tensor:
    return torch.stack([values.abs().amax(1) for values in steps(module, x)]).amax(0)


@settings(max_examples=40)
@given(st.sampled_from([NPU, RealNPU, NaiveNPU]), st.integers(0, 2**31))
def test_the_expression_itself_is_the_layer_in_50_digits(unit, seed):
    """Sympy's expression in mpmath equals scalar arithmetic in mpmath, without any of our code."""
    generator = torch.Generator().manual_seed(seed)
    layer = unit(3, 1, dtype=torch.float64)
    fill(layer, generator)
    expression = extract(layer, eps=True)
    modules = [{"Heaviside": lambda x, at_zero: at_zero if x == 0 else x > 0}, "mpmath"]
    function = sympy.lambdify(expression.symbols, expression.expressions[0], modules)
    parameters = {name: p.detach().squeeze(0).tolist() for name, p in layer.named_parameters()}
    for row in inputs(10, 3, generator, True, torch.float64).tolist():
        eps = torch.finfo(torch.float64).eps
        weights = parameters["weight_re"], parameters.get("weight_im"), layer.gate, eps
        gate = None if layer.gate is None else layer.gate.tolist()
        expected = exact.npu(row, weights[0], weights[1], gate, eps)
        value = function(*(exact.mpf(v) for v in row))
        # Constants are folded in float64; at 0 a power of eps is far from 1.
        assert abs(value - expected) <= 1e-13 * max(
            abs(expected), float(amplitude(layer, torch.tensor([row]).double()))
        )


def sir() -> nn.Sequential:
    """The right-hand side of the paper's fractional SIR model as RealNPU -> NAU."""
    unit, scale = RealNPU(3, 3, dtype=torch.float64), NAU(3, 3, dtype=torch.float64)
    with torch.no_grad():
        unit.weight_re.copy_(torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
        unit.gate.fill_(1.0)
        scale.weight.copy_(torch.tensor([[-0.1, 0.0, 0.05], [0.1, -0.01, 0.0], [0.0, 0.01, -0.05]]))
    return nn.Sequential(unit, scale)


def test_fractional_sir():
    equation = extract(
        sir(), ["S", "I", "R"], outputs=["dS", "dI", "dR"], nonnegative=True, max_denominator=4
    )
    assert str(equation).splitlines() == [
        "dS = -0.1*sqrt(I)*sqrt(S) + 0.05*R",
        "dI = 0.1*sqrt(I)*sqrt(S) - 0.01*I",
        "dR = 0.01*I - 0.05*R",
    ]
    assert equation.latex()[0] == r"\mathrm{dS} = - 0.1 \sqrt{I} \sqrt{S} + 0.05 R"
    x = torch.rand(20, 3, dtype=torch.float64) * 100
    torch.testing.assert_close(equation(x), in_float64(sir(), x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("unit", UNITS)
def test_latex_is_understood(unit):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.mathtext import MathTextParser

    layer = unit(3, 2)
    fill(layer, torch.Generator().manual_seed(3))
    module = nn.Sequential(layer, RealNPU(2, 1))
    for eps in (False, True):
        for line in extract(module, ["alpha", "x_1", "T_a-x^2 (%)"], eps=eps).latex():
            MathTextParser("path").parse(f"${line}$")


def test_constants_that_occur_several_times():
    """A NALU of the square root of 2, which its sum and its gate have."""
    model = nn.Sequential(nn.Linear(1, 1), RealNPU(1, 1), NALU(1, 1)).double()
    with torch.no_grad():
        numbers = 0.0, 2.0, 0.5, 1.0, 1.0, 1.0, 1.0
        for parameter, number in zip(model.parameters(), numbers, strict=True):
            parameter.fill_(number)
    x = torch.rand(5, 1, dtype=torch.float64)
    torch.testing.assert_close(extract(model)(x), model(x).detach())


def test_torch_function_stands_alone(tmp_path):
    model = nn.Sequential(NPU(3, 4, dtype=torch.float64), NAU(4, 2, dtype=torch.float64))
    fill(model, torch.Generator().manual_seed(5))
    x = inputs(50, 3, torch.Generator().manual_seed(6), False, torch.float64)
    # Names that Python does not take, one like our own variables, one that has a backslash.
    function = extract(model, ["lambda", "t0", r"\beta"]).torch_function
    unpickled = pickle.loads(pickle.dumps(function))
    assert torch.equal(unpickled(x), function(x))
    assert torch.equal(unpickled(x.reshape(5, 10, 3)), function(x).reshape(5, 10, 2))
    torch.save(x, tmp_path / "x.pt")
    (tmp_path / "alone.py").write_text(
        f"import sys\nimport torch\n{function}\nx = torch.load('x.pt')\n"
        "torch.save(torch.stack(formula(*x.unbind(-1)), -1), 'y.pt')\nassert 'sympy' not in sys.modules\n",
    )  # fmt: skip
    subprocess.run([sys.executable, "alone.py"], cwd=tmp_path, check=True, timeout=120)
    assert torch.equal(torch.load(tmp_path / "y.pt"), function(x))


@pytest.mark.parametrize(
    "names",
    [
        ["fi", "\ufb01"],  # a ligature: one name to Python
        ["\uff49\uff46", "\uff54\uff4f\uff52\uff43\uff48"],  # "if" and "torch" in full width
        ["__debug__", "\U00010107"],  # no name of a variable; a digit that no name may have
        ["t0", "\uff54\uff10"],
        ["a b", "a_b"],
    ],
)
def test_names_that_are_one_or_none_to_python(names):
    model = NAU(2, 1, dtype=torch.float64)
    model.weight.data = torch.tensor([[1.0, -0.5]], dtype=torch.float64)
    expression = extract(model, names)
    assert [str(symbol) for symbol in expression.symbols] == names
    x = torch.randn(5, 2, dtype=torch.float64)
    torch.testing.assert_close(expression(x), model(x).detach())


@pytest.mark.parametrize("unit", UNITS)
def test_derivatives_are_the_models(unit):
    module = nn.Sequential(unit(2, 3, dtype=torch.float64), NAU(3, 2, dtype=torch.float64))
    generator = torch.Generator().manual_seed(8)
    fill(module, generator)
    x = inputs(30, 2, generator, False, torch.float64).requires_grad_()
    grad_y = torch.randn(30, 2, dtype=torch.float64)
    function = extract(module, eps=True).torch_function
    (grad,) = torch.autograd.grad(function(x), x, grad_y)
    with use_backend("reference"):
        (expected,) = torch.autograd.grad(module(x), x, grad_y)
    torch.testing.assert_close(grad, expected, rtol=1e-8, atol=1e-8)


def test_a_gates_saturation_has_a_gradient():
    layer = NALU(1, 1, bias=True)
    with torch.no_grad():
        layer.gate_weight.fill_(-500.0)
        layer.gate_bias.fill_(1.0)
    x = torch.tensor([[3.0]], requires_grad=True)
    extract(layer)(x).sum().backward()
    assert x.grad.isfinite().all()


def test_one_of_a_batch_of_models():
    models = nn.Sequential(RealNPU(2, 3, num_models=4), NAU(3, 1, num_models=4))
    x = torch.rand(7, 2) + 0.1
    for k in (0, 3, -1):
        torch.testing.assert_close(
            extract(models, model_index=k)(x), models(x)[k].detach(), rtol=1e-5, atol=1e-6
        )
        single = formula.select(models, k)
        assert [unit.num_models for unit in single] == [None, None]
        assert torch.equal(single(x), models(x)[k])
    assert models[0].num_models == 4
    single[0].weight_re.data.fill_(9.0)
    assert (models[0].weight_re != 9.0).all()
