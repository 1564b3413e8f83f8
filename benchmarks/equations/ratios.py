"""Ratios of sums: laws of textbooks, with the ranges of measurements, and ratios that are drawn.

Class ratio: laws with names. Class dratio: one to three terms over two or three, with positive
terms below, and an input that is not needed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.equations.laws import ALL, Law, Range

RATIOS_DRAWN = 12  # drawn ratios of a seed
RATIOS = [law for law in ALL if law.kind == "ratio"]


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
    return replace(law, ranges=dict.fromkeys(columns, Range(0.3, 3.0, "log")), columns=columns)
