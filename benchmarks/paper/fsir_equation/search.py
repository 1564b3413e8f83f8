"""The fractional SIR model's equation from 40 points: a RealNPU whose weights *are* it.

The paper stops at a RealNPU that looks like the equation. Three things stand between its training
and the equation itself, and each is changed here; nothing is told about the equation but that it is
a sum of products of powers:

- Euler's steps: the classic Runge-Kutta method, with an error below the data's.
- The long way from the first point to the last: first every point is predicted from the one before
  (multiple shooting), which has no vanishing or exploding gradients, then the whole trajectory.
- Gates between 0 and 1, through which no power can be read: the gates stay 1. A power of 0 leaves
  an input out as well.

    fit      exponents from U(0, 1), the NAU's weights from U(-0.01, 0.01), many starts at once;
             Levenberg-Marquardt
    prune    the weight that costs least is set to 0 and the others are refitted, one weight at a
             time; it stays 0 if the error is within the data's, or hardly greater than before
    refit    the whole trajectory

The data's error is the only number that is known besides the data: the published series was solved
to a tolerance that leaves it 2.6e-3 off at most. A start fits within half of that (root mean
square). The width is the smallest that fits. A start has found the equation if exactly the right
weights are not 0, all exponents are within 1e-3 of the true ones, and all rates within 1 %.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.paper.fsir import task as fsir
from benchmarks.paper.runner import Batch
from benchmarks.paper.streams import stream
from benchmarks.paper.training import Rows
from npu_kernels.optim import least_squares
from npu_kernels.optim.least_squares import FIRST_DAMPING

COLUMNS = ("h", "start", "fitted", "error", "n_params", "found", "exponent_error", "rate_error")
WIDTHS = (1, 2, 3, 4)
STARTS, QUICK_STARTS = 64, 4
FIT, REFIT = 200, 12  # steps
PRUNE, PRUNE_STEPS = 30, 12  # attempts; the steps of each
QUICK = (4, 2, 1)
DATA_ERROR = 2.6e-3
LIMIT = (DATA_ERROR / 2) ** 2  # mean square
SLACK = 1.05  # by this factor a removal may raise an error that is above the limit
EXPONENT, RATE = 1e-3, 0.01  # what counts as found

INTERVAL = fsir.END / (fsir.POINTS - 1)
COARSE, FINE = 5, 40  # steps between two points; the first stretch, from I = 0.01, needs fine ones


def batches(
    widths: tuple[int, ...], starts: int, steps: tuple[int, int, int], device: str
) -> list[Batch]:
    """One batch for each width."""
    phases = dict(zip(("fit", "prune", "refit"), steps, strict=True))
    return [
        Batch(
            experiment="fsir-equation",
            label=f"{h}",
            settings={"h": h, **phases, "device": device},
            runs=tuple({"start": index} for index in range(starts)),
            cost=8.0 * h * steps[0] / FIT * starts / STARTS,
            make=Search,
        )
        for h in widths
    ]


def plan(options: Namespace) -> list[Batch]:
    """The batches of a command."""
    starts = options.seeds or (QUICK_STARTS if options.quick else STARTS)
    return batches(WIDTHS, starts, QUICK if options.quick else (FIT, PRUNE, REFIT), options.device)


def start(h: int, index: int) -> Tensor:
    """Exponents, gates, the NAU's weights ``[N]``."""
    generator = stream(f"fsir equation {h}", index)
    exponents = torch.rand(3 * h, generator=generator)
    weight = (2 * torch.rand(3 * h, generator=generator) - 1) * 0.01
    return torch.cat([exponents, torch.ones(3), weight]).double()


# ---- residuals and their Jacobians ---------------------------------------------------------------


def _flow(h: int, x: Tensor, u: Tensor, steps: int) -> Tensor:
    """Return the states one point later than ``u [M, 3]``, of models ``[M, N]``."""
    states, _ = fsir.integrate(u, fsir.split("RealNPU", h, x), steps, INTERVAL / steps, "rk4")
    return states[:, -1]


