"""Diagnostics of fitted equations: do they explain the series as well as a smooth curve does?

The residuals of a smoothing spline, and the distances of neighbouring samples from polynomials,
estimate the measurement errors without any equation. Equations whose residuals are much larger miss
a part of the series. So do equations whose neighbouring residuals are correlated, as independent
measurement errors would not be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from npu_kernels.equations._rows import MANY_TIMES, times_as_large
from npu_kernels.equations._series.candidates import Candidate
from npu_kernels.equations._series.data import NAME, Series, is_below_zero
from npu_kernels.equations._series.guesses import smoothed, spline_errors
from npu_kernels.equations._series.outliers import (
    distances_from_neighbours,
    is_rough,
    limit_notes,
    outlier_notes,
)

MAX_RATIO = 2.0  # of residuals to errors, above which the equations miss something
MAX_MISSED = 0.05  # of the series' variation: equations that miss more do not fit
MUCH_MISSED = 0.5  # of it: so much is no chance, however few samples there are
MIN_EXPLAINED = 0.5  # share of the variation (R2) that equations explain at least
MOST_EXPLAINED = 0.9  # of it: a note gives a smaller R2
MAX_LOST = 0.3  # of it, from the smooth curve's first states on
MAX_CHANCE = 1e-5  # of so great a ratio where the equations are right: few samples vary much
MAX_AUTOCORRELATION, MAX_DEVIATIONS = 0.5, 4.0  # of neighbours; in its own standard errors
ORDER = 4  # of the differences of neighbouring samples
FEW_DEGREES = 5  # of freedom
NAMED_ROWS = 3  # in a sentence
FEW_MEASUREMENTS = 3.5  # for each parameter


class PoorFitWarning(UserWarning):
    """The equations that `ode.fit` returns do not explain the series.

    message: the reason, and what to try. diagnostics: the `Diagnostics` of the result.
    """

    def __init__(self, message: str, diagnostics: Diagnostics) -> None:
        super().__init__(message)
        self.diagnostics = diagnostics


@dataclass(frozen=True)
class Diagnostics:
    """Residuals of fitted equations compared with the measurement errors.

    Attributes:
        errors: standard deviations of the measurement errors of each column ``[D]``, estimated
            without any equation: the larger of two estimates, from a smoothing spline and from
            polynomials through neighbouring samples. Relative to the value if errors are
            proportional. If sigma was given, `errors` is 1, and `ratio` is in units of sigma. nan
            for columns with too few samples.
        ratio: standard deviations of the residuals over these errors ``[D]``; about 1 if the
            equations explain the series.
        unexplained: share of each column's standard deviation that neither the equations nor the
            errors explain ``[D]``.
        autocorrelation: correlation of neighbouring residuals of each column ``[D]``; about 0 for
            independent errors.
        failures: sentences on why the equations do not explain the series; empty if they do.
        notes: sentences on what else limits the trust in them.
    """

    errors: Tensor
    ratio: Tensor
    unexplained: Tensor
    autocorrelation: Tensor
    failures: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether there are no failures."""
        return not self.failures

    def __str__(self) -> str:
        said = [*self.failures, *self.notes]
        return " ".join(said) or "The equations explain the series as well as a smooth curve does."


