"""The error of a fit to few rows on others: every row is predicted by a fit that has not seen it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from npu_kernels._common.seeds import stream
from npu_kernels.fitting._recipe import Recipe
from npu_kernels.fitting._run import Run
from npu_kernels.layers import Unit

FOLDS = 5


def cross_validated(
    model: nn.Module, x: Tensor, y: Tensor, seed: int, recipe: Recipe
) -> tuple[float, int]:
    """The weighted mean squared error of x ``[N, I]`` and y ``[N, O]``, N at least 4, and in how many parts.

    The rows are dealt to parts. For each of them a model is fitted to the rows of the others, with held-out rows of its
    own, all in one batch of models. Its errors have the weights of the rows that it was fitted to.
    """
    count = len(x)
    folds = min(FOLDS, count // 2)
    size = count // folds
    order = torch.randperm(count, generator=stream("folds", seed)).to(x.device)
    out = [order[size * k : size * (k + 1)] for k in range(folds)]
    rest = [order[~torch.isin(order, part)] for part in out]
    batch = copy.deepcopy(model)
    for unit in batch.modules():
        if isinstance(unit, Unit) and unit.num_models is not None:
            unit.num_models *= folds
    run = Run(
        batch,
        torch.stack([x[r] for r in rest]),
        torch.stack([y[r] for r in rest]),
        [seed] * folds,
        recipe,
        "fit",
    )
    run.advance(run.total)
    errors = run.error_of(
        torch.stack([x[part] for part in out]), torch.stack([y[part] for part in out])
    )
    return float(errors.mean()), folds
