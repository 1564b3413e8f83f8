"""Test errors of one step: runs with the same training points swing together from step to step.

The errors of all runs of a cell at one step are those of their middle, times a factor that all have
in common. The authors' numbers and those of `large` have one draw of that factor each.
`large-snapshots` has many: the errors of a run at its last steps, over their median. So the
interval of a statistic of one step is that of samples of the runs, each divided by a drawn factor.
Where each run has points of its own, a run's own swing counts as the common one; then the interval
is rather too wide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.paper import published
from benchmarks.paper.large import snapshots
from benchmarks.paper.summary import FEWEST, Statistic, divided, quantiles, samples
from benchmarks.paper.tables import Rows, select

BEST = 10  # Table 1 shows the runs with the lowest test error


def paper_points(task: str, model: str) -> list[float]:
    """The published test errors: ten runs, or fewer."""
    return [p["test_mse"] for p in select(published.load("pareto"), task=task, model=model)]


class Swing:
    """The last steps of the runs of one task and model.

    Args:
        rows: of `large-snapshots`.
        task, model: the cell, with the authors' start of the gate.
    """

    def __init__(self, rows: Rows, task: str, model: str) -> None:
        runs = [row for row in select(rows, task=task, model=model) if snapshots.authors(row)]
        independent, shared = (
            [snapshots.errors(row) for row in select(runs, points=points)]
            for points in ("own", "shared")
        )
        self.shared = len(shared) > 0 and (len(shared) >= FEWEST or len(independent) < FEWEST)
        self.runs = np.array(shared if self.shared else independent)  # [runs, steps]
        self.own = np.array(independent)

    def factors(self) -> np.ndarray:
        """The cell's error at each step over its middle; empty without runs."""
        if not len(self.runs):
            return np.ones(0)
        middles = np.quantile(self.runs, 0.5, axis=1, keepdims=True, method="lower")
        ratios = divided(self.runs, middles)
        return np.quantile(ratios, 0.5, axis=0, method="lower") if self.shared else ratios.flatten()

    def draws(self, of: Statistic, values: Sequence[float], key: int = 0) -> np.ndarray | None:
        """A statistic of samples of the runs, without the factor of their step.

        None where there are too few runs, or none with many steps.
        """
        factors = self.factors()
        if len(values) < FEWEST or not len(factors):
            return None
        drawn = np.array([of(sample) for sample in samples(values, key)])
        return divided(drawn, np.random.default_rng(1000 + key).choice(factors, len(drawn)))

    def best_of(self, count: int) -> tuple[float, float] | None:
        """The middle 95 % of Table 1's numbers: the median of the ten best of `count` runs.

        The runs are drawn at one of the last steps, the same for all of them where they share their
        points. None for fewer than six runs.
        """
        if len(self.runs) < FEWEST:
            return None
        rng = np.random.default_rng(2)
        steps = rng.integers(self.runs.shape[1], size=(1000, 1 if self.shared else count))
        drawn = self.runs[rng.integers(len(self.runs), size=(1000, count)), steps]
        chosen = np.sort(drawn, axis=1)[:, :BEST]
        with np.errstate(all="ignore"):
            return quantiles((chosen[:, BEST // 2 - 1] + chosen[:, BEST // 2]) / 2)


def around(drawn: np.ndarray | None) -> tuple[float, float] | None:
    """The 95 % interval of draws."""
    return None if drawn is None else quantiles(drawn.tolist())
