"""Wild rows of a table, its outliers: few, and far from the law of all others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from npu_kernels._laws.products.problem import EXACT_ERROR
from npu_kernels._laws.table import refine, stepwise
from npu_kernels._laws.table.estimates import Rows, sizes
from npu_kernels._laws.table.output import Laws, searched
from npu_kernels._laws.table.search import Settings

Array = Any

FEWEST_WITH_WILD = 15  # rows from which wild ones are looked for
WILD_ROUNDS = 3  # searches without the rows that seem wild
WILD = 7.0  # robust standard deviations from which a row is suspected
MOST_WILD = 0.03  # share of the rows
SHARE = 0.25  # of all squares in the error of a row, from which it is suspected
TRIMMED_SHARE = 0.5  # of all squares in the largest errors, from which these are suspected
GAP = 3.0  # ratio of the median error of wild rows to the largest of the others
NAMED = 5  # rows that a note names


def laws(rows: Rows, settings: Settings, powers: tuple[float, ...] | None) -> Laws:
    """Return the equations of one output. powers: None for all, as far as needed.

    A few rows that are far from the law of all others are named, and left out if the settings say
    so.
    """
    if not settings.max_terms:
        return stepwise.laws(rows, settings, powers)
    laws_of_all, keep = searched(rows, settings, powers), np.ones(len(rows.y), dtype=bool)
    without = laws_of_all
    if settings.leave_out is None or len(keep) < FEWEST_WITH_WILD:
        return laws_of_all
    if laws_of_all.equations[laws_of_all.best].exact:
        return laws_of_all
    for _ in range(WILD_ROUNDS):
        suspects = _suspected(rows, without, keep)
        if not without.complete or (suspects == ~keep).all() or _lacks(rows, ~suspects, settings):
            break
        keep = ~suspects
        try:
            without = laws_of_all if keep.all() else searched(rows.take(keep), settings, powers)
        except KeyboardInterrupt:
            return replace(laws_of_all, complete=False)
    errors = _errors(rows, without, keep)
    if keep.all() or not without.complete or np.median(errors[~keep]) < GAP * errors[keep].max():
        return replace(laws_of_all, complete=without.complete)
    return _named(rows, laws_of_all, without, ~keep, bool(settings.leave_out))


def _lacks(rows: Rows, keep: Array, settings: Settings) -> bool:
    """Whether a group would have no more rows than terms."""
    if rows.group is None:
        return False
    sizes = np.bincount(rows.group[keep], minlength=int(rows.group[-1]) + 1)
    return int(sizes.min()) <= settings.max_terms


def _errors(rows: Rows, laws_of_all: Laws, keep: Array) -> Array:
    """The sizes of the errors of all rows by the best law; of the kept ones leaving each out.

    Those of rounding are below 1.
    """
    prediction = laws_of_all.equations[laws_of_all.best]._predicted(rows.X, rows.group)
    errors = rows.root * np.abs(rows.y - prediction)
    if laws_of_all.noise == "factor":
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.abs(np.log(rows.y / prediction))
    elif laws_of_all.noise == "relative":
        errors /= sizes(prediction)
    errors[keep] *= laws_of_all.inflation
    size, largest = 1.0, 1.0
    if laws_of_all.noise != "factor":
        size, largest = float(np.abs(rows.y - rows.y.mean()).max()), float(np.abs(rows.y).max())
    rounding = EXACT_ERROR * size + rows.digits * largest
    return np.nan_to_num(errors / (rounding or 1.0), nan=math.inf)


def _suspected(rows: Rows, laws_of_all: Laws, keep: Array) -> Array:
    """The rows that seem wild by the best law.

    Where wild rows made the noise seem to be in proportion, and many rows are then far from the
    law, equal errors tell.
    """
    errors = _errors(rows, laws_of_all, keep)
    if (errors > WILD * _scale(errors)).mean() > MOST_WILD:
        errors = _errors(rows, replace(laws_of_all, noise="constant"), keep)
    return _suspects(errors)


def _scale(errors: Array) -> float:
    return max(refine.robust_scale(errors), 1.0)


def _suspects(errors: Array) -> Array:
    """The rows whose errors are far larger than the others', few; else those with most of all.

    Many wild rows can make the law of all rows so wrong that most have large errors. Then the
    largest errors still hold most of the squares: without these rows the next law is a better one.
    """
    suspects = errors > WILD * _scale(errors)
    most = max(1, int(MOST_WILD * len(errors)))
    if 0 < suspects.sum() <= most:
        return suspects
    squares = np.minimum(errors, 1e100) ** 2
    largest = np.argsort(-errors, kind="stable")[:most]
    if squares[largest].sum() < TRIMMED_SHARE * squares.sum():
        return squares > max(SHARE, 8 / len(errors)) * squares.sum()
    suspects = np.zeros(len(errors), dtype=bool)
    suspects[largest] = True
    return suspects


def _named(rows: Rows, laws_of_all: Laws, without: Laws, wild: Array, leave_out: bool) -> Laws:
    """The laws with the wild rows named. leave_out: those without these rows, or with them."""
    order = np.argsort(rows.origin[wild])
    numbers = rows.origin[wild][order]
    best, other = (table.equations[table.best] for table in (without, laws_of_all))
    group = None if rows.group is None else rows.group[wild][order]
    predicted = best._predicted(rows.X[wild][order], group)
    values = zip(numbers.tolist(), rows.y[wild][order], predicted, strict=True)
    named = list(dict.fromkeys(f"row {row}: {y:.6g} for {law:.6g}" for row, y, law in values))
    text = (
        f"{len(named)} {'row is' if len(named) == 1 else 'rows are'} far from the law of all "
        f"others ({'; '.join(named[:NAMED])}; the first row is 0)"
    )
    if leave_out:
        text += f", and left out. With {'it' if len(named) == 1 else 'them'}: {other}"
    else:
        text += f". Without {'it' if len(named) == 1 else 'them'}: {best}"
    chosen = without if leave_out else laws_of_all
    rows_named = tuple(dict.fromkeys(numbers.tolist()))  # one that counts twice is named once
    return replace(chosen, notes=(*chosen.notes, f"{text}."), wild=rows_named)
