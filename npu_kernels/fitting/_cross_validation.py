"""The error of a model that was chosen by few held-out rows: a cross-validation."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from npu_kernels._common.seeds import stream
from npu_kernels._jobs.checkpoint import Checkpoint
from npu_kernels._jobs.driver import drive
from npu_kernels.fitting._run import Run
from npu_kernels.layers import Unit

FEWEST_ROWS = 4  # of which a cross-validation can be made
FOLDS = 5  # parts of a cross-validation


def cross_validated(
    fit: Run,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    progress: bool | None,
    file: Checkpoint | None,
) -> tuple[float, int] | None:
    """Return the weighted mean squared error of x ``[N, I]``, y ``[N, O]``, and the parts' number.

    None after Ctrl-C. fit: the finished one, whose state holds that of the cross-validation from
    here on. file: that of the fit. N is at least 4. The rows are dealt to parts. For each part a
    model is fitted to the rows of the others, some of them held out, all in one batch of models.
    Its errors have the weights of the rows that it was fitted to.
    """
    count = len(x)
    folds = min(FOLDS, count // 2)
    size = count // folds
    order = torch.randperm(count, generator=stream("folds", *fit.seeds)).to(x.device)
    parts = [order[size * k : size * (k + 1)] for k in range(folds)]
    training_rows = [order[~torch.isin(order, part)] for part in parts]
    batch = copy.deepcopy(model)
    for unit in batch.modules():
        if isinstance(unit, Unit) and unit.num_models is not None:
            unit.num_models *= folds
    fitted_x, fitted_y = (torch.stack([t[rows] for rows in training_rows]) for t in (x, y))
    seeds = fit.seeds * folds
    run = Run(batch, fitted_x, fitted_y, seeds, fit.recipe, f"{fit.function}, cross-validation")
    fit.follow("validation", run, file)
    drive(run, progress, file, note=run.note)
    if run.stage is not None:
        return None
    x, y = (torch.stack([t[rows] for rows in parts]) for t in (x, y))
    return float(run.error_of(x, y).mean()), folds
