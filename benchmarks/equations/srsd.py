"""The equations of SRSD that `NPURegressor` can represent, and all laws of the benchmark.

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
`WITH_FUNCTIONS`. `SRSD_RATIOS` has nine more, ``y**p = sum / sum``, and `MANY_TERMS` three sums of
more than four terms. `OTHERS` has the rest. A root has one sign: where y has both and p is even,
y**p does not tell it. With p = -1 it does. As in SRSD, rows whose y is not a real number are drawn
again.

Class srsd: as they are. srsdd: with one to three dummy columns of random sizes at random places.
srsdf: with functions. `NPURegressor` is told there which inputs are angles, which may have
logarithms (all that are positive, if the law has one), and whether y may have a function. srsdr:
ratios, with angles told. srsdm: more than four terms, with their number as max_terms.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.equations.laws import (
    ALL,
    LAWS,
    RATIOS,
    RATIOS_DRAWN,
    SUMS,
    Law,
    Range,
    drawn,
    drawn_ratio,
    with_dummies,
    with_wild_rows,
)

OTHERS = {
    "a function of several inputs, or beside one of y": (
        "I.30.3 I.41.16 I.50.26 II.35.18 II.35.21 III.4.33 III.8.54 III.9.52 III.14.14 III.15.12 "
        "B2 B11"
    ),
    "a product of sums, or a root beside a term": "B12 B16",
    "an even power, and y of both signs": "I.15.3x I.15.10 II.6.15a III.10.19 B13",
}
SRSD = [law for law in ALL if law.kind == "srsd"]
WITH_FUNCTIONS = [law for law in ALL if law.kind == "srsdf"]
SRSD_RATIOS = [law for law in ALL if law.kind == "srsdr"]
MANY_TERMS = [law for law in ALL if law.kind == "srsdm"]


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


def laws_of(seed: int) -> list[Law]:
    """All laws; a seed has sums and ratios of its own."""
    sums = [drawn(SUMS * seed + k) for k in range(SUMS)]
    ratios = [drawn_ratio(RATIOS_DRAWN * seed + k) for k in range(RATIOS_DRAWN)]
    listed_laws = [*LAWS, *map(with_dummies, LAWS), *SRSD, *map(mixed, SRSD)]
    wild = [with_wild_rows(law) for law in (*LAWS, *sums) if law.kind in ("a", "b", "sum")]
    listed_laws += [*WITH_FUNCTIONS, *RATIOS, *SRSD_RATIOS, *MANY_TERMS]
    return [*listed_laws, *sums, *ratios, *wild]
