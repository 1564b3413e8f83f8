"""What is known of an equation before the search: bounds and signs, terms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from npu_kernels.equations._expression import Expression
from npu_kernels.equations._units import Exponents

Array = Any

# ---- bounds and terms ----------------------------------------------------------------------------
# Prior knowledge of an equation: bounds and signs, terms that it has, terms that it has not.

BOUND = 6.0  # the largest size of an exponent, unless the user says otherwise
APART = 0.1  # difference of exponents up to which a product is like one of `terms`


def _nearest(terms: Array, exponents: Array) -> Array:
    """Return the index of the term ``[F, m]`` that each of the first F rows of exponents is."""
    apart = np.abs(terms[:, None] - exponents[: len(terms)]).max(-1, initial=0.0)
    nearest: Array = apart.argmin(0) if len(terms) else np.zeros(0, dtype=int)
    return nearest


@dataclass(frozen=True)
class Limits:
    """Limits of exponents and coefficients, in the user's columns and units."""

    low: Array  # [n], the bounds of exponents; infinite: those that all have
    high: Array  # [n]
    integer: Array  # [n], the columns whose exponents are integers
    positive: bool  # no coefficient is below 0, but for those of `terms`
    terms: Array  # [F, n], exponents of products that the equation has
    coef_low: Array  # [F], the bounds of their coefficients
    coef_high: Array  # [F]
    excluded: Array  # [E, n], exponents of products that the equation has not

    @property
    def bounded(self) -> Array:
        """The columns whose exponents have other limits than all have ``[n]``."""
        return (self.low > -BOUND) | (self.high < BOUND) | self.integer

    def exponent_bounds(self, bound: float) -> tuple[Array, Array]:
        """Return the bounds of exponents ``[n]``. bound: the largest size where none is set."""
        low, high = self.low, self.high
        return np.where(np.isinf(low), -bound, low), np.where(np.isinf(high), bound, high)

    def of_coefficients(self, exponents: Array, below: int) -> tuple[Array, Array]:
        """Return the bounds of an equation's coefficients ``[K]``.

        exponents: of its terms ``[K, n]``, those of `terms` first, in any order. below: how many
        terms, the last ones, are in the denominator.
        """
        low, high = np.full(len(exponents), -math.inf), np.full(len(exponents), math.inf)
        if self.positive:
            low[: len(exponents) - below] = 0.0
        index = _nearest(self.terms, exponents)
        low[: len(index)], high[: len(index)] = self.coef_low[index], self.coef_high[index]
        return low, high

    def __str__(self) -> str:
        """What they are, for messages."""
        rows = zip(self.terms.tolist(), self.coef_low, self.coef_high, strict=True)
        terms = [f"{low:g} to {high:g} for the exponents {row}" for row, low, high in rows]
        text = "these terms, signs and bounds"
        return f"{text} (coefficients of {', '.join(terms)})" if terms else text

    def agree(self, exponents: Exponents, power: float) -> bool:
        """Return whether the units allow the terms, for an output power."""
        return np.allclose(exponents.full(self.terms[:, exponents.free], power), self.terms)

    def scaled(
        self, exponents: Exponents, power: float, signed: Array, outer: Any, sign: float, sizes: Any
    ) -> ScaledLimits:
        """Return the limits for scaled columns and y.

        signed: the effective inputs with integer exponents. outer: those of the columns that are
        negative in all rows, summed up for the effective inputs and the offset. sign: of y. sizes:
        logarithms of the sizes of y to the power, and of the columns.
        """
        u = self.terms[:, exponents.free]
        sign = sign if abs(power) == 1 else 1.0
        factor = sign * (1 - 2 * ((u @ outer[0] + outer[1]) % 2))
        with np.errstate(over="ignore", invalid="ignore"):
            factor = factor * np.exp(self.terms @ sizes[1] - sizes[0])
            low, high = np.sort([self.coef_low * factor, self.coef_high * factor], axis=0)
        full = exponents.full(self.excluded[:, exponents.free], power)
        possible: Array = np.isclose(full, self.excluded)  # units exclude the others
        excluded = self.excluded[possible.all(1)][:, exponents.free]
        parity = np.where(signed, np.abs(u) % 2, 0.0)
        return ScaledLimits(u, parity, low, high, excluded, self.positive, outer, sign)


