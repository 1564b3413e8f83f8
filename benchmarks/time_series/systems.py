"""The systems of ODEBench and of SRBench's Strogatz part, their constants and starts.

Equations are those of textbooks: pages are of S. H. Strogatz, "Nonlinear Dynamics and Chaos".
Numbers and starts are those of S. d'Ascoli, S. Becker, A. Mathis, P. Schwaller and N. Kilbertus,
"ODEFormer: Symbolic Regression of Dynamical Systems with Transformers" (ICLR 2024), whose
repository sdascoli/odeformer has them in odeformer/odebench/strogatz_equations.py. Each system is
solved from each of its two starts at 150 times from 0 to 10.

SRBench's seven systems are those that W. La Cava, K. Danai and L. Spector ("Inference of compact
nonlinear dynamic models by epigenetic local search", 2016) took from the same book: the repository
lacava/ode-strogatz has the data, at 100 times from 0 to 9.9, of whose
four series the first two begin at the starts here. Their numbers here begin at 101.
"""

from __future__ import annotations

from typing import NamedTuple


class System(NamedTuple):
    """A system of differential equations."""

    number: int  # in ODEBench, or above 100
    source: str  # a page of Strogatz's book, or an address
    equations: str  # right-hand sides, with the states x0, x1, .. and the constants c0, c1, ..
    constants: tuple[float, ...]
    starts: tuple[tuple[float, ...], tuple[float, ...]]


