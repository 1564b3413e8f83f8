"""From time series to their law: many starts, the trajectories fitted, the best made simpler."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common import notices
from npu_kernels._common.checks import check_whole
from npu_kernels._common.seeds import stream
from npu_kernels._jobs.checkpoint import Checkpoint
from npu_kernels._jobs.driver import interruptible
from npu_kernels._jobs.fingerprint import digest
from npu_kernels._jobs.progress import Progress
from npu_kernels._laws.series import data as series
from npu_kernels._laws.series import inputs as driving
from npu_kernels._laws.series.alternatives import UNFORESEEN, alternatives
from npu_kernels._laws.series.criterion import criteria
from npu_kernels._laws.series.data import NAME, Series
from npu_kernels._laws.series.forms import Form, Met, form, meet
from npu_kernels._laws.series.job import Job
from npu_kernels._laws.series.known import Known, check_within, read_known
from npu_kernels._laws.series.laws import Law, minimise, refitted, stacked
from npu_kernels._laws.series.result import SeriesFit, finished, units
from npu_kernels._laws.series.sensitivity import (
    FIXED,
    IMPLICIT,
    Stretches,
    Trajectories,
    windows,
)
from npu_kernels._laws.series.simplify import foreseen, pruned, rounded
from npu_kernels._laws.series.starts import DRAWN_SETS, drawn, matched, smoothed
from npu_kernels._laws.series.verdict import advice, poor_fit
from npu_kernels._time_loop.loop import layers_of
from npu_kernels._time_loop.methods import AUTO
from npu_kernels.layers import NAU, RealNPU

NO_LAW = (
    f"{NAME}: no start has a finite trajectory through the series; take more starts (num_models), "
    "fewer terms, or start='model' with a law that is nearly right"
)
NEW_WEIGHTS = (
    f"{NAME}: start='model' begins with the model's own weights, which are those of a new layer: "
    "its gates are 0.5; set them to a law's, or take start='search'"
)
INSTALL = f"{NAME} needs numpy and scipy: pip install 'npu_kernels[sklearn]'"
# Runge-Kutta steps from node to node: of stretches, of trajectories, and the greatest number.
STRETCH_STEPS, FIRST_STEPS, MAX_STEPS_BETWEEN = 4, 8, 64
SERIES_STEPS, FEWEST_STEPS = 400, 2  # of a series, with which the search begins; from node to node
STEP_ERROR = 0.1  # of the errors' standard deviation: the error that the steps may have
STRETCHES, HORIZON, TRAJECTORY, LAST = 40, 10, 30, 60  # steps of least squares
PIECES = (0.1, 0.25, 0.5)  # of the nodes: pieces that begin at smoothed states
HORIZONS = (0.25, 0.5)  # of the nodes: beginnings that are fitted first, where states are unknown
SMALL_RATE = 1e-3  # scaled: of starts that would have the wrong sign
SMALLEST_BATCH = 12  # starts that are searched at once
LEADING = 4  # laws of a batch that are made simpler
TWINS = 2  # laws of one form that are fitted to the end: the better one is made simpler
SAME_CRITERION = 0.05  # difference of the criterion below which a law is no better than another
RIVAL_CRITERION = 24.0  # above the best law's: of the other laws that the result keeps
LEADING_CRITERION = 30.0  # above the best law's: of the laws that are made simpler
BEYOND_SERIES = 1e3  # scaled: states beyond have left the series
ALL_STEPS = STRETCHES + len(PIECES) * HORIZON + TRAJECTORY + LAST + 40  # for the progress


def fit(
    model: nn.Module,
    t: Any,
    u: Any,
    *,
    u0: Any = "fit",
    inputs: Any = None,
    sigma: Any = None,
    observed: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    start: str = "search",
    simplify: bool = True,
    max_denominator: int = 4,
    exponents: tuple[Any, Any] | None = None,
    integer_exponents: bool | Sequence[str] = False,
    terms: Any = None,
    stoichiometry: Any = None,
    conserved: Any = None,
    signs: str = "any",
    method: str = AUTO,
    seed: int = 0,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> SeriesFit:
    """The law ``u' = NAU(NPU(u))`` behind time series, as an equation with confidence intervals.

    Args:
        model: ``nn.Sequential(RealNPU(D, h, num_models=K), NAU(h, D, num_models=K))``: D states, at
            most h products of powers, K starts. Only its sizes matter (but see `start`), and it is
            not changed. Exponents are real, gates 0 or 1, and coefficients of any size, whatever
            the layers' own are.
        t: times ``[M]``, in any order and at any distances.
        u: the states at these times ``[M, D]``, nan where one is missing. Tensors, arrays,
            DataFrames, whose columns become names. Several series: lists of t and u, or
            ``u [S, M, D]`` with ``t [M]`` or ``[S, M]``.
        u0: the states at the first times: "fit" if they are unknown, or ``[D]`` or ``[S, D]``, with
            nan for unknown ones.
        inputs: known columns v(t), such as a forcing, a temperature or a dose: ``(times, values)``,
            values ``[T]`` or ``[T, J]``, linear between the times, which must cover t. A list of
            such pairs has those of each series. The model's NPU then has D + J in_features, the
            states first: products of powers contain the inputs, and no equation has them.
        sigma: standard deviations of the errors of u: a number, one for each column, or one for
            each value. None: each column has one of its own, which is estimated. "relative": in
            proportion to the states, by an unknown factor for each column; logarithms are fitted.
        observed: which states the columns of u are, if not all; the others were not measured.
        names: of the D states, or of the D states and the inputs.
        start: "search" for a law of any form, or "model": from the model's own exponents and
            coefficients. Zeros among them remain 0, and a layer whose weights have
            requires_grad=False stays as it is.
        simplify: remove terms and exponents that the data do not need, and make exponents
            fractions, by the Bayesian information criterion. False: estimate all numbers.
        max_denominator: of these fractions.
        exponents: their bounds ``(low, high)``, each a number or one for each state; None: -6 to 6.
        integer_exponents: True for whole exponents only, or the names of states that have those.
        terms: exponents ``[n, D]`` of products that the law has; the search finds the others.
        stoichiometry: a matrix N ``[D, R]`` with ``u' = N v``: its columns are reactions, which
            change several states at one rate. Each rate is a sum of the products.
        conserved: sums ``[m, D]`` of the states that do not change: ``[[1, 1, 1]]`` for ``S + I +
            R``. The law is then one of flows between states.
        signs: "positive" for coefficients (with stoichiometry or conserved: rates) that are not
            below 0; "model", with ``start="model"``: those that the model's have.
        method: of integration: "rk4", "kvaerno5" (implicit, for stiff laws), or "auto": rk4, and
            kvaerno5 too for starts of ``start="model"`` whose trajectories rk4 does not follow, or
            where no start has a finite trajectory by rk4.
        seed: of the starts, at least 0.
        progress: show the progress on stderr; None: if that is a terminal.
        checkpoint: a file. If it exists, the fit continues from it, with the same bits as without
            an interruption. It is written every half a minute, and at the end.

    Returns a `SeriesFit`, and warns with a `PoorFitWarning` if its `verdict` is not good: its
    message says what to try. Ctrl-C ends the search, saves it if there is a checkpoint, and gives
    the best law until then (`complete` is False).

    The method, in float64: the series are smoothed, and sets of products of powers that explain the
    states or their slopes best become the starts. Levenberg-Marquardt fits each stretch from node
    to node, then growing parts of the trajectory, then all of it, for all starts at once by the
    fused time loop; the derivatives are those of its adjoint, chained along the nodes. Steps are
    classic Runge-Kutta ones, halved until their error is a tenth of that of the measurements, or
    implicit ones of a tolerance that is made smaller until then.

    States whose values are (nearly) all positive are amounts: their first states are not below 0.
    States of both signs get integer exponents. Raises ValueError and TypeError for arguments that
    do not fit, such as dates, ValueError for a file that is a damaged checkpoint or one of another
    fit (other data, model, options or versions of torch or npu_kernels), OSError if it cannot be
    written, ImportError without scipy, RuntimeError if no start has a finite trajectory.

        >>> import torch
        >>> from npu_kernels import NAU, RealNPU, ode
        >>> t = torch.linspace(0, 4, 20, dtype=torch.float64)
        >>> u = 1 / (1 + 0.5 * t)  # of u' = -0.5 u**2
        >>> model = torch.nn.Sequential(RealNPU(1, 1, num_models=4), NAU(1, 1, num_models=4))
        >>> found = ode.fit(model, t, u, names=["c"])
        >>> print(found.equation)
        c' = -0.5*c**2
    """
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise ImportError(INSTALL) from error
    _check(start, simplify, method)
    max_denominator = check_whole(NAME, "max_denominator", max_denominator)
    seed = check_whole(NAME, "seed", seed, 0, bounded=False)
    data, power, nau = _read(model, t, u, u0, inputs, sigma, observed, names)
    searching = start == "search"
    if start == "model" and _is_new(power):
        notices.warn(NEW_WEIGHTS)
    rules = read_known(
        exponents, integer_exponents, terms, stoichiometry, conserved, signs,
        data.names, power.out_features, searching, data.inputs,
    )  # fmt: skip
    determined = {"model": _identity(power, nau, start), "data": digest(data)}
    determined |= {"start": repr(start), "simplify": repr(simplify)}
    determined |= {"what is known": digest(rules)}
    determined |= {"max_denominator": repr(max_denominator), "seed": repr(seed)}
    determined |= {"method": repr(method)}
    job = Job(NAME, ALL_STEPS, determined)
    job.checkpoint = None if checkpoint is None else Checkpoint(job, checkpoint)
    shown = sys.stderr.isatty() if progress is None else progress
    with interruptible() as job.pressed, Progress(NAME, ALL_STEPS, sys.stderr, shown) as job.bar:
        try:
            starts = power.num_models or 1
            search = Search(data.scaled(), rules, power.out_features, starts, seed, job, method)
            begin_with = search.drawn() if searching else search.begin(power, nau)
            law, free, met = search.best(
                *begin_with,
                max_denominator if simplify else 0,
                loosen=searching or power.weight_re.requires_grad,
                both=not searching,
            )
        except Exception:
            job.checkpoint = None  # a file whose content leads to an error stays as it is
            raise
        finally:
            if job.checkpoint is not None:
                job.checkpoint.save()
    rest = met, max_denominator if simplify else 0
    result = finished(law, free, data, job.seconds, not job.pressed, *rest)
    if not result.verdict.good:
        hint = advice(law, searching, power.num_models or 1, power.out_features)
        notices.warn(poor_fit(result.verdict, hint))
    return result


def _read(
    model: Any, t: Any, u: Any, u0: Any, inputs: Any, sigma: Any, observed: Any, names: Any
) -> tuple[Series, RealNPU, NAU]:
    """Return the checked series, with the inputs behind the states, and the model's layers."""
    count = driving.columns(inputs)
    power, nau = _layers(model, count)
    states = nau.out_features
    series.check_observed(observed, states)
    input_names = driving.column_names(inputs, count)
    if count and names is not None and len(names) == states + count:
        names, input_names = list(names)[:states], list(names)[states:]
    data = series.read(t, u, u0, sigma, observed, names, states)
    if count:
        tables = driving.read(inputs, len(data.times))
        data = driving.with_inputs(data, tables, input_names)
    return data, power, nau


