"""The layer beside ordinary regression on tables that scikit-learn has, and three settings of it.

    python -m benchmarks.regression                                     # the rows the file lacks
    python -m benchmarks.regression --report docs/when-not-to-use.md --pictures docs/images

A table has five random splits, a fifth of the rows held out, and one split that holds out the
fifth of the rows with the largest y. The networks have one training: Adam, 2000 steps of all rows,
the step with the least error on a fifth of the training rows kept. "rate", "start" and "scale" are
trainings of `RealNPU(3, 1)` on x0 x1 / x2 from 64 starts, one setting varied. A run can be
interrupted and started again.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from benchmarks.arguments import command
from benchmarks.drawing import COLORS, figure, save
from benchmarks.marked_blocks import crossed, renew
from benchmarks.rows_command import Row, complete, read, told
from npu_kernels import NPURegressor, RealNPU
from npu_kernels._jobs import files
from npu_kernels.training import project_, run

OUT = Path(__file__).parent / "results" / "regression.jsonl"
MARKS = {"regression": "random", "regression-beyond": "beyond"}
SPLITS, HIDDEN_UNITS, NETWORK_STEPS = 5, 16, 2000
ALPHAS = np.logspace(-3, 3, 13)  # of ridge, chosen by leaving out rows
Array = Any
Predict = Callable[[Array], Array]
NUCLEI = ("mean radius", "mean texture", "mean perimeter", "mean smoothness", "mean compactness")
# Its usual value, what it is, and the values that are tried.
SETTINGS: dict[str, tuple[float, str, tuple[float, ...]]] = {
    "rate": (0.02, "learning rate of Adam", (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)),
    "start": (0.5, "exponents start from −b to b; b", (0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)),
    "scale": (1.0, "inputs multiplied by", (1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1e3)),
}


def tables() -> dict[str, tuple[Array, Array]]:
    """Inputs and targets of each table, by its title."""
    cells, wine = datasets.load_breast_cancer(as_frame=True).data, datasets.load_wine().data
    nuclei = cells[list(NUCLEI)].to_numpy(), cells["mean area"].to_numpy()
    return {
        "diabetes, 442 rows": datasets.load_diabetes(return_X_y=True),
        "friedman1, 500 rows": datasets.make_friedman1(500, random_state=0),
        "friedman2, 500 rows": datasets.make_friedman2(500, random_state=0),
        "friedman3, 500 rows": datasets.make_friedman3(500, random_state=0),
        "wine: alcohol from the other columns, 178 rows": (wine[:, 1:], wine[:, 0]),
        "breast cancer: area of cell nuclei, 569 rows": nuclei,
    }


def network(build: Callable[[int], nn.Module], centred: bool) -> Callable[[Array, Array], Predict]:
    """A fit of a model, to standardised numbers, or to those divided by their sizes."""

    def fit(X: Array, y: Array) -> Predict:
        shift, low = (X.mean(0), y.mean()) if centred else (0.0, 0.0)
        spread, size = np.sqrt(((X - shift) ** 2).mean(0)), np.sqrt(((y - low) ** 2).mean())
        inputs = torch.as_tensor((X - shift) / spread).float()
        targets = torch.as_tensor((y - low) / size).float()[:, None]
        model, best, lowest, held = build(X.shape[1]), {}, float("inf"), len(y) // 5
        optimizer, mse = torch.optim.Adam(model.parameters(), 0.01), nn.functional.mse_loss
        for step in range(NETWORK_STEPS):
            optimizer.zero_grad()
            mse(model(inputs[held:]), targets[held:]).backward()
            optimizer.step()
            if build is not dense:  # it has no gates
                project_(model)
            with torch.no_grad():
                loss = (
                    mse(model(inputs[:held]), targets[:held]).item() if step % 10 == 9 else lowest
                )
            if loss < lowest:
                best, lowest = copy.deepcopy(model.state_dict()), loss
        model.load_state_dict(best or model.state_dict())
        model.requires_grad_(False)
        return lambda X: (
            model(torch.as_tensor((X - shift) / spread).float())[:, 0].numpy() * size + low
        )

    return fit


def recipe(inputs: int) -> nn.Module:
    """The layer between one that makes its inputs positive and one that scales its outputs."""
    h = HIDDEN_UNITS
    return nn.Sequential(nn.Linear(inputs, h), nn.Softplus(), RealNPU(h, h), nn.Linear(h, 1))


def dense(inputs: int) -> nn.Module:
    h, relu = HIDDEN_UNITS, nn.ReLU()
    return nn.Sequential(nn.Linear(inputs, h), relu, nn.Linear(h, h), relu, nn.Linear(h, 1))


METHODS: dict[str, Callable[[Array, Array], Predict]] = {
    "`RealNPU` alone": network(lambda inputs: RealNPU(inputs, 1), centred=False),
    "`Linear → Softplus → RealNPU → Linear`": network(recipe, centred=True),
    "`NPURegressor`": lambda X, y: NPURegressor(random_state=0).fit(X, y).predict,
    "ridge": lambda X, y: make_pipeline(StandardScaler(), RidgeCV(ALPHAS)).fit(X, y).predict,
    "MLP": network(dense, centred=True),
    "boosting": lambda X, y: HistGradientBoostingRegressor(random_state=0).fit(X, y).predict,
}


def measure(table: str, method: str, split: int | str) -> Row:
    """The R2 on the rows that a split holds out, of all rows' variance; split: seed or "beyond"."""
    X, y = tables()[table]
    seed = 0 if isinstance(split, str) else split
    rows = np.random.default_rng(seed).permutation(len(y))
    if split == "beyond":
        rows = rows[np.argsort(y[rows] >= np.quantile(y, 0.8), kind="stable")]
    held = len(y) // 5
    torch.manual_seed(seed)
    with np.errstate(all="ignore"):
        predicted = METHODS[method](X[rows[:-held]], y[rows[:-held]])(X[rows[-held:]])
    r2 = 1 - float(((predicted - y[rows[-held:]]) ** 2).mean() / y.var())
    return {"table": table, "method": method, "split": split, "r2": round(r2, 4)}