SYSTEMS = (
    System(1, "page 20", "(c0 - x0 / c1) / c2", (0.7, 1.2, 2.31), ((10.0,), (3.54,))),
    System(2, "page 22", "c0 * x0", (0.23,), ((4.78,), (0.87,))),
    System(3, "page 22", "c0 * x0 * (1 - x0 / c1)", (0.79, 74.3), ((7.3,), (21.0,))),
    System(4, "page 38", "1 / (1 + exp(c0 - x0 / c1)) - 0.5", (0.5, 0.96), ((0.8,), (0.02,))),
    System(5, "page 38", "c0 - c1 * x0**2", (9.81, 0.0021175), ((0.5,), (73.0,))),
    System(6, "page 39", "c0 * x0 - c1 * x0**2", (2.1, 0.5), ((0.13,), (2.24,))),
    System(7, "page 39", "c0 * x0 * log(c1 * x0)", (0.032, 2.29), ((1.73,), (9.5,))),
    System(
        8,
        "page 39",
        "c0 * x0 * (1 - x0 / c1) * (x0 / c2 - 1)",
        (0.14, 130.0, 4.4),
        ((6.123,), (2.1,)),
    ),
    System(9, "page 40", "(1 - x0) * c0 - x0 * c1", (0.32, 0.28), ((0.14,), (0.55,))),
    System(
        10,
        "page 40",
        "(1 - x0) * c0 * x0**c1 - x0 * (1 - c0) * (1 - x0)**c1",
        (0.2, 1.2),
        ((0.83,), (0.34,)),
    ),
    System(11, "page 41", "-x0**3", (), ((3.4,), (1.6,))),
    System(12, "page 55", "c0 * x0 - c1 * x0**2", (1.8, 0.1107), ((11.0,), (1.3,))),
    System(13, "page 63", "c0 * sin(x0) * (c1 * cos(x0) - 1)", (0.0981, 9.7), ((3.1,), (2.4,))),
    System(
        14,
        "page 75",
        "c0 * x0 * (1 - x0 / c1) - c3 * x0**2 / (c2**2 + x0**2)",
        (0.78, 81.0, 21.2, 0.9),
        ((2.76,), (23.3,)),
    ),
    System(
        15,
        "page 76",
        "c0 * x0 * (1 - x0 / c1) - x0**2 / (1 + x0**2)",
        (0.4, 95.0),
        ((44.3,), (4.5,)),
    ),
    System(
        16, "page 87", "c0 * x0 - c1 * x0**3 - c2 * x0**5", (0.1, -0.04, 0.001), ((0.94,), (1.65,))
    ),
    System(17, "page 89", "c0 * x0 * (1 - x0 / c1) - c2", (0.4, 100.0, 0.3), ((14.3,), (34.2,))),
    System(
        18,
        "page 90",
        "c0 * x0 * (1 - x0 / c1) - c2 * x0 / (c3 + x0)",
        (0.4, 100.0, 0.24, 50.0),
        ((21.1,), (44.1,)),
    ),
    System(19, "page 90", "x0 * (1 - x0) - c0 * x0 / (c1 + x0)", (0.08, 0.8), ((0.13,), (0.03,))),
    System(20, "page 91", "c0 - c1 * x0 + x0**2 / (1 + x0**2)", (0.1, 0.55), ((0.002,), (0.25,))),
    System(21, "page 92", "c0 - c1 * x0 - exp(-x0)", (1.2, 0.2), ((0.0,), (0.8,))),
    System(
        22,
        "page 93",
        "c0 + c1 * x0**5 / (c2 + x0**5) - c3 * x0",
        (1.4, 0.4, 123.0, 0.89),
        ((3.1,), (6.3,)),
    ),
    System(23, "page 104", "c0 - sin(x0)", (0.21,), ((-2.74,), (1.65,))),
    System(24, "page 126", "x1; -c0 * x0", (2.1,), ((0.4, -0.03), (0.0, 0.2))),
    System(25, "page 144", "x1; -c0 * x0 -c1 * x1", (4.5, 0.43), ((0.12, 0.043), (0.0, -0.3))),
    System(
        26,
        "page 157",
        "x0 * (c0 - x0 - c1 * x1); x1 * (c2 - x0 - x1)",
        (3.0, 2.0, 2.0),
        ((5.0, 4.3), (2.3, 3.6)),
    ),
    System(
        27,
        "https://en.wikipedia.org/wiki/Lotka-Volterra_equations",
        "x0 * (c0 - c1 * x1); -x1 * (c2 -c3 * x0)",
        (1.84, 1.45, 3.0, 1.62),
        ((8.3, 3.4), (0.4, 0.65)),
    ),
    System(28, "page 169", "x1; -c0 * sin(x0)", (0.9,), ((-1.9, 0.0), (0.3, 0.8))),
    System(29, "page 181", "c0 * x0 * x1; x1**2 - x0**2", (0.65,), ((3.2, 1.4), (1.3, 0.2))),
    System(
        30,
        "page 187",
        "x0 * (x1 - c0 * x0 * x1); x1 * (x0 - c0 * x0 * x1)",
        (1.61,),
        ((0.3, 0.04), (0.1, 0.21)),
    ),
    System(
        31,
        "page 188",
        "-c0 * x0 * x1; c0 * x0 * x1 - c1 * x1",
        (0.4, 0.314),
        ((7.2, 0.98), (20.0, 12.4)),
    ),
    System(32, "page 190", "x1; -c0 * x1 + x0 -x0**3", (0.18,), ((-1.8, -1.8), (5.8, 0.0))),
    System(
        33,
        "page 190",
        "-sin(x1) -c0 * x0**2; x0 - cos(x1) / x0",
        (0.08,),
        ((5.0, 0.7), (9.81, -0.8)),
    ),
    System(34, "page 191", "x1; sin(x0) * (cos(x0) - c0)", (0.93,), ((2.1, 0.0), (-1.2, -0.2))),
    System(
        35,
        "page 194",
        "cot(x1) * cos(x0); sin(x0) * (cos(x1)**2 + c0 * sin(x1)**2)",
        (4.2,),
        ((1.13, -0.3), (2.4, 1.7)),
    ),
    System(
        36, "page 195", "x1; -sin(x0) -x1 -c0 * cos(x0) * x1", (0.07,), ((0.45, 0.9), (1.34, -0.8))
    ),
    System(37, "page 200", "x1; -x0 -c0 * (x0**2 - 1) * x1", (0.43,), ((2.2, 0.0), (0.1, 3.2))),
    System(
        38,
        "page 214",
        "c0 * (x1 - (x0**3 - x0) / 3); -x0 / c0",
        (3.37,),
        ((0.7, 0.0), (-1.1, -0.7)),
    ),
    System(
        39,
        "page 207",
        "-x0 + c0 * x1 + x0**2 * x1; c1 - c0 * x0 - x0**2 * x1",
        (2.4, 0.07),
        ((0.4, 0.31), (0.2, -0.7)),
    ),
    System(40, "page 217", "x1; -x0 + c0 * x1 * (1 -x0**2)", (0.886,), ((0.63, -0.03), (0.2, 0.2))),
    System(
        41,
        "page 238",
        "c0 * (x1 - x0) * (c1 + x0**2) - x0; c2 - x0",
        (15.3, 0.001, 0.3),
        ((0.8, 0.3), (0.02, 1.2)),
    ),
    System(
        42,
        "page 260",
        "c0 - x0 - c1 * x0 * x1 / (1 + x0**2); c2 * x0 * (1 - x1 / (1 + x0**2))",
        (8.9, 4.0, 1.4),
        ((0.2, 0.35), (3.0, 7.8)),
    ),
    System(
        43, "page 269", "x1; c0 - sin(x0) - c1 * x1", (1.67, 0.64), ((1.47, -0.2), (-1.9, 0.03))
    ),
    System(
        44,
        "page 300",
        "x1; c0 - sin(x0) - c1 * x1 * abs(x1)",
        (1.67, 0.64),
        ((1.47, -0.2), (-1.9, 0.03)),
    ),
    System(
        45,
        "page 288",
        "c0 * (1 - x0) - x0 * x1**2; x0 * x1**2 - c1 * x1",
        (0.5, 0.02),
        ((1.4, 0.2), (0.32, 0.64)),
    ),
    System(
        46,
        "page 289",
        "c0 * sin(x0 - x1) - sin(x0); c0 * sin(x1 - x0) - sin(x1)",
        (0.33,),
        ((0.54, -0.1), (0.43, 1.21)),
    ),
    System(
        47,
        "page 290",
        "-x0 + 1 / (1 + exp(c0 * x1 -c1)); -x1 + 1 / (1 + exp(c0 * x0 -c1))",
        (4.89, 1.4),
        ((0.65, 0.59), (3.2, 10.3)),
    ),
    System(
        48,
        "page 293",
        "c0 - x0 - x0 * x1 / (1 + c1 * x0**2); c2 - x0 * x1 / (1 + c1 * x0**2)",
        (18.3, 0.48, 11.23),
        ((0.1, 30.4), (13.2, 5.21)),
    ),
    System(
        49,
        "page 296",
        "1 - (c0 + 1) * x0 + c1 * x0**2 * x1; c0 * x0 - c1 * x0**2 * x1",
        (3.03, 3.1),
        ((0.7, -1.4), (2.1, 1.3)),
    ),
    System(
        50,
        "page 296",
        "c0 - x0 + x0**2 * x1; c1 - x0**2 * x1",
        (0.24, 1.43),
        ((0.14, 0.6), (1.5, 0.9)),
    ),
    System(
        51,
        "page 301",
        "c0 + sin(x1) * cos(x0); c1 + sin(x1) * cos(x0)",
        (1.432, 0.972),
        ((2.2, 0.67), (0.03, -0.12)),
    ),
    System(
        52,
        "page 82",
        "c0 * (x1 - x0); c1 * (x0 * x2 - x1); c2 * (c3 + 1 - x2 - c3 * x0 * x1)",
        (0.1, 0.21, 0.34, 3.1),
        ((1.3, 1.1, 0.89), (0.89, 1.3, 1.1)),
    ),
    System(
        53,
        "https://epubs.siam.org/doi/10.1137/20M1318043",
        "c0 - c5 * x1 * x0 / (c9 + x0) - c4 * x0; "
        "c1 * x2 * (c8 + x1) - c2 * x1 / (c6 + x1) - c3 * x0 * x1 / (c7 + x1); "
        "-c1 * x2 * (c8 + x1) + c2 * x1 / (c6 + x1) + c3 * x0 * x1 / (c7 + x1)",
        (0.1, 0.6, 0.2, 7.95, 0.05, 0.4, 0.1, 2.0, 0.1, 0.1),
        ((0.005, 0.26, 2.15), (0.248, 0.0973, 0.0027)),
    ),
    System(
        54,
        "page 319",
        "c0 * (x1 - x0); c1 * x0 - x1 - x0 * x2; x0 * x1 - c2 * x2",
        (5.1, 12.0, 1.67),
        ((2.3, 8.1, 12.4), (10.0, 20.0, 30.0)),
    ),
    System(
        55,
        "page 319",
        "c0 * (x1 - x0); c1 * x0 - x1 - x0 * x2; x0 * x1 - c2 * x2",
        (10.0, 99.96, 2.6666666666666665),
        ((2.3, 8.1, 12.4), (10.0, 20.0, 30.0)),
    ),
    System(
        56,
        "page 319",
        "c0 * (x1 - x0); c1 * x0 - x1 - x0 * x2; x0 * x1 - c2 * x2",
        (10.0, 28.0, 2.6666666666666665),
        ((2.3, 8.1, 12.4), (10.0, 20.0, 30.0)),
    ),
    System(
        57,
        "https://en.wikipedia.org/wiki/Rössler_attractor",
        "c3 * (- x1 - x2); c3 * (x0 + c0 * x1); c3 * (c1 + x2 * (x0 - c2))",
        (-0.2, 0.2, 5.7, 5.0),
        ((2.3, 1.1, 0.8), (-0.1, 4.1, -2.1)),
    ),
    System(
        58,
        "https://en.wikipedia.org/wiki/Rössler_attractor",
        "c3 * (- x1 - x2); c3 * (x0 + c0 * x1); c3 * (c1 + x2 * (x0 - c2))",
        (0.1, 0.2, 5.7, 5.0),
        ((2.3, 1.1, 0.8), (-0.1, 4.1, -2.1)),
    ),
    System(
        59,
        "https://en.wikipedia.org/wiki/Rössler_attractor",
        "c3 * (- x1 - x2); c3 * (x0 + c0 * x1); c3 * (c1 + x2 * (x0 - c2))",
        (0.2, 0.2, 5.7, 5.0),
        ((2.3, 1.1, 0.8), (-0.1, 4.1, -2.1)),
    ),
    System(
        60,
        "https://analogparadigm.com/downloads/alpaca_17.pdf",
        "x0 * (x2 - c1) - c3 * x1; "
        "c3 * x0 + x1 * (x2 - c1); "
        "c2 + c0 * x2 - x2**3 / 3. - (x0**2 + x1**2) * (1 + c4 * x2) + c5 * x2 * x0**3",
        (0.95, 0.7, 0.65, 3.5, 0.25, 0.1),
        ((0.1, 0.05, 0.05), (-0.3, 0.2, 0.1)),
    ),
    System(
        61,
        "https://doi.org/10.1016/j.chaos.2003.12.034",
        "c0 * x0 - x1 * x2; c1 * x1 + x0 * x2; c2 * x2 + x0 * x1 / c3",
        (5.0, -10.0, -3.8, 3.0),
        ((15.0, -15.0, -15.0), (8.0, 14.0, -10.0)),
    ),
    System(
        62,
        "page 295",
        "-x0 + 1 / (1 + exp(c0 * x2 + c1 * x1 -c2)); "
        "c3 * (x0 - x1); "
        "-x2 + 1 / (1 + exp(c0 * x0 + c1 * x3 -c2)); "
        "c3 * (x2 - x3)",
        (0.89, 0.4, 1.4, 1.0),
        ((2.25, -0.5, -1.13, 0.4), (0.342, -0.431, -0.86, 0.041)),
    ),
    System(
        63,
        "https://de.wikipedia.org/wiki/SEIR-Modell",
        "-c1 * x0 * x2; c1 * x0 * x2 - c0 * x1; c0 * x1 - c2 * x2; c2 * x2",
        (0.47, 0.28, 0.3),
        ((0.6, 0.3, 0.09, 0.01), (0.4, 0.3, 0.25, 0.05)),
    ),
)

