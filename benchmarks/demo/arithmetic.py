"""Part (b): the simple arithmetic task of "Neural Power Units" (NeurIPS 2020, Table A2).

``NPU(2, 6) -> NAU(6, 4)`` learns (x + y, x y, x / y, sqrt x) from x, y ~ U(0.1, 2) and is tested
far outside, on negative inputs too. As in the authors' code: Adam at 0.005 (the paper's text says
0.001), a fresh batch of 100 each step, 20,000 steps, the NAU not clipped, no penalty, the last
iterate. The interval is the paper's; the code drew from U(0.1, 2.1).

All seeds train in one batch of models: each has its data and its loss, and the losses are summed.
"""

from __future__ import annotations

import functools
import math
import textwrap
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.demo.picture import error_surface
from npu_kernels import NAU, NPU, formula, training
from npu_kernels._jobs.progress import Progress
from npu_kernels.optim import Adam

OPERATIONS = ("x + y", "x * y", "x / y", "sqrt(x)")
LOW, HIGH = 0.1, 2.0
SEEDS, STEPS, BATCH, LEARNING_RATE = 20, 20_000, 100, 0.005
STRETCH = 200  # steps whose rows are drawn at once
THRESHOLD = 5e-3  # below it a weight is left out of the formula

# Table A2: mean and standard error of the mean over 20 runs, in the order of OPERATIONS. (Its
# caption says median and MAD; the authors' code computes these.) Without negative inputs the
# imaginary weights stay 0, so that both rows are the same model.
PUBLISHED = {
    "paper, NPU": ((0.20, 0.11), (0.37, 0.23), (0.23, 0.13), (0.031, 0.025)),
    "paper, RealNPU": ((0.080, 0.021), (0.066, 0.026), (0.085, 0.038), (0.004, 0.001)),
}


@dataclass(frozen=True)
class Trained:
    """A batch of models, with each one's mean absolute errors on the test grid."""

    power: NPU
    scale: NAU
    errors: Tensor  # [K, 4]

    def __call__(self, x: Tensor) -> Tensor:
        """``x [B, 2]`` to ``[K, B, 4]``."""
        with torch.no_grad():
            y: Tensor = self.scale(self.power(x))
        return y

    @property
    def best(self) -> int:
        """The seed with the least sum of the four errors, the one that the paper shows."""
        return int(self.errors.sum(1).nan_to_num(nan=math.inf).argmin())


def targets(x: Tensor) -> Tensor:
    """``[..., 2]`` to ``[..., 4]``; the root of a negative number is nan."""
    a, b = x.unbind(-1)
    return torch.stack([a + b, a * b, a / b, a.sqrt()], -1)


def _grid(points: Tensor) -> Tensor:
    return torch.cartesian_prod(points, points)


def signed_grid() -> Tensor:
    """The authors' points of +, x and /: -4.1, -3.9, ..., 3.9 for x and y. ``[1681, 2]``."""
    return _grid(-4.1 + 0.2 * torch.arange(41, dtype=torch.float64))


def root_grid(last: float = 4.0) -> Tensor:
    """The authors' test points of the root: 0.1, 0.2, ..., 4.0. ``[1600, 2]``."""
    return _grid(0.1 * torch.arange(1, round(10 * last) + 1, dtype=torch.float64))


def absolute_errors(model: Trained, x: Tensor) -> Tensor:
    """``[K, B, 4]``, computed by the float32 models, compared in float64."""
    return (model(x.float()).double() - targets(x)).abs()


def train(*, steps: int = STEPS, seeds: int = SEEDS, seed: int = 0) -> Trained:
    """Train the batch of models and test it."""
    torch.manual_seed(seed)
    power, scale = NPU(2, 6, num_models=seeds), NAU(6, 4, num_models=seeds, clip=False)
    model = nn.Sequential(power, scale)
    optimizer = Adam(model.parameters(), lr=LEARNING_RATE)
    with Progress("  training", steps) as progress:
        for done in range(0, steps, STRETCH):
            count = min(STRETCH, steps - done)
            x = torch.empty(count, seeds, BATCH, 2).uniform_(LOW, HIGH)
            x = x.transpose(0, 1).flatten(1, 2)  # [K, rows, 2]
            rows = torch.arange(count * BATCH).view(count, BATCH)
            training.run(
                model, x, targets(x), steps=count, rows=rows, optimizer=optimizer, project=False,
                progress=False,
            )  # fmt: skip
            progress.update(done + count)
    untested = Trained(power, scale, torch.empty(0))
    signed = absolute_errors(untested, signed_grid())[..., :3].mean(1)  # [K, 3]
    root = absolute_errors(untested, root_grid())[..., 3:].mean(1)
    return Trained(power, scale, torch.cat([signed, root], 1))


