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
from npu_kernels._jobs.checkpoints import Checkpoint, digest, interruptible
from npu_kernels._jobs.progress import Progress
from npu_kernels._laws.series import data as series
from npu_kernels._laws.series.data import NAME, Series
from npu_kernels._laws.series.laws import Law, Met, criteria, form, minimise, pruned, rounded
from npu_kernels._laws.series.result import SeriesFit, finished, units
from npu_kernels._laws.series.sensitivity import Shape, Stretches, Trajectories, windows
from npu_kernels._laws.series.starts import drawn, matched, smoothed
from npu_kernels._laws.series.work import Work
from npu_kernels._common.streams import stream
from npu_kernels.layers import NAU, RealNPU
from npu_kernels.ode import _checks as checks

INSTALL = f"{NAME} needs numpy and scipy: pip install 'npu_kernels[sklearn]'"
COARSE, FIRST, MOST = (
    4,
    8,
    64,
)  # Runge-Kutta steps between two nodes: of stretches, of trajectories, at most
ACCURATE = 0.1  # of the errors' standard deviation: what the steps may be off
STRETCHES, HORIZON, WHOLE, LAST = 40, 10, 30, 60  # steps of least squares
PIECES = (0.1, 0.25, 0.5)  # of the nodes: pieces that begin at smoothed states
HORIZONS = (
    0.25,
    0.5,
)  # of the nodes, where not all states are known: what is fitted before all of them
LEADING = 4  # laws that are made simpler
SAME = 0.1  # difference of the criterion below which two laws count as one
NEAR = 24.0  # criterion by which a law that was tried may be worse than the best one to be kept as its rival
BEHIND = 30.0  # criterion by which a law may be worse than the best one for that
STEPS = STRETCHES + len(PIECES) * HORIZON + WHOLE + LAST + 40  # for the progress


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
        model: ``nn.Sequential(RealNPU(D, h, num_models=K), NAU(h, D, num_models=K))``: D states, at most h products of
            powers, K starts. Only its sizes matter (but see `start`), and it is not changed. Exponents are real, gates
            0 or 1, and coefficients of any size, whatever the layers' own are.
        t: times ``[M]``, in any order and at any distances.
        u: the states then ``[M, D]``, nan where one is missing. Tensors, arrays, DataFrames, whose columns become
            names. Several series: lists of t and u, or ``u [S, M, D]`` with ``t [M]`` or ``[S, M]``.
        u0: the states at the first times: "fit" if they are unknown, or ``[D]`` or ``[S, D]``, with nan for those that
            are unknown.
        sigma: standard deviations of the errors of u: a number, one for each column, or one for each value. None: each
            column has one of its own, which is estimated. "relative": in proportion to the states, by an unknown
            factor for each column; logarithms are fitted.
        observed: which states the columns of u are, if not all; the others were not measured.
        names: of the D states.
        start: "search" for a law of any form, or "model": from the model's own exponents and coefficients. Those that
            are 0 remain 0, and a layer whose weights have requires_grad=False stays as it is.
        simplify: take out what the data do not need, and make exponents fractions, as the Bayesian information
            criterion says. False: estimate all numbers.
        max_denominator: of these fractions.
        seed: of the starts, at least 0.
        progress: show how far it is on stderr; None: if that is a terminal.
        checkpoint: a file. If it exists, the fit continues from it, with the same bits as without an interruption.
            It is written every half a minute, and at the end.

    Returns a `SeriesFit`. Ctrl-C ends the search, saves it if there is a checkpoint, and gives the best law found until
    then (`complete` is False).

    How it works, in float64: the series are smoothed, and sets of products of powers that explain the states or their
    slopes best become the starts. Levenberg-Marquardt fits each stretch from node to node, then growing parts of the
    trajectory, then all of it, for all starts at once by the fused time loop; the derivatives are those of its adjoint,
    chained along the nodes. Steps are classic Runge-Kutta ones, halved until their error is a tenth of that of the
    measurements.

    States whose values are (nearly) all positive are amounts: their first states are not below 0. States of both
    signs get whole exponents. Raises ValueError and TypeError for arguments that do not fit, ValueError for a file
    that is a damaged checkpoint or one of another fit (other data, model, options or versions of torch or
    npu_kernels), OSError if it cannot be written, ImportError without scipy, RuntimeError if no start has a finite
    trajectory.

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
    seed = check_whole(NAME, "seed", seed, 0)
    power, nau = _layers(model)
    series.check_observed(observed, power.in_features)
    data = series.read(t, u, u0, sigma, observed, names, power.in_features)
    options = {
        "start": start,
        "simplify": simplify,
        "max_denominator": max_denominator,
        "seed": seed,
    }
    work = Work(
        NAME,
        STEPS,
        {"model": _identity(power, nau, start), "data": digest(data), **_texts(options)},
    )
    work.checkpoint = None if checkpoint is None else Checkpoint(work, checkpoint)
    shown = sys.stderr.isatty() if progress is None else progress
    with interruptible() as work.pressed, Progress(NAME, STEPS, sys.stderr, shown) as work.bar:
        try:
            search = Search(data.scaled(), power.out_features, power.num_models or 1, seed, work)
            begin_with = search.drawn() if start == "search" else search.begin(power, nau)
            laws = search.run(*begin_with, both=start == "model")
            loosen = start == "search" or power.weight_re.requires_grad
            law, free, met = (
                simpler(laws, max_denominator, loosen, work)
                if simplify
                else (laws[0], laws[0], tuple(laws[1:]))
            )
        finally:
            if work.checkpoint is not None:
                work.checkpoint.save()
    return finished(
        law, free, data, work.seconds, not work.pressed, met, max_denominator if simplify else 0
    )


