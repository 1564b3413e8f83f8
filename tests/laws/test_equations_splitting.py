"""Two simple products in place of terms whose exponents are not simple."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels._laws.products.problem import Columns, all_rows
from npu_kernels._laws.products.units import Exponents
from npu_kernels._laws.table import splitting
from npu_kernels._laws.table.refine import Rules, Sum
from npu_kernels.equations import NPURegressor
from tests.support.laws import RNG, noise, terms, uniform

LAW = np.array([[2.0, -1.0], [0.5, 0.0], [0.0, -2.0]])


def sum_of(u: np.ndarray, free: list[bool]) -> Sum:
    """A sum, some of whose terms have free exponents."""
    return Sum(u, np.zeros(u.shape), np.repeat(free, 2).reshape(-1, 2), np.ones(len(u)))


def split(law: Sum, max_terms: int) -> Sum:
    """The best sum in place of `law`, for rows of `LAW` with errors of 1 %."""
    X = uniform(2, 200, seed=2)
    y = np.exp(np.log(X) @ LAW.T) @ np.array([3.0, -5.0, 2.0])
    rows = all_rows(
        Columns.of(X), y * (1 + 0.01 * noise(200)), np.ones(200), 1.0, Exponents.unrestricted(2),
        None,
    )  # fmt: skip
    assert rows is not None
    problem = rows.take(np.arange(200))
    return splitting.split(problem, problem, law, Rules(), max_terms, RNG(0))[0]


def test_two_products_in_place_of_one_term_or_two() -> None:
    """They are chosen beside the other terms."""
    wrong = [-0.3, 1.1]
    shorter = split(sum_of(np.array([LAW[0], wrong]), [False, True]), 3)
    assert sorted(shorter.u.tolist()) == sorted(LAW.tolist())
    equal = split(sum_of(np.array([[1.0, 1.0], LAW[0], wrong]), [False, False, True]), 3)
    assert sorted(equal.u.tolist()) == sorted(LAW.tolist())
    assert not equal.free.any()


def test_terms_that_two_products_may_replace() -> None:
    """Known terms stay, and there are no more terms than allowed."""
    law = sum_of(LAW, [False, False, True])
    assert splitting._leaving(law, 0, 4) == [(2,), (0, 2), (1, 2)]
    assert splitting._leaving(law, 1, 3) == [(1, 2)]


@pytest.mark.parametrize(
    ("coefficients", "law"),
    [
        ([1.3, 0.5, -0.33], [(-1.0, 0.0), (-0.5, 0.0), (1.0, 2.0)]),
        ([2.2, -0.8, -0.33], [(0.5, 0.0), (2.0, -2.0), (1.0, -1.0)]),
    ],
)
def test_two_terms_that_one_term_is_near_to(coefficients, law) -> None:
    X = uniform(2, low=0.5, high=4.0)
    y = np.exp(np.log(X) @ np.array(law).T) @ np.array(coefficients)
    y += 0.01 * np.sqrt(np.mean(y**2)) * noise()
    settings = {"random_state": 0, "output_powers": (1,), "ratios": False, "max_terms": 3}
    assert set(terms(NPURegressor(**settings).fit(X, y).best_)) == set(law)
    model = NPURegressor(**settings, max_denominator=1, starts=8).fit(X, y)
    assert not (model.exponents_ % 1 == 0.5).any()


def test_terms_of_another_power_of_y_stay(monkeypatch) -> None:
    calls, plain = [], splitting.split
    monkeypatch.setattr(splitting, "split", lambda *arguments: calls.append(1) or plain(*arguments))
    X = uniform(2)
    y = X[:, 0] ** 0.37 * X[:, 1] ** 1.23
    y += 0.01 * noise()
    settings = {"random_state": 0, "ratios": False, "max_terms": 2, "starts": 8}
    for power, count in ((1, 1), (2, 0)):
        calls.clear()
        model = NPURegressor(**settings, output_powers=(power,)).fit(X, y)
        assert (model.exponents_ % 0.25 != 0).any()
        assert len(calls) == count
