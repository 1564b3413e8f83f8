"""Steps from node to node that solve a law of time series, and laws that none of them solves.

A law whose residuals change with the steps describes the steps and not the series. So laws are
compared by steps whose error is a small share of the measurements' errors: classic Runge-Kutta
steps, halved until then, or implicit ones. The error is the change by steps of half the size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from npu_kernels.equations._series.criterion import SAME_CRITERION, criteria
from npu_kernels.equations._series.job import Job
from npu_kernels.equations._series.laws import Law, deviations
from npu_kernels.equations._series.sensitivity import FIXED, IMPLICIT, Trajectories

STEP_ERROR = 0.1  # of the errors' standard deviation: the error that the steps may have
# Steps from node to node. Where no implicit ones may follow Runge and Kutta's, there are up to
# MOST_STEPS of these, in a series of ALL_EXPLICIT_STEPS.
FIRST_STEPS, MANY_STEPS, MOST_STEPS, ALL_EXPLICIT_STEPS = 8, 64, 4096, 100_000
HOPELESS_CRITERION = 30.0  # above the best law's: finer steps are not tried for worse ones


def solved(problem: Trajectories, x: Tensor, free: Tensor) -> tuple[Trajectories, Tensor]:
    """Return the problem whose steps solve the best of K laws ``[K, N]``, and criteria ``[K]``.

    These are inf for laws that the steps do not solve.
    """
    values = x.new_full((len(x),), math.inf)
    level = torch.zeros(len(x), dtype=torch.long)
    is_open = torch.arange(len(x))
    problems: list[Trajectories] = []
    residual, method = problem.residual(x), problem.method
    for finer in _ladder(problem):
        if finer.method != method:
            residual, method = finer.residual(x[is_open]), finer.method
        problems.append(finer)
        finer_criteria = criteria(finer, x[is_open], free[is_open], residual)
        halved = finer.finer().residual(x[is_open])
        off = (halved - residual).unflatten(1, (-1, problem.shape.states))
        errors = deviations(finer, residual, free[is_open]).unsqueeze(1)
        good = (off.abs() < STEP_ERROR * errors).flatten(1).all(1) & finer_criteria.isfinite()
        values[is_open[good]], level[is_open[good]] = finer_criteria[good], len(problems) - 1
        rest = ~good & ~(finer_criteria >= values.min() + HOPELESS_CRITERION)
        if not values.isfinite().any():  # coarse steps may leave the finite numbers
            rest = ~good
        is_open, residual = is_open[rest], halved[rest]
        if not len(is_open):
            break
    number = int(level[values.argmin()]) if len(x) else 0
    return problems[number], values.where(level <= number, math.inf)


def _ladder(problem: Trajectories) -> Iterator[Trajectories]:
    """Yield the problem, and those of twice as many steps each; then implicit ones, if may be."""
    is_implicit, limit = problem.method == IMPLICIT, MANY_STEPS
    if not is_implicit and not problem.stiff:
        limit = max(limit, min(MOST_STEPS, ALL_EXPLICIT_STEPS // problem.data.times.shape[1]))
    yield problem
    while 2 * problem.steps <= limit:
        problem = problem.finer()
        yield problem
    if not is_implicit and problem.stiff:
        yield from _ladder(replace(problem, method=IMPLICIT, steps=FIRST_STEPS))


def accurate(law: Law, job: Job) -> Law | None:
    """Return a law fitted by steps that solve it; None where no steps do."""
    while True:
        problem, value = solved(law.problem, law.x.unsqueeze(0), law.free.unsqueeze(0))
        if not value.isfinite():
            return None
        if (problem.steps, problem.method) == (law.problem.steps, law.problem.method):
            return law
        law = replace(law, problem=problem).refitted(job)


def explicit(law: Law, job: Job) -> Law:
    """Return a law by explicit steps where they solve it: another law may have needed others."""
    problem = law.problem
    if problem.method == IMPLICIT and problem.stiff:
        begun = replace(problem, method=FIXED, steps=FIRST_STEPS)
        fine = accurate(replace(law, problem=begun), job)
        if fine is not None and fine.problem.method == FIXED:
            return fine.refitted(job)
    return law


def best_accurate(laws: Iterable[Law], job: Job) -> Law | None:
    """Return the best of some laws by steps that solve them; None where none is solved.

    The laws are in order of their criteria. Those behind the first one that finer steps make no
    worse are not tried.
    """
    best, lowest = None, math.inf
    for law in laws:
        coarse = law.criterion()
        if best is not None and coarse >= lowest:
            break
        fine = accurate(law, job)
        value = math.inf if fine is None else fine.criterion()
        if value < lowest:
            best, lowest = fine, value
        if best is not None and lowest <= coarse + SAME_CRITERION:
            break
    return best
