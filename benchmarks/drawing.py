"""The parts of all figures: matplotlib without a display, sizes, colours, a headline, the file.

A figure is as wide as a page's text, and a phone shows it at half of that: one idea each, letters
of at least 9 points.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SUFFIXES = ("png", "svg", "pdf")
WIDTH = 5.2  # inches
LETTERS = 9  # points
ERRORS = "inferno_r"  # colours of errors: light is small
BOX: dict[str, Any] = {"fill": False, "edgecolor": "deepskyblue", "linewidth": 2}  # training range
# One colour for one program.
COLORS = {
    "npu_kernels": "tab:blue", "NPURegressor": "tab:blue", "ode.fit": "tab:blue",
    "eager": "0.5", "compile": "tab:orange", "strongest": "tab:red",
    "jax": "tab:green", "pysindy": "tab:green",
    "gplearn": "tab:red", "pyoperon": "tab:purple", "logarithms": "tab:brown",
}  # fmt: skip


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def figure(rows: int, columns: int, height: float, share: bool | str = False) -> tuple[Any, Any]:
    """A figure of `height` inches, its axes ``[rows][columns]``.

    share: "row", "col" or "all" for axes that share their scales.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Texts take their sizes when they are made, also later ones.
    matplotlib.rc("font", size=LETTERS)
    matplotlib.rc("axes", titlesize=LETTERS, labelsize=LETTERS)
    matplotlib.rc("legend", fontsize=LETTERS)
    for ticks in ("xtick", "ytick"):
        matplotlib.rc(ticks, labelsize=LETTERS)
    drawing = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(drawing)
    shared: Any = share
    along: Any = share if share != "row" else False
    return drawing, drawing.subplots(rows, columns, squeeze=False, sharey=shared, sharex=along)


def headline(drawing: Any, title: str, look_for: str = "") -> None:
    """Set what the figure shows, and below it what to look for."""
    drawing.suptitle(textwrap.fill(title, 60), fontsize=LETTERS + 1, fontweight="bold")
    if look_for:
        drawing.supxlabel(textwrap.fill(look_for, 80), fontsize=LETTERS, color="0.25")


def legend(axis: Any, columns: int, lines_of_title: int = 1) -> None:
    """Put the legend above the axes and their title."""
    axis.legend(
        loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.7 + 1.5 * lines_of_title,
        ncols=columns, frameon=False, columnspacing=1.2,
    )  # fmt: skip


def error_map(
    axis: Any, points: Any, errors: Any, decades: tuple[int, int], box: tuple[float, float]
) -> Any:
    """Draw errors ``[N, N]`` over points ``[N]`` of x and y, two levels a decade, and the box."""
    from matplotlib.patches import Rectangle

    low, high = decades
    levels = [low + step / 2 for step in range(2 * (high - low) + 1)]
    shown, x = errors.clamp(10.0**low, 10.0**high).log10().T.numpy(), points.numpy()
    drawn = axis.contourf(x, x, shown, levels, cmap=ERRORS)
    axis.add_patch(Rectangle((box[0], box[0]), box[1] - box[0], box[1] - box[0], **BOX))
    return drawn


def scale(drawing: Any, axes: Any, drawn: Any, label: str, ticks: Mapping[float, str]) -> None:
    """Draw the scale of colours below all axes, with texts at some of its values."""
    where = {"location": "bottom", "shrink": 0.8, "aspect": 30, "ticks": list(ticks)}
    drawing.colorbar(drawn, ax=axes, label=label, **where).ax.set_xticklabels(ticks.values())


def save(drawing: Any, path: Path) -> None:
    """Write the format of the path's suffix; the same figure gives the same file."""
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(path.suffix[1:], {})
    drawing.savefig(path, dpi=200, metadata=metadata)
