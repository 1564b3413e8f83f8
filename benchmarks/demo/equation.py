"""Part (d): an equation from a table of measurements in SI units, with its uncertainty.

Heights of stones thrown upwards on three planets, measured to 20 cm. The regressor knows the units
and nothing else.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

ROWS, ERROR = 200, 0.2


def measurements() -> tuple[np.ndarray, np.ndarray]:
    """Speeds in m/s, gravities in m/s^2 and times in s ``[N, 3]``, and heights in m ``[N]``."""
    draw = np.random.default_rng(0)
    speed, after = draw.uniform(5, 30, ROWS), draw.uniform(0.1, 3, ROWS)
    gravity = draw.choice([1.62, 3.72, 9.81], ROWS)
    height = speed * after - gravity * after**2 / 2 + ERROR * draw.standard_normal(ROWS)
    return np.column_stack([speed, gravity, after]), height


def run() -> Any:
    """Find the equation and report on it; None where a package is missing."""
    print("(d) an equation from a table: heights of thrown stones")
    print(
        f"    {ROWS} rows of speed, gravity and time on the Moon, Mars and the Earth; heights "
        "measured to 20 cm"
    )
    try:
        import pandas
        import pint  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        print(f"    Left out: {error}. pip install pandas pint 'npu_kernels[sklearn]'")
        return None
    from npu_kernels import NPURegressor

    X, height = measurements()
    begin = time.perf_counter()
    model = NPURegressor(X_units=["m/s", "m/s^2", "s"], y_units="m", random_state=0)
    model.fit(
        pandas.DataFrame(X, columns=["speed", "gravity", "time"]),
        pandas.Series(height, name="height"),
    )
    for line in model.report().splitlines():
        print(f"    {line}" if line else "")
    print(
        "    The equation is height = speed*time - gravity*time**2/2. Found in "
        f"{time.perf_counter() - begin:.1f} s."
    )
    return model
