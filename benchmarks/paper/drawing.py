"""The parts of all figures: matplotlib without a display, a headline, the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SUFFIXES = ("png", "svg", "pdf")


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def figure(
    rows: int, columns: int, size: tuple[float, float], share: bool = False
) -> tuple[Any, Any]:
    """A figure of `size` inches, its axes ``[rows][columns]``; `share`: rows share their axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(drawing)
    shared: Any = "row" if share else False
    return drawing, drawing.subplots(rows, columns, squeeze=False, sharey=shared)


def headline(drawing: Any, title: str, look_for: str) -> None:
    """Set what the figure shows, and below it what to look for."""
    drawing.suptitle(title, fontsize=13, fontweight="bold")
    drawing.supxlabel(look_for, fontsize=10.5, color="0.25")


def save(drawing: Any, path: Path) -> None:
    """Write the format of the path's suffix; the same figure gives the same file."""
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(path.suffix[1:], {})
    drawing.savefig(path, dpi=110, metadata=metadata)
