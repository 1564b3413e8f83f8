"""The stages of a fit in their order.

Searching   a stretch of Adam, after which the best share of every problem's starts goes on
Refining    the finalists, gates rounded to 0 or 1, by L-BFGS in float64
Settling    the best of them once for each denominator: powers near a fraction are set to it, the
            rest is refitted; then all powers are set and the rest is refitted; then it is rounded

After each stage the models are rounded and scored on the held-out rows. A problem is solved where
the error of a rounded model is that of the data's rounding; its models take no further step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from npu_kernels.fitting._batch import GATE, POWER, Population
from npu_kernels.fitting._choice import Judge
from npu_kernels.fitting._data import Rows
from npu_kernels.fitting._training import Refinement, Search

NEAR_FRACTION = 0.15  # share of two fractions' distance: a power nearer to one is set to it first
LOOK_ROUNDS = 100  # of refining, after which it is seen which problems are solved


class Stage:
    """Models in training: the base of all stages.

    Args:
        judge: scores the models.
        number: of the stage, from 0.
        rounds: of the stage, if no model ends before.
    """

    kind = "refined"  # of the models for the pool
    moved = 0  # the most parameters of a model that have moved at all

    def __init__(self, judge: Judge, number: int, rounds: int) -> None:
        self.judge, self.number, self.rounds = judge, number, rounds

    @property
    def alive(self) -> int:
        """The number of models that are still in training."""
        raise NotImplementedError

    def population(self) -> Population:
        """Return the models as they are now."""
        raise NotImplementedError

    def advance(self, done: int, limit: int) -> tuple[int, Tensor | int]:
        """Make at most `limit` rounds after `done`; return their number, and rows ``[problems]``.

        Rows: those of each problem whose gradients were computed, for each model.
        """
        raise NotImplementedError

    def end(self) -> Stage | None:
        """Score the models; return the next stage, None after the last."""
        raise NotImplementedError


class Searching(Stage):
    """A stretch of Adam."""

    kind = "raw"

    def __init__(self, judge: Judge, number: int, search: Search) -> None:
        super().__init__(judge, number, judge.recipe.rungs[number][0])
        self.search = search

    @property
    def alive(self) -> int:
        return len(self.search.problem)

    def population(self) -> Population:
        return Population(self.search.flat(), self.search.problem, self.search.start)

    def advance(self, done: int, limit: int) -> tuple[int, Tensor | int]:
        if not self.alive:
            return 0, 0
        count = self.search.advance(self.number, done, self.rounds, limit)
        rows = count * min(self.judge.recipe.batch, self.search.rows.x.shape[1])
        return count, rows * torch.bincount(self.search.problem, minlength=self.judge.problems)

    def end(self) -> Stage:
        judge, rungs = self.judge, self.judge.recipe.rungs
        finalists, last = judge.recipe.finalists[0], self.number + 1 == len(rungs)
        models = self.population()
        score = judge.score(models, self.kind, finalists if last else 1)
        share = 0.0 if last else rungs[self.number + 1][1]
        count = max(finalists, math.ceil(share * judge.starts))
        index = judge.survivors(models, score, count, self.number).nonzero().squeeze(1)
        self.search.keep(index)
        if not last:
            return Searching(judge, self.number + 1, self.search)
        template, models = judge.template, models.take(index)
        moved = (template.flatten(self.search.squares) > 0).sum(1)
        moved_count = int(moved.max()) if len(moved) else 0
        models = models.rounded(template, 1, (GATE,))
        rounding = torch.zeros_like(models.start)
        rest = (moved_count, models, template.kind == GATE, rounding)
        return Refining.begin(judge, self.number + 1, *rest)


class Refining(Stage):
    """L-BFGS of the finalists."""

    def __init__(self, judge: Judge, number: int, moved: int, refinement: Refinement) -> None:
        super().__init__(judge, number, rounds_of(judge)[number])
        self.moved, self.refinement = moved, refinement

    @classmethod
    def begin(
        cls,
        judge: Judge,
        number: int,
        moved: int,
        models: Population,
        held: Tensor,
        rounding: Tensor,
    ) -> Refining:
        """Return the stage at its beginning.

        Args:
            judge, number, moved: of the stage.
            models: where the stage begins.
            held: the parameters that stay as they are, ``[P]`` or ``[A, P]``.
            rounding: the denominator of each model's fractions ``[A]``, 0 for none.
        """
        held, rows = held.expand_as(models.flat).clone(), refining_rows(judge, number, moved)
        return cls(judge, number, moved, Refinement(judge.template, rows, models, held, rounding))

    @property
    def alive(self) -> int:
        return len(self.refinement.solver.running)

    def population(self) -> Population:
        return self.refinement.population()

    def advance(self, done: int, limit: int) -> tuple[int, Tensor | int]:
        refinement = self.refinement
        problem = refinement.models.problem[refinement.solver.running]
        counts = torch.bincount(problem, minlength=self.judge.problems)
        running = refinement.advance()
        self._look(done)
        return int(running), refinement.rows.x.shape[1] * counts

    def _look(self, done: int) -> None:
        """End the models of problems that one of them solves when rounded."""
        if done % LOOK_ROUNDS != LOOK_ROUNDS - 1:
            return
        models, judge = self.population(), self.judge
        base = judge.errors(models)
        for denominator in judge.denominators:
            judge.add_rounded(models, denominator, base, solved_only=True)
        self.refinement.drop(judge.solved.nonzero().squeeze(1))

    def end(self) -> Stage | None:
        judge, models = self.judge, self.population()
        first, second = judge.recipe.finalists
        score = judge.score(models, self.kind, first)
        survivors = judge.survivors(models, score, second, self.number)
        if not judge.denominators:
            return None
        models, template = models.take(survivors), judge.template
        gate = (template.kind == GATE).expand_as(models.flat)
        # Each model once without fractions, on more rows, and once for each denominator:
        starts, held, rounding = [models], [gate], [torch.zeros_like(models.start)]
        for denominator in judge.denominators:
            rounded = models.rounded(template, denominator, (POWER,)).flat
            near = (rounded - models.flat).abs() < NEAR_FRACTION / denominator
            near &= template.kind == POWER
            starts.append(models.at(torch.where(near, rounded, models.flat)))
            held.append(near | gate)
            rounding.append(torch.full_like(models.start, denominator))
        models = Population.concatenate(starts)
        rest = (self.moved, models, torch.cat(held), torch.cat(rounding))
        return Settling.begin(judge, self.number + 1, *rest)


class Settling(Refining):
    """L-BFGS with powers held at fractions: first the powers near to one, then all."""

    def _look(self, done: int) -> None:
        """Let all models run to the end."""

    def end(self) -> Stage | None:
        judge, models, rounding = self.judge, self.population(), self.refinement.rounding
        kind, plain = judge.template.kind, rounding == 0
        if self.number == len(judge.recipe.rungs) + 1:
            held = ((kind == GATE) | ((kind == POWER) & ~plain.unsqueeze(1))).expand_as(models.flat)
            for denominator in judge.denominators:
                mask = rounding == denominator
                rounded = models.take(mask).rounded(judge.template, denominator, (POWER,))
                models.flat[mask] = rounded.flat
            return Settling.begin(judge, self.number + 1, self.moved, models, held, rounding)
        base, unrounded = judge.errors(models), models.take(plain)
        judge.pool.add(unrounded, self.kind, 0, base[plain], base[plain], 1)
        judge.scores[unrounded.problem, unrounded.start] = base[plain]
        base = judge.scores[models.problem, models.start]
        for denominator in judge.denominators:
            mask = rounding == denominator
            judge.add_settled(models.take(mask), denominator, base[mask])
        judge.retired[models.problem, models.start] = self.number + 1
        return None


def rounds_of(judge: Judge) -> list[int]:
    """Return the numbers of rounds of all stages of a fit."""
    recipe = judge.recipe
    settling = [recipe.settle] * 2 if judge.denominators else []
    return [*(steps for steps, _ in recipe.rungs), recipe.refine, *settling]


def refining_rows(judge: Judge, number: int, moved: int) -> Rows:
    """Return the training rows of a stage: more where more parameters have moved."""
    count = judge.recipe.rows[int(number > len(judge.recipe.rungs))]
    training = judge.data.training
    return training.first(max(count, 4 * moved // training.y.shape[2]))
