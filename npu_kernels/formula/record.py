"""What simplifying a model did, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import nn


@dataclass(frozen=True)
class Change:
    """One parameter's change.

    parameter: its name in the module. index: its place in the tensor. before, after: its values. alone: error of the
    model that the step began with, or was refitted to, with this change only. error: with all accepted changes before
    it, too. accepted: whether it was kept.
    """

    parameter: str
    index: tuple[int, ...]
    before: float
    after: float
    alone: float
    error: float
    accepted: bool

    def __str__(self) -> str:
        place = f"{self.parameter}[{', '.join(map(str, self.index))}]"
        return (
            f"{place:<24} {self.before:>12.6g} -> {self.after:<10.6g} alone {self.alone:.3e}  error {self.error:.3e}"
            f"{'' if self.accepted else '  rejected'}"
        )


@dataclass(frozen=True)
class Step:
    """One step of `simplify`.

    name: "given", "gates", "prune" or "round". before, after: the model's errors. parameters: how many are not 0 after
    it. changes: all that were tried, each a `Change`.
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
    """A simplified copy of a model, and its record; ``str()`` is a table of the steps, `details` lists every change.

    module: one model, without `num_models`. error: of the given model. parameters: how many of its parameters were not
    0.
    """

    module: nn.Module
    error: float
    parameters: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        head = ("step", "parameters", "changed", "rejected", "error", "cost", "most for one")
        rows = [head, ("given", str(self.parameters), "", "", f"{self.error:.3e}", "", "")]
        for step in self.steps:
            kept, errors = step.accepted, [step.before]
            errors += [change.error for change in kept]
            most = max((after - before for before, after in pairwise(errors)), default=0.0)
            counts = str(step.parameters), str(len(kept)), str(len(step.changes) - len(kept))
            costs = f"{step.after:.3e}", f"{step.after - step.before:+.1e}", f"{most:+.1e}"
            rows.append((step.name, *counts, *costs))
        return "\n".join(
            f"{row[0]:<8}" + "".join(f"{cell:>12}" if i < 5 else f"{cell:>14}" for i, cell in enumerate(row[1:]))
            for row in rows
        )

    def details(self) -> str:
        """Every change of every step, one per line."""
        lines = []
        for step in self.steps:
            lines.append(f"{step.name}: error {step.before:.3e} -> {step.after:.3e}")
            lines += [f"  {change}" for change in step.changes]
        return "\n".join(lines)
