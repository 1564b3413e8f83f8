"""The steps of an implicit pair in eager torch: the specification and the oracle of the fused ones.

A stage's derivative solves k = f(w + h g k), where w holds the stages before. One matrix serves all
stages of a step, M = 1 - h g J(u), and Newton's iteration changes the k, not the states:

    M d = f(w + h g k) - k    k += d

until rate / (1 - rate) q is at most `bound`, where q is the root mean square of h g d / (atol +
rtol |u|) and rate the ratio of the last two q (Hairer and Wanner, "Solving Ordinary Differential
Equations II", IV.8). The right-hand side of a power layer jumps where a state changes
its sign, as by a change of that state by 2 eps. Between both sides there may be no root, and d goes
to and fro. There the iteration ends, with states that are right to a few eps. k is differentiated
by the implicit function theorem,

    dk = (1 - h g J(v))^-1 df,    v = w + h g k

for any f: a module, or a function of rows ``[..., D]`` that do not depend on one another.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels._operators.autograd import eager_only
from npu_kernels.ode._loop import combine, stage_rows
from npu_kernels.ode._methods import STAGES, Method

NEWTON_ITERATIONS = 10  # for a stage, at most
MAX_STAGE_ERROR = 0.03  # that the iterations may leave, in units of the tolerance
JUMP = 10.0  # eps: where a power layer jumps, states are known no better
MIN_RATE = 0.1  # the smallest rate of convergence assumed in a stage's first iteration
DERIVATIVES = 2  # how often k can be differentiated: one correction for each order
RightSide = Callable[[Tensor], Tensor]


class Control(NamedTuple):
    """What bounds the steps.

    max_at_bound: a trajectory ends as STIFF where so many of its steps, and half of them, are at
    the bound of stability. eps: a power layer's; 0 for any other model.
    """

    rtol: float
    atol: float
    max_steps: int
    max_at_bound: int
    eps: float = 0.0


class Attempt(NamedTuple):
    """A step that was tried, of every trajectory.

    states: of the stages behind the first ``[..., D]``. derivatives: of all stages. solved, broken,
    evaluations: ``[...]`` on the CPU: whether all stages have a solution, whether one is not
    finite, how many derivatives it took.
    """

    states: list[Tensor]
    derivatives: list[Tensor]
    solved: Tensor
    broken: Tensor
    evaluations: Tensor


def detached(f: RightSide) -> RightSide:
    """Return f without derivatives, also in forward mode and under `torch.func`."""
    return lambda u: f(u).detach()


def jacobian(f: RightSide, u: Tensor) -> Tensor:
    """``df_i / du_j [..., D, D]`` at ``u [..., D]``, a constant for autograd."""
    constant, d = u.detach(), u.shape[-1]
    if eager_only():
        vjp: Any = torch.func.vjp(f, constant)[1]
        basis = torch.eye(d, dtype=u.dtype, device=u.device)
        rows = [vjp(row.expand_as(u))[0] for row in basis]
        return torch.stack(rows, -2).detach()
    # A checkpoint must not see what this keeps.
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
        constant.requires_grad_()
        sums = f(constant).flatten(0, -2).sum(0)
        if not sums.requires_grad:
            return u.new_zeros((*u.shape, d))
        options: dict[str, Any] = {"retain_graph": True, "materialize_grads": True}
        rows = [torch.autograd.grad(total, constant, **options)[0] for total in sums]
    return torch.stack(rows, -2)


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def inverse(matrix: Tensor) -> Tensor:
    """The inverse of every matrix; nan where there is none."""
    result, info = torch.linalg.inv_ex(matrix)
    return torch.where((info == 0)[..., None, None], result, torch.nan)


def _times(matrix: Tensor, x: Tensor) -> Tensor:
    """The product with each row's vector; a row's bits do not depend on the others."""
    return (matrix * x.unsqueeze(-2)).sum(-1)


def newton_inverse(f: RightSide, u: Tensor, scaled: Tensor) -> Tensor:
    """The inverse of 1 - h g J(u); scaled ``[..., 1]``: h g."""
    eye = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
    return inverse(eye - scaled.detach().unsqueeze(-1) * jacobian(f, u))


@functools.lru_cache
def _nodes(pair: Method) -> list[float]:
    """The times of a step's stages."""
    return [0.0] + [math.fsum(row) + pair.diagonal for row in stage_rows(pair.tableau)]


@functools.lru_cache
def guesses(pair: Method) -> tuple[tuple[float, ...], ...]:
    """The first guess of a stage's k: the polynomial through the k before, at the stage's time."""
    nodes = _nodes(pair)

    def weight(i: int, j: int) -> float:
        return math.prod((nodes[i] - nodes[m]) / (nodes[j] - nodes[m]) for m in range(i) if m != j)

    return tuple(tuple(weight(i, j) for j in range(i)) for i in range(1, STAGES))


