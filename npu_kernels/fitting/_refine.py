"""L-BFGS in float64 for a batch of models of which some parameters are held."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from npu_kernels._jobs import saved
from npu_kernels.fitting._batch import Population, Template
from npu_kernels.fitting._data import Rows
from npu_kernels.optim.lbfgs import LBFGS, Status

LOSS_SCALE = (
    1e8  # L-BFGS drops pairs with y s below 1e-10, which come early when the loss goes to 0
)
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
        self.solver = LBFGS(
            self._closure,
            self.models.flat,
            history=HISTORY,
            max_iterations=2**31,
            gradient_tolerance=1e-6,
            max_line_search=15,
        )

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
        grads = torch.autograd.grad(result, tensors, weighted.mul_(factor), allow_unused=True)
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
            "held": self.held,
            "problem": self.models.problem,
            "solver": self.solver.state_dict(),
        }

    @classmethod
    def restored(
        cls,
        template: Template,
        rows: Rows,
        state: Any,
        problems: int,
        start: Tensor,
        rounding: Tensor,
    ) -> Refinement:
        """Return the refinement of a state; ValueError for a wrong one."""
        saved.record(state, "refinement", ("start", "held", "problem", "solver"))
        device, shape = template.device, (len(start), len(template.kind))
        flat = saved.tensor(state["start"], "refinement's start", shape, torch.float64, device)
        held = saved.tensor(state["held"], "refinement's held", shape, torch.bool, device)
        owners = (state["problem"], "refinement's problem", shape[:1], torch.long, device)
        models = Population(flat, saved.tensor(*owners, 0, problems - 1), start)
        result = cls(template, rows, models, held, rounding)
        result.solver.load_state_dict(state["solver"])
        return result
