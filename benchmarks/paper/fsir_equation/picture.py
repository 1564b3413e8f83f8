"""The figure of the search for the equation: its weights, and its trajectory on the data."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.drawing import figure, headline, save
from benchmarks.paper.experiment import Sources
from benchmarks.paper.fsir.picture import diagram, trajectories


def picture(sources: Sources, path: Path) -> bool:
    """False if no start has found the equation."""
    chosen = json.loads(sources.models.read_text())
    if "found" not in chosen:
        return False
    drawing, axes = figure(2, 1, 7)
    best = {**chosen["found"], "model": "RealNPU", "integrator": "rk4", "beta": 0.0}
    trajectories(axes[0, 0], {"RealNPU": best})
    diagram(axes[1, 0], best)
    headline(
        drawing,
        "The equation that was found in 40 points of the fractional SIR model",
        "Diagram: powers of S, I and R (right), rates of the terms (left).",
    )
    save(drawing, path)
    return True
