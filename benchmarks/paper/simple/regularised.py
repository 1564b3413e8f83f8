"""The training of NMU, NAU and iNALU in the variant "paper", with what their authors add to a loss.

NMU -> NAU: the regulariser sum min(|w|, |1 - w|) of the paper's section 2.2. The text gives no
weight; here it grows from 0 at half of the steps to 0.01 at three quarters, the shares at which
Madsen and Johansen let theirs grow.

iNALU, after Schlör, Ring and Hotho 2020 and their published code: the gradients are clipped to
[-0.1, 0.1]; 0.05 mean max(20 - |w|, 0) draws every tensor away from 0 where a model's loss is
below 1 and a tenth of the steps is over; and a model starts anew from U(-2, 2) where its loss is
above 1 and did not fall within a tenth of the steps. Their code takes a second step for the
regulariser; here both gradients are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.paper.streams import stream
from benchmarks.paper.training import Buffer, Training

WHOLE_WEIGHT, WHOLE_FROM, WHOLE_FULL = 0.01, 0.5, 0.75
CLIP = 0.1
AWAY_WEIGHT, AWAY_BELOW = 0.05, 20.0
GOOD_LOSS = 1.0
CHECKS = 10  # of a training: whether a model starts anew
NEW_START = 2.0  # the end of the interval


def whole_weight(step: int, steps: int) -> float:
    """The weight of NMU's and NAU's regulariser at a step (from 1)."""
    grown = (step / steps - WHOLE_FROM) / (WHOLE_FULL - WHOLE_FROM)
    return WHOLE_WEIGHT * min(max(grown, 0.0), 1.0)


def whole(buffer: Buffer, grads: Sequence[Tensor], beta: Tensor) -> None:
    """``beta sum min(|w|, |1 - w|)``, a `Penalty`: the gradient of the nearer of 0 and 1."""
    for grad, view, total in zip(grads, buffer.views, buffer.grads, strict=True):
        gradient = torch.where(view.abs() < (1 - view).abs(), view.sign(), (view - 1).sign())
        torch.add(grad, gradient, alpha=float(beta), out=total)


def away_from_zero(buffer: Buffer, grads: Sequence[Tensor], beta: Tensor) -> None:
    """iNALU's regulariser, a `Penalty`, for the models whose beta is 1; clips the sums."""
    for grad, view, total in zip(grads, buffer.views, buffer.grads, strict=True):
        away = view.sign() * (view.abs() < AWAY_BELOW) * (AWAY_WEIGHT / view[0].numel())
        torch.sub(grad, away * beta.view(-1, *[1] * (view.dim() - 1)), out=total)
        total.clamp_(-CLIP, CLIP)


class INALUTraining(Training):
    """K iNALU models in training, each with its own new starts."""

    drawn: Tensor  # 1 for a model that is drawn away from 0 in this step

    def __init__(self, *arguments: Any, seeds: Sequence[int], **options: Any) -> None:
        options |= {"penalty": away_from_zero, "beta": lambda step: self.drawn}
        super().__init__(*arguments, **options)
        self._torchs = None  # `training.run` has no new starts
        self.seeds = seeds
        self.period = max(4, self.total // CHECKS)
        self.losses = self.buffer.flat.new_zeros(self.period, len(seeds))  # of the last steps
        self.drawn = self.losses[0]

    def _observe(self, step: int, error: Tensor) -> None:
        super()._observe(step, error)
        losses = error.square().mean((1, 2))
        self.losses[step % self.period] = losses
        self.drawn = ((losses < GOOD_LOSS) & (step > self.period)).to(losses)

    def _step(self, step: int) -> None:
        super()._step(step)
        if step % self.period == 0 and step < self.total:
            self._start_anew(step)

    @torch.no_grad()
    def _start_anew(self, step: int) -> None:
        """Draw the models whose loss is large and did not fall; their optimiser starts too."""
        earlier, later = self.losses.roll(-1, 0).split(self.period - self.period // 2)
        stuck = (earlier.mean(0) <= later.mean(0) + later.std(0)) & (later.mean(0) > GOOD_LOSS)
        states = [self.buffer.parts(flat) for flat in self.optimizer.state]
        for k in stuck.nonzero().flatten().tolist():
            generator = stream("iNALU new start", self.seeds[k], step)
            for view in self.buffer.views:
                draws = torch.rand(view.shape[1:], generator=generator)
                view[k] = draws * (2 * NEW_START) - NEW_START
            for parts in states:
                for part in parts:
                    part[k] = 0

    @property
    def _tensors(self) -> list[Tensor]:
        return [*super()._tensors, self.losses]
