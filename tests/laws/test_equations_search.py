"""Steps of the search by themselves."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels._laws.products.library import Library
from npu_kernels._laws.products.problem import Columns, all_rows
from npu_kernels._laws.products.units import Exponents
from npu_kernels._laws.table import search
from npu_kernels._laws.table.varpro import Points, Solver
from tests.support.laws import RNG, uniform


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_exchange_of_the_one_wrong_term(wrong: int) -> None:
    """The law itself is among the sums with one term exchanged, without any iteration."""
    X = uniform(2, 80, seed=2)
    law = np.array([[2.0, -1.0], [0.5, 0.0], [0.0, -2.0]])
    c = np.array([3.0, -5.0, 2.0])
    y = np.exp(np.log(X) @ law.T) @ c
    rows = all_rows(Columns.of(X), y, np.ones(80), 1.0, Exponents.unrestricted(2), None)
    assert rows is not None
    problem = rows.take(np.arange(80))
    solver = Solver(problem)
    u = law[None].copy()
    u[0, wrong] = [3.0, 2.0]
    parity = torch.zeros(u.shape, dtype=torch.float64)
    before = solver.run(u, parity, 0)
    assert float(before.rss) > 1e-3 * solver.size
    points = Points(torch.from_numpy(u), parity, before.c, before.rss)
    exchanged, parities = search._exchanged(solver, Library(problem, RNG(0)), points)
    after = solver.run(exchanged, parities, 0)
    best = int(after.rss.argmin())
    assert float(after.rss[best]) < 1e-20 * solver.size
    assert sorted(after.u[best].tolist()) == sorted(law.tolist())
