"""Part (a): a RealNPU learns Kepler's third law from the measured orbits of the planets.

The model is ``RealNPU(1, 1) -> NAU(1, 1)``: T = c r^w with r = g|a| + 1 - g. Only with g = 1 is
that a power of the axis a, so g has to be learnt too, and is printed. `training.run` projects it
into [0, 1] after each step, so 1 is a value that it reaches and keeps.

Several starts are trained as one batch of models. Those that lose their gate to 0 in the first
steps end at a constant; the start with the least loss is taken, which needs no knowledge of the
law.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from npu_kernels import NAU, RealNPU, formula, training

DATA = Path(__file__).with_name("kepler.csv")
YEAR = 365.25636  # days of a sidereal year
STARTS = 20
ADAM_STEPS = 3000
ADAM_RATE = 0.02
TOLERANCE = 2e-3


class Body(NamedTuple):
    """An orbit: axis in au, period in sidereal years; `measured`: not computed from the axis."""

    name: str
    kind: str
    axis: float
    period: float
    measured: bool


class Law(NamedTuple):
    """What the best start has learnt, T = constant r^exponent, and how the other starts ended."""

    exponent: float
    constant: float
    gate: float
    loss: float  # mean squared relative error of the periods
    agreeing: int  # starts whose exponent is the same to 0.001
    starts: int
    model: nn.Module  # the best start alone

    def period(self, axis: float) -> float:
        """The years of an orbit with this semi-major axis in au."""
        return self.constant * (self.gate * axis + 1 - self.gate) ** self.exponent


def read_bodies() -> list[Body]:
    """The rows of the table."""
    with DATA.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return [
        Body(
            row["name"], row["kind"], float(row["axis_au"]), float(row["period_days"]) / YEAR,
            measured=row["source"] == "fact sheet",
        )
        for row in rows
    ]  # fmt: skip


def learn(bodies: list[Body], *, steps: int = ADAM_STEPS, starts: int = STARTS) -> Law:
    """Train on these bodies: full batch, Adam, squared relative error."""
    torch.manual_seed(0)
    axis, period = _columns(bodies)  # shared by the starts
    power = RealNPU(1, 1, num_models=starts, dtype=torch.float64)
    # Without the paper's clipping to [-1, 1]: the constant is near 1.
    scale = NAU(1, 1, num_models=starts, dtype=torch.float64, clip=False)
    model = nn.Sequential(power, scale)

    def rate(step: int) -> float:
        return ADAM_RATE * (1 + math.cos(math.pi * (step - 1) / steps)) / 2

    training.run(model, axis, period, steps=steps, lr=rate, sample_weight=period**-2)
    with torch.no_grad():
        loss = (model(axis) / period - 1).square().mean((1, 2))
    best = int(loss.nan_to_num(nan=math.inf).argmin())
    exponents = power.weight_re.detach()[:, 0, 0]
    return Law(
        exponent=exponents[best].item(),
        constant=scale.weight[best, 0, 0].item(),
        gate=power.gate[best, 0].item() if power.gate is not None else 1.0,
        loss=loss[best].item(),
        agreeing=int(((exponents - exponents[best]).abs() < 1e-3).sum()),
        starts=starts,
        model=formula.select(model, best),
    )


def _columns(bodies: list[Body]) -> tuple[Tensor, Tensor]:
    """Axes and periods, ``[B, 1]``; float64, as the data has up to nine digits."""
    axis = torch.tensor([[b.axis] for b in bodies], dtype=torch.float64)
    return axis, torch.tensor([[b.period] for b in bodies], dtype=torch.float64)


def least_squares(bodies: list[Body]) -> tuple[float, float]:
    """(exponent, constant) of the straight line through the logarithms, without a network."""
    axes, periods = np.log([b.axis for b in bodies]), np.log([b.period for b in bodies])
    exponent, constant = np.polyfit(axes, periods, 1)
    return float(exponent), math.exp(constant)


def _print_rounded(law: Law, bodies: list[Body]) -> None:
    """The law with the simplest weights that the orbits allow, and what that costs."""
    result = formula.simplify(law.model, *_columns(bodies), tolerance=TOLERANCE)
    try:
        read = formula.extract(result.module, ["axis"], outputs=["period"], nonnegative=True)
    except ImportError as error:
        print(f"    no rounded formula: {error}")
        return
    print(
        "    with simple fractions where they make the error greater by at most "
        f"{TOLERANCE:g}: {read.text(6)}\n    (error relative to the periods' size: "
        f"{result.error:.1e} before, {result.steps[-1].after:.1e} after)"
    )


def run(*, steps: int = ADAM_STEPS, starts: int = STARTS) -> Law:
    """Train and print."""
    bodies = read_bodies()
    measured = [b for b in bodies if b.measured]
    unseen = [b for b in bodies if not b.measured]
    print(
        f"(a) Kepler's third law from {len(measured)} orbits, {measured[0].name} to "
        f"{measured[-1].name} ({DATA.name})\n    RealNPU(1, 1) -> NAU(1, 1), axis in au, period in "
        f"years; {starts} starts in one batch of models"
    )
    law = learn(measured, steps=steps, starts=starts)
    off = abs(law.exponent - 1.5)
    print(
        f"    period = {law.constant:.6f} * axis ^ {law.exponent:.6f}\n    exponent "
        f"{law.exponent:.6f}, {off:.1e} from 3/2; constant {law.constant:.6f} (Kepler: 1)"
    )
    gated = "a power of r = g|x| + 1 - g, so the exponent is NOT one of the axis itself"
    plain = "the layer sees the axis itself (r = g|x| + 1 - g), so the exponent is one of the axis"
    print(f"    gate 1: {plain}" if law.gate == 1 else f"    gate {law.gate:.6f}: {gated}")
    print(
        f"    {law.agreeing} of {law.starts} starts found this exponent; the one with the least "
        "loss is shown"
    )
    _print_rounded(law, measured)
    exponent, constant = least_squares(measured)
    print(
        f"    least squares on the logarithms, for comparison: {constant:.6f} * axis ^ "
        f"{exponent:.6f}\n    (not 3/2 to the last digit: the giants' masses and mutual pull are "
        "in their measured periods)"
    )
    for title, group in {"trained on": measured, f"{len(unseen)} bodies not seen": unseen}.items():
        worst, body = max((abs(law.period(b.axis) / b.period - 1), b) for b in group)
        span = f"{min(b.axis for b in group):.3g} to {max(b.axis for b in group):.3g} au"
        print(f"    {title}, {span}: worst period {100 * worst:.3f} % off ({body.name})")
    return law
