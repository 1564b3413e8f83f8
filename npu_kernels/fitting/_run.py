"""The stages of a fit in their order, in steps that can be saved and continued.

    search    stretches of Adam, after each the best share of every problem's starts goes on
    refine    the finalists, gates rounded to 0 or 1, by L-BFGS in float64
    settle    the best of them once for each denominator: powers near a fraction are set to it, the rest refitted;
              then all powers are set and the rest is refitted; then the rest is rounded too

After each stage the models are rounded and scored on the held-out rows. A problem of which a rounded model's error is
that of the data's own rounding is solved and takes no further step.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_whole, is_whole
from npu_kernels._jobs import saved
from npu_kernels._jobs.checkpoints import check_same, described, digest, fingerprint
from npu_kernels.fitting._batch import COEFFICIENT, FREE, GATE, LINEAR, POWER, Template
from npu_kernels.fitting._data import Data, Rows, check, stream
from npu_kernels.fitting._pool import Pool, ranks
from npu_kernels.fitting._recipe import Recipe
from npu_kernels.fitting._refine import Refinement
from npu_kernels.fitting._result import Candidate, Fits
from npu_kernels.fitting._scale import LastSum, Scale
from npu_kernels.fitting._search import Search
from npu_kernels.layers import Unit

FORMAT = 2  # of a saved state
_TENSORS = (
    "scores",
    "retired",
    "solved",
    "rows",
)  # of a saved state, and the entries of its history
_HISTORY = ("stage", "rounds", "models", "solved", "best", "worst", "rows")
NEAR = 0.15  # of the distance between two fractions of a denominator: a power so close to one is set first
LOOK = 100  # evaluations of refine after which it is seen what is solved
LINEAR_ROWS = 2048  # of the least squares for the weights of a sum
EXACT = 16  # machine epsilons of the data that a solved problem's relative error may have


def _seeds(function: str, seeds: Sequence[int], problems: int) -> list[int]:
    """The seeds, checked: one for each problem."""
    if isinstance(seeds, str) or not isinstance(seeds, Sequence):
        raise TypeError(
            f"{function}: seeds must be a sequence of integers, got {type(seeds).__name__}"
        )
    found = list(seeds)
    if len(found) != problems or not all(is_whole(s) and s >= 0 for s in found):
        raise ValueError(
            f"{function}: seeds must be {problems} integers of at least 0, one per problem, got {seeds!r}"
        )
    return [int(seed) for seed in found]


class Run:
    """A fit of several problems under way.

    Args:
        model: units with num_models = problems * starts; problem p's starts come one after the other.
        x, y: ``[problems, N, I]``, ``[problems, N, O]``.
        seeds: one for each problem; a problem's starts, its held-out rows and the order of the others are its own's.
        recipe: the settings.
        function: for messages.

    `done` of `total` rounds are behind; `advance` makes some more; `result` gives what has been found so far.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        seeds: Sequence[int],
        recipe: Recipe | None = None,
        function: str = "fit_many",
    ) -> None:
        self.function = function
        self.recipe = recipe = Recipe() if recipe is None else recipe
        if not isinstance(recipe, Recipe):
            how = "; Recipe(**recipe) makes one" if isinstance(recipe, dict) else ""
            raise TypeError(
                f"{function}: recipe must be a Recipe, got {type(recipe).__name__}{how}"
            )
        self.template = template = Template(function, model, recipe)
        check(function, x, y, 3)
        self.problems, self.seeds = len(x), _seeds(function, seeds, len(x))
        self.starts, rest = divmod(template.num_models, self.problems)
        if rest or not self.starts:
            raise ValueError(
                f"{function}: num_models must be a multiple of the number of problems, {self.problems}, "
                f"got {template.num_models}"
            )
        self.tolerance = float((EXACT * torch.finfo(y.dtype).eps) ** 2)
        self.scale = Scale(template, x.to(template.device), y.to(template.device))
        x_divided, y_divided = self.scale.divided(x.to(template.device), y.to(template.device))
        self.data = Data.split(x_divided, y_divided, self.seeds, recipe, template.device)
        self.last = LastSum(template)
        self._dtypes = f"x {x.dtype}, y {y.dtype}, model {template.dtype}"
        self._single = self.data.training.to(template.dtype)
        self._moved = 0  # the most parameters of a model in refinement that have moved at all

        tensors = template.start(
            [stream("start", seed) for seed in self.seeds], self.starts, recipe
        )
        template.project_(tensors)
        self._check_output(function, tensors)
        self.search: Search | None = Search(template, recipe, tensors, self.starts)
        self.refinement: Refinement | None = None
        # The denominator and the start of each model of the refinement:
        self._rounding, self._origin = (torch.empty(0, dtype=torch.long) for _ in range(2))

        self._denominators = (
            recipe.denominators if template.has(GATE, POWER, LINEAR, COEFFICIENT) else ()
        )
        rounds = [steps for steps, _ in recipe.rungs]
        self._rungs = len(rounds)
        rounds.append(recipe.refine)
        if self._denominators:
            rounds += [recipe.settle] * 2
        self._lengths = rounds
        self.total, self.done = sum(rounds), 0
        self.stage, self.at = 0, 0

        shape, device = (self.problems, self.starts), template.device
        self.pool = Pool(template)
        self.scores = torch.full(shape, math.inf, dtype=torch.float64, device=device)
        self.retired = torch.zeros(shape, dtype=torch.long, device=device)
        self.solved = torch.zeros(self.problems, dtype=torch.bool, device=device)
        self.rows = torch.zeros(self.problems, dtype=torch.long, device=device)
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0

    def _check_output(self, function: str, tensors: list[Tensor]) -> None:
        rows, model = self.data.training, self.template.model
        first = next(
            (part for part in model.modules() if not isinstance(part, nn.Sequential)), None
        )
        if (
            isinstance(first, Unit) and rows.x.shape[2] != first.in_features
        ):  # of a Unit, or a Sequential of them
            raise ValueError(
                f"{function}: x must have last dimension {first.in_features} (in_features of model), "
                f"got {rows.x.shape[2]}"
            )
        wanted = (len(tensors[0]), 2, rows.y.shape[2])
        try:
            with torch.no_grad():
                y = self.template(
                    tensors, self._single.x[:1, :2].expand(wanted[0], -1, -1)[:, [0, -1]]
                )
        except (ValueError, TypeError, RuntimeError) as error:
            raise ValueError(
                f"{function}: model must take x with {rows.x.shape[2]} columns, got {error}"
            ) from error
        found = tuple(y.shape) if isinstance(y, Tensor) else ()
        if found[:2] != wanted[:2] or len(found) != 3:
            raise ValueError(
                f"{function}: model must give (num_models, rows, out_features), got shape {found} for 2 rows"
            )
        if found != wanted:
            raise ValueError(
                f"{function}: y must have last dimension {found[-1]}, as the model's, got {wanted[-1]}"
            )

    # ---- progress ------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> int:
        """How many models are still in training."""
        if self.search is not None:
            return len(self.search.problem)
        return 0 if self.refinement is None else len(self.refinement.solver.running)

    @torch.no_grad()
    def advance(self, rounds: int) -> None:
        """Make so many rounds, a step of Adam or an evaluation of L-BFGS of all models, or end before."""
        rounds = check_whole(self.function, "rounds", rounds, 0)
        begin = time.perf_counter()
        while rounds > 0 and self.stage < len(self._lengths):
            length = self._lengths[self.stage]
            made = self._rounds(min(rounds, length - self.at), length) if self.at < length else 0
            rounds -= max(made, 1)
            if made == 0:  # nothing left to do in this stage
                made = length - self.at
            self.at += made
            self.done += made
            if self.at == length:
                self._end_stage()
        self.seconds += time.perf_counter() - begin

    def _rounds(self, most: int, length: int) -> int:
        """So many rounds of the stage at most; returns how many."""
        if self.search is not None:
            if not len(self.search.problem):
                return 0
            made = self.search.advance(self._single, self.stage, self.at, length, most)
            rows = made * min(self.recipe.batch, self._single.x.shape[1])
            self.rows += rows * torch.bincount(self.search.problem, minlength=self.problems)
            return made
        assert self.refinement is not None
        refinement = self.refinement
        active = refinement.problem[refinement.solver.running]
        self.rows += refinement.rows.x.shape[1] * torch.bincount(active, minlength=self.problems)
        going = refinement.advance()
        if self.stage == self._rungs and self.at % LOOK == LOOK - 1:
            self._look(refinement)
        return int(going)

    def _look(self, refinement: Refinement) -> None:
        """End the models of problems that one of them solves when rounded."""
        flat, problem, start = refinement.flat(), refinement.problem, self._origin
        base = self._errors(flat, problem)
        for denominator in self._denominators:
            self._add_rounded(flat, problem, start, denominator, base, solved_only=True)
        refinement.drop(self.solved.nonzero().squeeze(1))

    # ---- from stage to stage -------------------------------------------------------------------------------------

    def _end_stage(self) -> None:
        if self.search is not None:
            self._end_rung(self.search)
        elif self.stage == self._rungs:
            self._end_refine()
        else:
            self._end_settle()
        self.stage, self.at = self.stage + 1, 0
        best = self.pool.best(self.problems)
        self.history.append(
            {
                "stage": self.stage,
                "rounds": self.done,
                "models": self.alive,
                "solved": int(self.solved.sum()),
                "best": float(best.min()) if len(best) else math.inf,
                "worst": float(best.max()) if len(best) else math.inf,
                "rows": int(self.rows.sum()),
            }
        )
        if self.stage == len(self._lengths):
            self.search = self.refinement = None
            self._fewer_units()

    def _errors(self, flat: Tensor, problem: Tensor) -> Tensor:
        held = self.data.held_out
        return self.template.errors(flat, held.x, held.y, held.weight, problem)

    def _score(self, flat: Tensor, problem: Tensor, start: Tensor, kind: str, keep: int) -> Tensor:
        """Score models and their roundings ``[A]``, remember the best `keep` of each problem, and what is solved."""
        raw = self._errors(flat, problem)
        self.scores[problem, start] = raw
        self.pool.add(flat, problem, start, kind, 0, raw, raw, keep)
        least = raw.clone()
        for denominator in self._denominators:
            least = torch.minimum(least, self._add_rounded(flat, problem, start, denominator, raw))
        return least

    def _add_rounded(
        self,
        flat: Tensor,
        problem: Tensor,
        start: Tensor,
        denominator: int,
        base: Tensor,
        solved_only: bool = False,
    ) -> Tensor:
        """Remember the best rounded model of each problem, and what is solved; the errors ``[A]``.

        Coefficients are those of least squares: they have units and are no fractions, except where the data are exact.
        solved_only: of problems that are not solved yet, and models that solve them.
        """
        free = self.template.has(COEFFICIENT)
        rounded = self.template.rounded(flat, denominator, (GATE, POWER, LINEAR))
        if free:
            rounded = self.last.solved(rounded, problem, self.data.training.first(LINEAR_ROWS))
        score = self._errors(rounded, problem)
        fine = score <= self.tolerance
        keep = fine & ~self.solved[problem] if solved_only else torch.ones_like(fine)
        kept = score.masked_fill(~keep, math.inf)
        self.pool.add(
            rounded, problem, start, "powers" if free else "rounded", denominator, kept, base, 1
        )
        for other in (0, denominator) if free else ():
            whole = self.scale.coefficients(rounded, problem, other)
            error = self._errors(whole, problem)
            exact = error <= self.tolerance
            error = error.masked_fill(
                ~(keep if other == 0 and not solved_only else exact), math.inf
            )
            self.pool.add(whole, problem, start, "rounded", denominator, error, base, 1)
            fine |= exact
        self.solved[problem[fine]] = True
        return score

    def _fewer_units(self) -> None:
        """Offer the chosen models without the units of the last sum that they do not need."""
        flat, chosen = self._choose(self.pool)
        owners = torch.tensor(
            [p for p, one in enumerate(chosen) if one.start >= 0],
            device=flat.device,
            dtype=torch.long,
        )
        if not self.last.there or not len(owners):
            return
        start = torch.tensor([chosen[p].start for p in owners.tolist()], device=flat.device)
        base = torch.tensor(
            [chosen[p].score for p in owners.tolist()], device=flat.device, dtype=torch.float64
        )
        for fewer in self.last.fewer(flat[owners], owners, self.data.training.first(LINEAR_ROWS)):
            error = self._errors(fewer, owners)
            for place, p in enumerate(owners.tolist()):
                one = slice(place, place + 1)
                kind, denominator = chosen[p].kind, chosen[p].denominator
                self.pool.add(
                    fewer[one], owners[one], start[one], kind, denominator, error[one], base[one], 1
                )

    def _choose(self, pool: Pool) -> tuple[Tensor, list[Candidate]]:
        held, known = self.data.held_out, self.data.training.first(LINEAR_ROWS)

        def losses(flat: Tensor, problem: int) -> Tensor:
            return self.template.losses(flat, held.x, held.y, held.weight, problem)

        def training(flat: Tensor, problem: int) -> Tensor:
            return self.template.losses(flat, known.x, known.y, known.weight, problem)

        return pool.choose(self.problems, self.tolerance, self.recipe.slack, losses, training)

    def _end_rung(self, search: Search) -> None:
        flat, last = search.flat(), self.stage + 1 == self._rungs
        score = self._score(
            flat, search.problem, search.start, "raw", self.recipe.finalists[0] if last else 1
        )
        share = 0.0 if last else self.recipe.rungs[self.stage + 1][1]
        count = max(self.recipe.finalists[0], math.ceil(share * self.starts))
        going = (
            (ranks(search.problem, score) < count) & score.isfinite() & ~self.solved[search.problem]
        )
        self.retired[search.problem[~going], search.start[~going]] = self.stage + 1
        index = going.nonzero().squeeze(1)
        search.keep(index)
        if last:
            moved = (self.template.flatten(search.squares) > 0).sum(1)
            self._moved = int(moved.max()) if len(moved) else 0
            flat = self.template.rounded(flat[index], 1, (GATE,))
            self._refine(flat, self.template.kind == GATE, search.problem, search.start, 0)
            self.search = None

    def _refine(
        self, flat: Tensor, held: Tensor, problem: Tensor, start: Tensor, rounding: Tensor | int
    ) -> None:
        held = held.expand_as(flat).clone()
        self._rounding = torch.as_tensor(rounding, device=flat.device).expand(len(flat)).clone()
        self._origin = start
        rows = self._polish(0 if self.search is not None else 1, self._moved)
        self.refinement = Refinement(self.template, rows, flat, held, problem)

    def _polish(self, which: int, moved: int) -> Rows:
        """The rows of refine (0) and of settle (1); moved: the most parameters of a model that have."""
        least = 4 * moved // self.data.training.y.shape[2]
        return self.data.training.first(max(self.recipe.rows[which], least))

    def _end_refine(self) -> None:
        assert self.refinement is not None
        flat, problem, start = self.refinement.flat(), self.refinement.problem, self._origin
        score = self._score(flat, problem, start, "refined", self.recipe.finalists[0])
        going = (
            (ranks(problem, score) < self.recipe.finalists[1])
            & score.isfinite()
            & ~self.solved[problem]
        )
        self.retired[problem[~going], start[~going]] = self.stage + 1
        if self.stage + 1 == len(self._lengths):
            return
        flat, problem, start = flat[going], problem[going], start[going]
        gate = (self.template.kind == GATE).expand_as(flat)
        near, held, rounding = (
            [flat],
            [gate],
            [torch.zeros_like(start)],
        )  # once without rounding, on more rows
        for denominator in self._denominators:
            rounded = self.template.rounded(flat, denominator, (POWER,))
            close = (self.template.kind == POWER) & ((rounded - flat).abs() < NEAR / denominator)
            near.append(torch.where(close, rounded, flat))
            held.append(close | gate)
            rounding.append(torch.full_like(start, denominator))
        count = len(rounding)
        self._refine(
            torch.cat(near),
            torch.cat(held),
            problem.repeat(count),
            start.repeat(count),
            torch.cat(rounding),
        )

    def _end_settle(self) -> None:
        assert self.refinement is not None
        flat, problem, start = self.refinement.flat(), self.refinement.problem, self._origin
        kind, plain = self.template.kind, self._rounding == 0
        if self.stage == self._rungs + 1:
            held = ((kind == GATE) | ((kind == POWER) & ~plain.unsqueeze(1))).expand_as(flat)
            for denominator in self._denominators:
                of = self._rounding == denominator
                flat[of] = self.template.rounded(flat[of], denominator, (POWER,))
            self._refine(flat, held, problem, start, self._rounding)
            return
        base = self._errors(flat, problem)
        self.pool.add(
            flat[plain], problem[plain], start[plain], "refined", 0, base[plain], base[plain], 1
        )
        self.scores[problem[plain], start[plain]] = base[plain]
        base = self.scores[problem, start]
        for denominator in self._denominators:
            of = self._rounding == denominator
            self._score_settled(flat[of], problem[of], start[of], denominator, base[of])
        self.retired[problem, start] = self.stage + 1

    def _score_settled(
        self, flat: Tensor, problem: Tensor, start: Tensor, denominator: int, base: Tensor
    ) -> None:
        """Models whose powers are fractions with a denominator, and their other weights rounded too."""
        if self.template.has(COEFFICIENT):
            self._add_rounded(flat, problem, start, denominator, base)
            return
        if self.template.has(LINEAR, FREE):
            self.pool.add(
                flat, problem, start, "powers", denominator, self._errors(flat, problem), base, 1
            )
        for other in self._denominators if self.template.has(LINEAR) else self._denominators[:1]:
            rounded = self.template.rounded(flat, other, (LINEAR,))
            score = self._errors(rounded, problem)
            self.pool.add(
                rounded, problem, start, "rounded", max(denominator, other), score, base, 1
            )
            self.solved[problem[score <= self.tolerance]] = True

    # ---- what comes out ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def result(self) -> Fits:
        """The best models so far."""
        complete = self.stage == len(self._lengths)
        pool = self.pool
        if not complete:
            pool = pool.copy()
            if self.search is not None:
                flat, problem, start = self.search.flat(), self.search.problem, self.search.start
            else:
                assert self.refinement is not None
                flat, problem, start = self.refinement.flat(), self.refinement.problem, self._origin
            score = self._errors(flat, problem)
            kind = "raw" if self.search is not None else "refined"
            pool.add(flat, problem, start, kind, 0, score, score, 1)
        flat, chosen = self._choose(pool)
        models = self.template.build(
            self.scale.given(flat, torch.arange(self.problems, device=flat.device)), single=False
        )
        self.scale.finish(models)
        return Fits(
            models=models,
            # Of the models as they are returned: their own dtype has its own eps and its own rounding.
            score=self.scale.score(models, self.data.held_out).cpu(),
            scores=self.scores.cpu(),
            retired=self.retired.cpu(),
            steps=self.rows.cpu() / self.recipe.batch,
            rows=self.rows.cpu(),
            chosen=chosen,
            candidates=pool.listed(self.problems),
            history=list(self.history),
            seconds=self.seconds,
            complete=complete,
        )

    @torch.no_grad()
    def error_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean squared errors ``[problems]`` of the best models on other rows, weighted as the loss does."""
        device = self.template.device
        divided = self.scale.divided(x.to(device), y.to(device))
        rows = self.data.weighted(*divided, self.recipe)
        return self.scale.score(self.result().models, rows)

    # ---- saved and continued -------------------------------------------------------------------------------------

    @functools.cached_property
    def fingerprint(self) -> dict[str, str]:
        """Everything that decides the numbers."""
        given = [self.scale.restored(rows) for rows in (self.data.training, self.data.held_out)]
        return fingerprint(
            format=str(FORMAT),
            model=described(self.template.model, Unit),
            dtypes=self._dtypes,
            device=self.template.device.type,
            seeds=repr(self.seeds),
            data=digest(*(tensor for pair in given for tensor in pair)),
            **{f"recipe.{name}": repr(value) for name, value in asdict(self.recipe).items()},
        )

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, in tensors and numbers."""
        names = ("done", "stage", "at", "_moved", *_TENSORS, "history", "seconds")
        state = {name: getattr(self, name) for name in names}
        state["fingerprint"] = self.fingerprint
        state["pool"] = self.pool.state()
        state["search"] = None if self.search is None else self.search.state()
        state["refinement"] = None if self.refinement is None else self.refinement.state()
        state["rounding"], state["origin"] = self._rounding, self._origin
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; raises ValueError, which says what differs, if it is another fit's."""
        if not isinstance(state, dict) or "fingerprint" not in state:
            raise ValueError("it is no state of a fit: without fingerprint")
        check_same(state["fingerprint"], self.fingerprint)
        saved.record(state, "content", self.state().keys())
        template, problems, starts = self.template, self.problems, self.starts
        stage = saved.integer(state["stage"], "stage", 0, len(self._lengths))
        ahead = [*self._lengths, 1][stage]
        at = saved.integer(state["at"], "at", 0, max(0, ahead - 1))
        done = sum(self._lengths[:stage]) + at
        saved.integer(state["done"], "done", done, done)
        moved = saved.integer(state["_moved"], "_moved", 0, len(template.kind))
        seconds = saved.number(state["seconds"], "seconds", 0.0)
        history = [_told(entry) for entry in saved.sequence(state["history"], "history", stage)]
        tensors = {
            name: saved.tensor(state[name], name, like.shape, like.dtype, template.device)
            for name, like in ((name, getattr(self, name)) for name in _TENSORS)
        }
        pool = Pool.restored(template, state["pool"], problems, starts, self._denominators)
        search = refinement = None
        models: int | None = None
        if stage < self._rungs:
            search = Search.restored(template, self.recipe, state["search"], problems, starts, done)
        elif stage < len(self._lengths):
            rows = self._polish(int(stage > self._rungs), moved)
            refinement = Refinement.restored(template, rows, state["refinement"], problems)
            models = len(refinement.start)
        for name, part in (("search", search), ("refinement", refinement)):
            if part is None and state[name] is not None:
                raise ValueError(
                    f"its {name} must be None in stage {stage}, got {type(state[name]).__name__}"
                )
        most = {"rounding": max(self._denominators, default=0), "origin": starts - 1}
        self._rounding, self._origin = (
            saved.tensor(state[name], name, (models,), torch.long, template.device, 0, high)
            for name, high in most.items()
        )
        self.stage, self.at, self.done, self._moved, self.seconds = stage, at, done, moved, seconds
        self.history, self.pool, self.search, self.refinement = history, pool, search, refinement
        for name, tensor in tensors.items():
            setattr(self, name, tensor)


def _told(entry: Any) -> dict[str, Any]:
    """An entry of a saved history."""
    saved.record(entry, "history", _HISTORY)
    return {name: saved.number(entry[name], f"history's {name}", finite=False) for name in _HISTORY}
