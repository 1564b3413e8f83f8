"""Variable projection where each group of rows has coefficients of its own.

For given exponents the coefficients of a group are solved for by its rows alone. So the groups of a
start are as many starts for all that concerns coefficients: ``[S G, K, n]`` in place of
``[S, K, N]``. Only the equations of the exponents are sums over groups.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from npu_kernels.equations._products.groups import Layout
from npu_kernels.equations._products.problem import Problem
from npu_kernels.equations._table.varpro import Points, Solver, pair_index

Array = Any


def solver_of(problem: Problem, loss: str) -> Solver:
    """Return the solver of a problem, with groups or without."""
    return Solver(problem, loss) if problem.group is None else GroupSolver(problem, loss)


class GroupSolver(Solver):
    """A `Solver` whose rows are those of a `Layout`.

    Within `run` a start has G K coefficients and lengths, and so many terms of n rows.
    """

    def __init__(self, problem: Problem, loss: str = "squared") -> None:
        super().__init__(problem, loss)
        assert problem.group is not None
        layout = Layout.of(problem.group)
        self.groups, self.real = layout.count, torch.from_numpy(layout.real)
        index = torch.from_numpy(layout.index)
        self.logs, self.moments = self.logs[index], self.moments[index]
        self.target = self.target[index].masked_fill(~self.real, 0.0)
        self.weight = self.weight[index].masked_fill(~self.real, 0.0)
        if self.negative is not None:
            self.negative = self.negative[index]
        if self.zeros is not None:
            self.zeros = replace(self.zeros, zero=self.zeros.zero[layout.index])
        self.constants = torch.eye(self.groups).repeat_interleave(self._rows, 0).double().numpy()

    @property
    def _rows(self) -> int:
        """Rows of a group, n."""
        return len(self.target) // self.groups

    def run(
        self,
        u: Array | Tensor,
        parity: Array | Tensor,
        iterations: int,
        halvings: tuple[int, ...] = (),
    ) -> Points:
        """Minimise from starts: see `Solver.run`."""
        points = super().run(u, parity, iterations, halvings)
        by_group = points.c.view(len(points.u), self.groups, -1)
        return replace(points, c=by_group.transpose(1, 2).contiguous())

    def _solved(
        self, A: Tensor, target: Tensor, bounds: tuple[Tensor, Tensor] | None, start: Tensor | None
    ) -> tuple[Tensor, ...]:
        S, K, G, n = len(A), A.shape[1], self.groups, self._rows
        A = A.view(S, K, G, n).transpose(1, 2).reshape(S * G, K, n)
        target = target.view(G, n).repeat(S, 1)
        if bounds is not None:
            bounds = bounds[0].repeat_interleave(G, 0), bounds[1].repeat_interleave(G, 0)
        start = None if start is None else start.reshape(S * G, n)
        A, length, c, r, rss, inverse = super()._solved(A, target, bounds, start)
        flat = (part.reshape(S, -1) for part in (length, c, r))
        rss, inverse = rss.reshape(S, G).sum(1), inverse.reshape(S, G * K, K)
        return A.reshape(S, G * K, n), *flat, rss, inverse

    def set_limit(self, r: Tensor, rss: Tensor) -> None:
        """Set where outliers begin: see `Solver.set_limit`."""
        super().set_limit(r[:, self.real], rss)

    def _equations(self, A: Tensor, c: Tensor, r: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        S, G, n, K, m = len(A), self.groups, self._rows, inverse.shape[2], self.logs.shape[1]
        A, c, r = A.reshape(S, G, K, n), c.reshape(S, G, K), r.reshape(S, G, n)
        if self.robust:
            down = self._downweight(r).sqrt()
            A, r = A * down.unsqueeze(2), r * down
        a, b = torch.triu_indices(K, K)
        sums = (A[:, :, a] * A[:, :, b]) @ self.moments.view(G, n, -1)  # [S, G, pairs, moments]
        index = pair_index(K)
        flat = (sums[:, :, index, :m] * c[:, :, None, :, None]).reshape(S, G, K, K * m)
        products = (sums[..., m:] * (c[:, :, a] * c[:, :, b]).unsqueeze(3)).sum(1)
        H = products[:, index][..., self.inner].permute(0, 1, 3, 2, 4).reshape(S, K * m, K * m)
        H = H - (flat.transpose(2, 3) @ (inverse.reshape(S, G, K, K) @ flat)).sum(1)
        slopes = (A * r.unsqueeze(2)) @ self.logs.view(G, n, m) * c.unsqueeze(3)
        return H, slopes.sum(1).reshape(S, K * m)
