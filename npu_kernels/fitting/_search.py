"""Many starts under Adam, all problems and starts in one batch of models."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from npu_kernels._common.seeds import stream
from npu_kernels._jobs import saved
from npu_kernels.fitting._batch import Template
from npu_kernels.fitting._data import Rows
from npu_kernels.fitting._recipe import Recipe
from npu_kernels.optim import Adam
from npu_kernels.training._plan import Loop
from npu_kernels.training._runs import loop_for

BETAS, EPS = (0.9, 0.99), 1e-8
LAST_RATE = 0.05  # of the first, at the end of a stretch
BLOCK = 64  # steps whose rows are drawn at once
MOST_NUMBERS = (
    2**22
)  # of rows that are brought together at once where problems have rows of their own


def falling(at: int, steps: int) -> float:
    """The share of the first rate at a step (from 0) of a stretch."""
    return LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * at / steps)) / 2


class Search:
    """Models under Adam: their parameters, moments, and which problem and start each is.

    A model whose gradient is not finite makes no step of that entry; what becomes of it shows when it is scored.
    """

    _STATE = ("tensors", "moments", "squares", "problem", "start", "step")

    def __init__(
        self, template: Template, recipe: Recipe, tensors: list[Tensor], starts: int
    ) -> None:
        self.template, self.recipe = template, recipe
        models, device = len(tensors[0]), template.device
        self.tensors = tensors
        self.moments = [torch.zeros_like(t) for t in tensors]
        self.squares = [torch.zeros_like(t) for t in tensors]
        self.problem = torch.arange(models, device=device) // starts
        self.start = torch.arange(models, device=device) % starts
        self.step = 0
        self._block, self._drawn = -1, torch.empty(0)

    def keep(self, index: Tensor) -> None:
        """Go on with these models only ``[A]``."""
        for tensors in (self.tensors, self.moments, self.squares):
            tensors[:] = [t[index] for t in tensors]
        self.problem, self.start = self.problem[index], self.start[index]

    def _rows(self, count: int, most: int) -> Tensor:
        """The rows of the next steps ``[steps, B]``, the same for all problems, whose own order is their seed's."""
        block, index = divmod(self.step, BLOCK)
        if block != self._block:
            generator = stream("rows", 0, block)
            drawn = torch.randint(
                count, (BLOCK, min(count, self.recipe.batch)), generator=generator
            )
            self._block, self._drawn = block, drawn.to(self.template.device)
        return self._drawn[index : index + most]

    def advance(self, rows: Rows, rung: int, at: int, steps: int, most: int = 1) -> int:
        """Make steps of a stretch, on rows in the models' dtype; returns how many.

        Args:
            at: the first of them (from 0).
            steps: of the whole stretch.
            most: that many at most.
        """
        tensors = rows.x, rows.y, rows.weight
        if len(rows.x) == 1:
            chosen = self._rows(rows.x.shape[1], most)
            x, y, weight = (t[0].contiguous() for t in tensors)
        else:
            numbers = sum(t.shape[2] for t in tensors) * self.recipe.batch * len(self.problem)
            drawn = self._rows(rows.x.shape[1], min(most, max(1, MOST_NUMBERS // numbers)))
            x, y, weight = (t[:, drawn.flatten()][self.problem] for t in tensors)
            chosen = torch.arange(drawn.numel(), device=drawn.device).view_as(drawn)
        made = len(chosen)
        rates = [self.recipe.rate * 0.5**rung * falling(at + n, steps) for n in range(made)]
        self._loop(x, y, weight, made).advance(
            0, chosen, torch.tensor([rates], dtype=torch.float64)
        )
        self.step += made
        return made

    def _loop(self, x: Tensor, y: Tensor, weight: Tensor, steps: int) -> Loop:
        """What makes the steps: `training.run`'s, in C++ where it can."""
        module = self.template.module(self.tensors)
        optimizer = Adam(module.parameters(), 1.0, BETAS, EPS)
        for name, *state in zip(self.template.names, self.moments, self.squares, strict=True):
            number = torch.tensor(float(self.step))
            optimizer.state[module.get_parameter(name)] = {
                "step": number,
                "exp_avg": state[0],
                "exp_avg_sq": state[1],
            }
        kind, _ = loop_for(module, optimizer, x)
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
        """The parameters ``[A, P]`` in float64."""
        return self.template.flatten(self.tensors).double()

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._STATE}

    @classmethod
    def restored(
        cls, template: Template, recipe: Recipe, state: Any, problems: int, starts: int, done: int
    ) -> Search:
        """One of a state; ValueError for a wrong one."""
        saved.record(state, "search", cls._STATE)
        places = [
            saved.tensor(
                state[name], f"search's {name}", (None,), torch.long, template.device, 0, count - 1
            )
            for name, count in (("problem", problems), ("start", starts))
        ]
        models = len(places[0])
        if len(places[1]) != models:
            raise ValueError(f"its search's start must have {models} numbers, got {len(places[1])}")
        result = cls(template, recipe, [torch.empty(0)], starts)
        for name in ("tensors", "moments", "squares"):
            parts = saved.sequence(state[name], f"search's {name}", len(template.shapes))
            tensors = [
                saved.tensor(
                    part, f"search's {name}", (models, *shape), template.dtype, template.device
                )
                for part, shape in zip(parts, template.shapes, strict=True)
            ]
            setattr(result, name, tensors)
        result.problem, result.start = places
        result.step = saved.integer(state["step"], "search's step", 0, done)
        return result
