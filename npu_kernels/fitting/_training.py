"""Models in training: many starts by Adam, the finalists by L-BFGS in float64."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from npu_kernels._common.checks import stream
from npu_kernels._jobs.checkpoint import like
from npu_kernels.fitting._data import Rows
from npu_kernels.fitting._population import Population, Template
from npu_kernels.fitting._recipe import Recipe
from npu_kernels.optim import Adam
from npu_kernels.optim.lbfgs import LBFGS, Status
from npu_kernels.training._run import loop_for
from npu_kernels.training._steps import Loop

BETAS, EPS = (0.9, 0.99), 1e-8
LAST_RATE = 0.05  # of the first, at the end of a stage
SAMPLED_STEPS = 64  # whose rows are drawn at once
GATHERED_NUMBERS = 2**22  # of rows of all models at once where several problems have other rows


def falling(step: int, steps: int) -> float:
    """Return the share of the first rate at a step (from 0) of a stage."""
    return LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * step / steps)) / 2


class Search:
    """Models in training by Adam: their parameters, moments, problems and starts.

    An entry of a gradient that is not finite makes no step.

    Args:
        template, recipe: of the fit.
        rows: for the training.
        tensors: the parameters, ``[K, ...]`` each; a problem's starts come one after the other.
        starts: of each problem.
    """

    def __init__(
        self, template: Template, recipe: Recipe, rows: Rows, tensors: list[Tensor], starts: int
    ) -> None:
        self.template, self.recipe, self.rows = template, recipe, rows.to(template.dtype)
        index = torch.arange(len(tensors[0]), device=template.device)
        self.tensors = tensors
        self.moments = [torch.zeros_like(t) for t in tensors]
        self.squares = [torch.zeros_like(t) for t in tensors]
        self.problem, self.start = index // starts, index % starts
        self.step = 0
        self._block, self._drawn = -1, torch.empty(0)

    def keep(self, index: Tensor) -> None:
        """Go on with the models of an index ``[A]`` only."""
        for tensors in (self.tensors, self.moments, self.squares):
            tensors[:] = [t[index] for t in tensors]
        self.problem, self.start = self.problem[index], self.start[index]

    def _row_indices(self, limit: int) -> Tensor:
        """Return the rows of the next steps ``[steps, B]``, the same for all problems.

        A problem's order of the rows is its seed's.
        """
        block, index = divmod(self.step, SAMPLED_STEPS)
        if block != self._block:
            count, generator = self.rows.x.shape[1], stream("rows", 0, block)
            shape = (SAMPLED_STEPS, min(count, self.recipe.batch_size))
            drawn = torch.randint(count, shape, generator=generator)
            self._block, self._drawn = block, drawn.to(self.template.device)
        return self._drawn[index : index + limit]

    def advance(self, rung: int, first: int, steps: int, limit: int = 1) -> int:
        """Make steps of a stage; return their number.

        Args:
            rung: the index of the stage.
            first: the index of the first step in the stage.
            steps: of the stage.
            limit: the largest number of steps.
        """
        tensors = self.rows.x, self.rows.y, self.rows.weight
        if len(self.rows.x) == 1:
            chosen = self._row_indices(limit)
            x, y, weight = (t[0].contiguous() for t in tensors)
        else:
            numbers = sum(t.shape[2] for t in tensors) * self.recipe.batch_size * len(self.problem)
            drawn = self._row_indices(min(limit, max(1, GATHERED_NUMBERS // numbers)))
            x, y, weight = (t[:, drawn.flatten()][self.problem] for t in tensors)
            chosen = torch.arange(drawn.numel(), device=drawn.device).view_as(drawn)
        count = len(chosen)
        rates = [self.recipe.lr * 0.5**rung * falling(first + n, steps) for n in range(count)]
        loop = self._loop(x, y, weight, count)
        loop.advance(0, chosen, torch.tensor([rates], dtype=torch.float64))
        self.step += count
        return count

    def _loop(self, x: Tensor, y: Tensor, weight: Tensor, steps: int) -> Loop:
        """Return the loop that makes the steps, in C++ where it can."""
        module = self.template.module(self.tensors).requires_grad_()
        optimizer = Adam(module.parameters(), 1.0, BETAS, EPS)
        states = zip(self.template.names, self.moments, self.squares, strict=True)
        for name, moment, square in states:
            state = {"step": torch.tensor(float(self.step), dtype=torch.float32)}
            state |= {"exp_avg": moment, "exp_avg_sq": square}
            optimizer.state[module.get_parameter(name)] = state
        kind, _ = loop_for(module, optimizer, [x])
        return kind(
            model=module,
            models=len(self.problem),
            optimizer=optimizer,
            x=x,
            y=y,
            weight=weight,
            penalties=(),
            gates=False,
            bound=None,
            finite=True,
            losses=x.new_empty(1, len(self.problem)),
            every=steps,
            intervals=dict(zip(self.template.names, self.template.intervals, strict=True)),
        )

    def flat(self) -> Tensor:
        """Return the parameters ``[A, P]`` in float64."""
        return self.template.flatten(self.tensors).double()

    def state(self) -> dict[str, Any]:
        return {
            "tensors": self.tensors,
            "moments": self.moments,
            "squares": self.squares,
            "problem": self.problem,
            "start": self.start,
            "step": self.step,
        }

    @classmethod
    def restored(cls, template: Template, recipe: Recipe, rows: Rows, state: Any) -> Search:
        """Return the search of a state; ValueError for a wrong one."""
        none = torch.empty(0, len(template.kind), dtype=template.dtype, device=template.device)
        result = cls(template, recipe, rows, template.unflatten(none), 1)
        state = like(state, result.state(), "search")
        result.tensors, result.moments = state["tensors"], state["moments"]
        result.squares, result.step = state["squares"], state["step"]
        result.problem, result.start = state["problem"], state["start"]
        return result


LOSS_SCALE = 1e8  # L-BFGS drops pairs with y s below 1e-10, which a loss near 0 would have early
HISTORY = 20  # pairs of L-BFGS


class Refinement:
    """Models in training by L-BFGS.

    Args:
        template, rows: of the fit.
        models: where the training begins.
        held: the parameters that stay as they are ``[A, P]``.
        rounding: the denominator of each model's fractions ``[A]``, 0 for none.
    """

    def __init__(
        self, template: Template, rows: Rows, models: Population, held: Tensor, rounding: Tensor
    ) -> None:
        self.template, self.rows, self.held, self.rounding = template, rows, held, rounding
        # Clamped weights have no gradient outside of their interval: start inside.
        self.models = models.projected(template)
        options: dict[str, Any] = {"history_size": HISTORY, "max_iterations": 2**31}
        options |= {"gradient_tolerance": 1e-6, "max_line_search": 15}
        self.solver = LBFGS(self._closure, self.models.flat, **options)

    def _closure(self, points: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        rows, problem = self.rows, self.models.problem[active]
        if len(rows.x) > 1:
            x, y, weight = (t[problem] for t in (rows.x, rows.y, rows.weight))
        else:
            x, y, weight = rows.x[0], rows.y, rows.weight
        tensors = [t.requires_grad_() for t in self.template.unflatten(points.detach())]
        with torch.enable_grad():
            result = self.template(tensors, x)
        error = result.detach() - y
        weighted = error * weight
        loss = (error * weighted).mean((1, 2)) * LOSS_SCALE
        factor = 2 * LOSS_SCALE / (y.shape[1] * y.shape[2])
        weighted.mul_(factor)
        with torch.enable_grad():  # a sum of products: torch imports sympy to check grad_outputs
            total = (result * weighted).sum()
        grads = torch.autograd.grad(total, tensors, allow_unused=True)
        flat = self.template.flatten(
            [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, grads, strict=True)]
        )
        return loss, flat.masked_fill(self.held[active], 0.0)

    def advance(self) -> bool:
        """Evaluate every running model once; return False when none is running."""
        return self.solver.round()

    def drop(self, problems: Tensor) -> None:
        """End the models of problems ``[n]``."""
        dropped = torch.isin(self.models.problem, problems)
        dropped &= self.solver.status == Status.RUNNING
        self.solver.status[dropped] = int(Status.EVALUATIONS)

    def population(self) -> Population:
        """Return the models, in their intervals; where they began if they were not finite there."""
        return self.models.at(self.solver.x.clone()).projected(self.template)

    def state(self) -> dict[str, Any]:
        return {
            "start": self.models.flat,
            "problem": self.models.problem,
            "origin": self.models.start,
            "held": self.held,
            "rounding": self.rounding,
            "solver": self.solver.state_dict(),
        }

    @classmethod
    def restored(cls, template: Template, rows: Rows, state: Any) -> Refinement:
        """Return the refinement of a state; ValueError for a wrong one."""
        none = torch.empty(0, len(template.kind), dtype=torch.float64, device=template.device)
        index = template.kind[:0]
        form = {"start": none, "problem": index, "origin": index, "held": none.bool()}
        state = like(state, form | {"rounding": index, "solver": None}, "refinement")
        models = Population(state["start"], state["problem"], state["origin"])
        result = cls(template, rows, models, state["held"], state["rounding"])
        result.solver.load_state_dict(state["solver"])
        return result
