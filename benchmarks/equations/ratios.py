"""Ratios of sums: laws of textbooks, with the ranges of measurements, and ratios that are drawn.

Class ratio: laws with names. Class dratio: one to three terms over two or three, with positive
terms below, and an input that is not needed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.equations.laws import Law, Range

RATIOS_DRAWN = 12  # drawn ratios of a seed


def _ratio(name: str, above: str, below: str, power: float = 1.0, **ranges: Range) -> Law:
    """A law from texts such as "2 S, -1 S^2": terms with their coefficients first."""
    parts = []
    for text in (above, below):
        terms = [term.split(maxsplit=1) for term in text.split(", ")]
        parts.append(tuple((float(c), product[0] if product else "") for c, *product in terms))
    return Law(name, "ratio", parts[0], power, ranges, below=parts[1])


def _log(low: float, high: float) -> Range:
    return Range(low, high, "log")


DOSE, MASS, OHM = _log(0.05, 20.0), _log(0.5, 10.0), _log(10.0, 1000.0)
SPEED = Range(0.05, 0.9)  # of light's

RATIOS = (
    _ratio("Michaelis-Menten", "2 S", "0.5, 1 S", S=DOSE),
    _ratio("Michaelis-Menten, enzyme", "12 E S", "0.8, 1 S", S=DOSE, E=_log(0.1, 2.0)),
    _ratio("Hill", "3 S^2", "1.7, 1 S^2", S=DOSE),
    _ratio("Hill, basal", "0.2, 3 S^2", "1.7, 1 S^2", S=DOSE),
    _ratio("repressor, leaking", "4, 0.3 R^2", "1, 1 R^2", R=DOSE),
    _ratio("competitive inhibition", "2 S", "0.5, 1 S, 0.7 I", S=DOSE, I=_log(0.1, 5.0)),
    _ratio("uncompetitive inhibition", "2 S", "0.5, 1 S, 0.4 S I", S=DOSE, I=_log(0.1, 5.0)),
    _ratio("mixed inhibition", "2 S", "0.5, 1 S, 0.7 I, 0.4 S I", S=DOSE, I=_log(0.1, 5.0)),
    _ratio("substrate inhibition", "3 S", "0.5, 1 S, 0.25 S^2", S=DOSE),
    _ratio("Holling 2", "1.2 N P", "1, 0.3 N", N=_log(0.5, 50.0), P=Range(1.0, 9.0)),
    _ratio("Holling 3", "0.8 N^2", "1, 0.1 N^2", N=_log(0.5, 20.0)),
    _ratio("Beddington-DeAngelis", "1.5 N", "1, 0.4 N, 0.6 P", N=_log(0.5, 20.0), P=MASS),
    _ratio("two prey", "1.5 N, 0.7 M", "1, 0.4 N, 0.3 M", N=_log(0.3, 9.0), M=_log(0.3, 9.0)),
    _ratio("adsorption of two gases", "2 p", "1, 1.3 p, 0.6 q", p=_log(0.1, 9.0), q=_log(0.1, 9.0)),
    _ratio("thin lens", "1 f g", "1 g, -1 f", f=Range(1.0, 5.0), g=Range(8.0, 30.0)),
    _ratio("parallel resistors", "1 R S", "1 R, 1 S", R=OHM, S=OHM),
    _ratio("parallel and series", "1 R S, 1 R T, 1 S T", "1 S, 1 T", R=OHM, S=OHM, T=OHM),
    _ratio("voltage divider", "1 U S", "1 R, 1 S", U=Range(1.0, 12.0), R=OHM, S=OHM),
    _ratio("reduced mass", "1 m M", "1 m, 1 M", m=MASS, M=MASS),
    _ratio("energy of a pair", "0.5 m M v^2", "1 m, 1 M", m=MASS, M=MASS, v=Range(1.0, 5.0)),
    _ratio("centre of mass", "1 m x, 1 M z", "1 m, 1 M", m=MASS, M=MASS),
    _ratio("Atwood", "9.81 M, -9.81 m", "1 m, 1 M", m=Range(0.1, 0.9), M=Range(1.0, 3.0)),
    _ratio("elastic collision", "1 m u, -1 M u, 2 M v", "1 m, 1 M", m=MASS, M=MASS,
           u=Range(-5.0, 5.0, sign="+"), v=Range(-5.0, 5.0, sign="+")),
    _ratio("sum of velocities", "1 u, 1 v", "1, 1 u v", u=SPEED, v=SPEED),
    _ratio("sum of velocities, two signs", "1 u, 1 v", "1, 1 u v", u=Range(-0.9, 0.9),
           v=Range(-0.9, 0.9)),
    _ratio("I.16.6", "1 u c^2, 1 v c^2", "1 c^2, 1 u v"),
    _ratio("Doppler", "1 f^2, -1 f^2 b", "1, 1 b", 2.0, f=Range(1.0, 5.0), b=SPEED),
    _ratio("I.34.14", "1 w^2 c, 1 w^2 v", "1 c, -1 v", 2.0, v=Range(1.0, 2.0), c=Range(3.0, 10.0)),
    _ratio("II.11.28", "1, 0.666666666666666667 n a", "1, -0.333333333333333333 n a",
           n=Range(0.1, 1.0), a=Range(0.1, 1.0)),
    _ratio("Fresnel", "1 n, -1 m", "1 n, 1 m", n=Range(1.0, 3.0), m=Range(1.0, 3.0)),
    _ratio("van der Waals", "8.314 T, -0.364 V^-1, 1.5652e-5 V^-2", "1 V, -4.3e-5",
           T=Range(250.0, 500.0), V=_log(1e-4, 1e-2)),
    _ratio("Debye relaxation", "80, 0.3 w^2", "1, 0.06 w^2", w=_log(0.1, 60.0)),
    _ratio("Pade", "1, 2 x", "3, 1 x^2", x=Range(0.1, 5.0)),
    _ratio("wing", "6.2832 A", "2, 1 A", A=_log(0.5, 20.0)),
)  # fmt: skip


def drawn_ratio(seed: int) -> Law:
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
    law = Law(f"drawn ratio {seed}", "dratio", tuple(above), below=tuple(below))
    columns = (*law.inputs, "x9")
    return replace(law, ranges=dict.fromkeys(columns, _log(0.3, 3.0)), columns=columns)
