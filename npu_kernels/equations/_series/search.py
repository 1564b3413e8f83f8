"""The search for equations: many starts, their trajectories fitted, the best ones made simpler."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import stream
from npu_kernels.equations._series.candidates import (
    FIRST_STEPS,
    MANY_STEPS,
    SAME_BIC,
    Candidate,
    Form,
    Job,
    Visited,
    best_accurate,
    criteria,
    criteria_of,
    explicit,
    form,
    loosened,
    minimise,
    refitted,
    settled,
    solved,
    stacked,
    visit,
)
from npu_kernels.equations._series.data import NAME, Series
from npu_kernels.equations._series.diagnostics import MAX_LOST, lost_from_curve
from npu_kernels.equations._series.estimates import units
from npu_kernels.equations._series.guesses import (
    SAMPLED_SETS,
    Ranked,
    drawn,
    matched,
    ranked,
    smoothed,
)
from npu_kernels.equations._series.known import Known, check_within, common_signs
from npu_kernels.equations._series.sensitivity import (
    FIXED,
    IMPLICIT,
    Segments,
    Shape,
    Trajectories,
    windows,
)
from npu_kernels.equations._series.simplify import (
    UNFORESEEN,
    better_candidates,
    exchanged,
    foreseen,
    pruned,
    rounded,
)
from npu_kernels.layers import NAU, RealNPU
from npu_kernels.ode._methods import AUTO

NO_EQUATION = (
    f"{NAME}: no initialisation has a finite trajectory through the series; use more random "
    "initialisations (num_models), fewer terms, method='auto' or 'kvaerno5', or init='model' with "
    "a model that is nearly right"
)
SEGMENT_STEPS = 4  # of Runge and Kutta from node to node
SERIES_STEPS, MIN_REPLAYS = 400, 2  # of a series, with which the search begins; from node to node
SEGMENTS, HORIZON, TRAJECTORY, LAST = 40, 10, 30, 60  # steps of least squares
WINDOWS = (0.1, 0.25, 0.5)  # of the nodes: windows that begin at smoothed states
HORIZONS = (0.25, 0.5)  # of the nodes: beginnings that are fitted first, where states are unknown
SMALL_RATE = 1e-3  # scaled: of starts that would have the wrong sign
SMALLEST_BATCH = 12  # starts that are searched at once
LEADING = 4  # candidates of a batch that are made simpler
TWINS = 2  # candidates of one form that are fitted to the end: the better one is made simpler
ALTERNATIVE_BIC = 24.0  # above the best candidate's: of the other candidates that the result keeps
LOST_CRITERION = 50.0  # above that with coarse steps: accurate steps have lost the series
LEADING_BIC = 30.0  # above the best candidate's: of the candidates that are made simpler
BEYOND_SERIES = 1e3  # scaled: states beyond have left the series
RENEWALS = 2  # searches from the best candidate's trajectory on
FASTER = 1.1  # times the rates of a candidate: explicit steps that it needs follow these, too
MAX_EXCHANGES = 4  # from the best candidate to one of another product
PARTS = 4  # of the distance between two nodes
LOWEST_AMOUNT = 1e-9  # scaled: of a trajectory, along which there are powers
MAX_CLIMBS = 12  # from a candidate to a better alternative
ALL_STEPS = SEGMENTS + len(WINDOWS) * HORIZON + TRAJECTORY + LAST + 40  # for the progress


class NoEquationError(RuntimeError):
    """No start has a finite trajectory."""


class NoEquationYet(KeyboardInterrupt):
    """Ctrl-C ended the search before there were equations."""


class Search:
    """The search for equations of a scaled series, from all starts at once."""

    def __init__(
        self, data: Series, rules: Known, terms: int, starts: int, seed: int, job: Job, method: str
    ) -> None:
        self.data, self.starts, self.seed, self.job = data, starts, seed, job
        self.rules, self.method = rules, method
        self.shape = rules.shape(terms, data)
        self.smooth, self.derivatives = smoothed(data)
        if data.inputs:  # known, and no equation is to explain their slopes
            self.smooth[..., -data.inputs :] = data.values[..., -data.inputs :]
            self.derivatives[..., -data.inputs :] = 0
        self.is_complete = bool(self.smooth.isfinite().all())  # every state at every node

    def begin(self, power: RealNPU, nau: NAU) -> tuple[Tensor, Tensor]:
        """Return the model's own candidates ``[K, N]``, and which numbers are free."""
        data, shape = self.data, self.shape
        exponents = power.weight_re.detach().cpu().double().view(-1, shape.terms, shape.states)
        if power.gate is not None:
            gate = power.gate.detach().cpu().double().view(-1, 1, shape.states)
            exponents = exponents * (gate != 0)
        trained = power.weight_re.requires_grad
        _check_finite(exponents, nau.weight.detach())
        if trained:  # states of both signs have integer exponents
            exponents = exponents.where(data.positive, exponents.round())
        check_within(exponents, self.rules)
        rows = shape.states - shape.inputs
        raw = nau.weight.detach().cpu().double().view(-1, rows, shape.terms)
        raw = self.rules.rates(nn.functional.pad(raw, (0, 0, 0, shape.inputs)))
        if self.rules.signs == "model":
            self.shape = shape = replace(shape, signs=common_signs(raw))
        if not nau.weight.requires_grad:
            self.shape = shape = replace(shape, log_sizes=data.size.log())
        first = self.first(len(raw))
        x = shape.join(exponents, raw * units(data, shape, exponents), first)
        free_exponents = (exponents != 0) & shape.free_exponents(data.positive) & trained
        free_coefficients = (raw != 0) & nau.weight.requires_grad
        return x, shape.join(free_exponents, free_coefficients, data.start.isnan().expand_as(first))

    def drawn(self) -> tuple[Tensor, Tensor]:
        """Return candidates of any form ``[K, N]``, and which numbers are free.

        A state that passes 0 has no negative powers: no trajectory goes through their pole.
        """
        shape, constant = self.shape, self.data.constant
        values = torch.where(self.data.seen, self.data.values, -math.inf).amax(1)
        start = self.data.start.where(~(self.data.start.isnan() & constant), values)
        self.data = replace(self.data, start=start)
        assert shape.low is not None
        low = torch.where(self.data.crossing, shape.low.clamp(min=0.0), shape.low)
        self.shape = shape = self._of_two_values(replace(shape, low=low))
        fixed = ~shape.free_exponents(self.data.positive)  # [h, D]
        signed = fixed.all(0)
        if self.is_complete:
            # The data tell nothing of powers of a state that has one value: here it is 1.
            smoothed_states = self.smooth.masked_fill(constant, 1.0), self.derivatives
            exponents, coefficients, free, used = matched(
                self.data, *smoothed_states, shape, self.rules.terms, signed, self.starts, self.seed
            )
        else:
            generator = stream("time series", self.seed)
            count = max(SAMPLED_SETS, self.starts)  # the first ones do not depend on the number
            exponents = drawn(count, shape, signed, generator)
            size = (count, shape.states, shape.terms)
            coefficients = torch.randn(size, generator=generator, dtype=torch.float64)
            exponents, coefficients = exponents[: self.starts], coefficients[: self.starts]
            exponents[:, : shape.fixed] = self.rules.terms
            free = torch.ones_like(exponents, dtype=torch.bool)
            used = torch.ones(self.starts, shape.terms, dtype=torch.bool)
        return self.joined(exponents, coefficients, free, used, self.first(self.starts))

    def _of_two_values(self, shape: Shape) -> Shape:
        """Return the bounds without the powers of inputs of two values: they are 1, or the first.

        Bounds of the user's that exclude the first power stay.
        """
        assert shape.low is not None
        assert shape.high is not None
        pad = torch.zeros(shape.states - shape.inputs, dtype=torch.bool)
        has_two = torch.cat([pad, torch.tensor(self.data.two_values, dtype=torch.bool)])
        has_two &= (shape.low <= 1) & (shape.high >= 1)
        low = torch.where(has_two, shape.low.clamp(min=0.0), shape.low)
        high = torch.where(has_two, shape.high.clamp(max=1.0), shape.high)
        integer = has_two if shape.integer is None else shape.integer | has_two
        return replace(shape, low=low, high=high, integer=integer)

    def joined(
        self, exponents: Tensor, coefficients: Tensor, free: Tensor, used: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return candidates of some products ``[K, N]``, and which numbers are free.

        used ``[K, h]``: terms that are there. first ``[K, S, D]``: first states.
        """
        shape, constant = self.shape, self.data.constant
        fixed = ~shape.free_exponents(self.data.positive)  # [h, D]
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
        x = shape.join(exponents, rates, first)
        unknown = self.data.start.isnan().expand_as(first)
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

    def search_all(self, max_denominator: int) -> tuple[Candidate, Candidate, Visited]:
        """Return what `best` does, from drawn starts.

        First states of its own may hide what equations miss of the series. Where they do, the
        search begins again with those of the smooth curve, which stay.
        """
        result = self.best(self.drawn(), max_denominator, loosen=True, both=False)
        start, lost = self.data.start, hidden(result)
        if lost > MAX_LOST and self.is_complete and start.isnan().any() and not self.job.pressed:
            self.data = replace(self.data, start=start.where(~start.isnan(), self.smooth[:, 0]))
            with contextlib.suppress(NoEquationError, NoEquationYet):
                other = self.best(self.drawn(), max_denominator, loosen=True, both=False)
                result = other if hidden(other) < min(lost, 1.0) / 2 else result
        return result

    def best(
        self, starts: tuple[Tensor, Tensor], max_denominator: int, loosen: bool, both: bool
    ) -> tuple[Candidate, Candidate, Visited]:
        """Return the best candidate, the same with all numbers free, and candidates of other forms.

        starts: candidates ``[K, N]``, and which numbers are free. max_denominator: of exponents, 0
        to simplify nothing. In the free candidate exponents are free if `loosen`. both: see `run`.

        Each batch of starts is a search by itself, and the best of their candidates is the result.
        The batches of 2K starts are those of K and one more: so more starts give no worse BIC.
        """
        outcomes: list[tuple[Candidate, Candidate]] = []
        visited: Visited = {}

        def go_through(x: Tensor, free: Tensor, method: str) -> None:
            for part in batches(len(x)):
                candidates = [] if self.job.pressed else self.run(x[part], free[part], both, method)
                tried: Visited = {}
                pair = None
                if candidates and max_denominator:
                    pair = simplest(candidates, max_denominator, loosen, tried, self.job)
                if pair is not None:
                    best = min((candidate.bic() for candidate, _ in outcomes), default=math.inf)
                    is_lowest = pair[0].bic() < best - SAME_BIC
                    if is_lowest and self.is_complete and not both:
                        pair = self.improved(pair, max_denominator, loosen, tried)
                        pair = self.exchanged(pair, max_denominator, loosen, tried)
                    outcomes.append(pair)
                elif candidates and not max_denominator:
                    candidate = settled(candidates[0], self.job)
                    outcomes.append((candidate, candidate))
                    for candidate in candidates[1:]:
                        visit(tried, candidate.bic(), candidate)
                for value, candidate in tried.values():
                    visit(visited, value, candidate)
                if outcomes and max_denominator and is_exact(outcomes[-1][0]):
                    break  # others could only be simpler, and `improved` has looked for them

        x, free = starts
        go_through(x, free, FIXED if self.method == AUTO else self.method)
        if self.method == AUTO and (both or not outcomes):
            if outcomes:
                stiff = self.are_stiff(self.problem(FIXED), x)
            else:
                stiff = stays(self.problem(IMPLICIT), x)
            if stiff.any():
                go_through(x[stiff], free[stiff], IMPLICIT)
        if not outcomes and self.job.pressed:
            raise NoEquationYet(f"{NAME}: interrupted before there were equations")
        if not outcomes:
            raise NoEquationError(NO_EQUATION)
        candidate, loose = min(outcomes, key=lambda pair: pair[0].bic())
        return candidate, loose, alternatives_of(candidate, visited)

    def improved(
        self,
        pair: tuple[Candidate, Candidate],
        max_denominator: int,
        loosen: bool,
        visited: Visited,
    ) -> tuple[Candidate, Candidate]:
        """Return the best candidate, and its free one, of searches from sets along its trajectory.

        Its trajectory is a better smooth curve than the spline from which the search began. An
        exact candidate is left only for sets whose approximate BIC is better: they have few terms.
        """
        for _ in range(RENEWALS if is_finite(pair[0]) else 0):
            candidate, max_terms = pair[0], self.shape.terms
            if is_exact(candidate):
                max_terms = self.max_terms(candidate.bic() - SAME_BIC)
            if max_terms <= self.shape.fixed or self.job.pressed:
                break
            sets = self.along(candidate, max_terms)
            if is_exact(candidate):
                sets = sets.some(sets.criteria < candidate.bic() - SAME_BIC)
            if not len(sets.used):
                break
            first = self.shape.split(candidate.x)[2].expand(len(sets.used), -1, -1)
            x, free = self.joined(*sets[:4], first)
            improvements: list[tuple[Candidate, Candidate]] = []
            for problem, some, mask in self.followed(candidate.problem, x, free):
                candidates = self.leading(problem, some, mask)
                if candidates and candidates[0].bic() <= candidate.bic() + LEADING_BIC:
                    other = simplest(candidates, max_denominator, loosen, visited, self.job)
                    improvements += (
                        [] if other is None or not is_better(other[0], candidate) else [other]
                    )
            if not improvements:
                break
            visit(visited, candidate.bic(), candidate)
            pair = min(improvements, key=lambda pair: pair[0].bic())
        return pair

    def followed(
        self, problem: Trajectories, x: Tensor, free: Tensor
    ) -> Iterator[tuple[Trajectories, Tensor, Tensor]]:
        """Yield the problem, its fitted candidates ``[K, N]``, and which of their numbers are free.

        Candidates whose trajectories explicit steps do not follow, or would not if the rates were a
        little greater, come behind the others, fitted with implicit steps.
        """
        x, error = minimise(problem, x, free, TRAJECTORY, 1e-3, self.job)
        exponents, rates, first = self.shape.split(x)
        stiff = self.are_stiff(problem, self.shape.join(exponents, FASTER * rates, first))
        if error[~stiff].isfinite().any():
            yield problem, x[~stiff], free[~stiff]
        if stiff.any():
            problem, x, free = self.problem(IMPLICIT), x[stiff], free[stiff]
            x, error = minimise(problem, x, free, TRAJECTORY, 1e-3, self.job)
            if error.isfinite().any():
                yield problem, x, free

    def exchanged(
        self,
        pair: tuple[Candidate, Candidate],
        max_denominator: int,
        loosen: bool,
        visited: Visited,
    ) -> tuple[Candidate, Candidate]:
        """Return the best candidate, and its free one, to which exchanges of products lead."""
        for _ in range(MAX_EXCHANGES):
            candidate = pair[0]
            if is_exact(candidate) or not is_finite(candidate) or self.job.pressed:
                break
            others = exchanged(candidate, self.job)[:LEADING]
            if not others or not others[0].bic() < candidate.bic():
                break
            other = simplest(others, max_denominator, loosen, visited, self.job)
            if other is None or not is_better(other[0], candidate):
                break
            visit(visited, candidate.bic(), candidate)
            pair = other
        return pair

    def max_terms(self, bic: float) -> int:
        """Return how many terms a set of this approximate BIC may have, if it is exact."""
        data, fitted = self.data, self.shape.states - self.shape.inputs
        count = data.seen.sum((0, 1))
        likelihood = float((count * data.exact.square().log()).sum())
        return math.ceil((bic - likelihood) / (math.log(int(count.sum())) * fitted)) - 1

    def along(self, candidate: Candidate, max_terms: int) -> Ranked:
        """Return the sets of products that explain the series best along a candidate's trajectory.

        max_terms: of a set.
        """
        shape, data = self.shape, self.data
        steps = max(1, candidate.problem.steps // 2)
        fine = replace(candidate.problem, data=data.refined(PARTS), steps=steps)
        path = fine.states(candidate.x.unsqueeze(0))[0].masked_fill(data.constant, 1.0)
        path = torch.where(data.positive, path.clamp(min=LOWEST_AMOUNT), path)
        signed = (~shape.free_exponents(data.positive)).all(0)
        exponents, rates, _ = shape.split(candidate.x)
        powers = exponents[(rates != 0).any(0)]
        return ranked(data, path, powers, shape, self.rules.terms, signed, self.seed, max_terms)

    def problem(self, method: str) -> Trajectories:
        """Return the problem with which the search begins."""
        nodes = self.data.times.shape[1]
        steps = min(FIRST_STEPS, max(MIN_REPLAYS, SERIES_STEPS // nodes))
        may_be_stiff = self.method == AUTO
        return Trajectories(self.data, self.shape, steps, method=method, stiff=may_be_stiff)

    def are_stiff(self, problem: Trajectories, x: Tensor) -> Tensor:
        """Return which candidates ``[K]`` have trajectories that only implicit steps follow."""
        if not problem.stiff or problem.method == IMPLICIT:
            return torch.zeros(len(x), dtype=torch.bool)
        is_lost = ~stays(problem, x)
        return is_lost & stays(self.problem(IMPLICIT), x) if is_lost.any() else is_lost

    def run(self, x: Tensor, free: Tensor, both: bool, method: str) -> list[Candidate]:
        """Return the best candidates, each fitted to all of the series, the best first; or none.

        both: whether the trajectories also start from x itself, which may be nearly right.
        """
        problem, nodes = self.problem(method), self.data.times.shape[1]
        if both:  # steps that solve the candidates that are given, if there are some
            problem = solved(problem, x, free)[0]
        if self.is_complete:
            fitted = self.fit_windows(problem, x, free)
            x, free = (torch.cat([x, fitted]), torch.cat([free, free])) if both else (fitted, free)
        for share in () if self.is_complete else HORIZONS:
            part = problem.first(max(3, round(share * nodes)))
            if part.data.seen.any():
                x, _ = minimise(part, x, free, HORIZON, 1e-3, self.job)
        x, error = minimise(problem, x, free, TRAJECTORY, 1e-3, self.job)
        return self.leading(problem, x, free) if error.isfinite().any() else []

    def fit_windows(
        self, problem: Trajectories, x: Tensor, free: Tensor, steps: int = SEGMENT_STEPS
    ) -> Tensor:
        """Fit exponents and coefficients to segments from node to node, then to longer windows.

        steps: of a segment. Longer segments take the steps of the problem.
        """
        only = free.clone()
        only[:, self.shape.weights :] = False
        method = problem.method
        segments = Segments(self.data, self.shape, steps, self.smooth, method=method)
        x, _ = minimise(segments, x, only, SEGMENTS, 1e-4, self.job)
        for share in WINDOWS:
            count = max(2, round(share * self.data.times.shape[1]))
            part, lanes = windows(problem, x, self.smooth, count)
            mask = torch.zeros_like(lanes, dtype=torch.bool)
            mask[:, : self.shape.weights] = only[:, : self.shape.weights]
            lanes, _ = minimise(part, lanes, mask, HORIZON, 1e-3, self.job)
            x = torch.cat([lanes[:, : self.shape.weights], x[:, self.shape.weights :]], 1)
        return x

    def leading(self, problem: Trajectories, x: Tensor, free: Tensor) -> list[Candidate]:
        """Return the candidates of the best criteria, each of another form; perhaps none."""
        kinds = [form(Candidate(problem, row, mask)) for row, mask in zip(x, free, strict=True)]
        coarse, coarse_x, coarse_values = problem, x, criteria(problem, x, free)
        problem, values = solved(problem, x, free)
        chosen = _varied(values, kinds)
        if chosen:  # else no value is finite
            x, _ = minimise(problem, x[chosen], free[chosen], LAST, 1e-5, self.job)
            problem, values = solved(problem, x, free[chosen])
        if self.is_complete and values.min() > coarse_values.min() + LOST_CRITERION:
            others = _varied(coarse_values, kinds)
            refit = self.refit_in_windows(coarse.finer(), coarse_x[others], free[others])
            if refit[2].min() < values.min():
                chosen, (problem, x, values) = others, refit
        candidates: dict[Form, Candidate] = {}
        for n in values.argsort(stable=True).tolist():
            if values[n] < values.min() + LEADING_BIC:
                candidates.setdefault(kinds[chosen[n]], Candidate(problem, x[n], free[chosen[n]]))
        if not candidates:
            return []
        first = best_accurate(
            (candidate.refitted(self.job) for candidate in candidates.values()), self.job
        )
        if first is None:
            return []
        other_candidates = [
            candidate for kind, candidate in candidates.items() if kind != form(first)
        ][: LEADING - 1]
        rest = [replace(candidate, problem=first.problem) for candidate in other_candidates]
        return [first, *(refitted(rest, self.job) if rest else [])]

    def refit_in_windows(
        self, problem: Trajectories, x: Tensor, free: Tensor
    ) -> tuple[Trajectories, Tensor, Tensor]:
        """Fit candidates again with accurate steps; return their problem, numbers and criteria.

        Where neighbouring trajectories part fast, numbers that were fitted with coarse steps are no
        start for the whole series with accurate ones. They are a start for its windows.
        """
        first, lowest = self.first(len(x)).flatten(1), math.inf
        while True:
            x = torch.cat([x[:, : self.shape.weights], first], 1)
            x = self.fit_windows(problem, x, free, max(SEGMENT_STEPS, problem.steps))
            x, _ = minimise(problem, x, free, TRAJECTORY, 1e-5, self.job)
            fine, values = solved(problem, x, free)
            falls = values.min() < lowest - SAME_BIC and not self.job.pressed
            enough = fine.steps == problem.steps and fine.method == problem.method
            if not falls or enough or problem.steps >= MANY_STEPS:
                return fine, x, values
            problem, lowest = problem.finer(), float(values.min())


def stays(problem: Trajectories, x: Tensor) -> Tensor:
    """Return which candidates ``[K]`` have trajectories that do not leave the series far behind."""
    return (problem.states(x).abs() < BEYOND_SERIES).flatten(1).all(1)


def hidden(result: tuple[Candidate, Candidate, Visited]) -> float:
    """Return the share of the variation that the best one misses from measured first states."""
    candidate, free, _ = result
    return lost_from_curve(candidate, int(candidate.problem.data.seen.sum()) - int(free.free.sum()))


def _varied(values: Tensor, kinds: list[Form]) -> list[int]:
    """Return the candidates of the best criteria ``[K]``, at most `TWINS` of a form."""
    chosen: list[int] = []
    for n in values.argsort(stable=True).tolist():
        alike = sum(kinds[n] == kinds[other] for other in chosen)
        if values[n].isfinite() and alike < TWINS and len(chosen) < 2 * LEADING:
            chosen.append(n)
    return chosen


def _check_finite(exponents: Tensor, coefficients: Tensor) -> None:
    """Raise ValueError for a model's numbers that are none."""
    for noun, numbers in (("exponents", exponents), ("coefficients", coefficients)):
        if not numbers.isfinite().all():
            wrong = float(numbers[~numbers.isfinite()][0])
            rule = f"model must have finite {noun} with init='model'"
            raise ValueError(f"{NAME}: {rule}, got {wrong}")


def batches(starts: int) -> list[slice]:
    """Return the parts of the starts: those of 2K starts are those of K, and one more."""
    if starts % 2 or starts < 2 * SMALLEST_BATCH:
        return [slice(0, starts)]
    return [*batches(starts // 2), slice(starts // 2, starts)]


def is_exact(candidate: Candidate) -> bool:
    """Return whether a candidate's residuals are exact, and no exponent of it is free."""
    problem = candidate.problem
    if problem.data.has_sigma or candidate.free[: problem.shape.terms * problem.shape.states].any():
        return False
    count = problem.data.seen.sum((0, 1)).clamp(min=1)
    squares = candidate.residuals().square().sum((0, 1)) / count
    return bool((squares <= problem.data.exact.square()).all())


def is_finite(candidate: Candidate) -> bool:
    return math.isfinite(candidate.bic())


def is_better(candidate: Candidate, other: Candidate) -> bool:
    return candidate.bic() < other.bic() - SAME_BIC


def simplest(
    candidates: list[Candidate], max_denominator: int, loosen: bool, visited: Visited, job: Job
) -> tuple[Candidate, Candidate] | None:
    """Return the best of some candidates, pruned and rounded, of its alternatives, and of theirs.

    The second candidate is the same one with all numbers free. loosen: whether exponents may be
    free. visited: gets the candidates that were tried. None where no steps solve any of the
    candidates.
    """
    promising = hopeful(pruned(candidates, job, visited), max_denominator)
    simple = sorted(rounded(promising, max_denominator, job), key=Candidate.bic)
    best = best_accurate((candidate.refitted(job) for candidate in simple), job) or best_accurate(
        candidates, job
    )
    if best is None:
        return None
    free = loosened(best, loosen).refitted(job)
    for _ in range(MAX_CLIMBS):
        others = better_candidates(best, free, visited, max_denominator, job)
        better = None if job.pressed else best_accurate((candidate for candidate, _ in others), job)
        if better is None or not is_better(better, best):
            break
        visit(visited, best.bic(), best)
        best = better
        free = loosened(best, loosen).refitted(job)
    final = settled(explicit(best, job), job)
    return final, free if final is best else loosened(final, loosen).refitted(job)


def hopeful(candidates: list[Candidate], max_denominator: int) -> list[Candidate]:
    """Return the candidates that may be the best one when their exponents are fractions."""
    values = criteria_of(candidates) - foreseen(candidates, max_denominator)
    limit = values.min() + 2 * UNFORESEEN  # both candidates' values are approximations
    return [
        candidate for candidate, value in zip(candidates, values, strict=True) if value <= limit
    ]


def alternatives_of(best: Candidate, visited: Visited) -> Visited:
    """Return the candidates of other forms that are not much worse than the best one.

    If there is an exact candidate, candidates with more numbers are left out. So are candidates
    that no steps solve.
    """
    limit, best_form = best.bic() + ALTERNATIVE_BIC, form(best)
    size = sum(map(sum, best_form)) if is_exact(best) else math.inf
    near = {
        kind: pair[1]
        for kind, pair in visited.items()
        if pair[0] < limit and kind != best_form and sum(map(sum, kind)) <= size
    }
    if not near:
        return {}
    values = solved(best.problem, *stacked(list(near.values())))[1].tolist()
    pairs = zip(near.items(), values, strict=True)
    return {kind: (value, candidate) for (kind, candidate), value in pairs if value < limit}
