"""L-BFGS with a strong-Wolfe line search for K independent problems at once.

`lbfgs` runs them to their end; `LBFGS` does one round at a time, and can be saved and resumed.

All problems advance in lockstep, one evaluation at a time: a round evaluates one trial point of every problem that is
still running. Each problem has its own line search, so none waits for another. Finished ones drop out of the
batch; `active` says which problems the rows belong to. If the closure treats problems independently, each problem
gives the same bits as it does alone.

For one problem it is `torch.optim.LBFGS(line_search_fn="strong_wolfe")`: first step ``min(1, 1 / |g|_1)`` along the
negative gradient, later ones 1; the last `history` pairs with ``y s > 1e-10``; Nocedal and Wright's algorithms 7.4,
3.5 and 3.6 with cubic interpolation. In addition, where f or its gradient is not finite, f counts as infinite, and the
step is halved until it is finite again.

A problem ends (`Status`) when

    CONVERGED     |g|_inf <= gradient_tolerance
    SMALL_STEP    |x - previous x|_inf <= x_tolerance
    SMALL_CHANGE  |f - previous f| <= f_tolerance
    NO_DECREASE   its line search finds no lower point, or its direction does not descend: x never gets worse
    ITERATIONS    it has made max_iterations
    EVALUATIONS   it has made max_evaluations, or more by its last line search
    NOT_FINITE    f or g is not finite at x0
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels import saved
from npu_kernels.checks import check_number, check_whole

__all__ = ["LBFGS", "Result", "Status", "lbfgs"]

Closure = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

LEAST_CURVATURE = 1e-10  # of a pair that is kept: y s
ARMIJO, WOLFE = 1e-4, 0.9


class Status(IntEnum):
    """Where a problem stands."""

    RUNNING = 0
    CONVERGED = 1
    SMALL_STEP = 2
    SMALL_CHANGE = 3
    NO_DECREASE = 4
    ITERATIONS = 5
    NOT_FINITE = 6
    EVALUATIONS = 7


class Result(NamedTuple):
    """Where the problems ended.

    x: the last points ``[K, N]``. f, gradient: the value and ``|g|_inf`` there. iterations, evaluations: how many.
    status: why, a `Status`. All but x are ``[K]``.
    """

    x: Tensor
    f: Tensor
    gradient: Tensor
    iterations: Tensor
    evaluations: Tensor
    status: Tensor


_START, _BRACKET, _ZOOM = range(3)  # what the next evaluation of a problem is for


def _dot(a: Tensor, b: Tensor, keep: bool = False) -> Tensor:
    return (a * b).sum(-1, keepdim=keep).double()


def _cubic_minimum(t: Tensor, f: Tensor, slope: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The minimum of the cubic through two points ``[A, 2]`` within [low, high]; the middle where it has none."""
    t0, t1 = t.unbind(1)
    s0, s1 = slope.unbind(1)
    first = s0 + s1 - 3 * (f[:, 0] - f[:, 1]) / (t0 - t1)
    square = first * first - s0 * s1
    root = square.sqrt()
    ordered = t0 <= t1
    left = torch.where(ordered, t0, t1)
    right = torch.where(ordered, t1, t0)
    slope_left, slope_right = torch.where(ordered, s0, s1), torch.where(ordered, s1, s0)
    place = right - (right - left) * ((slope_right + root - first) / (slope_right - slope_left + 2 * root))
    usable = (square >= 0) & f.isfinite().all(1) & place.isfinite()
    return torch.where(usable, torch.minimum(torch.maximum(place, low), high), (low + high) / 2)


