"""The result of `fit`: equations as a module and as text, their uncertainty, predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from npu_kernels._common import display
from npu_kernels._common.checks import check_level
from npu_kernels.equations._numbers import MAX_DENOMINATOR, Interval
from npu_kernels.equations._series.candidates import Candidate, Visited
from npu_kernels.equations._series.data import Series, read_inputs, tensor
from npu_kernels.equations._series.diagnostics import Diagnostics, judged
from npu_kernels.equations._series.estimates import (
    Estimate,
    distances,
    estimated,
    unscaled,
    unscaled_coefficients,
)
from npu_kernels.equations._series.sensitivity import (
    EPSILON,
    IMPLICIT,
    Weights,
    adaptive_call,
    flow,
)
from npu_kernels.equations._series.simplify import WINDOW, alternatives
from npu_kernels.layers import NAU, RealNPU
from npu_kernels.ode import _adaptive as adaptive
from npu_kernels.ode import _inputs as known
from npu_kernels.ode import _methods as methods
from npu_kernels.ode._adaptive import DONE, TOO_MANY
from npu_kernels.ode._inputs import Inputs

if TYPE_CHECKING:
    from npu_kernels.formula import Formula

# ---- trajectories --------------------------------------------------------------------------------
# The trajectory of fitted equations at any times: between the nodes of its series, and beyond
# them.

TOLERANCE = 1e-9  # rtol and atol, of scaled states, beyond the series
MAX_PREDICTION_STEPS, MAX_AT_BOUND = 1_000_000, 100  # of a trajectory; with as many it is stiff


@dataclass(frozen=True)
class Path:
    """A series' trajectory. Its states are scaled, its times are the user's."""

    candidate: Candidate
    series: int
    nodes: Tensor  # [M], times
    table: known.Inputs | None  # the equations' inputs, None without any

    @cached_property
    def weights(self) -> Weights:
        """Exponents ``[1, h, D + J]`` and coefficients ``[1, D, h]`` of the scaled equations."""
        shape = self.candidate.problem.shape
        exponents, rates, _ = shape.split(self.candidate.x.unsqueeze(0))
        states = shape.states - shape.inputs
        return Weights(exponents, shape.coefficients(exponents, rates)[:, :states])

    @cached_property
    def starts(self) -> Tensor:
        """The states ``[M, D]`` at the nodes, as they were fitted."""
        path = self.candidate.problem.states(self.candidate.x.unsqueeze(0))[0, self.series]
        return path[:, : self.weights.coefficients.shape[1]]

    def along(self, times: Tensor) -> Tensor:
        """Return the states ``[m, D]`` at times; within the series by the steps of the fit."""
        first, last = float(self.nodes[0]), float(self.nodes[-1])
        states = times.new_empty(len(times), self.starts.shape[1])
        is_early, is_late = times < first, times > last
        within = ~(is_early | is_late)
        states[within] = self._between(times[within])
        states[is_early] = self.beyond(self.starts[0], times[is_early], first)
        states[is_late] = self.beyond(self.starts[-1], times[is_late], last)
        return states

    def _between(self, times: Tensor) -> Tensor:
        """Return the states at times within the series, each from the node before."""
        data = self.candidate.problem.data
        node = torch.searchsorted(self.nodes, times, right=True) - 1
        begin, lengths = self.starts[node], (times - self.nodes[node]) / data.time
        equations = self.weights.repeated(len(times))
        if data.slopes is not None:
            slopes = data.slopes[self.series]
            values = data.values[self.series, node, -data.inputs :]
            begin = torch.cat([begin, values], 1)
            wide = torch.nn.functional.pad(equations.coefficients, (0, 0, 0, data.inputs))
            slopes = slopes[node.clamp(max=len(slopes) - 1)]
            equations = equations._replace(coefficients=wide).driven(slopes)
        problem = self.candidate.problem
        path = flow(equations, begin, lengths, problem.steps, method=problem.method)
        return path[:, -1, : self.starts.shape[1]]

    def beyond(self, u: Tensor, times: Tensor, first: float) -> Tensor:
        """Return the states at times in any order, from the state u at the first, before or after.

        Steps are adaptive. Behind a pole the states are nan.
        """
        states = times.new_empty(len(times), len(u))
        for part, order in ((times >= first, 1.0), (times < first, -1.0)):
            index = part.nonzero().squeeze(1)
            index = index[(order * times[index]).argsort(stable=True)]
            path = torch.cat([times.new_tensor([first]), times[index]])
            distinct, number = path.unique_consecutive(return_inverse=True)
            ordered = self._ordered(u, distinct) if len(distinct) > 1 else u.unsqueeze(0)
            states[index] = ordered[number[1:]]
        return states

    def _ordered(self, u: Tensor, times: Tensor) -> Tensor:
        """Return the states at times that rise or fall, from the state u at the first."""
        data, weights = self.candidate.problem.data, self.weights
        origin = float(self.nodes[0])
        scaled_times = (times - origin) / data.time
        if self.table is None:
            return self._solved(weights, u, scaled_times)
        table = known.Inputs(
            (self.table.times - origin) / data.time, self.table.values / data.size[-data.inputs :]
        )

        def solve(segment: known.Segment, state: Tensor) -> Tensor:
            equations = known.driven(weights.of_layers(), segment.slope, False)
            begin = known.with_inputs(state, segment.first)
            return self._solved(Weights(equations[0], equations[3]), begin, segment.times)[
                :, : len(u)
            ]

        return known.along(known.segments("predict", table, scaled_times), u, solve)

    def _solved(self, equations: Weights, u: Tensor, times: Tensor) -> Tensor:
        """Return the states at times from the state u at the first, by adaptive steps."""
        is_implicit = self.candidate.problem.method == IMPLICIT
        path = u.unsqueeze(0)
        for method in (IMPLICIT,) if is_implicit else (methods.EXPLICIT, IMPLICIT):
            at_bound = MAX_PREDICTION_STEPS + 1 if method == IMPLICIT else MAX_AT_BOUND
            call = adaptive_call(method, TOLERANCE, MAX_PREDICTION_STEPS, at_bound)
            path, counts, _, _ = adaptive.run(call, times, u.unsqueeze(0), equations.of_layers())
            status = int(counts[0, 0, 3])
            if status == DONE:
                break
        if status == TOO_MANY:
            raise ValueError(
                f"predict: t must be within {MAX_PREDICTION_STEPS} adaptive steps, got times whose "
                "last one is not reached by so many"
            )
        return path[0]


# ---- the result ----------------------------------------------------------------------------------

SMALL_UNIT = 1e-3  # size of a state: smaller ones have an eps of this size, as in the fit
MAX_RELATIVE_ERROR = 1.0  # standard error; above, the data hardly tell a coefficient


@dataclass(frozen=True)
class SeriesFitResult:
    """The equations of time series that `fit` returns.

    Attributes:
        model: ``RealNPU(D, n) -> NAU(n, D)`` in float64, for `rollout`; with J inputs its NPU has
            D + J in_features. If the states are small, its eps is reduced in proportion, because
            the fit scales the states to about 1.
        names: names of the D states.
        input_names: names of the exogenous inputs.
        u0: states at the first times ``[S, D]``.
        nrmse: root mean square of the residuals, each divided by the standard deviation of all
            values of its column (not by the noise); of logarithms if logarithms were fitted.
        sigma: standard deviations of the residuals of each column ``[D]``, an estimate of the
            noise (proportional errors: relative to the state; nan for states that were not
            measured); None if the user gave sigma.
        bic: Bayesian information criterion with a description-length term.
        df_resid: number of measurements minus number of parameters.
        estimates: the parameters.
        unidentified: parameters, and sets of parameters, that the data do not determine.
        complete: False after Ctrl-C.
        seconds: time that the fit took.
        max_step: longest time step of the fit with rk4.
        data: the series, with the outliers removed.
        left_out: mask of the outliers ``[S, M, D]``: values far from the curve of the equations
            that were fitted to the other values.
        candidate: internal: the equations, for states and times divided by their scales.
        free: the same form, fitted with free exponents in place of fractions.
        visited: equations of other forms, for `alternatives`.
        max_denominator: maximum denominator of exponents, 0 without fractions.
    """

    model: nn.Sequential
    names: tuple[str, ...]
    input_names: tuple[str, ...]
    u0: Tensor
    nrmse: float
    sigma: Tensor | None
    bic: float
    df_resid: int
    estimates: tuple[Estimate, ...] = field(repr=False)
    unidentified: tuple[str, ...]
    complete: bool
    seconds: float
    max_step: float
    data: Series = field(repr=False)
    left_out: Tensor = field(repr=False)
    candidate: Candidate = field(repr=False)
    free: Candidate = field(repr=False)
    visited: Visited = field(repr=False)
    max_denominator: int = field(repr=False)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Exponents ``[1, n, D]`` and coefficients ``[1, D, n]``."""
        power, nau = self.model
        assert isinstance(power, RealNPU)
        assert isinstance(nau, NAU)
        return power.weight_re.detach().unsqueeze(0), nau.weight.detach().unsqueeze(0)

    @property
    def method(self) -> str:
        """Method of integration, "rk4" or, for stiff equations, "kvaerno5"."""
        return self.candidate.problem.method

    # ---- the equation --------------------------------------------------------------------------

    @property
    def equation(self) -> Formula:
        """The equations as a `npu_kernels.formula.Formula`, one line per state. Needs sympy."""
        from npu_kernels.formula import extract

        names = *self.names, *self.input_names
        flags = zip(names, self.data.positive.tolist(), strict=True)
        positive = [name for name, is_positive in flags if is_positive]
        outputs = [f"{name}'" for name in self.names]
        return extract(self.model, names, outputs=outputs, nonnegative=positive)

    def sympy(self) -> tuple[Any, ...]:
        """The right-hand sides as sympy expressions, one for each state."""
        return self.equation.expressions

    def latex(self) -> list[str]:
        """One equation in LaTeX for each state, without dollars."""
        return self.equation.latex()

    # ---- uncertainty ---------------------------------------------------------------------------

    @property
    def stderr(self) -> dict[str, float]:
        """Standard errors of all parameters by name; inf if the data do not determine one."""
        return {estimate.name: estimate.stderr for estimate in self.estimates}

    def confidence_intervals(self, level: float = 0.95) -> list[Interval]:
        """Return confidence intervals of coefficients, exponents and fitted initial values.

        level: confidence level.

        The intervals are profile likelihood intervals, given the terms. An interval ends where the
        sum of squares, with all other parameters fitted again, has risen by the square of Student's
        t (of the normal quantile if the user gave sigma), in units of the error variance. An end
        that is not reached is infinite, or 0 for a coefficient of a term with free exponents, which
        keeps its sign. Intervals stay within the bounds of exponents and the signs of the search.
        If exponents were rounded to fractions, exponents keep the estimates and intervals of free
        exponents, and the intervals of coefficients and initial values take the fractions as given.
        Every call makes these fits, in one batch.
        """
        from scipy import stats

        level = check_level("confidence_intervals", level)
        degrees = math.inf if self.sigma is None else self.df_resid
        t = float(stats.t.ppf(0.5 + level / 2, degrees)) if degrees > 0 else math.inf
        limits = {estimate.name: (-math.inf, math.inf) for estimate in self.estimates}
        for candidate, is_final in ((self.candidate, True), (self.free, False)):
            determined = [e for e in self.estimates if (e.taken is None) is is_final]
            determined = [e for e in determined if math.isfinite(e.stderr * t)]
            low, high = distances(
                candidate, [e.index for e in determined], [e.logarithmic for e in determined], t
            )
            for estimate, *pair in zip(determined, low.tolist(), high.tolist(), strict=True):
                below, above = sorted(map(estimate.at, pair))
                limits[estimate.name] = below, above
        bounds = torch.stack(self.candidate.problem.shape.limits(), 1).tolist()
        return [
            Interval(e.name, e.value, e.stderr, *limits[e.name]).within(*bounds[e.index])
            for e in self.estimates
        ]

    def alternatives(self) -> list[SeriesFitResult]:
        """Return equations of other forms that are not distinguishable from this result.

        The best alternative comes first. Posterior odds of alternatives to this result are above
        1:20: their `bic` is at most 6.0 higher. The candidates are the forms that the search
        visited, and this form without one of its parameters. They are fitted again in the first
        call or report. The true equations need not be among them. No alternative has a lower `bic`
        than the result, unless ``simplify=False``.
        """
        return list(self._alternatives)

    @cached_property
    def _alternatives(self) -> list[SeriesFitResult]:
        from npu_kernels.equations._series.candidates import Job

        job = Job("alternatives", 1, {})
        candidates = alternatives(
            self.candidate, self.free, self.visited, self.max_denominator, job
        )
        seconds, limit = job.seconds, self.max_denominator
        return [
            finished(candidate, free, self.data, seconds, True, {}, limit, self.left_out)
            for candidate, free in candidates
        ]

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Residuals compared with a smooth curve's: do the equations explain the series?"""
        unidentified = len(self.unidentified)
        return judged(
            self.candidate, self.data, self.left_out, self.df_resid, unidentified, self.names
        )

    # ---- predictions ---------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, t: Any, u0: Any = None, series: int = 0, inputs: Any = None) -> Any:
        """Return the states ``[M, D]`` at times t ``[M]``, as a tensor if t is one, else an array.

        t: times in any order. u0: states ``[D]`` at the earliest of these times; None: the
        trajectory of a fitted series. series: index of that series. inputs: as in `fit`, if the
        equations have inputs; None: the inputs of that series.
        """
        times = tensor("predict", "t", t)
        if times.dim() != 1 or not len(times) or not times.isfinite().all():
            raise ValueError(f"predict: t must be finite times of shape (M,), got {t!r}")
        if not -len(self.u0) <= series < len(self.u0):
            raise ValueError(
                f"predict: series must be one of the {len(self.u0)} series, got {series!r}"
            )
        path, size = self._path(inputs, series), self.candidate.problem.data.size[: len(self.names)]
        if u0 is None and inputs is None:
            states = path.along(times) * size
        elif u0 is None:
            states = path.beyond(path.starts[0], times, float(path.nodes[0])) * size
        else:
            start = tensor("predict", "u0", u0)
            if start.shape != self.u0.shape[1:] or not start.isfinite().all():
                raise ValueError(
                    f"predict: u0 must be finite of shape ({len(self.names)},), got {u0!r}"
                )
            first = times.min()
            states = path.beyond(start / size, times, float(first)) * size
            states = torch.where((times == first).unsqueeze(1), start, states)
        return states if isinstance(t, Tensor) else states.numpy()

    def _inputs(self, inputs: Any, series: int) -> Inputs | None:
        """Return the inputs of a prediction, None for equations without any."""
        if not self.input_names:
            if inputs is not None:
                raise ValueError("predict: inputs must be None for equations without inputs")
            return None
        if inputs is None:
            times = self.data.times[series]
            is_new = torch.cat([times.new_ones(1), times.diff()]) > 0
            return Inputs(times[is_new], self.data.values[series, is_new, len(self.names) :])
        (table,) = read_inputs(inputs, 1, "predict")
        if table.values.shape[1] != len(self.input_names):
            raise ValueError(
                f"predict: inputs must have {len(self.input_names)} columns, "
                f"{', '.join(self.input_names)}, got {table.values.shape[1]}"
            )
        return table

    def _path(self, inputs: Any, series: int) -> Path:
        """Return the fitted trajectory of one of the series, with its inputs or other ones."""
        return Path(self.candidate, series, self.data.times[series], self._inputs(inputs, series))

    def plot(self) -> Any:
        """Return a matplotlib figure of points and fitted curves, a panel for each state."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("plot needs matplotlib: pip install matplotlib") from error
        height = 0.5 + 1.8 * len(self.names)
        figure = Figure(figsize=(5.2, height), layout="constrained")
        axes = figure.subplots(len(self.names), 1, squeeze=False, sharex=True)[:, 0]
        for s in range(len(self.u0)):
            t = self.data.times[s]
            fine = torch.linspace(float(t[0]), float(t[-1]), 201, dtype=torch.float64)
            curve = self.predict(fine, series=s)
            for d, axis in enumerate(axes):
                seen = self.data.seen[s, :, d]
                (line,) = axis.plot(fine.numpy(), curve[:, d].numpy())
                points = t[seen].numpy(), self.data.values[s, seen, d].numpy()
                axis.plot(*points, ".", color=line.get_color())
        for name, axis in zip(self.names, axes, strict=True):
            axis.set(title=name)
        axes[-1].set(xlabel="time")
        is_integer = bool((self.data.times == self.data.times.round()).all())  # years, days
        axes[-1].locator_params(axis="x", integer=is_integer)
        return figure

    def __str__(self) -> str:
        return f"{self.equation}\n{self.diagnostics}"

    def _repr_html_(self) -> str:
        rows = [
            (one.name, f"{one.value:.4g}", f"{one.stderr:.2g}", _taken(one.taken))
            for one in self.estimates
        ]
        header = "", "estimate", "standard error", "taken as"
        return display.table(str(self.equation), header, rows, str(self.diagnostics))

    def report(self, level: float = 0.95) -> str:
        """Return the equations, their parameters with intervals, and all warnings, as text.

        level: confidence level of the intervals.
        """
        lines = []
        if not self.complete:
            lines.append("The search was interrupted: these are the best equations so far.")
        count, terms = int(self.data.seen.sum()), self.model[0].out_features
        parameters = len(self.estimates)
        lines.append(
            f"{terms} term{'s' * (terms != 1)}, {parameters} fitted "
            f"parameter{'s' * (parameters != 1)}, {count} measurements in {len(self.u0)} series."
        )
        kind = "the logarithms" if self.data.relative else "the measurements"
        model = "as given" if self.data.has_sigma else "additive"
        if self.data.in_proportion:
            model = "proportional to the states"
        lines.append(
            f"Residual RMS / standard deviation of {kind}: {self.nrmse:.2g}. Error model: {model}."
        )
        if self.method == IMPLICIT:
            lines.append(
                "The equations are stiff, or change fast between samples: they are integrated "
                "with implicit steps."
            )
        lines.append(f"Diagnostics: {self.diagnostics}")
        fitted = self.candidate.problem.data
        if (self.data.start.isnan() & ~fitted.start.isnan() & ~fitted.constant).any():
            lines.append(
                "The initial values are from a smooth curve: fitted initial values would hide what "
                "the equations miss."
            )
        if self.sigma is not None and self.diagnostics.good:
            unit = " of the value" if self.data.in_proportion else ""
            pairs = [
                pair for pair in zip(self.names, self.sigma, strict=True) if pair[1].isfinite()
            ]
            parts = [f"{name} {float(sigma):.3g}{unit}" for name, sigma in pairs]
            lines.append(f"Residual standard deviations: {', '.join(parts)}.")
        observed = zip(self.names, self.data.observed.tolist(), strict=False)
        hidden = [name for name, seen in observed if not seen]
        if hidden:
            lines.append(f"Not measured: {', '.join(hidden)}.")
        lines.append(f"Estimates, standard errors, {100 * level:g} % intervals (given the terms):")
        lines += self._estimate_lines(level)
        for name in self.unidentified:
            lines.append(f"The data do not determine {name}.")
        for estimate in self.estimates:
            bound = MAX_RELATIVE_ERROR * abs(estimate.value)
            if math.isfinite(estimate.stderr) and estimate.stderr > bound:
                lines.append(
                    f"The data hardly determine the {estimate.name}: its standard error is larger "
                    "than its value."
                )
        if similar := len(self._alternatives):
            forms = "one other form" if similar == 1 else f"{similar} other forms"
            lines.append(
                f"Not distinguishable from {forms} (Delta BIC < {WINDOW:.1f}): see alternatives()."
            )
        return f"{self.equation}\n\n{display.wrapped(lines)}"

    def _estimate_lines(self, level: float) -> list[str]:
        lines, outside = list[str](), list[str]()
        for estimate, interval in zip(
            self.estimates, self.confidence_intervals(level), strict=True
        ):
            taken = _taken(estimate.taken)
            lines.append(f"  {interval}{', taken as ' * bool(taken)}{taken}")
            if estimate.taken is not None and not interval.low <= estimate.taken <= interval.high:
                outside.append(estimate.name)
        if outside:
            lines.append(
                f"Taken outside of its interval: {', '.join(outside)}. The intervals are those of "
                "free exponents; the BIC prefers the fractions, but the form is in doubt."
            )
        return lines


def _taken(w: float | None) -> str:
    """Return the number that the equations have in place of an estimate, empty if there is none."""
    from fractions import Fraction

    if w is None:
        return ""
    fraction = Fraction(w).limit_denominator(MAX_DENOMINATOR)
    return str(fraction) if float(fraction) == w else f"{w:.6g}"


# ---- from scaled equations -----------------------------------------------------------------------


def finished(
    candidate: Candidate,
    free: Candidate,
    data: Series,
    seconds: float,
    complete: bool,
    visited: Visited,
    max_denominator: int,
    left_out: Tensor,
) -> SeriesFitResult:
    """Return the result, in the user's units.

    free: the candidate with all of its numbers free. visited, max_denominator: for
    `alternatives`.
    """
    scaled = candidate.problem.data
    exponents, rates, u0 = unscaled(candidate)
    coefficients = unscaled_coefficients(candidate, rates)
    used = (coefficients != 0).any(0)
    used[0] |= not used.any()
    count, smallest = len(data.names) - data.inputs, float(scaled.size.min())
    with torch.random.fork_rng(devices=[]):  # the caller's random state stays
        model = nn.Sequential(
            RealNPU(
                len(data.names),
                int(used.sum()),
                dtype=torch.float64,
                eps=EPSILON * smallest if smallest < SMALL_UNIT else None,
            ),
            NAU(int(used.sum()), count, clip=False, dtype=torch.float64),
        )
    with torch.no_grad():
        model[0].weight_re.copy_(exponents[used])  # type: ignore[operator]
        model[0].gate.copy_((exponents[used] != 0).any(0))  # type: ignore[operator]
        model[1].weight.copy_(coefficients[:count, used])  # type: ignore[operator]
    number = (used.cumsum(0) - 1).tolist()
    estimates, unidentified = estimated(candidate, free, number)
    residuals, seen = candidate.residuals(), scaled.seen
    spread = scaled.spread()
    score = [
        float(residuals[..., d][seen[..., d]].square().mean().sqrt() / spread[d])
        for d in range(len(data.names))
        if seen[..., d].any() and spread[d] > 0
    ]
    sigma = candidate.deviations() * (1.0 if scaled.in_proportion else scaled.size)
    lengths = data.lengths
    return SeriesFitResult(
        model=model,
        names=data.names[:count],
        input_names=data.names[count:],
        u0=u0[:, :count],
        nrmse=math.sqrt(sum(part**2 for part in score) / max(len(score), 1)),
        sigma=None if data.has_sigma else torch.where(data.observed, sigma, math.nan)[:count],
        bic=candidate.bic(),
        df_resid=int(seen.sum()) - int(free.free.sum()),
        estimates=tuple(estimates),
        unidentified=tuple(unidentified),
        complete=complete,
        seconds=seconds,
        max_step=float(lengths.max()) / candidate.problem.steps,
        data=data.without(left_out),
        left_out=left_out,
        candidate=candidate,
        free=free,
        visited=visited,
        max_denominator=max_denominator,
    )
