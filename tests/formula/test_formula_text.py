"""Formulas as text: powers, quotients and signs as people write them, and the errors of reading."""

import doctest

import pytest
import torch
from torch import nn

from npu_kernels import (
    NAU,
    NMRU,
    NPU,
    RealNPU,
    formula,
    iNALU,
)
from npu_kernels.formula import extract
from tests.support.building import run_forked
from tests.support.formulas import in_float64, inputs

sympy = pytest.importorskip("sympy", reason="sympy is not installed")


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
    expression = extract(layer, ["x", "z"])
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
    expression = extract(layer, ["x", "z"])
    assert str(expression) == text
    x = inputs(40, 2, torch.Generator().manual_seed(1), False, torch.float64)
    torch.testing.assert_close(expression(x), in_float64(layer, x), rtol=1e-12, atol=1e-12)


def test_eps_is_kept_on_request_and_its_effect_is_said():
    layer = power([2.0, -1.0], eps=1e-3)
    with_eps = extract(layer, ["x", "z"], eps=True)
    assert str(with_eps) == "y = (1 - 2*[z < 0])*(|x| + 0.001)**2/(|z| + 0.001)"
    assert with_eps.note == ""
    left_out = extract(layer, ["x", "z"])
    assert "RealNPU computes with |x| + 0.001" in left_out.note
    x = torch.tensor([[1e-2, 1.0], [1.0, 1e-2]], dtype=torch.float64)
    factor = in_float64(layer, x) / left_out(x)  # the effect as the note says
    said = torch.tensor([(1 + 0.1) ** 2 / 1.001, (1 + 0.001) ** 2 / 1.1], dtype=torch.float64)
    torch.testing.assert_close(factor[:, 0], said, rtol=1e-12, atol=0)
    assert (
        "NPU '0' computes with |x| + 1.19e-07" in extract(nn.Sequential(NPU(2, 2), NAU(2, 1))).note
    )
    assert "NMRU computes with 1/(x + 1.19e-07) in training mode" in extract(NMRU(2, 1)).note
    assert extract(NMRU(2, 1).eval()).note == extract(NMRU(2, 1, eps=0.0)).note == ""
    assert "max(|x|, 1e-07), which differs below 1e-07 only" in extract(iNALU(2, 1)).note
    assert extract(NAU(2, 1)).note == ""


def test_inputs_that_are_never_negative():
    layer = power([0.5, 1.5])
    assert str(extract(layer, ["x", "z"], nonnegative=True)) == "y = sqrt(x)*z**(3/2)"
    assert str(extract(layer, ["x", "z"], nonnegative=["x"])) == "y = sqrt(x)*|z|**(3/2)*[z >= 0]"
    symbols = sympy.Symbol("k", positive=True), sympy.Symbol("m", real=True)
    expression = extract(layer, symbols)
    assert expression.symbols == symbols
    assert expression.expressions[0].subs({symbols[0]: 4, symbols[1]: 4}) == 16


def test_a_fraction_only_where_it_is_one():
    third = torch.tensor(1 / 3, dtype=torch.float32).item()
    single = power([third, 0.0]).float()
    assert "|x|**(1/3)" in str(extract(single, ["x", "z"]))
    assert "1/3" not in str(extract(power([third, 0.0]), ["x", "z"]))  # in float64 it is not 1/3
    assert "0.3333" in str(extract(single, ["x", "z"], max_denominator=2))


def test_names_that_are_no_identifiers():
    equation = extract(power([1.0, 2.0]), ["a+b", "c"], nonnegative=True)
    assert str(equation) == "y = `a+b`*c**2"
    assert str(extract(power([1.0, 0.5]), ["T-T0", "lambda"])) == (
        "y = `T-T0`*sqrt(|`lambda`|)*[`lambda` >= 0]"
    )
    x = torch.tensor([[3.0, 3.0]], dtype=torch.float64)
    assert equation(x).item() == 27


@pytest.mark.parametrize(("name", "latex"), [
    ("x", "x"), ("x0", "x_{0}"), ("x_12", "x_{12}"), ("T_a", "T_{a}"), ("u'", "u'"),
    ("T_max", r"T_{\mathrm{max}}"), ("alpha", r"\alpha"), ("Delta_T", r"\Delta_{T}"),
    ("mass", r"\mathrm{mass}"), ("H2O", r"\mathrm{H2O}"), ("pi", r"\mathrm{pi}"),
    ("xbar", r"\mathrm{xbar}"), ("a_b_c", r"\mathrm{a\_b\_c}"), ("A-B", r"\mathrm{A\text{-}B}"),
    ("flow rate", r"\mathrm{flow\ rate}"), ("x^2", r"\mathrm{x\hat{}2}"),
    ("load (%)", r"\mathrm{load\ (\%)}"), ("größe", r"\mathrm{gr\text{öß}e}"),
    (r"a\b~$#&{}", r"\mathrm{a\backslash b{\sim}\$\#\&\{\}}"), ("a+b", r"\mathrm{a{+}b}"),
    ("hare'", r"\mathrm{hare'}"),
])  # fmt: skip
def test_names_in_latex(name, latex):
    """A name is one symbol, on both sides, and its exponent is that of all of it."""
    equation = extract(power([2.0]), [name], outputs=[name])
    assert equation.latex() == [f"{latex} = {latex}^{{2}}"]


def test_upright_names_stand_apart():
    equation = extract(power([1.0, 2.0]), ["flow rate", "r"])
    assert equation.latex() == [r"y = \mathrm{flow\ rate}\,r^{2}"]


def test_a_power_of_zero_has_a_formula_with_eps():
    zero = NAU(1, 1)
    zero.weight.data.fill_(0.0)
    model = nn.Sequential(zero, power([-0.5]).float())
    assert extract(model, eps=True)(torch.ones(1, 1)).item() == pytest.approx(2.0**11.5)


def test_importing_needs_no_sympy_and_a_missing_one_is_named():
    code = (
        "import sys; sys.modules['sympy'] = None\n"
        "import torch, npu_kernels\n"
        "assert npu_kernels.formula.nearest_fraction(torch.tensor([0.51]), 2).item() == 0.5\n"
        "try:\n    npu_kernels.formula.extract(npu_kernels.NAU(2, 1))\n"
        "except ImportError as error:\n    print(error)\n"
    )
    assert "pip install 'npu_kernels[formula]'" in run_forked(code).stdout
    code = "import torch, sys; before = 'sympy' in sys.modules; "
    code += "import npu_kernels; assert ('sympy' in sys.modules) == before"
    assert not run_forked(code).returncode


@pytest.mark.parametrize("name", ["models", "reading"])
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
    assert str(extract(layer, ["a", "b", "c"], nonnegative=x)) == "y = sqrt(a)*b/sqrt(c)"
    assert str(extract(layer, ["a", "b", "c"], nonnegative=x.numpy())) == "y = sqrt(a)*b/sqrt(c)"
    with pytest.raises(
        ValueError,
        match=r"nonnegative must be data of shape \(N, 3\) if it is data, got shape \(2, 2\)",
    ):
        extract(layer, ["a", "b", "c"], nonnegative=x[:, :2])
