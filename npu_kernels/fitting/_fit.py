"""`fit` and `fit_batch`: the calls, their progress, and warnings about held-out errors."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_whole, stream, warn
from npu_kernels._jobs.checkpoint import Checkpoint
from npu_kernels._jobs.driver import drive
from npu_kernels.fitting._data import Batches, check, collect, table
from npu_kernels.fitting._population import Signs, with_coefficient, without_coefficient
from npu_kernels.fitting._recipe import BatchFitResult, FitResult, Recipe
from npu_kernels.fitting._run import FitJob
from npu_kernels.formula import select
from npu_kernels.layers import BaseLayer

MIN_ROWS = 4  # of which a cross-validation can be made
FOLDS = 5  # parts of a cross-validation


def cross_validated(
    fit: FitJob,
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
        if isinstance(unit, BaseLayer) and unit.num_models is not None:
            unit.num_models *= folds
    fitted_x, fitted_y = (torch.stack([t[rows] for rows in training_rows]) for t in (x, y))
    seeds = fit.seeds * folds
    run = FitJob(batch, fitted_x, fitted_y, seeds, fit.recipe, f"{fit.function}, cross-validation")
    fit.follow("validation", run, file)
    drive(run, progress, file, note=run.note)
    if run.stage is not None:
        return None
    x, y = (torch.stack([t[rows] for rows in parts]) for t in (x, y))
    return float(run.error_of(x, y).mean()), folds


# ---- the calls -----------------------------------------------------------------------------------

BATCHED_ROWS = 2048  # taken from batches
FEW_HELD_OUT = 5  # rows; the error of fewer says little
ENOUGH_HELD_OUT = 10  # rows whose error is not cross-validated
LARGE_ERROR = 1e-3  # in float32; a warning where the error is small in float64


@torch.inference_mode(False)
def fit(
    model: nn.Module,
    x: Any | Batches,
    y: Any = None,
    *,
    seed: int = 0,
    recipe: Recipe | None = None,
    rows: int = BATCHED_ROWS,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> FitResult:
    """Train a batch of models from many random initialisations, and return the best one.

    Many initialisations are trained for a short time in one batch. Gates are projected to the
    interval from 0 to 1. The best models are refined with L-BFGS in float64 and rounded to simple
    fractions. If the last layer is an NAU, its weights are then solved by least squares, and hidden
    units that it does not need are removed. The model is selected by its error on held-out rows.
    The result does not depend on torch's global random state, its default dtype, autocast or
    inference mode.

    Scales: if the last layer has one output and is an NPU, RealNPU or NaiveNPU, `fit` also
    estimates a factor of this output, and appends an ``NAU(1, 1, clip=False)`` with this factor
    unless it is 1. Data may have any scale from 1e-30 to 1e30

    - in y, if the last layer, or the appended one, is an ``NAU(clip=False)``;
    - in x, if the first layer is an ``NAU(clip=False)``, or a `RealNPU` directly followed
      by one.

    Otherwise (a first `NPU` or `NaiveNPU`, layers with clipped weights) they need a magnitude near
    1. Coefficients are rounded only if the data have no noise.

    Negative inputs: to learn the product of two negative inputs, weights of an NPU, RealNPU or
    NaiveNPU move from 0 to 1. On the way the sign factor ``cos(pi w)`` passes 0. Training rarely
    crosses this zero, so some initialisations begin beyond it. If the first layer is a `RealNPU` or
    `NPU` and no exact equation was found (exact up to rounding), a second fit has ``|x|`` and the
    signs of x as separate inputs. Its result is used if its error is at most ``1 + Recipe.slack``
    times that of the first fit, and if it equals a product of powers of x: inputs with negative
    values then have integer exponents, odd where the sign of the input is a factor, as in ``sign(x)
    |x|**3 = x**3``, else even.

    Args:
        model: a layer of this package or a `Sequential` of such layers (`torch.nn.Sequential(NPU(2,
            6, num_models=64), ...)`); num_models is the number of random initialisations. The model
            is not changed; only the shapes, dtype and device of its parameters are used.
        x: rows ``[N, in_features]``: a float32 or float64 tensor, or a NumPy array or DataFrame of
            any numbers; or batches: an iterable of pairs (x, y), or a function that makes a pair
            from a `torch.Generator`. Some rows are held out for model selection.
        y: targets ``[N, out_features]``; None if x is batches. An array or Series may also be
            ``[N]``.
        seed: seed of the initialisations, the held-out rows and the order of the rows, at least 0.
        recipe: the settings, see `Recipe`.
        rows: total number of rows that are taken from batches, once before the fit.
        progress: whether progress and the remaining time are shown on stderr; None: if stderr is a
            terminal.
        checkpoint: a file. If it exists, the fit continues from it; on the same processor, with
            as many threads, the result is bitwise identical to that of an uninterrupted fit. The
            file is updated now and then, and before SIGTERM ends the process. At the end it
            contains the finished fit and its cross-validation. Whether it can be written is checked
            first; if a later write fails, the fit warns and continues.

    Returns:
        A `FitResult`. Its loss is the error on the held-out rows, by which the model was selected.
        With fewer than 10 held-out rows the loss is cross-validated in up to 5 parts, each
        predicted by a separate fit. Ctrl-C ends the fit, saves it if there is a checkpoint, and
        returns the best model so far with `complete` False; if it interrupts a cross-validation,
        the loss is the error on the held-out rows. With a checkpoint the same call continues.

    Raises:
        ValueError, TypeError: an argument is invalid; ValueError: the checkpoint is damaged or
            belongs to another fit (other data, settings, dtype or versions).
        OSError: the checkpoint cannot be written.

    Warns if fewer than 5 rows are held out, and if float32 is not precise enough for the model.

        >>> import torch
        >>> from npu_kernels import RealNPU, fit
        >>> x = torch.rand(200, 2) + 1
        >>> result = fit(RealNPU(2, 1, num_models=32), x, x[:, :1] / x[:, 1:])
        >>> result.model.weight_re.tolist()
        [[1.0, -1.0]]
    """
    rows = check_whole("fit", "rows", rows, 2)
    seed = check_whole("fit", "seed", seed, 0, bounded=False)
    x, y = _tensors(x, y, rows, seed)
    check("fit", x, y, 2)
    trained = with_coefficient(model)
    run = FitJob(trained, x.unsqueeze(0), y.unsqueeze(0), [seed], recipe, "fit")
    file = None if checkpoint is None else Checkpoint(run, checkpoint)
    fits = _complete(run, progress, file)
    best, complete, job = select(fits.models, 0), fits.complete, run
    signs = Signs(trained, x)
    if complete and signs.exist and not run.solved.all():
        wide, sizes = signs.wide(), signs.rows()
        second = FitJob(wide, sizes.unsqueeze(0), y.unsqueeze(0), [seed], recipe, "fit, signs")
        run.follow("signs", second, file)
        drive(second, progress, file, note=second.note)
        complete, with_signs = second.stage is None, second.result()
        merged = signs.merged(select(with_signs.models, 0)) if complete else None
        if merged is not None and with_signs.losses <= fits.losses * (1 + run.recipe.slack):
            job, fits, best, trained, x = second, with_signs, merged, wide, sizes
    holdout_error, folds = float(fits.losses), 0
    few = job.data.held_out.y.shape[1] < ENOUGH_HELD_OUT
    if few and complete and len(x) >= MIN_ROWS:
        validated = cross_validated(job, trained, x, y, progress, file)
        holdout_error, folds = validated or (holdout_error, folds)
        complete = validated is not None
    _warn_of_error(job, holdout_error, folds)
    return FitResult(
        model=without_coefficient(best, model),
        loss=holdout_error,
        n_folds=folds,
        init_losses=fits.init_losses[0],
        n_stages=fits.n_stages[0],
        n_steps=float(fits.n_steps),
        n_rows=int(fits.n_rows),
        chosen=fits.chosen[0],
        candidates=fits.candidates[0],
        history=fits.history,
        seconds=run.all_seconds(),
        complete=complete,
    )


def _tensors(x: Any, y: Any, rows: int, seed: int) -> tuple[Any, Any]:
    """Return x and y, or rows of batches, as tensors."""
    if isinstance(x, Tensor) or hasattr(x, "__array__"):
        if y is None:
            raise ValueError("fit: y must be given with an x of rows, got None")
        return table("fit", "x", x), table("fit", "y", y)
    if y is not None:
        got = f"{type(x).__name__}; batches bring their own y"
        raise TypeError(f"fit: x must be rows if y is given, got {got}")
    return collect("fit", x, rows, seed)


@torch.inference_mode(False)
def fit_batch(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    seeds: Sequence[int] | None = None,
    recipe: Recipe | None = None,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> BatchFitResult:
    """Fit many problems at once, in one batch of models.

    Each problem is fitted as by `fit`, except for two steps: there is no second fit for negative
    inputs, and no cross-validation if few rows are held out.

    Args:
        model: a layer of this package or a `Sequential` of such layers. Its num_models is the
            number of problems times the number of random initialisations per problem; the models
            of the first problem come first. The model is not changed; only the shapes, dtype and
            device of its parameters are used.
        x: rows ``[problems, N, in_features]``.
        y: targets ``[problems, N, out_features]``.
        seeds: one seed per problem, for its initialisations and held-out rows; None: 0, 1, ...
        recipe: the settings, see `Recipe`.
        progress: whether progress and the remaining time are shown on stderr; None: if stderr is a
            terminal.
        checkpoint: a file. If it exists, the fit continues from it. The result is bitwise identical
            to that of an uninterrupted fit, under the conditions of `fit`. The file is updated.

    Returns a `BatchFitResult`: the best model of each problem, in one batch. Raises ValueError and
    TypeError for invalid arguments, and ValueError for a checkpoint of another fit.

        >>> import torch
        >>> from npu_kernels import RealNPU, fit_batch
        >>> x = torch.rand(2, 200, 2) + 1
        >>> y = torch.stack([x[0].prod(1, keepdim=True), x[1, :, :1] / x[1, :, 1:]])
        >>> result = fit_batch(RealNPU(2, 1, num_models=2 * 32), x, y)
        >>> result.models.weight_re.tolist()
        [[[1.0, 1.0]], [[1.0, -1.0]]]
    """
    check("fit_batch", x, y, 3)
    seeds = range(len(x)) if seeds is None else seeds
    run = FitJob(with_coefficient(model), x, y, seeds, recipe, "fit_batch")
    fits = _complete(run, progress, checkpoint)
    _warn_of_error(run, float(fits.losses.max()), 0)
    return replace(fits, models=without_coefficient(fits.models, model))


# ---- the loop ------------------------------------------------------------------------------------


def _complete(
    run: FitJob, progress: bool | None, checkpoint: str | os.PathLike[str] | Checkpoint | None
) -> BatchFitResult:
    drive(run, progress, checkpoint, note=run.note)
    return run.result()


def _warn_of_error(run: FitJob, holdout_error: float, folds: int) -> None:
    """Warn of a held-out error of few rows, and of an error due to float32."""
    held = run.data.held_out.y.shape[1]
    if held < FEW_HELD_OUT and not folds:
        rows = f"{held} held-out row{'' if held == 1 else 's'}"
        problem = f"{rows}, which the model was chosen by: it may be far too small"
        warn(f"{run.function}: the loss is of {problem}; hold out at least {FEW_HELD_OUT} rows")
    elif held < FEW_HELD_OUT:
        warn(
            f"{run.function}: {run.data.training.y.shape[1] + held} rows are few: the model was "
            f"chosen by {held} of them, and the loss is cross-validated in {folds} parts, each "
            "predicted by a fit to the others",
        )
    best = float(run.judge.pool.best(run.problems).max())
    spoilt = holdout_error > LARGE_ERROR and best < holdout_error * 1e-4
    if run.template.dtype == torch.float32 and best < math.inf and spoilt:
        warn(
            f"{run.function}: the model's error is {best:.1e} in float64 and "
            f"{holdout_error:.1e} in float32, whose range is too small for the constants or powers "
            "of these layers: fit "
            "model.double()",
        )
