"""The error surface of part (b) as a PNG, or the reason why there is none (without matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

LEAST, GREATEST = -4.0, 2.0  # of log10 |error|, as in the paper's figure

# Title, points [B, 2] of a square grid with x as the slow axis, absolute errors [B].
Panel = tuple[str, Tensor, Tensor]


def error_surface(path: Path, panels: Sequence[Panel], training: tuple[float, float]) -> str:
    """Draw the panels beside one another, the training square outlined; return why not, or ""."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        return "matplotlib is not installed (pip install matplotlib)"
    figure = Figure(figsize=(4 * len(panels), 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    low, high = training
    for axis, (title, points, errors) in zip(axes, panels, strict=True):
        side = round(len(points) ** 0.5)
        x, y = (points[:, i].reshape(side, side).numpy() for i in (0, 1))
        level = errors.clamp(min=1e-30).log10().clamp(LEAST, GREATEST).reshape(side, side).numpy()
        colors = {"vmin": LEAST, "vmax": GREATEST, "cmap": "inferno", "shading": "nearest"}
        surface = axis.pcolormesh(x, y, level, **colors)
        look: dict[str, Any] = {"fill": False, "edgecolor": "white", "linewidth": 1.5}
        axis.add_patch(Rectangle((low, low), high - low, high - low, **look))
        axis.set(title=title, xlabel="x", ylabel="y", aspect="equal")
    figure.colorbar(surface, ax=axes, label="log10 |error|")
    figure.suptitle("Best seed; the white square is the training range")
    figure.savefig(path, dpi=110)
    return ""
