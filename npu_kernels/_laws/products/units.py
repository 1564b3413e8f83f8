"""Units as linear constraints on exponents: every term has the dimension of y to the output's power.

With D the matrix of the inputs' dimensions and d that of y, the exponents of a term obey ``D w = p d``. Its solutions
are ``w = p w0 + Z u``: u are the exponents of some inputs, the free ones, and the others follow from them exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Array = Any

INSTALL = "NPURegressor: units need pint: pip install 'npu_kernels[units]' (or: pip install pint)"


@dataclass(frozen=True)
class Exponents:
    """``w = p offset + matrix u``; u are the exponents of the inputs `free`."""

    offset: Array
    matrix: Array
    free: Array

    @classmethod
    def unrestricted(cls, inputs: int) -> Exponents:
        return cls(np.zeros(inputs), np.eye(inputs), np.arange(inputs))

    @property
    def inputs(self) -> int:
        return len(self.offset)

    def at(self, power: float) -> tuple[Array, Array]:
        """Offset and matrix for an output power."""
        return power * self.offset, self.matrix

    def full(self, u: Array, power: float) -> Array:
        """The exponents ``[K, n]`` of the inputs from u ``[K, m]``."""
        w = u @ self.matrix.T + power * self.offset
        # A pivot's fraction is exact; remainders of floating-point arithmetic are removed.
        near = np.round(w * 720720) / 720720
        return np.where(np.abs(w - near) < 1e-12, near, w) + 0.0


def dimensions(units: Sequence[str], argument: str) -> list[dict[str, Fraction]]:
    """The dimensions of units as powers of base dimensions. Raises ValueError, which names the unit."""
    try:
        import pint
    except ImportError as error:
        raise ImportError(INSTALL) from error
    registry = _registry(pint)
    found = []
    for unit in units:
        if not isinstance(unit, str):
            raise TypeError(f"NPURegressor: {argument} must be names of units, got {unit!r}")
        try:
            powers = registry.Quantity(1.0, unit or "dimensionless").dimensionality
        except (
            Exception
        ) as error:  # pint raises classes of many kinds for words that it does not know
            raise ValueError(
                f"NPURegressor: {argument} has {unit!r}, which is no unit: {error}"
            ) from None
        found.append(
            {name: Fraction(power).limit_denominator(64) for name, power in powers.items()}
        )
    return found


_REGISTRIES: list[Any] = []


def _registry(pint: Any) -> Any:
    """One registry for the process: making one takes a second."""
    if not _REGISTRIES:
        _REGISTRIES.append(pint.UnitRegistry())
    return _REGISTRIES[0]


def constrain(
    names: Sequence[str],
    units: Sequence[str],
    output: str,
    output_units: str,
    prefer: Sequence[int],
) -> Exponents:
    """The exponents that give every term the dimension of y.

    Args:
        names, units: of the inputs. output, output_units: of y.
        prefer: the inputs whose exponents should follow from the others' rather than be free, the first ones most.

    Raises ValueError, with the reason, where no product of powers of the inputs has y's dimension.
    """
    columns = dimensions(units, "units")
    (wanted,) = dimensions([output_units], "y_units")
    bases = sorted({base for column in [*columns, wanted] for base in column})
    order = [*prefer, *(i for i in range(len(names)) if i not in prefer)]
    rows = [
        [columns[i].get(base, Fraction(0)) for i in order] + [wanted.get(base, Fraction(0))]
        for base in bases
    ]
    pivots = _reduce(rows, len(names))
    for row in rows[len(pivots) :]:
        if row[-1] != 0:
            _refuse(names, columns, output, output_units, wanted)
    free = [j for j in range(len(names)) if j not in pivots]
    offset = np.zeros(len(names))
    matrix = np.zeros((len(names), len(free)))
    for row, pivot in zip(rows, pivots, strict=False):
        offset[order[pivot]] = float(row[-1])
        for column, j in enumerate(free):
            matrix[order[pivot], column] = -float(row[j])
    for column, j in enumerate(free):
        matrix[order[j], column] = 1.0
    return Exponents(offset, matrix, np.array([order[j] for j in free], dtype=int))


def _reduce(rows: list[list[Fraction]], count: int) -> list[int]:
    """Gauss-Jordan elimination in place, exact; the pivots' columns."""
    pivots: list[int] = []
    for column in range(count):
        at = len(pivots)
        row = next((r for r in range(at, len(rows)) if rows[r][column] != 0), None)
        if row is None:
            continue
        rows[at], rows[row] = rows[row], rows[at]
        rows[at] = [value / rows[at][column] for value in rows[at]]
        for other in range(len(rows)):
            factor = rows[other][column]
            if other != at and factor != 0:
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[at], strict=True)]
        pivots.append(column)
    return pivots


def _refuse(
    names: Sequence[str],
    columns: list[dict[str, Fraction]],
    output: str,
    unit: str,
    wanted: dict[str, Fraction],
) -> None:
    """Raise the ValueError that says why y's dimension cannot be met."""
    missing = sorted(base for base in wanted if not any(base in column for column in columns))
    if missing:
        reason = f"no input contains {' or '.join(missing)}"
    else:
        reason = "no combination of exponents of the inputs gives it"
    raise ValueError(
        f"NPURegressor: y_units {unit!r} of {output} cannot be met by powers of {', '.join(names)}: {reason}. "
        "If the law has a constant with a dimension, add a column that holds its value, or leave out units."
    )
