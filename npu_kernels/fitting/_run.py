"""A fit in progress: its stages one after the other, in rounds that can be saved and continued."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_whole, is_whole, stream
from npu_kernels._jobs.checkpoint import (
    Checkpoint,
    check_same,
    described,
    digest,
    fingerprint,
    like,
)
from npu_kernels.fitting._choice import Judge
from npu_kernels.fitting._data import Data, Rows, check
from npu_kernels.fitting._population import GATE, POWER, Population, Scale, Template
from npu_kernels.fitting._recipe import BatchFitResult, Recipe
from npu_kernels.fitting._training import Refinement, Search
from npu_kernels.layers import BaseLayer
from npu_kernels.layers._chains import chain

NEAR_FRACTION = 0.15  # share of two fractions' distance: a power nearer to one is set to it first
LOOK_ROUNDS = 100  # of refining, after which it is seen which problems are solved


class Stage:
    """Models in training: the base of all stages.

    Args:
        judge: held-out errors the models.
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
    """A stage of Adam."""

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
        rows = count * min(self.judge.recipe.batch_size, self.search.rows.x.shape[1])
        return count, rows * torch.bincount(self.search.problem, minlength=self.judge.problems)

    def end(self) -> Stage:
        judge, rungs = self.judge, self.judge.recipe.rungs
        finalists, last = judge.recipe.finalists[0], self.number + 1 == len(rungs)
        models = self.population()
        holdout_error = judge.holdout_error(models, self.kind, finalists if last else 1)
        share = 0.0 if last else rungs[self.number + 1][1]
        count = max(finalists, math.ceil(share * judge.starts))
        index = judge.survivors(models, holdout_error, count, self.number).nonzero().squeeze(1)
        self.search.keep(index)
        if not last:
            return Searching(judge, self.number + 1, self.search)
        template, models = judge.template, models.take(index)
        moved = (template.flatten(self.search.squares) > 0).sum(1)
        moved_count = int(moved.max()) if len(moved) else 0
        models = models.rounded(template, 1, (GATE,))
        rounding = torch.zeros_like(models.start)
        held = template.kind == GATE
        return Refining.begin(judge, self.number + 1, moved_count, models, held, rounding)


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
        holdout_error = judge.holdout_error(models, self.kind, first)
        survivors = judge.survivors(models, holdout_error, second, self.number)
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
        return Settling.begin(
            judge,
            self.number + 1,
            self.moved,
            Population.concatenate(starts),
            torch.cat(held),
            torch.cat(rounding),
        )


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
        judge.pool = judge.pool.add(unrounded, self.kind, 0, base[plain], base[plain], 1)
        judge.holdout_errors[unrounded.problem, unrounded.start] = base[plain]
        base = judge.holdout_errors[models.problem, models.start]
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


# ---- the fit -------------------------------------------------------------------------------------

STATE_FORMAT = 5  # of a saved state; its number changes with the entries or their meaning
LATER = ("signs", "validation")  # fits after a fit, which are saved with it


def _checked_seeds(function: str, seeds: Sequence[int], problems: int) -> list[int]:
    """Return the seeds, one for each problem."""
    if isinstance(seeds, str) or not isinstance(seeds, Sequence):
        got = type(seeds).__name__
        raise TypeError(f"{function}: seeds must be a sequence of integers, got {got}")
    if len(seeds) != problems or not all(is_whole(s) and s >= 0 for s in seeds):
        rule = f"{problems} integers of at least 0, one per problem"
        raise ValueError(f"{function}: seeds must be {rule}, got {seeds!r}")
    return [int(seed) for seed in seeds]


