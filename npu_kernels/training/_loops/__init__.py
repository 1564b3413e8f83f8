"""Loops of training steps, for `training.run` and `fit`.

steps.py       the ordinary loop, and the base of all loops
obstacles.py   why C++ cannot make the steps of a training
plan.py        the plan that C++ gets
records.py     the fields of a plan, which C++ has too
captured.py    steps by a CUDA graph
loss.py        the mean squared error
penalties.py   the penalties, and the schedule of their weights
projection.py  parameters back into their intervals
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from npu_kernels.training._loops import captured, obstacles
from npu_kernels.training._loops.captured import Captured
from npu_kernels.training._loops.plan import Fused
from npu_kernels.training._loops.steps import Loop, Ordinary

__all__ = ["Captured", "Fused", "Loop", "Ordinary", "loop_for"]


def loop_for(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, *data: Tensor
) -> tuple[type[Loop], str | None]:
    """Return the class of the fastest loop, and the reason if it is the ordinary one.

    data: y, and the weight of errors if there is one.
    """
    if x.is_cuda:
        reason = captured.obstacle(model, optimizer, x)
        return (Captured, None) if reason is None else (Ordinary, reason)
    reason = obstacles.obstacle(model, optimizer, x, *data)
    return (Fused, None) if reason is None else (Ordinary, reason)
