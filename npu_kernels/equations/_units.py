"""Units as linear constraints on exponents.

Every term has the dimension of y to the output's power.

With D the matrix of the inputs' dimensions and d that of y, the exponents of a term obey ``D w =
p d``. Its solutions are ``w = p w0 + Z u``: u are the exponents of some inputs, the free ones,
and the others follow from them exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from npu_kernels.equations._expression import SAME_SIZE, SIZE, Dimension
from npu_kernels.equations._numbers import MAX_DENOMINATOR

Array = Any


# Words of tables that pint reads as ronnahenry, centifermi and picohenry.
UNITS = (
    "relative_humidity = [] = RH",
    "cubic_foot_per_minute = foot**3/minute = cfm = CFM",
    "pH = []",
)
INSTALL = "NPURegressor: units need pint: pip install 'npu_kernels[units]' (or: pip install pint)"


@dataclass(frozen=True)
class Exponents:
    """Exponents ``w = p offset + matrix u``; u are those of the inputs `free`."""

    offset: Array  # [n]
    matrix: Array  # [n, m]
    free: Array  # [m]: indices of inputs

    @classmethod
    def unrestricted(cls, inputs: int) -> Exponents:
        return cls(np.zeros(inputs), np.eye(inputs), np.arange(inputs))

    @cached_property
    def inputs(self) -> int:
        return len(self.offset)

    def at(self, power: float) -> tuple[Array, Array]:
        """Return offset and matrix for an output power."""
        return power * self.offset, self.matrix

    def full(self, u: Array, power: float, below: int = 0) -> Array:
        """Return the exponents ``[K, n]`` of the inputs from u ``[K, m]``.

        below: how many terms, the last ones, have no dimension, as those of a denominator with a 1.
        """
        w = u @ self.matrix.T
        w[: len(w) - below] += power * self.offset
        # A pivot's fraction is exact; remainders of floating-point arithmetic are removed.
        near = np.round(w * 720720) / 720720
        return np.where(np.abs(w - near) < 1e-12, near, w) + 0.0


def dimensions(names: Sequence[str], units: Sequence[str], argument: str) -> list[Dimension]:
    """Return the dimensions of units, as powers of base dimensions. names: of the columns.

    Raises ValueError, which names the unit, for words that are no unit and for units whose zero is
    not that of their quantity.
    """
    try:
        import pint
    except ImportError as error:
        raise ImportError(INSTALL) from error
    registry = _registry(pint)
    columns = []
    for name, unit in zip(names, units, strict=True):
        if not isinstance(unit, str):
            raise TypeError(f"NPURegressor: {argument} must be names of units, got {unit!r}")
        try:
            zero = _quantity(registry, 0.0, unit).to_base_units()
            powers = zero.dimensionality
        except Exception as error:  # pint raises many classes for words that it does not know
            reason = str(error) or "it has no name that pint knows"
            if isinstance(error, (TypeError, pint.DimensionalityError)):  # "m s-1" is a difference
                reason = "write products with * and powers with **, such as m*s**-1"
            message = f"NPURegressor: {argument} has {unit!r}, which is not a unit: {reason}"
            raise ValueError(message) from None
        if zero.magnitude != 0:
            _refuse_offset(registry, name, unit, argument)
        columns.append(
            {b: Fraction(p).limit_denominator(MAX_DENOMINATOR) for b, p in powers.items()}
        )
    return columns


def factor(name: str, unit: str, argument: str) -> float | None:
    """Return the factor to a number without units, or to radians; None where it has a dimension.

    name: of the column. argument: that has the unit.
    """
    (dimension,) = dimensions([name], [unit], argument)
    if dimension:
        return None
    import pint

    return float(_quantity(_registry(pint), 1.0, unit).to_base_units().magnitude)


def with_sizes(names: Sequence[str], units: Sequence[str], argument: str) -> list[Dimension]:
    """Return the dimensions of units with their sizes, see `Expression.dimension`."""
    columns = dimensions(names, units, argument)
    import pint

    for column, unit in zip(columns, units, strict=True):
        size = math.log(_quantity(_registry(pint), 1.0, unit).to_base_units().magnitude)
        column |= {SIZE: Fraction(size)} if abs(size) > SAME_SIZE else {}
    return columns


def full_unit(unit: str) -> str:
    """Return the unit in pint's full names: "C" is "coulomb"; "1" without a dimension."""
    import pint

    name = str(_quantity(_registry(pint), 0.0, unit).units)
    return "1" if name == "dimensionless" else name


