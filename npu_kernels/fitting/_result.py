"""What a fit returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Candidate:
    """A model that was considered in the end.

    Attributes:
        kind: "raw" (as Adam left it), "refined" (gates 0 or 1, weights by L-BFGS), "powers" (powers
            rounded, the rest refitted) or "rounded" (all of it).
        denominator: 0 where nothing is rounded.
        start: the index of its start.
        score: its held-out error.
        cost: its score less that of its start before rounding.
    """

    kind: str
    denominator: int
    start: int
    score: float
    cost: float


@dataclass(frozen=True)
class Fits:
    """The best models of all problems.

    Attributes:
        models: one batch, `num_models` the number of problems.
        score: held-out errors ``[problems]`` in the models' dtype and the loss's unit.
        scores: each start's error when it was last scored ``[problems, starts]``.
        retired: the number of stages that each start went through ``[problems, starts]``.
        steps: model-steps ``[problems]``, gradients of `batch` rows for one model.
        rows: rows ``[problems]`` that those gradients took.
        chosen: of each problem.
        candidates: of each problem.
        history: numbers at the end of each stage.
        seconds: of computing.
        complete: False if the fit was interrupted.
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

    Attributes:
        model: without a model dimension; a single power unit whose law has a coefficient other than
            1 has ``NAU(1, 1, clip=False)`` behind it.
        score: its held-out error in its dtype, in the loss's unit.
        scores: each start's error when it was last scored ``[starts]``.
        retired: the number of stages that each start went through ``[starts]``.
        steps: model-steps, gradients of `batch` rows for one model.
        rows: rows that those gradients took.
        chosen: the candidate that the model is.
        candidates: all of them.
        history: numbers at the end of each stage.
        seconds: of computing.
        complete: False if the fit was interrupted.
        folds: the parts in which few rows' score is cross-validated; 0: the score is not.
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
