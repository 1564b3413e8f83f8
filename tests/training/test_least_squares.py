"""Least squares of many problems at once: linear ones against their solutions, bounds, damping, the
optimal brain surgeon."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from npu_kernels.optim import least_squares


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def linear(
    a: Tensor, b: Tensor
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], tuple[Tensor, Tensor]]]:
    def residual(x: Tensor) -> Tensor:
        return (a @ x.unsqueeze(2)).squeeze(2) - b

    return residual, lambda x: (residual(x), a)


def test_linear_problems_are_solved() -> None:
    a, b = numbers(4, 9, 3), numbers(4, 9, seed=1)
    free = torch.ones(4, 3, dtype=torch.bool)
    x, error = least_squares.fit(numbers(4, 3, seed=2), free, *linear(a, b), 30)
    expected = torch.linalg.lstsq(a, b.unsqueeze(2)).solution.squeeze(2)
    torch.testing.assert_close(x, expected)
    torch.testing.assert_close(error, ((a @ expected.unsqueeze(2)).squeeze(2) - b).square().mean(1))


def test_variables_that_are_not_free_stay() -> None:
    a, b, x0 = numbers(4, 9, 3), numbers(4, 9, seed=1), numbers(4, 3, seed=2)
    free = torch.tensor([True, False, True]).expand(4, 3)
    x, _ = least_squares.fit(x0, free, *linear(a, b), 30)
    assert torch.equal(x[:, 1], x0[:, 1])
    rest = b - a[:, :, 1] * x0[:, 1:2]
    expected = torch.linalg.lstsq(a[:, :, [0, 2]], rest.unsqueeze(2)).solution.squeeze(2)
    torch.testing.assert_close(x[:, [0, 2]], expected)


def test_steps_into_the_infinite_are_not_taken() -> None:
    def residual(x: Tensor) -> Tensor:
        return torch.where(x < 0, math.nan, x.log())

    def jacobian(x: Tensor) -> tuple[Tensor, Tensor]:
        return residual(x), (1 / x).unsqueeze(2)

    x, error = least_squares.fit(
        torch.full((1, 1), 20.0).double(), torch.ones(1, 1).bool(), residual, jacobian, 40
    )
    assert float(x) == pytest.approx(1)
    assert float(error) == pytest.approx(0)


def test_cost_of_leaving_a_variable_out_is_exact_where_the_problem_is_linear() -> None:
    a, b = numbers(4, 9, 3), numbers(4, 9, seed=1)
    residual, jacobian = linear(a, b)
    x = torch.linalg.lstsq(a, b.unsqueeze(2)).solution.squeeze(2)
    costs, moved = least_squares.without(x, torch.ones(4, 3, dtype=torch.bool), jacobian)
    for index in range(3):
        remaining = [i for i in range(3) if i != index]
        best = torch.linalg.lstsq(a[:, :, remaining], b.unsqueeze(2)).solution.squeeze(2)
        assert not moved[:, index, index].any()
        torch.testing.assert_close(moved[:, index, remaining], best, rtol=1e-6, atol=1e-8)
        risen = least_squares.error(residual(moved[:, index])) - least_squares.error(residual(x))
        torch.testing.assert_close(costs[:, index], risen, rtol=1e-6, atol=1e-10)
    free = torch.tensor([True, True, False]).expand(4, 3)
    assert torch.isinf(least_squares.without(x, free, jacobian)[0][:, 2]).all()


def test_no_steps_give_the_error_of_the_start() -> None:
    a, b, x0 = numbers(4, 9, 3), numbers(4, 9, seed=1), numbers(4, 3, seed=2)
    residual, jacobian = linear(a, b)
    x, error = least_squares.fit(x0, torch.ones(4, 3, dtype=torch.bool), residual, jacobian, 0)
    assert torch.equal(x, x0)
    torch.testing.assert_close(error, residual(x0).square().mean(1))


def test_an_error_that_is_not_finite_is_infinite() -> None:
    residuals = torch.tensor([[1.0, 3.0], [1.0, math.nan], [math.inf, 0.0], [-math.inf, 1.0]])
    assert least_squares.error(residuals).tolist() == [5.0, math.inf, math.inf, math.inf]


def test_problems_that_are_not_finite_stay_and_leave_the_others_alone() -> None:
    """A residual, an entry of the Jacobian, or a product of two of its entries."""
    a, b, x0 = numbers(4, 9, 3), numbers(4, 9, seed=1), numbers(4, 3, seed=2)
    broken_a, broken_b = a.clone(), b.clone()
    broken_b[0, 3] = math.nan
    broken_a[1, 2, 0] = math.inf
    broken_a[2, 4] = 1e200
    free = torch.ones(4, 3, dtype=torch.bool)
    damping = torch.full((4,), 0.01).double()

    def residual(x: Tensor) -> Tensor:
        assert x.isfinite().all()
        return (a @ x.unsqueeze(2)).squeeze(2) - broken_b

    def jacobian(x: Tensor) -> tuple[Tensor, Tensor]:
        return residual(x), broken_a

    x, damping, _ = least_squares.step(x0, damping, free, residual, jacobian)
    assert torch.equal(x[:3], x0[:3])
    assert damping.tolist() == pytest.approx([0.04, 0.04, 0.04, 0.002])
    single, _ = least_squares.fit(x0[3:], free[3:], *linear(a[3:], b[3:]), 1)
    torch.testing.assert_close(x[3:], single)


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e200])
def test_derivatives_for_what_is_not_free_do_not_count(value: float) -> None:
    a, b, x0 = numbers(4, 9, 3), numbers(4, 9, seed=1), numbers(4, 3, seed=2)
    damping, free = torch.full((4,), 0.01).double(), torch.tensor([True, False, True]).expand(4, 3)
    residual, jacobian = linear(a, b)
    expected, *_ = least_squares.step(x0, damping, free, residual, jacobian)
    broken = a.clone()
    broken[:, 2, 1] = value
    x, *_ = least_squares.step(x0, damping, free, residual, lambda x: (residual(x), broken))
    assert not torch.equal(x, x0)
    torch.testing.assert_close(x, expected)


def test_damping_falls_and_rises_within_bounds() -> None:
    """The second problem is at its minimum: no step is better."""
    a, b = numbers(2, 9, 3), numbers(2, 9, seed=1)
    residual, jacobian = linear(a, b)
    x0 = torch.linalg.lstsq(a, b.unsqueeze(2)).solution.squeeze(2)
    x0[0] += 1
    free = torch.ones(2, 3, dtype=torch.bool)
    for before, after in ((1.0, [0.2, 4.0]), (1e-12, [1e-12, 4e-12]), (5e11, [1e11, 1e12])):
        damping = torch.full((2,), before).double()
        x, damping, error = least_squares.step(x0, damping, free, residual, jacobian)
        assert damping.tolist() == pytest.approx(after, rel=1e-6, abs=0)
        assert torch.equal(x[1], x0[1])
        torch.testing.assert_close(error, residual(x).square().mean(1), rtol=1e-12, atol=0)


def test_a_step_that_changes_nothing_is_no_better_one() -> None:
    def residual(x: Tensor) -> Tensor:
        return torch.ones_like(x)

    def jacobian(x: Tensor) -> tuple[Tensor, Tensor]:
        return residual(x), torch.ones(1, 1, 1).double()

    x0, free = torch.zeros(1, 1).double(), torch.ones(1, 1, dtype=torch.bool)
    x, damping, _ = least_squares.step(x0, torch.ones(1).double(), free, residual, jacobian)
    assert torch.equal(x, x0)
    assert damping.tolist() == [4.0]


def test_a_variable_of_hardly_any_effect_moves_little() -> None:
    """Its own curvature would let it go a hundred million times as far as the other one."""
    a = torch.tensor([[[1.0, 0.0], [0.0, 1e-8]]]).double()
    b, x0 = torch.ones(1, 2).double(), torch.zeros(1, 2).double()
    free = torch.ones(1, 2, dtype=torch.bool)
    x, _ = least_squares.fit(x0, free, *linear(a, b), 1)
    assert float(x[0, 0]) == pytest.approx(1, abs=0.02)
    assert 0 < float(x[0, 1]) < 2


def test_lower_bounds_hold() -> None:
    """The least squares without negative variables: the best of all choices of those at the bound.
    One that is not free stays where it is, below the bound too."""
    a, b = numbers(6, 9, 4), numbers(6, 9, seed=1)
    free = torch.tensor([True, True, True, False]).expand(6, 4)
    x = numbers(6, 4, seed=2).abs()
    x[:, 3] = -0.5
    damping = torch.full((6,), least_squares.FIRST_DAMPING).double()
    residual, jacobian = linear(a, b)
    bounds = torch.zeros(4).double(), torch.full((4,), math.inf).double()
    for _ in range(60):
        x, damping, error = least_squares.step(x, damping, free, residual, jacobian, bounds)
        assert (x[:, :3] >= 0).all()
        assert (x[:, 3] == -0.5).all()
    best = torch.full((6,), math.inf).double()
    rest = b + 0.5 * a[:, :, 3]
    for chosen in itertools.product((False, True), repeat=3):
        columns = a[:, :, [*map(int, torch.tensor(chosen).nonzero())]]
        solved = torch.linalg.lstsq(columns, rest.unsqueeze(2)).solution
        errors = ((columns @ solved).squeeze(2) - rest).square().mean(1)
        best = torch.where((solved >= 0).all(1).squeeze(1), torch.minimum(best, errors), best)
    torch.testing.assert_close(error, best, rtol=1e-9, atol=0)
    assert (x[:, :3] == 0).any(1).sum() >= 3


def test_a_variable_at_its_bound_is_held_or_rises() -> None:
    """One that would fall is held, so that the others step as if it were not free; one that would
    rise does."""
    a, b = torch.eye(2).double().unsqueeze(0), torch.tensor([[-3.0, 2.0]]).double()
    a[0, 0, 1] = a[0, 1, 0] = 0.5
    x0 = torch.zeros(1, 2).double()
    bounds = torch.zeros(2).double(), torch.full((2,), math.inf).double()
    free, damping = torch.ones(1, 2, dtype=torch.bool), torch.full((1,), 1e-6).double()
    held = torch.tensor([[False, True]])
    expected, *_ = least_squares.step(x0, damping, held, *linear(a, b))
    x, *_ = least_squares.step(x0, damping, free, *linear(a, b), bounds)
    assert torch.equal(x, expected)
    assert float(x[0, 1]) > 0


def test_of_two_equal_variables_one_takes_the_place_of_the_other() -> None:
    """Their curvature has no inverse."""
    a = numbers(1, 9, 2).mul(4).round()
    a = torch.cat([a, a[:, :, :1]], 2)
    x = torch.tensor([[1.0, 2.0, 3.0]]).double()
    b = (a @ x.unsqueeze(2)).squeeze(2)
    costs, moved = least_squares.without(x, torch.ones(1, 3, dtype=torch.bool), linear(a, b)[1])
    assert costs[0, [0, 2]].abs().max() < 1e-6 < float(costs[0, 1])
    expected = torch.tensor([[0.0, 2.0, 4.0], [4.0, 2.0, 0.0]]).double()
    torch.testing.assert_close(moved[0, [0, 2]], expected, rtol=1e-4, atol=1e-4)


def test_a_variable_without_any_effect_costs_nothing() -> None:
    """The whole Jacobian may be 0, or not finite."""
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double()
    a = torch.zeros(2, 5, 2).double()
    a[1, 0, 0] = math.nan
    free = torch.ones(2, 2, dtype=torch.bool)
    costs, moved = least_squares.without(x, free, lambda x: (torch.zeros(2, 5).double(), a))
    assert (costs < 1e-290).all()
    assert torch.equal(moved, x.unsqueeze(1) * (1 - torch.eye(2)))


def test_what_is_not_free_is_not_removed() -> None:
    """And does not move where another one is."""
    a, b, x = numbers(3, 9, 4), numbers(3, 9, seed=1), numbers(3, 4, seed=2)
    free = torch.tensor([True, False, True, True]).expand(3, 4)
    jacobian = linear(a, b)[1]
    costs, moved = least_squares.without(x, free, jacobian)
    rest = [0, 2, 3]
    expected = least_squares.without(
        x[:, rest], free[:, rest], lambda _: (jacobian(x)[0], a[:, :, rest])
    )
    torch.testing.assert_close(costs[:, rest], expected[0])
    torch.testing.assert_close(moved[:, rest][:, :, rest], expected[1])
    assert (moved[:, rest, 1] == x[:, 1:2]).all()
    assert costs[:, 1].isinf().all()
    assert torch.equal(moved[:, 1, rest], x[:, rest])


def test_upper_bounds_mirror_lower_ones() -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(1, *size, generator=generator).double() for size in ((9, 3), (9,)))
    free, damping = torch.ones(1, 3, dtype=torch.bool), torch.ones(1).double()
    x0, infinite = torch.zeros(1, 3).double(), torch.full((3,), math.inf).double()
    zero = torch.zeros(3).double()
    below, *_ = least_squares.step(x0, damping, free, *linear(a, b), (zero, infinite))
    above, *_ = least_squares.step(x0, damping, free, *linear(a, -b), (-infinite, zero))
    torch.testing.assert_close(above, -below, rtol=0, atol=0)
    assert bool((below > 0).any())


def test_weights_and_errors_of_another_objective() -> None:
    a, b = torch.tensor([[[1.0], [2.0], [0.5], [1.0]]]).double(), torch.ones(1, 4).double()
    residual, jacobian = linear(a, b)
    doubled = least_squares.Objective(
        lambda r: 4 * least_squares.error(r), lambda r: torch.full_like(r, 2.0)
    )
    x0, damping, free = torch.zeros(1, 1).double(), torch.ones(1).double(), torch.ones(1, 1).bool()
    x, _, error = least_squares.step(x0, damping, free, residual, jacobian)
    y, _, larger = least_squares.step(x0, damping, free, residual, jacobian, None, doubled)
    torch.testing.assert_close(y, x)
    torch.testing.assert_close(larger, 4 * error)
