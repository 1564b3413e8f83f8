"""The models that may be chosen in the end."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from npu_kernels._jobs import saved
from npu_kernels.fitting._batch import GATE, POWER, Population, Template
from npu_kernels.fitting._result import Candidate

KINDS = ("raw", "refined", "powers", "rounded")
# Levels of simplicity: the denominator, plus _PARAMETER for each parameter that is not 0, plus
# _POWERS or _PLAIN if only powers or nothing is rounded.
_PARAMETER, _POWERS, _PLAIN = 100, 10**7, 10**8
WORST_RATIO = 1.5  # of the least held-out error: worse models are not chosen for being simpler
STANDARD_ERRORS = 2.0  # of the difference of two models' held-out errors that count as none
COMPARED_MODELS = 16  # whose rows are compared at once

# The squared errors [C, M] of models [C, P] on rows of a problem.
Losses = Callable[[Tensor, int], Tensor]


def ranks(problem: Tensor, score: Tensor) -> Tensor:
    """Return the rank ``[A]`` of each score in its problem, from 0; the first of equals first."""
    order = score.argsort(stable=True)
    order = order[problem[order].argsort(stable=True)]
    owner = problem[order]
    index = torch.arange(len(order), device=order.device)
    rank = torch.empty_like(order)
    rank[order] = index - torch.searchsorted(owner, owner)
    return rank


class Pool:
    """Candidates: their parameters ``[C, P]``, and ``[C]`` of each other field of `_NAMES`."""

    _NAMES = ("flat", "problem", "start", "kind", "denominator", "score", "base")

    def __init__(self, template: Template) -> None:
        device = template.device
        self.parameter_kind = template.kind
        self.flat = torch.empty(0, len(template.kind), dtype=torch.float64, device=device)
        self.problem, self.start, self.kind, self.denominator = (
            torch.empty(0, dtype=torch.long, device=device) for _ in range(4)
        )
        self.score, self.base = (
            torch.empty(0, dtype=torch.float64, device=device) for _ in range(2)
        )

    def add(
        self,
        models: Population,
        kind: str,
        denominator: int,
        score: Tensor,
        base: Tensor,
        count: int,
    ) -> None:
        """Add the best `count` models of each problem; `base` are the scores before rounding."""
        best = (ranks(models.problem, score) < count) & score.isfinite()
        models, score, base = models.take(best), score[best], base[best]
        kinds = torch.full_like(models.problem, KINDS.index(kind))
        denominators = torch.full_like(models.problem, denominator)
        parameters = models.flat, models.problem, models.start
        fields = *parameters, kinds, denominators, score, base
        for name, tensor in zip(self._NAMES, fields, strict=True):
            setattr(self, name, torch.cat([getattr(self, name), tensor]))

    def best(self, problems: int) -> Tensor:
        """Return the least score of each problem ``[problems]``."""
        scores = torch.full((problems,), math.inf, dtype=torch.float64, device=self.score.device)
        return scores.scatter_reduce_(0, self.problem, self.score, "amin")

    def choose(
        self, problems: int, tolerance: float, slack: float, losses: Losses, training: Losses
    ) -> tuple[Tensor, list[Candidate]]:
        """Return the parameters ``[problems, P]`` and candidate that are chosen for each problem.

        The simplest of all that are about as good as the best, or as good as the data's rounding
        can tell. About as good: the difference of the held-out errors is within `slack` of the
        least, or within two of its own standard errors; or the Bayesian information criterion of
        the training rows is lower, and the held-out error at most 1.5 times the least. Parameters
        are nan for a problem of which no start stayed finite.

        Args:
            problems: their number.
            tolerance: the error of a solved problem.
            slack: of the recipe.
            losses, training: the errors on held-out and on training rows.
        """
        best_score = self.best(problems)[self.problem]
        limit = torch.clamp(best_score * (1 + slack), min=tolerance)
        unclear = (self.score > limit) & (self.score <= WORST_RATIO * best_score)
        for owner in self.problem[unclear].unique().tolist():
            index = (unclear & (self.problem == owner)).nonzero().squeeze(1)
            top = self.score.where(self.problem == owner, math.inf).argmin().unsqueeze(0)
            best, fitted = losses(self.flat[top], owner), training(self.flat[top], owner)
            count, rows = fitted.shape[1], best.shape[1]
            cost = math.log(count) / count
            for part in index.split(COMPARED_MODELS):
                differences = losses(self.flat[part], owner) - best
                error = differences.std(1) / math.sqrt(rows) if rows > 1 else 0 * limit[part]
                close = best_score[part] + STANDARD_ERRORS * error
                limit[part] = torch.maximum(limit[part], close)
                ratio = training(self.flat[part], owner).mean(1) / fitted.mean()
                simpler = ratio.log() + cost * (self._freedom(part) - self._freedom(top)) < 0
                limit[part] = limit[part].masked_fill(simpler, math.inf)
        level = self._level().masked_fill(self.score > limit, math.inf)
        order = self.score.argsort(stable=True)
        order = order[level[order].argsort(stable=True)]
        flat = self.flat.new_full((problems, self.flat.shape[1]), math.nan)
        chosen = [Candidate("none", 0, -1, math.inf, math.nan) for _ in range(problems)]
        owners = self.problem[order].tolist()
        for owner, index in reversed(list(zip(owners, order.tolist(), strict=True))):
            chosen[owner] = self._candidate(index)
            flat[owner] = self.flat[index]
        return flat, chosen

    def listed(self, problems: int) -> list[list[Candidate]]:
        """Return each problem's candidates, the best first; equal ones once, as the simplest."""
        lists: list[list[Candidate]] = [[] for _ in range(problems)]
        seen: set[tuple[int, int, float]] = set()
        order = self._level().argsort(stable=True)
        order = order[self.score[order].argsort(stable=True)]
        owners = self.problem.tolist()
        for index in order.tolist():
            candidate = self._candidate(index)
            key = (owners[index], candidate.start, candidate.score)
            if key not in seen:
                seen.add(key)
                lists[owners[index]].append(candidate)
        return lists

    def _freedom(self, index: Tensor) -> Tensor:
        """Return the count of fitted numbers, half for a rounded one: it was chosen from few."""
        flat, kind = self.flat[index], self.kind[index].unsqueeze(1)
        powers = (kind == KINDS.index("powers")) & (self.parameter_kind == POWER)
        share = torch.where((kind == KINDS.index("rounded")) | powers, 0.5, 1.0)
        return ((flat != 0) * share * (self.parameter_kind != GATE)).sum(1)

    def _level(self) -> Tensor:
        """Return the level of simplicity ``[C]``, least for the simplest."""
        plain = torch.tensor([2 * _PLAIN, _PLAIN, _POWERS, 0], device=self.kind.device)
        count = (self.flat != 0).sum(1) * _PARAMETER
        return (self.denominator + plain[self.kind] + count).double()

    def _candidate(self, index: int) -> Candidate:
        score, base = float(self.score[index]), float(self.base[index])
        kind, denominator = KINDS[int(self.kind[index])], int(self.denominator[index])
        return Candidate(kind, denominator, int(self.start[index]), score, score - base)

    def copy(self) -> Pool:
        return copy.copy(self)  # tensors are replaced, not changed

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._NAMES}

    @classmethod
    def restored(
        cls, template: Template, state: Any, problems: int, starts: int, denominators: Sequence[int]
    ) -> Pool:
        """Return the pool of a state; ValueError for a wrong one."""
        saved.record(state, "pool", cls._NAMES)
        result = cls(template)
        highest = {
            "problem": problems - 1,
            "start": starts - 1,
            "kind": len(KINDS) - 1,
            "denominator": max(denominators, default=0),
            "score": torch.finfo(torch.float64).max,
        }
        rows: int | None = None
        for name in cls._NAMES:
            like: Tensor = getattr(result, name)
            bounds = (0, highest[name]) if name in highest else ()
            shape = (rows, *like.shape[1:])
            value = saved.tensor(
                state[name], f"pool's {name}", shape, like.dtype, template.device, *bounds
            )
            setattr(result, name, value)
            rows = len(value)
        return result
