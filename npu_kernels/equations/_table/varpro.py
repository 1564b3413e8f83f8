"""Variable projection and Levenberg-Marquardt for many starts at once, in float64.

The sum ``sum_k c_k phi_k`` with ``phi_k = prod r_i**u_ki`` is linear in c. For given exponents, c
is solved exactly, and only the exponents are iterated on (Golub and Pereyra 1973, with Kaufman's
approximation of the derivative, 1975). The derivative of a term for an exponent is
``c_k phi_k log r_i``. Every matrix of an iteration is therefore a sum over rows of ``phi_j phi_k``
times 1, ``log r_i`` or ``log r_i log r_l``: one matrix product for all starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npu_kernels.equations._problem import Problem, about_mean
from npu_kernels.equations._rows import Layout

Array = Any

MAX_CHANGE = 1.0  # the largest change of an exponent in an iteration


@dataclass
class Points:
    """S sums in progress."""

    u: Tensor  # [S, K, m]: exponents
    parity: Tensor  # [S, K, m]: 1 where an exponent is odd
    c: Tensor  # [S, K]: coefficients; [S, K, G] of groups
    rss: Tensor  # [S]: squared errors

    def take(self, index: Tensor) -> Points:
        return Points(self.u[index], self.parity[index], self.c[index], self.rss[index])


class Solver:
    """The rows of a problem, ready for batches of starts.

    A `loss` other than "squared" weights rows by residuals.
    """

    def __init__(self, problem: Problem, loss: str = "squared") -> None:
        z, weight = problem.linear()
        self.logs = torch.from_numpy(np.ascontiguousarray(problem.logs))
        self.target = torch.from_numpy(z * weight)
        self.weight = torch.from_numpy(weight)
        self.negative = None if problem.negative is None else torch.from_numpy(problem.negative)
        self.low, self.high = torch.from_numpy(problem.low), torch.from_numpy(problem.high)
        self.zeros = problem.zeros
        self.held = torch.from_numpy(problem.held)
        self.limits, self.fixed = problem.limits, problem.fixed
        m = problem.inputs
        self.upper = torch.triu_indices(m, m)
        self.inner = pair_index(m)
        products = self.logs[:, self.upper[0]] * self.logs[:, self.upper[1]]
        self.moments = torch.cat([self.logs, products], 1)  # [N, m + m (m + 1) / 2]
        self.size = float((about_mean(z * weight, weight, problem.group) ** 2).sum())
        self.robust = loss != "squared"
        self.limit = math.inf  # residuals beyond count linearly

    def terms(self, u: Tensor, parity: Tensor) -> Tensor:
        """Return weighted products ``[S, K, N]``."""
        products = (u @ self.logs.T).clamp_(-300, 300).exp_().mul_(self.weight)
        if self.negative is not None:
            products.mul_(1 - 2 * torch.remainder(parity @ self.negative.T, 2))
        if self.zeros is not None:
            factors = self.zeros.factors(u.flatten(0, -2).numpy())
            products.mul_(torch.from_numpy(factors.T).view_as(products))
        return products

    def project(self, u: Tensor, parity: Tensor, start: Tensor | None = None) -> tuple[Tensor, ...]:
        """Solve for the coefficients.

        Returns the terms divided by their lengths ``[S, K, N]``, the lengths ``[S, K]``, the
        coefficients of the divided terms ``[S, K]``, residuals ``[S, N]``, squared errors ``[S]``
        and the inverse Gram matrices ``[S, K, K]``. start: residuals from which a robust loss takes
        the weights of the rows; None: all rows weigh the same.
        """
        bounds = None
        if self.limits is not None:
            low, high = map(torch.from_numpy, self.limits.bounds(u.numpy()))
            bounds = low, high
        return self._solved(self.terms(u, parity), self.target, bounds, start)

    def _solved(
        self, A: Tensor, target: Tensor, bounds: tuple[Tensor, Tensor] | None, start: Tensor | None
    ) -> tuple[Tensor, ...]:
        """`project` for terms ``[S, K, N]``. bounds: of the coefficients ``[S, K]``."""
        length = A.norm(dim=2).clamp_min_(1e-300)
        A = A / length.unsqueeze(2)
        target = target.expand(len(A), -1)
        weighted = A
        if self.robust and start is not None:
            weighted = A * self._downweight(start).unsqueeze(1)
        gram = weighted @ A.transpose(1, 2)
        eye = torch.eye(A.shape[1], dtype=A.dtype)
        inverse, _ = torch.linalg.inv_ex(gram + 1e-11 * eye)
        c = (inverse @ (weighted @ target.unsqueeze(2))).squeeze(2)
        r = target - (c.unsqueeze(1) @ A).squeeze(1)
        # A second time, on the residuals: the normal equations lose half of the digits.
        c = c + (inverse @ (weighted @ r.unsqueeze(2))).squeeze(2)
        if bounds is not None:
            within = bounds[0] * length, bounds[1] * length
            c, inverse = _bounded(c, within, gram, inverse, weighted, A, target)
        r = target - (c.unsqueeze(1) @ A).squeeze(1)
        squares = self._robust(r) if self.robust else r.square()
        return A, length, c, r, squares.sum(1).nan_to_num_(nan=math.inf), inverse

    def _robust(self, r: Tensor) -> Tensor:
        """Squares of residuals, linear beyond the limit."""
        size = r.abs()
        linear = 2 * self.limit * size - self.limit**2 if math.isfinite(self.limit) else size
        return torch.where(size <= self.limit, r.square(), linear)

    def _downweight(self, r: Tensor) -> Tensor:
        return (self.limit / r.abs().clamp_min(1e-300)).clamp_(max=1.0)

    def set_limit(self, r: Tensor, rss: Tensor) -> None:
        """Set where outliers begin: 1.345 robust standard deviations of the best residuals."""
        best = r[int(rss.argmin())].abs()
        smallest = 1e-12 * math.sqrt(self.size / len(best))
        self.limit = max(1.345 * 1.4826 * float(best.median()), smallest)

    def run(
        self,
        u: Array | Tensor,
        parity: Array | Tensor,
        iterations: int,
        halvings: tuple[int, ...] = (),
    ) -> Points:
        """Minimise from starts ``[S, K, m]``.

        After each iteration of `halvings` only the better half continues.
        """
        u = torch.clamp(torch.as_tensor(u, dtype=torch.float64), self.low, self.high)
        parity = torch.as_tensor(parity, dtype=torch.float64)
        start = None
        if self.robust:
            self.limit = math.inf
            _, _, _, r, rss, _ = self.project(u, parity)
            self.set_limit(r, rss)
            start = self.target.expand(len(u), -1)
        A, length, c, r, rss, inverse = self.project(u, parity, start)
        mu, still = torch.full((len(u),), 1e-2, dtype=torch.float64), 0
        for iteration in range(iterations if u.shape[2] else 0):
            if iteration in halvings and len(u) > 8:
                better = rss.argsort()[: len(u) // 2]
                state = (u, parity, A, length, c, r, rss, inverse, mu)
                u, parity, A, length, c, r, rss, inverse, mu = [t[better] for t in state]
            trial = u + self._step(A, c, r, inverse, mu, u).view_as(u)
            trial = torch.clamp(trial, self.low, self.high)
            A2, length2, c2, r2, rss2, inverse2 = self.project(trial, parity, r)
            ok = rss2 < rss
            gain = torch.where(ok, (rss - rss2) / rss.clamp_min(1e-300), 0.0)
            mu = torch.where(ok, mu / 4, mu * 5).clamp_(1e-12, 1e10)
            ok2, ok3 = ok[:, None], ok[:, None, None]
            u, A = torch.where(ok3, trial, u), torch.where(ok3, A2, A)
            inverse = torch.where(ok3, inverse2, inverse)
            c, r = torch.where(ok2, c2, c), torch.where(ok2, r2, r)
            length, rss = torch.where(ok2, length2, length), torch.where(ok, rss2, rss)
            still = still + 1 if float(gain.max()) < 1e-6 else 0
            if still == 4 or float(rss.min()) < 1e-24 * self.size:
                break
        return Points(u, parity, c / length, rss)

    def _step(
        self, A: Tensor, c: Tensor, r: Tensor, inverse: Tensor, mu: Tensor, u: Tensor
    ) -> Tensor:
        """The damped steps of the exponents ``[S, K m]``; 0 where the equations are singular.

        u: the exponents.
        """
        S, K, m = u.shape
        H, gradient = self._equations(A, c, r, inverse)
        if self.zeros is not None or self.fixed:
            stays = ((u == 0) & self.held).reshape(S, K * m)
            stays[:, : self.fixed * m] = True
            H = H.masked_fill(stays.unsqueeze(1) | stays.unsqueeze(2), 0.0)
            gradient = gradient.masked_fill(stays, 0.0)
        diagonal = H.diagonal(dim1=1, dim2=2)
        floor = 1e-10 * diagonal.amax(1, keepdim=True).clamp_min(1e-14 * self.size)
        H = H + torch.diag_embed(mu[:, None] * diagonal.clamp_min(0.0) + floor)
        factor, info = torch.linalg.cholesky_ex(H.nan_to_num())
        step = torch.cholesky_solve(gradient.nan_to_num().unsqueeze(2), factor).squeeze(2)
        return (
            step.nan_to_num()
            .clamp(-MAX_CHANGE, MAX_CHANGE)
            .masked_fill((info > 0).unsqueeze(1), 0.0)
        )

    def _equations(self, A: Tensor, c: Tensor, r: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        """The matrices ``[S, K m, K m]`` of the projected normal equations, and the gradients."""
        if self.robust:
            down = self._downweight(r).sqrt()
            A, r = A * down.unsqueeze(1), r * down
        S, K, _ = A.shape
        m = self.logs.shape[1]
        a, b = torch.triu_indices(K, K)
        sums = (A[:, a] * A[:, b]) @ self.moments
        index = pair_index(K)
        first = sums[:, index, :m] * c[:, None, :, None]  # A_k . (c_l A_l log r_i): [S, K, K, m]
        second = (
            sums[:, index, m:][..., self.inner] * (c[:, :, None] * c[:, None, :])[..., None, None]
        )
        H = second.permute(0, 1, 3, 2, 4).reshape(S, K * m, K * m)
        flat = first.reshape(S, K, K * m)
        H = H - flat.transpose(1, 2) @ (inverse @ flat)
        return H, ((A * r.unsqueeze(1)) @ self.logs * c.unsqueeze(2)).reshape(S, K * m)


def pair_index(count: int) -> Tensor:
    """Return the index ``[K, K]`` of each pair among those of `torch.triu_indices`."""
    a, b = torch.triu_indices(count, count)
    index = torch.zeros(count, count, dtype=torch.long)
    index[a, b] = index[b, a] = torch.arange(len(a))
    return index


def _bounded(
    c: Tensor, bounds: tuple[Tensor, Tensor], gram: Tensor, inverse: Tensor, weighted: Tensor,
    A: Tensor, target: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return coefficients within bounds, and the inverse Gram matrices of those between them.

    Those beyond a bound stay there, and the others are solved for again.
    """
    low, high = bounds
    stays = torch.zeros_like(c, dtype=torch.bool)
    for _ in range(c.shape[1]):
        beyond = ((c < low) | (c > high)) & ~stays
        if not beyond.any():
            break
        stays = stays | beyond
        c = torch.where(stays, c.clamp(low, high), 0.0)
        between = (~stays).to(c.dtype)
        pairs = between.unsqueeze(1) * between.unsqueeze(2)
        inverse = torch.linalg.inv_ex(gram * pairs + torch.diag_embed(1 - between + 1e-11))[0]
        inverse = inverse * pairs
        for _ in range(2):
            r = target - (c.unsqueeze(1) @ A).squeeze(1)
            c = c + (inverse @ (weighted @ r.unsqueeze(2))).squeeze(2)
    return c.clamp(low, high), inverse


# ---- groups --------------------------------------------------------------------------------------
# Variable projection where each group of rows has coefficients of its own.
#
# For given exponents the coefficients of a group are solved for by its rows alone. So the groups of
# a start are as many starts for all that concerns coefficients: ``[S G, K, n]`` in place of ``[S,
# K, N]``. Only the equations of the exponents are sums over groups.


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
        gradients = (A * r.unsqueeze(2)) @ self.logs.view(G, n, m) * c.unsqueeze(3)
        return H, gradients.sum(1).reshape(S, K * m)
