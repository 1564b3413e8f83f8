"""Formulas read from models: equal to the model at inputs of both signs and 0, as torch code and as
expressions."""

import copy
import doctest
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
from npu_kernels.formula import read
from tests.support import exact

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


def inputs(
    count: int, width: int, generator: torch.Generator, zeros: bool, dtype: torch.dtype
) -> Tensor:
    """Inputs of both signs, between 0.2 and 3, with zeros of both signs on request."""
    x = 0.2 + 2.8 * torch.rand(count, width, generator=generator, dtype=torch.float64)
    x = x * (torch.randint(2, x.shape, generator=generator) * 2 - 1)
    if zeros:
        x = torch.where(torch.rand(x.shape, generator=generator) < 0.2, x * 0, x)
    return x.to(dtype)


def in_float64(module: nn.Module, x: Tensor) -> Tensor:
    """The model by the eager formulas in float64, with the eps that it has in its own dtype."""
    oracle = copy.deepcopy(module).double()
    for layer in oracle.modules():
        if isinstance(layer, (NPU, RealNPU, NaiveNPU)) and layer.eps is None:
            layer.eps = torch.finfo(x.dtype).eps
    with torch.no_grad(), use_backend("reference"):
        result: Tensor = oracle(x.double())
    return result


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
    formula_of_layer = read(layer, eps=eps)
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
    expression = read(module, ["a", "b"], model=index, eps=True)
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
    read(module, ["a", "b"], eps=True)


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
    expression = read(layer, eps=True)
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


