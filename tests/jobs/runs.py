"""A short training with a checkpoint, whose settings tests change."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from npu_kernels import NAU, NPU
from npu_kernels.training import SteppedSchedule, run

X = torch.rand(30, 2, generator=torch.Generator().manual_seed(0)) + 0.5
Y = torch.stack([X.prod(1), X[:, 0] / X[:, 1]], 1)


def chain(**options: Any) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(NPU(2, 3, **options), NAU(3, 2))


def trained(path: Path | None, end_at: int | None = None, **change: Any) -> Any:
    """A run of 60 steps, with some of its settings changed."""
    model = change.pop("model", None) or chain()
    settings: dict[str, Any] = {
        "steps": 60, "lr": 0.01, "batch_size": 8, "callback_every": 10, "progress": False,
        "generator": torch.Generator().manual_seed(3),
        "penalties": {"l1": SteppedSchedule(1e-3, 1.0, step=15), "madsen": 0.1},
    }  # fmt: skip
    settings |= change
    x, y = settings.pop("x", X), settings.pop("y", Y)
    if (make := settings.pop("make", None)) is not None:
        settings["optimizer"] = make(model.parameters())
    callbacks = [*settings.pop("callbacks", []), lambda part: part.n_steps == end_at]
    return run(model, x, y, checkpoint=path, callbacks=callbacks, **settings)
