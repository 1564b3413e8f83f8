"""What a fit gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Candidate:
    """A model that was considered in the end.

    kind: "raw" (as Adam left it), "refined" (gates 0 or 1, weights by L-BFGS), "powers" (powers rounded, the rest
    refitted) or "rounded" (all of it); denominator: 0 where nothing is rounded; start: which one; score: its held-out
    error; cost: how much more that is than its start's before rounding.
    """

    kind: str
    denominator: int
    start: int
    score: float
    cost: float


@dataclass(frozen=True)
class Fits:
    """The best models of all problems.

    models: one batch, `num_models` the number of problems. score ``[problems]``: held-out errors of these models, in
    their own dtype, in the loss's unit. scores ``[problems, starts]``: each start's when it was last scored.
    retired ``[problems, starts]``: after how many stages it was left behind. steps ``[problems]``: model-steps,
    gradients of `batch` rows for one model. rows ``[problems]``: rows that those gradients took. chosen: of each
    problem. candidates: of each problem. history: what each stage began with and found. seconds: of computing.
    complete: False if it was interrupted.
    """

    models: nn.Module
    score: Tensor
    scores: Tensor
    retired: Tensor
    steps: Tensor
    rows: Tensor
    chosen: Sequence[Candidate]
    candidates: Sequence[Sequence[Candidate]]
    history: Sequence[dict[str, Any]] = field(repr=False)
    seconds: float = 0.0
    complete: bool = True


@dataclass(frozen=True)
class Fit:
    """The best model, and how it was found.

    model: the model, without a model dimension; a single power unit whose law has a coefficient other than 1 has
    ``NAU(1, 1, clip=False)`` behind it. score: its held-out error in its own dtype, in the loss's unit. folds: 0, or
    where few rows are held out the number of parts in which the score is cross-validated. scores ``[starts]``: each
    start's when it was last scored. retired ``[starts]``: after how many stages it was left behind.
    steps: model-steps, gradients of `batch` rows for one model. rows: rows that those gradients took. chosen: the
    `Candidate` that was taken. candidates: all of them. history: what each stage began with and found. seconds: of
    computing. complete: False if it was interrupted.
    """

    model: nn.Module
    score: float
    scores: Tensor
    retired: Tensor
    steps: float
    rows: int
    chosen: Candidate
    candidates: Sequence[Candidate] = field(repr=False)
    history: Sequence[dict[str, Any]] = field(repr=False)
    seconds: float = 0.0
    complete: bool = True
    folds: int = 0
