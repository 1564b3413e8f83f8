"""Settings and results of `fit`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor, nn

from npu_kernels._common import display
from npu_kernels._common.checks import (
    FINEST_FRACTION,
    as_number,
    check_choice,
    check_number,
    check_whole,
    is_whole,
)


@dataclass(frozen=True)
class Recipe:
    """The settings of `fit`; the defaults do not depend on the data.

    Args:
        rungs: the stages (rungs) of successive halving, (steps, share) for each: the number of Adam
            steps, and the share of all initialisations that take part. The best so far take part.
        batch_size: rows per step.
        lr: learning rate of Adam in the first stage, halved in each later one; within a stage it
            falls along a cosine.
        wide: weights of NPU, RealNPU and NaiveNPU are initialised in U(-w, w) with ``w = min(v, v *
            sqrt(2 / inputs))`` and, in initialisation s, ``v = wide[s % len(wide)]``.
        hidden: only for an NPU or RealNPU after the first layer: how many of its inputs have a gate
            and weights other than 0 at the start; 0 stands for all of them. Initialisation s uses
            ``hidden[s // len(wide) % len(hidden)]``. The other inputs begin with gate and weight 0,
            because a product of a hundred random powers does not train.
        gates: initial values of the gates; initialisation s uses ``gates[s % len(gates)]``.
        imaginary: imaginary weights are initialised in U(-f w, f w), with the w of `wide`.
            Initialisation s uses ``f = imaginary[s // (len(wide) * len(hidden)) %
            len(imaginary)]``, so all combinations of `wide`, `hidden` and `imaginary` occur.
        weight_bound: weights of NPU, RealNPU and NaiveNPU are clamped to [-weight_bound,
            weight_bound]; gates, and weights of NAU, NMU and NMRU, to the intervals of their
            layers.
        finalists: ``(n, m)``: the n best initialisations of a problem go on to L-BFGS, and the m
            best of these to rounding with refits.
        refine: L-BFGS evaluations before rounding.
        settle: L-BFGS evaluations after rounding the weights of NPU, RealNPU and NaiveNPU, and
            again after rounding the other weights.
        rows: ``(rows in refine, rows in settle)``: training rows of an L-BFGS evaluation. ``4 *
            parameters / outputs`` rows are used if that is more.
        denominators: rounding to fractions is tried with each of these numbers as the largest
            denominator.
        slack: a simpler candidate is selected if its held-out error is at most ``1 + slack`` times
            the smallest. With noise, a simpler candidate is also selected if its held-out error
            exceeds the smallest by at most two standard errors of the difference, or if it is at
            most 1.5 times the smallest and the Bayesian information criterion of the training rows
            prefers the candidate.
        loss: "relative": squares of ``(y - target) / sqrt(target^2 + median(|target|)^2)``;
            "squared": squares of ``(y - target) / rms(target)``; separately for each output.
        holdout: share of the rows that is held out for model selection, at most 8,192 rows.

    Raises ValueError for values outside of their ranges.
    """

    rungs: tuple[tuple[int, float], ...] = ((200, 1.0), (300, 0.25))
    batch_size: int = 64
    lr: float = 0.05
    wide: tuple[float, ...] = (2.0, 1.0)
    hidden: tuple[int, ...] = (2, 1, 4, 8)
    gates: tuple[float, ...] = (1.0,)
    imaginary: tuple[float, ...] = (0.25, 0.0)
    weight_bound: float = 6.0
    finalists: tuple[int, int] = (4, 2)
    refine: int = 800
    settle: int = 100
    rows: tuple[int, int] = (128, 512)
    denominators: tuple[int, ...] = (1, 2, 3, 4, 6)
    slack: float = 0.02
    loss: str = "relative"
    holdout: float = 0.2

    def __post_init__(self) -> None:
        def rule(name: str, holds: bool, rule: str) -> None:
            if not holds:
                raise ValueError(f"Recipe: {name} must {rule}, got {getattr(self, name)!r}")

        def number(value: Any, low: float, high: float = math.inf) -> bool:
            return low <= as_number(value) <= high and as_number(value) < math.inf

        def several(values: Any) -> bool:
            return isinstance(values, (tuple, list)) and len(values) > 0

        def integers(values: Any, minimum: int) -> bool:
            return several(values) and all(is_whole(value) and value >= minimum for value in values)

        def numbers(values: Any, low: float, high: float = math.inf) -> bool:
            return several(values) and all(number(value, low, high) for value in values)

        def falling(values: Any) -> bool:
            return all(0 < b <= a for a, b in zip([1.0, *values], values, strict=False))

        for name, minimum in (("batch_size", 1), ("refine", 0), ("settle", 0)):
            check_whole("Recipe", name, getattr(self, name), minimum)
        for name in ("lr", "weight_bound"):
            check_number("Recipe", name, getattr(self, name), above=0)
        check_number("Recipe", "slack", self.slack, minimum=0)
        check_choice("Recipe", "loss", self.loss, ("relative", "squared"))
        for name in ("wide", "imaginary"):
            rule(name, numbers(getattr(self, name), 0), "be finite numbers of at least 0")
        rule("hidden", integers(self.hidden, 0), "be integers of at least 0")
        rule("gates", numbers(self.gates, 0, 1), "be numbers from 0 to 1")
        rule("holdout", number(self.holdout, 0, 1) and 0 < self.holdout < 1, "lie between 0 and 1")
        pairs = several(self.rungs) and all(several(rung) and len(rung) == 2 for rung in self.rungs)
        steps, shares = zip(*self.rungs, strict=True) if pairs else ((), ())
        rule(
            "rungs",
            integers(steps, 1) and numbers(shares, 0, 1) and shares[0] == 1 and falling(shares),
            "be pairs (steps of at least 1, share of initialisations), the shares falling from 1",
        )
        for name in ("finalists", "rows"):
            pair = getattr(self, name)
            rule(name, integers(pair, 1) and len(pair) == 2, "be two integers of at least 1")
        divisors = self.denominators
        rule(
            "denominators",
            divisors in ((), [])
            or (
                integers(divisors, 1)
                and list(divisors) == sorted(set(divisors))
                and divisors[-1] <= FINEST_FRACTION
            ),
            f"be increasing integers from 1 to {FINEST_FRACTION}",
        )
        for setting in fields(self):
            object.__setattr__(self, setting.name, _plain(getattr(self, setting.name)))


def _plain(value: Any) -> Any:
    """Return the value with numbers of Python's types."""
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(part) for part in value)
    if isinstance(value, str):
        return value
    return int(value) if is_whole(value) else float(value)


