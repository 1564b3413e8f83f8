"""The search for the fractional SIR equation: shooting, pruning, the judge, the command."""

import pytest
import torch
from torch import Tensor

from benchmarks.paper.fsir import task as fsir
from benchmarks.paper.fsir_equation import report as equation_report
from benchmarks.paper.fsir_equation import search as fsir_equation
from benchmarks.paper.fsir_equation.search import Shooting, Trajectory


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# ---- shooting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Shooting, Trajectory])
def test_jacobians_are_differences(kind: type[Shooting | Trajectory]) -> None:
    problem = kind(3, fsir.data()[:4])
    x = torch.cat([fsir.truth() * 0.97, fsir.truth() * 1.02])
    x[:, 9:12] = 1
    residual, jacobian = problem.jacobian(x)
    torch.testing.assert_close(residual, problem.residual(x))
    assert jacobian.shape == (2, 9, 21)
    for index in (0, 4, 8, 12, 20):
        up, down = x.clone(), x.clone()
        up[:, index] += 1e-5
        down[:, index] -= 1e-5
        expected = (problem.residual(up) - problem.residual(down)) / 2e-5
        torch.testing.assert_close(jacobian[:, :, index], expected, rtol=1e-5, atol=1e-6)


# ---- the search ----------------------------------------------------------------------------------


def test_search_prunes_and_finds_from_near() -> None:
    """Phases lead to the equation from a start near it; from 64 random ones the benchmark does."""
    (batch,) = fsir_equation.batches((3,), 2, (8, 12, 3), "cpu")
    search = batch.make(batch)
    free = search.free[0]
    search.x[:] = torch.where(free, fsir.truth() + 0.02 * numbers(2, 21), fsir.truth())
    search.advance(search.total)
    rows, tensors = search.results()
    assert [row["found"] for row in rows] == [1, 1]
    assert all(row["n_params"] == 10 and row["error"] < fsir_equation.LIMIT for row in rows)
    assert tensors["parameters"].shape == (2, 21)
    checks = equation_report.checks(rows)
    assert all(check.holds for check in checks)
    assert not any(
        check.holds for check in equation_report.checks([{**rows[0], "found": 0, "error": 1.0}])
    )
