"""Simpler weights, step by step, with the error that each change costs. Needs torch only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import (
    check_denominator,
    check_floating,
    check_module,
    check_number,
    check_whole,
)
from npu_kernels.formula._models import (
    GATES,
    PRUNED,
    ROUNDED,
    clip_,
    layers_of,
    names_of,
    nearest_fraction,
    select,
    without_effect,
)
from npu_kernels.layers import NAU
from npu_kernels.layers._chains import full_name

Score = Callable[[nn.Module], float]
Loss = Callable[[nn.Module], Tensor]
Refit = Callable[[nn.Module, Mapping[str, Tensor]], object]


def relative_error(prediction: Tensor, target: Tensor) -> Tensor:
    """The root mean square of the error, over outputs and rows, as a scalar.

    Each output counts relative to the root mean square of its target, or absolutely where its
    target is 0 throughout. prediction, target: both ``[B, O]``.
    """
    for name, tensor in (("prediction", prediction), ("target", target)):
        check_floating("relative_error", name, tensor)
    if prediction.shape != target.shape or target.dim() != 2:
        shapes = f"{tuple(prediction.shape)} and {tuple(target.shape)}"
        rule = "prediction and target must have one shape (B, O)"
        raise ValueError(f"relative_error: {rule}, got {shapes}")
    return _relative_error(prediction, target)


def _relative_error(prediction: Tensor, target: Tensor) -> Tensor:
    scale = target.square().mean(0)
    return ((prediction - target).square().mean(0) / scale.where(scale > 0, 1)).mean().sqrt()


def _number(value: Any) -> float:
    """Return a score as a float; inf for nan."""
    try:
        error = float(value)
    except (TypeError, ValueError):
        got = type(value).__name__
        raise TypeError(f"simplify: loss must give a number, got {got}") from None
    return math.inf if math.isnan(error) else error


def _data_loss(module: nn.Module, x: Tensor, y: Tensor | None) -> Loss:
    """Return the differentiable error on data; without y, of the deviation from the module."""
    for name, tensor in (("x", x), ("y", y)):
        if tensor is not None:
            check_floating("simplify", name, tensor)
            if not tensor.numel() or not tensor.isfinite().all():
                rule = "must not be empty" if not tensor.numel() else "must be finite"
                raise ValueError(f"simplify: {name} {rule}, got shape {tuple(tensor.shape)}")
    with torch.no_grad():
        prediction: Tensor = module(x)
    target = prediction if y is None else y
    if target.shape != prediction.shape:
        rule = f"the shape of the model's output {tuple(prediction.shape)}"
        raise ValueError(f"simplify: y must have {rule}, got shape {tuple(target.shape)}")
    target = target.detach().reshape(-1, target.shape[-1])
    return lambda candidate: _relative_error(candidate(x).reshape(target.shape), target)


def scorer(
    module: nn.Module, x: Tensor | None, y: Tensor | None, score: Score | None
) -> tuple[Score, Loss | None]:
    """Return the score of a model as a float, and for data its differentiable form."""
    if (x is None) == (score is None) or (score is not None and y is not None):
        rule = "either x (with or without y) or loss must be given"
        raise ValueError(f"simplify: {rule}, got both or neither")
    loss = None if x is None else _data_loss(module, x, y)
    function: Callable[[nn.Module], Any] | None = loss or score
    if not callable(function):
        got = type(function).__name__
        raise TypeError(f"simplify: loss must be a function of the model, got {got}")

    def error(candidate: nn.Module) -> float:
        with torch.no_grad():
            return _number(function(candidate))

    return error, loss


def lbfgs(loss: Loss, iterations: int) -> Refit:
    """Return a refit by L-BFGS, in which fixed entries have no gradient and do not move."""

    def refit(module: nn.Module, fixed: Mapping[str, Tensor]) -> None:
        parameters = dict(module.named_parameters())
        options: dict[str, Any] = {"tolerance_grad": 0.0, "tolerance_change": 0.0}
        options |= {"max_iter": iterations, "line_search_fn": "strong_wolfe"}
        optimizer = torch.optim.LBFGS(parameters.values(), **options)

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss(module).square()
            value.backward()
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    parameter.grad[fixed[name]] = 0
            return value

        optimizer.step(closure)
        optimizer.zero_grad()

    return refit


# ---- steps ---------------------------------------------------------------------------------------

Table = Mapping[Any, tuple[str, ...]]  # a layer's class -> names of parameters
Entry = tuple[str, tuple[int, ...]]  # a parameter's name, and an index into the parameter
Values = tuple[float, ...]  # to try for an entry, the simplest first
Options = Callable[[Tensor], Values]
STEPS = ("gates", "prune", "round")


@dataclass(frozen=True)
class Change:
    """The change of one entry of a parameter.

    Attributes:
        parameter: the parameter's name in the module.
        index: index of the entry in the tensor.
        before: value of the entry.
        after: value that was tried.
        alone: error with this change only, applied to the model as it was at the beginning of the
            step or after the last refit.
        error: error with this change and all accepted changes before it.
        accepted: whether the entry has the value `after` in the result.
    """

    parameter: str
    index: tuple[int, ...]
    before: float
    after: float
    alone: float
    error: float
    accepted: bool

    def __str__(self) -> str:
        entry = f"{self.parameter}[{', '.join(map(str, self.index))}]"
        return (
            f"{entry:<24} {self.before:>12.6g} -> {self.after:<10.6g} alone {self.alone:.3e}  "
            f"error {self.error:.3e}{'' if self.accepted else '  rejected'}"
        )


@dataclass(frozen=True)
class SimplifyStep:
    """One step of `simplify`.

    Attributes:
        name: "gates", "prune", "unused" or "round".
        before: error of the model before the step.
        after: error of the model after the step.
        n_parameters: number of parameters that are not 0 after the step.
        changes: all changes that were tried.
    """

    name: str
    before: float
    after: float
    n_parameters: int
    changes: tuple[Change, ...]

    @property
    def accepted(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.accepted)


@dataclass(frozen=True)
class SimplifyResult:
    """A simplified copy of a model, and its record.

    ``str()`` is a table of the steps: number of parameters that are not 0, numbers of accepted and
    of rejected changes, error after the step, increase of the error by the step (cost), and the
    largest increase by one change (largest). `details` lists every change.

    Attributes:
        module: one model, without `num_models`.
        error: error of the original model.
        n_parameters: number of parameters that were not 0 in the original model.
        steps: the steps, in order.
    """

    module: nn.Module
    error: float
    n_parameters: int
    steps: tuple[SimplifyStep, ...]

    def __str__(self) -> str:
        head = ("step", "parameters", "changed", "rejected", "error", "cost", "largest")
        rows = [head, ("given", str(self.n_parameters), "", "", f"{self.error:.3e}", "", "")]
        for step in self.steps:
            errors = [step.before, *(change.error for change in step.accepted)]
            highest = max((after - before for before, after in pairwise(errors)), default=0.0)
            accepted = len(step.accepted)
            counts = str(step.n_parameters), str(accepted), str(len(step.changes) - accepted)
            costs = f"{step.after:.3e}", f"{step.after - step.before:+.1e}", f"{highest:+.1e}"
            rows.append((step.name, *counts, *costs))
        return "\n".join("{:<8}{:>12}{:>12}{:>12}{:>12}{:>12}{:>14}".format(*row) for row in rows)

    def details(self) -> str:
        """Return all changes of all steps, one per line."""
        lines = []
        for step in self.steps:
            lines.append(f"{step.name}: error {step.before:.3e} -> {step.after:.3e}")
            lines += [f"  {change}" for change in step.changes]
        return "\n".join(lines)


@dataclass
class _Simplifier:
    """The steps of `simplify`, which change the module in place."""

    module: nn.Module  # a copy of the user's
    score: Score
    refit: Refit | None
    limit: float | None  # the largest error allowed; None for any
    error: float  # of the module
    sums: frozenset[str]  # weights of sums, of which only 0, 1 and -1 may cost anything
    fixed: dict[str, Tensor]  # parameter -> bool, the entries that a refit must not change
    steps: list[SimplifyStep] = field(default_factory=list)

    def parameters(self) -> int:
        return sum(int(p.count_nonzero()) for p in self.module.parameters())

    def set(self, entry: Entry, number: float) -> None:
        with torch.no_grad():
            self.module.get_parameter(entry[0])[entry[1]] = number

    def get(self, entry: Entry) -> Tensor:
        return self.module.get_parameter(entry[0])[entry[1]].detach()

    def fix(self, entry: Entry, fixed: bool = True) -> None:
        self.fixed[entry[0]][entry[1]] = fixed

    def state(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}

    def restore(self, state: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(state[name])

    def rank(self, entries: list[Entry], options: Options) -> list[tuple[float, Entry]]:
        """Return (error, entry), lowest first; the error is with the entry's best value only."""
        ranked = []
        for entry in entries:
            before, errors = float(self.get(entry)), []
            for number in options(self.get(entry)):
                self.set(entry, number)
                errors.append(self.score(self.module))
            self.set(entry, before)
            ranked.append((min(errors), entry))
        return sorted(ranked, key=lambda pair: pair[0])

    def attempt(self, entry: Entry, number: float) -> float:
        """Set an entry, refit what is free and return the error. Undo a refit that is worse."""
        self.set(entry, number)
        error = self.score(self.module)
        if self.refit is None:
            return error
        state = self.state()
        self.refit(self.module, self.fixed)
        clip_(self.module)
        refitted = self.score(self.module)
        if refitted <= error:
            return refitted
        self.restore(state)
        return error

    def error_limit(self, entry: Entry, number: float) -> float:
        """Return the largest error with which an entry may have a value."""
        assert self.limit is not None
        if entry[0] not in self.sums or number in (0.0, 1.0, -1.0):
            return self.limit
        return min(self.limit, self.error + _rounding(self.module))

    def choose(self, entry: Entry, values: Values, remaining: int) -> tuple[float, float, bool]:
        """Give an entry a value, or leave it; return (value, error, whether it was accepted).

        The value is the simplest whose cost is within a fair share of what the tolerance leaves to
        the `remaining` entries; else the cheapest, if all of that allows it.
        """
        if self.limit is None:
            return values[-1], self.attempt(entry, values[-1]), True
        state, trials = self.state(), []
        share = self.error + (self.limit - self.error) / remaining
        for number in values:
            error = self.attempt(entry, number)
            if error <= min(share, self.error_limit(entry, number)):
                return number, error, True
            trials.append((error, number, self.state()))
            self.restore(state)
        error, number, state = min(trials, key=lambda trial: trial[0])
        accepted = error <= self.error_limit(entry, number)
        if accepted:
            self.restore(state)
        return number, error, accepted

    def step(self, name: str, entries: list[Entry], options: Options) -> None:
        """Try to change the entries, the cheapest first, and record the changes."""
        if not entries and any(step.name == name for step in self.steps):
            return
        start, changes = self.error, []
        ranked = self.rank(entries, options)
        while ranked:
            single_error, entry = ranked.pop(0)
            before = self.get(entry).clone()
            self.fix(entry)
            number, error, accepted = self.choose(entry, options(before), 1 + len(ranked))
            self.fix(entry, accepted)
            parameter, index = entry
            changes.append(
                Change(parameter, index, float(before), number, single_error, error, accepted)
            )
            if accepted:
                self.error = error
                if self.refit is not None:  # the refit has moved the other entries
                    ranked = self.rank([pair[1] for pair in ranked], options)
        self.record(name, start, changes)

    def record(self, name: str, start: float, changes: list[Change]) -> None:
        self.steps.append(SimplifyStep(name, start, self.error, self.parameters(), tuple(changes)))

    def unfinished(self, table: Table, is_simple: Callable[[Tensor], bool]) -> list[Entry]:
        """Return the entries of a table's parameters that are not simple yet; fix the others."""
        entries = []
        for path, layer in layers_of("simplify", self.module).items():
            for name in names_of(layer, table):
                shape = getattr(layer, name).shape
                for index in itertools.product(*map(range, shape)):
                    entry = full_name(path, name), index
                    if is_simple(self.get(entry)):
                        self.fix(entry)
                    else:
                        entries.append(entry)
        return entries

    def gates(self) -> None:
        """Make gates 0 or 1; with a tolerance, the nearer number or else the other."""

        def options(gate: Tensor) -> Values:
            near = float(gate >= 0.5)
            return (near,) if self.limit is None else (near, 1.0 - near)

        self.step("gates", self.unfinished(GATES, lambda gate: gate.item() in (0.0, 1.0)), options)

    def prune(self, threshold: float) -> None:
        """Make weights below the threshold 0, then everything that has no effect any more."""
        entries = self.unfinished(PRUNED, lambda weight: weight.item() == 0)
        small = [entry for entry in entries if self.get(entry).abs() < threshold]
        self.step("prune", small, lambda weight: (0.0,))
        start, changes = self.error, []
        for entry in without_effect(self.module):
            before = float(self.get(entry))
            self.set(entry, 0.0)
            self.fix(entry)
            if before != 0:
                self.error = self.score(self.module)
                parameter, index = entry
                changes.append(
                    Change(parameter, index, before, 0.0, self.error, self.error, accepted=True)
                )
        if changes:
            self.record("unused", start, changes)

    def round(self, max_denominator: int) -> None:
        """Make weights fractions; with a tolerance, the simplest that it allows."""

        def options(weight: Tensor) -> Values:
            smallest = max_denominator if self.limit is None else 1
            denominators = range(smallest, max_denominator + 1)
            return tuple(dict.fromkeys(float(nearest_fraction(weight, q)) for q in denominators))

        def is_simple(weight: Tensor) -> bool:
            return weight.item() == float(nearest_fraction(weight, max_denominator))

        self.step("round", self.unfinished(ROUNDED, is_simple), options)