def _identity(power: RealNPU, nau: NAU, start: str) -> str:
    """Return a text that changes with all that a fit takes from the model."""
    states, terms, starts = power.in_features, power.out_features, power.num_models or 1
    sizes = f"{states} states, {terms} terms, {starts} starts"
    if start == "search":
        return sizes
    trained = power.weight_re.requires_grad, nau.weight.requires_grad
    return f"{sizes}, {digest(power.weight_re, power.gate, nau.weight, *trained)}"


def _layers(model: Any, inputs: int) -> tuple[RealNPU, NAU]:
    """Return the two layers; raise TypeError for a unit whose exponents are not real."""
    power, nau = layers_of(model, NAME, "RealNPU", "", inputs)
    if not isinstance(power, RealNPU):
        raise TypeError(
            f"{NAME}: model must be an nn.Sequential of RealNPU and NAU, since the exponents of a "
            f"law are real, got Sequential({', '.join(type(layer).__name__ for layer in model)})"
        )
    return power, nau


def _is_new(power: RealNPU) -> bool:
    """Return whether all gates have the value of `reset_parameters`, and exponents are not 0."""
    gate = power.gate
    return gate is not None and bool((gate == 0.5).all()) and bool(power.weight_re.any())


def _check(start: Any, simplify: Any, method: Any) -> None:
    if start not in ("search", "model"):
        raise ValueError(f"{NAME}: start must be 'search' or 'model', got {start!r}")
    if not isinstance(simplify, bool):
        raise TypeError(f"{NAME}: simplify must be True or False, got {simplify!r}")
    if method not in (AUTO, FIXED, IMPLICIT):
        rule = f"{AUTO!r}, {FIXED!r} or {IMPLICIT!r}"
        raise ValueError(f"{NAME}: method must be {rule}, got {method!r}")


