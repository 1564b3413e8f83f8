"""Pictures of candidates and residuals. Needs matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np

from npu_kernels.equations._table.equation import Equation
from npu_kernels.equations._table.table import EquationTable

Array = Any


def draw(
    table: EquationTable, equation: Equation, prediction: Array | None, y: Array | None
) -> Any:
    """Draw the error over the number of terms.

    With predictions, also y over them, and the residuals.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install matplotlib") from error
    count = 1 if prediction is None else 3
    figure = Figure(figsize=(4 * count, 3.5), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    axes[0].semilogy([e.terms for e in table], [max(e.error, 1e-17) for e in table], "o-")
    ring: dict[str, Any] = {"markersize": 12, "fillstyle": "none", "color": "black"}
    axes[0].plot([equation.terms], [max(equation.error, 1e-17)], "o", **ring)
    axes[0].set_xticks([e.terms for e in table])
    axes[0].set(xlabel="terms", ylabel="error on rows not fitted, relative", title=equation.output)
    if prediction is not None and y is not None:
        axes[1].plot(prediction, y, ".", markersize=3)
        limits = [float(np.nanmin(prediction)), float(np.nanmax(prediction))]
        axes[1].plot(limits, limits, "k-", linewidth=0.8)
        title = equation.text() if len(equation.text()) < 50 else ""
        axes[1].set(xlabel="predicted", ylabel="observed", title=title)
        axes[2].plot(prediction, y - prediction, ".", markersize=3)
        axes[2].axhline(0, color="black", linewidth=0.8)
        axes[2].set(xlabel="predicted", ylabel="observed - predicted")
    return figure
