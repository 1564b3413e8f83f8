"""From time series to their law: many starts, the trajectories fitted, the best made simpler."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_whole
from npu_kernels._common.seeds import stream
from npu_kernels._jobs.checkpoint import Checkpoint
from npu_kernels._jobs.driver import interruptible
from npu_kernels._jobs.fingerprint import digest
from npu_kernels._jobs.progress import Progress
from npu_kernels._laws.series import data as series
from npu_kernels._laws.series.data import NAME, Series
from npu_kernels._laws.series.job import Job
from npu_kernels._laws.series.laws import Law, Met, criteria, form, minimise, pruned, rounded
from npu_kernels._laws.series.result import SeriesFit, finished, units
from npu_kernels._laws.series.sensitivity import Shape, Stretches, Trajectories, windows
from npu_kernels._laws.series.starts import drawn, matched, smoothed
from npu_kernels._time_loop.loop import layers_of
from npu_kernels.layers import NAU, RealNPU

INSTALL = f"{NAME} needs numpy and scipy: pip install 'npu_kernels[sklearn]'"
# Runge-Kutta steps from node to node: of stretches, of trajectories, and the greatest number.
STRETCH_STEPS, FIRST_STEPS, MAX_STEPS_BETWEEN = 4, 8, 64
STEP_ERROR = 0.1  # of the errors' standard deviation: the error that the steps may have
STRETCHES, HORIZON, TRAJECTORY, LAST = 40, 10, 30, 60  # steps of least squares
PIECES = (0.1, 0.25, 0.5)  # of the nodes: pieces that begin at smoothed states
HORIZONS = (0.25, 0.5)  # of the nodes: beginnings that are fitted first, where states are unknown
LEADING = 4  # laws that are made simpler
SAME_CRITERION = 0.1  # difference of the criterion below which two laws count as one
RIVAL_CRITERION = 24.0  # above the best law's: of the other laws that the result keeps
LEADING_CRITERION = 30.0  # above the best law's: of the laws that are made simpler
ALL_STEPS = STRETCHES + len(PIECES) * HORIZON + TRAJECTORY + LAST + 40  # for the progress


def fit(
    model: nn.Module,
    t: Any,
    u: Any,
    *,
    u0: Any = "fit",
    sigma: Any = None,
    observed: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    start: str = "search",
    simplify: bool = True,
    max_denominator: int = 4,
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
        sigma: standard deviations of the errors of u: a number, one for each column, or one for
            each value. None: each column has one of its own, which is estimated. "relative": in
            proportion to the states, by an unknown factor for each column; logarithms are fitted.
        observed: which states the columns of u are, if not all; the others were not measured.
        names: of the D states.
        start: "search" for a law of any form, or "model": from the model's own exponents and
            coefficients. Zeros among them remain 0, and a layer whose weights have
            requires_grad=False stays as it is.
        simplify: remove terms and exponents that the data do not need, and make exponents
            fractions, by the Bayesian information criterion. False: estimate all numbers.
        max_denominator: of these fractions.
        seed: of the starts, at least 0.
        progress: show the progress on stderr; None: if that is a terminal.
        checkpoint: a file. If it exists, the fit continues from it, with the same bits as without
            an interruption. It is written every half a minute, and at the end.

    Returns a `SeriesFit`. Ctrl-C ends the search, saves it if there is a checkpoint, and gives the
    best law until then (`complete` is False).

    The method, in float64: the series are smoothed, and sets of products of powers that explain the
    states or their slopes best become the starts. Levenberg-Marquardt fits each stretch from node
    to node, then growing parts of the trajectory, then all of it, for all starts at once by the
    fused time loop; the derivatives are those of its adjoint, chained along the nodes. Steps are
    classic Runge-Kutta ones, halved until their error is a tenth of that of the measurements.

    States whose values are (nearly) all positive are amounts: their first states are not below 0.
    States of both signs get integer exponents. Raises ValueError and TypeError for arguments that
    do not fit, ValueError for a file that is a damaged checkpoint or one of another fit (other
    data, model, options or versions of torch or npu_kernels), OSError if it cannot be written,
    ImportError without scipy, RuntimeError if no start has a finite trajectory.

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
    _check(start, simplify)
    max_denominator = check_whole(NAME, "max_denominator", max_denominator)
    seed = check_whole(NAME, "seed", seed, 0, bounded=False)
    power, nau = _layers(model)
    series.check_observed(observed, power.in_features)
    data = series.read(t, u, u0, sigma, observed, names, power.in_features)
    determined = {"model": _identity(power, nau, start), "data": digest(data)}
    determined |= {"start": repr(start), "simplify": repr(simplify)}
    determined |= {"max_denominator": repr(max_denominator), "seed": repr(seed)}
    job = Job(NAME, ALL_STEPS, determined)
    job.checkpoint = None if checkpoint is None else Checkpoint(job, checkpoint)
    shown = sys.stderr.isatty() if progress is None else progress
    with interruptible() as job.pressed, Progress(NAME, ALL_STEPS, sys.stderr, shown) as job.bar:
        try:
            search = Search(data.scaled(), power.out_features, power.num_models or 1, seed, job)
            begin_with = search.drawn() if start == "search" else search.begin(power, nau)
            laws = search.run(*begin_with, both=start == "model")
            loosen = start == "search" or power.weight_re.requires_grad
            law, free, met = laws[0], laws[0], tuple(laws[1:])
            if simplify:
                law, free, met = simpler(laws, max_denominator, loosen, job)
        except Exception:
            job.checkpoint = None  # a file whose content leads to an error stays as it is
            raise
        finally:
            if job.checkpoint is not None:
                job.checkpoint.save()
    rest = met, max_denominator if simplify else 0
    return finished(law, free, data, job.seconds, not job.pressed, *rest)


def _identity(power: RealNPU, nau: NAU, start: str) -> str:
    """Return a text that changes with all that a fit takes from the model."""
    states, terms, starts = power.in_features, power.out_features, power.num_models or 1
    sizes = f"{states} states, {terms} terms, {starts} starts"
    if start == "search":
        return sizes
    trained = power.weight_re.requires_grad, nau.weight.requires_grad
    return f"{sizes}, {digest(power.weight_re, power.gate, nau.weight, *trained)}"


def _layers(model: Any) -> tuple[RealNPU, NAU]:
    """Return the two layers; raise TypeError for a unit whose exponents are not real."""
    power, nau = layers_of(model, NAME, "RealNPU", "")
    if not isinstance(power, RealNPU):
        raise TypeError(
            f"{NAME}: model must be an nn.Sequential of RealNPU and NAU, since the exponents of a "
            f"law are real, got Sequential({', '.join(type(layer).__name__ for layer in model)})"
        )
    return power, nau


def _check(start: Any, simplify: Any) -> None:
    if start not in ("search", "model"):
        raise ValueError(f"{NAME}: start must be 'search' or 'model', got {start!r}")
    if not isinstance(simplify, bool):
        raise TypeError(f"{NAME}: simplify must be True or False, got {simplify!r}")


class Search:
    """The search for a law of a scaled series, from all starts at once."""

    def __init__(self, data: Series, terms: int, starts: int, seed: int, job: Job) -> None:
        self.data, self.starts, self.seed, self.job = data, starts, seed, job
        self.shape = Shape(terms, data.values.shape[2], len(data.times))
        self.smooth, self.slopes = smoothed(data)
        self.is_complete = bool(self.smooth.isfinite().all())  # every state at every node

    def begin(self, power: RealNPU, nau: NAU) -> tuple[Tensor, Tensor]:
        """Return the model's own laws ``[K, N]``, and which numbers are free."""
        data, shape = self.data, self.shape
        exponents = power.weight_re.detach().cpu().double().view(-1, shape.terms, shape.states)
        if power.gate is not None:
            gate = power.gate.detach().cpu().double().view(-1, 1, shape.states)
            exponents = exponents * (gate != 0)
        raw = nau.weight.detach().cpu().double().view(-1, shape.states, shape.terms)
        first = self.first(len(raw))
        x = shape.join(exponents, raw * units(data, exponents), first)
        free_exponents = (exponents != 0) & power.weight_re.requires_grad
        free_coefficients = (raw != 0) & nau.weight.requires_grad
        return x, shape.join(free_exponents, free_coefficients, data.start.isnan().expand_as(first))

    def drawn(self) -> tuple[Tensor, Tensor]:
        """Return laws of any form ``[K, N]``, and which numbers are free."""
        shape, signed = self.shape, ~self.data.positive
        if self.is_complete:
            smoothed_states = self.smooth, self.slopes
            exponents, coefficients, free, free_coefficients = matched(
                self.data, *smoothed_states, shape, signed, self.starts, self.seed
            )
        else:
            generator = stream("time series", self.seed)
            exponents = drawn(self.starts, shape, signed, generator)
            size = (self.starts, shape.states, shape.terms)
            coefficients = torch.randn(size, generator=generator, dtype=torch.float64)
            free = (~signed).expand_as(exponents)
            free_coefficients = torch.ones_like(coefficients, dtype=torch.bool)
        x = shape.join(exponents, coefficients, self.first(self.starts))
        unknown = self.data.start.isnan().expand(self.starts, -1, -1)
        return x, shape.join(free, free_coefficients, unknown)

    def first(self, models: int) -> Tensor:
        """Return first states ``[K, S, D]``: the user's, measured, or drawn."""
        generator = stream("first states", self.seed)
        shape = (models, self.shape.series, self.shape.states)
        guess = torch.randn(shape, generator=generator, dtype=torch.float64).exp()
        start = torch.where(self.data.start.isnan(), self.smooth[:, 0], self.data.start)
        return torch.where(start.isfinite(), start, guess)

    def run(self, x: Tensor, free: Tensor, both: bool) -> list[Law]:
        """Return the best laws, each fitted to all of the series, the best first.

        both: whether the trajectories also start from x itself, which may be nearly right.
        """
        nodes = self.data.times.shape[1]
        problem = Trajectories(self.data, self.shape, FIRST_STEPS)
        if self.is_complete:
            fitted = self.pieces(problem, x, free)
            x, free = (torch.cat([x, fitted]), torch.cat([free, free])) if both else (fitted, free)
        for share in () if self.is_complete else HORIZONS:
            part = problem.first(max(3, round(share * nodes)))
            if part.data.seen.any():
                x, _ = minimise(part, x, free, HORIZON, 1e-3, self.job)
        x, error = minimise(problem, x, free, TRAJECTORY, 1e-3, self.job)
        if not error.isfinite().any():
            raise RuntimeError(
                f"{NAME}: no start has a finite trajectory through the series; take more starts "
                "(num_models), fewer terms, or start='model' with a law that is nearly right"
            )
        return self.best(problem, x, free)

    def pieces(self, problem: Trajectories, x: Tensor, free: Tensor) -> Tensor:
        """Fit exponents and coefficients to stretches from node to node, then to longer pieces."""
        only = free.clone()
        only[:, self.shape.weights :] = False
        stretches = Stretches(self.data, self.shape, STRETCH_STEPS, self.smooth)
        x, _ = minimise(stretches, x, only, STRETCHES, 1e-4, self.job)
        for share in PIECES:
            count = max(2, round(share * self.data.times.shape[1]))
            part, lanes = windows(problem, x, self.smooth, count)
            mask = torch.zeros_like(lanes, dtype=torch.bool)
            mask[:, : self.shape.weights] = only[:, : self.shape.weights]
            lanes, _ = minimise(part, lanes, mask, HORIZON, 1e-3, self.job)
            x = torch.cat([lanes[:, : self.shape.weights], x[:, self.shape.weights :]], 1)
        return x

    def best(self, problem: Trajectories, x: Tensor, free: Tensor) -> list[Law]:
        """Return the laws of the best criteria."""
        values = criteria(problem, x, free)
        leading = values.argsort()[: 2 * LEADING]
        leading = leading[values[leading].isfinite()]
        x, _ = minimise(problem, x[leading], free[leading], LAST, 1e-5, self.job)
        laws = [Law(problem, *pair) for pair in zip(x, free[leading], strict=True)]
        distinct: list[tuple[float, Law]] = []
        rated = [(law.criterion(), law) for law in laws]
        for value, law in sorted(rated, key=lambda pair: pair[0]):
            is_new = not distinct or value - distinct[-1][0] > SAME_CRITERION
            if is_new and (not distinct or value < distinct[0][0] + LEADING_CRITERION):
                distinct.append((value, law))
        first = accurate(distinct[0][1].refitted(self.job), self.job)
        rest = [replace(law, problem=first.problem) for _, law in distinct[1:LEADING]]
        return [first, *(law.refitted(self.job) for law in rest)]