def _quantity(registry: Any, value: float, unit: str) -> Any:
    """Return pint's quantity; a number without a unit has "" or, as engineers write it, "-"."""
    return registry.Quantity(value, "dimensionless" if unit.strip() in ("", "-") else unit)


def _refuse_offset(registry: Any, name: str, unit: str, argument: str) -> None:
    """Raise the ValueError that says how to write a quantity whose unit has another zero."""
    zero, unity = (registry.Quantity(float(v), unit).to_base_units() for v in (0, 1))
    offset, factor = zero.magnitude, unity.magnitude - zero.magnitude
    problem = f"NPURegressor: {argument} has {unit!r} of {name}"
    if abs(registry.Quantity(2.0, unit).to_base_units().magnitude - offset - 2 * factor) > 1e-6:
        raise ValueError(f"{problem}, a logarithm: give the quantity without the logarithm")
    scaled = name if abs(factor - 1) < 1e-9 else f"{name} * {factor:.10g}"
    raise ValueError(
        f"{problem}, a unit with an offset, whose powers have no meaning. Write "
        f"{name} = {scaled} + {offset:.10g} with the unit '{zero.units:~}', or 'delta_{unit}' for "
        "differences"
    )


_REGISTRIES: list[Any] = []


def _registry(pint: Any) -> Any:
    """The registry of the process: making one takes a second."""
    if not _REGISTRIES:
        registry = pint.UnitRegistry()
        for definition in UNITS:
            registry.define(definition)
        _REGISTRIES.append(registry)
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
        prefer: the inputs whose exponents should rather follow from the others' than be free, in
            this order.

    Raises ValueError, with the reason, where no product of powers of the inputs has y's dimension.
    """
    columns = dimensions(names, units, "X_units")
    (target,) = dimensions([output], [output_units], "y_units")
    bases = sorted({base for column in [*columns, target] for base in column})
    order = [*prefer, *(i for i in range(len(names)) if i not in prefer)]
    rows = [
        [columns[i].get(base, Fraction(0)) for i in order] + [target.get(base, Fraction(0))]
        for base in bases
    ]
    pivots = _reduce(rows, len(names))
    for row in rows[len(pivots) :]:
        if row[-1] != 0:
            _refuse(names, columns, output, output_units, target)
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
    """Reduce rows in place by Gauss-Jordan elimination, exactly; return the pivots' columns."""
    pivots: list[int] = []
    for column in range(count):
        rank = len(pivots)
        row = next((r for r in range(rank, len(rows)) if rows[r][column] != 0), None)
        if row is None:
            continue
        rows[rank], rows[row] = rows[row], rows[rank]
        rows[rank] = [value / rows[rank][column] for value in rows[rank]]
        for other in range(len(rows)):
            factor = rows[other][column]
            if other != rank and factor != 0:
                pairs = zip(rows[other], rows[rank], strict=True)
                rows[other] = [a - factor * b for a, b in pairs]
        pivots.append(column)
    return pivots


def _refuse(
    names: Sequence[str],
    columns: list[dict[str, Fraction]],
    output: str,
    unit: str,
    target: dict[str, Fraction],
) -> None:
    """Raise the ValueError that says why y's dimension cannot be met."""
    missing = sorted(base for base in target if not any(base in column for column in columns))
    if missing:
        reason = f"no input contains {' or '.join(missing)}"
    else:
        reason = "no combination of exponents of the inputs has this dimension"
    raise ValueError(
        f"NPURegressor: y_units {unit!r} of {output} cannot be met by powers of "
        f"{', '.join(names)}: {reason}. If the equation has a constant with a dimension, add a "
        "column that holds its value, or leave out units."
    )