@dataclass(frozen=True)
class ScaledLimits:
    """Limits of the terms of a `Problem`."""

    u: Array  # [F, m], exponents of the first terms of every sum
    parity: Array  # [F, m]
    low: Array  # [F], the bounds of their coefficients
    high: Array  # [F]
    excluded: Array  # [E, m], exponents of terms that no sum has
    positive: bool  # no other coefficient is below 0
    outer: Any  # of columns that are negative in all rows, see `Limits.scaled`
    sign: float  # of y

    def bounds(self, u: Array, below: int = 0) -> tuple[Array, Array]:
        """Return the bounds ``[..., K]`` of coefficients of terms with exponents ``[..., K, m]``.

        below: how many terms, the last ones, are in the denominator.
        """
        shape, fixed = u.shape[:-1], len(self.u)
        low, high = np.full(shape, -math.inf), np.full(shape, math.inf)
        if self.positive:
            signs = 1 - 2 * ((np.round(u) @ self.outer[0]) % 2)
            signs[..., : shape[-1] - below] *= self.sign * (1 - 2 * (self.outer[1] % 2))
            low, high = np.where(signs > 0, 0.0, low), np.where(signs < 0, 0.0, high)
        low[..., :fixed], high[..., :fixed] = self.low, self.high
        return low, high

    def of_terms(self, u: Array, parity: Array, below: int) -> ScaledLimits:
        """Return the limits of an equation that has these terms always, with coefficients of 0.

        The terms that every sum has are the first ones, in any order.
        """
        without_terms = replace(self, u=self.u[:0], low=self.low[:0], high=self.high[:0])
        low, high = without_terms.bounds(u, below)
        index = _nearest(self.u, u)
        low[: len(index)], high[: len(index)] = self.low[index], self.high[index]
        return replace(self, u=u, parity=parity, low=low, high=high)

    def refuses(self, u: Array, c: Array) -> bool:
        """Return whether a sum has a term that is excluded, or one whose coefficient is 0.

        A term like one that every sum has is excluded as well: it would take what the bounds of
        that coefficient leave. Of groups, a coefficient is 0 where it is in all of them.
        """
        u, c = u[len(self.u) :], c[len(self.u) :]
        lost = (c == 0).all(axis=tuple(range(1, c.ndim)))
        return bool(self.excludes(u).any() or lost.any())

    @cached_property
    def barred(self) -> Array:
        """The exponents ``[E + F, m]`` of the terms that no other term may be like."""
        return np.concatenate([self.excluded, self.u])

    def excludes(self, u: Array) -> Array:
        """Return which exponents ``[..., m]`` are nearly those of a barred term ``[...]``."""
        far = np.abs(u[..., None, :] - self.barred).max(-1, initial=0.0)
        near: Array = (far < APART).any(-1)
        return near


# ---- arguments of the estimator and of `ode.fit` -------------------------------------------------


def read_bounds(function: str, bounds: Any, columns: int, noun: str) -> tuple[Array, Array]:
    """Return checked bounds of exponents ``[columns]``; None: -6 to 6.

    noun: what the columns are.
    """
    rule = (
        f"{function}: exponents must be two bounds, each a number or one for each of {columns} "
        f"{noun}"
    )
    try:
        low, high = (-BOUND, BOUND) if bounds is None else bounds
        low, high = (np.array(np.broadcast_to(np.asarray(b, float), columns)) for b in (low, high))
    except (TypeError, ValueError):
        raise ValueError(f"{rule}, got {bounds!r}") from None
    if not (low <= high).all():
        raise ValueError(f"{rule}, the lower one first, got {bounds!r}")
    return low, high


