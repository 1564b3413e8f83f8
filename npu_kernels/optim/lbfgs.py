"""L-BFGS with a strong-Wolfe line search for K independent problems at once.

`lbfgs` runs the problems to their end; `LBFGS` does one round at a time, and can be saved and
resumed.

A round evaluates one trial point of every running problem. Each problem has its own line search, so
no problem waits for the line search of another. Finished problems leave the batch: the closure gets
the points of the running problems, and their indices as `active`. If it treats problems
independently, each problem is bitwise identical to the same problem in a batch of one.

For one problem the algorithm is the same as in `torch.optim.LBFGS(line_search_fn="strong_wolfe")`
(Nocedal and Wright, algorithms 7.4, 3.5 and 3.6 with cubic interpolation). The first step is
``min(1, 1 / |g|_1)`` along the negative gradient; later line searches begin with 1. The last
`history_size` pairs with ``y s > 1e-10`` are kept. In addition, where f or its gradient is not
finite, f counts as infinite, and the step is halved until f is finite.

A problem ends (`Status`) when

    CONVERGED     |g|_inf <= gradient_tolerance
    SMALL_STEP    |x - previous x|_inf <= x_tolerance
    SMALL_CHANGE  |f - previous f| <= f_tolerance
    NO_DECREASE   its line search finds no lower point, or its direction does not descend
    ITERATIONS    it has made max_iterations
    EVALUATIONS   it has made at least max_evaluations
    NOT_FINITE    f or g is not finite at x0
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels._common.checks import check_number, check_whole
from npu_kernels._jobs.checkpoint import like

__all__ = ["LBFGS", "LBFGSResult", "Status", "lbfgs"]

Closure = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

MIN_CURVATURE = 1e-10  # y s of a pair that enters the history
ARMIJO, WOLFE = 1e-4, 0.9  # constants of the conditions for the decrease and for the slope


class Status(IntEnum):
    """Status of a problem: running, or why it ended."""

    RUNNING = 0
    CONVERGED = 1
    SMALL_STEP = 2
    SMALL_CHANGE = 3
    NO_DECREASE = 4
    ITERATIONS = 5
    NOT_FINITE = 6
    EVALUATIONS = 7


class LBFGSResult(NamedTuple):
    """Results of K problems.

    Attributes:
        x: the last points ``[K, N]``.
        f: the values at x ``[K]``.
        gradient_norm: ``|g|_inf`` at x ``[K]``.
        n_iterations: numbers of iterations ``[K]``.
        n_evaluations: numbers of evaluations ``[K]``.
        status: why each problem ended, a `Status` ``[K]``.
    """

    x: Tensor
    f: Tensor
    gradient_norm: Tensor
    n_iterations: Tensor
    n_evaluations: Tensor
    status: Tensor


_START, _BRACKET, _ZOOM = range(3)  # the purpose of a problem's next evaluation


def _dot(a: Tensor, b: Tensor, keep: bool = False) -> Tensor:
    return (a * b).sum(-1, keepdim=keep).double()


def _cubic_minimum(t: Tensor, f: Tensor, slope: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the minimum in [low, high] of the cubic by two points ``[A, 2]``; else the middle."""
    t0, t1 = t.unbind(1)
    s0, s1 = slope.unbind(1)
    first = s0 + s1 - 3 * (f[:, 0] - f[:, 1]) / (t0 - t1)
    square = first * first - s0 * s1
    root = square.sqrt()
    ordered = t0 <= t1
    lower, upper = torch.where(ordered, t0, t1), torch.where(ordered, t1, t0)
    lower_slope, upper_slope = torch.where(ordered, s0, s1), torch.where(ordered, s1, s0)
    share = (upper_slope + root - first) / (upper_slope - lower_slope + 2 * root)
    minimum = upper - (upper - lower) * share
    # Not finite: also where the root is of a negative number, or an f is infinite.
    within = torch.minimum(torch.maximum(minimum, low), high)
    return torch.where(minimum.isfinite(), within, (low + high) / 2)


