"""Variable projection and Levenberg-Marquardt for many starts at once, in float64.

The sum ``sum_k c_k phi_k`` with ``phi_k = prod r_i**u_ki`` is linear in c. For given exponents, c is solved exactly,
and only the exponents are iterated on (Golub and Pereyra 1973, with Kaufman's approximation of the derivative, 1975).
The derivative of a term for an exponent is ``c_k phi_k log r_i``. Every matrix of an iteration is therefore a sum over
rows of ``phi_j phi_k`` times 1, ``log r_i`` or ``log r_i log r_l``: one matrix product for all starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npu_kernels._laws.products.problem import Problem

Array = Any

STEP = 1.0  # the largest change of an exponent in an iteration


@dataclass
class Points:
    """Sums in progress: exponents ``u [S, K, m]``, their parities, coefficients ``c [S, K]``, squared errors
    ``[S]``.
    """

    u: Tensor
    parity: Tensor
    c: Tensor
    rss: Tensor

    def take(self, index: Tensor) -> Points:
        return Points(self.u[index], self.parity[index], self.c[index], self.rss[index])


class Solver:
    """The rows of a problem, ready for batches of starts. A `loss` other than "squared" weights rows by residuals."""

    def __init__(self, problem: Problem, loss: str = "squared") -> None:
        z, weight = problem.linear()
        self.logs = torch.from_numpy(np.ascontiguousarray(problem.logs))
        self.target = torch.from_numpy(z * weight)
        self.weight = torch.from_numpy(weight)
        self.negative = None if problem.negative is None else torch.from_numpy(problem.negative)
        self.low, self.high = torch.from_numpy(problem.low), torch.from_numpy(problem.high)
        m = problem.inputs
        self.upper = torch.triu_indices(m, m)
        products = self.logs[:, self.upper[0]] * self.logs[:, self.upper[1]]
        self.moments = torch.cat([self.logs, products], 1)  # [N, m + m (m + 1) / 2]
        self.size = float(self.target.square().sum())
        self.robust = loss != "squared"
        self.limit = math.inf  # residuals beyond count linearly

    def terms(self, u: Tensor, parity: Tensor) -> Tensor:
        """Weighted products ``[S, K, N]``."""
        found = (u @ self.logs.T).clamp_(-300, 300).exp_().mul_(self.weight)
        if self.negative is not None:
            found.mul_(1 - 2 * torch.remainder(parity @ self.negative.T, 2))
        return found

    def project(
        self, A: Tensor, start: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Coefficients of terms of length 1, residuals ``[S, N]``, squared errors, and the inverse Gram matrices."""
        S, K, N = A.shape
        target = self.target.expand(S, N)
        weighted = A
        if self.robust and start is not None:
            weighted = A * self._downweight(start).unsqueeze(1)
        gram = weighted @ A.transpose(1, 2)
        eye = torch.eye(K, dtype=A.dtype)
        inverse, _ = torch.linalg.inv_ex(gram + 1e-11 * eye)
        c = (inverse @ (weighted @ target.unsqueeze(2))).squeeze(2)
        r = target - (c.unsqueeze(1) @ A).squeeze(1)
        # Once more, on the residuals: the normal equations alone lose half of the digits.
        c = c + (inverse @ (weighted @ r.unsqueeze(2))).squeeze(2)
        r = target - (c.unsqueeze(1) @ A).squeeze(1)
        return c, r, self.objective(r), inverse

    def objective(self, r: Tensor) -> Tensor:
        """Squared errors ``[S]``, those of outliers linear."""
        if not self.robust:
            return r.square().sum(1).nan_to_num_(nan=math.inf)
        size = r.abs()
        linear = 2 * self.limit * size - self.limit**2 if math.isfinite(self.limit) else size
        return torch.where(size <= self.limit, r.square(), linear).sum(1).nan_to_num_(nan=math.inf)

    def _downweight(self, r: Tensor) -> Tensor:
        return (self.limit / r.abs().clamp_min(1e-300)).clamp_(max=1.0)

    def set_limit(self, r: Tensor, rss: Tensor) -> None:
        """Outliers begin at 1.345 robust standard deviations of the best start's residuals."""
        best = r[int(rss.argmin())].abs()
        self.limit = max(
            1.345 * 1.4826 * float(best.median()), 1e-12 * math.sqrt(self.size / len(best))
        )

    def normal(self, A: Tensor, c: Tensor, r: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        """The projected normal equations of the exponents: matrices ``[S, K m, K m]`` and gradients ``[S, K m]``."""
        S, K, _ = A.shape
        m = self.logs.shape[1]
        a, b = torch.triu_indices(K, K)
        sums = (A[:, a] * A[:, b]) @ self.moments
        index = torch.zeros(K, K, dtype=torch.long)
        index[a, b] = index[b, a] = torch.arange(len(a))
        inner = torch.zeros(m, m, dtype=torch.long)
        inner[self.upper[0], self.upper[1]] = inner[self.upper[1], self.upper[0]] = torch.arange(
            self.upper.shape[1]
        )
        first = sums[:, index, :m] * c[:, None, :, None]  # A_k . (c_l A_l log r_i): [S, K, K, m]
        second = sums[:, index, m:][..., inner] * (c[:, :, None] * c[:, None, :])[..., None, None]
        H = second.permute(0, 1, 3, 2, 4).reshape(S, K * m, K * m)
        flat = first.reshape(S, K, K * m)
        H = H - flat.transpose(1, 2) @ (inverse @ flat)
        gradient = ((A * r.unsqueeze(1)) @ self.logs * c.unsqueeze(2)).reshape(S, K * m)
        return H, gradient

    def run(
        self,
        u: Array | Tensor,
        parity: Array | Tensor,
        iterations: int,
        halvings: tuple[int, ...] = (),
    ) -> Points:
        """Minimise from starts ``[S, K, m]``; after each iteration of `halvings` only the better half continues."""
        u, parity = (
            torch.as_tensor(u, dtype=torch.float64),
            torch.as_tensor(parity, dtype=torch.float64),
        )
        u = torch.clamp(u, self.low, self.high)
        if self.robust:
            self.limit = math.inf
            A = self._normalised(u, parity)[0]
            _, r, rss, _ = self.project(A)
            self.set_limit(r, rss)
        A, length = self._normalised(u, parity)
        c, r, rss, inverse = self.project(
            A, self.target.expand(len(u), -1) if self.robust else None
        )
        mu, still = torch.full((len(u),), 1e-2, dtype=torch.float64), 0
        for iteration in range(iterations if u.shape[2] else 0):
            if iteration in halvings and len(u) > 8:
                keep = rss.argsort()[: len(u) // 2]
                u, parity, A, length, c, r, rss, inverse, mu = (
                    t[keep] for t in (u, parity, A, length, c, r, rss, inverse, mu)
                )
            step = self._step(A, c, r, inverse, mu).view_as(u)
            tried = torch.clamp(u + step, self.low, self.high)
            A2, length2 = self._normalised(tried, parity)
            c2, r2, rss2, inverse2 = self.project(A2, r if self.robust else None)
            ok = rss2 < rss
            gain = torch.where(ok, (rss - rss2) / rss.clamp_min(1e-300), 0.0)
            mu = torch.where(ok, mu / 4, mu * 5).clamp_(1e-12, 1e10)
            one, two = ok[:, None], ok[:, None, None]
            u, A, inverse = (
                torch.where(two, tried, u),
                torch.where(two, A2, A),
                torch.where(two, inverse2, inverse),
            )
            c, r, length = (
                torch.where(one, c2, c),
                torch.where(one, r2, r),
                torch.where(one, length2, length),
            )
            rss = torch.where(ok, rss2, rss)
            still = still + 1 if float(gain.max()) < 1e-6 else 0
            if still == 4 or float(rss.min()) < 1e-24 * self.size:
                break
        return Points(u, parity, c / length, rss)

    def _normalised(self, u: Tensor, parity: Tensor) -> tuple[Tensor, Tensor]:
        """Terms of length 1 ``[S, K, N]``, and their lengths ``[S, K]``."""
        A = self.terms(u, parity)
        length = A.norm(dim=2).clamp_min_(1e-300)
        return A / length.unsqueeze(2), length

    def _step(self, A: Tensor, c: Tensor, r: Tensor, inverse: Tensor, mu: Tensor) -> Tensor:
        """The damped steps of the exponents ``[S, K m]``; 0 where the equations cannot be solved."""
        if self.robust:
            down = self._downweight(r).sqrt()
            A, r = A * down.unsqueeze(1), r * down
        H, gradient = self.normal(A, c, r, inverse)
        diagonal = H.diagonal(dim1=1, dim2=2)
        floor = 1e-10 * diagonal.amax(1, keepdim=True).clamp_min(1e-14 * self.size)
        H = H + torch.diag_embed(mu[:, None] * diagonal.clamp_min(0.0) + floor)
        factor, info = torch.linalg.cholesky_ex(H.nan_to_num())
        step = torch.cholesky_solve(gradient.nan_to_num().unsqueeze(2), factor).squeeze(2)
        return step.nan_to_num().clamp(-STEP, STEP).masked_fill((info > 0).unsqueeze(1), 0.0)