def accurate(law: Law, job: Job) -> Law:
    """Halve the steps until their error is `STEP_ERROR` of the measurements' errors."""
    while law.problem.steps < MAX_STEPS_BETWEEN:
        finer = replace(law, problem=replace(law.problem, steps=2 * law.problem.steps))
        off = (finer.residuals() - law.residuals()) / law.deviations()
        if bool((off.abs() < STEP_ERROR).all()):
            return law
        law = finer.refitted(job)
    return law


def simpler(
    laws: list[Law], max_denominator: int, loosen: bool, job: Job
) -> tuple[Law, Law, tuple[Law, ...]]:
    """Return the best of some laws, pruned and rounded; the same law free; laws of other forms.

    In the free law all numbers are fitted again, exponents if `loosen`.
    """
    met: Met = {}
    candidates = [rounded(pruned(law, job, met), max_denominator, job) for law in laws]
    best = min(candidates, key=Law.criterion)
    pruned_best = pruned(best, job, met)
    best = min(best, pruned_best, key=Law.criterion)
    best = accurate(best.refitted(job), job)
    exponents, coefficients, _ = best.problem.shape.split(best.x)
    _, _, starts = best.problem.shape.split(best.free)
    powers = (exponents != 0) & best.problem.data.positive & loosen
    loose = best.problem.shape.join(powers, coefficients != 0, starts)
    limit, best_form = best.criterion() + RIVAL_CRITERION, form(best)
    rivals = tuple(law for key, (value, law) in met.items() if value < limit and key != best_form)
    return best, replace(best, free=loose).refitted(job), rivals