@dataclass(frozen=True)
class Candidate:
    """The record of a trained model from which `fit` selected the result.

    Attributes:
        kind: "raw" (after Adam), "refined" (gates 0 or 1, weights after L-BFGS), "powers" (powers
            rounded, the rest refitted) or "rounded" (all weights rounded).
        denominator: maximum denominator of the rounding; 0 if nothing is rounded.
        init_index: index of its random initialisation.
        loss: its held-out error.
        cost: increase of the held-out error by rounding: its loss minus the loss of the same model
            before rounding.
    """

    kind: str
    denominator: int
    init_index: int
    loss: float
    cost: float


@dataclass(frozen=True)
class BatchFitResult:
    """The best models of all problems.

    Attributes:
        models: one batch, `num_models` is the number of problems.
        losses: held-out errors ``[problems]`` in the models' dtype, as defined by `Recipe.loss`.
        init_losses: the last error of each initialisation ``[problems, initialisations]``, after
            the last stage of Adam (`Recipe.rungs`) in which it took part.
        n_stages: number of these stages in which each initialisation took part ``[problems,
            initialisations]``.
        n_steps: number of gradient evaluations ``[problems]``, summed over the initialisations. The
            gradient of one model on `Recipe.batch_size` rows counts as 1.
        n_rows: number of rows ``[problems]`` in all gradient evaluations, repeats counted.
        chosen: the selected candidate of each problem.
        candidates: all candidates of each problem.
        history: a dict at the end of each stage: its number, the models that remain, the smallest
            and the largest error over the problems, and so on.
        seconds: computing time.
        complete: False if the fit was interrupted.
    """

    models: nn.Module
    losses: Tensor
    init_losses: Tensor
    n_stages: Tensor
    n_steps: Tensor
    n_rows: Tensor
    chosen: Sequence[Candidate]
    candidates: Sequence[Sequence[Candidate]]
    history: Sequence[dict[str, Any]] = field(repr=False)
    seconds: float = 0.0
    complete: bool = True


@dataclass(frozen=True)
class FitResult:
    """The best model, and how it was found.

    Attributes:
        model: the model, without a model dimension. If the last layer is an NPU, RealNPU or
            NaiveNPU with one output, `fit` also estimates a factor of this output, and appends
            ``NAU(1, 1, clip=False)`` with this factor unless it is 1.
        loss: held-out error in the dtype of the model, as defined by `Recipe.loss`.
        init_losses: the last error of each initialisation ``[initialisations]``, after the last
            stage of Adam (`Recipe.rungs`) in which it took part.
        n_stages: number of these stages in which each initialisation took part
            ``[initialisations]``.
        n_steps: number of gradient evaluations, summed over the initialisations. The gradient of
            one model on `Recipe.batch_size` rows counts as 1.
        n_rows: number of rows in all gradient evaluations, repeats counted.
        chosen: the selected `Candidate`.
        candidates: all candidates: models before and after rounding.
        history: a dict at the end of each stage: its number, the models that remain, their smallest
            error, and so on.
        seconds: computing time, cross-validation included.
        complete: False if the fit was interrupted.
        n_folds: number of cross-validation parts from which `loss` was computed; 0: from held-out
            rows.
    """

    model: nn.Module
    loss: float
    init_losses: Tensor
    n_stages: Tensor
    n_steps: float
    n_rows: int
    chosen: Candidate
    candidates: Sequence[Candidate] = field(repr=False)
    history: Sequence[dict[str, Any]] = field(repr=False)
    seconds: float = 0.0
    complete: bool = True
    n_folds: int = 0

    def _equation(self) -> str:
        """The equation in words, or the model's kind where it cannot be read."""
        try:
            from npu_kernels.formula import extract

            return str(extract(self.model))
        except (ImportError, TypeError, ValueError):  # no sympy, or a model that it cannot read
            return type(self.model).__name__

    def _rows(self) -> list[tuple[str, object]]:
        rounded = f", denominators up to {self.chosen.denominator}" * (self.chosen.denominator > 0)
        return [
            ("held-out error", f"{self.loss:.3g}"),
            ("chosen", self.chosen.kind + rounded),
            ("initialisations", len(self.init_losses)),
            ("seconds", f"{self.seconds:.2g}"),
            ("complete", "yes" if self.complete else "no"),
        ]

    def __str__(self) -> str:
        return display.text(self._equation(), self._rows())

    def _repr_html_(self) -> str:
        return display.table(self._equation(), (), self._rows())