def _lanes(x: Tensor, points: int) -> Tensor:
    """The models ``[K, N]`` once for each point, ``[K * points, N]``."""
    return x.unsqueeze(1).expand(-1, points, -1).reshape(len(x) * points, -1)


def _differentiated(h: int, x: Tensor, u: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """`_flow` of models ``[K, N]`` from ``u [K, P, 3]``, and its derivatives for x and for u."""
    models, points, _ = u.shape
    lanes = _lanes(x, points).detach().requires_grad_()
    begin = u.reshape(-1, 3).detach().requires_grad_()
    with torch.enable_grad():
        end = _flow(h, lanes, begin, steps)
        rows = [
            torch.autograd.grad(end[:, i].sum(), (lanes, begin), retain_graph=i < 2)
            for i in range(3)
        ]
    for_x, for_u = (
        torch.stack(parts, 1).view(models, points, 3, -1) for parts in zip(*rows, strict=True)
    )
    return end.detach().view(models, points, 3), for_x, for_u


class Shooting:
    """The residuals of every point, predicted from the point before it."""

    def __init__(self, h: int, data: Tensor) -> None:
        self.h, self.data = h, data
        self.parts = [(slice(0, 1), FINE), (slice(1, len(data) - 1), COARSE)]

    def residual(self, x: Tensor) -> Tensor:
        flows = []
        for part, steps in self.parts:
            u = self.data[:-1][part]
            end = _flow(self.h, _lanes(x, len(u)), u.repeat(len(x), 1), steps)
            flows.append(end.view(len(x), len(u), 3))
        return (torch.cat(flows, 1) - self.data[1:]).flatten(1)

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u = self.data[:-1].expand(len(x), -1, -1)
        parts = [_differentiated(self.h, x, u[:, part], steps) for part, steps in self.parts]
        flows, jacobians, _ = (torch.cat(tensors, 1) for tensors in zip(*parts, strict=True))
        return (flows - self.data[1:]).flatten(1), jacobians.flatten(1, 2)


class Trajectory:
    """The residuals of all points, predicted from the first one in fine steps."""

    def __init__(self, h: int, data: Tensor) -> None:
        self.h, self.data = h, data

    def _points(self, x: Tensor) -> Tensor:
        steps, u0 = (len(self.data) - 1) * FINE, self.data[0].expand(len(x), -1)
        parts = fsir.split("RealNPU", self.h, x)
        states, _ = fsir.integrate(u0, parts, steps, INTERVAL / FINE, "rk4")
        return states[:, ::FINE]

    def residual(self, x: Tensor) -> Tensor:
        return (self._points(x) - self.data)[:, 1:].flatten(1)

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        points = self._points(x)
        _, for_x, for_u = _differentiated(self.h, x, points[:, :-1], FINE)
        jacobians = [for_x[:, 0]]
        for n in range(1, for_x.shape[1]):
            jacobians.append(for_u[:, n] @ jacobians[-1] + for_x[:, n])
        return (points - self.data)[:, 1:].flatten(1), torch.stack(jacobians, 1).flatten(1, 2)


# ---- work ----------------------------------------------------------------------------------------


class Search:
    """All starts of one width through the three phases; `done` counts steps and attempts."""

    def __init__(self, batch: Batch) -> None:
        settings = batch.settings
        self.h, self.runs = settings["h"], batch.runs
        self.fit, self.prune, self.refit = settings["fit"], settings["prune"], settings["refit"]
        self.total, self.done = self.fit + self.prune + self.refit, 0
        data = fsir.data().to(settings["device"])
        self.shooting, self.trajectory = Shooting(self.h, data), Trajectory(self.h, data)
        starts = [start(self.h, run["start"]) for run in batch.runs]
        self.x = torch.stack(starts).to(settings["device"])
        self.free = torch.ones_like(self.x, dtype=torch.bool)
        self.free[:, 3 * self.h : 3 * self.h + 3] = False  # the gates
        self.kept = torch.zeros_like(self.free)  # variables whose removal was tried in vain
        self.damping = torch.full_like(self.x[:, 0], FIRST_DAMPING)
        self.error = torch.full_like(self.damping, torch.inf)
        self.fitted = self.error.clone()  # the error after the first phase

    @torch.no_grad()
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            if self.done < self.fit:
                self._step(self.shooting)
                self.fitted = self.error.clone()
            elif self.done < self.fit + self.prune:
                self._remove()
                if self.done == self.fit + self.prune - 1:
                    self.damping.fill_(FIRST_DAMPING)
            else:
                self._step(self.trajectory)
            self.done += 1

    def _step(self, problem: Shooting | Trajectory) -> None:
        self.x, self.damping, self.error = least_squares.step(
            self.x, self.damping, self.free, problem.residual, problem.jacobian
        )

    def _remove(self) -> None:
        """Try each model's removal that costs least and has not been tried in vain."""
        costs, moved = least_squares.without(self.x, self.free, self.shooting.jacobian)
        costs = torch.where(self.kept, torch.inf, costs)
        least_costs, which = costs.min(1)
        active = (least_costs.isfinite() & self.error.isfinite()).nonzero().squeeze(1)
        if not len(active):
            return
        which = which[active]
        free = self.free[active].clone()
        free[torch.arange(len(active)), which] = False
        residual, jacobian = self.shooting.residual, self.shooting.jacobian
        x, error = least_squares.fit(moved[active, which], free, residual, jacobian, PRUNE_STEPS)
        good = error <= torch.maximum(SLACK * self.error[active], torch.full_like(error, LIMIT))
        accepted = active[good]
        parts = x[good], free[good], error[good]
        self.x[accepted], self.free[accepted], self.error[accepted] = parts
        self.kept[accepted] = False
        self.kept[active[~good], which[~good]] = True

    def state(self) -> dict[str, Any]:
        tensors = self.x, self.free, self.kept, self.damping, self.error, self.fitted
        return {"done": self.done, "tensors": [tensor.clone() for tensor in tensors]}

    def restore(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        device = self.x.device
        tensors = (tensor.to(device) for tensor in state["tensors"])
        self.x, self.free, self.kept, self.damping, self.error, self.fitted = tensors

    @torch.no_grad()
    def results(self) -> tuple[Rows, dict[str, Tensor]]:
        rows = []
        errors = least_squares.error(self.trajectory.residual(self.x))
        for k, run in enumerate(self.runs):
            exponent, rate = compare(self.h, self.x[k])
            size = int(self.x[k].count_nonzero()) - 3  # without the gates
            right = int(exponent <= EXPONENT and rate <= RATE)
            numbers = float(self.fitted[k]), float(errors[k]), size, right, exponent, rate
            rows.append(dict(zip(COLUMNS, (self.h, run["start"], *numbers), strict=True)))
        return rows, {"parameters": self.x.cpu()}


def compare(h: int, x: Tensor) -> tuple[float, float]:
    """The greatest error of an exponent and greatest relative error of a rate of a model ``[N]``.

    Both are infinite where other weights are zero than in the true equation. This is the judge,
    after the search; the search does not see it.
    """
    weight_re, _, weight = (part[0] for part in fsir.split("RealNPU", h, x.unsqueeze(0)))
    true_re, _, true_weight = (part[0] for part in fsir.split("RealNPU", 3, fsir.truth()))
    used = [j for j in range(h) if bool(weight[:, j].any())]
    best = (torch.inf, torch.inf)
    if len(used) != 3:
        return best
    for rows in itertools.permutations(used):
        exponents, rates = weight_re[list(rows)], weight[:, list(rows)]
        right = true_weight != 0
        if not torch.equal(exponents != 0, true_re != 0) or not torch.equal(rates != 0, right):
            continue
        rate_errors = (rates - true_weight)[right] / true_weight[right]
        errors = float((exponents - true_re).abs().max()), float(rate_errors.abs().max())
        best = min(best, errors)
    return best
