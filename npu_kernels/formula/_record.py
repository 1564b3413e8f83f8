"""The record of `simplify`: what it changed, and what each change cost."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import nn


@dataclass(frozen=True)
class Change:
    """The change of one entry of a parameter.

    Attributes:
        parameter: the parameter's name in the module.
        index: of the entry in the tensor.
        before: the entry's value.
        after: the value that was tried.
        alone: error with this change only, of the step's first model or its last refit.
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
class Step:
    """One step of `simplify`.

    Attributes:
        name: "gates", "prune", "unused" or "round".
        before: the model's error before the step.
        after: the model's error after the step.
        parameters: the number of parameters that are not 0 after the step.
        changes: all that were tried.
    """

    name: str
    before: float
    after: float
    parameters: int
    changes: tuple[Change, ...]

    @property
    def accepted(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.accepted)


@dataclass(frozen=True)
class Simplified:
    """A simplified copy of a model, and its record.

    ``str()`` is a table of the steps; `details` lists every change.

    Attributes:
        module: one model, without `num_models`.
        error: of the original model.
        parameters: the number of parameters that were not 0 in the original model.
        steps: in the order in which they were done.
    """

    module: nn.Module
    error: float
    parameters: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        head = ("step", "parameters", "changed", "rejected", "error", "cost", "most for one")
        rows = [head, ("given", str(self.parameters), "", "", f"{self.error:.3e}", "", "")]
        for step in self.steps:
            errors = [step.before, *(change.error for change in step.accepted)]
            highest = max((after - before for before, after in pairwise(errors)), default=0.0)
            accepted = len(step.accepted)
            counts = str(step.parameters), str(accepted), str(len(step.changes) - accepted)
            costs = f"{step.after:.3e}", f"{step.after - step.before:+.1e}", f"{highest:+.1e}"
            rows.append((step.name, *counts, *costs))
        return "\n".join("{:<8}{:>12}{:>12}{:>12}{:>12}{:>12}{:>14}".format(*row) for row in rows)

    def details(self) -> str:
        """All changes of all steps, one per line."""
        lines = []
        for step in self.steps:
            lines.append(f"{step.name}: error {step.before:.3e} -> {step.after:.3e}")
            lines += [f"  {change}" for change in step.changes]
        return "\n".join(lines)
