"""Weights as simple fractions, against Python's own `fractions`."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from npu_kernels import NAU
from npu_kernels.formula import as_fraction, extract, nearest_fraction

DTYPES = (torch.float32, torch.float64)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8),
    st.integers(1, 40),
    st.sampled_from(DTYPES),
)
def test_no_fraction_is_nearer(values, limit, dtype):
    weights = torch.tensor(values, dtype=dtype)
    numerator, denominator = as_fraction(weights, limit)
    for value, p, q in zip(weights.tolist(), numerator.tolist(), denominator.tolist(), strict=True):
        fraction, best = Fraction(int(p), int(q)), Fraction(value).limit_denominator(limit)
        assert fraction.denominator == q <= limit  # lowest terms
        # equal, or equally near as far as float64 tells
        assert abs(fraction - Fraction(value)) <= abs(best - Fraction(value)) + Fraction(
            abs(value)
        ) * Fraction(2**-51)


@given(st.integers(-60, 60), st.integers(1, 12), st.sampled_from(DTYPES))
def test_a_fraction_is_found_again(p, q, dtype):
    weights = torch.tensor([p / q], dtype=dtype)
    fraction = Fraction(p, q)
    assert [int(part) for part in as_fraction(weights, 12)] == [
        fraction.numerator,
        fraction.denominator,
    ]
    assert torch.equal(nearest_fraction(weights, 12), weights)


def test_rounded_tensor_keeps_shape_dtype_and_the_weights():
    weights = torch.randn(3, 4, 5, dtype=torch.float32, requires_grad=True)
    before = weights.detach().clone()
    rounded = nearest_fraction(weights, 1)
    assert rounded.dtype == torch.float32
    assert not rounded.requires_grad
    assert torch.equal(rounded, before.round())
    assert torch.equal(weights.detach(), before)
    assert nearest_fraction(weights.detach().half(), 2).dtype == torch.float16


def test_simpler_of_two_equally_near_and_special_values():
    assert nearest_fraction(torch.tensor([0.25]), 2).item() == 0.0  # 0 and 1/2 are equally near
    assert nearest_fraction(torch.tensor([-0.01]), 2).signbit().item() is False
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e300, -(2.0**60)], dtype=torch.float64)
    torch.testing.assert_close(nearest_fraction(odd, 12), odd, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("sign", [1, -1])
def test_large_numbers_become_whole(sign):
    below, above = (sign * (2.0**power + 0.25) for power in (44, 45))
    weights = torch.tensor([below, above], dtype=torch.float64)
    numerator, denominator = as_fraction(weights, 12)
    assert denominator.tolist() == [4, 1]
    assert numerator.tolist() == [4 * below, sign * 2.0**45]


def test_a_formula_has_large_weights_in_powers_of_ten():
    """Their digits are no more than those of their dtype."""
    pytest.importorskip("sympy")
    unit = NAU(1, 1, clip=False, dtype=torch.float64)
    for weight, text in (
        (5.000000001820141e29, "5.0e+29*x"),
        (2.0**45, "3.518e+13*x"),
        (2.0**44, "17592186044416*x"),
    ):
        nn.init.constant_(unit.weight, weight)
        formula = extract(unit)
        assert str(formula) == f"y = {text}"
        assert float(formula(torch.ones(1, 1, dtype=torch.float64))) == weight
