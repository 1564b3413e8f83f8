"""Known laws, as formulas: laws of Feynman's lectures, and sums that are drawn.

The laws are those of AI Feynman (Udrescu, Tegmark, 2020) that are powers of sums of at most four
products of powers. Class a: one product. b: a sum. c1: a power of a sum. Inputs are drawn uniformly
from [1, 5] unless the law has a range. Classes ad, bd and c1d: a, b and c1 with two columns that
are not needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

PI = math.pi
INVERSES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "log": np.exp,
    "log(1+1/y)": lambda total: 1 / np.expm1(total),
}
SUMS = 24  # drawn sums of a seed


@dataclass(frozen=True)
class Range:
    """The distribution of an input: "uniform", "log" (uniform in the logarithm) or "integer".

    sign: "-" is for the negative of these numbers, "both" for either sign at random.
    """

    low: float
    high: float
    sampling: str = "uniform"
    sign: str = "+"

    def draw(self, rows: int, generator: np.random.Generator) -> np.ndarray:
        """Numbers ``[N]`` of the range."""
        if self.sampling == "log":
            size = 10 ** generator.uniform(math.log10(self.low), math.log10(self.high), rows)
        elif self.sampling == "integer":
            size = generator.integers(int(self.low), int(self.high), rows).astype(float)
        else:
            size = generator.uniform(self.low, self.high, rows)
        return size * _signs(self.sign, rows, generator)

    def around(self, rows: int, generator: np.random.Generator) -> np.ndarray:
        """Numbers ``[N]`` over four decades around the range's geometric middle, of its signs.

        A range that begins at 0 or below has its middle at half of its largest size.
        """
        middle = math.sqrt(self.low * self.high) if self.low > 0 else max(-self.low, self.high) / 2
        size = middle * 10 ** generator.uniform(-2, 2, rows)
        return size * _signs("both" if self.low < 0 else self.sign, rows, generator)


def _signs(sign: str, rows: int, generator: np.random.Generator) -> np.ndarray:
    return (
        generator.choice([-1.0, 1.0], rows)
        if sign == "both"
        else np.full(rows, -1.0 if sign == "-" else 1.0)
    )


@dataclass(frozen=True)
class Law:
    """``y**power = sum coef * prod x**exponent``; terms as (coefficient, "x y^-2 sin(z)^0.5").

    below: the terms of the denominator of a ratio. columns: the inputs in another order than that
    in which they come up, and those that are not needed. source: the set of equations that the law
    is from. functions: that the inputs of the law may have, by input. function: f of a law for
    f(y).
    """

    name: str
    kind: str
    terms: tuple[tuple[float, str], ...]
    power: float = 1.0
    ranges: dict[str, Range] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    source: str = ""
    functions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    function: str = ""
    below: tuple[tuple[float, str], ...] = ()

    @property
    def inputs(self) -> list[str]:
        """Names of the columns."""
        terms = (*self.terms, *self.below)
        names = [part.split("^")[0] for _, product in terms for part in product.split()]
        names = [name.partition("(")[2].rstrip(")") or name for name in names]
        return list(self.columns or dict.fromkeys(names))

    @property
    def exponents(self) -> np.ndarray:
        """``[K, n]``, of the inputs and their functions."""
        return self.exponents_of(self.terms)

    def exponents_of(self, terms: tuple[tuple[float, str], ...]) -> np.ndarray:
        """The exponents ``[K, n]`` of such terms."""
        names = self.inputs
        names = names + [f"{f}({name})" for name in names for f in self.functions.get(name, ())]
        table = np.zeros((len(terms), len(names)))
        for k, (_, product) in enumerate(terms):
            for part in product.split():
                name, _, power = part.partition("^")
                table[k, names.index(name)] += float(power or 1)
        return table

    def expanded(self, X: np.ndarray) -> np.ndarray:
        """The inputs and their functions."""
        columns = [
            getattr(np, function)(X[:, i])
            for i, name in enumerate(self.inputs)
            for function in self.functions.get(name, ())
        ]
        return np.column_stack([X, *columns]) if columns else X

    def _products(self, X: np.ndarray, terms: tuple[tuple[float, str], ...]) -> np.ndarray:
        X = self.expanded(X)
        powers = np.prod(X[:, None, :] ** self.exponents_of(terms)[None], axis=2)
        return np.array([coef for coef, _ in terms]) * powers

    def products(self, X: np.ndarray) -> np.ndarray:
        """The terms ``[N, K]``, of a ratio over the denominator."""
        terms = self._products(X, self.terms)
        return terms / self._products(X, self.below).sum(1, keepdims=True) if self.below else terms

    def sizes(self, X: np.ndarray) -> np.ndarray:
        """The sum of the terms' sizes ``[N]``, of a ratio with those of the denominator's terms."""
        terms = self.products(X)
        sizes: np.ndarray = np.abs(terms).sum(1)
        if self.below:
            below = self._products(X, self.below)
            sizes += np.abs(terms.sum(1)) * np.abs(below).sum(1) / np.abs(below.sum(1))
        return sizes

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """y ``[N]``, not a number where a sum has no such root."""
        if self.function:
            inverse: np.ndarray = INVERSES[self.function](self.products(X).sum(1))
            return inverse
        with np.errstate(invalid="ignore"):
            values: np.ndarray = self.products(X).sum(1) ** (1 / self.power)
        return values

    def draw(self, rows: int, generator: np.random.Generator) -> np.ndarray:
        """Inputs ``[N, n]``; rows without a y are drawn again."""
        ranges = [self.ranges.get(name, USUAL) for name in self.inputs]
        X = np.column_stack([bounds.draw(rows, generator) for bounds in ranges])
        while (invalid := ~np.isfinite(self(X))).any():
            X[invalid] = np.column_stack(
                [bounds.draw(int(invalid.sum()), generator) for bounds in ranges]
            )
        return X

    def around(self, rows: int, generator: np.random.Generator) -> np.ndarray:
        """The inputs ``[N, n]`` at which a formula is judged."""
        ranges = [self.ranges.get(name, USUAL) for name in self.inputs]
        return np.column_stack([bounds.around(rows, generator) for bounds in ranges])


USUAL = Range(1.0, 5.0)


def _a(name: str, coef: float, product: str) -> Law:
    return Law(name, "a", ((coef, product),))


def _c(name: str, power: float, *terms: tuple[float, str], **ranges: tuple[float, float]) -> Law:
    return Law(name, "c1", terms, power, {name: Range(*bounds) for name, bounds in ranges.items()})


SLOW = {"v": (1.0, 2.0), "c": (3.0, 10.0)}

LAWS = (
    _a("I.12.1", 1, "mu N"),
    _a("I.12.2", 1 / (4 * PI), "q1 q2 eps^-1 r^-2"),
    _a("I.12.4", 1 / (4 * PI), "q1 eps^-1 r^-2"),
    _a("I.12.5", 1, "q E"),
    _a("I.14.3", 1, "m g z"),
    _a("I.14.4", 0.5, "k x^2"),
    _a("I.25.13", 1, "q C^-1"),
    _a("I.29.4", 1, "omega c^-1"),
    _a("I.32.5", 1 / (6 * PI), "q^2 a^2 eps^-1 c^-3"),
    _a("I.34.8", 1, "q v B p^-1"),
    _a("I.34.27", 1 / (2 * PI), "h omega"),
    _a("I.38.12", 1 / PI, "eps h^2 m^-1 q^-2"),
    _a("I.39.1", 1.5, "p V"),
    _a("I.39.22", 1, "n kb T V^-1"),
    _a("I.43.16", 1, "mu q U d^-1"),
    _a("I.43.31", 1, "mu kb T"),
    _a("I.47.23", 1, "gamma^0.5 p^0.5 rho^-0.5"),
    _a("II.3.24", 1 / (4 * PI), "P r^-2"),
    _a("II.4.23", 1 / (4 * PI), "q eps^-1 r^-1"),
    _a("II.8.7", 0.6 / (4 * PI), "q^2 eps^-1 d^-1"),
    _a("II.8.31", 0.5, "eps E^2"),
    _a("II.13.17", 0.5 / PI, "I eps^-1 c^-2 r^-1"),
    _a("II.27.16", 1, "eps c E^2"),
    _a("II.34.2", 0.5, "q v r"),
    _a("II.34.2a", 0.5 / PI, "q v r^-1"),
    _a("II.34.11", 0.5, "g q B m^-1"),
    _a("II.34.29a", 0.25 / PI, "q h m^-1"),
    _a("II.34.29b", 2 * PI, "g mu B J h^-1"),
    _a("II.38.3", 1, "Y A x d^-1"),
    _a("III.7.38", 4 * PI, "mu B h^-1"),
    _a("III.12.43", 0.5 / PI, "n h"),
    _a("III.13.18", 4 * PI, "E d^2 k h^-1"),
    _a("III.15.14", 0.125 / PI**2, "h^2 E^-1 d^-2"),
    _a("III.15.27", 2 * PI, "alpha n^-1 d^-1"),
    _a("III.19.51", -0.125, "m q^4 h^-2 eps^-2 n^-2"),
    _a("III.21.20", -1, "rho q A m^-1"),
    Law("I.11.19", "b", ((1, "x1 y1"), (1, "x2 y2"), (1, "x3 y3"))),
    Law("I.13.4", "b", ((0.5, "m v^2"), (0.5, "m u^2"), (0.5, "m w^2"))),
    Law("I.13.12", "b", ((1, "G m1 m2 r2^-1"), (-1, "G m1 m2 r1^-1"))),
    Law("I.24.6", "b", ((0.25, "m w^2 x^2"), (0.25, "m w0^2 x^2"))),
    Law("II.2.42", "b", ((1, "k T2 A d^-1"), (-1, "k T1 A d^-1"))),
    Law("II.36.38", "b", ((1, "mu H kb^-1 T^-1"), (1, "mu alpha M eps^-1 c^-2 kb^-1 T^-1"))),
    Law("II.37.1", "b", ((1, "mu B"), (1, "mu chi B"))),
    _c("I.10.7", -2, (1, "m^-2"), (-1, "m^-2 v^2 c^-2"), **SLOW),
    _c("I.27.6", -1, (1, "d1^-1"), (1, "n d2^-1")),
    _c("I.34.10", -1, (1, "w^-1"), (-1, "w^-1 v c^-1"), **SLOW),
    _c("I.39.11", -1, (1, "g p^-1 V^-1"), (-1, "p^-1 V^-1"), g=(2.0, 5.0)),
    _c("I.43.43", -1, (1, "g A kb^-1 v^-1"), (-1, "A kb^-1 v^-1"), g=(2.0, 5.0)),
    _c("I.48.2", -2, (1, "m^-2 c^-4"), (-1, "m^-2 v^2 c^-6"), **SLOW),
    _c(
        "II.6.15a",
        2,
        (9 / (16 * PI**2), "p^2 z^2 x^2 eps^-2 r^-10"),
        (9 / (16 * PI**2), "p^2 z^2 y^2 eps^-2 r^-10"),
    ),
    _c("II.10.9", -1, (1, "eps s^-1"), (1, "eps chi s^-1")),
    _c(
        "II.11.3", -1, (1, "m w0^2 q^-1 E^-1"), (-1, "m w^2 q^-1 E^-1"), w0=(3.0, 5.0), w=(1.0, 2.0)
    ),
    _c("II.13.23", -2, (1, "rho^-2"), (-1, "rho^-2 v^2 c^-2"), **SLOW),
    _c("II.13.34", -2, (1, "rho^-2 v^-2"), (-1, "rho^-2 c^-2"), **SLOW),
    _c("II.21.32", -1, (4 * PI, "eps r q^-1"), (-4 * PI, "eps r v q^-1 c^-1"), **SLOW),
    _c(
        "II.24.17", 2, (1, "w^2 c^-2"), (-(PI**2), "d^-2"), w=(4.0, 6.0), c=(1.0, 2.0), d=(2.0, 4.0)
    ),
    _c("II.38.14", -1, (2, "Y^-1"), (2, "s Y^-1")),
    _c("III.10.19", 2, (1, "mu^2 Bx^2"), (1, "mu^2 By^2"), (1, "mu^2 Bz^2")),
)


def with_dummies(law: Law) -> Law:
    """The law with two columns that are not needed."""
    return replace(
        law, name=f"{law.name} +2", kind=f"{law.kind}d", columns=(*law.inputs, "dummy1", "dummy2")
    )


def drawn(seed: int) -> Law:
    """A sum of two to four products of one to three inputs, and an input that it does not need."""
    generator = np.random.default_rng([seed, 77])
    count, inputs = int(generator.integers(2, 5)), int(generator.integers(3, 6))
    products: dict[str, float] = {}
    while len(products) < count:
        some = generator.choice(inputs, size=int(generator.integers(1, 4)), replace=False)
        powers = generator.choice([-2, -1, -0.5, 0.5, 1, 1, 2], size=len(some))
        product = " ".join(
            f"x{i}^{w:g}" for i, w in sorted(zip(some.tolist(), powers.tolist(), strict=True))
        )
        products[product] = float(generator.choice([-1, 1]) * 10 ** generator.uniform(-0.5, 0.5))
    law = Law(f"sum {seed}", "sum", tuple((c, product) for product, c in products.items()))
    columns = (*law.inputs, "x9")
    return replace(law, ranges=dict.fromkeys(columns, Range(0.5, 3.0)), columns=columns)
