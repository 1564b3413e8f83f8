"""Least squares of groups with coefficients of their own, by elimination."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels.equations._table.refine import Arrow
from tests.support.equations import RNG


@pytest.mark.filterwarnings("error")
def test_lengths_beyond_all_numbers_are_no_warning():
    """A column whose length float64 cannot hold counts as dependent on others."""
    J = np.full((6, 3), 1e200)
    arrow = Arrow.of(J, 2, np.ones(6), np.array([0, 0, 0, 1, 1, 1]))
    assert (arrow.groups[:, 0, 0] == 0).all()


@pytest.mark.parametrize("mu", [0.0, 1e-3, 10.0])
@pytest.mark.parametrize("exponents", [0, 3])
def test_steps_are_those_of_all_parameters_at_once(mu, exponents):
    draw = RNG(0)
    group = np.repeat([0, 1, 2], [9, 5, 30])
    J, target = draw.normal(size=(44, 2 + exponents)) * 10.0, draw.normal(size=44)
    arrow = Arrow.of(J, 2, target, group)
    one_of_group = np.eye(3)[group]
    wide = np.column_stack([J[:, k] * one_of_group[:, g] for g in range(3) for k in range(2)])
    A = np.column_stack([wide, J[:, 2:]])
    length = np.linalg.norm(A, axis=0)
    stays = np.zeros((2, 3), dtype=bool)
    stays[1, 2] = True
    for fixed in (None, stays):
        moves = np.ones(A.shape[1], dtype=bool)
        moves[:6] = True if fixed is None else ~fixed.T.ravel()
        scaled = np.where(moves, A / length, 0.0)
        damped = np.concatenate([scaled, np.sqrt(mu) * np.eye(len(length))])
        rhs = np.append(target, np.zeros(len(length)))
        expected = np.linalg.lstsq(damped, rhs, rcond=1e-13)[0] / length
        c, u = arrow.step(mu, fixed)
        np.testing.assert_allclose(c.T.ravel(), expected[:6], atol=1e-10)
        np.testing.assert_allclose(u, expected[6:], atol=1e-10)
    np.testing.assert_allclose(arrow.descent().T.ravel(), wide.T @ target, rtol=1e-9)
    h, variances = arrow.leverage()
    np.testing.assert_allclose(h, np.diag(A @ np.linalg.pinv(A)))
    total = np.linalg.inv(A.T @ A)
    for g, C in enumerate(arrow.covariance()):
        some = [2 * g, 2 * g + 1, *range(6, A.shape[1])]
        np.testing.assert_allclose(C, total[np.ix_(some, some)], atol=1e-9 * np.abs(total).max())
    if exponents:
        assert variances[-1] == pytest.approx(total[-1, -1])


def test_a_step_where_a_group_does_not_tell_its_coefficients():
    draw = RNG(0)
    group = np.repeat([0, 1], 10)
    J, target = draw.normal(size=(20, 3)), draw.normal(size=20)
    J[:10, 1] = 2 * J[:10, 0]
    arrow = Arrow.of(J, 2, target, group)
    c, u = arrow.step(0.0, None)
    assert np.isfinite(c).all()
    assert np.isfinite(u).all()
    assert np.isfinite(arrow.leverage()[0]).all()
    finite = np.isfinite(arrow.covariance())
    assert not finite[0, :2].any()
    assert finite[1].all()
    assert finite[0, 2, 2]
