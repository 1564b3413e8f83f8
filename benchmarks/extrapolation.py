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
from benchmarks.drawing import BOX, ERRORS, available, figure, headline, save
from benchmarks.paper.registry import TABLES
from benchmarks.paper.simple import task as simple

MODELS = Path(__file__).parent / "results" / "paper" / TABLES["simple"].models_file
SHOWN = {"Dense": "dense network", "RealNPU": "RealNPU, then NAU"}
TASK, FORMULA = "div", "x / y"


def draw(models: dict[str, list[float]], path: Path) -> None:
    """Draw two maps of errors beside one another, and the scale of both below."""
    from matplotlib.patches import Rectangle

    # Without 0, where x / y has no value.
    points = torch.arange(81, dtype=torch.float64).mul(0.1).sub(4.05)
    x, levels = points.numpy(), torch.linspace(-3, 1, 9).tolist()
    low, high = simple.TRAINING["code"]
    drawing, axes = figure(1, 2, 3.9, share="row")
    for axis, (model, title) in zip(axes[0], SHOWN.items(), strict=True):
        error = simple.surface(model, "code", torch.tensor(models[model]), TASK, points)
        shown = error.clamp(1e-3, 1e1).log10().T.numpy()
        drawn = axis.contourf(x, x, shown, levels, cmap=ERRORS)
        axis.add_patch(Rectangle((low, low), high - low, high - low, **BOX))
        axis.set(title=title, xlabel="x", aspect="equal")
    axes[0][0].set_ylabel("y")
    where = {"ticks": range(-3, 2), "location": "bottom", "shrink": 0.8, "aspect": 30}
    bar = drawing.colorbar(drawn, ax=list(axes[0]), label="absolute error", **where)
    bar.ax.set_xticklabels(["≤ 0.001", "0.01", "0.1", "1", "≥ 10"])
    headline(drawing, f"{FORMULA} is learnt in the box: the error within and without")
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
