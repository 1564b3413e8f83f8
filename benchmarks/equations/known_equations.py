"""Known equations, as formulas: of Feynman's lectures and of textbooks, sampled sums and ratios.

The equations are those of AI Feynman (Udrescu, Tegmark, 2020) that are powers of sums of at most
four products of powers. Class a: one product. b: a sum. c1: a power of a sum. Inputs are drawn
uniformly from [1, 5] unless the equation has a range. Classes ad, bd and c1d: a, b and c1 with two
columns that are not needed. Class wild: a, b and drawn sums with wild rows. Class ratio: ratios of
sums, equations with names and the ranges of measurements. Class dratio: one to three terms over two
or three, with positive terms below, and an input that is not needed. known_equations.csv has all
but the drawn ones, and those of SRSD: terms with their coefficients first, ranges as "input log 0.1
10 both", functions as "input sin cos".

Of SRSD: the equations that `NPURegressor` can represent. Matsubara, Chiba, Igarashi and Ushiku,
"Rethinking Symbolic Regression Datasets and Benchmarks for Scientific Discovery" (2022). SRSD has
the 120 equations of AI Feynman with sizes as in nature: inputs of both signs, most of them uniform
in the logarithm over two decades, and physical constants as constants. Those are representable that
are ``y**p = sum`` of at most four products of powers, p one of 1, 2, 1/2, -1, -2, -1/2:

    set      equations   representable   with functions
    easy        30            24               30
    medium      40            28               33
    hard        50            16               26

The last column has those with sines, cosines and logarithms of single inputs, or of y, as well:
`WITH_FUNCTIONS`. `SRSD_RATIOS` has nine more, ``y**p = sum / sum``, and `MANY_TERMS` three sums of
more than four terms. `OTHERS` has the rest. A root has one sign: where y has both and p is even,
y**p does not tell it. With p = -1 it does. As in SRSD, rows whose y is not a real number are drawn
again.

Class srsd: as they are. srsdd: with one to three dummy columns of random sizes at random places.
srsdf: with functions. `NPURegressor` is told there which inputs are angles, which may have
logarithms (all that are positive, if the equation has one), and whether y may have a function.
srsdr: ratios, with angles told. srsdm: more than four terms, with their number as max_terms.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

# The names that numbers in known_equations.csv may have.
PI = math.pi
ALPHA, ELECTRON = 7.2973525693e-3, 9.10938356e-31
G, GRAVITY, C, EPS, H = 6.6743e-11, 9.80665, 2.99792458e8, 8.854e-12, 6.626e-34
KLEIN = (ALPHA * H / (ELECTRON * C)) ** 2 / (4 * PI)
HBAR, KB, MAGNETON = H / (2 * PI), 1.380649e-23, 9.2740100783e-24
INVERSES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "log": np.exp,
    "log(1+1/y)": lambda total: 1 / np.expm1(total),
}
SUMS, RATIOS_DRAWN = 24, 12  # drawn sums and ratios of a seed


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
    if sign == "both":
        return generator.choice([-1.0, 1.0], rows)
    return np.full(rows, -1.0 if sign == "-" else 1.0)


@dataclass(frozen=True)
class KnownEquation:
    """``y**power = sum coef * prod x**exponent``; terms as (coefficient, "x y^-2 sin(z)^0.5").

    below: the terms of the denominator of a ratio. columns: the inputs in another order than that
    in which they come up, and those that are not needed. source: the set that the equation is from.
    functions: that the inputs of the equation may have, by input. function: f of an equation for
    f(y). wild: the share of rows whose y is ten times too large or too small.
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
    wild: float = 0.0

    @property
    def inputs(self) -> list[str]:
        """Names of the columns."""
        terms = (*self.terms, *self.below)
        names = [part.split("^")[0] for _, product in terms for part in product.split()]
        names = [name.partition("(")[2].rstrip(")") or name for name in names]
        return list(self.columns or dict.fromkeys(names))

    def exponents_of(self, terms: tuple[tuple[float, str], ...]) -> np.ndarray:
        """The exponents ``[K, n]`` of such terms, of the inputs and their functions."""
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

    def measured(self, X: np.ndarray, noise: float, generator: np.random.Generator) -> np.ndarray:
        """y ``[N]`` with errors; noise: their standard deviation over y's root mean square."""
        y = self(X)
        y = y + noise * np.sqrt(np.mean(y**2)) * generator.standard_normal(len(y))
        if self.wild:
            rows = generator.permutation(len(y))[: round(self.wild * len(y))]
            y[rows] *= 10.0 ** generator.choice([-1, 1], len(rows))
        return y

    def draw(self, rows: int, generator: np.random.Generator) -> np.ndarray:
        """Inputs ``[N, n]``; rows without a y are drawn again."""
        ranges = [self.ranges.get(name, USUAL) for name in self.inputs]
        X, invalid = np.empty((rows, len(ranges))), np.ones(rows, dtype=bool)
        while invalid.any():
            count = int(invalid.sum())
            X[invalid] = np.column_stack([bounds.draw(count, generator) for bounds in ranges])
            invalid = ~np.isfinite(self(X))
        return X

    def around(self, rows: int, generator: np.random.Generator) -> np.ndarray:
        """The inputs ``[N, n]`` at which a formula is judged."""
        ranges = [self.ranges.get(name, USUAL) for name in self.inputs]
        return np.column_stack([bounds.around(rows, generator) for bounds in ranges])


USUAL = Range(1.0, 5.0)


def _terms(text: str) -> tuple[tuple[float, str], ...]:
    """Terms from a text such as "2 S, -1/KB S^2 T^-1"; a term may have no inputs."""
    parts = [part.partition(" ") for part in text.split(", ") if part]
    return tuple((eval(coef), product) for coef, _, product in parts)