class Newton:
    """Newton's iterations of a step by `h` ``[..., 1]`` from `u`, where `runs` ``[...]``."""

    def __init__(
        self,
        f: RightSide,
        u: Tensor,
        h: Tensor,
        runs: Tensor,
        pair: Method,
        control: Control,
    ) -> None:
        rtol = control.rtol
        self.jump = JUMP * control.eps
        self.bound = max(
            10 * torch.finfo(u.dtype).eps / rtol, min(MAX_STAGE_ERROR, math.sqrt(rtol))
        )
        self.f, self.scaled = detached(f), h * pair.diagonal
        self.unit = control.atol + rtol * u.abs()
        self.inverse = newton_inverse(f, u, self.scaled)
        self.solved, self.broken = runs.clone(), torch.zeros_like(runs)
        self.rate = torch.ones(runs.shape, dtype=torch.float64)
        self.evaluations = torch.zeros(runs.shape, dtype=torch.int64)

    def solve(self, w: Tensor, k: Tensor) -> Tensor:
        """Return the derivative of a stage, from a guess `k` on."""
        is_open, before = self.solved.clone(), self.rate
        for iteration in range(NEWTON_ITERATIONS):
            if not is_open.any():
                break
            r = self.f(w + self.scaled * k) - k
            change = _times(self.inverse, r)
            small = ((self.scaled * change).abs() <= self.jump).all(-1).cpu()
            k = torch.where(is_open.unsqueeze(-1).to(k.device), k + change, k)
            size = (self.scaled * change / self.unit).square().mean(-1).sqrt().cpu().double()
            rate = size / before if iteration else self.rate.clamp(min=MIN_RATE)
            grows = rate >= 1 if iteration else torch.zeros_like(is_open)
            self.rate, before = torch.where(is_open, rate, self.rate), size
            self.evaluations += is_open
            done = (size == 0) | (rate * size <= self.bound * (1 - rate))
            is_last = iteration + 1 == NEWTON_ITERATIONS
            done |= (grows & (size <= self.bound)) | ((grows | is_last) & small)
            broken = is_open & ~size.isfinite()
            failed = is_open & ~done & (broken | grows | is_last)
            self.broken |= broken
            self.solved &= ~failed
            is_open = is_open & ~done & ~failed
        return k


def attempt(
    f: RightSide,
    u: Tensor,
    k1: Tensor,
    h: Tensor,
    runs: Tensor,
    pair: Method,
    control: Control,
) -> Attempt:
    """Try a step of size h ``[..., 1]`` where `runs` ``[...]``."""
    newton = Newton(f, u, h, runs, pair, control)
    states, k = [], [k1]
    for row, guess in zip(stage_rows(pair.tableau), guesses(pair), strict=True):
        w = u + h * combine(k, row)
        k.append(newton.solve(w, combine(k, guess)))
        states.append(w + newton.scaled * k[-1])
    return Attempt(states, k, newton.solved, newton.broken, newton.evaluations)


def step(
    f: RightSide,
    u: Tensor,
    k1: Tensor,
    h: Tensor,
    pair: Method,
    control: Control,
) -> tuple[Tensor, list[Tensor]]:
    """Step by h ``[..., 1]``, a constant: the new state and all derivatives, differentiable."""
    newton = _everywhere(f, u, h, pair, control)
    k, v = [k1], u
    for row, guess in zip(stage_rows(pair.tableau), guesses(pair), strict=True):
        w = u + h * combine(k, row)
        k.append(_stage_derivative(f, newton, w, combine(k, guess)))
        v = w + newton.scaled * k[-1]
    return v, k


def output(
    f: RightSide,
    u: Tensor,
    k: list[Tensor],
    h: Tensor,
    x: Tensor,
    pair: Method,
    control: Control,
) -> Tensor:
    """The states at the shares x ``[..., 1]`` of steps of size h: each a stage of its own.

    u ``[..., D]`` and k: the steps' first states and derivatives.
    """
    newton = _everywhere(f, u, h, pair, control)
    total = torch.zeros_like(u)
    for p in reversed(range(4)):
        total = (total + combine(k, pair.dense[p::4])) * x
    w = u + h * (total - pair.diagonal * k[0])
    constant, c = x.detach(), _nodes(pair)[4]
    off, rest = constant - c, constant - 1
    first, last = off * rest / c, constant * off / (1 - c)
    between = constant * rest / (c * (c - 1))
    guess = first * k[0] + between * k[4] + last * k[-1]
    return w + newton.scaled * _stage_derivative(f, newton, w, guess)


def _everywhere(f: RightSide, u: Tensor, h: Tensor, pair: Method, control: Control) -> Newton:
    """Return Newton's method for a step of all rows, without derivatives."""
    with torch.no_grad():
        runs = torch.ones(u.shape[:-1], dtype=torch.bool)
        return Newton(f, u.detach(), h, runs, pair, control)


def _stage_derivative(f: RightSide, newton: Newton, w: Tensor, guess: Tensor) -> Tensor:
    """The derivative k of a stage, differentiable.

    Each correction with the stage's own Jacobian squares the error of k, and makes the
    derivatives of k right to one order more.
    """
    with torch.no_grad():
        derivative = newton.solve(w.detach(), guess.detach())
        matrix = newton_inverse(f, w.detach() + newton.scaled * derivative, newton.scaled)
    for _ in range(DERIVATIVES):
        r = f(w + newton.scaled * derivative) - derivative
        derivative = derivative + _times(matrix, r)
    return derivative