def _table(model: Trained) -> None:
    errors = model.errors
    seeds = len(errors)
    mean, median = errors.mean(0), errors.median(0).values
    spread = errors.std(0) / math.sqrt(seeds) if seeds > 1 else torch.full_like(mean, math.nan)
    title = f"    {'mean |error| outside of the training range':<44}"
    print(title + "".join(f"{name:>18}" for name in OPERATIONS))
    both = [f"{m:.3g} +- {s:.2g}" for m, s in zip(mean.tolist(), spread.tolist(), strict=True)]
    rows = {f"this run, mean +- standard error of {seeds}": both}
    rows |= {name: [f"{m:.3g} +- {s:.2g}" for m, s in row] for name, row in PUBLISHED.items()}
    rows[f"this run, median of {seeds}"] = [f"{m:.3g}" for m in median.tolist()]
    rows[f"this run, best seed ({model.best})"] = [f"{e:.3g}" for e in errors[model.best].tolist()]
    for name, cells in rows.items():
        print(f"    {name:<44}" + "".join(f"{cell:>18}" for cell in cells))
    print(
        "    The mean is ruled by the few worst seeds: two faithful runs may well differ by a "
        "factor of 3."
    )


def _formula(model: Trained) -> None:
    x = LOW + (HIGH - LOW) * _grid(torch.linspace(0, 1, 41, dtype=torch.float64))
    best = formula.select(nn.Sequential(model.power, model.scale), model.best).double()
    pruned = formula.simplify(best, x, steps=("prune",), threshold=THRESHOLD)
    try:
        read = functools.partial(formula.read, pruned.module, ("x", "y"), outputs=OPERATIONS)
        general, positive = read(), read(positive=True)
    except ImportError as error:
        print(f"    No formula of the best seed: {error}")
        return
    remaining, cost = pruned.steps[-1].parameters, pruned.steps[-1].after
    print(
        "    The best seed as a formula, for x, y >= 0. Weights below "
        f"{THRESHOLD:g} are made 0: {remaining} of\n    {pruned.parameters} remain, and the "
        "outputs "
        f"move by {cost:.1e} of their size:"
    )
    wrap = textwrap.TextWrapper(118, "      ", " " * 16, break_long_words=False)
    for line in positive.text().splitlines():
        print(wrap.fill(line))
    deviation = (general(x) - model(x.float())[model.best].double()).abs().max().item()
    print(
        "    On the training square this formula deviates from the model by at most "
        f"{deviation:.1e}.\n    A power of (g*x + 1 - g) is no power of x: only a gate g that has "
        "become 0 or 1 gives an exponent of x."
    )


def _picture(model: Trained, folder: Path) -> None:
    signed, root = signed_grid(), root_grid(5.0)  # the paper's picture of the root goes to 5
    errors = [absolute_errors(model, signed)[model.best, :, i] for i in range(3)]
    panels = [(name, signed, e) for name, e in zip(OPERATIONS[:3], errors, strict=True)]
    panels.append((OPERATIONS[3], root, absolute_errors(model, root)[model.best, :, 3]))
    path = folder / "arithmetic_error.png"
    missing = error_surface(path, panels, (LOW, HIGH))
    if missing:
        print(f"    No picture of the error surface: {missing}")
    else:
        print(f"    Error surface of the best seed, log10 |error|: {path}")


def run(folder: Path, *, steps: int = STEPS, seeds: int = SEEDS) -> Trained:
    """Train, print, draw into the folder."""
    print("(b) the paper's arithmetic: NPU(2, 6) -> NAU(6, 4)")
    print(f"    {seeds} seeds in one batch of models, {steps:,} steps of Adam, {BATCH} rows each")
    print(
        f"    trained on x, y ~ U({LOW:g}, {HIGH:g}); tested on -4.1 ... 3.9 (the root on 0.1 ... "
        "4)"
    )
    if steps != STEPS or seeds != SEEDS:
        print(
            f"    (the paper trains {SEEDS} seeds for {STEPS:,} steps: these numbers are not "
            "comparable with its)"
        )
    model = train(steps=steps, seeds=seeds)
    _table(model)
    _formula(model)
    _picture(model, folder)
    return model
