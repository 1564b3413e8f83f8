"""What `fit` finds in time series: the law as a module and as an equation, its uncertainty, predictions, a report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_level
from npu_kernels._laws.series.data import Series, tensor
from npu_kernels._laws.series.laws import Law
from npu_kernels._laws.series.profile import ends
from npu_kernels._laws.series.sensitivity import flow
from npu_kernels.layers import NAU, RealNPU

if TYPE_CHECKING:
    from npu_kernels.equations import Interval
    from npu_kernels.formula import Formula

UNSURE = 1.0  # relative standard error from which the data hardly tell a coefficient
SHARE = 0.3  # of a direction's greatest part: parameters that are named with it
MOST_STEPS = 1_000_000  # of a prediction


@dataclass(frozen=True)
class Estimate:
    """One parameter. name; value, error: its estimate and standard error, inf if the data do not tell it. logarithmic:
    whether it is a coefficient of a term with free exponents. taken: what the law has in its place, a fraction or
    the best number beside fractions; None: the estimate. place: in the law's vector. unit: of that vector."""

    name: str
    value: float
    error: float
    logarithmic: bool
    taken: float | None
    place: int
    unit: float

    def at(self, distance: float) -> float:
        """The value at a distance of a profile."""
        if self.logarithmic:
            return self.value * math.exp(min(distance, 700.0)) + 0.0  # not -0
        return self.value + distance * self.unit