class LBFGS:
    """Minimises K problems as `lbfgs` does, in steps that can be interrupted, saved and continued.

    Args:
        closure: takes points ``[A, N]`` of A running problems and the indices of these problems
            ``[A]`` (int64, ascending), and returns f ``[A]`` and the gradient ``[A, N]``; the
            solver copies both. It is called under ``torch.no_grad``: if it uses autograd, it must
            enter ``torch.enable_grad``.
        x0: initial points ``[K, N]``, float32 or float64, not changed.
        history_size: number of pairs (step, change of the gradient) that determine a direction.
        max_iterations: maximum number of iterations of one problem.
        gradient_tolerance, x_tolerance, f_tolerance: a problem ends if the largest component of its
            gradient, the largest change of x, or the change of f is at most this tolerance.
        max_evaluations: a problem ends after the line search that reaches this number of
            evaluations; None for any number.
        max_line_search: maximum number of evaluations of one line search, not counting its first.
        restart: if a line search finds no lower point, discard the pairs and continue along the
            negative gradient; the problem ends if that finds no lower point either. For functions
            with kinks.
        compact: False passes all K rows to the closure, also of finished problems, for closures of
            a fixed shape.

    Raises ValueError for an x0 that is not ``[K, N]``, for counts below 1, tolerances below 0 and
    wrong shapes from the closure; TypeError for a different dtype.
    """

    _STATE = (
        "x", "f", "g", "direction", "slope", "t", "purpose", "status", "iterations", "evaluations",
        "searched", "hesitant", "end_t", "end_f", "end_slope", "end_g", "low", "steps", "changes",
        "rho", "pairs", "scale",
    )  # fmt: skip

    def __init__(
        self,
        closure: Closure,
        x0: Tensor,
        *,
        history_size: int = 10,
        max_iterations: int = 1000,
        max_evaluations: int | None = None,
        gradient_tolerance: float = 1e-8,
        x_tolerance: float = 0.0,
        f_tolerance: float = 0.0,
        max_line_search: int = 25,
        restart: bool = False,
        compact: bool = True,
    ) -> None:
        if x0.dim() != 2 or x0.shape[1] == 0:
            rule = "x0 must have shape (K, N), N at least 1"
            raise ValueError(f"lbfgs: {rule}, got {tuple(x0.shape)}")
        if x0.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"lbfgs: x0 must be float32 or float64, got {x0.dtype}")
        self.history = check_whole("lbfgs", "history_size", history_size)
        self.max_iterations = check_whole("lbfgs", "max_iterations", max_iterations)
        self.max_line_search = check_whole("lbfgs", "max_line_search", max_line_search)
        self.max_evaluations = None
        if max_evaluations is not None:
            self.max_evaluations = check_whole("lbfgs", "max_evaluations", max_evaluations)
        tolerance = functools.partial(check_number, "lbfgs", minimum=0)
        self.gradient_tolerance = tolerance("gradient_tolerance", gradient_tolerance)
        self.x_tolerance = tolerance("x_tolerance", x_tolerance)
        self.f_tolerance = tolerance("f_tolerance", f_tolerance)
        self.closure, self.restart, self.compact = closure, restart, compact

        # Line searches compute in float64 for every dtype of x, because they compare values that
        # differ in their last digits.
        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros((len(x0), *shape), dtype=dtype, device=x0.device)

        def counts() -> Tensor:
            return zeros(dtype=torch.long)

        self.x = x0.detach().clone()  # the last accepted point
        self.f, self.g = zeros(), torch.zeros_like(self.x)  # value and gradient at x
        self.direction, self.slope = torch.zeros_like(self.x), zeros()  # slope: along it at x
        self.t, self.purpose = zeros(), counts()  # the trial point is x + t direction
        self.status, self.iterations, self.evaluations = counts(), counts(), counts()
        self.searched = counts()  # evaluations of the line search after its first
        self.hesitant = zeros(dtype=torch.bool)  # whether the last trial point was close to an end
        self.end_t, self.end_f, self.end_slope = zeros(2), zeros(2), zeros(2)  # of the bracket
        self.end_g = zeros(2, x0.shape[1], dtype=x0.dtype)
        self.low = counts()  # the bracket's better end
        self.steps = zeros(self.history, x0.shape[1], dtype=x0.dtype)
        self.changes = torch.zeros_like(self.steps)
        self.rho, self.pairs = zeros(self.history), counts()  # 1 / y s of the pairs; their number
        self.scale = zeros()  # y s / y y of the last pair

    # ---- from outside --------------------------------------------------------------------------

    @property
    def running(self) -> Tensor:
        """The indices of the problems that have not ended ``[A]``."""
        return (self.status == Status.RUNNING).nonzero().squeeze(1)

    def result(self) -> LBFGSResult:
        """The state of all problems, running or not."""
        gradient = self.g.abs().amax(1)
        return LBFGSResult(self.x, self.f, gradient, self.iterations, self.evaluations, self.status)

    def state_dict(self) -> dict[str, Tensor]:
        """All that is needed to continue, as copies."""
        return {name: getattr(self, name).clone() for name in self._STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict` of problems of the same sizes.

        ValueError for a different state, which changes nothing.
        """
        tensors = {name: getattr(self, name) for name in self._STATE}
        try:
            read = like(state, tensors, "state")
        except ValueError as error:
            raise ValueError(f"lbfgs: {error}") from None
        for name, tensor in tensors.items():
            tensor.copy_(read[name])

    @torch.no_grad()
    def round(self) -> bool:
        """Evaluate every running problem once; return False if none is running."""
        active = self.running
        if not len(active):
            return False
        f, g = self._evaluate(active)
        slope = _dot(g, self.direction[active])
        bad = ~(f.isfinite() & g.isfinite().all(1))
        f = torch.where(bad, math.inf, f)  # higher than any point: its g and slope count nowhere
        self.evaluations[active] += 1
        purpose = self.purpose[active]

        ended = self._bracket(active, f, g, slope, purpose == _BRACKET)
        ended |= self._zoom(active, f, g, slope, purpose == _ZOOM)
        self._accept(active[ended])
        self._begin(active, f, g, bad, purpose == _START)
        return True

    # ---- one round -----------------------------------------------------------------------------

    def _evaluate(self, active: Tensor) -> tuple[Tensor, Tensor]:
        """Return f ``[A]`` float64 and g ``[A, N]`` at the trial points."""
        rows = active if self.compact else torch.arange(len(self.x), device=self.x.device)
        t = torch.where(self.status[rows] == Status.RUNNING, self.t[rows], 0.0)
        points = torch.addcmul(self.x[rows], t.to(self.x.dtype).unsqueeze(1), self.direction[rows])
        f, g = self.closure(points, rows)
        if f.shape != rows.shape or g.shape != points.shape:
            rule = f"f of shape {tuple(rows.shape)} and a gradient of shape {tuple(points.shape)}"
            got = f"{tuple(f.shape)} and {tuple(g.shape)}"
            raise ValueError(f"lbfgs: the closure must give {rule}, got {got}")
        f = f.double()
        return (f, g) if self.compact else (f[active], g[active])

    def _begin(self, active: Tensor, f: Tensor, g: Tensor, bad: Tensor, mask: Tensor) -> None:
        """Take the first evaluations of problems, at x0."""
        if not mask.any():
            return
        new = active[mask]
        self.f[new], self.g[new] = f[mask], g[mask]
        converged = g[mask].abs().amax(1) <= self.gradient_tolerance
        self.status[new[converged]] = Status.CONVERGED
        self.status[new[bad[mask]]] = Status.NOT_FINITE
        self._search(new[self.status[new] == Status.RUNNING])

    def _search(self, index: Tensor, along_gradient: bool = False) -> None:
        """Begin a line search from x: its direction, and its first step."""
        if not len(index):
            return
        direction = self._direction(index)
        g = self.g[index]
        slope = _dot(g, direction)
        short = (1 / g.abs().sum(1).double()).clamp(max=1.0)
        self.direction[index], self.slope[index] = direction, slope
        self.t[index] = torch.where((self.iterations[index] == 0) | along_gradient, short, 1.0)
        self.purpose[index] = _BRACKET
        self.searched[index] = 0
        self.hesitant[index] = False
        self._set_end(index, 0, torch.zeros_like(slope), self.f[index], slope, g)
        self.status[index[~(slope < 0)]] = Status.NO_DECREASE  # also nan

    def _direction(self, index: Tensor) -> Tensor:
        """Return minus the estimated inverse Hessian times the gradient: the two-loop recursion."""
        direction = self.g[index].neg()
        pairs = self.pairs[index]
        depth = int(pairs.clamp(max=self.history).max())
        # Youngest first; slots without a pair have rho 0 and contribute nothing.
        ages = torch.arange(1, depth + 1, device=pairs.device)
        slots = (pairs.unsqueeze(1) - ages) % self.history
        rows = index.unsqueeze(1)
        steps, changes = self.steps[rows, slots].unbind(1), self.changes[rows, slots].unbind(1)
        rho = self.rho[rows, slots].unsqueeze(2).unbind(1)  # depth times [A, 1]
        alphas, stored = [], list(zip(steps, changes, rho, strict=True))
        for step, change, factor in stored:
            alpha = _dot(step, direction, True) * factor
            direction = torch.addcmul(direction, alpha.to(direction.dtype), change, value=-1)
            alphas.append(alpha)
        scale = torch.where(pairs > 0, self.scale[index], 1.0)
        direction = direction * scale.to(direction.dtype).unsqueeze(1)
        for (step, change, factor), alpha in zip(stored[::-1], alphas[::-1], strict=True):
            beta = _dot(change, direction, True) * factor
            direction = torch.addcmul(direction, (alpha - beta).to(direction.dtype), step)
        return direction

    def _set_end(self, index: Tensor, end: int | Tensor, *point: Tensor) -> None:
        """Make a point (t, f, slope, gradient) one end of the bracket."""
        tensors = self.end_t, self.end_f, self.end_slope, self.end_g
        for tensor, value in zip(tensors, point, strict=True):
            tensor[index, end] = value

    def _bracket(self, active: Tensor, f: Tensor, g: Tensor, slope: Tensor, mask: Tensor) -> Tensor:
        """Continue the search for a bracket; return which line searches ended.

        End 0 is the point before, the trial point becomes end 1.
        """
        ended = torch.zeros_like(mask)
        if not mask.any():
            return ended
        index, f, g, slope = active[mask], f[mask], g[mask], slope[mask]
        t, start, start_slope = self.t[index], self.f[index], self.slope[index]
        searched = self.searched[index]
        self._set_end(index, 1, t, f, slope, g)
        exhausted = searched >= self.max_line_search
        risen = (f > start + ARMIJO * t * start_slope) | (
            (searched > 1) & (f >= self.end_f[index, 0])
        )
        good = (slope.abs() <= -WOLFE * start_slope) & ~risen
        bracketed = (risen | (slope >= 0)) & ~good & ~exhausted
        further = ~(bracketed | good | exhausted)

        if exhausted.any():  # the start, or the last point where it is lower
            lost = index[exhausted]
            zero = torch.zeros_like(self.f[lost])
            self._set_end(lost, 0, zero, self.f[lost], self.slope[lost], self.g[lost])
        self.low[index] = torch.where(good, 1, (self.end_f[index, 0] > self.end_f[index, 1]).long())
        ended[mask] = good | exhausted
        ended[mask.nonzero().squeeze(1)[bracketed]] = self._interpolate(index[bracketed])

        if further.any():
            more, near = index[further], t[further]
            points = self.end_t[more], self.end_f[more], self.end_slope[more]
            low = near + 0.01 * (near - self.end_t[more, 0])
            self.t[more] = _cubic_minimum(*points, low, near * 10)
            self._set_end(more, 0, near, f[further], slope[further], g[further])
            self.searched[more] += 1
        return ended

    def _zoom(self, active: Tensor, f: Tensor, g: Tensor, slope: Tensor, mask: Tensor) -> Tensor:
        """Replace an end of the bracket by the trial point; return which line searches ended."""
        ended = torch.zeros_like(mask)
        if not mask.any():
            return ended
        index, f, g, slope = active[mask], f[mask], g[mask], slope[mask]
        t, low = self.t[index], self.low[index]
        high = 1 - low
        limit = self.f[index] + ARMIJO * t * self.slope[index]
        worse = (f > limit) | (f >= self.end_f[index, low])
        good = ~worse & (slope.abs() <= -WOLFE * self.slope[index])
        width = self.end_t[index, high] - self.end_t[index, low]
        turn = slope * width >= 0

        if turn.any():  # the better end so far becomes the other one, or the trial point does
            old, end = index[turn], low[turn]
            tensors = self.end_t, self.end_f, self.end_slope, self.end_g
            self._set_end(old, high[turn], *(tensor[old, end] for tensor in tensors))
        self._set_end(index, torch.where(worse, high, low), t, f, slope, g)
        self.low[index] = (self.end_f[index, 0] > self.end_f[index, 1]).long()
        done = good | (self.searched[index] >= self.max_line_search)
        ended[mask] = done
        ended[mask.nonzero().squeeze(1)[~done]] = self._interpolate(index[~done])
        return ended

    def _interpolate(self, index: Tensor) -> Tensor:
        """Set the next trial point within the bracket; return where the bracket is too small."""
        if not len(index):
            return index.bool()
        end_t = self.end_t[index]
        lower, upper = end_t.amin(1), end_t.amax(1)
        t = _cubic_minimum(end_t, self.end_f[index], self.end_slope[index], lower, upper)
        # Close to an end twice in a row, or on it: a tenth of the bracket away from it.
        margin = 0.1 * (upper - lower)
        close = torch.minimum(upper - t, t - lower) < margin
        moved = close & (self.hesitant[index] | (t >= upper) | (t <= lower))
        inside = torch.where((t - upper).abs() < (t - lower).abs(), upper - margin, lower + margin)
        self.hesitant[index] = close & ~moved
        self.t[index] = torch.where(moved, inside, t)
        self.purpose[index] = _ZOOM
        self.searched[index] += 1
        length = self.direction[index].abs().amax(1).double() * (upper - lower)
        return (length < self.x_tolerance) | (upper <= lower)

    def _accept(self, index: Tensor) -> None:
        """End a line search: go to the bracket's better end, keep the pair, check the rules."""
        if not len(index):
            return
        low = self.low[index]
        t, f, g = self.end_t[index, low], self.end_f[index, low], self.end_g[index, low]
        decreased = t > 0
        self._restart(index[~decreased])
        index = index[decreased]
        t, f, g, before = t[decreased], f[decreased], g[decreased], self.f[index]
        length = t.to(self.x.dtype).unsqueeze(1)
        step = self.direction[index] * length
        change = g - self.g[index]
        self.x[index] = torch.addcmul(self.x[index], length, self.direction[index])
        self.f[index], self.g[index] = f, g
        self.iterations[index] += 1

        curvature = _dot(change, step)
        keep = curvature > MIN_CURVATURE
        kept_index = index[keep]
        slot = self.pairs[kept_index] % self.history
        self.steps[kept_index, slot], self.changes[kept_index, slot] = step[keep], change[keep]
        self.rho[kept_index, slot] = 1 / curvature[keep]
        self.scale[kept_index] = curvature[keep] / _dot(change[keep], change[keep])
        self.pairs[kept_index] += 1

        status = self.status[index]
        for rule, holds in (
            (Status.SMALL_CHANGE, (f - before).abs() <= self.f_tolerance),
            (Status.SMALL_STEP, step.abs().amax(1) <= self.x_tolerance),
            (Status.CONVERGED, g.abs().amax(1) <= self.gradient_tolerance),
        ):
            status = torch.where(holds, int(rule), status)
        spent = (status == 0) & (self.iterations[index] >= self.max_iterations)
        status = torch.where(spent, int(Status.ITERATIONS), status)
        if self.max_evaluations is not None:
            spent = (status == 0) & (self.evaluations[index] >= self.max_evaluations)
            status = torch.where(spent, int(Status.EVALUATIONS), status)
        self.status[index] = status
        self._search(index[self.status[index] == Status.RUNNING])

    def _restart(self, index: Tensor) -> None:
        """End problems without a lower point, or with `restart` try the negative gradient once."""
        self.status[index] = int(Status.NO_DECREASE)
        if self.restart:
            restarted = index[self.pairs[index] > 0]
            self.status[restarted] = int(Status.RUNNING)
            self.pairs[restarted] = 0
            self.rho[restarted] = 0.0
            self._search(restarted, along_gradient=True)


def lbfgs(closure: Closure, x0: Tensor, **options: Any) -> LBFGSResult:
    """Minimise K functions of N variables each, until every problem has ended.

    Args:
        closure: ``closure(x [A, N], active [A])`` returns the values ``[A]`` and gradients
            ``[A, N]`` of the problems that are still running; `active` has their indices in x0. It
            is called under ``torch.no_grad``: if it uses autograd, it must enter
            ``torch.enable_grad``.
        x0: initial points ``[K, N]``, float32 or float64.
        options: the other arguments of `LBFGS`: history_size, max_iterations, tolerances, and so
            on.

    Returns a `LBFGSResult`. Raises ValueError and TypeError for invalid arguments.

    >>> import torch
    >>> from npu_kernels.optim.lbfgs import lbfgs
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