class Search:
    """The search for a law of a scaled series, from all starts at once."""

    def __init__(
        self, data: Series, rules: Known, terms: int, starts: int, seed: int, job: Job, method: str
    ) -> None:
        self.data, self.starts, self.seed, self.job = data, starts, seed, job
        self.rules, self.method = rules, method
        self.shape = rules.shape(terms, data)
        self.smooth, self.slopes = smoothed(data)
        if data.inputs:  # known, and no equation is to explain their slopes
            self.smooth[..., -data.inputs :] = data.values[..., -data.inputs :]
            self.slopes[..., -data.inputs :] = 0
        self.is_complete = bool(self.smooth.isfinite().all())  # every state at every node

    def begin(self, power: RealNPU, nau: NAU) -> tuple[Tensor, Tensor]:
        """Return the model's own laws ``[K, N]``, and which numbers are free."""
        data, shape = self.data, self.shape
        exponents = power.weight_re.detach().cpu().double().view(-1, shape.terms, shape.states)
        check_within(exponents, self.rules)
        if power.gate is not None:
            gate = power.gate.detach().cpu().double().view(-1, 1, shape.states)
            exponents = exponents * (gate != 0)
        rows = shape.states - shape.inputs
        raw = nau.weight.detach().cpu().double().view(-1, rows, shape.terms)
        raw = self.rules.rates(nn.functional.pad(raw, (0, 0, 0, shape.inputs)))
        if self.rules.signs == "model":
            self.shape = shape = replace(shape, signs=raw[0].sign())
        first = self.first(len(raw))
        x = shape.join(exponents, raw * units(data, shape, exponents), first)
        free_exponents = (exponents != 0) & power.weight_re.requires_grad
        free_coefficients = (raw != 0) & nau.weight.requires_grad
        return x, shape.join(free_exponents, free_coefficients, data.start.isnan().expand_as(first))

    def drawn(self) -> tuple[Tensor, Tensor]:
        """Return laws of any form ``[K, N]``, and which numbers are free."""
        shape, constant = self.shape, self.data.constant
        values = torch.where(self.data.seen, self.data.values, -math.inf).amax(1)
        start = self.data.start.where(~(self.data.start.isnan() & constant), values)
        self.data = replace(self.data, start=start)
        fixed = ~shape.free_exponents(self.data.positive)  # [h, D]
        signed = fixed.all(0)
        if self.is_complete:
            # The data tell nothing of powers of a state that has one value: here it is 1.
            smoothed_states = self.smooth.masked_fill(constant, 1.0), self.slopes
            exponents, coefficients, free, used = matched(
                self.data, *smoothed_states, shape, self.rules.terms, signed, self.starts, self.seed
            )
        else:
            generator = stream("time series", self.seed)
            count = max(DRAWN_SETS, self.starts)  # the first ones do not depend on the number
            exponents = drawn(count, shape, signed, generator)
            size = (count, shape.states, shape.terms)
            coefficients = torch.randn(size, generator=generator, dtype=torch.float64)
            exponents, coefficients = exponents[: self.starts], coefficients[: self.starts]
            exponents[:, : shape.fixed] = self.rules.terms
            free = torch.ones_like(exponents, dtype=torch.bool)
            used = torch.ones(self.starts, shape.terms, dtype=torch.bool)
        still = self.data.still.unsqueeze(1)
        exponents, free = exponents.where(~constant, 0.0), free & ~constant & ~fixed
        rates = coefficients.where(~still, 0.0)
        free_rates = used.unsqueeze(1).expand(-1, shape.rates, -1)
        if shape.columns is not None:
            rates = torch.linalg.pinv(shape.columns) @ rates
        else:
            free_rates = free_rates & ~still
        if shape.signs is not None:
            rates = rates.clamp(min=SMALL_RATE) * used.unsqueeze(1)
        x = shape.join(exponents, rates, self.first(self.starts))
        unknown = self.data.start.isnan().expand(self.starts, -1, -1)
        return x, shape.join(free, free_rates, unknown)

    def first(self, models: int) -> Tensor:
        """Return first states ``[K, S, D]``: the user's, measured, or drawn."""
        size = self.shape.series, self.shape.states
        guesses = [
            torch.randn(size, generator=stream("first states", self.seed, n), dtype=torch.float64)
            for n in range(models)
        ]
        start = torch.where(self.data.start.isnan(), self.smooth[:, 0], self.data.start)
        return torch.where(start.isfinite(), start, torch.stack(guesses).exp())

    def best(
        self, x: Tensor, free: Tensor, max_denominator: int, loosen: bool, both: bool
    ) -> tuple[Law, Law, Met]:
        """Return the best law, the same law with all of its numbers free, and laws of other forms.

        x, free: the starts. max_denominator: of exponents, 0 to simplify nothing. In the free law
        exponents are free if `loosen`. both: see `run`.

        Each batch of starts is a search by itself, and the best of their laws is the result. The
        batches of 2K starts are those of K and one more: so more starts give no worse criterion.
        """
        outcomes: list[tuple[Law, Law]] = []
        met: Met = {}

        def go_through(x: Tensor, free: Tensor, method: str) -> None:
            for part in batches(len(x)):
                laws = [] if self.job.pressed else self.run(x[part], free[part], both, method)
                tried: Met = {}
                if laws and max_denominator:
                    outcomes.append(simplest(laws, max_denominator, loosen, tried, self.job))
                elif laws:
                    outcomes.append((laws[0], laws[0]))
                    for law in laws[1:]:
                        meet(tried, law.criterion(), law)
                for value, law in tried.values():
                    meet(met, value, law)

        go_through(x, free, FIXED if self.method == AUTO else self.method)
        if self.method == AUTO and (both or not outcomes):
            stiff = self.are_stiff(x)
            if stiff.any():
                go_through(x[stiff], free[stiff], IMPLICIT)
        if not outcomes:
            raise RuntimeError(NO_LAW)
        law, loose = min(outcomes, key=lambda pair: pair[0].criterion())
        return law, loose, rivals(law, met)

    def problem(self, method: str) -> Trajectories:
        """Return the problem with which the search begins."""
        nodes = self.data.times.shape[1]
        steps = min(FIRST_STEPS, max(FEWEST_STEPS, SERIES_STEPS // nodes))
        return Trajectories(self.data, self.shape, steps, method=method)

    def are_stiff(self, x: Tensor) -> Tensor:
        """Return which laws ``[K]`` have trajectories that only implicit steps follow."""
        is_lost = ~self.stay(x, FIXED)
        return is_lost & self.stay(x, IMPLICIT) if is_lost.any() else is_lost

    def stay(self, x: Tensor, method: str) -> Tensor:
        """Return which laws ``[K]`` have trajectories that do not leave the series far behind."""
        states = self.problem(method).states(x)
        return (states.abs() < BEYOND_SERIES).flatten(1).all(1)

    def run(self, x: Tensor, free: Tensor, both: bool, method: str) -> list[Law]:
        """Return the best laws, each fitted to all of the series, the best first; none may be.

        both: whether the trajectories also start from x itself, which may be nearly right.
        """
        problem, nodes = self.problem(method), self.data.times.shape[1]
        if self.is_complete:
            fitted = self.pieces(problem, x, free)
            x, free = (torch.cat([x, fitted]), torch.cat([free, free])) if both else (fitted, free)
        for share in () if self.is_complete else HORIZONS:
            part = problem.first(max(3, round(share * nodes)))
            if part.data.seen.any():
                x, _ = minimise(part, x, free, HORIZON, 1e-3, self.job)
        x, error = minimise(problem, x, free, TRAJECTORY, 1e-3, self.job)
        return self.leading(problem, x, free) if error.isfinite().any() else []

    def pieces(self, problem: Trajectories, x: Tensor, free: Tensor) -> Tensor:
        """Fit exponents and coefficients to stretches from node to node, then to longer pieces."""
        only = free.clone()
        only[:, self.shape.weights :] = False
        method = problem.method
        stretches = Stretches(self.data, self.shape, STRETCH_STEPS, self.smooth, method=method)
        x, _ = minimise(stretches, x, only, STRETCHES, 1e-4, self.job)
        for share in PIECES:
            count = max(2, round(share * self.data.times.shape[1]))
            part, lanes = windows(problem, x, self.smooth, count)
            mask = torch.zeros_like(lanes, dtype=torch.bool)
            mask[:, : self.shape.weights] = only[:, : self.shape.weights]
            lanes, _ = minimise(part, lanes, mask, HORIZON, 1e-3, self.job)
            x = torch.cat([lanes[:, : self.shape.weights], x[:, self.shape.weights :]], 1)
        return x

    def leading(self, problem: Trajectories, x: Tensor, free: Tensor) -> list[Law]:
        """Return the laws of the best criteria, each of another form."""
        values = criteria(problem, x, free)
        while not has_enough_steps(Law(problem, x[values.argmin()], free[values.argmin()])):
            problem = problem.finer()
            values = criteria(problem, x, free)
        kinds = [form(Law(problem, *pair)) for pair in zip(x, free, strict=True)]
        chosen: list[int] = []
        for n in values.argsort(stable=True).tolist():
            alike = sum(kinds[n] == kinds[other] for other in chosen)
            if values[n].isfinite() and alike < TWINS and len(chosen) < 2 * LEADING:
                chosen.append(n)
        x, _ = minimise(problem, x[chosen], free[chosen], LAST, 1e-5, self.job)
        values = criteria(problem, x, free[chosen])
        laws: dict[Form, Law] = {}
        for n in values.argsort(stable=True).tolist():
            if values[n] < values.min() + LEADING_CRITERION:
                laws.setdefault(kinds[chosen[n]], Law(problem, x[n], free[chosen[n]]))
        first, *rest = list(laws.values())[:LEADING]
        first = accurate(first.refitted(self.job), self.job)
        rest = [replace(law, problem=first.problem) for law in rest]
        return [first, *(refitted(rest, self.job) if rest else [])]


def batches(starts: int) -> list[slice]:
    """Return the parts of the starts: those of 2K starts are those of K, and one more."""
    if starts % 2 or starts < 2 * SMALLEST_BATCH:
        return [slice(0, starts)]
    return [*batches(starts // 2), slice(starts // 2, starts)]


def accurate(law: Law, job: Job) -> Law:
    """Halve the steps until their error is `STEP_ERROR` of the measurements' errors."""
    while is_finite(law) and not has_enough_steps(law):
        law = replace(law, problem=law.problem.finer()).refitted(job)
    return law


def first_accurate(laws: Iterable[Law], job: Job) -> Law | None:
    """Return the first of some laws that stays finite with accurate steps; None if none does."""
    return next(filter(is_finite, (accurate(law, job) for law in laws)), None)


def is_finite(law: Law) -> bool:
    return math.isfinite(law.criterion())


def has_enough_steps(law: Law) -> bool:
    """Return whether the steps are as accurate as `STEP_ERROR` says, or as many as there may be."""
    if law.problem.steps >= MAX_STEPS_BETWEEN:
        return True
    finer = replace(law, problem=law.problem.finer())
    off = (finer.residuals() - law.residuals()) / law.deviations()
    return bool((off.abs() < STEP_ERROR).all())


def simplest(
    laws: list[Law], max_denominator: int, loosen: bool, met: Met, job: Job
) -> tuple[Law, Law]:
    """Return the best of some laws, pruned and rounded, and of its alternatives, and of theirs.

    The second law is the same one with all numbers free. loosen: whether exponents may be free.
    met: gets the laws that were tried.
    """
    candidates = hopeful(pruned(laws, job, met), max_denominator)
    simple = sorted(rounded(candidates, max_denominator, job), key=Law.criterion)
    shorter = (min(law, *pruned([law], job, met), key=Law.criterion) for law in simple)
    best = first_accurate((law.refitted(job) for law in shorter), job) or simple[0]
    while True:
        free = loosened(best, loosen).refitted(job)
        others = alternatives(best, free, met, max_denominator, job, -SAME_CRITERION)
        better = None if job.pressed else first_accurate((law for law, _ in others), job)
        if better is None:
            return best, free
        meet(met, best.criterion(), best)
        best = better


def hopeful(laws: list[Law], max_denominator: int) -> list[Law]:
    """Return the laws that may be the best one when their exponents are fractions."""
    values = criteria(laws[0].problem, *stacked(laws)) - foreseen(laws, max_denominator)
    limit = values.min() + 2 * UNFORESEEN  # both laws' values are approximations
    return [law for law, value in zip(laws, values, strict=True) if value <= limit]


def loosened(law: Law, loosen: bool) -> Law:
    """Free all numbers that are not 0: exponents only of amounts, and if `loosen`."""
    exponents, coefficients, _ = law.problem.shape.split(law.x)
    _, _, starts = law.problem.shape.split(law.free)
    allowed = law.problem.shape.free_exponents(law.problem.data.positive)
    powers = (exponents != 0) & allowed & loosen
    return replace(law, free=law.problem.shape.join(powers, coefficients != 0, starts))


def rivals(best: Law, met: Met) -> Met:
    """Return the laws of other forms that are not much worse than the best one."""
    limit, best_form = best.criterion() + RIVAL_CRITERION, form(best)
    return {kind: pair for kind, pair in met.items() if pair[0] < limit and kind != best_form}