@dataclass(frozen=True)
class SeriesFit:
    """A law that was found in time series, from `fit`.

    model: ``RealNPU(D, n) -> NAU(n, D)`` in float64, for `rollout`. names: of the D states. u0 ``[S, D]``: the states
    at the first times. score: root mean square of the residuals over the standard deviation of the measurements, with
    columns weighted equally; in logarithms where errors are relative. sigma ``[D]``: standard deviation of the errors
    of each column, estimated (relative errors: a share; nan for states that were not measured), or None if it was
    given. bic: the criterion. degrees: measurements minus parameters. estimates: the parameters, each an `Estimate`.
    unidentified: parameters, and sets of parameters, that the data do not tell. complete: False after Ctrl-C. seconds:
    that it took. step: the longest step of time that the fit took. data, law, free: the series; the law as a vector in
    scaled units, and the same law with its fractions as free numbers. met, max_denominator: for `alternatives`, laws of
    other forms that the search met, and the greatest denominator of exponents, 0 for none.
    """

    model: nn.Sequential
    names: tuple[str, ...]
    u0: Tensor
    score: float
    sigma: Tensor | None
    bic: float
    degrees: int
    estimates: tuple[Estimate, ...] = field(repr=False)
    unidentified: tuple[str, ...]
    complete: bool
    seconds: float
    step: float
    data: Series = field(repr=False)
    law: Law = field(repr=False)
    free: Law = field(repr=False)
    met: tuple[Law, ...] = field(repr=False)
    max_denominator: int = field(repr=False)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Exponents ``[1, n, D]`` and coefficients ``[1, D, n]``."""
        power, nau = self.model
        assert isinstance(power, RealNPU)
        assert isinstance(nau, NAU)
        return power.weight_re.detach().unsqueeze(0), nau.weight.detach().unsqueeze(0)

    # ---- the equation ------------------------------------------------------------------------------------------------

    @property
    def equation(self) -> Formula:
        """The law as a `npu_kernels.formula.Formula`; ``str()`` gives one line per state. Needs sympy."""
        from npu_kernels.formula import read

        positive = [
            name
            for name, there in zip(self.names, self.data.positive.tolist(), strict=True)
            if there
        ]
        return read(
            self.model, self.names, outputs=[f"{name}'" for name in self.names], positive=positive
        )

    def sympy(self) -> tuple[Any, ...]:
        """The right-hand sides as sympy expressions, one for each state."""
        return self.equation.expressions

    def latex(self) -> list[str]:
        """One equation in LaTeX for each state, without dollars."""
        return self.equation.latex()

    # ---- uncertainty -------------------------------------------------------------------------------------------------

    @property
    def standard_errors(self) -> dict[str, float]:
        """Of all parameters by name; inf for those that the data do not tell."""
        return {one.name: one.error for one in self.estimates}

    def intervals(self, level: float = 0.95) -> list[Interval]:
        """Confidence intervals of coefficients, exponents and fitted first states, given the terms of the law.

        level: of confidence.

        Profiles: a number's interval ends where the sum of squares, with all others fitted again, has risen by the
        square of Student's t (of the normal distribution's, if sigma was given), in units of the errors' variance. An
        end that is not reached is infinite, and 0 for a coefficient of a term with free exponents, which keeps its
        sign. If the law has fractions, the exponents keep the estimates and intervals that they have as free numbers;
        those of coefficients and first states are given the fractions. Every call makes these fits, in one batch.
        """
        from scipy import stats

        from npu_kernels.equations import Interval

        level = check_level("intervals", level)
        degrees = math.inf if self.sigma is None else self.degrees
        t = float(stats.t.ppf(0.5 + level / 2, degrees)) if degrees > 0 else math.inf
        limits = {one.name: (-math.inf, math.inf) for one in self.estimates}
        for law, own in ((self.law, True), (self.free, False)):
            told = [
                e for e in self.estimates if (e.taken is None) is own and math.isfinite(e.error * t)
            ]
            low, high = ends(law, [one.place for one in told], [one.logarithmic for one in told], t)
            for one, *pair in zip(told, low.tolist(), high.tolist(), strict=True):
                below, above = sorted(map(one.at, pair))
                limits[one.name] = below, above
        return [
            Interval(one.name, one.value, one.error, *limits[one.name]) for one in self.estimates
        ]

    def alternatives(self) -> list[SeriesFit]:
        """Laws of other forms that the data hardly tell from this one, the best first.

        Those whose posterior odds to this law are above 1:20: their criterion `bic` is at most 6.0 more. Tried are the
        forms that the search met, and this law without one of its numbers. Every call makes these fits. The true law
        need not be among them. One whose `bic` is lower is a better law, which the search has missed.
        """
        from npu_kernels._laws.series.alternatives import alternatives
        from npu_kernels._laws.series.work import Work

        work = Work("alternatives", 1, {})
        found = alternatives(self.law, self.free, self.met, self.max_denominator, work)
        return [
            finished(*pair, self.data, work.seconds, True, (), self.max_denominator)
            for pair in found
        ]

    # ---- predictions -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predict(self, t: Any, u0: Any = None, series: int = 0) -> Any:
        """The states ``[M, D]`` at times t ``[M]``, in any order: an array, or a tensor if t is one.

        u0: the states ``[D]`` at the first (least) of these times; None: the trajectory of one of the series that were
        fitted. series: which of them.
        """
        times = tensor("predict", "t", t)
        if times.dim() != 1 or not len(times) or not times.isfinite().all():
            raise ValueError(f"predict: t must be finite times of shape (M,), got {t!r}")
        if not -len(self.u0) <= series < len(self.u0):
            raise ValueError(
                f"predict: series must be one of the {len(self.u0)} series, got {series!r}"
            )
        first = float(self.data.times[series, 0])
        start = self.u0[series]
        if u0 is not None:
            first, start = float(times.min()), tensor("predict", "u0", u0)
            if start.shape != self.u0.shape[1:] or not start.isfinite().all():
                raise ValueError(
                    f"predict: u0 must be finite of shape ({len(self.names)},), got {u0!r}"
                )
        after, found = times >= first, times.new_empty(len(times), len(self.names))
        for part, order in ((after, 1.0), (~after, -1.0)):
            index = part.nonzero().squeeze(1)
            index = index[(order * times[index]).argsort(stable=True)]
            found[index] = self._along(start, torch.cat([times.new_tensor([first]), times[index]]))
        return found if isinstance(t, Tensor) else found.numpy()

    def _along(self, u: Tensor, times: Tensor) -> Tensor:
        """The states at all times but the first, from those there."""
        exponents, coefficients = self.weights()
        found, u = [], u.unsqueeze(0)
        for length in times.diff():
            steps = math.ceil(abs(float(length)) / self.step - 1e-9)
            if steps > MOST_STEPS:
                raise ValueError(
                    f"predict: t must be within {MOST_STEPS} steps of {self.step:g}, got {times.tolist()}"
                )
            if steps:
                u = flow(exponents, coefficients, u, length.reshape(1), steps)[:, -1]
            found.append(u[0])
        return torch.stack(found) if found else u.new_empty(0, u.shape[1])

    def plot(self) -> Any:
        """A matplotlib figure: measured points and the law's curves, one panel for each state."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("plot needs matplotlib: pip install matplotlib") from error
        figure = Figure(figsize=(4 * len(self.names), 3.5), layout="constrained")
        axes = figure.subplots(1, len(self.names), squeeze=False)[0]
        for s in range(len(self.u0)):
            t = self.data.times[s]
            fine = torch.linspace(float(t[0]), float(t[-1]), 201, dtype=torch.float64)
            curve = self.predict(fine, series=s)
            for d, axis in enumerate(axes):
                seen = self.data.seen[s, :, d]
                (line,) = axis.plot(fine.numpy(), curve[:, d].numpy())
                axis.plot(
                    t[seen].numpy(),
                    self.data.values[s, seen, d].numpy(),
                    ".",
                    color=line.get_color(),
                )
        for name, axis in zip(self.names, axes, strict=True):
            axis.set(xlabel="time", title=name)
        return figure

    def report(self, level: float = 0.95) -> str:
        """The equations, their parameters with intervals of this level, and how far they are to be trusted."""
        lines = [*str(self.equation).splitlines(), ""]
        if not self.complete:
            lines.append("The search was interrupted: this is the best law until then.")
        count, terms = int(self.data.seen.sum()), self.model[0].out_features
        lines.append(
            f"{terms} term{'' if terms == 1 else 's'} and {len(self.estimates)} parameters from {count} measurements "
            f"in {len(self.u0)} series."
        )
        kind = "of logarithms " if self.data.relative else ""
        lines.append(
            f"Residuals {kind}are {self.score:.2g} of the measurements' standard deviation."
        )
        if self.sigma is not None:
            unit = " of the value" if self.data.relative else ""
            parts = [
                f"{n} {float(s):.3g}{unit}"
                for n, s in zip(self.names, self.sigma, strict=True)
                if s.isfinite()
            ]
            lines.append(f"Errors of the measurements, estimated: {', '.join(parts)}.")
        hidden = [
            n for n, seen in zip(self.names, self.data.observed.tolist(), strict=True) if not seen
        ]
        if hidden:
            lines.append(f"Not measured: {', '.join(hidden)}.")
        lines.append(
            f"Estimates with standard errors and {100 * level:g} % intervals, given the terms:"
        )
        for one, interval in zip(self.estimates, self.intervals(level), strict=True):
            lines.append(
                f"  {interval}"
                + ("" if one.taken is None else f", taken as {_fraction(one.taken)}")
            )
        for name in self.unidentified:
            lines.append(f"The data do not tell {name}.")
        for one in self.estimates:
            if math.isfinite(one.error) and one.error > UNSURE * abs(one.value):
                lines.append(
                    f"The data hardly tell the {one.name}: its standard error is greater than itself."
                )
        return "\n".join(lines)


