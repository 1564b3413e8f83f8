"""The Levenberg-Marquardt method for K least-squares problems of N variables at once, and pruning.

    (J'J + lambda diag(J'J)) d = -J'r

lambda becomes lambda / 5 if the sum of squares has fallen, else 4 lambda. Variables that are not
free stay as they are. A step to a residual that is not finite is rejected. For functions that are
not sums of squares, use `lbfgs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "FIRST_DAMPING",
    "MEAN_SQUARE",
    "Jacobian",
    "Normal",
    "Objective",
    "Residual",
    "damped_step",
    "error",
    "fit",
    "normal",
    "step",
    "without",
]

Residual = Callable[[Tensor], Tensor]  # x [K, N] to [K, R]
Jacobian = Callable[[Tensor], tuple[Tensor, Tensor]]  # x [K, N] to [K, R] and [K, R, N]

CURVATURE_FLOOR = 1e-6  # added to curvatures, over the largest: damps variables without effect
FIRST_DAMPING = 1e-2  # lambda of the first step


def error(residual: Tensor) -> Tensor:
    """Return the mean square ``[K]``; inf where it is not finite."""
    return residual.square().mean(1).nan_to_num(math.inf, math.inf)


class Objective(NamedTuple):
    """A function of the residuals that a step decreases.

    Its gradient is the gradient of a weighted sum of squares.
    """

    error: Callable[[Tensor], Tensor]  # residuals [K, R] to the function [K], inf where not finite
    weights: Callable[[Tensor], Tensor] | None  # of the residuals [K, R], where these are


MEAN_SQUARE = Objective(error, None)


class Normal(NamedTuple):
    """The normal equations of K problems at their variables, and the error there."""

    error: Tensor  # [K]
    hessian: Tensor  # [K, N, N], J'J; 0 where a variable is not free
    gradient: Tensor  # [K, N], J'r; likewise


def normal(
    x: Tensor, free: Tensor, jacobian: Jacobian, objective: Objective = MEAN_SQUARE
) -> Normal:
    """Return the normal equations at x."""
    r, j = jacobian(x)
    before = objective.error(r)
    if objective.weights is not None:
        weights = objective.weights(r)
        r, j = r * weights, j * weights.unsqueeze(2)
    hessian, gradient = _products(r, j, free)
    return Normal(before, hessian, gradient)


def _products(residual: Tensor, jacobian: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Return J'J and J'r of the free variables, and zeros elsewhere."""
    hessian = jacobian.mT @ jacobian
    gradient = (jacobian.mT @ residual.unsqueeze(2)).squeeze(2)
    hessian = torch.where(free.unsqueeze(1) & free.unsqueeze(2), hessian, 0.0)
    return hessian, torch.where(free, gradient, 0.0)


def step(
    x: Tensor,
    damping: Tensor,
    free: Tensor,
    residual: Residual,
    jacobian: Jacobian,
    bounds: tuple[Tensor, Tensor] | None = None,
    objective: Objective = MEAN_SQUARE,
) -> tuple[Tensor, ...]:
    """Take one step; return x, the damping lambda ``[K]`` and the error ``[K]`` after it.

    bounds: lower and upper bounds of the variables, ``[N]`` or ``[K, N]``. A variable at its bound
    does not cross it.
    """
    equations = normal(x, free, jacobian, objective)
    return damped_step(x, damping, free, residual, equations, bounds, objective)


def damped_step(
    x: Tensor,
    damping: Tensor,
    free: Tensor,
    residual: Residual,
    equations: Normal,
    bounds: tuple[Tensor, Tensor] | None = None,
    objective: Objective = MEAN_SQUARE,
) -> tuple[Tensor, ...]:
    """Take the step of the normal equations at x; see `step`."""
    before, hessian, gradient = equations
    if bounds is not None:
        low, high = bounds
        free = free & ~torch.where(gradient > 0, x <= low, (x >= high) & (gradient < 0))
        hessian = torch.where(free.unsqueeze(1) & free.unsqueeze(2), hessian, 0.0)
        gradient = torch.where(free, gradient, 0.0)
    curvature = hessian.diagonal(dim1=1, dim2=2)
    floor = CURVATURE_FLOOR * curvature.amax(1, keepdim=True) + 1e-12
    diagonal = damping.unsqueeze(1) * (curvature + floor) + (~free).to(x.dtype)
    move = -torch.linalg.solve_ex(hessian + torch.diag_embed(diagonal), gradient)[0]
    trial = x + torch.where(free, move, 0.0).nan_to_num(0.0, 0.0, 0.0)
    if bounds is not None:
        trial = torch.where(free, trial.clamp(low, high), trial)
    after = objective.error(residual(trial))
    better = after < before
    damping = torch.where(better, damping / 5, damping * 4).clamp(1e-12, 1e12)
    return torch.where(better.unsqueeze(1), trial, x), damping, torch.where(better, after, before)


def fit(
    x: Tensor, free: Tensor, residual: Residual, jacobian: Jacobian, steps: int
) -> tuple[Tensor, Tensor]:
    """Take `steps` steps from x; return the last x and its error ``[K]``."""
    damping, last_error = torch.full_like(x[:, 0], FIRST_DAMPING), error(residual(x))
    for _ in range(steps):
        x, damping, last_error = step(x, damping, free, residual, jacobian)
    return x, last_error


def without(x: Tensor, free: Tensor, jacobian: Jacobian) -> tuple[Tensor, Tensor]:
    """Set each variable to 0 and refit the others, to second order, by the optimal brain surgeon.

    Returns the rise of the error for each variable ``[K, N]``, inf where not free, and all
    variables after its removal ``[K, N, N]``. (Hassibi and Stork, "Second order derivatives for
    network pruning: optimal brain surgeon", 1993.)
    """
    r, j = jacobian(x)
    hessian, _ = _products(r, j, free)
    curvature = hessian.diagonal(dim1=1, dim2=2)
    ridge = 1e-9 * curvature + 1e-10 * curvature.amax(1, keepdim=True) + 1e-300
    regularised = hessian + torch.diag_embed(ridge + (~free).to(x.dtype))
    inverse = torch.linalg.inv_ex(regularised)[0].nan_to_num()
    variance = inverse.diagonal(dim1=1, dim2=2)
    ratio = torch.where(free & (variance > 0), x / variance, 0.0)
    costs = torch.where(free, ratio * x / r.shape[1], math.inf)
    moved = x.unsqueeze(1) - ratio.unsqueeze(2) * inverse.mT
    moved = torch.where(torch.eye(x.shape[1], dtype=torch.bool), 0.0, moved)
    return costs, moved
