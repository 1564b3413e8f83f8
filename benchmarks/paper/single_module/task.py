"""The field's single-module benchmark: one layer learns `a op b` on a range, tested beyond it.

Mistry, Farrahi, Hare, "A Primer for Neural Arithmetic Logic Modules", JMLR 2022, and "Exploring the
Learning Mechanisms of Neural Division Modules", TMLR 2022; as the code of both does it
(github.com/bmistry4/nalm-benchmark, nalm-division):

    data     128 fresh rows a step, both inputs uniform on the range; validation: 10,000 rows of the
             same range, test: 10,000 rows of the extrapolation range, the same for all seeds
    steps    50,000 of Adam; before the first and after every 1000th the validation and the test
             error are noted
    result   the test error where the validation error is least; solved at: the first noted test
             error below 1e-5

    NPUs     rate 0.005; Glorot, gates 1/2, imaginary parts 0; L1 with beta 1e-7 (÷: 1e-9), ten
             times more after 10,000 and after 20,000 steps. Recipe fixed, "all three fixes":
             weights from U(-1/2, 1/2); weights projected to [-1, 1], gates to [0, 1]; over the last
             fifth a growing penalty, mean min(|w|, |1 - |w||) of every tensor
    NMU      rate 0.001; U(1/4, 3/4), projected to [0, 1]; from 20,000 to 35,000 growing to 10 mean
             min(|w|, |1 - |w||)
    NMRU     separate signs; rate 0.01; U(1/4, 3/4), projected to [0, 1]; gradients of a model no
             longer than 1 (as the names of the published result files say); penalty: its script is
             not published, here the NMU's
    NAU      rate 0.001; U(-1/2, 1/2), projected to [-1, 1]; the same penalty, growing to 0.01
    NALU     rate 0.001; U(-9.47, 9.47), gate Glorot; no bias, eps 1e-7
    iNALU    rate 0.001; weights around 0.88, masks around 0.5, gate around 0, spread 0.2, uniform;
             gradients clipped to 0.1. Not: its penalty and its new starts; its gate here depends on
             the input

Recipe best is `npu_kernels.fit` on the training range: plan.py.

All models of a unit and an operation, 25 seeds on 9 ranges, train in one call. A seed has one start
and one stream of uniform numbers, which every range scales to itself, as in the published code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.paper import tables
from benchmarks.paper.models import Start, default_start, sigmoid, start_
from benchmarks.paper.runner import Batch
from benchmarks.paper.streams import Blocks, stream
from benchmarks.paper.training import Adam, Buffer, Rows, Training, unpenalised
from npu_kernels import NALU, NAU, NMRU, NMU, NPU, NaiveNPU, RealNPU, iNALU
from npu_kernels.env import processor
from npu_kernels.layers import BaseLayer as Layer

BATCH_ROWS = 128
STEPS, QUICK_STEPS = 50_000, 500
SEEDS, QUICK_SEEDS = 25, 2
LOOKS = 50  # how often the errors are noted in a training
POINTS = 10_000  # of a validation or test set
PIECE = 1_000  # of them at once
DRAW_BLOCK = 50  # steps whose rows are drawn at once
STARTS, FIT_ROWS = 128, 2048  # of a fit
COLUMNS = (
    "unit", "op", "range", "recipe", "seed", "test_mse", "solved", "solved_at", "sparsity",
    "last_mse", "steps", "processor",
)  # fmt: skip

Interval = tuple[float, float]


@dataclass(frozen=True)
class Range:
    """The intervals of the inputs: in training, and in the test, which may have two."""

    train: Interval
    test: tuple[Interval, ...]


RANGES = {
    "[-20,-10]": Range((-20, -10), ((-40, -20),)),
    "[-2,-1]": Range((-2, -1), ((-6, -2),)),
    "[-1.2,-1.1]": Range((-1.2, -1.1), ((-6.1, -1.2),)),
    "[-0.2,-0.1]": Range((-0.2, -0.1), ((-2, -0.2),)),
    "[-2,2]": Range((-2, 2), ((-6, -2), (2, 6))),
    "[0.1,0.2]": Range((0.1, 0.2), ((0.2, 2),)),
    "[1,2]": Range((1, 2), ((2, 6),)),
    "[1.1,1.2]": Range((1.1, 1.2), ((1.2, 6),)),
    "[10,20]": Range((10, 20), ((20, 40),)),
}
OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": torch.mul, "div": torch.div, "add": torch.add, "sub": torch.sub,
}  # fmt: skip
# The first beta of the L1 penalty; that of + and - is the one of x.
L1 = {"mul": 1e-7, "div": 1e-9, "add": 1e-7, "sub": 1e-7}
THRESHOLDS = ("fixed", "off_1e-4", "off_1e-5")  # columns of published/single_module_thresholds.csv


@functools.cache
def thresholds(name: str) -> dict[tuple[str, str], float]:
    """Map (operation, range) to the test error below which a run counts as solved."""
    rows = tables.load("single_module_thresholds")
    return {(row["op"], row["range"]): row[name] for row in rows}


# ---- units and recipes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """A layer, and how the field trains it."""

    make: Callable[[int], Layer]  # from the number of models
    rate: float = 0.001  # Adam's
    starts: dict[str, Start] | None = None  # of the parameters that do not start as in the paper
    l1: bool = False  # whether all parameters have the L1 penalty
    # The penalty of weights that are neither 0 nor 1 in size: its final weight, and the shares of
    # the steps between which it grows from 0.
    penalty: tuple[float, float, float] = (0.0, 0.0, 1.0)
    project: bool = False  # whether each step clamps weights and gates into their intervals
    clip: float = math.inf  # largest gradient
    norm: float = math.inf  # greatest length of a model's gradient
    cost: int = 600  # expected microseconds of a step of 225 models, for the time left only


def _around(centre: float) -> Start:
    """The uniform distribution with the standard deviation 0.2."""
    return centre - 0.2 * math.sqrt(3), centre + 0.2 * math.sqrt(3)


_HALF = {"weight_re": (-0.5, 0.5)}
_WIDE = 1 / (1 - math.sqrt(0.8))  # tanh(w) sigmoid(m) of U(-r, r) then has the variance 2 / 5
_FIXES: dict[str, Any] = {"starts": _HALF, "penalty": (1.0, 0.8, 1.0), "project": True}
_NPUS: dict[str, Callable[[int], Layer]] = {
    "NPU": lambda k: NPU(2, 1, num_models=k),
    "RealNPU": lambda k: RealNPU(2, 1, num_models=k),
    "NaiveNPU": lambda k: NaiveNPU(2, 1, num_models=k),
}

RECIPES: dict[str, dict[str, Unit]] = {
    "plain": {
        **{name: Unit(make, 0.005, l1=True) for name, make in _NPUS.items()},
        "NMU": Unit(
            lambda k: NMU(2, 1, num_models=k, clip=False),
            starts={"weight": (0.25, 0.75)},
            penalty=(10.0, 0.4, 0.7),
            project=True,
            cost=450,
        ),
        "NMRU": Unit(
            lambda k: NMRU(2, 1, num_models=k, clip=False, sign="separate"),
            0.01,
            starts={"weight": (0.25, 0.75)},
            penalty=(10.0, 0.4, 0.7),
            project=True,
            norm=1.0,
        ),
        "NAU": Unit(
            lambda k: NAU(2, 1, num_models=k, clip=False),
            starts={"weight": (-0.5, 0.5)},
            penalty=(0.01, 0.4, 0.7),
            project=True,
            cost=330,
        ),
        "NALU": Unit(
            lambda k: NALU(2, 1, num_models=k, eps=1e-7),
            starts={"weight": (-_WIDE, _WIDE), "mask": (-_WIDE, _WIDE)},
            cost=1000,
        ),
        "iNALU": Unit(
            lambda k: iNALU(2, 1, num_models=k),
            starts={
                **{name: _around(0.88) for name in ("weight_add", "weight_mul")},
                **{name: _around(0.5) for name in ("mask_add", "mask_mul")},
                "gate_weight": _around(0.0),
            },
            clip=0.1,
            cost=1800,
        ),
    },
    "fixed": {name: Unit(make, 0.005, l1=True, **_FIXES) for name, make in _NPUS.items()},
    "best": {name: Unit(make) for name, make in _NPUS.items()},  # npu_kernels.fit knows the rest
}
UNITS = tuple(RECIPES["plain"])


def l1_beta(step: int, steps: int, first: float) -> float:
    """The weight of the L1 penalty at a step (from 1): tenfold after a fifth, and after two."""
    return first * 10.0 ** min(2, 5 * (step - 1) // steps)


def ramp(step: int, steps: int, begin: float, end: float) -> float:
    """The share of the late penalty's final weight at a step (from 1)."""
    return min(1.0, max(0.0, ((step - 1) / steps - begin) / (end - begin)))