def judged(
    candidate: Candidate,
    measured: Series,
    left_out: Tensor,
    degrees: int,
    unidentified: int,
    names: tuple[str, ...],
) -> Diagnostics:
    """Return the diagnostics of a candidate.

    measured: the user's series. left_out ``[S, M, D]``: which of its values the candidate was
    fitted without. degrees: of freedom. unidentified: the number of parameters that the data do not
    tell.
    """
    data, seen = candidate.problem.data, candidate.problem.data.seen
    share = max(degrees / max(int(seen.sum()), 1), 0.1)
    errors, deviation, ratio, is_misfit = _compared_with_errors(candidate, degrees)
    count, spread = seen.sum((0, 1)), data.spread()
    missed = (deviation.square() - errors.square()).clamp(min=0).sqrt() / spread
    correlation, pairs = _autocorrelation(candidate.residuals(), seen)
    failed: list[str] = []
    caveats: list[str] = []
    for d, name in enumerate(names):
        if not count[d] or not spread[d] > 0 or bool(deviation[d] <= 2 * data.exact[d]):
            continue
        much = bool(missed[d] > MAX_MISSED)
        is_far = bool(ratio[d] > MAX_RATIO) and bool(missed[d] > MUCH_MISSED)
        if is_misfit[d] or is_far:
            of = "sigma" if data.has_sigma else "the residuals of a smooth curve"
            text = f"The residuals of {name} are {float(ratio[d]):.3g} times as large as {of}"
            text += f": the equations miss {100 * float(missed[d]):.3g} % of its variation."
            lost = 0.0 if much else _lost(candidate, d)
            if lost > MAX_LOST:
                text += f" With the smooth curve's initial values they miss {100 * lost:.3g} %."
            (failed if much or lost > MAX_LOST else caveats).append(text)
        elif correlation[d] > max(MAX_AUTOCORRELATION, MAX_DEVIATIONS / math.sqrt(pairs[d])):
            text = f"Neighbouring residuals of {name} are correlated (autocorrelation "
            text += f"{float(correlation[d]):.2f}): they are not independent measurement errors."
            share_left = deviation[d] / spread[d]
            (failed if share_left > MAX_MISSED and not data.has_sigma else caveats).append(text)
        else:
            caveats += _unlike(candidate, d, name, float(ratio[d]), float(count[d]) * share)
    if jumps := _jumps(measured):
        rough = is_rough(candidate, distances_from_neighbours(measured)[1])
        (failed if rough else caveats).extend(jumps)
    (failed if _differ(candidate, measured.part) else caveats).extend(_begun_again(measured))
    failed += limit_notes(measured, names, deviation > 2 * data.exact)
    caveats += outlier_notes(candidate, measured, left_out, names)
    explained = _explained(candidate)
    if not explained >= MIN_EXPLAINED:
        text = "The equations explain less than half of the series' variation"
        failed.append(f"{text} (R2 = {explained:.2f}).")
    elif explained < MOST_EXPLAINED:
        caveats.append(f"R2 = {explained:.2f}.")
    if degrees <= 0:
        failed.append("There are no more measurements than parameters: any equations would fit.")
    caveats += _few_measurements(int(seen.sum()), degrees)
    rows = candidate.problem.shape.coefficients(*candidate.problem.shape.split(candidate.x)[:2])
    failed += _undefined(candidate, names)
    still = [name for name, row in zip(names, rows, strict=False) if not row.any()]
    if still:
        caveats.append(f"The equations hold {', '.join(still)} constant.")
    constant = [name for name, fixed in zip(names, data.constant.tolist(), strict=False) if fixed]
    if constant:
        text = f"{', '.join(constant)}: constant in the series"
        caveats.append(f"{text}. The data cannot show what depends on it.")
    if unidentified:
        caveats.append(
            f"The data do not determine all parameters ({unidentified}, see `unidentified`)."
        )
    unit = torch.ones_like(errors) if data.in_proportion or data.has_sigma else data.size
    parts = errors * unit, ratio, missed, correlation
    errors, ratio, missed, correlation = (torch.where(count > 0, p, math.nan) for p in parts)
    return Diagnostics(errors, ratio, missed, correlation, tuple(failed), tuple(caveats))


def _unlike(candidate: Candidate, d: int, name: str, ratio: float, degrees: float) -> list[str]:
    """Return sentences on residuals of a column that are not what errors are taken for.

    ratio: of the residuals to the errors.
    """
    from scipy.special import chdtr, chdtrc

    data = candidate.problem.data
    if data.has_sigma:
        squares = degrees * ratio**2
        if min(chdtr(degrees, squares), chdtrc(degrees, squares)) >= MAX_CHANCE:
            return []
        return [f"The residuals of {name} are {ratio:.3g} times as large as sigma."]
    if data.in_proportion:
        return []
    seen = data.seen[..., d]
    states = candidate.problem.states(candidate.x.unsqueeze(0))[0][..., d]
    sizes = candidate.residuals()[..., d]
    times = times_as_large(states[seen].abs().numpy(), sizes[seen].abs().numpy())
    if times <= MANY_TIMES:
        return []
    return [
        f"Errors of {name} are {times:.2g} times as large where {name} is large: "
        "sigma='proportional' fits errors proportional to the states."
    ]


def lost_from_curve(candidate: Candidate, degrees: int) -> float:
    """Return the share of the variation that is missed from the smooth curve's first states.

    The largest share counts, of states whose residuals are greater than errors are by chance.
    """
    columns = _compared_with_errors(candidate, degrees)[3].nonzero().squeeze(1).tolist()
    return max((_lost(candidate, d) for d in columns), default=0.0)


