"""L-BFGS in float64 for a batch of models of which some parameters are held."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from npu_kernels._jobs import saved
from npu_kernels.fitting._batch import Template
from npu_kernels.fitting._data import Rows
from npu_kernels.optim.lbfgs import LBFGS, Status

SCALE = 1e8  # of the loss: L-BFGS drops pairs with y s below 1e-10, which come early when the loss goes to 0
HISTORY = 20


class Refinement:
    """K models under way from flat ``[K, P]`` float64, the entries of `held` ``[K, P]`` where they are."""

    def __init__(
        self, template: Template, rows: Rows, flat: Tensor, held: Tensor, problem: Tensor
    ) -> None:
        self.template, self.rows, self.held, self.problem = template, rows, held, problem
        # Clamped weights have no gradient outside of their interval: start inside.
        tensors = template.unflatten(flat)
        template.project_(tensors)
        self.start = template.flatten(tensors)
        self.solver = LBFGS(
            self._closure,
            self.start,
            history=HISTORY,
            max_iterations=2**31,
            gradient_tolerance=1e-6,
            max_line_search=15,
        )

    def _closure(self, points: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        which = self.problem[active]
        if len(self.rows.x) > 1:
            x, y, weight = (t[which] for t in (self.rows.x, self.rows.y, self.rows.weight))
        else:
            x, y, weight = self.rows.x[0], self.rows.y, self.rows.weight
        tensors = [t.requires_grad_() for t in self.template.unflatten(points.detach())]
        with torch.enable_grad():
            result = self.template(tensors, x)
        error = result.detach() - y
        weighted = error * weight
        loss = (error * weighted).mean((1, 2)) * SCALE
        factor = 2 * SCALE / (y.shape[1] * y.shape[2])
        grads = torch.autograd.grad(result, tensors, weighted.mul_(factor), allow_unused=True)
        flat = self.template.flatten(
            [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, grads, strict=True)]
        )
        return loss, flat.masked_fill(self.held[active], 0.0)

    def advance(self) -> bool:
        """One evaluation of every running model; False when none is."""
        return self.solver.round()

    def drop(self, problems: Tensor) -> None:
        """End the models of these problems ``[n]``."""
        gone = torch.isin(self.problem, problems) & (self.solver.status == Status.RUNNING)
        self.solver.status[gone] = int(Status.EVALUATIONS)

    def flat(self) -> Tensor:
        """The parameters ``[K, P]``, in their intervals; where they started if they were not finite there."""
        tensors = self.template.unflatten(self.solver.x.clone())
        self.template.project_(tensors)
        return self.template.flatten(tensors)

    def evaluations(self) -> Tensor:
        """Of each model ``[K]``."""
        return self.solver.evaluations

    def state(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "held": self.held,
            "problem": self.problem,
            "solver": self.solver.state_dict(),
        }

    @classmethod
    def restored(cls, template: Template, rows: Rows, state: Any, problems: int) -> Refinement:
        """One of a state; ValueError for a wrong one."""
        saved.record(state, "refinement", ("start", "held", "problem", "solver"))
        device, count = template.device, len(template.kind)
        start = saved.tensor(
            state["start"], "refinement's start", (None, count), torch.float64, device
        )
        held = saved.tensor(state["held"], "refinement's held", start.shape, torch.bool, device)
        owners = (state["problem"], "refinement's problem", (len(start),), torch.long, device)
        result = cls(template, rows, start, held, saved.tensor(*owners, 0, problems - 1))
        result.solver.load_state_dict(state["solver"])
        return result