def vary(setting: str, value: float) -> Row:
    """The share of 64 starts that are right to 1 % beyond the range in which they were trained."""
    values = {name: usual for name, (usual, _, _) in SETTINGS.items()} | {setting: value}
    generator = torch.Generator().manual_seed(0)
    x, beyond = (
        values["scale"] * torch.empty(100, 3).uniform_(low, high, generator=generator).double()
        for low, high in ((0.5, 2), (2, 4))
    )
    model = RealNPU(3, 1, num_models=64).double()
    nn.init.uniform_(model.weight_re, -values["start"], values["start"], generator=generator)
    y, y_beyond = (part[:, :1] * part[:, 1:2] / part[:, 2:] for part in (x, beyond))
    run(model, x, y, steps=1000, lr=values["rate"], progress=False)
    with torch.no_grad():
        error = (model(beyond) / y_beyond - 1).abs().amax((1, 2))
    return {"setting": setting, "value": value, "share": (error < 0.01).double().mean().item()}


def table(rows: list[Row], kind: str) -> str:
    """Means over the splits, as Markdown; the best of a line is bold."""
    values: dict[tuple[str, str], list[float]] = {(t, m): [] for t in tables() for m in METHODS}
    for row in rows:
        if "r2" in row and (row["split"] == "beyond") == (kind == "beyond"):
            values.get((row["table"], row["method"]), []).append(row["r2"])
    means = {key: sum(r2) / len(r2) for key, r2 in values.items() if r2}
    records = []
    for (title, method), mean in means.items():
        best = max(other for (name, _), other in means.items() if name == title)
        text = "below 0" if mean < 0 else f"{mean:.3f}" if mean > 0.99 else f"{mean:.2f}"
        text = f"**{text}**" if mean > max(best - 0.005, 0) else text
        records.append({"table": title, "method": method, "r2": text})
    return crossed(records, ["table"], "method", "r2").rstrip("\n")


def picture(rows: list[Row], setting: str, path: Path) -> None:
    """The share of right starts over a setting."""
    usual, label, _ = SETTINGS[setting]
    pairs = [(row["value"], 100 * row["share"]) for row in rows if row.get("setting") == setting]
    drawing, axes = figure(1, 1, 2.2)
    axis = axes[0][0]
    axis.plot(*zip(*sorted(pairs), strict=True), "o-", color=COLORS["npu_kernels"], linewidth=2)
    axis.axvline(usual, color="0.6", linestyle=":", linewidth=1.5)
    axis.set(xscale="log", ylim=(-4, 104), xlabel=label, ylabel="right starts, %")
    axis.spines[["top", "right"]].set_visible(False)
    save(drawing, path)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what the file lacks, or write tables and pictures."""
    parser = command("benchmarks.regression", __doc__)
    add = parser.add_argument
    add("--out", type=files.output, default=OUT)
    add("--report", type=Path, metavar="PAGE", help="write the tables there, and run nothing")
    add("--pictures", type=Path, metavar="FOLDER", help="draw the settings there, run nothing")
    options = parser.parse_args(argv)
    with told(parser):
        if options.report or options.pictures:
            rows = read(options.out, missing_ok=True)
            if options.report:
                renew(options.report, {mark: table(rows, kind) for mark, kind in MARKS.items()})
            for setting in SETTINGS if options.pictures else ():
                picture(rows, setting, options.pictures / f"setting-{setting}.png")
            return
        torch.set_num_threads(1)
        splits = itertools.product(tables(), METHODS, (*range(SPLITS), "beyond"))
        complete(options.out, ("table", "method", "split"), splits, measure, shown=["r2"])
        values = [(name, value) for name, setting in SETTINGS.items() for value in setting[2]]
        complete(options.out, ("setting", "value"), values, vary, shown=["share"])


if __name__ == "__main__":
    main()