STROGATZ = (
    System(
        101,
        "bacterial respiration, page 288",
        "c0 - x0 - x0 * x1 / (1 + c1 * x0**2); c2 - x0 * x1 / (1 + c1 * x0**2)",
        (20.0, 0.5, 10.0),
        ((9.015027, 12.801506), (3.485402, 13.070066)),
    ),
    System(
        102,
        "bar magnets, page 286",
        "c0 * sin(x0 - x1) - sin(x0); c0 * sin(x1 - x0) - sin(x1)",
        (0.5,),
        ((4.264619, 4.761022), (4.669239, 2.464435)),
    ),
    System(
        103,
        "glider, page 188",
        "-c0 * x0**2 - sin(x1); x0 - cos(x1) / x0",
        (0.05,),
        ((5.603273, 1.85512), (2.465532, 0.872157)),
    ),
    System(
        104,
        "competition, page 156",
        "c0 * x0 - c1 * x0 * x1 - x0**2; c1 * x1 - x0 * x1 - x1**2",
        (3.0, 2.0),
        ((1.0, 3.0), (4.0, 1.0)),
    ),
    System(
        105,
        "predator and prey, page 288",
        "x0 * (c0 - x0 - x1 / (1 + x0)); x1 * (x0 / (1 + x0) - c1 * x1)",
        (4.0, 0.075),
        ((4.860708, 11.506947), (6.580963, 11.433603)),
    ),
    System(
        106,
        "shear flow, page 192",
        "cos(x1) / sin(x1) * cos(x0); (cos(x1)**2 + c0 * sin(x1)**2) * sin(x0)",
        (0.1,),
        ((-1.401634, -1.425745), (-2.531296, 1.016173)),
    ),
    System(
        107,
        "van der Pol, page 212",
        "c0 * (x1 - (x0**3 - x0) / 3); -x0 / c0",
        (10.0,),
        ((0.357301, 0.216698), (0.67728, 0.736015)),
    ),
)