def _simplifier(
    module: nn.Module,
    x: Tensor | None,
    y: Tensor | None,
    tolerance: float | str | None,
    score: Score | None,
    refit: int | Refit,
) -> _Simplifier:
    """Return the simplifier of a module, which it changes."""
    fit: Refit | None = refit if callable(refit) else None
    measure, loss = scorer(module, x, y, score)
    clip_(module)
    if not callable(refit) and refit:
        if loss is None:
            rule = "refit must be a function where loss is given"
            raise ValueError(f"simplify: {rule}, got a number of iterations")
        fit = lbfgs(loss, refit)
    error = measure(module)
    fixed = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in module.named_parameters()}
    limit, sums = None, frozenset[str]()
    if isinstance(tolerance, (int, float)):
        limit = error + float(tolerance)
    elif tolerance == "auto" and y is not None:
        limit, sums = _limit_of_data(module, y, error), frozenset(fixed) & _sums(module)
    return _Simplifier(module, measure, fit, limit, error, sums, fixed)


def _sums(module: nn.Module) -> set[str]:
    """Return the weights of layers that add up."""
    layers = layers_of("simplify", module).items()
    sums = [(path, layer) for path, layer in layers if isinstance(layer, (NAU, nn.Linear))]
    return {full_name(path, name) for path, layer in sums for name in names_of(layer, ROUNDED)}