def _range(text: str) -> Range:
    """A range from a text such as "log 0.1 10 both"."""
    parts = re.fullmatch(r"([a-z]*) ?(\S+) (\S+) ?(\S*)", text)
    assert parts, text
    sampling, low, high, sign = parts.groups()
    return Range(eval(low), eval(high), sampling or "uniform", sign or "+")


def _read(path: Path) -> list[KnownEquation]:
    equations = []
    for row in csv.DictReader(path.read_text().splitlines()):
        ranges, functions = (
            [part.split(maxsplit=1) for part in row[name].split("; ") if part]
            for name in ("ranges", "functions")
        )
        kind, source = row["class"], row["set"]
        equation = KnownEquation(
            f"{row['name']} {kind}" if source else row["name"], kind, _terms(row["terms"])
        )
        equations.append(replace(
            equation, power=float(row["power"]), source=source, function=row["function of y"],
            ranges={name: _range(text) for name, text in ranges}, below=_terms(row["below"]),
            functions={name: tuple(text.split()) for name, text in functions},
        ))  # fmt: skip
    return equations


ALL = _read(Path(__file__).with_suffix(".csv"))
EQUATIONS = [equation for equation in ALL if equation.kind in ("a", "b", "c1")]
RATIOS = [equation for equation in ALL if equation.kind == "ratio"]


def with_dummies(equation: KnownEquation) -> KnownEquation:
    """The equation with two columns that are not needed."""
    return replace(
        equation,
        name=f"{equation.name} +2",
        kind=f"{equation.kind}d",
        columns=(*equation.inputs, "dummy1", "dummy2"),
    )


def drawn(seed: int) -> KnownEquation:
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
    equation = KnownEquation(
        f"sum {seed}", "sum", tuple((c, product) for product, c in products.items())
    )
    columns = (*equation.inputs, "x9")
    return replace(equation, ranges=dict.fromkeys(columns, Range(0.5, 3.0)), columns=columns)


def drawn_ratio(seed: int) -> KnownEquation:
    """A ratio of one to three terms and two or three, whose inputs have ranges of a decade."""
    generator = np.random.default_rng([seed, 78])
    inputs = int(generator.integers(1, 4))

    def terms(count: int, present: list[str]) -> list[tuple[float, str]]:
        products = list(present)
        while len(products) < count:
            powers = generator.integers(0, 3, inputs)
            powers[powers.cumsum() > 2] = 0
            product = " ".join(f"x{i}^{w}" for i, w in enumerate(powers) if w)
            if product not in products:
                products.append(product)
        return [(round(10 ** generator.uniform(-0.5, 0.5), 3), product) for product in products]

    above = terms(int(generator.integers(1, 4)), [])
    below = terms(int(generator.integers(2, 4 if inputs > 1 else 3)), [""])
    equation = KnownEquation(f"drawn ratio {seed}", "dratio", tuple(above), below=tuple(below))
    columns = (*equation.inputs, "x9")
    return replace(equation, ranges=dict.fromkeys(columns, Range(0.3, 3.0, "log")), columns=columns)


OTHERS = {
    "a function of several inputs, or beside one of y": (
        "I.30.3 I.41.16 I.50.26 II.35.18 II.35.21 III.4.33 III.8.54 III.9.52 III.14.14 III.15.12 "
        "B2 B11"
    ),
    "a product of sums, or a root beside a term": "B12 B16",
    "an even power, and y of both signs": "I.15.3x I.15.10 II.6.15a III.10.19 B13",
}
SRSD = [equation for equation in ALL if equation.kind == "srsd"]
WITH_FUNCTIONS = [equation for equation in ALL if equation.kind == "srsdf"]
SRSD_RATIOS = [equation for equation in ALL if equation.kind == "srsdr"]
MANY_TERMS = [equation for equation in ALL if equation.kind == "srsdm"]


def mixed(equation: KnownEquation) -> KnownEquation:
    """The equation with one to three needless columns, of sizes from 1e-33 to 1e33."""
    generator = np.random.default_rng([120, *equation.name.encode()])
    columns, ranges = list(equation.inputs), dict(equation.ranges)
    for k in range(int(generator.integers(1, 4))):
        columns.insert(int(generator.integers(len(equation.inputs) + 1)), f"dummy{k}")
        decade = int(generator.integers(-32, 33))
        ranges[f"dummy{k}"] = Range(
            10.0 ** (decade - 1), 10.0 ** (decade + 1), "log", str(generator.choice(["+", "both"]))
        )
    return replace(
        equation, name=f"{equation.name} +", kind="srsdd", ranges=ranges, columns=tuple(columns)
    )


def equations_of(seed: int) -> list[KnownEquation]:
    """All equations; a seed has sums and ratios of its own."""
    sums = [drawn(SUMS * seed + k) for k in range(SUMS)]
    ratios = [drawn_ratio(RATIOS_DRAWN * seed + k) for k in range(RATIOS_DRAWN)]
    listed_equations = [*EQUATIONS, *map(with_dummies, EQUATIONS), *SRSD, *map(mixed, SRSD)]
    # A wild value in one row of a hundred.
    wild = [
        replace(equation, name=f"{equation.name} wild", kind="wild", wild=0.01)
        for equation in (*EQUATIONS, *sums)
        if equation.kind in ("a", "b", "sum")
    ]
    listed_equations += [*WITH_FUNCTIONS, *RATIOS, *SRSD_RATIOS, *MANY_TERMS]
    return [*listed_equations, *sums, *ratios, *wild]