def _identity(power: RealNPU, nau: NAU, start: str) -> str:
    """What of a model determines its fit."""
    sizes = (
        f"{power.in_features} states, {power.out_features} terms, {power.num_models or 1} starts"
    )
    if start == "search":
        return sizes
    parts = (
        power.weight_re,
        power.gate,
        nau.weight,
        power.weight_re.requires_grad,
        nau.weight.requires_grad,
    )
    return f"{sizes}, {digest(*parts)}"


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {name: repr(value) for name, value in options.items()}


def _layers(model: Any) -> tuple[RealNPU, NAU]:
    """The two layers; TypeError for a unit whose exponents are not real."""
    power, nau = checks.layers_of(model, NAME, "RealNPU", "")
    if not isinstance(power, RealNPU):
        raise TypeError(
            f"{NAME}: model must be an nn.Sequential of RealNPU and NAU, since the exponents of a law are real, got "
            f"Sequential({', '.join(type(layer).__name__ for layer in model)})"
        )
    return power, nau


def _check(start: Any, simplify: Any) -> None:
    if start not in ("search", "model"):
        raise ValueError(f"{NAME}: start must be 'search' or 'model', got {start!r}")
    if not isinstance(simplify, bool):
        raise TypeError(f"{NAME}: simplify must be True or False, got {simplify!r}")


