"""Simpler weights, step by step, with the error that each change costs. Needs torch only.

    gates     gates that are neither 0 nor 1 become 0 or 1: a power of ``g |x| + 1 - g`` is no power of x
    prune     small weights become 0
    round     weights become simple fractions

With tolerance None a step does all of its changes. With a tolerance it tries the changes in the order of their cost,
the lowest first, and keeps those with which the error has grown by no more than the tolerance in total. The user's
module is never modified.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels.checks import check_module, check_number, check_whole
from npu_kernels.formula.fractions import check_max_denominator, nearest_fraction
from npu_kernels.formula.models import layers_of, select
from npu_kernels.formula.record import Change, Simplified, Step
from npu_kernels.formula.scoring import Refit, Score, lbfgs, scorer
from npu_kernels.formula.weights import GATES, PRUNED, ROUNDED, clip_, names_of, without_effect
from npu_kernels.layers import NAU

Place = tuple[str, tuple[int, ...]]  # a parameter's name, and an index into it
Options = Callable[[Tensor], tuple[float, ...]]  # the values to try for a number, the simplest first


@dataclass
class _Work:
    """The copy while it is being simplified."""

    module: nn.Module
    score: Score
    refit: Refit | None
    limit: float | None
    error: float
    sums: frozenset[str] = frozenset()  # weights of sums, of which only 0, 1 and -1 may cost anything
    fixed: dict[str, Tensor] = field(default_factory=dict)  # parameter -> bool, what a refit must not change
    steps: list[Step] = field(default_factory=list)

    def parameters(self) -> int:
        return sum(int(p.count_nonzero()) for p in self.module.parameters())

    def set(self, place: Place, number: float) -> None:
        with torch.no_grad():
            self.module.get_parameter(place[0])[place[1]] = number

    def get(self, place: Place) -> Tensor:
        return self.module.get_parameter(place[0])[place[1]].detach()

    def fix(self, place: Place, fixed: bool = True) -> None:
        self.fixed[place[0]][place[1]] = fixed

    def state(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}

    def restore(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(state[name])

    def rank(self, places: list[Place], options: Options) -> list[tuple[float, Place]]:
        """Every place with the error of its best value alone, the cheapest first."""
        found = []
        for place in places:
            before, errors = float(self.get(place)), []
            for number in options(self.get(place)):
                self.set(place, number)
                errors.append(self.score(self.module))
            self.set(place, before)
            found.append((min(errors), place))
        return sorted(found, key=lambda pair: pair[0])

    def attempt(self, place: Place, number: float) -> float:
        """Set a value and refit what is free; returns the error. A refit that makes it greater is undone."""
        self.set(place, number)
        error = self.score(self.module)
        if self.refit is None:
            return error
        plain = self.state()
        self.refit(self.module, self.fixed)
        clip_(self.module)
        refitted = self.score(self.module)
        if refitted <= error:
            return refitted
        self.restore(plain)
        return error

    def most(self, place: Place, number: float) -> float:
        """The greatest error with which a place may have a value."""
        assert self.limit is not None
        if place[0] not in self.sums or number in (0.0, 1.0, -1.0):
            return self.limit
        return min(self.limit, self.error + _rounding(self.module))

    def choose(self, place: Place, values: tuple[float, ...], left: int) -> tuple[float, float, bool]:
        """Give a place a value, or leave it: (value, error, whether it was accepted).

        The simplest value whose cost is within a fair share of what the tolerance leaves to so many places; else the
        cheapest, if all that is left allows it.
        """
        if self.limit is None:
            return values[-1], self.attempt(place, values[-1]), True
        state, share, tried = self.state(), self.error + (self.limit - self.error) / left, []
        for number in values:
            error = self.attempt(place, number)
            if error <= min(share, self.most(place, number)):
                return number, error, True
            tried.append((error, number, self.state()))
            self.restore(state)
        error, number, best = min(tried, key=lambda trial: trial[0])
        accepted = error <= self.most(place, number)
        if accepted:
            self.restore(best)
        return number, error, accepted

    def step(self, name: str, places: list[Place], options: Options) -> None:
        """Try the places, the cheapest first, and record them."""
        if not places and any(step.name == name for step in self.steps):
            return
        start, changes = self.error, []
        ranked = self.rank(places, options)
        while ranked:
            alone, place = ranked.pop(0)
            before = self.get(place).clone()
            self.fix(place)
            number, error, accepted = self.choose(place, options(before), 1 + len(ranked))
            self.fix(place, accepted)
            changes.append(Change(*place, float(before), number, alone, error, accepted))
            if accepted:
                self.error = error
                if self.refit is not None:  # the others have moved
                    ranked = self.rank([other for _, other in ranked], options)
        self.record(name, start, changes)

    def record(self, name: str, start: float, changes: list[Change]) -> None:
        self.steps.append(Step(name, start, self.error, self.parameters(), tuple(changes)))

    def places(self, table: Mapping[Any, tuple[str, ...]]) -> list[Place]:
        """Every entry of these parameters."""
        found: list[Place] = []
        for path, layer in layers_of("simplify", self.module).items():
            for name in names_of(layer, table):
                full = f"{path}.{name}" if path else name
                found += [(full, index) for index in itertools.product(*map(range, getattr(layer, name).shape))]
        return found

    def free(self, table: Mapping[Any, tuple[str, ...]], done: Callable[[Tensor], bool]) -> list[Place]:
        """The entries that are not simple yet. Those that are will not be refitted."""
        places = []
        for place in self.places(table):
            if done(self.get(place)):
                self.fix(place)
            else:
                places.append(place)
        return places

    def gates(self) -> None:
        """Gates to 0 or 1; with a tolerance, to the nearer one or else to the other."""

        def options(gate: Tensor) -> tuple[float, ...]:
            near = float(gate >= 0.5)
            return (near,) if self.limit is None else (near, 1.0 - near)

        self.step("gates", self.free(GATES, lambda gate: gate.item() in (0.0, 1.0)), options)

    def prune(self, threshold: float) -> None:
        """Weights below the threshold to 0, then everything that has no effect any more."""
        places = [place for place in self.free(PRUNED, lambda w: w.item() == 0) if self.get(place).abs() < threshold]
        self.step("prune", places, lambda weight: (0.0,))
        start, changes = self.error, []
        for place in without_effect(self.module):
            before = float(self.get(place))
            self.set(place, 0.0)
            self.fix(place)
            if before != 0:
                self.error = self.score(self.module)
                changes.append(Change(*place, before, 0.0, self.error, self.error, True))
        if changes:
            self.record("unused", start, changes)

    def round(self, max_denominator: int) -> None:
        """Weights to fractions; with a tolerance, to the simplest that it allows."""

        def options(weight: Tensor) -> tuple[float, ...]:
            denominators = (max_denominator,) if self.limit is None else range(1, max_denominator + 1)
            return tuple(dict.fromkeys(float(nearest_fraction(weight, q)) for q in denominators))

        self.step("round", self.free(ROUNDED, lambda w: w.item() == nearest_fraction(w, max_denominator)), options)


def _begin(
    module: nn.Module,
    x: Tensor | None,
    y: Tensor | None,
    *,
    tolerance: float | str | None,
    model: int | None,
    score: Score | None,
    refit: int | Refit,
) -> _Work:
    if tolerance not in (None, "auto"):
        tolerance = check_number("simplify", "tolerance", tolerance, minimum=0, finite=False, other="'auto', None")
    if not callable(refit):
        refit = check_whole("simplify", "refit", refit, 0, other="a function")
    copy = select(module, model)
    measure, loss = scorer(copy, x, y, score)
    clip_(copy)
    fit: Refit | None = None
    if callable(refit):
        fit = refit
    elif refit:
        if loss is None:
            raise ValueError("simplify: refit must be a function where score is given, got a number of iterations")
        fit = lbfgs(loss, refit)
    error = measure(copy)
    fixed = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in copy.named_parameters()}
    if tolerance == "auto":
        limit = None if y is None else _limit_of_data(copy, y, error)
    else:
        limit = None if tolerance is None else error + float(tolerance)
    sums = frozenset(fixed) & _sums(copy) if tolerance == "auto" and y is not None else frozenset()
    return _Work(copy, measure, fit, limit, error, sums, fixed)


def _sums(module: nn.Module) -> set[str]:
    """The parameters of layers that add up."""
    layers = layers_of("simplify", module).items()
    found = {path: layer for path, layer in layers if isinstance(layer, (NAU, nn.Linear))}
    return {f"{path}.{name}" if path else name for path, layer in found.items() for name in names_of(layer, ROUNDED)}


def _rounding(module: nn.Module) -> float:
    """The relative error that rounding may cause."""
    return 16 * torch.finfo(next(module.parameters()).dtype).eps


def _limit_of_data(module: nn.Module, y: Tensor, error: float) -> float:
    """The error up to which a model with none of its parameters would be preferred by BIC, at least that of rounding.

    BIC is ``M log(error**2) + P log M`` for M values of y and P parameters. With many rows or without noise the error
    may hardly grow, so that no true term is lost.
    """
    parameters = sum(int(p.count_nonzero()) for p in module.parameters())
    grown = error * math.exp(min(parameters * math.log(y.numel()) / (2 * y.numel()), 0.5))
    return max(grown, error + _rounding(module))


def _end(work: _Work, error: float, parameters: int) -> Simplified:
    return Simplified(work.module, error, parameters, tuple(work.steps))


def simplify(
    module: nn.Module,
    x: Tensor | None = None,
    y: Tensor | None = None,
    *,
    steps: tuple[str, ...] = ("gates", "prune", "round", "gates"),
    threshold: float = 1e-2,
    max_denominator: int = 4,
    tolerance: float | str | None = "auto",
    model: int | None = None,
    score: Score | None = None,
    refit: int | Refit = 0,
) -> Simplified:
    """A copy of a model with simpler weights, and what each step and each change cost.

    Args:
        module: a layer of ours, a Linear, or a Sequential of these; never modified.
        x: inputs ``[B, I]`` to measure errors on.
        y: targets ``[B, O]``; None for the model's own output, so that errors are deviations from the model.
        steps: of "gates", "prune", "round", in the order in which they are done; a gate that is refused at first may
            be accepted when the rest is simpler. "gates" makes gates 0 or 1. "prune" makes weights below `threshold` 0,
            and then everything that no output depends on any more ("unused" in the record). "round" makes the weights
            of power units, NAU, NMU, NMRU and Linear fractions.
        threshold: of "prune"; with a tolerance, ``math.inf`` tries all weights.
        max_denominator: of "round".
        tolerance: None to make all changes. A number: changes are tried one by one, those of the lowest cost first,
            and kept while the error is at most that of the model given plus the tolerance. A gate may go to its farther
            end then, and a weight to the simplest fraction that costs no more than its share of what is left. "auto":
            with y, as much as the noise and the number of rows allow (by BIC, for all parameters together): hardly
            anything for an exact fit or many rows; without y, all changes. With y, weights of sums (NAU, Linear) become
            0, 1 or -1 by this rule, and other fractions only where that costs nothing: a measured constant is none.
        model: index of the model where the layers have `num_models`.
        score: instead of x and y: a function of the model that gives its error, for example of a trajectory.
        refit: iterations of L-BFGS on the data after each change, in which what was made simple stays as it is; or a
            function ``(module, fixed)`` that trains the module in place where ``fixed[name]`` is false. Without, the
            rest of the weights stays as it was. A refit that makes the error greater is undone.

    Errors are `relative_error` unless `score` is given; nan counts as inf. Time: about two evaluations of the model per
    candidate. With a refit, each change adds an evaluation for every candidate left, and the refit itself.

    Raises TypeError and ValueError for arguments outside of these.

        >>> import torch
        >>> from npu_kernels import RealNPU
        >>> from npu_kernels.formula import simplify
        >>> layer = RealNPU(2, 1)
        >>> layer.weight_re.data = torch.tensor([[0.998, -0.0004]])
        >>> layer.gate.data = torch.tensor([0.97, 1.0])
        >>> result = simplify(layer, torch.rand(100, 2) + 0.1)
        >>> [f"{change.before:.4f} -> {change.after:g}" for step in result.steps for change in step.changes]
        ['0.9700 -> 1', '-0.0004 -> 0', '1.0000 -> 0', '0.9980 -> 1']
    """
    check_module("simplify", "module", module)
    if not isinstance(steps, (tuple, list)):
        raise ValueError(f"simplify: steps must be of 'gates', 'prune' and 'round', got {steps!r}")
    unknown = [name for name in steps if name not in ("gates", "prune", "round")]
    if unknown:
        raise ValueError(f"simplify: steps must be of 'gates', 'prune' and 'round', got {steps!r}")
    threshold = check_number("simplify", "threshold", threshold, above=0, finite=False)
    max_denominator = check_max_denominator("simplify", max_denominator)
    work = _begin(module, x, y, tolerance=tolerance, model=model, score=score, refit=refit)
    error, parameters = work.error, work.parameters()
    for name in steps:
        if name == "gates":
            work.gates()
        elif name == "prune":
            work.prune(threshold)
        else:
            work.round(max_denominator)
    return _end(work, error, parameters)
