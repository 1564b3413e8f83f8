"""The equations of SRSD that `NPURegressor` can represent, and their ranges.

Matsubara, Chiba, Igarashi and Ushiku, "Rethinking Symbolic Regression Datasets and Benchmarks for
Scientific Discovery" (2022). SRSD has the 120 equations of AI Feynman with sizes as in nature:
inputs of both signs, most of them uniform in the logarithm over two decades, and physical constants
as constants. Those are representable that are ``y**p = sum`` of at most four products of powers, p
one of 1, 2, 1/2, -1, -2, -1/2:

    set      equations   representable   with functions
    easy        30            24               30
    medium      40            28               33
    hard        50            16               26

The last column has those with sines, cosines and logarithms of single inputs, or of y, as well:
`WITH_FUNCTIONS`. `OTHERS` has the rest. A root has one sign: where y has both and p is even, y**p
does not tell it. With p = -1 it does. As in SRSD, rows whose y is not a real number are drawn
again.

Class srsd: as they are. srsdd: with one to three dummy columns of random sizes at random places.
srsdf: with functions. `NPURegressor` is told there which inputs are angles, which may have
logarithms (all that are positive, if the law has one), and whether y may have a function.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from benchmarks.equations.laws import PI, Law, Range

ALPHA, ELECTRON = 7.2973525693e-3, 9.10938356e-31
G, GRAVITY, C, EPS, H = 6.6743e-11, 9.80665, 2.99792458e8, 8.854e-12, 6.626e-34
KLEIN = (ALPHA * H / (ELECTRON * C)) ** 2 / (4 * PI)
HBAR, KB, MAGNETON = H / (2 * PI), 1.380649e-23, 9.2740100783e-24

OTHERS = {
    "a function of several inputs, or beside one of y": (
        "I.30.3 I.41.16 I.50.26 II.35.18 II.35.21 III.4.33 III.8.54 III.9.52 III.14.14 III.15.12 "
        "B2 B3 B10 B11 B14 B15"
    ),
    "more than four terms": "I.6.20b I.8.14 I.9.18",
    "a quotient of sums, or a root beside a term": (
        "I.15.3t I.15.3x I.16.6 I.18.4 I.34.14 II.11.28 B12 B16"
    ),
    "an even power, and y of both signs": "I.15.10 II.6.15a III.10.19 B13",
}


def pos(low: float, high: float) -> Range:
    """Uniform in the logarithm."""
    return Range(low, high, "log")


def neg(low: float, high: float) -> Range:
    """The negative of `pos`."""
    return Range(low, high, "log", "-")


def both(low: float, high: float) -> Range:
    """`pos` or `neg`."""
    return Range(low, high, "log", "both")


def whole(low: float, high: float, sign: str = "+") -> Range:
    """Integers."""
    return Range(low, high, "integer", sign)


def _law(name: str, source: str, power: float, *terms: tuple[float, str], **ranges: Range) -> Law:
    return Law(f"{name} srsd", "srsd", terms, power, ranges, source=source)


def _one(name: str, source: str, coef: float, product: str, **ranges: Range) -> Law:
    return _law(name, source, 1, (coef, product), **ranges)


TENS = (1e-1, 1e1)  # low, high
CHARGE, SPEED, OMEGA, LENGTH, TEMPERATURE = (
    (1e-11, 1e-9),
    (1e5, 1e7),
    (1e9, 1e11),
    (1e-10, 1e-8),
    (1e1, 1e3),
)
COUNT, ENERGY, MASS, GALAXY = (1e23, 1e25), (1e-18, 1e-16), (1e-30, 1e-28), (1e8, 1e10)

SRSD = (
    _one("I.12.1", "easy", 1, "mu N", mu=pos(1e-2, 1), N=pos(1e-2, 1)),
    _one("I.12.4", "easy", 1 / (4 * PI * EPS), "q1 r^-2", q1=both(*TENS), r=pos(*TENS)),
    _one("I.12.5", "easy", 1, "q2 E", q2=both(*TENS), E=both(*TENS)),
    _one("I.14.3", "easy", GRAVITY, "m z", m=pos(1e-2, 1), z=both(1e-2, 1)),
    _one("I.14.4", "easy", 0.5, "k x^2", k=pos(1e2, 1e4), x=both(1e-2, 1)),
    _one("I.25.13", "easy", 1, "q C^-1", q=both(1e-5, 1e-3), C=pos(1e-5, 1e-3)),
    _law("I.27.6", "easy", -1, (1, "d1^-1"), (1, "n d2^-1"), d1=pos(1e-3, 1e-1), n=pos(*TENS),
         d2=pos(1e-3, 1e-1)),
    _one("I.43.16", "easy", 1, "mu q V d^-1",
         mu=both(1e-6, 1e-4), q=both(*CHARGE), V=both(*TENS), d=pos(1e-3, 1e-1)),
    _one("I.47.23", "easy", 1, "gamma^0.5 p^0.5 rho^-0.5", gamma=Range(1, 2),
         p=Range(5e-6, 1.5e-5), rho=Range(1, 2)),
    _law("II.2.42", "easy", 1, (1, "k T2 A d^-1"), (-1, "k T1 A d^-1"),
         k=pos(*TENS), T2=pos(*TEMPERATURE), T1=pos(*TEMPERATURE), A=pos(1e-4, 1e-2),
         d=pos(1e-2, 1)),
    _one("II.3.24", "easy", 1 / (4 * PI), "P r^-2", P=both(1, 1e2), r=pos(1e-2, 1)),
    _one("II.4.23", "easy", 1 / (4 * PI * EPS), "q r^-1", q=both(1e-3, 1e-1), r=pos(1e-2, 1)),
    _one("II.8.31", "easy", EPS / 2, "E^2", E=pos(1e1, 1e3)),
    _law("II.10.9", "easy", -1, (EPS, "s^-1"), (EPS, "chi s^-1"), s=both(1e-3, 1e-1),
         chi=pos(1, 1e2)),
    _one("II.13.17", "easy", 1 / (2 * PI * EPS * C**2), "I r^-1", I=both(1e-3, 1e-1),
         r=pos(1e-3, 1e-1)),
    _one("II.27.16", "easy", EPS * C, "E^2", E=pos(*TENS)),
    _one("II.27.18", "easy", EPS, "E^2", E=pos(*TENS)),
    _one("II.34.11", "easy", 0.5, "g q B m^-1",
         g=Range(-1, 1), q=both(*CHARGE), B=both(1e-9, 1e-7), m=pos(*MASS)),
    _one("II.34.29b", "easy", MAGNETON / HBAR, "g B J", g=Range(-1, 1), B=both(1e-3, 1e-1),
         J=both(1e-26, 1e-22)),
    _one("II.38.3", "easy", 1, "Y A x d^-1", Y=pos(*TENS), A=pos(1e-4, 1e-2), x=both(1e-3, 1e-1),
         d=pos(1e-2, 1)),
    _law("II.38.14", "easy", -1, (2, "Y^-1"), (2, "s Y^-1"), Y=pos(*TENS), s=pos(1e-2, 1)),
    _one("III.7.38", "easy", 2 / HBAR, "mu B", mu=both(1e-11, 1e-9), B=both(1e-3, 1e-1)),
    _one("III.12.43", "easy", HBAR, "n", n=whole(1, 100)),
    _one("III.15.27", "easy", 2 * PI, "alpha n^-1 d^-1", alpha=whole(1, 100, "both"),
         n=whole(1, 100), d=pos(*LENGTH)),
    # medium
    _law("I.10.7", "medium", -2, (1, "m^-2"), (-1 / C**2, "m^-2 v^2"), m=pos(*TENS),
         v=pos(1e5, 1e8)),
    _law("I.11.19", "medium", 1, (1, "x1 y1"), (1, "x2 y2"), (1, "x3 y3"),
         **dict.fromkeys(("x1", "y1", "x2", "y2", "x3", "y3"), both(*TENS))),
    _one("I.12.2", "medium", 1 / (4 * PI * EPS), "q1 q2 r^-2", q1=both(*TENS), q2=both(*TENS),
         r=pos(*TENS)),
    _law("I.13.4", "medium", 1, (0.5, "m v^2"), (0.5, "m u^2"), (0.5, "m w^2"),
         m=pos(*TENS), v=both(*TENS), u=both(*TENS), w=both(*TENS)),
    _law("I.13.12", "medium", 1, (G, "m1 m2 r2^-1"), (-G, "m1 m2 r1^-1"),
         **dict.fromkeys(("m1", "m2", "r2", "r1"), pos(1e-2, 1))),
    _law("I.24.6", "medium", 1, (0.25, "m w^2 x^2"), (0.25, "m w0^2 x^2"),
         m=pos(*TENS), w=both(*TENS), w0=both(*TENS), x=both(*TENS)),
    _one("I.29.4", "medium", 1 / C, "w", w=pos(*OMEGA)),
    _one("I.32.5", "medium", 1 / (6 * PI * EPS * C**3), "q^2 a^2", q=both(1e-3, 1e-1),
         a=pos(1e5, 1e7)),
    _law("I.34.10", "medium", -1, (1, "w^-1"), (-1 / C, "w^-1 v"), w=pos(*OMEGA), v=both(*SPEED)),
    _one("I.34.8", "medium", 1, "q v B p^-1", q=both(*CHARGE), v=both(*SPEED), B=both(1e1, 1e3),
         p=both(1e9, 1e11)),
    _one("I.34.27", "medium", HBAR, "w", w=pos(*OMEGA)),
    _one("I.38.12", "medium", 4 * PI * EPS * HBAR**2, "m^-1 q^-2", m=pos(1e-28, 1e-26),
         q=pos(*CHARGE)),
    _one("I.39.10", "medium", 1.5, "p V", p=pos(1e4, 1e6), V=pos(1e-5, 1e-3)),
    _law("I.39.11", "medium", -1, (1, "g p^-1 V^-1"), (-1, "p^-1 V^-1"),
         g=Range(1, 2), p=pos(1e4, 1e6), V=pos(1e-5, 1e-3)),
    _one("I.43.31", "medium", KB, "mu T", mu=pos(1e13, 1e15), T=pos(*TEMPERATURE)),
    _law("I.43.43", "medium", -1, (1 / KB, "g v^-1 A"), (-1 / KB, "v^-1 A"),
         g=Range(1, 2), v=pos(1e2, 1e4), A=pos(1e-21, 1e-19)),
    _law("I.48.2", "medium", -2, (C**-4, "m^-2"), (-(C**-6), "m^-2 v^2"), m=pos(1e-29, 1e-27),
         v=pos(1e6, 1e8)),
    _one("II.8.7", "medium", 3 / (20 * PI * EPS), "q^2 d^-1", q=both(*CHARGE), d=pos(1e-12, 1e-10)),
    _law("II.11.3", "medium", -1, (1, "m w0^2 q^-1 E^-1"), (-1, "m w^2 q^-1 E^-1"),
         q=both(*CHARGE), E=pos(1e-9, 1e-7), m=pos(1e-28, 1e-26), w0=both(*OMEGA), w=both(*OMEGA)),
    _law("II.21.32", "medium", -1, (4 * PI * EPS, "r q^-1"), (-4 * PI * EPS / C, "r v q^-1"),
         q=both(1e-3, 1e-1), r=pos(1, 1e2), v=pos(1e6, 1e8)),
    _one("II.34.2a", "medium", 1 / (2 * PI), "q v r^-1", q=both(*CHARGE), v=both(*SPEED),
         r=pos(*CHARGE)),
    _one("II.34.2", "medium", 0.5, "q v r", q=both(*CHARGE), v=both(*SPEED), r=pos(*CHARGE)),
    _one("II.34.29a", "medium", H / (4 * PI), "q m^-1", q=both(*CHARGE), m=pos(*MASS)),
    _law("II.37.1", "medium", 1, (1, "mu B"), (1, "mu chi B"), mu=both(1e-25, 1e-23),
         chi=both(1e4, 1e6),
         B=both(1e-3, 1e-1)),
    _one("III.13.18", "medium", 2 / HBAR, "E d^2 k", E=both(*ENERGY), d=pos(*LENGTH), k=pos(*TENS)),
    _one("III.15.14", "medium", HBAR**2 / 2, "E^-1 d^-2", E=pos(*ENERGY), d=pos(*LENGTH)),
    _one("III.19.51", "medium", -1 / (2 * (4 * PI * EPS * HBAR) ** 2), "m q^4 n^-2",
         m=pos(*MASS), q=both(*CHARGE), n=whole(1, 100)),
    _law("B18", "medium", 1, (3 * C**2 / (8 * PI * G), "k r^-2"), (3 / (8 * PI * G), "H^2"),
         k=both(1e1, 1e3), r=pos(*GALAXY), H=both(1, 1e2)),
    # hard
    _law("I.32.17", "hard", -1, (3 / (4 * PI * EPS * C), "E^-2 r^-2"),
         (-3 / (2 * PI * EPS * C), "E^-2 r^-2 w0^2 w^-2"),
         (3 / (4 * PI * EPS * C), "E^-2 r^-2 w0^4 w^-4"),
         E=both(1e1, 1e3), r=pos(1e-2, 1), w=both(*OMEGA), w0=both(*OMEGA)),
    _one("I.39.22", "hard", KB, "n T V^-1", n=pos(*COUNT), T=pos(*TEMPERATURE), V=pos(1e-5, 1e-3)),
    _one("II.11.20", "hard", 1 / (3 * KB), "n p^2 E T^-1",
         n=pos(*COUNT), p=both(1e-22, 1e-20), E=both(1e1, 1e3), T=pos(*TEMPERATURE)),
    _law("II.11.27", "hard", -1, (1 / EPS, "n^-1 alpha^-1 E^-1"), (-1 / (3 * EPS), "E^-1"),
         n=pos(*COUNT), alpha=pos(1e-33, 1e-31), E=pos(1e1, 1e3)),
    _law("II.13.23", "hard", -2, (1, "rho^-2"), (-1 / C**2, "rho^-2 v^2"), rho=pos(1e27, 1e29),
         v=pos(1e6, 1e8)),
    _law("II.13.34", "hard", -2, (1, "rho^-2 v^-2"), (-1 / C**2, "rho^-2"), rho=pos(1e27, 1e29),
         v=pos(1e6, 1e8)),
    _law("II.24.17", "hard", 2, (1 / C**2, "w^2"), (-(PI**2), "d^-2"), w=both(*OMEGA),
         d=pos(1e-3, 1e-1)),
    _law("II.36.38", "hard", 1, (1 / KB, "mu H T^-1"), (1 / (EPS * C**2 * KB), "mu alpha M T^-1"),
         mu=both(1e-25, 1e-23), H=both(1e-3, 1e-1), T=pos(*TEMPERATURE), alpha=Range(0, 1),
         M=pos(*COUNT)),
    _one("III.21.20", "hard", -1, "rho q A m^-1",
         rho=neg(1e-29, 1e-27), q=neg(*CHARGE), A=both(1e-3, 1e-1), m=pos(*MASS)),
    _law("B4", "hard", 2, (2, "m^-1 E"), (-2, "m^-1 U"), (-1, "m^-2 L^2 r^-2"),
         m=pos(*COUNT), E=pos(1e25, 1e27), U=pos(1e25, 1e27), L=both(*GALAXY), r=pos(*GALAXY)),
    _law("B5", "hard", -2, (G / (4 * PI**2), "d^-3 m1"), (G / (4 * PI**2), "d^-3 m2"),
         d=pos(*GALAXY), m1=pos(*COUNT), m2=pos(*COUNT)),
    _law("B6", "hard", 2, (1, ""), (2, "eps E L^2 m^-1 Z1^-2 Z2^-2 q^-4"),
         eps=both(*ENERGY), E=pos(*ENERGY), L=pos(*LENGTH), m=pos(*MASS), Z1=whole(1, 10),
         Z2=whole(1, 10),
         q=both(*CHARGE)),
    _law("B7", "hard", 2, (8 * PI * G / 3, "rho"), (-(C**2), "alpha d^-2"),
         rho=pos(1e-28, 1e-26), alpha=whole(-1, 2, "both"), d=pos(1e25, 1e27)),
    _law("B9", "hard", 1, (-6.4 * G**4 / C**5, "m1^3 m2^2 r^-5"),
         (-6.4 * G**4 / C**5, "m1^2 m2^3 r^-5"),
         m1=pos(*COUNT), m2=pos(*COUNT), r=pos(*GALAXY)),
    _law("B17", "hard", 1, (0.5, "m^-1 p^2"), (0.5, "m w^2 x^2"), (0.5, "m w^2 alpha x^3 y^-1"),
         m=pos(*MASS), p=both(1e-9, 1e-7), w=both(*OMEGA), x=both(*CHARGE), alpha=both(*TENS),
         y=pos(*CHARGE)),
    _law("B19", "hard", 1, (-(C**4) / (8 * PI * G), "k r^-2"), (-(C**2) / (8 * PI * G), "H^2"),
         (C**2 / (4 * PI * G), "H^2 alpha"),
         k=both(1e1, 1e3), r=pos(*GALAXY), H=pos(1, 1e2), alpha=Range(-10, 10, sign="both")),
)  # fmt: skip

ANGLE, CIRCLE = ("sin", "cos"), Range(0, 2 * PI)


def _angles(law: Law, *angles: str, logarithms: str = "", function: str = "") -> Law:
    """The law with functions."""
    functions: dict[str, tuple[str, ...]] = dict.fromkeys(angles, ANGLE)
    functions |= dict.fromkeys(logarithms.split(), ("log",))
    name = law.name.removesuffix(" srsd")
    return replace(law, name=f"{name} srsdf", kind="srsdf", functions=functions, function=function)


WITH_FUNCTIONS = (
    _angles(_one("I.18.12", "easy", 1, "r F sin(t)", r=pos(*TENS), F=pos(*TENS), t=CIRCLE), "t"),
    _angles(_one("I.18.16", "easy", 1, "m r v sin(t)",
                 m=pos(*TENS), r=pos(*TENS), v=pos(*TENS), t=CIRCLE), "t"),
    _angles(_one("I.26.2", "easy", 1, "sin(t1) sin(t2)^-1", t1=Range(0, PI / 2),
                 t2=Range(0, PI / 2)), "t1", "t2"),
    _angles(_one("I.30.5", "easy", 1, "lambda n^-1 sin(t)^-1", **{"lambda": pos(1e-11, 1e-9)},
                 n=whole(1, 100), t=Range(0, PI / 2)), "t"),
    _angles(_one("II.15.4", "easy", -1, "m B cos(t)", m=both(1e-25, 1e-23), B=both(1e-3, 1e-1),
                 t=CIRCLE), "t"),
    _angles(_one("II.15.5", "easy", -1, "p E cos(t)", p=both(1e-22, 1e-20), E=both(1e1, 1e3),
                 t=CIRCLE), "t"),
    _angles(_law("I.12.11", "medium", 1, (1, "q E"), (1, "q B v sin(t)"), q=both(*TENS),
                 E=pos(*TENS), B=pos(*TENS), v=pos(*TENS), t=Range(0, PI / 2)), "t"),
    _angles(_one("II.6.11", "medium", 1 / (4 * PI * EPS), "p cos(t) r^-2", p=both(1e-22, 1e-20),
                 t=CIRCLE, r=pos(*LENGTH)), "t"),
    _angles(_one("III.4.32", "medium", HBAR / KB, "w T^-1", w=pos(1e8, 1e10),
                 T=pos(*TEMPERATURE)), function="log(1+1/y)"),
    _angles(_law("III.17.37", "medium", 1, (1, "b"), (1, "b a cos(t)"), b=pos(*ENERGY),
                 a=both(*ENERGY), t=CIRCLE), "t"),
    _angles(_law("B8", "medium", -1, (1, "E^-1"), (1 / (ELECTRON * C**2), ""),
                 (-1 / (ELECTRON * C**2), "cos(t)"), E=pos(1e-24, 1e-22),
                 t=Range(0, PI, sign="both")), "t"),
    _angles(_law("I.6.20", "hard", 1, (-0.5, "t^2 s^-2"), (-1, "log(s)"),
                 (-math.log(2 * PI) / 2, ""), t=both(*TENS), s=pos(*TENS)),
            logarithms="s", function="log"),
    _angles(_law("I.6.20a", "hard", 1, (-0.5, "t^2"), (-math.log(2 * PI) / 2, ""),
                 t=both(*TENS)), function="log"),
    _angles(_law("I.29.16", "hard", 2, (1, "x1^2"), (1, "x2^2"), (2, "x1 x2 cos(t1) cos(t2)"),
                 (2, "x1 x2 sin(t1) sin(t2)"), x1=pos(*TENS), x2=pos(*TENS), t1=CIRCLE,
                 t2=CIRCLE), "t1", "t2"),
    _angles(_law("I.37.4", "hard", 1, (1, "I1"), (1, "I2"), (2, "I1^0.5 I2^0.5 cos(d)"),
                 I1=pos(1e-3, 1e-1), I2=pos(1e-3, 1e-1), d=CIRCLE), "d"),
    _angles(_law("I.40.1", "hard", 1, (1, "log(n)"), (-GRAVITY / KB, "m x T^-1"),
                 n=pos(1e25, 1e27), m=pos(1e-24, 1e-22), x=both(1e-2, 1), T=pos(*TEMPERATURE)),
            logarithms="n m T", function="log"),
    _angles(_law("I.44.4", "hard", 1, (KB, "n T log(V2)"), (-KB, "n T log(V1)"),
                 n=pos(1e25, 1e27), T=pos(*TEMPERATURE), V2=pos(1e-5, 1e-3), V1=pos(1e-5, 1e-3)),
            logarithms="n T V2 V1"),
    _angles(_one("II.6.15b", "hard", 3 / (4 * PI * EPS), "p cos(t) sin(t) r^-3",
                 p=both(1e-22, 1e-20), t=Range(0, PI), r=pos(*LENGTH)), "t"),
    _angles(_law("II.11.17", "hard", 1, (1, "n"), (1 / KB, "n p E cos(t) T^-1"),
                 n=pos(1e27, 1e29), p=both(1e-22, 1e-20), E=both(1e1, 1e3), t=CIRCLE,
                 T=pos(*TEMPERATURE)), "t"),
    _angles(_law("B1", "hard", -0.5, (2 / (ALPHA * HBAR * C), "E Z1^-1 Z2^-1"),
                 (-2 / (ALPHA * HBAR * C), "E Z1^-1 Z2^-1 cos(t)"), Z1=whole(1, 10),
                 Z2=whole(1, 10), E=pos(*ENERGY), t=CIRCLE), "t"),
    _angles(_law("B20", "hard", 1, (KLEIN, "w0^3 w^-3"), (KLEIN, "w0 w^-1"),
                 (-KLEIN, "w0^2 w^-2 sin(b)^2"), w0=pos(*OMEGA), w=pos(*OMEGA), b=CIRCLE), "b"),
)  # fmt: skip


def mixed(law: Law) -> Law:
    """The law with one to three needless columns, of sizes from 1e-33 to 1e33, among the others."""
    generator = np.random.default_rng([120, *law.name.encode()])
    columns, ranges = list(law.inputs), dict(law.ranges)
    for k in range(int(generator.integers(1, 4))):
        columns.insert(int(generator.integers(len(law.inputs) + 1)), f"dummy{k}")
        decade = int(generator.integers(-32, 33))
        ranges[f"dummy{k}"] = Range(
            10.0 ** (decade - 1), 10.0 ** (decade + 1), "log", str(generator.choice(["+", "both"]))
        )
    return replace(law, name=f"{law.name} +", kind="srsdd", ranges=ranges, columns=tuple(columns))