class Search:
    """All starts of one fit, for a scaled series."""

    def __init__(self, data: Series, terms: int, starts: int, seed: int, work: Work) -> None:
        self.data, self.starts, self.seed, self.work = data, starts, seed, work
        self.shape = Shape(terms, data.values.shape[2], len(data.times))
        self.smooth, self.slopes = smoothed(data)
        self.whole = bool(
            self.smooth.isfinite().all()
        )  # whether every state is known at every node

    def begin(self, power: RealNPU, nau: NAU) -> tuple[Tensor, Tensor]:
        """The model's own laws ``[K, N]``, and what is free."""
        data, shape = self.data, self.shape
        exponents = power.weight_re.detach().cpu().double().view(-1, shape.terms, shape.states)
        if power.gate is not None:
            exponents = exponents * (
                power.gate.detach().cpu().double().view(-1, 1, shape.states) != 0
            )
        raw = nau.weight.detach().cpu().double().view(-1, shape.states, shape.terms)
        first = self.first(len(raw))
        x = shape.join(exponents, raw * units(data, exponents), first)
        free_exponents = (exponents != 0) & power.weight_re.requires_grad
        free_coefficients = (raw != 0) & nau.weight.requires_grad
        return x, shape.join(free_exponents, free_coefficients, data.start.isnan().expand_as(first))

    def drawn(self) -> tuple[Tensor, Tensor]:
        """Laws of any form ``[K, N]``, and what is free."""
        shape, signed = self.shape, ~self.data.positive
        if self.whole:
            found = matched(
                self.data, self.smooth, self.slopes, shape, signed, self.starts, self.seed
            )
            exponents, coefficients, free, own = found
        else:
            generator = stream("time series", self.seed)
            exponents = drawn(self.starts, shape, signed, generator)
            size = (self.starts, shape.states, shape.terms)
            coefficients = torch.randn(size, generator=generator, dtype=torch.float64)
            free, own = (
                (~signed).expand_as(exponents),
                torch.ones_like(coefficients, dtype=torch.bool),
            )
        x = shape.join(exponents, coefficients, self.first(self.starts))
        unknown = self.data.start.isnan().expand(self.starts, -1, -1)
        return x, shape.join(free, own, unknown)

    def first(self, models: int) -> Tensor:
        """First states ``[K, S, D]``: known, measured, or drawn."""
        generator = stream("first states", self.seed)
        shape = (models, self.shape.series, self.shape.states)
        guess = torch.randn(shape, generator=generator, dtype=torch.float64).exp()
        known = torch.where(self.data.start.isnan(), self.smooth[:, 0], self.data.start)
        return torch.where(known.isfinite(), known, guess)

    def run(self, x: Tensor, free: Tensor, both: bool) -> list[Law]:
        """The best laws, each fitted to all of the series, the best first.

        both: whether the trajectories also start from x itself, which may be nearly right.
        """
        problem, nodes = Trajectories(self.data, self.shape, FIRST), self.data.times.shape[1]
        if self.whole:
            fitted = self.pieces(problem, x, free)
            x, free = (torch.cat([x, fitted]), torch.cat([free, free])) if both else (fitted, free)
        for share in () if self.whole else HORIZONS:
            part = problem.first(max(3, round(share * nodes)))
            if part.data.seen.any():
                x, _ = minimise(part, x, free, HORIZON, 1e-3, self.work)
        x, error = minimise(problem, x, free, WHOLE, 1e-3, self.work)
        if not error.isfinite().any():
            raise RuntimeError(
                f"{NAME}: no start has a finite trajectory through the series; take more starts (num_models), fewer "
                "terms, or start='model' with a law that is nearly right"
            )
        return self.best(problem, x, free)

    def pieces(self, problem: Trajectories, x: Tensor, free: Tensor) -> Tensor:
        """Exponents and coefficients of stretches from node to node, and of longer and longer pieces."""
        only = free.clone()
        only[:, self.shape.weights :] = False
        x, _ = minimise(
            Stretches(self.data, self.shape, COARSE, self.smooth),
            x,
            only,
            STRETCHES,
            1e-4,
            self.work,
        )
        for share in PIECES:
            count = max(2, round(share * self.data.times.shape[1]))
            part, lanes = windows(problem, x, self.smooth, count)
            mask = torch.zeros_like(lanes, dtype=torch.bool)
            mask[:, : self.shape.weights] = only[:, : self.shape.weights]
            lanes, _ = minimise(part, lanes, mask, HORIZON, 1e-3, self.work)
            x = torch.cat([lanes[:, : self.shape.weights], x[:, self.shape.weights :]], 1)
        return x

    def best(self, problem: Trajectories, x: Tensor, free: Tensor) -> list[Law]:
        """The most likely of these laws, for their number of parameters."""
        values = criteria(problem, x, free)
        leading = values.argsort()[: 2 * LEADING]
        leading = leading[values[leading].isfinite()]
        x, _ = minimise(problem, x[leading], free[leading], LAST, 1e-5, self.work)
        laws = [Law(problem, *pair) for pair in zip(x, free[leading], strict=True)]
        found: list[tuple[float, Law]] = []
        for value, law in sorted(
            ((law.criterion(), law) for law in laws), key=lambda pair: pair[0]
        ):
            if not found or (value - found[-1][0] > SAME and value < found[0][0] + BEHIND):
                found.append((value, law))
        first = accurate(found[0][1].refitted(self.work), self.work)
        return [
            first,
            *(
                replace(law, problem=first.problem).refitted(self.work)
                for _, law in found[1:LEADING]
            ),
        ]


def accurate(law: Law, work: Work) -> Law:
    """The law by steps so small that their error is `ACCURATE` of the measurements' errors."""
    while law.problem.steps < MOST:
        finer = replace(law, problem=replace(law.problem, steps=2 * law.problem.steps))
        off = (finer.residuals() - law.residuals()) / law.deviations()
        if bool((off.abs() < ACCURATE).all()):
            return law
        law = finer.refitted(work)
    return law


def simpler(
    laws: list[Law], most: int, loosen: bool, work: Work
) -> tuple[Law, Law, tuple[Law, ...]]:
    """The best of some laws, pruned and rounded; the same with all of its numbers free; laws of other forms.

    loosen: whether exponents belong to these numbers.
    """
    met: Met = {}
    found = [rounded(pruned(law, work, met), most, work) for law in laws]
    best = min(found, key=Law.criterion)
    again = pruned(best, work, met)
    best = accurate((again if again.criterion() < best.criterion() else best).refitted(work), work)
    exponents, coefficients, _ = best.problem.shape.split(best.x)
    _, _, starts = best.problem.shape.split(best.free)
    powers = (exponents != 0) & best.problem.data.positive & loosen
    loose = best.problem.shape.join(powers, coefficients != 0, starts)
    limit = best.criterion() + NEAR
    others = tuple(
        law for kind, (value, law) in met.items() if value < limit and kind != form(best)
    )
    return best, replace(best, free=loose).refitted(work), others