def _rounding(module: nn.Module) -> float:
    """Return the relative error that rounding may cause."""
    return 16 * torch.finfo(next(module.parameters()).dtype).eps


def _limit_of_data(module: nn.Module, y: Tensor, error: float) -> float:
    """Return the error up to which BIC would prefer a model with none of the module's parameters.

    BIC is ``M log(error**2) + P log M`` for M values of y and P parameters. With many rows or
    without noise the error may hardly grow, so that no true term is lost. The limit is at least the
    error of rounding.
    """
    parameters = sum(int(p.count_nonzero()) for p in module.parameters())
    grown = error * math.exp(min(parameters * math.log(y.numel()) / (2 * y.numel()), 0.5))
    return max(grown, error + _rounding(module))


def simplify(
    module: nn.Module,
    x: Tensor | None = None,
    y: Tensor | None = None,
    *,
    steps: tuple[str, ...] = ("gates", "prune", "round", "gates"),
    threshold: float = 1e-2,
    max_denominator: int = 4,
    tolerance: float | str | None = "auto",
    model_index: int | None = None,
    loss: Score | None = None,
    refit: int | Refit = 0,
) -> SimplifyResult:
    """Return a copy of a model with simpler weights, and the effect of each change on the error.

    Args:
        module: a layer of this package, a Linear, or a Sequential of these; it is not modified.
        x: inputs ``[B, I]`` on which errors are measured.
        y: targets ``[B, O]``; None for the model's own output, so that errors are deviations from
            the model.
        steps: "gates", "prune" and "round", in the order in which they are done; "gates" is there
            twice by default, because a gate that cannot be rounded at first may be rounded after
            the weights. "gates" rounds gates to 0 or 1. "prune" sets weights with an absolute value
            below `threshold` to 0, and then everything that no output depends on any more ("unused"
            in `SimplifyResult.steps`). "round" rounds the weights of NPU, RealNPU, NaiveNPU, NAU,
            NMU, NMRU and Linear to fractions.
        threshold: of "prune": weights with a smaller absolute value are tried. ``math.inf`` tries
            all weights; without a tolerance all would become 0.
        max_denominator: maximum denominator of "round".
        tolerance: by how much the error may exceed that of the original model. None, or "auto"
            without y, accepts all changes. "auto" with y: see below.
        model_index: index of the model if the layers have `num_models`.
        loss: in place of x and y: a function of the model that returns its error, for example of a
            trajectory.
        refit: number of L-BFGS iterations on the data after each change, with simplified entries
            fixed; or a function ``(module, fixed)`` that trains the module in place where
            ``fixed[name]`` is false. A refit that increases the error is undone. 0: the other
            weights are not changed.

    With a tolerance the changes are tried one by one, in order of increasing error. A gate becomes
    0 or 1. The share of a weight is the unused tolerance, divided by the number of weights still to
    be tried. The weight becomes the simplest fraction that increases the error by at most this
    share. If there is none, it becomes the fraction with the smallest error, provided that the
    whole unused tolerance allows it; otherwise it stays.

    "auto" lets the error become ``exp(min(P log(M) / (2 M), 0.5))`` times as large, for P nonzero
    parameters and M values of y. This is what the BIC would gain if all P parameters were removed;
    the limit 0.5 is for few values. Weights of sums (NAU, Linear) then become only 0, 1 and -1, and
    other fractions if that does not increase the error: measured constants are rarely fractions.

    Unless `loss` is given, the error is the root mean square of the error over the root mean square
    of the target (`relative_error`); nan counts as inf. Time: about two evaluations of the model
    for each weight or gate that is tried. With a refit, each change adds the refit and one
    evaluation for each weight or gate that is still to be tried.

    Raises TypeError and ValueError for invalid arguments.

        >>> import torch
        >>> from npu_kernels import RealNPU
        >>> from npu_kernels.formula import simplify
        >>> layer = RealNPU(2, 1)
        >>> layer.weight_re.data = torch.tensor([[0.998, -0.0004]])
        >>> layer.gate.data = torch.tensor([0.97, 1.0])
        >>> result = simplify(layer, torch.rand(100, 2) + 0.1)
        >>> changes = [change for step in result.steps for change in step.changes]
        >>> [f"{change.before:.4f} -> {change.after:g}" for change in changes]
        ['0.9700 -> 1', '-0.0004 -> 0', '1.0000 -> 0', '0.9980 -> 1']
    """
    check_module("simplify", "module", module)
    if not isinstance(steps, (tuple, list)) or any(name not in STEPS for name in steps):
        raise ValueError(f"simplify: steps must be of 'gates', 'prune' and 'round', got {steps!r}")
    threshold = check_number("simplify", "threshold", threshold, above=0, finite=False)
    max_denominator = check_denominator("simplify", "max_denominator", max_denominator)
    if tolerance not in (None, "auto"):
        rules: dict[str, Any] = {"minimum": 0, "finite": False, "other": "'auto', None"}
        tolerance = check_number("simplify", "tolerance", tolerance, **rules)
    if not callable(refit):
        refit = check_whole("simplify", "refit", refit, 0, other="a function")
    simplifier = _simplifier(select(module, model_index), x, y, tolerance, loss, refit)
    error, parameters = simplifier.error, simplifier.parameters()
    for name in steps:
        if name == "gates":
            simplifier.gates()
        elif name == "prune":
            simplifier.prune(threshold)
        else:
            simplifier.round(max_denominator)
    return SimplifyResult(simplifier.module, error, parameters, tuple(simplifier.steps))