def _compared_with_errors(
    candidate: Candidate, degrees: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return standard deviations of errors and residuals ``[D]``, and how many times these are.

    The errors are those without any equation. The last part ``[D]`` says whose residuals are so
    much greater that it is no chance.
    """
    data, count = candidate.problem.data, candidate.problem.data.seen.sum((0, 1)).double()
    share = max(degrees / max(int(count.sum()), 1), 0.1)
    deviation = (candidate.residuals().square().sum((0, 1)) / (count * share)).sqrt()
    if data.has_sigma:
        errors, freedom = torch.ones_like(deviation), torch.full_like(deviation, math.inf)
    else:
        errors, freedom = smooth_errors(data)
    floor = torch.zeros_like(errors) if data.has_sigma else data.exact
    ratio = deviation / torch.maximum(errors, floor)
    chances = map(_chance, ratio, count * share, freedom)
    is_rare = torch.tensor([chance < MAX_CHANCE for chance in chances])
    is_inexact = (data.spread() > 0) & (deviation > 2 * data.exact)
    return errors, deviation, ratio, is_inexact & (ratio > MAX_RATIO) & is_rare


def _lost(candidate: Candidate, d: int) -> float:
    """Return the share of a state's variation that is missed from the curve's first states.

    Where the errors are much smaller than the residuals, the smooth curve tells these states better
    than the equations do. 0 for states without a curve.
    """
    shape, first = candidate.problem.shape, smoothed(candidate.problem.data)[0][:, 0]
    exponents, rates, _ = shape.split(candidate.x)
    x = shape.join(exponents, rates, first)
    residuals = replace(candidate, x=x).residuals()[..., d][candidate.problem.data.seen[..., d]]
    share = residuals.square().mean().sqrt() / candidate.problem.data.spread()[d]
    return float(share.nan_to_num(math.inf)) if first.isfinite().all() else 0.0


def _explained(candidate: Candidate) -> float:
    """Return the share of the variation that is explained, R2, with columns weighted equally.

    A series without variation counts as explained.
    """
    data = candidate.problem.data
    variation = data.spread().square() * (data.seen.sum((0, 1)) - 1)
    varies = variation > 0
    left = candidate.residuals().square().sum((0, 1))[varies] / variation[varies]
    return 1 - float(left.mean()) if len(left) else 1.0


def _jumps(data: Series) -> list[str]:
    """Return sentences on inputs that jump between samples."""
    return [
        f"{name} jumps between two samples (first from t = {jump[0]:.6g} to {jump[1]:.6g}), where "
        "it is interpolated linearly: if it is switched, add the times just before and after each "
        "edge."
        for name, jump in zip(data.names[len(data.names) - data.inputs :], data.jumps, strict=True)
        if jump
    ]


def _begun_again(data: Series) -> list[str]:
    """Return a sentence on times that begin again within a series."""
    if not data.begins:
        return []
    rows = ", ".join(map(str, data.begins[:NAMED_ROWS]))
    more = f" and {len(data.begins) - NAMED_ROWS} more" if len(data.begins) > NAMED_ROWS else ""
    return [
        f"The times begin again at row {rows}{more} (the first row is 0), and all rows were taken "
        "as one series: pass several series as lists, t=[t1, t2], u=[u1, u2]."
    ]


def _differ(candidate: Candidate, part: Tensor | None) -> bool:
    """Return whether the residuals within a part of a series are alike, as of another series."""
    if part is None:
        return False
    seen, residuals = candidate.problem.data.seen, candidate.residuals()
    numbers = range(int(part.max()) + 1)
    of_parts = torch.cat([seen & (part == n).unsqueeze(2) for n in numbers])
    correlation, pairs = _autocorrelation(residuals.repeat(len(numbers), 1, 1), of_parts)
    limit = (MAX_DEVIATIONS / pairs.sqrt()).clamp(min=MAX_AUTOCORRELATION)
    return bool((correlation > limit).any())


def _few_measurements(count: int, degrees: int) -> list[str]:
    """Return a sentence if there are few measurements for the parameters. degrees: of freedom."""
    if 0 < degrees < FEW_DEGREES:
        return [f"Degrees of freedom: {degrees}. Nearly any equations would fit."]
    if degrees <= 0 or count >= FEW_MEASUREMENTS * (count - degrees):
        return []
    text = f"{count} measurements are few for {count - degrees} parameters"
    return [f"{text}: other equations may fit as well."]


def _undefined(candidate: Candidate, names: tuple[str, ...]) -> list[str]:
    """Return sentences for states that were measured where powers are not defined."""
    powers = candidate.problem.shape.split(candidate.x)[0]
    return [
        f"{name} has values below 0 that are not measurement errors, and the equations have powers "
        "of it that are not defined there."
        for d, name in enumerate(names)
        if not (powers[:, d] == powers[:, d].round()).all()
        and is_below_zero(candidate.problem.data, d)
    ]


def smooth_errors(data: Series) -> tuple[Tensor, Tensor]:
    """Return the standard deviations ``[D]`` of the errors without any equation, and their degrees.

    A spline through few points may follow their errors. So its residuals count only where they are
    greater than what neighbouring samples deviate from polynomials. nan: too few samples.
    """
    squares, count = torch.zeros(2, data.values.shape[2], dtype=torch.float64).unbind(0)
    for s in range(len(data.times)):
        for d in range(data.values.shape[2]):
            seen = data.seen[s, :, d]
            t, y = data.times[s, seen], data.values[s, seen, d]
            keep = torch.cat([t.new_ones(1), t.diff()])[: len(t)] > 0  # the first of one time
            t, y = t[keep], y[keep].log() if data.relative else y[keep]
            weight = data.weight[s, seen, d][keep]
            if len(t) > ORDER:
                times, values = t.unfold(0, ORDER + 1, 1), y.unfold(0, ORDER + 1, 1)
                gaps = times.unsqueeze(2) - times.unsqueeze(1) + torch.eye(ORDER + 1)
                weights = 1 / gaps.prod(2)  # of a divided difference
                spreads = weights / weight.unfold(0, ORDER + 1, 1)
                weights = weights / spreads.norm(dim=1, keepdim=True)
                squares[d] += (weights * values).sum(1).square().sum()
                count[d] += len(times)
    errors, freedom = spline_errors(data)
    local = torch.where(count > 0, squares / count.clamp(min=1), math.nan).sqrt()
    is_local = ~(errors > local)
    return torch.where(is_local, local, errors), torch.where(is_local, count / 2, freedom)


def _chance(ratio: Tensor, degrees: Tensor, freedom: Tensor) -> float:
    """Return the probability of so great a ratio for the right equations, by the F distribution."""
    from scipy import stats

    square, count = float(ratio) ** 2, max(float(degrees), 1.0)
    if math.isinf(float(freedom)):
        return float(stats.chi2.sf(square * count, count))
    return float(stats.f.sf(square, count, max(float(freedom), 1.0)))


def _autocorrelation(residuals: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the autocorrelation of neighbouring residuals ``[D]``, and the numbers of pairs."""
    products, squares, pairs = (residuals.new_zeros(residuals.shape[2]) for _ in range(3))
    for series, present in zip(residuals, seen, strict=True):
        for d in range(residuals.shape[2]):
            values = series[present[:, d], d]
            products[d] += (values[1:] * values[:-1]).sum()
            squares[d] += values.square().sum()
            pairs[d] += max(len(values) - 1, 0)
    return products / squares.clamp(min=1e-300), pairs.clamp(min=1)


def advice(candidate: Candidate, degrees: int, searched: bool, starts: int, terms: int) -> str:
    """Return what to try after a poor fit.

    degrees: of freedom. searched: whether the fit began with any candidates. starts, terms: the
    model's.
    """
    if degrees <= 0:
        return "More measurements are needed, or equations with fewer parameters."
    data = candidate.problem.data
    used = int((candidate.problem.shape.split(candidate.x)[1] != 0).any(0).sum())
    tries = []
    if not searched:
        tries.append("init='search', which uses only the sizes of the model")
    elif used in (0, terms):
        tries.append(f"more terms than {terms} (the NPU's out_features)")
    tries.append(f"more random initialisations than {starts} (num_models)")
    if not data.in_proportion and not data.has_sigma:
        tries.append("sigma='proportional' if errors grow with the values")
    tries.append("more states, measured or not (observed=)")
    return (
        f"Try {'; '.join(tries)}. Quotients of sums, exponentials and functions of time itself are "
        "not sums of products of powers."
    )


def poor_fit(diagnostics: Diagnostics, hint: str) -> PoorFitWarning:
    """Return the warning of a poor fit; hint: what to try."""
    text = (
        f"{NAME}: the equations do not explain the series. {' '.join(diagnostics.failures)} {hint}"
    )
    return PoorFitWarning(text, diagnostics)
