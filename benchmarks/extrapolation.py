"""The README's picture: how the layer extrapolates.

    python -m benchmarks.extrapolation --out docs/images/extrapolation.png

Made from the trained models in `results/paper` only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.arguments import command
from benchmarks.drawing import available, error_map, figure, headline, save, scale
from benchmarks.paper.registry import TABLES
from benchmarks.paper.simple import task as simple

MODELS = Path(__file__).parent / "results" / "paper" / TABLES["simple"].models_file
SHOWN = {"Dense": "dense network", "RealNPU": "RealNPU, then NAU"}
TASK, FORMULA = "div", "x / y"


def draw(models: dict[str, list[float]], path: Path) -> None:
    """Draw two maps of errors beside one another, and the scale of both below."""
    # Without 0, where x / y has no value.
    points = torch.arange(81, dtype=torch.float64).mul(0.1).sub(4.05)
    drawing, axes = figure(1, 2, 3.9, share="row")
    for axis, (model, title) in zip(axes[0], SHOWN.items(), strict=True):
        error = simple.surface(model, torch.tensor(models[model]), TASK, points)
        drawn = error_map(axis, points, error, (-3, 1), simple.TRAINING)
        axis.set(title=title, xlabel="x", aspect="equal")
    axes[0][0].set_ylabel("y")
    ticks: dict[float, str] = {-3: "≤ 0.001", -2: "0.01", -1: "0.1", 0: "1", 1: "≥ 10"}
    scale(drawing, list(axes[0]), drawn, "absolute error", ticks)
    headline(drawing, f"Error of {FORMULA}, trained in the blue box")
    save(drawing, path)


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the picture; return the exit status."""
    parser = command("benchmarks.extrapolation", __doc__)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a .png, .svg or .pdf file"
    )
    options = parser.parse_args(argv)
    if not available():
        print("extrapolation: it needs matplotlib (pip install matplotlib)", file=sys.stderr)
        return 1
    try:
        draw(json.loads(MODELS.read_text())["models"], options.out)
    except OSError as error:
        print(f"extrapolation: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
