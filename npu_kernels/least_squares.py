"""Levenberg and Marquardt's method for K least-squares problems of N variables at once, and what to leave out of them.

    (J'J + lambda diag(J'J)) d = -J'r        lambda / 5 where the sum of squares has fallen, 4 lambda where it has not

Variables that are not free stay as they are. A step to where the residual is not finite is no step.
`lbfgs` minimises what is no sum of squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["FIRST_DAMPING", "Jacobian", "Residual", "error", "fit", "step", "without"]

Residual = Callable[[Tensor], Tensor]  # x [K, N] to [K, R]
Jacobian = Callable[[Tensor], tuple[Tensor, Tensor]]  # x [K, N] to [K, R] and [K, R, N]

FLOOR = 1e-6  # of a variable's curvature, relative to the greatest: what a variable without effect is damped by
FIRST_DAMPING = 1e-2


def error(residual: Tensor) -> Tensor:
    """Mean square ``[K]``; inf where it is not finite."""
    return residual.square().mean(1).nan_to_num(math.inf, math.inf)


def _normal(residual: Tensor, jacobian: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """J'J and J'r of the free variables; zeros where something is not finite."""
    good = (jacobian.isfinite().all(2) & residual.isfinite()).all(1)
    jacobian = torch.where(good[:, None, None] & free[:, None], jacobian, 0.0)
    residual = torch.where(good[:, None], residual, 0.0)
    return jacobian.mT @ jacobian, (jacobian.mT @ residual.unsqueeze(2)).squeeze(2)


def step(
    x: Tensor, damping: Tensor, free: Tensor, residual: Residual, jacobian: Jacobian, low: Tensor | None = None
) -> tuple[Tensor, ...]:
    """One step; x, damping and error ``[K]`` after it.

    low ``[N]``: the least value of each variable. One that is there, and would fall, stays.
    """
    r, j = jacobian(x)
    before = error(r)
    hessian, gradient = _normal(r, j, free)
    if low is not None:
        free = free & ~((x <= low) & (gradient > 0))
        hessian, gradient = _normal(r, j, free)
    curvature = hessian.diagonal(dim1=1, dim2=2)
    least = FLOOR * curvature.amax(1, keepdim=True) + 1e-12
    damped = hessian + torch.diag_embed(damping.unsqueeze(1) * (curvature + least) + (~free).to(x.dtype))
    move = -torch.linalg.solve_ex(damped, gradient)[0]
    trial = x + torch.where(free, move, 0.0).nan_to_num(0.0, 0.0, 0.0)
    if low is not None:
        trial = torch.where(free, torch.maximum(trial, low), trial)
    after = error(residual(trial))
    better = after < before
    damping = torch.where(better, damping / 5, damping * 4).clamp(1e-12, 1e12)
    return torch.where(better.unsqueeze(1), trial, x), damping, torch.where(better, after, before)


def fit(x: Tensor, free: Tensor, residual: Residual, jacobian: Jacobian, steps: int) -> tuple[Tensor, Tensor]:
    """So many steps; x and its error ``[K]``."""
    damping = torch.full_like(x[:, 0], FIRST_DAMPING)
    found = error(residual(x))
    for _ in range(steps):
        x, damping, found = step(x, damping, free, residual, jacobian)
    return x, found


def without(x: Tensor, free: Tensor, jacobian: Jacobian) -> tuple[Tensor, Tensor]:
    """What it costs to set each variable to 0 if the others make the best of it, to second order.

    Returns the costs ``[K, N]``, inf where not free, and the variables ``[K, N, N]`` that each leads to. (Hassibi and
    Stork, "Second order derivatives for network pruning: optimal brain surgeon", 1993.)
    """
    r, j = jacobian(x)
    hessian, _ = _normal(r, j, free)
    curvature = hessian.diagonal(dim1=1, dim2=2)
    least = 1e-9 * curvature + 1e-10 * curvature.amax(1, keepdim=True) + 1e-300
    inverse = torch.linalg.inv_ex(hessian + torch.diag_embed(least + (~free).to(x.dtype)))[0].nan_to_num()
    own = inverse.diagonal(dim1=1, dim2=2)
    ratio = torch.where(free & (own > 0), x / own, 0.0)
    costs = torch.where(free, ratio * x / r.shape[1], math.inf)
    moved = x.unsqueeze(1) - ratio.unsqueeze(2) * inverse.mT
    moved = torch.where(free.unsqueeze(1), moved, x.unsqueeze(1))
    moved = torch.where(torch.eye(x.shape[1], dtype=torch.bool), 0.0, moved)
    return costs, moved
