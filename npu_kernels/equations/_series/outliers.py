"""Outliers of time series: values that are far from the equations of all other values.

An outlier moves the equations that are fitted with it, and may hide itself. So the search is
repeated without the values that are far from the equations or from curves through their neighbours.
The equations of the remaining values decide which of them are outliers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from npu_kernels.equations._numbers import last_digits
from npu_kernels.equations._series.candidates import Candidate, Job, Visited
from npu_kernels.equations._series.data import Series
from npu_kernels.equations._series.guesses import MIN_SIZE, sized

# A value is an outlier if its residual is so many times the typical one of its column, and so many
# times the largest of the values that are not.
OUTLIER, OUTLIER_GAP, MIN_VALUES = 8.0, 2.0, 12
FEW_MEASURED, WIDER_GAP = 15, 10.0  # fewer values, which equations may follow, have a wider gap
# Errors grow with the states, or may do so, if those over the states are no more unlike each other.
UNLIKE = 1.25
MIN_SHARE, MAX_SHARE = 0.05, 0.2  # of the column's variation; of its values
TYPICAL = 1.4826  # standard deviation of normal errors over their median size
SIDE = 4  # neighbours of a value before it, and behind it
ROUGH_RATIO = 2.0  # residuals over the errors of neighbours: a value may have moved the equations
NAMED_VALUES = 5  # outliers of a column in a sentence
MAX_SEARCHES = 3  # searches without suspected outliers
MIN_CURVE = 4  # neighbouring values, all different, that are a part of a curve
# A column's first or last value is the limit of a sensor if it is in so many samples, in runs of so
# many at least, and the neighbours of a run are not near it, as they are at an equilibrium: they
# are so many of the smallest steps of a rounded column away, or such a part of its deviation.
MIN_AT_LIMIT, MIN_RUN, FEW_STEPS, SETTLED = 4, 3, 3.0, 1e-6

# A candidate, the same with free exponents, and candidates of other forms.
Outcome = tuple[Candidate, Candidate, Visited]


def found_without(
    data: Series, search: Callable[[Series], Outcome], job: Job
) -> tuple[Outcome, Tensor]:
    """Return what a search finds in a series without its outliers, and these ``[S, M, D]``."""
    of_all = outcome = search(data)
    left_out = none = torch.zeros_like(data.seen)
    if any(data.jumps):  # the input may be at fault for what is far from the equations
        return of_all, none
    suspects = outliers(of_all[0], data)
    beside, errors = distances_from_neighbours(data)
    if is_rough(of_all[0], errors):
        suspects = suspects | (beside > OUTLIER * errors)
    for _ in range(MAX_SEARCHES):
        if not suspects.any() or bool((suspects == left_out).all()) or job.pressed:
            break
        left_out = suspects
        try:
            outcome = search(without(data, left_out))
        except RuntimeError:  # no start has a finite trajectory
            return of_all, none
        suspects = outliers(outcome[0], data)
    is_settled = bool((suspects == left_out).all()) and not job.pressed
    if _is_curve(data, left_out):
        return of_all, none
    count = data.seen.sum((0, 1))
    if is_settled and _length(outcome[0], count) < _length(of_all[0], count):
        return outcome, left_out
    return of_all, none


def _is_curve(data: Series, values: Tensor) -> bool:
    """Return whether most of the values of a column are a part of a curve: neighbours that differ.

    If most samples are at an equilibrium, its equation alone would leave out the way to it.
    """
    for d in range(values.shape[2]):
        within = 0
        for s in range(len(values)):
            seen = data.seen[s, :, d]
            is_out, column = values[s, seen, d], data.values[s, seen, d]
            ends = torch.unique_consecutive(is_out, return_counts=True)[1].cumsum(0).tolist()
            for first, end in itertools.pairwise([0, *ends]):
                run = column[first:end]
                if is_out[first] and len(run) >= MIN_CURVE and len(run.unique()) == len(run):
                    within += len(run)
        if 2 * within > int(values[..., d].sum()):
            return True
    return False


def without(data: Series, values: Tensor) -> Series:
    """Return the series without some values, with weights by the smooth curve of the others."""
    data = data.without(values)
    return sized(data) if data.sized else data


def outliers(candidate: Candidate, data: Series) -> Tensor:
    """Return which values ``[S, M, D]`` of a series are far from the equations of some of them."""
    fitted, states = candidate.problem.data, candidate.problem.states(candidate.x.unsqueeze(0))[0]
    weight = torch.ones_like(states)
    if data.has_sigma:
        weight = data.weight * fitted.size
    elif data.sized:
        weight = 1 / states.abs().clamp(min=MIN_SIZE)
    values = data.values / fitted.size
    off = states.log() - values.log() if data.relative else states - values
    off = torch.where(fitted.seen, candidate.residuals(), off * weight).abs()
    off = torch.where(data.seen, off.nan_to_num(math.inf), 0.0)
    threshold = torch.maximum(OUTLIER * fitted.exact, MIN_SHARE * fitted.spread())
    far = torch.zeros_like(data.seen)
    for d in range(far.shape[2]):
        seen, sizes = data.seen[..., d], off[..., d]
        if seen.sum() < MIN_VALUES:
            continue
        is_much = sizes > threshold[d]
        far[..., d] = _far(sizes, seen, is_much)
        if not (data.has_sigma or data.in_proportion):
            over_states = sizes / states[..., d].abs().clamp(min=MIN_SIZE)
            is_unlike = _spread(over_states[seen]) > UNLIKE * _spread(sizes[seen])
            far[..., d] &= is_unlike | _far(over_states, seen, is_much)
    return far


def _far(sizes: Tensor, seen: Tensor, is_much: Tensor) -> Tensor:
    """Return which of the errors of one column are far beyond all others, if any.

    They begin at the first gap beyond the limit: other values may be moved by the far ones.
    """
    limit = OUTLIER * TYPICAL * sizes[seen].median()
    gap = WIDER_GAP if seen.sum() < FEW_MEASURED else OUTLIER_GAP
    ordered = torch.where(seen, sizes, 0.0)[seen].sort().values
    is_first = (ordered[1:] > limit) & (ordered[1:] >= gap * ordered[:-1])
    far = torch.zeros_like(seen)
    if is_first.any():
        far = seen & is_much & (sizes >= ordered[1:][is_first][0])
    return far if far.sum() <= MAX_SHARE * seen.sum() else torch.zeros_like(far)


def _spread(sizes: Tensor) -> Tensor:
    """Return how unlike each other most of these errors are: the spread of their logarithms."""
    logarithms = sizes[sizes > 0].log()
    return (logarithms - logarithms.median()).abs().median()


def outlier_notes(
    candidate: Candidate, data: Series, left_out: Tensor, names: tuple[str, ...]
) -> list[str]:
    """Return sentences on the columns with values that are far from the equations of all others."""
    texts, far = [], left_out if left_out.any() else outliers(candidate, data)
    states = candidate.problem.states(candidate.x.unsqueeze(0))[0] * candidate.problem.data.size
    for d, name in enumerate(names):
        is_far = far[..., d]
        if not (count := int(is_far.sum())):
            continue
        columns = data.times, data.values[..., d], states[..., d]
        rows = zip(*(column[is_far].tolist() for column in columns), strict=True)
        values = [f"t = {t:.6g}: {y:.6g}, fitted {u:.6g}" for t, y, u in rows]
        values[NAMED_VALUES:] = [f"{count - NAMED_VALUES} more"] * (count > NAMED_VALUES)
        text = f"A value of {name} is" if count == 1 else f"{count} values of {name} are"
        text += f" more than {OUTLIER:g} times as far from the equations as most values"
        text += f" ({'; '.join(values)})"
        if left_out.any():
            text += ", and ignored."
        else:
            text += ". It may determine the result: fit again with nan in its place."
        texts.append(text)
    return texts


def limit_notes(data: Series, names: tuple[str, ...], is_inexact: Tensor) -> list[str]:
    """Return sentences on the columns that reach the limit of a sensor.

    is_inexact ``[D]``: columns that the equations do not fit exactly; the others rest there.
    """
    texts = []
    for d, name in enumerate(names):
        columns = [values[data.seen[s, :, d], d] for s, values in enumerate(data.values)]
        readings = torch.cat(columns).unique()
        if len(readings) < MIN_VALUES // 2 or not is_inexact[d]:
            continue
        is_rounded = bool(last_digits(readings.numpy()).any())
        for limit, others in ((readings[-1], readings[:-1]), (readings[0], readings[1:])):
            gap = FEW_STEPS * others.diff().min() if is_rounded else SETTLED * others.std()
            count = sum(_samples_at(limit, column, gap) for column in columns)
            if count >= MIN_AT_LIMIT and limit != 0:
                text = f"{count} values of {name} are {float(limit):.6g}, and none is beyond: if it"
                texts.append(f"{text} is a sensor's limit, fit again with nan in their place.")
    return texts


def _samples_at(limit: Tensor, column: Tensor, gap: Tensor) -> int:
    """Return how many values of a series are in runs of one value; 0 if a run ends smoothly.

    gap: the least distance of a run's neighbours from it.
    """
    is_at = column == limit
    beside = torch.zeros_like(is_at)
    beside[1:] |= is_at[:-1]
    beside[:-1] |= is_at[1:]
    beside &= ~is_at
    if not beside.any() or bool(((column[beside] - limit).abs() <= gap).any()):
        return 0
    runs = torch.unique_consecutive(is_at, return_counts=True)
    lengths = runs[1][runs[0]]
    return int(lengths[lengths >= MIN_RUN].sum())


def distances_from_neighbours(data: Series) -> tuple[Tensor, Tensor]:
    """Return the distances of values ``[S, M, D]`` from curves through their neighbours.

    A distance is the median of those from parabolas through three of eight neighbours, each in
    units of its own standard deviation. So two of the neighbours may be outliers. Also return the
    standard deviations ``[D]`` of the errors, as far as the parabolas follow the curve.
    """
    off = torch.zeros_like(data.values)
    errors = torch.full_like(data.values[0, 0], math.inf)
    for d in range(off.shape[2]):
        for s in range(len(off)):
            seen = data.seen[s, :, d].nonzero().squeeze(1)
            if len(seen) < MIN_VALUES:
                continue
            y = data.values[s, seen, d]
            y = y.log() if data.relative else y
            off[s, seen, d] = _off_parabolas(data.times[s, seen], y) * data.weight[s, seen, d]
        seen = data.seen[..., d]
        if seen.sum() >= MIN_VALUES:
            errors[d] = TYPICAL * off[..., d][seen].median()
        if (off[..., d] > OUTLIER * errors[d]).sum() > MAX_SHARE * seen.sum():
            errors[d] = math.inf
    return off, errors


def is_rough(candidate: Candidate, errors: Tensor) -> bool:
    """Return whether residuals are much larger than errors ``[D]`` estimated from neighbours."""
    return bool((_deviations(candidate) > ROUGH_RATIO * errors).any())


def _off_parabolas(t: Tensor, y: Tensor) -> Tensor:
    """Return how far values ``[M]`` are from parabolas through their neighbours."""
    at = torch.arange(len(t))
    first = (at - SIDE).clamp(0, len(t) - 2 * SIDE - 1)
    window = first.unsqueeze(1) + torch.arange(2 * SIDE)
    window = window + (window >= at.unsqueeze(1)).long()  # the value itself is none
    triples = torch.tensor(list(itertools.combinations(range(2 * SIDE), 3)))
    knots = t[window][:, triples]  # [M, triples, 3]
    gaps = knots.unsqueeze(3) - knots.unsqueeze(2) + torch.eye(3)
    weights = (t[:, None, None] - knots).unsqueeze(2).expand(gaps.shape)
    weights = torch.where(torch.eye(3).bool(), 1.0, weights / gaps).prod(3)
    off = y.unsqueeze(1) - (weights * y[window][:, triples]).sum(2)
    return (off / (1 + weights.square().sum(2)).sqrt()).nanmedian(1).values.abs()


def _deviations(candidate: Candidate) -> Tensor:
    """Return the root mean squares ``[D]`` of a candidate's residuals, in the user's units."""
    data = candidate.problem.data
    unit = 1.0 if data.in_proportion or data.has_sigma else data.size
    count = data.seen.sum((0, 1)).clamp(min=1)
    squares = (candidate.residuals().square().sum((0, 1)) / count).maximum(data.exact.square())
    return squares.sqrt() * unit


def _length(candidate: Candidate, count: Tensor) -> float:
    """Return the description's length of all values ``[D]`` by a candidate.

    Each value that the candidate was fitted without counts as a number of its own.
    """
    data = candidate.problem.data
    left_out = int(count.sum() - data.seen.sum())
    exponents, _, _ = candidate.problem.shape.split(candidate.x)
    numbers = int(candidate.free.sum()) + int((exponents != 0).sum()) + left_out
    share = data.seen.sum((0, 1)) / count.clamp(min=1)
    squares = _deviations(candidate).square() * share
    likelihood = count * (squares if data.has_sigma else squares.log())
    return float(likelihood[count > 0].sum()) + numbers * math.log(int(count.sum()))
