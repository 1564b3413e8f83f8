"""The error surface of part (b) as a PNG, or the reason why there is none (without matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from benchmarks.drawing import BOX, ERRORS, available, figure, headline, save

LEAST, GREATEST = -4.0, 2.0  # of log10 |error|, as in the paper's figure

# Title, points [B, 2] of a square grid with x as the slow axis, absolute errors [B].
Panel = tuple[str, Tensor, Tensor]


def error_surface(path: Path, panels: Sequence[Panel], training: tuple[float, float]) -> str:
    """Draw the panels beside one another, the training square outlined; return why not, or ""."""
    if not available():
        return "matplotlib is not installed (pip install matplotlib)"
    from matplotlib.patches import Rectangle

    drawing, axes = figure(1, len(panels), 3.9, share="row")
    low, high = training
    for axis, (title, points, errors) in zip(axes[0], panels, strict=True):
        side = round(len(points) ** 0.5)
        x, y = (points[:, i].reshape(side, side).numpy() for i in (0, 1))
        level = errors.clamp(min=1e-30).log10().clamp(LEAST, GREATEST).reshape(side, side).numpy()
        colors = {"vmin": LEAST, "vmax": GREATEST, "cmap": ERRORS, "shading": "nearest"}
        surface = axis.pcolormesh(x, y, level, **colors)
        axis.add_patch(Rectangle((low, low), high - low, high - low, **BOX))
        axis.set(title=title, xlabel="x", aspect="equal")
    axes[0][0].set_ylabel("y")
    where = {"location": "bottom", "shrink": 0.8, "aspect": 30}
    drawing.colorbar(surface, ax=list(axes[0]), label="log10 |error|", **where)
    headline(drawing, "Error of the best seed inside and outside of the training range (box)")
    save(drawing, path)
    return ""