class FitJob:
    """A fit of several problems in progress.

    Args:
        model: layers whose num_models is the number of problems times the number of random
            initialisations per problem; the models of the first problem come first.
        x, y: ``[problems, N, I]``, ``[problems, N, O]``.
        seeds: one seed per problem, for its initialisations, its held-out rows and the order of the
            other rows.
        recipe: the settings.
        function: name of the calling function, for messages.

    `done` of `total` rounds were made; `advance` makes more; `result` returns the best models.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        seeds: Sequence[int],
        recipe: Recipe | None = None,
        function: str = "fit_batch",
    ) -> None:
        self.function = function
        self.recipe = recipe = Recipe() if recipe is None else recipe
        if not isinstance(recipe, Recipe):
            how = "; Recipe(**recipe) makes one" if isinstance(recipe, dict) else ""
            got = type(recipe).__name__
            raise TypeError(f"{function}: recipe must be a Recipe, got {got}{how}")
        self.template = template = Template(function, model, recipe)
        check(function, x, y, 3)
        self.problems, self.seeds = len(x), _checked_seeds(function, seeds, len(x))
        starts, rest = divmod(template.num_models, self.problems)
        if rest or not starts:
            rule = f"a multiple of the number of problems, {self.problems}"
            raise ValueError(f"{function}: num_models must be {rule}, got {template.num_models}")
        self._dtypes = f"x {x.dtype}, y {y.dtype}, model {template.dtype}"
        x, y, dtype = x.to(template.device), y.to(template.device), y.dtype
        self.scale = Scale(template, x, y)
        x, y = self.scale.divided(x, y)
        self.data = Data.split(x, y, self.seeds, recipe, template.device)
        self.judge = judge = Judge(template, recipe, self.data, self.scale, starts, dtype)
        generators = [stream("start", seed) for seed in self.seeds]
        tensors = template.start(generators, starts, recipe)
        template.project_(tensors)
        search = Search(template, recipe, self.data.training, tensors, starts)
        self._check_output(search)

        self._rounds = rounds_of(judge)
        self.total, self.done = sum(self._rounds), 0
        self.stage: Stage | None = Searching(judge, 0, search)
        self._stage_done = 0  # rounds of the stage
        self.rows = torch.zeros(self.problems, dtype=torch.long, device=template.device)
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.later: dict[str, FitJob] = {}  # of `LATER`
        self.saved_later: dict[str, dict[str, Any]] = {}  # their states in a file, not yet read

    def _check_output(self, search: Search) -> None:
        function, rows = self.function, search.rows
        first = chain(self.template.model)[0][1]
        columns, models = rows.x.shape[2], len(search.problem)
        if isinstance(first, BaseLayer) and columns != first.in_features:
            rule = f"last dimension {first.in_features} (in_features of model)"
            raise ValueError(f"{function}: x must have {rule}, got {columns}")
        x = rows.x[:1, :2].expand(models, -1, -1)[:, [0, -1]]
        try:
            with torch.no_grad():
                y = self.template(search.tensors, x)
        except (ValueError, TypeError, RuntimeError) as error:
            rule = f"model must take x with {columns} columns"
            raise ValueError(f"{function}: {rule}, got {error}") from error
        shape, outputs = tuple(y.shape) if isinstance(y, Tensor) else (), rows.y.shape[2]
        if shape[:2] != (models, 2) or len(shape) != 3:
            rule = "model must give (num_models, rows, out_features)"
            raise ValueError(f"{function}: {rule}, got shape {shape} for 2 rows")
        if shape[2] != outputs:
            rule = f"y must have last dimension {shape[2]}, as the model's"
            raise ValueError(f"{function}: {rule}, got {outputs}")

    # ---- progress --------------------------------------------------------------------------------

    @property
    def alive(self) -> int:
        """The number of models that are still in training."""
        return 0 if self.stage is None else self.stage.alive

    @property
    def solved(self) -> Tensor:
        """Whether each problem is solved ``[problems]``."""
        return self.judge.solved

    @torch.no_grad()
    def advance(self, rounds: int) -> None:
        """Make this many rounds, or fewer if the fit ends earlier.

        A round is one step of Adam, or one L-BFGS evaluation, of all models.
        """
        rounds = check_whole(self.function, "rounds", rounds, 0)
        begin = time.perf_counter()
        with torch.autocast(self.template.device.type, enabled=False):
            self._advance(rounds)
        self.seconds += time.perf_counter() - begin

    def _advance(self, rounds: int) -> None:
        while self.stage is not None and (rounds > 0 or not self.stage.rounds):
            remaining, count = self.stage.rounds - self._stage_done, 0
            if remaining > 0:
                limit = min(rounds, remaining)
                count, rows = self.stage.advance(self._stage_done, limit)
                self.rows += rows
            rounds -= max(count, 1)
            count = count or remaining  # no model of the stage is running
            self._stage_done += count
            self.done += count
            if self._stage_done == self.stage.rounds:
                self._end_stage(self.stage)

    def _end_stage(self, stage: Stage) -> None:
        self.stage, self._stage_done = stage.end(), 0
        best = self.judge.pool.best(self.problems)
        self.history.append(
            {
                "stage": stage.number + 1,
                "rounds": self.done,
                "models": (self.stage or stage).alive,
                "solved": int(self.solved.sum()),
                "best": float(best.min()) if len(best) else math.inf,
                "worst": float(best.max()) if len(best) else math.inf,
                "rows": int(self.rows.sum()),
            }
        )
        if self.stage is None:
            self.judge.add_with_fewer_units()

    # ---- results ---------------------------------------------------------------------------------

    @torch.no_grad()
    def note(self) -> str:
        """Return the text that the progress display shows after the time."""
        best = f", error {self.history[-1]['worst']:.1e}" if self.history else ""
        solved = f", {int(self.solved.sum())} of {self.problems} solved"
        return f"{self.alive} models{best}{solved if self.problems > 1 else ''}"

    def result(self) -> BatchFitResult:
        """Return the best models so far."""
        judge, pool = self.judge, self.judge.pool
        if self.stage is not None:
            models = self.stage.population()
            holdout_error = judge.errors(models)
            pool = pool.add(models, self.stage.kind, 0, holdout_error, holdout_error, 1)
        flat, chosen = judge.choose(pool)
        problem = torch.arange(self.problems, device=flat.device)
        module = self.template.build(self.scale.original(flat, problem))
        self.scale.finish(module)
        return BatchFitResult(
            models=module,
            # Of the module: its dtype has another eps and another rounding than float64.
            losses=self.scale.holdout_error(module, self.data.held_out).cpu(),
            init_losses=judge.holdout_errors.cpu(),
            n_stages=judge.retired.cpu(),
            n_steps=self.rows.cpu().double() / self.recipe.batch_size,
            n_rows=self.rows.cpu(),
            chosen=chosen,
            candidates=pool.listed(self.problems),
            history=list(self.history),
            seconds=self.seconds,
            complete=self.stage is None,
        )

    @torch.no_grad()
    def error_of(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the best models' mean squared errors ``[problems]`` on other rows.

        The errors are weighted as in the loss.
        """
        device = self.template.device
        x, y = self.scale.divided(x.to(device), y.to(device))
        rows = self.data.weighted(x, y, self.recipe)
        return self.scale.holdout_error(self.result().models, rows)

    # ---- fits after this one ---------------------------------------------------------------------

    def follow(self, name: str, run: FitJob, file: Checkpoint | None) -> None:
        """Save a later fit together with this one. If the file has its state, continue from it."""
        if file is not None and name in self.saved_later:
            try:
                run.restore(self.saved_later[name])
            except ValueError as error:
                raise file.refused(error) from None
        self.later[name] = run

    def all_seconds(self) -> float:
        """Return the seconds of this fit and of all later fits."""
        return self.seconds + sum(run.all_seconds() for run in self.later.values())

    # ---- saved and continued ---------------------------------------------------------------------

    @functools.cached_property
    def fingerprint(self) -> dict[str, str]:
        """The facts that decide the numbers."""
        pairs = [self.scale.restored(rows) for rows in (self.data.training, self.data.held_out)]
        return fingerprint(
            format=str(STATE_FORMAT),
            model=described(self.template.model, BaseLayer),
            dtypes=self._dtypes,
            device=self.template.device.type,
            seeds=repr(self.seeds),
            data=digest(*(tensor for pair in pairs for tensor in pair)),
            **{f"recipe.{name}": repr(value) for name, value in asdict(self.recipe).items()},
        )

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, in tensors and numbers."""
        stage = self.stage
        return {
            "fingerprint": self.fingerprint,
            "done": self.done,
            "stage": len(self._rounds) if stage is None else stage.number,
            "stage_done": self._stage_done,
            "moved": 0 if stage is None else stage.moved,
            "rows": self.rows,
            "history": self.history,
            "seconds": self.seconds,
            "judge": self.judge.state(),
            "search": stage.search.state() if isinstance(stage, Searching) else None,
            "refinement": stage.refinement.state() if isinstance(stage, Refining) else None,
            **{name: self.saved_later.get(name) for name in LATER},
            **{name: run.state() for name, run in self.later.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; raise ValueError if it is invalid or of another fit.

        An error changes nothing.
        """
        if not isinstance(state, dict) or "fingerprint" not in state:
            raise ValueError("it is no state of a fit: without fingerprint")
        check_same(state["fingerprint"], self.fingerprint)
        form: dict[str, Any] = dict.fromkeys(self.state())
        state = like(state, form | {"done": 0, "stage": 0, "rows": self.rows})
        stage = self._restored_stage(state, state["stage"])
        self.judge.restore(state["judge"])
        self.stage, self._stage_done, self.done = stage, state["stage_done"], state["done"]
        self.rows, self.history, self.seconds = state["rows"], state["history"], state["seconds"]
        self.saved_later = {name: state[name] for name in LATER if state[name] is not None}

    def _restored_stage(self, state: dict[str, Any], number: int) -> Stage | None:
        judge, template, rungs = self.judge, self.template, len(self.recipe.rungs)
        if number == len(self._rounds):
            return None
        if number < rungs:
            rows = self.data.training
            search = Search.restored(template, self.recipe, rows, state["search"])
            return Searching(judge, number, search)
        rows = refining_rows(judge, number, state["moved"])
        refinement = Refinement.restored(template, rows, state["refinement"])
        return (Settling if number > rungs else Refining)(judge, number, state["moved"], refinement)