def power(weights: list[float], gate: float = 1.0, **options: object) -> RealNPU:
    layer = RealNPU(len(weights), 1, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.weight_re.copy_(torch.tensor([weights], dtype=torch.float64))
        layer.gate.fill_(gate)
    return layer


@pytest.mark.parametrize(
    ("weights", "gate", "text"),
    [
        ([2.0, 0.0], 1.0, "y = x**2"),
        ([1.0, 1.0], 1.0, "y = x*z"),
        ([1.0, -1.0], 1.0, "y = x/z"),
        ([-1.0, -2.0], 1.0, "y = 1/(x*z**2)"),
        ([3.0, 0.5], 1.0, "y = x**3*sqrt(|z|)*[z >= 0]"),
        ([1 / 3, 0.0], 1.0, "y = cos(pi*[x < 0]/3)*|x|**(1/3)"),
        ([2.0, 0.31], 1.0, "y = x**2*cos(0.31*pi*[z < 0])*|z|**0.31"),
        ([0.5, 0.5], 1.0, "y = cos(pi*([x < 0]/2 + [z < 0]/2))*sqrt(|x|)*sqrt(|z|)"),
        ([0.0, 0.0], 1.0, "y = 1"),
        ([2.0, -1.0], 0.0, "y = 1"),
        ([2.0, 0.0], 0.5, "y = (1 - 2*[x < 0])*(|x|/2 + 1/2)**2"),
        ([4.0, 0.0], 0.5, "y = (|x|/2 + 1/2)**4"),
        ([0.71, 0.0], 0.25, "y = (|x|/4 + 3/4)**0.71*cos(0.1775*pi*[x < 0])"),
    ],
)
def test_powers_are_read_as_powers(weights, gate, text):
    layer = power(weights, gate)
    expression = read(layer, ["x", "z"])
    assert str(expression) == text
    x = inputs(40, 2, torch.Generator().manual_seed(1), False, torch.float64)
    torch.testing.assert_close(expression(x), in_float64(layer, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("sign", "weights", "text"),
    [
        ("product", [1.0, 0.0, 0.0, 1.0], "y = x/z"),
        ("separate", [1.0, 0.0, 0.0, 1.0], "y = x/z"),
        ("product", [1.0, 1.0, 0.0, 0.0], "y = x*z"),
        ("product", [0.0, 0.0, 0.5, 0.0], "y = 1/2 + 1/(2*x)"),
        ("separate", [0.0, 0.0, 0.5, 0.0], "y = (1/2 + 1/(2*|x|))*[x >= 0]"),
        ("separate", [2.0, 0.0, 0.0, 0.0], "y = |x|"),  # clipped to 1, and the cosine of two turns
        ("product", [2.0, -1.0, 0.0, 0.0], "y = x"),
    ],
)
def test_reciprocals_are_read_as_quotients(sign, weights, text):
    layer = NMRU(2, 1, sign=sign, dtype=torch.float64).eval()
    layer.weight.data = torch.tensor([weights], dtype=torch.float64)
    expression = read(layer, ["x", "z"])
    assert str(expression) == text
    x = inputs(40, 2, torch.Generator().manual_seed(1), False, torch.float64)
    torch.testing.assert_close(expression(x), in_float64(layer, x), rtol=1e-12, atol=1e-12)


def test_eps_is_kept_on_request_and_its_effect_is_said():
    layer = power([2.0, -1.0], eps=1e-3)
    with_eps = read(layer, ["x", "z"], eps=True)
    assert str(with_eps) == "y = (1 - 2*[z < 0])*(|x| + 0.001)**2/(|z| + 0.001)"
    assert with_eps.note == ""
    left_out = read(layer, ["x", "z"])
    assert "RealNPU computes with |x| + 0.001" in left_out.note
    x = torch.tensor([[1e-2, 1.0], [1.0, 1e-2]], dtype=torch.float64)
    factor = in_float64(layer, x) / left_out(x)  # the effect as the note says
    said = torch.tensor([(1 + 0.1) ** 2 / 1.001, (1 + 0.001) ** 2 / 1.1], dtype=torch.float64)
    torch.testing.assert_close(factor[:, 0], said, rtol=1e-12, atol=0)
    assert "NPU '0' computes with |x| + 1.19e-07" in read(nn.Sequential(NPU(2, 2), NAU(2, 1))).note
    assert "NMRU computes with 1/(x + 1.19e-07) in training mode" in read(NMRU(2, 1)).note
    assert read(NMRU(2, 1).eval()).note == read(NMRU(2, 1, eps=0.0)).note == ""
    assert "max(|x|, 1e-07), which differs below 1e-07 only" in read(iNALU(2, 1)).note
    assert read(NAU(2, 1)).note == ""


def test_inputs_that_are_never_negative():
    layer = power([0.5, 1.5])
    assert str(read(layer, ["x", "z"], positive=True)) == "y = sqrt(x)*z**(3/2)"
    assert str(read(layer, ["x", "z"], positive=["x"])) == "y = sqrt(x)*|z|**(3/2)*[z >= 0]"
    symbols = sympy.Symbol("k", positive=True), sympy.Symbol("m", real=True)
    expression = read(layer, symbols)
    assert expression.symbols == symbols
    assert expression.expressions[0].subs({symbols[0]: 4, symbols[1]: 4}) == 16


def test_a_fraction_only_where_it_is_one():
    third = torch.tensor(1 / 3, dtype=torch.float32).item()
    single = power([third, 0.0]).float()
    assert "|x|**(1/3)" in str(read(single, ["x", "z"]))
    assert "1/3" not in str(read(power([third, 0.0]), ["x", "z"]))  # in float64 it is not 1/3
    assert "0.3333" in str(read(single, ["x", "z"], max_denominator=2))


def test_kepler():
    model = nn.Sequential(power([1.5]), NAU(1, 1, dtype=torch.float64))
    model[1].weight.data.fill_(1.0)
    law = read(model, ["R"], outputs=["T"], positive=True)
    assert str(law) == "T = R**(3/2)"
    assert law.latex() == [r"T = R^{\frac{3}{2}}"]


def sir() -> nn.Sequential:
    """The right-hand side of the paper's fractional SIR model as RealNPU -> NAU."""
    unit, scale = RealNPU(3, 3, dtype=torch.float64), NAU(3, 3, dtype=torch.float64)
    with torch.no_grad():
        unit.weight_re.copy_(torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
        unit.gate.fill_(1.0)
        scale.weight.copy_(torch.tensor([[-0.1, 0.0, 0.05], [0.1, -0.01, 0.0], [0.0, 0.01, -0.05]]))
    return nn.Sequential(unit, scale)


def test_fractional_sir():
    law = read(sir(), ["S", "I", "R"], outputs=["dS", "dI", "dR"], positive=True, max_denominator=4)
    assert str(law).splitlines() == [
        "dS = -0.1*sqrt(I)*sqrt(S) + 0.05*R",
        "dI = 0.1*sqrt(I)*sqrt(S) - 0.01*I",
        "dR = 0.01*I - 0.05*R",
    ]
    assert law.latex()[0] == r"dS = - 0.1 \sqrt{I} \sqrt{S} + 0.05 R"
    x = torch.rand(20, 3, dtype=torch.float64) * 100
    torch.testing.assert_close(law(x), in_float64(sir(), x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("unit", UNITS)
def test_latex_is_understood(unit):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.mathtext import MathTextParser

    layer = unit(3, 2)
    fill(layer, torch.Generator().manual_seed(3))
    module = nn.Sequential(layer, RealNPU(2, 1))
    for eps in (False, True):
        for line in read(module, ["alpha", "x_1", "I"], eps=eps).latex():
            MathTextParser("path").parse(f"${line}$")


def test_a_call_writes_no_text(monkeypatch):
    expression = read(RealNPU(2, 1))
    monkeypatch.setattr(
        "npu_kernels.formula._printing.text", lambda *_: pytest.fail("sympy takes long to write it")
    )
    assert expression(torch.rand(5, 2)).shape == (5, 1)
    monkeypatch.undo()
    first, second = str(expression.torch_function).splitlines()[:2]
    assert first.startswith("def formula(")
    assert second == f"    # {expression}"
    x = torch.rand(5, 2)
    assert torch.equal(expression.torch_function(x), expression(x))


def test_torch_function_stands_alone(tmp_path):
    model = nn.Sequential(NPU(3, 4, dtype=torch.float64), NAU(4, 2, dtype=torch.float64))
    fill(model, torch.Generator().manual_seed(5))
    x = inputs(50, 3, torch.Generator().manual_seed(6), False, torch.float64)
    # Names that Python does not take, one like our own variables, one that has a backslash.
    function = read(model, ["lambda", "t0", r"\beta"]).torch_function
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
    expression = read(model, names)
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
    function = read(module, eps=True).torch_function
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
    read(layer)(x).sum().backward()
    assert x.grad.isfinite().all()


def test_one_of_a_batch_of_models():
    models = nn.Sequential(RealNPU(2, 3, num_models=4), NAU(3, 1, num_models=4))
    x = torch.rand(7, 2) + 0.1
    for k in (0, 3, -1):
        torch.testing.assert_close(
            read(models, model=k)(x), models(x)[k].detach(), rtol=1e-5, atol=1e-6
        )
        single = formula.select(models, k)
        assert [unit.num_models for unit in single] == [None, None]
        assert torch.equal(single(x), models(x)[k])
    assert models[0].num_models == 4
    single[0].weight_re.data.fill_(9.0)
    assert (models[0].weight_re != 9.0).all()


ONE_OUTPUT = NAU(2, 1)
THREE_MODELS = NAU(2, 1, num_models=3)
UNEQUAL_MODELS = nn.Sequential(NAU(2, 2, num_models=2), NAU(2, 1, num_models=3))


def power_of_zero() -> nn.Sequential:
    """The constant 0 to the power of -1/2."""
    zero = NAU(1, 1)
    zero.weight.data.fill_(0.0)
    return nn.Sequential(zero, power([-0.5]).float())


def not_finite() -> NAU:
    layer = NAU(1, 1)
    layer.weight.data.fill_(torch.nan)
    return layer


@pytest.mark.parametrize(("arguments", "options", "error", "message"), [
    ((nn.Sequential(NAU(2, 2), nn.ReLU()),), {}, TypeError,
     r"read: module '1' must be a Sequential of NPU, .*, Linear, got ReLU"),
    ((lambda x: x,), {}, TypeError, r"read: module must be a torch.nn.Module, got function"),
    ((nn.Sequential(),), {}, ValueError, r"read: module must have at least one layer"),
    ((nn.Sequential(NAU(2, 3), NAU(2, 1)),), {}, ValueError,
     r"read: '1' must have in_features 3 .*, got 2"),
    ((ONE_OUTPUT, ["x"]), {}, ValueError,
     r"read: inputs must be 2 different names \(in_features\), got \['x'\]"),
    ((ONE_OUTPUT, ["x", "x"]), {}, ValueError, r"read: inputs must be 2 different names"),
    ((ONE_OUTPUT, "xy"), {}, ValueError, r"read: inputs must be 2 different names .* got 'xy'"),
    ((ONE_OUTPUT, [1, 2]), {}, TypeError, r"read: inputs must be names or sympy symbols, got 1"),
    ((ONE_OUTPUT,), {"outputs": ["a", "b"]}, ValueError,
     r"read: outputs must be 1 names \(out_features\)"),
    ((ONE_OUTPUT, ["x", "y"]), {"positive": ["z"]}, ValueError,
     r"read: positive must name inputs, got \['z'\]"),
    ((THREE_MODELS,), {}, ValueError, r"model must be an index into the 3 models, got None"),
    ((THREE_MODELS,), {"model": 3}, ValueError, r"model must be an index into the 3 models, got 3"),
    ((ONE_OUTPUT,), {"model": 0}, ValueError,
     r"model must be None where no layer has num_models, got 0"),
    ((ONE_OUTPUT,), {"max_denominator": 0}, ValueError,
     r"read: max_denominator must be an integer of at least 1, got 0"),
    ((not_finite(),), {}, ValueError, r"read: the parameters must be finite"),
    ((power_of_zero(),), {}, ValueError,
     r"output y is infinite or undefined at all inputs; read with eps=True"),
    ((UNEQUAL_MODELS,), {"model": 0}, ValueError,
     r"read: the layers must have one num_models, got \[2, 3\]"),
])  # fmt: skip
def test_errors(arguments, options, error, message):
    with pytest.raises(error, match=message):
        read(*arguments, **options)


def test_a_power_of_zero_has_a_formula_with_eps():
    assert read(power_of_zero(), eps=True)(torch.ones(1, 1)).item() == pytest.approx(2.0**11.5)


def test_errors_of_a_formula_and_of_select():
    with pytest.raises(
        ValueError,
        match=r"formula: x must be a floating-point tensor with last dimension 2 \(x0, x1\)",
    ):
        read(ONE_OUTPUT)(torch.ones(3, 3))
    unit = power([0.5])
    nn.utils.parametrizations.weight_norm(unit, "weight_re")
    with pytest.raises(ValueError, match=r"select: layer '' must not be parametrized"):
        formula.select(unit)
    assert "|x|" in str(read(unit))


def test_importing_needs_no_sympy_and_a_missing_one_is_named():
    code = (
        "import sys; sys.modules['sympy'] = None\n"
        "import torch, npu_kernels\n"
        "assert npu_kernels.formula.nearest_fraction(torch.tensor([0.51]), 2).item() == 0.5\n"
        "try:\n    npu_kernels.formula.read(npu_kernels.NAU(2, 1))\n"
        "except ImportError as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert "pip install 'npu_kernels[formula]'" in result.stdout
    code = "import torch, sys; before = 'sympy' in sys.modules; "
    code += "import npu_kernels; assert ('sympy' in sys.modules) == before"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("name", ["fractions", "models", "reading"])
def test_examples(name):
    module = getattr(formula, f"_{name}")
    result = doctest.testmod(module, extraglobs={"nn": nn, "NAU": NAU, "RealNPU": RealNPU})
    assert result.attempted
    assert not result.failed


def test_the_data_say_which_inputs_are_positive():
    layer = RealNPU(3, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_re.copy_(torch.tensor([[0.5, 1.0, -0.5]]))
        layer.gate.fill_(1.0)
    x = torch.tensor([[1.0, -2.0, 3.0], [0.0, 1.0, 2.0]])
    assert str(read(layer, ["a", "b", "c"], positive=x)) == "y = sqrt(a)*b/sqrt(c)"
    assert str(read(layer, ["a", "b", "c"], positive=x.numpy())) == "y = sqrt(a)*b/sqrt(c)"
    with pytest.raises(
        ValueError,
        match=r"positive must be data of shape \(N, 3\) if it is data, got shape \(2, 2\)",
    ):
        read(layer, ["a", "b", "c"], positive=x[:, :2])
