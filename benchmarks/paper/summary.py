"""Statistics of runs: median, spread, intervals, comparisons; numbers with their spread as text."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

DRAWS = 10_000  # samples of a bootstrap
MIN_RUNS = 6  # runs that have an interval
SAME = "no difference"  # a verdict
Statistic = Callable[[Sequence[float]], float]
T = TypeVar("T")


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two; nan for none."""
    return statistics.median(values) if values else math.nan


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def interval(statistic: Statistic, values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the statistic; None for fewer than six runs.

    The median's is exact, between two of the sorted values; the mean's comes from a bootstrap.
    """
    count = len(values)
    if count < MIN_RUNS:
        return None
    if statistic is mean:
        drawn = means_of_samples(values)
        return float(drawn[int(0.025 * DRAWS)]), float(drawn[int(0.975 * DRAWS)])
    cut = 0  # values outside on either side: at most 2.5 % of binomial(count, 1/2)
    while sum(math.comb(count, i) for i in range(cut + 2)) <= 0.025 * 2**count:
        cut += 1
    ranked = sorted(values)
    return ranked[cut], ranked[-1 - cut]


def means_of_samples(values: Sequence[float]) -> np.ndarray:
    """Ascending means of samples as large as `values`, drawn with replacement, always the same."""
    drawn = np.random.default_rng(0).choice(np.asarray(values, dtype=float), (DRAWS, len(values)))
    return np.sort(drawn.mean(1))


def bootstrap(
    statistic: Callable[[list[T]], float], runs: Sequence[T]
) -> tuple[float, float] | None:
    """The 95 % interval of any statistic, by a bootstrap of whole runs; None for fewer than six.

    A run may be many values, which depend on one another: a sample has all of them or none.
    """
    if len(runs) < MIN_RUNS:
        return None
    return quantiles([statistic(sample) for sample in samples(runs)])


def samples(runs: Sequence[T], key: int = 0) -> Iterator[list[T]]:
    """1,000 samples as large as `runs`, drawn with replacement; others for another key."""
    chosen = np.random.default_rng(key).integers(len(runs), size=(DRAWS // 10, len(runs))).tolist()
    return ([runs[index] for index in sample] for sample in chosen)


def quantiles(drawn: Iterable[float]) -> tuple[float, float]:
    """The ends of the middle 95 %."""
    ranked = sorted(drawn)
    return ranked[int(0.025 * len(ranked))], ranked[int(0.975 * len(ranked))]


def divided(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return quotients; 1 for two infinite numbers and for two zeros."""
    with np.errstate(all="ignore"):
        quotients = np.asarray(above / below)
    quotients[np.isnan(quotients)] = 1.0
    return quotients


def compared(
    ours: np.ndarray | None, theirs: np.ndarray | None, unknown: str = "too few runs"
) -> tuple[tuple[float, float] | None, str]:
    """The 95 % interval of ours / theirs, and whether they differ (`unknown`: no draws)."""
    if ours is None or theirs is None:
        return None, unknown
    low, high = quantiles(divided(ours, theirs).tolist())
    return (low, high), "**ours greater**" if low > 1 else "**ours less**" if high < 1 else SAME


def probability(values: Sequence[float], centre: float, error: float) -> float:
    """The chance that two means lie at least as far apart as ours and a published one, `centre`.

    Two-sided: twice the share of differences that have the other sign, of ours by a bootstrap and a
    normal one of the published with its standard error. nan for no runs.
    """
    if not values:
        return math.nan
    theirs = np.random.default_rng(1).normal(centre, error if math.isfinite(error) else 0.0, DRAWS)
    ours = means_of_samples(values)
    return min(1.0, 2 * float(min((ours >= theirs).mean(), (ours <= theirs).mean())))


def number(value: float, digits: int = 3) -> str:
    """Three significant digits, powers of ten where they are shorter."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return f"{value:.{decimals}f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def same_share(count: int, total: int, other: int, of: int) -> float:
    """Fisher's exact two-sided probability that two shares differ by chance as much as these."""
    from scipy.stats import fisher_exact

    table = [[count, total - count], [other, of - other]]
    return float(fisher_exact(table).pvalue)


def wilson(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % confidence interval of a share of which `count` of `total` trials were seen."""
    if total == 0:
        return 0.0, 1.0
    from scipy.stats import binomtest

    low, high = binomtest(count, total).proportion_ci(method="wilson")
    return float(low), float(high)


SIGNS = {"add": "+", "mul": "×", "div": "÷", "sqrt": "√", "sub": "-"}


def plus_minus(centre: float, spread: float) -> str:
    """A number, and its spread where it has one."""
    return number(centre) if math.isnan(spread) else f"{number(centre)} ± {number(spread, 2)}"


def between(value: float, bounds: tuple[float, float] | None) -> str:
    """A number, and its interval where it has one."""
    return number(value) + (f" ({number(bounds[0])} to {number(bounds[1])})" if bounds else "")


def middle(values: Sequence[float], of: Statistic = median) -> str:
    """A statistic of runs with its 95 % interval."""
    return between(of(values), interval(of, values))


def probable(value: float) -> str:
    """A probability with two digits."""
    return "< 0.001" if value < 0.001 else f"{value:.{2 if value >= 0.0995 else 3}f}"