class LBFGS:
    """K problems in progress: `lbfgs` in steps that can be interrupted, saved and continued.

    Args:
        closure: gets points ``[A, N]`` and the numbers of their problems ``[A]`` (int64, ascending), gives f ``[A]``
            and the gradient ``[A, N]``; its tensors are not kept.
        x0: ``[K, N]``, float32 or float64, not changed.
        history: how many of the last pairs of steps and changes of the gradient a direction is made from.
        max_iterations: of one problem.
        gradient_tolerance, x_tolerance, f_tolerance: a problem ends where the greatest number of its gradient, the
            greatest change of x, or the change of f is not above it.
        max_evaluations: of one problem; None for any number.
        max_line_search: evaluations of one line search after its first.
        restart: where a line search finds no lower point, discard the pairs and continue along the negative gradient;
            the problem ends when that finds none either. For functions with kinks.
        compact: False: the closure always gets all K rows, also of finished problems, for closures of a fixed shape.

    Raises ValueError for an x0 that is not ``[K, N]``, for counts below 1, tolerances below 0 and wrong shapes from the
    closure; TypeError for another dtype.
    """

    _STATE = (
        "x", "f", "g", "direction", "slope", "t", "purpose", "status", "iterations", "evaluations", "searched",
        "hesitant", "end_t", "end_f", "end_slope", "end_g", "low", "steps", "changes", "rho", "pairs", "scale",
    )  # fmt: skip

    def __init__(
        self,
        closure: Closure,
        x0: Tensor,
        *,
        history: int = 10,
        max_iterations: int = 1000,
        max_evaluations: int | None = None,
        gradient_tolerance: float = 1e-8,
        x_tolerance: float = 0.0,
        f_tolerance: float = 0.0,
        max_line_search: int = 25,
        restart: bool = False,
        compact: bool = True,
    ) -> None:
        if x0.dim() != 2:
            raise ValueError(f"lbfgs: x0 must have shape (K, N), got {tuple(x0.shape)}")
        if x0.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"lbfgs: x0 must be float32 or float64, got {x0.dtype}")
        self.history = check_whole("lbfgs", "history", history)
        self.max_iterations = check_whole("lbfgs", "max_iterations", max_iterations)
        self.max_line_search = check_whole("lbfgs", "max_line_search", max_line_search)
        self.max_evaluations = None
        if max_evaluations is not None:
            self.max_evaluations = check_whole("lbfgs", "max_evaluations", max_evaluations)
        self.gradient_tolerance = check_number("lbfgs", "gradient_tolerance", gradient_tolerance, minimum=0)
        self.x_tolerance = check_number("lbfgs", "x_tolerance", x_tolerance, minimum=0)
        self.f_tolerance = check_number("lbfgs", "f_tolerance", f_tolerance, minimum=0)
        self.closure, self.restart, self.compact = closure, restart, compact

        models, size = x0.shape

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(models, *shape, dtype=dtype, device=x0.device)

        # Line searches compute in float64 for every dtype of x: they compare values that differ in their last digits.
        self.x = x0.detach().clone(memory_format=torch.contiguous_format)
        self.g, self.direction = torch.zeros_like(self.x), torch.zeros_like(self.x)
        self.f, self.slope, self.t, self.scale = zeros(), zeros(), zeros(), zeros()
        self.purpose, self.status = zeros(dtype=torch.long), zeros(dtype=torch.long)
        self.iterations, self.evaluations = zeros(dtype=torch.long), zeros(dtype=torch.long)
        self.searched, self.pairs = zeros(dtype=torch.long), zeros(dtype=torch.long)
        self.hesitant = zeros(dtype=torch.bool)
        self.end_t, self.end_f, self.end_slope = zeros(2), zeros(2), zeros(2)  # of the bracket; `low`: its better end
        self.end_g = zeros(2, size, dtype=x0.dtype)
        self.low = zeros(dtype=torch.long)
        self.steps, self.changes = (zeros(self.history, size, dtype=x0.dtype) for _ in range(2))
        self.rho = zeros(self.history)

    # ---- from outside --------------------------------------------------------------------------------------------

    @property
    def running(self) -> Tensor:
        """The numbers of the problems that have not ended ``[A]``."""
        return (self.status == Status.RUNNING).nonzero().squeeze(1)

    def result(self) -> Result:
        """Where the problems stand."""
        gradient = self.g.abs().amax(1) if self.g.shape[1] else self.g.new_zeros(len(self.g))
        return Result(self.x, self.f, gradient, self.iterations, self.evaluations, self.status)

    def state_dict(self) -> dict[str, Tensor]:
        """All that is needed to continue, as copies."""
        return {name: getattr(self, name).clone() for name in self._STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of problems of the same sizes; ValueError for another, which changes nothing."""
        highest = {"purpose": _ZOOM, "status": max(Status), "low": 1}
        own = {name: getattr(self, name) for name in self._STATE}
        read = {}
        try:
            saved.record(state, "state", own.keys())
            for name, tensor in own.items():
                bounds = () if tensor.is_floating_point() else (0, highest.get(name, math.inf))
                read[name] = saved.tensor(state[name], name, tensor.shape, tensor.dtype, tensor.device, *bounds)
        except ValueError as error:
            raise ValueError(f"lbfgs: {error}") from None
        for name, tensor in own.items():
            tensor.copy_(read[name])

    @torch.no_grad()
    def round(self) -> bool:
        """One evaluation of every running problem; False if none is running."""
        active = self.running
        if not len(active):
            return False
        f, g = self._evaluate(active)
        slope = _dot(g, self.direction[active])
        bad = ~(f.isfinite() & g.isfinite().all(1))
        f = torch.where(bad, math.inf, f)
        slope = torch.where(bad, 0.0, slope)
        g = g.masked_fill(bad.unsqueeze(1), 0.0)
        self.evaluations[active] += 1
        purpose = self.purpose[active]

        ended = self._bracket(active, f, g, slope, purpose == _BRACKET)
        ended |= self._zoom(active, f, g, slope, purpose == _ZOOM)
        self._accept(active[ended])
        self._begin(active, f, g, bad, purpose == _START)
        return True

    # ---- one round -----------------------------------------------------------------------------------------------

    def _evaluate(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """f ``[A]`` float64 and g ``[A, N]`` at the trial points."""
        every = torch.arange(len(self.x), device=self.x.device)
        rows = active if self.compact else every
        t = torch.where(self.status[rows] == Status.RUNNING, self.t[rows], 0.0)
        points = torch.addcmul(self.x[rows], t.to(self.x.dtype).unsqueeze(1), self.direction[rows])
        f, g = self.closure(points, rows)
        if f.shape != rows.shape or g.shape != points.shape:
            raise ValueError(
                f"lbfgs: the closure must give f of shape {tuple(rows.shape)} and a gradient of shape "
                f"{tuple(points.shape)}, got {tuple(f.shape)} and {tuple(g.shape)}"
            )
        f, g = f.detach().double(), g.detach()
        return (f, g) if self.compact else (f[active], g[active])

    def _begin(self, active: Tensor, f: Tensor, g: Tensor, bad: Tensor, mask: Tensor) -> None:
        """The first evaluation of a problem: at x0."""
        if not mask.any():
            return
        new = active[mask]
        self.f[new], self.g[new] = f[mask], g[mask]
        converged = g[mask].abs().amax(1) <= self.gradient_tolerance
        self.status[new[converged]] = Status.CONVERGED
        self.status[new[bad[mask]]] = Status.NOT_FINITE
        self._search(new[self.status[new] == Status.RUNNING])

    def _search(self, which: Tensor, afresh: bool = False) -> None:
        """A new direction from x, and its first step."""
        if not len(which):
            return
        direction = self._direction(which)
        g = self.g[which]
        slope = _dot(g, direction)
        least = (1 / g.abs().sum(1).double()).clamp(max=1.0)
        self.direction[which], self.slope[which] = direction, slope
        self.t[which] = torch.where((self.iterations[which] == 0) | afresh, least, 1.0)
        self.purpose[which] = _BRACKET
        self.searched[which] = 0
        self.hesitant[which] = False
        self._set_end(which, 0, torch.zeros_like(slope), self.f[which], slope, g)
        self.status[which[~(slope < 0)]] = Status.NO_DECREASE  # also nan

    def _direction(self, which: Tensor) -> Tensor:
        """Minus the inverse Hessian's estimate times the gradient: the two-loop recursion over each one's own pairs."""
        direction = self.g[which].neg()
        pairs = self.pairs[which]
        depth = int(pairs.clamp(max=self.history).max())
        if depth == 0:
            return direction
        # Youngest first; places without a pair have rho 0 and contribute nothing.
        place = (pairs.unsqueeze(1) - torch.arange(1, depth + 1, device=pairs.device)) % self.history
        rows = which.unsqueeze(1)
        steps, changes = self.steps[rows, place].unbind(1), self.changes[rows, place].unbind(1)
        rho = self.rho[rows, place].unsqueeze(2).unbind(1)  # depth times [A, 1]
        alphas = []
        for step, change, factor in zip(steps, changes, rho, strict=True):
            alpha = _dot(step, direction, True) * factor
            direction = torch.addcmul(direction, alpha.to(direction.dtype), change, value=-1)
            alphas.append(alpha)
        scale = torch.where(pairs > 0, self.scale[which], 1.0)
        direction = direction * scale.to(direction.dtype).unsqueeze(1)
        for step, change, factor, alpha in reversed(list(zip(steps, changes, rho, alphas, strict=True))):
            beta = _dot(change, direction, True) * factor
            direction = torch.addcmul(direction, (alpha - beta).to(direction.dtype), step)
        return direction

    def _set_end(self, which: Tensor, end: int | Tensor, t: Tensor, f: Tensor, slope: Tensor, g: Tensor) -> None:
        """Make a point one end of the bracket."""
        self.end_t[which, end], self.end_f[which, end], self.end_slope[which, end] = t, f, slope
        self.end_g[which, end] = g

    def _bracket(self, active: Tensor, f: Tensor, g: Tensor, slope: Tensor, mask: Tensor) -> Tensor:
        """The search for a bracket: end 0 is the point before, the trial point becomes end 1. Which have ended."""
        ended = torch.zeros_like(mask)
        if not mask.any():
            return ended
        at, f, g, slope = active[mask], f[mask], g[mask], slope[mask]
        t, start, start_slope, searched = self.t[at], self.f[at], self.slope[at], self.searched[at]
        self._set_end(at, 1, t, f, slope, g)
        exhausted = searched >= self.max_line_search
        high = ((f > start + ARMIJO * t * start_slope) | ((searched > 1) & (f >= self.end_f[at, 0]))) & ~exhausted
        good = (slope.abs() <= -WOLFE * start_slope) & ~high & ~exhausted
        found = (high | (slope >= 0)) & ~good & ~exhausted
        further = ~(found | good | exhausted)

        if exhausted.any():  # the start, or the last point where it is lower
            lost = at[exhausted]
            self._set_end(lost, 0, torch.zeros_like(self.f[lost]), self.f[lost], self.slope[lost], self.g[lost])
        self.low[at] = torch.where(good, 1, (self.end_f[at, 0] > self.end_f[at, 1]).long())
        ended[mask] = good | exhausted
        places = mask.nonzero().squeeze(1)
        ended[places[found]] = self._interpolate(at[found])

        if further.any():
            more = at[further]
            before, now = self.end_t[more, 0], t[further]
            self.t[more] = _cubic_minimum(
                self.end_t[more], self.end_f[more], self.end_slope[more], now + 0.01 * (now - before), now * 10
            )
            self._set_end(more, 0, now, f[further], slope[further], g[further])
            self.searched[more] += 1
        return ended

    def _zoom(self, active: Tensor, f: Tensor, g: Tensor, slope: Tensor, mask: Tensor) -> Tensor:
        """A trial point within the bracket replaces one of its ends. Which have ended."""
        ended = torch.zeros_like(mask)
        if not mask.any():
            return ended
        at, f, g, slope = active[mask], f[mask], g[mask], slope[mask]
        t, low = self.t[at], self.low[at]
        high = 1 - low
        worse = (f > self.f[at] + ARMIJO * t * self.slope[at]) | (f >= self.end_f[at, low])
        good = ~worse & (slope.abs() <= -WOLFE * self.slope[at])
        turn = ~worse & ~good & (slope * (self.end_t[at, high] - self.end_t[at, low]) >= 0)

        if turn.any():  # the better end so far becomes the other one
            old, place = at[turn], low[turn]
            self._set_end(
                old, high[turn], self.end_t[old, place], self.end_f[old, place], self.end_slope[old, place],
                self.end_g[old, place],
            )  # fmt: skip
        self._set_end(at, torch.where(worse, high, low), t, f, slope, g)
        better = (self.end_f[at, 0] > self.end_f[at, 1]).long()
        self.low[at] = torch.where(worse, better, low)
        done = good | (self.searched[at] >= self.max_line_search)
        ended[mask] = done
        ended[mask.nonzero().squeeze(1)[~done]] = self._interpolate(at[~done])
        return ended

    def _interpolate(self, at: Tensor) -> Tensor:
        """The next trial point within the bracket; True where the bracket is too small for one."""
        if not len(at):
            return at.bool()
        ends = self.end_t[at]
        left, right = ends.amin(1), ends.amax(1)
        t = _cubic_minimum(ends, self.end_f[at], self.end_slope[at], left, right)
        # Close to an end twice in a row, or on it: a tenth of the bracket away from it.
        margin = 0.1 * (right - left)
        close = torch.minimum(right - t, t - left) < margin
        moved = close & (self.hesitant[at] | (t >= right) | (t <= left))
        inside = torch.where((t - right).abs() < (t - left).abs(), right - margin, left + margin)
        self.hesitant[at] = close & ~moved
        self.t[at] = torch.where(moved, inside, t)
        self.purpose[at] = _ZOOM
        self.searched[at] += 1
        length = self.direction[at].abs().amax(1).double() * (right - left)
        return (length < self.x_tolerance) | (right <= left)

    def _accept(self, at: Tensor) -> None:
        """End a line search: go to the bracket's better end, keep the pair, check the rules."""
        if not len(at):
            return
        low = self.low[at]
        t, f, g = self.end_t[at, low], self.end_f[at, low], self.end_g[at, low]
        before = self.f[at]
        decreased = (t > 0) & (f <= before)
        self._stuck(at[~decreased])
        at, t, f, g, before = at[decreased], t[decreased], f[decreased], g[decreased], before[decreased]
        if not len(at):
            return
        step = self.direction[at] * t.to(self.x.dtype).unsqueeze(1)
        change = g - self.g[at]
        self.x[at] = torch.addcmul(self.x[at], t.to(self.x.dtype).unsqueeze(1), self.direction[at])
        self.f[at], self.g[at] = f, g
        self.iterations[at] += 1

        curvature = _dot(change, step)
        keep = curvature > LEAST_CURVATURE
        kept = at[keep]
        place = self.pairs[kept] % self.history
        self.steps[kept, place], self.changes[kept, place] = step[keep], change[keep]
        self.rho[kept, place] = 1 / curvature[keep]
        self.scale[kept] = curvature[keep] / _dot(change[keep], change[keep])
        self.pairs[kept] += 1

        status = self.status[at]
        for rule, holds in (
            (Status.SMALL_CHANGE, (f - before).abs() <= self.f_tolerance),
            (Status.SMALL_STEP, step.abs().amax(1) <= self.x_tolerance),
            (Status.CONVERGED, g.abs().amax(1) <= self.gradient_tolerance),
        ):
            status = torch.where(holds, int(rule), status)
        status = torch.where(
            (status == 0) & (self.iterations[at] >= self.max_iterations), int(Status.ITERATIONS), status
        )
        if self.max_evaluations is not None:
            spent = (status == 0) & (self.evaluations[at] >= self.max_evaluations)
            status = torch.where(spent, int(Status.EVALUATIONS), status)
        self.status[at] = status
        self._search(at[self.status[at] == Status.RUNNING])

    def _stuck(self, at: Tensor) -> None:
        """No lower point along the direction: the end, or with `restart` once more along the negative gradient."""
        again = at[self.pairs[at] > 0] if self.restart else at[:0]
        self.status[at] = int(Status.NO_DECREASE)
        self.status[again] = int(Status.RUNNING)
        self.pairs[again] = 0
        self.rho[again] = 0.0
        self._search(again, afresh=True)


def lbfgs(closure: Closure, x0: Tensor, **options: Any) -> Result:
    """Minimise K functions of N variables, to the end.

    Args:
        closure: ``closure(x [A, N], active [A])`` gives the values ``[A]`` and gradients ``[A, N]`` of the problems
            that are still running; `active` has their numbers.
        x0: where to start, ``[K, N]``, float32 or float64.
        options: the other arguments of `LBFGS`, which has their meanings and defaults.

    Returns a `Result`. Raises ValueError and TypeError for arguments outside of the ranges that `LBFGS` names.

    >>> import torch
    >>> from npu_kernels.lbfgs import lbfgs
    >>> centre = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> def closure(x, active):
    ...     offset = x - centre[active]
    ...     return offset.square().sum(1), 2 * offset
    >>> lbfgs(closure, torch.zeros(2, 2)).x
    tensor([[1., 2.],
            [3., 4.]])
    """
    problems = LBFGS(closure, x0, **options)
    while problems.round():
        pass
    return problems.result()
