"""Scores on the held-out rows: what a fit remembers of its models, and which of them it chooses."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from npu_kernels.fitting._batch import (
    COEFFICIENT,
    FREE,
    GATE,
    LINEAR,
    POWER,
    Population,
    Template,
)
from npu_kernels.fitting._data import Data
from npu_kernels.fitting._pool import Pool, ranks
from npu_kernels.fitting._recipe import Recipe
from npu_kernels.fitting._result import Candidate
from npu_kernels.fitting._scale import LastSum, Scale

SUM_ROWS = 2048  # of the least squares for the weights of a sum
SOLVED_EPSILONS = 16  # machine epsilons of the data that a solved problem's relative error may have


class Judge:
    """The scores of the models of a fit, and the pool of those that may be chosen.

    Args:
        template, recipe, data, scale: of the fit.
        starts: of each problem.
        dtype: of y; a problem is solved where the error of a rounded model is its rounding.
    """

    def __init__(
        self,
        template: Template,
        recipe: Recipe,
        data: Data,
        scale: Scale,
        starts: int,
        dtype: torch.dtype,
    ) -> None:
        self.template, self.recipe, self.data, self.scale = template, recipe, data, scale
        self.problems, self.starts = len(data.training.x), starts
        self.tolerance = float((SOLVED_EPSILONS * torch.finfo(dtype).eps) ** 2)
        fractions = template.has(GATE, POWER, LINEAR, COEFFICIENT)
        self.denominators = recipe.denominators if fractions else ()
        self.last, self._sum_rows = LastSum(template), data.training.first(SUM_ROWS)
        self.pool = Pool(template)
        zeros = functools.partial(torch.zeros, device=template.device)
        shape = (self.problems, starts)
        self.scores = zeros(shape, dtype=torch.float64) + math.inf  # each start's last one
        self.retired = zeros(shape, dtype=torch.long)  # the stages after which starts were dropped
        self.solved = zeros(self.problems, dtype=torch.bool)

    def errors(self, models: Population) -> Tensor:
        """Return the held-out errors ``[A]``."""
        return self.template.errors(models.flat, self.data.held_out, models.problem)

    def score(self, models: Population, kind: str, count: int) -> Tensor:
        """Score models and their roundings; return the least errors ``[A]``.

        The best `count` of each problem enter the pool, and the best of each rounding.
        """
        raw = self.errors(models)
        self.scores[models.problem, models.start] = raw
        self.pool.add(models, kind, 0, raw, raw, count)
        least_errors = raw.clone()
        for denominator in self.denominators:
            least_errors = torch.minimum(least_errors, self.add_rounded(models, denominator, raw))
        return least_errors

    def survivors(self, models: Population, score: Tensor, count: int, stage: int) -> Tensor:
        """Return the mask of the best `count` of each unsolved problem; the others retire."""
        problem = models.problem
        mask = (ranks(problem, score) < count) & score.isfinite() & ~self.solved[problem]
        self.retired[problem[~mask], models.start[~mask]] = stage + 1
        return mask

    def add_rounded(
        self, models: Population, denominator: int, base: Tensor, solved_only: bool = False
    ) -> Tensor:
        """Add the best rounded model of each problem to the pool; return the errors ``[A]``.

        Coefficients are those of least squares: they have units and are no fractions, except where
        the data are exact.

        Args:
            models: before rounding.
            denominator: of the powers.
            base: the errors before rounding.
            solved_only: only models that solve a problem which was not solved before.
        """
        free, problem = self.template.has(COEFFICIENT), models.problem
        rounded = models.rounded(self.template, denominator, (GATE, POWER, LINEAR))
        if free:
            rounded = rounded.at(self.last.solved(rounded.flat, problem, self._sum_rows))
        score = self.errors(rounded)
        solves = score <= self.tolerance
        used = solves & ~self.solved[problem] if solved_only else torch.ones_like(solves)
        kind = "powers" if free else "rounded"
        self.pool.add(rounded, kind, denominator, score.masked_fill(~used, math.inf), base, 1)
        for divisor in (0, denominator) if free else ():
            simple = rounded.at(self.scale.coefficients(rounded.flat, problem, divisor))
            error = self.errors(simple)
            exact = error <= self.tolerance
            allowed = used if divisor == 0 and not solved_only else exact
            error = error.masked_fill(~allowed, math.inf)
            self.pool.add(simple, "rounded", denominator, error, base, 1)
            solves |= exact
        self.solved[problem[solves]] = True
        return score

    def add_settled(self, models: Population, denominator: int, base: Tensor) -> None:
        """Add models whose powers are fractions, with their other weights plain and rounded."""
        if self.template.has(COEFFICIENT):
            self.add_rounded(models, denominator, base)
            return
        if self.template.has(LINEAR, FREE):
            self.pool.add(models, "powers", denominator, self.errors(models), base, 1)
        divisors = self.denominators if self.template.has(LINEAR) else self.denominators[:1]
        for divisor in divisors:
            rounded = models.rounded(self.template, divisor, (LINEAR,))
            score = self.errors(rounded)
            self.pool.add(rounded, "rounded", max(denominator, divisor), score, base, 1)
            self.solved[models.problem[score <= self.tolerance]] = True

    def add_with_fewer_units(self) -> None:
        """Add the chosen models without the units of the last sum that they do not need."""
        flat, chosen = self.choose(self.pool)
        owners = [p for p, candidate in enumerate(chosen) if candidate.start >= 0]
        if not self.last.exists or not owners:
            return
        long, real = (
            functools.partial(torch.tensor, device=flat.device, dtype=dtype)
            for dtype in (torch.long, torch.float64)
        )
        problem, start = long(owners), long([chosen[p].start for p in owners])
        base = real([chosen[p].score for p in owners])
        for fewer in self.last.fewer(flat[problem], problem, self._sum_rows):
            models = Population(fewer, problem, start)
            error = self.errors(models)
            for n, p in enumerate(owners):
                part, (kind, denominator) = slice(n, n + 1), (chosen[p].kind, chosen[p].denominator)
                self.pool.add(models.take(part), kind, denominator, error[part], base[part], 1)

    def choose(self, pool: Pool) -> tuple[Tensor, list[Candidate]]:
        """Return the parameters ``[problems, P]`` and the candidate that each problem gets."""
        losses, training = (
            functools.partial(self.template.losses, rows)
            for rows in (self.data.held_out, self._sum_rows)
        )
        return pool.choose(self.problems, self.tolerance, self.recipe.slack, losses, training)