def _fraction(w: float) -> str:
    from fractions import Fraction

    found = Fraction(w).limit_denominator(64)
    return str(found) if float(found) == w else f"{w:.6g}"


# ---- from a scaled law -----------------------------------------------------------------------------------------------


def finished(
    law: Law,
    free: Law,
    data: Series,
    seconds: float,
    complete: bool,
    met: tuple[Law, ...],
    most: int,
) -> SeriesFit:
    """The result, in the user's units. free: the same law with all of its numbers free. met, most: for alternatives."""
    scaled = law.problem.data
    exponents, raw, u0 = _raw(law)
    used = (raw != 0).any(0)
    used[0] |= not used.any()
    model = nn.Sequential(
        RealNPU(len(data.names), int(used.sum()), dtype=torch.float64),
        NAU(int(used.sum()), len(data.names), clip=False, dtype=torch.float64),
    )
    with torch.no_grad():
        model[0].weight_re.copy_(exponents[used])  # type: ignore[operator]
        model[0].gate.copy_((exponents[used] != 0).any(0))  # type: ignore[operator]
        model[1].weight.copy_(raw[:, used])  # type: ignore[operator]
    number = (used.cumsum(0) - 1).tolist()
    estimates, blind = _estimates(law, free, number)
    residuals, seen = law.residuals(), scaled.seen
    spread = _spread(scaled)
    score = [
        float(residuals[..., d][seen[..., d]].square().mean().sqrt() / spread[d])
        for d in range(len(data.names))
        if seen[..., d].any() and spread[d] > 0
    ]
    sigma = law.deviations() * (1.0 if scaled.relative else scaled.size)
    lengths = data.lengths
    return SeriesFit(
        model=model,
        names=data.names,
        u0=u0,
        score=math.sqrt(sum(part**2 for part in score) / max(len(score), 1)),
        sigma=None if data.known else torch.where(data.observed, sigma, math.nan),
        bic=law.criterion(),
        degrees=int(seen.sum()) - int(free.free.sum()),
        estimates=tuple(estimates),
        unidentified=tuple(blind),
        complete=complete,
        seconds=seconds,
        step=float(lengths.max()) / law.problem.steps,
        data=data,
        law=law,
        free=free,
        met=met,
        max_denominator=most,
    )


def _spread(data: Series) -> list[float]:
    """Standard deviations of the weighted measurements by column."""
    found = []
    for d in range(data.values.shape[2]):
        seen = data.seen[..., d]
        values = data.values[..., d][seen]
        values = (values.log() if data.relative else values) * data.weight[..., d][seen]
        found.append(float(values.std()) if len(values) > 1 else 0.0)
    return found


