"""The parts of laws of groups: layouts, least squares by elimination, projections, products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels._laws.products.exponent_length import exponent_nats
from npu_kernels._laws.products.groups import Layout, balanced, ranks, read_labels, starts
from npu_kernels._laws.products.library import Library
from npu_kernels._laws.products.problem import Columns, all_rows
from npu_kernels._laws.products.units import Exponents
from npu_kernels._laws.table import refine
from npu_kernels._laws.table.group_solver import GroupSolver
from npu_kernels._laws.table.linearised import Arrow
from npu_kernels._laws.table.varpro import Solver
from tests.support.laws import RNG


@pytest.mark.filterwarnings("error")
def test_lengths_beyond_all_numbers_are_no_warning():
    """A column whose length float64 cannot hold counts as dependent on others."""
    J = np.full((6, 3), 1e200)
    arrow = Arrow.of(J, 2, np.ones(6), np.array([0, 0, 0, 1, 1, 1]))
    assert (arrow.groups[:, 0, 0] == 0).all()


def test_layouts():
    group = np.array([0, 0, 0, 1, 2, 2])
    layout = Layout.of(group)
    assert starts(group).tolist() == [0, 3, 4]
    assert layout.index.tolist() == [0, 1, 2, 3, 3, 3, 4, 5, 4]
    filled = layout.filled(np.arange(1.0, 7)).tolist()
    assert filled == [1, 2, 3, 4, 0, 0, 5, 6, 0]
    assert ranks(group, np.array([5, 3, 2, 4, 0])).tolist() == [0, 0, 0, 1, 1]
    order = balanced(group, np.array([2, 0, 1, 3, 5, 4]))
    assert sorted(order[:3].tolist()) == [2, 3, 5]


def test_labels_of_a_tensor(monkeypatch):
    """Tensors may have a gradient, or be on a device from which they are copied."""
    copied, plain = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: copied.append(1) or plain(t))
    labels, index = read_labels("fit", torch.tensor([2.5, 1.0, 2.5], requires_grad=True), 3)
    assert labels == (1.0, 2.5)
    assert index.tolist() == [1, 0, 1]
    labels, _ = read_labels("fit", torch.tensor([3, 4]), 2)
    assert list(map(repr, labels)) == ["3", "4"]
    assert len(copied) == 2


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
    assert np.isfinite(arrow.covariance()).all()


def problem(seed: int = 0, groups: int = 3):
    """The problem of a law in groups of different sizes, and exponents near it."""
    draw = RNG(seed)
    group = np.sort(draw.integers(groups, size=60))
    X = draw.uniform(0.5, 2, (60, 2))
    y = (1.0 + group) * X[:, 0] - 2 * X[:, 1] ** 2 + 0.1 * draw.standard_normal(60)
    exponents = Exponents.unrestricted(2)
    rows = all_rows(Columns.of(X), y, np.ones(60), 1.0, exponents, None, group=group)
    assert rows is not None
    return rows.block, np.array([[[1.2, 0.1], [0.2, 1.7]], [[0.8, -0.1], [0.0, 2.2]]])


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_projections(loss):
    rows, u = problem()
    solver = GroupSolver(rows, loss)
    exponents = torch.from_numpy(u)
    parity = torch.zeros_like(exponents)
    A, _, c, r, rss, inverse = solver.project(exponents, parity)
    z, _ = rows.linear()
    for s in range(2):
        total = 0.0
        P = rows.products(u[s], np.zeros((2, 2)))
        for g in range(3):
            part = rows.group == g
            coef = np.linalg.lstsq(P[part], z[part], rcond=None)[0]
            total += float(((z[part] - P[part] @ coef) ** 2).sum())
        assert float(rss[s]) == pytest.approx(total, rel=1e-8)
    if loss != "squared":
        return
    H, gradient = solver._equations(A, c, r, inverse)
    for i in range(4):  # of the start's exponents
        moved = exponents.clone()
        moved.view(2, 4)[:, i] += 1e-6
        slope = (solver.project(moved, parity)[4] - rss) / 1e-6
        torch.testing.assert_close(-2 * gradient[:, i], slope, rtol=1e-3, atol=1e-4)
    assert (torch.linalg.eigvalsh(H) > 0).all()


def test_a_solver_of_one_group_is_that_without_groups():
    rows, u = problem(groups=1)
    plain = replace(rows, group=None)
    first = Solver(plain).run(u, np.zeros(u.shape), 8)
    second = GroupSolver(rows).run(u, np.zeros(u.shape), 8)
    torch.testing.assert_close(first.u, second.u)
    torch.testing.assert_close(first.c, second.c.squeeze(2))
    u0, zeros = u[0], np.zeros((2, 2))
    start = refine.Sum(u0, zeros, np.ones((2, 2), dtype=bool), np.ones(2))
    law = refine.refit(plain, start)
    grouped = refine.refit(rows, replace(start, c=np.ones((2, 1))))
    np.testing.assert_allclose(law.u, grouped.u, rtol=1e-6)
    assert law.cost == pytest.approx(grouped.cost, abs=1e-6)


def test_products_are_chosen_by_all_groups():
    rows, _ = problem()
    u = np.array([[1.0, 0], [0, 2], [0, 0], [2, 0], [1, 1]])
    library = Library(rows, RNG(0), u)
    z, _ = rows.linear()
    P = rows.products(library.u, library.parity)

    def left(chosen):
        squares = 0.0
        for g in range(3):
            part = rows.group == g
            c = np.linalg.lstsq(P[part][:, chosen], z[part], rcond=None)[0]
            squares += float(((z[part] - P[part][:, chosen] @ c) ** 2).sum())
        nats = [2 * sum(exponent_nats(w, 2) for w in library.u[k].tolist()) for k in chosen]
        return len(z) * np.log(squares) + sum(nats)

    none = np.empty((len(library.target), 0))
    assert library.best(library.target, none, 5) == sorted(range(5), key=lambda k: left([k]))
    present = library.A[:, :1]
    following = library.best(library.remainder(present), present, 4)
    assert following == sorted(range(1, 5), key=lambda k: left([0, k]))
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    assert library.pairs(10) == sorted(pairs, key=left)
    assert library.pairs(10, present) == sorted(pairs, key=lambda pair: left([0, *pair]))
    c = library.solved([0, 1])
    for g in range(3):
        part = rows.group == g
        expected = np.linalg.lstsq(P[part][:, :2], z[part], rcond=None)[0]
        np.testing.assert_allclose(c[:, g], expected)
