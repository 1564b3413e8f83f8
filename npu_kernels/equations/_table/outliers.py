"""Outliers of a table: rows far from the equation of all other rows."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from npu_kernels.equations._equation import Equation
from npu_kernels.equations._numbers import last_digits
from npu_kernels.equations._problem import EXACT_ERROR, AllRows
from npu_kernels.equations._rows import clustered
from npu_kernels.equations._table import refine, stepwise
from npu_kernels.equations._table.doubts import FEW_VALUES, two_populations
from npu_kernels.equations._table.estimates import Rows, refitted, sizes, started
from npu_kernels.equations._table.forms import TELL
from npu_kernels.equations._table.notes import APPROXIMATION
from npu_kernels.equations._table.output import SearchResult, searched
from npu_kernels.equations._table.refine import Sum
from npu_kernels.equations._table.search import SMALL_TABLE, Settings

Array = Any

MIN_WITH_OUTLIERS = 8  # rows from which outliers are looked for
ROUGH = 0.3  # of y's standard deviation: the error from which outliers may have hidden the equation
OUTLIER_ROUNDS = 3  # searches without suspected outliers
WILD = 7.0  # robust standard deviations from which a row is suspected
MAX_WILD = 0.2  # share of the rows; values that occur in many rows may be more of them
FEW = 0.03  # share of the rows up to which tails are not heavy
FAR_BEYOND = 100.0  # ratio of a value to all others of its column, from which it is no reading
# Numbers that stand for missing values: nines such as -999 and 9999, -1 and 0.
CODES = (*(sign * (10.0**k - 1) for k in range(6, 0, -1) for sign in (-1, 1)), -1.0, 0.0)
FINE = 1e-4  # of the range of y: a last digit so small has errors of rounding
FEW_STEPS = 3  # of rounded readings: a code is farther from all others
# A value in several rows is a code too if it is so many times the width of all others away from
# them. The first or last of y is the end of a scale if it is in so many rows, and in so many times
# as many as any other.
MIN_CODED, FAR_OUTSIDE, MIN_AT_END, OFTEN = 3, 3.0, 4, 4
FEW_BELOW = 3  # rows with a y of the other sign than all others
GAP = 3.0  # ratio of the median error of outliers to the largest of the others
FEW_ROWS, WIDE_GAP = 15, 10.0  # below so many rows, which an equation may follow, the gap is wider
TAILS = 3.0  # of the standard deviations with and without outliers: their ratio for heavy tails
NAMED = 5  # rows that a note names
# An equation may be fitted to a row alone, which has a leverage near 1 then: one with a slip in an
# input.
DECISIVE, MAX_DECISIVE = 0.5, 3  # leverage of such rows, and their number
FULL_LEVERAGE = 0.9  # leverage of rows with a value far beyond all others
FAR_SIGMA = 6.0  # standard deviations of a row from a shorter equation, its own errors included
WORST_SHORTER = 0.5  # of the standard deviation of others, whose equation has at most such an error
EXTREME = 3.0  # ratio of a value to all others from which a note names it
STANDS_FOR = ", as a code for missing ones or the end of a scale"


def find_equations(
    rows: Rows, settings: Settings, powers: tuple[float, ...] | None
) -> SearchResult:
    """Return the equations of one output. powers: None for all, as far as needed.

    Rows that are far from the equation of all others are named, and left out if the settings say
    so. A robust loss gives them little weight, and sums that are not an equation are far from many
    rows: there only odd values are looked for.
    """
    fitted = searched if settings.max_terms else stepwise.find_equations
    of_values = fitted is stepwise.find_equations or settings.rules.loss != "squared"
    result_of_all, keep = fitted(rows, settings, powers), np.ones(len(rows.y), dtype=bool)
    best = result_of_all.equations[result_of_all.best_index]
    if settings.leave_out is None or len(keep) < MIN_WITH_OUTLIERS:
        return result_of_all
    odd = _odd_values(rows, best)
    # Terms that follow odd values may make an equation exact.
    if (best.exact or of_values) and not odd.any():
        return result_of_all
    if not result_of_all.complete:  # after Ctrl-C another search would corrupt the checkpoint
        return result_of_all
    without, tried = result_of_all, list[tuple[SearchResult, Array]]()
    try:
        suspects = odd.any(1) if odd.any() else _suspected(rows, result_of_all, keep, odd)
        hidden = np.zeros_like(keep) if odd.any() else _hidden(rows, result_of_all)
        is_rough = best.nrmse > ROUGH or suspects.mean() > FEW or hidden.any()
        if is_rough and not odd.any():
            robust = replace(settings, rules=replace(settings.rules, loss="huber"))
            of_huber = searched(rows, robust, powers)
            if not of_huber.complete:
                return replace(result_of_all, complete=False)
            suspects = _suspected(rows, of_huber, keep, odd)
            suspects = suspects if suspects.any() else hidden
        decisive, resting = _decisive(rows, result_of_all)
        if not odd.any():
            suspects = suspects | decisive
        for _ in range(OUTLIER_ROUNDS):
            is_settled = (suspects == ~keep).all() or _lacks(rows, ~suspects, settings)
            if is_settled or not without.complete:
                break
            # An equation that fewer rows decide stays if one without them fails.
            if not decisive.any():
                tried.clear()
            keep = ~suspects
            without = result_of_all if keep.all() else fitted(rows.take(keep), settings, powers)
            suspects = _suspected(rows, without, keep, odd) & (odd.any(1) | (not of_values))
            suspects = _with_twins(rows, odd, suspects)
            decisive, notes = _decisive(rows.take(keep), without)
            if not keep.all():
                tried.append((replace(without, notes=(*without.notes, *notes)), keep))
            suspects[keep] |= decisive & (not of_values)
    except KeyboardInterrupt:
        return replace(result_of_all, complete=False)
    for of_kept, keep in tried[::-1] if without.complete else []:
        if _believed(rows, result_of_all, of_kept, keep, odd):
            return _named(rows, result_of_all, of_kept, ~keep, odd, bool(settings.leave_out))
    notes = [*result_of_all.notes, *resting]
    return replace(result_of_all, complete=without.complete, notes=tuple(notes))


def _believed(
    rows: Rows, result_of_all: SearchResult, without: SearchResult, keep: Array, odd: Array
) -> bool:
    """Whether rows far from the equation of the others are outliers.

    There is a gap between their errors and those of the others, or, of many rows, they make most of
    the standard deviation. They are not neighbours, as parts of a curve are. Each counts as
    a parameter of the equation without it, which is better nevertheless; of odd values each
    different one.
    """
    errors, is_odd = _errors(rows, without, keep), odd.any(1)
    squares = _squares(errors)
    is_apart = is_odd[~keep].all() or _are_apart(errors, ~keep)
    if not is_apart and (len(keep) < FEW_ROWS or squares.mean() < TAILS**2 * squares[keep].mean()):
        return False
    if clustered(rows.X[~is_odd], ~keep[~is_odd]) > APPROXIMATION:
        return False
    if _fits_others(rows, result_of_all, without, keep):
        return False
    everything, kind = np.ones(len(keep), dtype=bool), without.noise
    of_all = _squares(_errors(rows, replace(result_of_all, noise=kind), everything, rows.y)).mean()
    of_kept = _squares(_errors(rows, without, keep, rows.y))[keep].mean()
    gain = math.log(of_all / of_kept)
    outlier_rows = np.column_stack([rows.X, rows.y])[~keep]
    values = len(np.unique(outlier_rows[odd[~keep]])) + int((~keep & ~is_odd).sum())
    shorter = _length(result_of_all) - _length(without) - values
    return len(keep) * gain + shorter * math.log(len(keep)) > 0


def _fits_others(
    rows: Rows, result_of_all: SearchResult, without: SearchResult, keep: Array
) -> bool:
    """Whether the others do not distinguish the equation that outliers decide from theirs."""
    decided = (result_of_all.inflation > 1 / (1 - DECISIVE))[~keep].all()
    if not decided or rows.group is not None:
        return False
    best, of_kept = (table.equations[table.best_index] for table in (result_of_all, without))
    try:
        data, candidate = started(replace(best, noise=of_kept.noise), rows.take(keep), "fit")
    except ValueError:  # no equation of these rows, or with these errors
        return False
    return refine.refit(data, candidate).cost < of_kept.bic + TELL


def _squares(errors: Array) -> Array:
    """Squares that are finite, and not 0."""
    squares: Array = np.minimum(errors, 1e100) ** 2 + 1
    return squares


def _length(result: SearchResult) -> int:
    """The parameters of the best equation, and its exponents."""
    best = result.equations[result.best_index]
    return best.n_parameters + int((best.exponents[~best.free] != 0).sum())


def _odd_values(rows: Rows, best: Equation) -> Array:
    """Which values of X and y ``[N, n + 1]`` may be no readings.

    In y they are also those at the end of a scale. And they are few of another sign where the best
    equation is a sum: they exclude powers of y.
    """
    odd = np.column_stack([_odd(column) for column in (*rows.X.T, rows.y)])
    odd[:, -1] |= _at_end(rows, odd[:, -1])
    below = rows.y <= 0 if np.median(rows.y) > 0 else rows.y >= 0
    if best.n_terms > 1 and below.sum() <= FEW_BELOW:
        odd[:, -1] |= below
    return odd


def _odd(column: Array) -> Array:
    """Which values are far beyond all others, or stand for a missing one and are outside of them.

    A distribution over many decades is not far beyond itself.
    """
    limit = int(MAX_WILD * len(column))
    odd = np.zeros(len(column), dtype=bool)
    sizes = np.sort(np.abs(column))
    center, below, above = np.median(sizes), sizes[-limit - 1 : -1], sizes[-limit:]
    if center > 0:
        with np.errstate(over="ignore"):
            gaps = (above / below > FAR_BEYOND) & (above / below > below / center)
        odd = np.abs(column) >= (above[gaps].min() if gaps.any() else math.inf)
    for value in (*CODES, column[~odd].min(), column[~odd].max()):
        coded = column == value
        readings = np.unique(column[~coded & ~odd])
        if not coded.any() or len(readings) <= FEW_VALUES:
            continue
        low, high = readings[0], readings[-1]
        outside, width = max(low - value, value - high), high - low
        is_next = outside < FEW_STEPS * np.diff(readings).min()  # as 0 is among counts
        is_far = outside > FAR_OUTSIDE * width and coded.sum() >= MIN_CODED
        if is_far or (value in CODES and outside > 0 and not is_next):
            odd |= coded
    return odd


def _at_end(rows: Rows, odd: Array) -> Array:
    """Which y are the first or the last of all, and remarkably many: the end of a scale."""
    once = np.unique(rows.origin, return_index=True)[1]  # rows that count twice
    readings = once[~odd[once]]
    values, counts = np.unique(rows.y[readings], return_counts=True)
    at_end = np.zeros(len(rows.y), dtype=bool)
    rest = counts[1:-1]
    for end in (0, -1):
        is_often = len(rest) >= FEW_VALUES and counts[end] >= OFTEN * rest.max()
        if is_often and counts[end] >= MIN_AT_END and values[end] != 0:  # 0 may be a count
            at_end |= rows.y == values[end]
    return at_end


def _lacks(rows: Rows, keep: Array, settings: Settings) -> bool:
    """Whether too few rows would be left, or a group would have no more rows than terms."""
    if keep.sum() < min(MIN_WITH_OUTLIERS, (1 - MAX_WILD) * len(keep)):
        return True
    if rows.group is None:
        return False
    sizes = np.bincount(rows.group[keep], minlength=int(rows.group[-1]) + 1)
    return int(sizes.min()) <= settings.max_terms


def _errors(rows: Rows, result_of_all: SearchResult, keep: Array, of: Array | None = None) -> Array:
    """The sizes of the errors of all rows by the best equation; of the kept ones leaving each out.

    Those of rounding are below 1. of: numbers that relative errors are in proportion to, other than
    the predictions.
    """
    prediction = result_of_all.equations[result_of_all.best_index]._predicted(rows.X, rows.group)
    errors = rows.root * np.abs(rows.y - prediction)
    if result_of_all.noise == "multiplicative":
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.abs(np.log(rows.y / prediction))
    elif result_of_all.noise == "proportional":
        size = np.nan_to_num(np.abs(prediction))
        errors /= sizes(np.minimum(size, size[keep].max()) if of is None else of)
    with np.errstate(over="ignore"):
        errors[keep] *= result_of_all.inflation
    rounding = last_digits(rows.y)
    is_rounded = (np.abs(rows.y - prediction) <= rounding) & (rounding < FINE * np.ptp(rows.y))
    errors[is_rounded] = np.minimum(errors[is_rounded], np.median(errors))
    size, largest = 1.0, 1.0
    if result_of_all.noise != "multiplicative":
        size, largest = float(np.abs(rows.y - rows.y.mean()).max()), float(np.abs(rows.y).max())
    smallest = EXACT_ERROR * size + rows.digits * largest
    return np.nan_to_num(errors / (smallest or 1.0), nan=math.inf)


def _suspected(rows: Rows, result_of_all: SearchResult, keep: Array, odd: Array) -> Array:
    """The rows that the best equation suspects as outliers.

    Outliers have moved it: its parameters are estimated again with less of their weight. Where
    many rows without odd values are far from it, the equation is wrong and tells nothing of them.
    """
    plain = ~odd.any(1)
    errors = _errors(rows, result_of_all, keep)
    if (errors > WILD * _scale(errors[plain])).any():
        errors = _robust_errors(rows, result_of_all, keep)
    suspects: Array = errors > WILD * _scale(errors[plain])
    return suspects if suspects[plain].mean() <= MAX_WILD else np.zeros_like(suspects)


def _robust_errors(rows: Rows, result_of_all: SearchResult, keep: Array) -> Array:
    """`_errors` of the best equation, whose parameters give little weight to outliers."""
    best = result_of_all.equations[result_of_all.best_index]
    with suppress(ValueError):  # an equation without a value in some row stays as it is
        _, robust = refitted(best, rows.take(keep), "huber")
        result_of_all = replace(result_of_all, equations=[robust], best_index=0)
    return _errors(rows, result_of_all, keep)


def _hidden(rows: Rows, result_of_all: SearchResult) -> Array:
    """The outlier of a small table by another equation: it has moved the best one.

    Errors of any kind are tried, unless they are known. Rows that count several times are one row.
    """
    count = len(np.unique(rows.origin))
    everything = np.ones(len(rows.y), dtype=bool)
    kinds = ("additive", "proportional") if rows.noise is None else (result_of_all.noise,)
    for equation in result_of_all.equations if count < SMALL_TABLE else ():
        for kind in kinds if equation.n_parameters < count // 2 else ():
            other = replace(
                result_of_all, noise=kind, equations=[replace(equation, noise=kind)], best_index=0,
                inflation=everything.astype(float),
            )  # fmt: skip
            errors = _robust_errors(rows, other, everything)
            suspects: Array = errors > WILD * _scale(errors)
            if len(np.unique(rows.origin[suspects])) == 1 and _are_apart(errors, suspects):
                return suspects
    return ~everything


def _are_apart(errors: Array, outliers: Array) -> bool:
    """Whether there is a gap between the errors of outliers and those of the other rows."""
    gap = WIDE_GAP if len(errors) < FEW_ROWS else GAP
    return bool(np.median(errors[outliers]) >= gap * errors[~outliers].max())


def _decisive(rows: Rows, result: SearchResult) -> tuple[Array, list[str]]:
    """The few rows that decide the best equation and may be outliers, and a note of their term.

    They may be outliers if the other rows have a shorter equation, or a value is far beyond all
    others. The note says that the other rows hardly determine the term.
    """
    best = result.equations[result.best_index]
    decisive = result.inflation > 1 / (1 - DECISIVE)
    is_few = 0 < decisive.sum() <= MAX_DECISIVE and len(decisive) > MIN_WITH_OUTLIERS
    if best.exact or not is_few or rows.group is not None:
        return np.zeros_like(decisive), []
    used = best.exponents[:, : rows.X.shape[1]].any(0)
    columns = [column for column in rows.X[:, used].T if _is_beyond(column, decisive)]
    decide = decisive & (result.inflation > 1 / (1 - FULL_LEVERAGE))
    if best.n_terms - best.n_denominator_terms < 2:
        return decide & bool(columns), []
    excess, term = _weighed(rows, best, decisive)
    if excess >= TELL:
        return decide & bool(columns), []
    numbers = sorted({*rows.origin[decisive].tolist()})
    rested = f"{'row' if len(numbers) == 1 else 'rows'} {', '.join(map(str, numbers))} alone"
    note = (
        f"{best._term(term, 4)} rests on {rested} (the first row is 0): the other rows hardly "
        "determine it."
    )
    return decisive if excess <= 0 else decide & bool(columns), [note]


def _is_beyond(column: Array, decisive: Array) -> bool:
    """Whether a value is far beyond all others.

    It is farther than half of the way from their middle to the largest, in logarithms: that is no
    gap in a distribution over many decades.
    """
    plain = np.abs(column[~decisive])
    gap = math.sqrt(plain.max() * np.median(plain))
    return bool(gap > 0 and np.abs(column[decisive]).max() * gap > plain.max() ** 2)


def _weighed(rows: Rows, best: Equation, decisive: Array) -> tuple[float, int]:
    """What a sum without one of its terms costs more than the best for the other rows.

    `required_terms` stay. It is the least, by the criterion, of sums from which the rows alone are
    far, and infinite if there is none; and the index of the term.
    """
    data, candidate = started(best, rows, "fit")
    plain = data.choose(np.flatnonzero(~decisive)).block
    cost, lowest = refine.refit(plain, candidate).cost, (math.inf, 0)
    for k in range(data.fixed, len(candidate.c) - data.below):
        shorter = refine.refit(plain, candidate.take(np.arange(len(candidate.c)) != k))
        is_close = shorter.rss < WORST_SHORTER**2 * (plain.rest @ plain.rest)
        if is_close and shorter.cost - cost < lowest[0] and _are_far(data, shorter, decisive):
            lowest = shorter.cost - cost, k
    return lowest


def _are_far(data: AllRows, candidate: Sum, decisive: Array) -> bool:
    """Whether one of the rows alone is far from the equation of the others, for its leverage."""
    degrees = int((~decisive).sum()) - candidate.parameters
    if degrees < 1:
        return False
    variance = max(candidate.rss, data.exact) / degrees
    candidate = refine.refit(data, candidate)
    residuals = data.predict(candidate.u, candidate.parity, candidate.c)[1]
    errors = refine.left_out(data, candidate, residuals)[0]
    return bool((residuals * errors > FAR_SIGMA**2 * variance)[decisive].any())


def _with_twins(rows: Rows, odd: Array, suspects: Array) -> Array:
    """The suspects, and all rows that have an odd value of theirs: it is one code in all of them.

    Some of these rows may lie near the equation by chance.
    """
    for column, is_odd in zip((*rows.X.T, rows.y), odd.T, strict=True):
        suspects = suspects | (is_odd & np.isin(column, column[suspects & is_odd]))
    return suspects


def _scale(errors: Array) -> float:
    return max(refine.robust_scale(errors), 1.0)


def _named(
    rows: Rows,
    result_of_all: SearchResult,
    without: SearchResult,
    is_far: Array,
    odd: Array,
    leave_out: bool,
) -> SearchResult:
    """The equations with the outliers named. leave_out: those without these rows, or with them."""
    order = np.argsort(rows.origin[is_far])
    numbers = rows.origin[is_far][order]
    best, other = (table.equations[table.best_index] for table in (without, result_of_all))
    group = None if rows.group is None else rows.group[is_far][order]
    predicted = best._predicted(rows.X[is_far][order], group)
    said = [
        f"{y:.6g} for {value:.6g}"
        for y, value in zip(rows.y[is_far][order], predicted, strict=True)
    ]
    coded = _coded(rows, is_far, odd, best.output)
    populations = two_populations(rows.take(~odd.any(1)), best)
    odd = odd[is_far][order]
    for i, column in enumerate(rows.X.T):
        farthest = np.abs(column[~is_far]).max()
        for k in np.flatnonzero(np.abs(column[is_far][order]) >= EXTREME * farthest):
            said[k] += f", {rows.functions.inputs[i]} is {column[is_far][order][k]:.6g}"
    for k, i in zip(*np.nonzero(odd[:, :-1]), strict=True):
        said[k] = f"{rows.functions.inputs[i]} is {rows.X[is_far][order][k, i]:.6g}"
    pairs = zip(numbers.tolist(), said, strict=True)
    named = list(dict.fromkeys(f"row {row}: {words}" for row, words in pairs))
    more = [f"{len(named) - NAMED} more"] if len(named) > NAMED else []
    text = (
        f"{len(named)} {'row is' if len(named) == 1 else 'rows are'} far from the equation of "
        f"all other rows ({'; '.join(named[:NAMED] + more)}; the first row is 0)"
    )
    if leave_out:
        text += f", and left out. With {'it' if len(named) == 1 else 'them'}: {other}"
    else:
        text += f". Without {'it' if len(named) == 1 else 'them'}: {best}"
    if populations:
        text = f"{populations} {text}"
    elif (~odd.any(1)).sum() > FEW * len(is_far):
        text = f"The errors of {best.output} have heavy tails: {text}"
    text = " ".join([*coded, text])
    chosen = without if leave_out else result_of_all
    said_before = populations, two_populations(rows, other) if odd.any() else ""  # codes are none
    notes = [note for note in chosen.notes if note not in said_before]
    rows_named = tuple(dict.fromkeys(numbers.tolist()))  # one that counts twice is named once
    return replace(chosen, notes=(*notes, f"{text}."), outliers=rows_named)


def _coded(rows: Rows, is_far: Array, odd: Array, output: str) -> list[str]:
    """Sentences on the odd values that more outliers have than are named."""
    once, sentences = np.unique(rows.origin, return_index=True)[1], list[str]()
    columns = zip((*rows.functions.inputs, output), (*rows.X.T, rows.y), odd.T, strict=True)
    for name, column, is_odd in columns:
        for value in np.unique(column[is_far & is_odd]):
            count = int((column[once] == value).sum())
            if count > NAMED:
                side = "below" if value < np.median(column[~is_odd]) else "above"
                where = f"in {count} of {len(once)} rows, {side} all other values"
                sentences.append(f"{name} is {value:.6g} {where}{STANDS_FOR}.")
    return sentences
