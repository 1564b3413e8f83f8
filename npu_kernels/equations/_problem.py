"""One output's rows as the search sees them: logarithms, signs, and a target of size 1.

The equation that is looked for is ``y**p = sum_k c_k prod_i x_i**w_ki``. Inputs are divided by
their geometric mean and y by its root mean square, so that nothing depends on the units; `Equation`
folds both back into the constants. Inputs may be functions of columns, and the equation one for a
function of y: see _functions.py. Where units restrict the exponents of a term to ``w = w0 + Z u``,
the search runs over u: the inputs are then products of powers of the columns (``logs @ Z``), and
every term has the factor ``exp(logs @ w0)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from npu_kernels.equations._functions import OutputFunction
from npu_kernels.equations._limits import BOUND, Limits, ScaledLimits
from npu_kernels.equations._numbers import FLOAT64_ROUNDING, ZERO
from npu_kernels.equations._rows import BLOCK_ROWS, blocks, have_two_values, summed
from npu_kernels.equations._units import Exponents

Array = Any  # np.ndarray; numpy's own types change from version to version

RATE_BOUND = 19.0  # the largest rate of an exponential times the deviation of the input
EXACT_ERROR = (
    1e-13  # of the deviation of y: what a fit in float64 loses in addition to the rounding of y
)
NEAR_END = 0.05  # of the size of y: distance from the end of a domain where errors may decide
MAX_NOISE = 1e50  # over the size of y: squares of more, or of less than its inverse, are lost
MAX_OF_POWER = 1e300  # of y over its size, to a power: the inverses of more are no numbers
LARGEST = 1e15  # of a prediction by a function of y, and of its derivative, over the size of y


@dataclass(frozen=True)
class Columns:
    """The inputs of all outputs and powers, with what is known of each column."""

    X: Array  # [N, n]
    log_mean: Array  # [n]: the mean of log |x| without the zeros; 0 for a column of zeros
    negative: Array  # [n]: whether some x is negative
    zero: Array  # [n]: whether some x is 0
    mixed: Array  # [n]: whether the column has both signs
    coded: Array  # [n]: whether it has two values of which one is 0, or that differ in sign alone
    bound: Array  # [n]: the largest size of an exponent, unless the user says otherwise

    @classmethod
    def of(cls, X: Array, exponential: Sequence[int] = ()) -> Columns:
        """The columns of a table. exponential: those whose exponents are rates."""
        total, count = np.zeros(X.shape[1]), np.zeros(X.shape[1])
        negative = np.zeros(X.shape[1], dtype=bool)
        positive = np.zeros(X.shape[1], dtype=bool)
        for rows in blocks(len(X)):
            zero = X[rows] == 0
            total += np.log(np.where(zero, 1.0, np.abs(X[rows]))).sum(0)
            count += (~zero).sum(0)
            negative |= (X[rows] < 0).any(0)
            positive |= (X[rows] > 0).any(0)
        zero, mixed = count < len(X), negative & positive
        low, high = X.min(0), X.max(0)
        coded = (zero & (negative != positive)) | (mixed & (low == -high))
        coded[coded] = have_two_values(X[:, coded])
        bound = np.full(len(zero), BOUND)
        for i in exponential:  # the argument of the exponential may have a small range
            with np.errstate(divide="ignore", invalid="ignore"):
                width = float(np.log(X[:, i]).std())
            bound[i] = max(BOUND, RATE_BOUND / width) if 0 < width < math.inf else BOUND
        return cls(X, total / np.maximum(count, 1), negative, zero, mixed, coded, bound)

    def logs(self, rows: Any) -> Array:
        """Return ``log |x| - log_mean`` of some rows, 0 where x is 0: see `Zeros`."""
        X = self.X[rows]
        zero = X == 0
        return np.where(zero, 0.0, np.log(np.where(zero, 1.0, np.abs(X))) - self.log_mean)


@dataclass(frozen=True)
class Zeros:
    """Zeros of columns: a term is 0 where a column with a positive exponent is 0.

    With a negative exponent it is infinite there. So the exponent 0 is apart from all others, and
    the derivative for an exponent is 0 where the column is.
    """

    zero: Array  # [N, Z]: 1 where a column that has zeros is 0
    matrix: Array  # [Z, m]: the rows of the exponents' Z for these columns
    offset: Array  # [Z]: their w0
    free: Array  # [m]: which effective inputs are such a column

    def factors(self, u: Array) -> Array:
        """Return 1, 0 or infinity for every row and term ``[N, K]``."""
        w = u @ self.matrix.T + self.offset
        values = np.where(self.zero @ (w > ZERO).T > 0, 0.0, 1.0)
        if (w < -ZERO).any():
            values[self.zero @ (w < -ZERO).T > 0] = math.inf
        return values


@dataclass(frozen=True)
class Scaled:
    """One output for one output power: what does not depend on the choice of rows."""

    power: float  # p
    function: OutputFunction | None  # f of an equation for f(y); its p and sign are 1
    sign: float  # the target is sign y / unit
    unit: float
    scale: float  # of y or f(y), of which the sums are in proportion to a power
    low: Array  # [m]: the bounds of u
    high: Array
    signed: Array  # [m]: which effective inputs are negative somewhere: u is whole
    mixed: Array  # [m]: which have both signs: the parity of u decides the signs of a term
    exponents: Exponents
    noise: float | None  # the known standard deviation of the target's errors
    floor: float  # root mean square of the weighted targets to which errors gave the other sign
    factor: bool  # errors are factors: residuals are those of logarithms
    digits: float  # the relative error to which y is rounded
    below: int  # of a ratio: how many terms, the last ones, are the denominator's, without its 1
    limits: ScaledLimits | None  # of terms and coefficients, where any are set

    @cached_property
    def fixed(self) -> int:
        """How many terms, the first ones, every sum has, with exponents that stay."""
        return 0 if self.limits is None else len(self.limits.u)

    @cached_property
    def coded(self) -> Array:
        """Which inputs ``[m]`` have exponents of 0 and 1 only, as columns of two values do."""
        return self.signed & (self.low == 0) & (self.high == 1)


@dataclass(frozen=True)
class Target(Scaled):
    """Rows of a target, which a sum has to explain."""

    target: Array  # [N]
    weight: Array  # [N]: square roots of the rows' weights
    addend: Array | None  # [N]: a part of every sum; None: there is none
    group: Array | None  # [N]: numbers of groups with their own coefficients, sorted

    @cached_property
    def rows(self) -> int:
        return len(self.target)

    @cached_property
    def size(self) -> float:
        """The sum of squares that a constant leaves of the target, one in each group.

        Squares of residuals are compared with it.
        """
        with np.errstate(over="ignore"):
            return float(self.rest @ self.rest)

    @cached_property
    def rest(self) -> Array:
        """The weighted residuals of a constant, one in each group ``[N]``."""
        values = self.target
        if self.factor:
            values = np.log(values)
        elif self.addend is not None and self.power == 1 and self.function is None:
            values = values - self.addend
        return about_mean(self.weight * values, self.weight, self.group)

    @cached_property
    def exact(self) -> float:
        """The sum of squares up to which residuals are those of rounding."""
        sizes = np.ones(1) if self.factor else np.abs(self.target)
        if self.addend is not None and not self.factor:
            sizes = sizes + np.abs(self.addend)
        return EXACT_ERROR**2 * self.size + float(((self.digits * self.weight * sizes) ** 2).sum())


@dataclass(frozen=True)
class Problem(Target):
    """Some rows of one output for one power, in memory: what one search works on."""

    logs: Array  # [N, m]: of the effective inputs
    negative: Array | None  # [N, m]: 1 where an effective input is negative; None if none is
    zeros: Zeros | None  # None if no column is 0 in these rows
    base: Array  # [N]: the factor of every term

    @cached_property
    def inputs(self) -> int:
        return int(self.logs.shape[1])

    @cached_property
    def different(self) -> int:
        """How many rows differ from those before them: of sorted rows the number of different ones.

        An equation with as many parameters may pass through all of them.
        """
        parts = [self.logs, self.base, self.target]
        parts += [] if self.negative is None else [self.negative]
        columns = np.column_stack(parts if self.zeros is None else [*parts, self.zeros.zero])
        return 1 + int((columns[1:] != columns[:-1]).any(1).sum())

    @cached_property
    def units(self) -> float:
        """What makes criteria comparable: minus twice the log of d residual / d y in all rows."""
        logs = np.log(self.weight) - math.log(self.unit)  # the quotient may be no number
        return -2 * float((logs - np.log(np.abs(self.target)) if self.factor else logs).sum())

    def predict(self, u: Array, parity: Array, c: Array) -> tuple[Array, Array, Array]:
        """Return the prediction of the target, weighted residuals ``[N]``, and products ``[N, K]``.

        The products are the derivatives of the sum for its coefficients, and of a ratio for its.

        u, parity: exponents ``[K, m]``, and 1 where one is odd. c: coefficients ``[K]``, or
        ``[K, G]`` of groups.
        """
        plain = self.power == 1 and self.function is None
        if self.below:
            prediction, products = self._ratio(self.products(u, parity), c)
            prediction = self.with_addend(prediction)
        else:
            products = self.products(u, parity) * self.base[:, None]
            if plain and self.zeros is None and not self.factor:
                prediction = self.total(products, c)
                return prediction, self.weight * (self.target - prediction), products
            with np.errstate(over="ignore", invalid="ignore"):
                prediction = self.total(products, c)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            if self.function is not None:
                prediction = self._inverse(self.function, prediction)
            elif self.power != 1:
                prediction = np.sign(prediction) * np.abs(prediction) ** (1 / self.power)
            if not self.factor:
                return prediction, self.weight * (self.target - prediction), products
            ratio = np.where(prediction > 0, self.target / prediction, math.inf)
            return prediction, self.weight * np.log(ratio), products

    def with_addend(self, sums: Array) -> Array:
        """Return the sums with the part of them that was set."""
        return sums if self.addend is None else sums + self.addend

    def total(self, products: Array, c: Array) -> Array:
        """Return the sums of terms with the part that was set: see `predict`."""
        return self.with_addend(summed(products, c, self.group))

    def _ratio(self, products: Array, c: Array) -> tuple[Array, Array]:
        """The ratio ``[N]``, and its derivatives for the coefficients ``[N, K]``.

        It is no number where its denominator is not positive: there is a pole within the data.
        """
        above = len(c) - self.below
        with np.errstate(over="ignore", invalid="ignore"):
            divisor = 1.0 + products[:, above:] @ c[above:]
            divisor = np.where(divisor > 0, divisor, np.nan)
            numerators = products[:, :above] * self.base[:, None]
            ratio = numerators @ c[:above] / divisor
            jacobian = np.column_stack([numerators, -products[:, above:] * ratio[:, None]])
            jacobian /= divisor[:, None]
        jacobian[divisor == math.inf] = 0.0  # where an input with a negative exponent is 0
        return ratio, jacobian

    def products(self, u: Array, parity: Array) -> Array:
        """Return the products ``[N, K]`` without their base."""
        products: Array = self.logs @ u.T
        np.exp(np.clip(products, -300, 300, out=products), out=products)
        if self.negative is not None:
            products = products * self.signs(parity)
        return products if self.zeros is None else products * self.zeros.factors(u)

    @cached_property
    def held(self) -> Array:
        """Which exponents ``[m]`` stay at 0: with any other, rows are lost at once."""
        return np.zeros(self.inputs, dtype=bool) if self.zeros is None else self.zeros.free

    def proportional(self) -> Problem:
        """Return the problem with weights as for errors in proportion to y."""
        if self.factor:
            return self
        size = np.abs(self.target)
        typical = np.median(size) or size.mean() or 1.0  # most of y may be 0
        return replace(self, weight=self.weight / np.maximum(size, 1e-3 * typical))

    def signs(self, parity: Array) -> Array:
        """Return the signs of terms ``[N, K]`` for parities of the exponents ``[K, m]``."""
        if self.negative is None:
            return np.ones((self.rows, len(parity)))
        return 1.0 - 2.0 * ((self.negative @ parity.T) % 2)

    def linear(self) -> tuple[Array, Array]:
        """Return z and weights ``[N]`` of a problem that is linear in c.

        ``weight (z - sum c_k prod r**u)`` is the error of the target to first order.
        """
        y, p = self.target, self.power
        if self.function is not None:
            z, derivative = self._of_function(self.function)
            weight = self.weight * (
                derivative / np.maximum(y, 1e-300) if self.factor else derivative
            )
        elif self.factor:
            with np.errstate(over="ignore"):
                z = np.clip(y**p, 1 / MAX_OF_POWER, MAX_OF_POWER)
            return self._without_addend(z), self.weight * np.abs(self.base / (p * z))
        elif p == 1:
            z, weight = y, self.weight
        else:
            smallest = np.maximum(self.floor / self.weight if p > 0 else 0, 1e-12)
            size = np.maximum(np.abs(y), smallest)
            z = np.copysign(size**p if p < 0 else np.abs(y) ** p, y)
            derivative = size ** (1 - p) / abs(p)
            weight = self.weight * np.minimum(derivative, 100 * np.median(derivative))
            if p < 0 and p != -1:
                weight = np.where(y > 0, weight, 0.0)
        return self._without_addend(z), weight * np.abs(self.base)

    def _without_addend(self, z: Array) -> Array:
        """What the terms without their base have to sum up to."""
        return (z if self.addend is None else z - self.addend) / self.base

    def _inverse(self, function: OutputFunction, sums: Array) -> Array:
        """The target from sums."""
        return np.clip(function.inverse(self.scale * sums) / self.unit, -LARGEST, LARGEST)

    def steepness(self, function: OutputFunction, sums: Array) -> Array:
        """Return the derivative of the target for the sum, or of its logarithm for factors."""
        with np.errstate(over="ignore", invalid="ignore"):
            derivative = function.derivative(self.scale * sums) * (self.scale / self.unit)
            if self.factor:
                derivative = derivative / np.maximum(self._inverse(function, sums), 1 / LARGEST)
            return np.clip(derivative, -LARGEST, LARGEST)

    def _of_function(self, function: OutputFunction) -> tuple[Array, Array]:
        """Return f(y) over its scale, and the derivative of the target with respect to it ``[N]``.

        The derivative is 0 where errors have brought y out of the function's domain. It is small
        near the ends of the domain, where errors would decide about f(y).
        """
        y = self.unit * self.target
        value = function.value(y)
        derivative = np.abs(function.derivative(value)) * (self.scale / self.unit)
        inside = function.inside(y)
        limit = 100 * np.median(derivative[inside]) if inside.any() else 0.0
        derivative = np.where(inside, np.minimum(derivative, limit), 0.0)
        if not self.factor:
            distance = self.weight * function.margin(y) / self.unit
            size = root_mean_square(self.weight * y / self.unit, np.ones(len(y)))
            far = distance / (NEAR_END * size)
            derivative = derivative * np.minimum(far, 1.0) ** 2
        return value / self.scale, derivative


@dataclass(frozen=True)
class AllRows(Target):
    """All rows of one output for one power.

    Chosen rows, or block after block, become a `Problem`.
    """

    columns: Columns
    offset: Array  # [n]: w0 of the exponents
    matrix: Array  # [n, m]: Z of the exponents

    @cached_property
    def inputs(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def different(self) -> int:
        """See `Problem.different`."""
        count, X, y = 1, self.columns.X, self.target
        for rows in blocks(self.rows - 1):
            after = slice(rows.start + 1, rows.stop + 1)
            count += int(((X[rows] != X[after]).any(1) | (y[rows] != y[after])).sum())
        return count

    def take(self, rows: Any) -> Problem:
        """Return the problem with some rows, a slice or indices."""
        logs = self.columns.logs(rows)
        base = np.exp(np.clip(logs @ self.offset, -300, 300))
        negative, mixed = None, self.columns.mixed
        if mixed.any():
            below = (self.columns.X[rows] < 0).astype(float)
            base = base * (1 - 2 * ((below @ np.where(mixed, self.offset, 0)) % 2))
            negative = (below @ (np.where(mixed[:, None], self.matrix, 0) % 2)) % 2
        zeros, zero = None, self.columns.zero
        rows_of_0 = (self.columns.X[rows][:, zero] == 0).astype(float) if zero.any() else zero
        if rows_of_0.any():
            free = np.isin(self.exponents.free, np.flatnonzero(zero)[rows_of_0.any(0)])
            zeros = Zeros(rows_of_0, self.matrix[zero], self.offset[zero], free)
        shared = {field.name: getattr(self, field.name) for field in fields(Scaled)}
        return Problem(
            **shared, logs=logs @ self.matrix, negative=negative, zeros=zeros, base=base,
            target=self.target[rows], weight=self.weight[rows],
            addend=None if self.addend is None else self.addend[rows],
            group=None if self.group is None else self.group[rows],
        )  # fmt: skip

    @cached_property
    def held(self) -> Array:
        """See `Problem.held`."""
        return np.isin(self.exponents.free, np.flatnonzero(self.columns.zero))

    def predict(self, u: Array, parity: Array, c: Array) -> tuple[Array, Array, None]:
        """Return what `Problem.predict` does, without the products."""
        parts = [part.predict(u, parity, c) for _, part in self.blocks()]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]), None

    def outer_signs(self, u: Array) -> Array:
        """Return the signs of terms ``[K]`` by the columns that are negative in all rows.

        The terms of a `Problem` do not have these signs.
        """
        columns = self.columns.negative & ~self.columns.mixed
        odd = np.round(u) @ (self.matrix[columns] % 2).sum(0)
        odd[: len(u) - self.below] += (self.offset[columns] % 2).sum()
        signs: Array = 1.0 - 2.0 * (odd % 2)
        return signs

    @cached_property
    def at_once(self) -> bool:
        """Whether all rows are one block: few rows, or those of groups."""
        return self.rows <= BLOCK_ROWS or self.group is not None

    def blocks(self) -> Iterator[tuple[slice, Problem]]:
        """Yield the slice of every block of rows, and the problem with its rows."""
        if self.at_once:
            yield slice(0, self.rows), self.block
            return
        for rows in blocks(self.rows):
            yield rows, self.take(rows)

    @cached_property
    def block(self) -> Problem:
        """The only block of rows that are `at_once`."""
        return self.take(slice(0, self.rows))

    def choose(self, rows: Array) -> AllRows:
        """Return the same output with the rows of these indices, each as often as it occurs."""
        columns = replace(self.columns, X=self.columns.X[rows])
        parts = {name: getattr(self, name) for name in ("target", "weight", "addend", "group")}
        chosen = {name: part[rows] for name, part in parts.items() if part is not None}
        return replace(self, columns=columns, **chosen)


class LeftSide(NamedTuple):
    """The left side of an equation for one output power: fields of `Scaled` and `Target`."""

    target: Array
    sign: float
    unit: float
    scale: float
    noise: float | None
    floor: float


@dataclass(frozen=True)
class Output:
    """The data of one output before an output power is chosen."""

    columns: Columns
    y: Array  # [N]
    weight: Array  # [N]: square roots of the rows' weights
    exponents: Exponents
    noise: float | None = None  # the known standard deviation of the errors of ``weight * y``
    error: float = 0.0  # an estimate of it
    factor: bool = False  # errors are factors: y has one sign and no zeros
    function: OutputFunction | None = None  # of y, of which the power is that of the equation
    limits: Limits | None = None  # of exponents and coefficients
    addend: Array | None = None  # [N]: a part of every sum
    group: Array | None = None  # [N]: see `Target.group`
    digits: float = FLOAT64_ROUNDING  # the relative error to which y is rounded

    def scaled(self, power: float, below: int = 0) -> AllRows | None:
        """Return the rows for one output power, or None if the data exclude this power.

        Powers other than 1 and -1 need a y of one sign, and all but 1 one without zeros, but for
        what errors explain. With negative inputs and units, exponents that are fixed must be
        integers. below: see `Scaled`.
        """
        side, columns, limits = self._left_side(power), self.columns, self.limits
        if side is None:
            return None
        offset, matrix = self.exponents.at(power)
        negative = columns.negative
        if (matrix[negative] % 1 != 0).any() or (offset[negative] % 1 != 0).any():
            return None
        signed, mixed = (
            (np.where(chosen[:, None], matrix, 0) % 2 != 0).any(0)
            for chosen in (columns.negative, columns.mixed)
        )
        bound, free = columns.bound * max(1.0, abs(power)), self.exponents.free
        low, high = -bound[free], bound[free]
        scaled_limits = None
        if limits is not None:
            if not limits.agree(self.exponents, power):
                return None
            low, high = (ends[free] for ends in limits.exponent_bounds(bound))
            signed |= limits.integer[free]
            always = negative & ~columns.mixed
            outer = matrix[always].sum(0), offset[always].sum()
            sizes = power * math.log(side.scale), columns.log_mean
            scaled_limits = limits.scaled(self.exponents, power, signed, outer, side.sign, sizes)
        coded = columns.coded[free]  # every power of them is a line
        low[coded], high[coded] = np.maximum(low[coded], 0.0), np.minimum(high[coded], 1.0)
        signed |= coded
        if not below:  # a finite y excludes a negative power of zero
            zero = columns.zero[free]
            low[zero] = np.maximum(low[zero], 0.0)
        if (low > high).any():
            return None
        addend = self.addend
        if addend is not None:
            addend = (side.sign if abs(power) == 1 else 1.0) * addend / side.scale**power
        return AllRows(
            **side._asdict(),
            power=power,
            function=self.function,
            low=low,
            high=high,
            signed=signed,
            mixed=mixed,
            exponents=self.exponents,
            factor=self.factor,
            digits=self.digits,
            below=below,
            limits=scaled_limits,
            weight=self.weight,
            addend=addend,
            group=self.group,
            columns=columns,
            offset=offset,
            matrix=matrix,
        )

    def _left_side(self, power: float) -> LeftSide | None:
        """Return the target for an output power, or None if y excludes it."""
        y, weight = self.y, self.weight
        unit = scale = root_mean_square(y, weight) or 1.0
        noise = None if self.noise is None else self.noise / unit
        if noise is not None and not 1 / MAX_NOISE < noise < MAX_NOISE:
            rule = f"noise must be between {1 / MAX_NOISE:g} and {MAX_NOISE:g} of the size of y"
            raise ValueError(f"NPURegressor: {rule}, {unit:g}, got {self.noise:g}")
        target = y / unit
        sign = -1.0 if weight**2 @ target < 0 else 1.0
        if self.function is not None:
            inside = np.where(self.function.inside(y), weight, 0.0)
            sign, scale = 1.0, root_mean_square(self.function.value(y), inside) or 1.0
        target, error = sign * target, max(self.error, self.noise or 0.0) / unit
        if self.factor and (target <= 0).any():
            return None
        lost = (target if abs(power) != 1 else np.abs(target)) <= 0
        wrong = (weight * target)[lost]
        if power != 1 and lost.any() and wrong.min() <= -_largest_error(len(y)) * error:
            return None
        floor = math.sqrt(np.mean(wrong**2)) if lost.any() else 0.0
        return LeftSide(target, sign, unit, scale, noise, floor)


def about_mean(target: Array, root: Array, group: Array | None = None) -> Array:
    """Return what a constant leaves of a target, one for each group ``[N]``.

    target: times the roots of the weights.
    """
    root = root / (root.max() or 1.0)  # squares of roots alone may be no numbers
    group = np.zeros(len(root), dtype=int) if group is None else group
    sums, squares = (np.bincount(group, weights=root * part) for part in (target, root))
    mean = sums / np.where(squares > 0, squares, 1.0)
    rest: Array = target - root * mean[group]
    return rest


def root_mean_square(y: Array, weight: Array) -> float:
    """Return it for rows with these roots of weights; squares of y alone may be no numbers."""
    largest = float(np.abs(y).max()) or 1.0
    return largest * float(np.sqrt(np.average((y / largest) ** 2, weights=weight**2)))


def _largest_error(rows: int) -> float:
    """Return one more than the largest of many normal errors, in standard deviations."""
    return 1 + math.sqrt(2 * math.log(rows + 1))