def _raw(law: Law) -> tuple[Tensor, Tensor, Tensor]:
    """Exponents ``[h, D]``, coefficients ``[D, h]`` and first states ``[S, D]`` in the user's units."""
    exponents, coefficients, starts = law.problem.shape.split(law.x)
    data = law.problem.data
    return exponents, coefficients / units(data, exponents), starts * data.size


def units(data: Series, exponents: Tensor) -> Tensor:
    """``[..., D, h]``: by what coefficients in the user's units are multiplied for those of a scaled series."""
    products = torch.exp(exponents @ data.size.log())  # [..., h]
    return data.time * products.unsqueeze(-2) / data.size.unsqueeze(-1)


def _errors(law: Law) -> tuple[Tensor, list[str]]:
    """Standard errors ``[N]`` in the user's units, and the names of the directions that the data do not tell."""
    shape, data = law.problem.shape, law.problem.data
    covariance, blind = law.uncertainty()
    exponents, coefficients, _ = shape.split(law.x)
    h, d = shape.terms, shape.states
    factor = 1 / units(data, exponents)
    change = torch.zeros(shape.size, shape.size, dtype=torch.float64)
    ones = torch.ones(h * d, dtype=torch.float64)
    change.diagonal()[:] = torch.cat([ones, factor.flatten(), data.size.repeat(shape.series)])
    for j in range(d):
        for k in range(h):
            row = h * d + j * h + k
            change[row, k * d : (k + 1) * d] = -coefficients[j, k] * factor[j, k] * data.size.log()
    index = law.free.nonzero().squeeze(1)
    change = change[index][:, index]
    unknown = covariance.diagonal().isinf()
    known = torch.where(unknown | unknown.unsqueeze(1), 0.0, covariance)
    variance = (change @ known @ change.mT).diagonal()
    reached = (change[:, unknown].abs() > 0).any(1)
    errors = torch.full((shape.size,), 0.0, dtype=torch.float64)
    errors[index] = torch.where(reached, math.inf, variance.clamp(min=0).sqrt())
    return errors, _directions(law, index, blind)


def _directions(law: Law, index: Tensor, blind: list[Tensor]) -> list[str]:
    """The parameters in each direction that the data do not tell."""
    every = _names(law, list(range(law.problem.shape.terms)))
    found = []
    for direction in blind:
        parts = direction.abs() >= SHARE * direction.abs().max()
        names = [every[int(i)] for i in index[parts]]
        found.append(
            f"the {names[0]}"
            if len(names) == 1
            else "one of these from the others: " + ", ".join(names)
        )
    return list(dict.fromkeys(found))


def _names(law: Law, number: list[int]) -> list[str]:
    """The names of all numbers of a law; number: of its terms."""
    from npu_kernels._laws.table.equation import term_text

    shape, data = law.problem.shape, law.problem.data
    exponents = shape.split(law.x)[0]
    terms, states = range(shape.terms), range(shape.states)
    found = [f"exponent of {data.names[i]} in term {number[k] + 1}" for k in terms for i in states]
    for name in data.names:
        for k in terms:
            product = term_text(1.0, [round(w, 3) for w in exponents[k].tolist()], data.names, 1)
            what = "constant" if product == "1" else f"coefficient of {product}"
            found.append(f"{what} in {name}'")
    for s in range(shape.series):
        more = f" of series {s}" if shape.series > 1 else ""
        found += [f"first {name}{more}" for name in data.names]
    return found


def _estimates(law: Law, free: Law, number: list[int]) -> tuple[list[Estimate], list[str]]:
    """The parameters of the law; its exponents, if there are fractions among them, as free numbers."""
    errors, blind = _errors(law)
    loose = errors if free is law else _errors(free)[0]
    shape, data = law.problem.shape, law.problem.data
    exponents, raw, u0 = _raw(law)
    values = shape.join(exponents, raw, u0)
    unit = shape.join(
        torch.ones_like(exponents), 1 / units(data, exponents), data.size.expand_as(u0)
    ).tolist()
    others = shape.join(*_raw(free))
    names, found = _names(law, number), []
    h, d = shape.terms, shape.states
    powers = shape.split(law.free)[0].any(1).tolist()
    fractions = bool((free.free & ~law.free)[: h * d].any())
    for i in [*range(h * d, shape.weights), *range(h * d), *range(shape.weights, shape.size)]:
        if law.free[i] and not (i < h * d and fractions):
            logarithmic = h * d <= i < shape.weights and powers[(i - h * d) % h]
            found.append(
                Estimate(
                    names[i], float(values[i]), float(errors[i]), logarithmic, None, i, unit[i]
                )
            )
        elif free.free[i]:
            found.append(
                Estimate(
                    names[i], float(others[i]), float(loose[i]), False, float(values[i]), i, 1.0
                )
            )
    return found, blind