def penalty_gradient(w: Tensor) -> Tensor:
    """The derivative of min(|w|, |1 - |w||)."""
    size = w.abs()
    return torch.where(size < 0.5, 1.0, (size - 1).sign()).mul_(w.sign())


# ---- data ----------------------------------------------------------------------------------------


def points(kind: str, device: torch.device) -> Tensor:
    """The "validation" or "test" rows of every range, ``[R, 10000, 2]`` float32."""
    sets = []
    for index, bounds in enumerate(RANGES.values()):
        chosen = [bounds.train] if kind == "validation" else bounds.test
        intervals = torch.tensor(chosen, dtype=torch.float64)
        generator = stream(f"single module {kind}", index)
        draws = torch.rand(POINTS, 2, generator=generator, dtype=torch.float64) * len(intervals)
        which = draws.long()  # of the intervals, all of one width; the rest is uniform again
        low, high = intervals[which].unbind(-1)
        sets.append((draws - which) * (high - low) + low)
    return torch.stack(sets).float().to(device)


def answered(kind: str, op: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows of `points`, and their answers ``[R, 10000]`` float64."""
    x = points(kind, device)
    a, b = x.double().unbind(-1)
    return x, OPERATIONS[op](a, b)


class Data:
    """Fresh rows by step, seed and range, from the stream ("single module data", seed, block).

    The float32 draws are multiples of 2^-24; the inputs are the middles between them, so that no
    divisor is 0.
    """

    def __init__(self, seeds: Sequence[int], op: str, device: torch.device) -> None:
        self.seeds, self.operation = seeds, OPERATIONS[op]
        bounds = torch.tensor([limits.train for limits in RANGES.values()], dtype=torch.float64)
        width = bounds[:, 1] - bounds[:, 0]
        self.width = width.float().view(-1, 1).to(device)
        self.low = (bounds[:, 0] + width * 2.0**-25).float().view(-1, 1).to(device)
        self._blocks = Blocks(DRAW_BLOCK, self._draw)

    def _draw(self, block: int) -> Tensor:
        """Numbers ``[seeds, DRAW_BLOCK, BATCH_ROWS, 2]``."""
        streams = (stream("single module data", seed, block) for seed in self.seeds)
        draws = [torch.rand(DRAW_BLOCK, BATCH_ROWS, 2, generator=g) for g in streams]
        return torch.stack(draws).to(self.low.device)

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs ``[K, BATCH_ROWS, 2]`` and targets ``[K, BATCH_ROWS, 1]``."""
        return self.many(step, 1)[:2]

    def many(self, step: int, max_steps: int) -> tuple[Tensor, Tensor, int]:
        """The rows of the steps to the end of the block, ``[K, steps * BATCH_ROWS, ...]``."""
        draws, index = self._blocks(step)
        u = draws[:, index : index + max_steps]
        x = u.new_empty(len(u), len(RANGES), u[0].numel())
        # A seed's rows at a time stay in the cache.
        for of_seed, numbers in zip(x, u.flatten(1), strict=True):
            torch.mul(numbers, self.width, out=of_seed).add_(self.low)
        x = x.view(len(u) * len(RANGES), -1, 2)
        return x, self.operation(x[..., :1], x[..., 1:]), u.shape[1]


# ---- training ------------------------------------------------------------------------------------


def sharpness(module: nn.Module) -> list[Tensor]:
    """The weights and gates, ``[K, ...]``, that a formula would be read from."""
    named = dict(module.named_parameters())
    if isinstance(module, iNALU):
        paths = ((named[f"weight_{path}"], named[f"mask_{path}"]) for path in ("add", "mul"))
        return [weight.tanh() * sigmoid(mask) for weight, mask in paths]
    if "mask" in named:
        return [named["weight"].tanh() * sigmoid(named["mask"])]
    return [p.clamp(0, 1) if name == "gate" else p for name, p in named.items()]


def sparsity_error(module: nn.Module) -> Tensor:
    """The worst weight's distance from 0, 1 and -1 of each model, ``[K]``: the sparsity error."""
    sizes = torch.cat([w.abs().flatten(1) for w in sharpness(module)], 1)
    return torch.minimum(sizes, (1 - sizes).abs()).amax(1)


class SingleModule(Training):
    """All seeds and ranges of a unit and operation; model k is seed k // 9 on range k % 9."""

    def __init__(self, batch: Batch) -> None:
        self.settings, self.runs = batch.settings, batch.runs
        self.op, steps = batch.settings["op"], batch.settings["steps"]
        self.unit = RECIPES[batch.settings["recipe"]][batch.settings["unit"]]
        self.device = torch.device(batch.settings["device"])
        self.seeds = [run["seed"] for run in batch.runs]
        self.layer = self.unit.make(len(self.runs))
        starts, penalties = self.unit.starts or {}, dict[str, Callable[[int], float]]()

        def start(layer: nn.Module, name: str, parameter: Tensor) -> Start:
            return starts.get(name) or default_start(layer, name, parameter)

        start_(nn.Sequential(self.layer), self.seeds, "single module start", start)
        self.layer.to(self.device)
        if self.unit.l1:
            penalties["l1"] = lambda step: l1_beta(step, steps, L1[self.op])
        weight, *shares = self.unit.penalty
        if weight > 0:
            penalties["integer"] = lambda step: (
                weight * ramp(step, steps, *shares) / self.buffer.rows[0].shape[1]
            )
        period = max(1, steps // LOOKS)
        super().__init__(
            self.layer,
            lambda buffer: Adam(buffer.flat, self.unit.rate),
            Data(list(dict.fromkeys(self.seeds)), self.op, self.device),
            steps,
            lambda training: (self._rows(period), {"parameters": self.buffer.per_model().cpu()}),
            penalty=self._penalise,
            beta=torch.tensor,
            penalties=penalties,
            project=1.0 if self.unit.project else False,
            watch=lambda training: self._errors(),
            watched=range(period, steps + 1, period),
        )
        if min(self.unit.clip, self.unit.norm) < math.inf:
            self._torchs = None  # training.run does not bound gradients
        self.sets = [answered(kind, self.op, self.device) for kind in ("validation", "test")]
        self.snapshots = [self._errors()]

    def _penalise(self, buffer: Buffer, grads: Sequence[Tensor], step: Tensor) -> None:
        """The gradients plus those of the penalties, bounded. A unit's tensors are of one size."""
        unpenalised(buffer, grads, step)
        if "l1" in self.penalties:
            buffer.flat_grads.add_(buffer.flat.sign(), alpha=self.penalties["l1"](int(step)))
        if "integer" in self.penalties:
            buffer.flat_grads.add_(
                penalty_gradient(buffer.flat), alpha=self.penalties["integer"](int(step))
            )
        if self.unit.clip < math.inf:
            buffer.flat_grads.clamp_(-self.unit.clip, self.unit.clip)
        if self.unit.norm < math.inf:  # as torch.nn.utils.clip_grad_norm_ does for one model
            squares = torch.stack([grad.flatten(1).square().sum(1) for grad in buffer.grads])
            factors = (self.unit.norm / (squares.sum(0).sqrt() + 1e-6)).clamp(max=1)
            buffer.flat_grads.mul_(buffer.spread(factors))

    @torch.no_grad()
    def _errors(self) -> Tensor:
        """Validation error, test error, sparsity error of each model, ``[3, K]``."""
        self.layer.eval()
        errors = [mean_square_error(self.layer, x, target) for x, target in self.sets]
        self.layer.train()
        return torch.stack([*errors, sparsity_error(self.layer).cpu()])

    def _rows(self, period: int) -> Rows:
        looks = torch.stack(self.snapshots).nan_to_num(nan=math.inf)
        validation, test, sparsity = looks.unbind(1)  # [looks, K]
        best, limit, rows = validation.argmin(0), thresholds("fixed"), []
        for k, run in enumerate(self.runs):
            below = (test[:, k] < limit[self.op, run["range"]]).nonzero()
            values = {
                "test_mse": float(test[best[k], k]),
                "solved_at": int(below[0]) * period if len(below) else math.nan,
                "sparsity": float(sparsity[best[k], k]),
                "last_mse": float(test[-1, k]),
                "steps": self.total,
            }
            rows.append(table_row(self.settings, run, values))
        return rows


def table_row(
    settings: dict[str, Any], run: dict[str, Any], values: dict[str, Any]
) -> dict[str, Any]:
    """A run's row of the table."""
    solved = values["test_mse"] < thresholds("fixed")[settings["op"], run["range"]]
    row = settings | run | values | {"solved": int(solved), "processor": processor()}
    return {column: row[column] for column in COLUMNS}


def mean_square_error(layer: Layer, x: Tensor, target: Tensor) -> Tensor:
    """The errors ``[K]`` on rows ``[R, N, 2]`` and answers ``[R, N]``, a mean in float64."""
    seeds = (layer.num_models or 1) // len(x)
    total = torch.zeros(seeds, len(x), dtype=torch.float64, device=x.device)
    for rows, answers in zip(x.split(PIECE, 1), target.split(PIECE, 1), strict=True):
        y = layer(rows.expand(len(total), -1, -1, -1).flatten(0, 1))[..., 0]
        total += (y.view(*total.shape, -1).double() - answers).square_().sum(2)
    return total.flatten().cpu() / x.shape[1]
