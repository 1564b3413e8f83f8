"""`fit`, its training helper."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_whole
from npu_kernels._common.notices import warn
from npu_kernels._jobs.checkpoints import drive
from npu_kernels.fitting._data import Batches, check, collect, table
from npu_kernels.fitting._recipe import Recipe
from npu_kernels.fitting._result import Fit, Fits
from npu_kernels.fitting._run import Run
from npu_kernels.fitting._scale import with_coefficient, without_coefficient
from npu_kernels.fitting._validation import cross_validated
from npu_kernels.formula import select

ROWS = 2048  # taken from batches
FEW = 5  # held-out rows below which their error says little
LEAST = 4  # rows of which a cross-validation can be made
HELD_ENOUGH = 10  # held-out rows from which on their error is the score
SPOILT = 1e-3  # error in float32 that is warned of where it is small in float64


def fit(
    model: nn.Module,
    x: Any | Batches,
    y: Any = None,
    *,
    seed: int = 0,
    recipe: Recipe | None = None,
    rows: int = ROWS,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Fit:
    """Train a batch of models from many starts, and give the best one.

    Many short starts in one batch, some of them wide enough to lie beyond the barriers of the power units'
    cosine. Gates are projected to [0, 1]. The best starts are refined by L-BFGS in float64 and rounded to simple
    fractions. Where the last layer is an NAU, its weights are then solved by least squares, and units that it does not
    need leave. The model is chosen by its error on held-out rows. The numbers depend on the arguments alone, not on
    global random states.

    Units: x and y may have any, from 1e-30 to 1e30, where a sum without clip can take up their size:
    ``NAU(clip=False)`` as the last layer for y, and for x behind a first `RealNPU` or as the first layer. A model that
    ends with a single power unit gets this layer for its coefficient; where the coefficient is 1 it is left out of the
    result. A first `NPU` or `NaiveNPU`, and layers with clipped weights, need data near 1. Coefficients are rounded
    only where the data are exact.

    Args:
        model: a module of this package's units (`torch.nn.Sequential(NPU(2, 6, num_models=64), ...)`); num_models is
            the number of starts. It is not changed; only the shapes, dtype and device of its parameters matter.
        x: rows ``[N, in_features]``: a float32 or float64 tensor, or a NumPy array or DataFrame of any numbers; or
            batches: an iterable of (x, y), or a function that makes one from a `torch.Generator`. Some rows are kept
            for choosing.
        y: targets ``[N, out_features]`` beside an x of rows; an array or Series may also be ``[N]``.
        seed: of the starts, the held-out rows and the order of the rows, at least 0.
        recipe: the settings, see `Recipe`.
        rows: how many are taken from batches; they are drawn once.
        progress: show how far it is and how long it will take, on stderr; None: if that is a terminal.
        checkpoint: a file. If it exists, the fit continues from it, with the same bits as without an interruption.
            It is kept up to date, and at the end holds the finished fit. Whether it can be written is checked first; if
            a later write fails, the fit warns and continues.

    Ctrl-C ends the fit, saves it if there is a checkpoint, and gives what was found until then (`complete` is False).

    Returns a `Fit`. Its score is the error of the held-out rows, by which the model was chosen; where fewer than 10 are
    held out, that of a cross-validation in up to 5 parts, each predicted by a fit of its own. Warns where fewer than 5
    rows are held out, and where float32 is too small for the model. Raises ValueError and
    TypeError for arguments that do not fit, ValueError for a checkpoint that is damaged or of another fit (other data,
    settings, dtype or versions), OSError for one that cannot be written.

        >>> import torch
        >>> from npu_kernels import RealNPU, fit
        >>> x = torch.rand(200, 2) + 1
        >>> found = fit(RealNPU(2, 1, num_models=32), x, x[:, :1] / x[:, 1:])
        >>> found.model.weight_re.tolist()
        [[1.0, -1.0]]
    """
    rows, seed = check_whole("fit", "rows", rows, 2), check_whole("fit", "seed", seed, 0)
    known, targets = _rows(x, y, rows, seed)
    check("fit", known, targets, 2)
    trained = with_coefficient(model)
    run = Run(trained, known.unsqueeze(0), targets.unsqueeze(0), [seed], recipe, "fit")
    found = _complete(run, progress, checkpoint)
    score, folds = float(found.score), 0
    if run.data.held_out.y.shape[1] < HELD_ENOUGH and found.complete and len(known) >= LEAST:
        score, folds = cross_validated(trained, known, targets, seed, run.recipe)
    _warn_of_score(run, score, folds)
    return Fit(
        model=without_coefficient(select(found.models, 0), model),
        score=score,
        folds=folds,
        scores=found.scores[0],
        retired=found.retired[0],
        steps=float(found.steps),
        rows=int(found.rows),
        chosen=found.chosen[0],
        candidates=found.candidates[0],
        history=found.history,
        seconds=found.seconds,
        complete=found.complete,
    )


def _rows(x: Any, y: Any, rows: int, seed: int) -> tuple[Any, Any]:
    """x and y as they were given, or rows of batches."""
    if isinstance(x, Tensor) or hasattr(x, "__array__"):
        if y is None:
            raise ValueError("fit: y must be given with an x of rows, got None")
        return table("fit", "x", x), table("fit", "y", y)
    if y is not None:
        raise TypeError(
            f"fit: x must be rows beside a y, got {type(x).__name__}; batches bring their own y"
        )
    return collect("fit", x, rows, seed)


def fit_many(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    seeds: Sequence[int] | None = None,
    recipe: Recipe | None = None,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Fits:
    """`fit` of many problems at once, as one batch of models.

    Args:
        model: a module of this package's units; num_models is problems * starts, a problem's starts one after the
            other. It is not changed; only the shapes, dtype and device of its parameters matter.
        x, y: ``[problems, N, in_features]`` and ``[problems, N, out_features]``.
        seeds: one per problem, 0, 1, ... unless given; a problem's starts and held-out rows are its own seed's.
        recipe: the settings, see `Recipe`.
        progress: show how far it is and how long it will take, on stderr; None: if that is a terminal.
        checkpoint: a file from which an interrupted fit continues, with the same bits; it is kept up to date.

    Returns `Fits`: the best model of each problem, in one batch. Raises ValueError and TypeError for arguments that do
    not fit, and for another fit's checkpoint.
    """
    check("fit_many", x, y, 3)
    run = Run(
        with_coefficient(model),
        x,
        y,
        list(range(len(x))) if seeds is None else seeds,
        recipe,
        "fit_many",
    )
    found = _complete(run, progress, checkpoint)
    _warn_of_score(run, float(found.score.max()), 0)
    return replace(found, models=without_coefficient(found.models, model))


# ---- the loop --------------------------------------------------------------------------------------------------------


def _complete(run: Run, progress: bool | None, checkpoint: str | os.PathLike[str] | None) -> Fits:
    drive(run, progress, checkpoint, note=lambda: _note(run))
    return run.result()


def _warn_of_score(run: Run, score: float, folds: int) -> None:
    """What a reader of the score should know."""
    held = run.data.held_out.y.shape[1]
    if held < FEW and not folds:
        warn(
            f"{run.function}: the score is that of {held} held-out row{'' if held == 1 else 's'}, which the model was "
            f"chosen by: it may be far too small; from {FEW} on it says more",
        )
    elif held < FEW:
        warn(
            f"{run.function}: {run.data.training.y.shape[1] + held} rows are few: the model was chosen by {held} of "
            f"them, and the score is cross-validated in {folds} parts, each predicted by a fit to the others",
        )
    best = float(run.pool.best(run.problems).max())
    if (
        run.template.dtype == torch.float32
        and best < math.inf
        and (score > SPOILT and best < score * 1e-4)
    ):
        warn(
            f"{run.function}: the model's error is {best:.1e} in float64 and {score:.1e} in its own float32, whose "
            "range is too small for the constants or powers of these units: fit model.double()",
        )


def _note(run: Run) -> str:
    best = f", error {run.history[-1]['worst']:.1e}" if run.history else ""
    solved = f", {int(run.solved.sum())} of {run.problems} solved" if run.problems > 1 else ""
    return f"{run.alive} models{best}{solved}"
