"""What a fit returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Candidate:
    """A model that was considered in the end."""

    #: "raw" (as Adam left it), "refined" (gates 0 or 1, weights by L-BFGS), "powers" (powers
    #: rounded, the rest refitted) or "rounded" (all of it)
    kind: str
    denominator: int  #: 0 where nothing is rounded
    start: int  #: the index of its start
    score: float  #: its held-out error
    cost: float  #: its score less that of its start before rounding


@dataclass(frozen=True)
class Fits:
    """The best models of all problems."""

    models: nn.Module  #: one batch, `num_models` the number of problems
    score: Tensor  #: held-out errors ``[problems]`` in the models' dtype and the loss's unit
    scores: Tensor  #: each start's error when it was last scored ``[problems, starts]``
    retired: Tensor  #: the number of stages that each start went through ``[problems, starts]``
    steps: Tensor  #: model-steps ``[problems]``, gradients of `batch` rows for one model
    rows: Tensor  #: rows ``[problems]`` that those gradients took
    chosen: Sequence[Candidate]  #: of each problem
    candidates: Sequence[Sequence[Candidate]]  #: of each problem
    history: Sequence[dict[str, Any]] = field(repr=False)  #: numbers at the end of each stage
    seconds: float = 0.0  #: of computing
    complete: bool = True  #: False if the fit was interrupted


@dataclass(frozen=True)
class Fit:
    """The best model, and how it was found."""

    #: without a model dimension; a single power unit whose law has a coefficient other than 1 has
    #: ``NAU(1, 1, clip=False)`` behind it
    model: nn.Module
    score: float  #: its held-out error in its dtype, in the loss's unit
    scores: Tensor  #: each start's error when it was last scored ``[starts]``
    retired: Tensor  #: the number of stages that each start went through ``[starts]``
    steps: float  #: model-steps, gradients of `batch` rows for one model
    rows: int  #: rows that those gradients took
    chosen: Candidate  #: the candidate that the model is
    candidates: Sequence[Candidate] = field(repr=False)  #: all of them
    history: Sequence[dict[str, Any]] = field(repr=False)  #: numbers at the end of each stage
    seconds: float = 0.0  #: of computing
    complete: bool = True  #: False if the fit was interrupted
    folds: int = 0  #: the parts in which few rows' score is cross-validated; 0: the score is not