def read_whole(function: str, integers: Any, names: Sequence[str], noun: str) -> Array:
    """Return which columns have integer exponents. integers: True, False, or their names."""
    if isinstance(integers, (bool, np.bool_)):
        return np.full(len(names), integers)
    is_list = isinstance(integers, Sequence) and not isinstance(integers, str)
    if not is_list or not set(integers) <= set(names):
        raise ValueError(
            f"{function}: integer_exponents must be True, False, or names of {noun}, "
            f"{', '.join(names)}, got {integers!r}"
        )
    return np.isin(names, list(integers))


def check_whole_within(
    function: str, names: Sequence[str], low: Array, high: Array, whole: Array, reason: str
) -> None:
    """ValueError where exponents that are whole have bounds without an integer.

    whole: the columns with such exponents. reason: that they have them.
    """
    for i in np.flatnonzero(whole & (np.ceil(low) > high)).tolist():
        raise ValueError(
            f"{function}: exponents must have bounds with an integer within where {reason}, "
            f"got ({low[i]:g}, {high[i]:g}) for {names[i]}"
        )


def exponent_rows(
    function: str, terms: Any, names: Sequence[str], functions: Sequence[Any] = ()
) -> Any:
    """Return terms with those of text, such as ``"x0*x1**2"``, as lists of exponents.

    functions: of columns, see `Expression.product`.
    """
    if isinstance(terms, str) or not isinstance(terms, Sequence):
        return terms
    rows = []
    for term in terms:
        if isinstance(term, str):
            argument = f"{function}: required_terms"
            term = Expression(term, tuple(names), argument).product(functions).tolist()
        rows.append(term)
    return rows


def check_terms(function: str, terms: Any, exponents: Array) -> None:
    """ValueError unless the exponents ``[n, D]`` of terms are finite, and no two terms equal."""
    if not np.isfinite(exponents).all():
        raise ValueError(f"{function}: required_terms must have finite exponents, got {terms!r}")
    if len({tuple(row) for row in exponents.tolist()}) < len(exponents):
        raise ValueError(f"{function}: required_terms must differ, got {terms!r}")


def read_terms(
    function: str, terms: Any, names: Sequence[str], functions: Sequence[Any]
) -> tuple[Array, Array, Array, Array]:
    """Return exponents of terms that are there, bounds of their coefficients, and excluded terms.

    terms: a list of products, or a dict with None, bounds ``(low, high)``, or 0 for products that
    are excluded.
    """
    count = len(names) + len(functions)
    none = np.zeros((0, count))
    if terms is None:
        return none, np.zeros(0), np.zeros(0), none
    rule = (
        f"{function}: required_terms must be products of columns, such as 'x0*x1**2' or '1', as "
        f"text or as "
        f"{count} exponents each, or a dict of these with None, bounds (low, high) of the "
        "coefficient, or 0 for a term that is excluded"
    )
    limits = list(terms.values()) if isinstance(terms, Mapping) else None
    rows = exponent_rows(
        function, list(terms) if isinstance(terms, Mapping) else terms, names, functions
    )
    try:
        exponents = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):
        exponents = np.zeros(())  # of no shape that could be right
    if exponents.shape == (0,):
        exponents = none
    if exponents.shape[1:] != (count,):
        raise ValueError(f"{rule}, got {terms!r}")
    check_terms(function, terms, exponents)
    bounds, absent = np.tile([-math.inf, math.inf], (len(exponents), 1)), []
    for k, limit in enumerate(limits or []):
        if limit is None:
            continue
        if isinstance(limit, (int, float)) and limit == 0:
            absent.append(k)
            continue
        try:
            low, high = limit
            pair = -math.inf if low is None else low, math.inf if high is None else high
            bounds[k] = pair
        except (TypeError, ValueError):
            raise ValueError(f"{rule}, got {terms!r}") from None
        if not bounds[k, 0] <= bounds[k, 1]:
            raise ValueError(f"{rule}, the lower bound first, got {terms!r}")
        if bounds[k, 0] == math.inf or bounds[k, 1] == -math.inf:
            raise ValueError(f"{rule}, with a finite number between, got {terms!r}")
    present = ~np.isin(np.arange(len(exponents)), absent)
    return exponents[present], bounds[present, 0], bounds[present, 1], exponents[~present]
