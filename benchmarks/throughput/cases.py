"""What is measured: a layer, a pass and sizes, with the operands that every rival gets.

Passes
  forward  under no_grad
  step     forward and backward through autograd, all gradients, x included
  train    zero_grad, NPU(2, 6) -> NAU(6, 4), mean squared error, backward, a step of (fused) Adam;
           in wide models as many units as inputs
  run      100 such steps, from the start of a training
  rollout  u' = NAU(NPU(u)), forward and backward over all Euler steps, in float64
           (size: steps x D x h x K)
  adaptive the same by adaptive steps of Dormand and Prince's pair (size: times x D x h x K)
  hvp      the Hessian of a loss times a vector
  jvp      y and its change along a direction in x
  double-backward
           the gradient of a loss with dy/dx in it (benchmarks.throughput.derivatives)

A `Workload` is what is timed of a rival: a pass of its module or function, and the results.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import layers
from npu_kernels._operators import ops

PASSES = FORWARD, STEP, TRAIN, RUN, ROLLOUT, ADAPTIVE, DOUBLE_BACKWARD, HVP, JVP = (
    "forward", "step", "train", "run", "rollout", "adaptive", "double-backward", "hvp", "jvp",
)  # fmt: skip
DERIVATIVES = DOUBLE_BACKWARD, HVP, JVP
OLD_PASSES = {"slope": DOUBLE_BACKWARD}  # names in older results
# The layers' default; the same in float64, so that an error is one of arithmetic.
EPS = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Size:
    """B rows, I in-features, O out-features, K models (1: a layer without a model dimension)."""

    rows: int
    inputs: int
    outputs: int
    models: int = 1

    def __str__(self) -> str:
        models = f"x{self.models}" if self.models > 1 else ""
        return f"{self.rows}x{self.inputs}x{self.outputs}{models}"

    @staticmethod
    def parse(text: str) -> Size:
        """Read "100x6x2" or "100x6x2x20"; ValueError says what is wrong."""
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2,3}", text):
            raise ValueError(f"a size is BxIxO or BxIxOxK in positive integers, got {text!r}")
        return Size(*map(int, text.split("x")))

    @staticmethod
    def from_dict(row: dict[str, Any]) -> Size:
        return Size(row["rows"], row["inputs"], row["outputs"], row["models"])


@dataclass(frozen=True)
class Case:
    """One row's question. signs: "random", or "positive" for inputs without a negative one."""

    layer: str  # "npu", "realnpu", one of PRODUCTS, "npu-nau" (from the pass "train" on)
    kind: str  # one of PASSES
    size: Size
    signs: str = "random"

    @property
    def no_negatives(self) -> bool:
        """Whether a layer gets inputs without a negative one."""
        return self.signs == "positive" and self.kind in (FORWARD, STEP)

    def __str__(self) -> str:
        return f"{self.layer} {self.kind} {self.size}{' positive' if self.no_negatives else ''}"

    def to_dict(self) -> dict[str, Any]:
        return {"layer": self.layer, "kind": self.kind, **asdict(self.size), "signs": self.signs}

    @staticmethod
    def from_dict(row: dict[str, Any]) -> Case:
        kind = OLD_PASSES.get(row["kind"], row["kind"])
        return Case(row["layer"], kind, Size.from_dict(row), row["signs"])


TINY = (Size(100, 6, 2), Size(100, 2, 6), Size(100, 100, 1), Size(100, 100, 100))
LARGE = (Size(1024, 64, 64), Size(4096, 256, 256), Size(2048, 1024, 1024))
ENSEMBLES = (Size(100, 6, 2, 20), Size(100, 6, 2, 1000), Size(128, 100, 100, 10))
SIZES = TINY + LARGE + ENSEMBLES
GPU_SIZES = (
    Size(100, 6, 2), Size(100, 6, 2, 1000), Size(128, 100, 100, 100), Size(4096, 256, 256),
    Size(65536, 512, 512), Size(16384, 1024, 1024),
)  # fmt: skip
QUICK_SIZES = (Size(100, 6, 2), Size(100, 100, 100), Size(100, 6, 2, 20))
PRODUCTS = tuple(name for name, layer in ops.LAYERS.items() if layer.eager_products)  # [B, O, I]
PRODUCTS_SIZE = Size(128, 100, 100)
SIBLINGS = ("naivenpu", "nalu", "nac", "nau")  # layers of matrix products, beside NPU and RealNPU
SIBLING_SIZES = (Size(100, 6, 2), Size(128, 100, 100), Size(1024, 64, 64), Size(4096, 256, 256))
UNITS: dict[str, Any] = {
    name.lower(): unit
    for name, unit in vars(layers).items()
    if isinstance(unit, type) and unit is not layers.BaseLayer
}
TRAINING_ROWS = 100
RUN_STEPS = 100
LEARNING_RATE = 0.005
TRAINING_MODELS = (1, 20)
WIDE_TRAINING = (Size(128, 100, 100), Size(1024, 64, 64))  # whose time is arithmetic
ROLLOUT_MODELS = (1, 20, 100)
ADAPTIVE_TIMES = 51
ROLLOUT_STEPS, ROLLOUT_SHAPE, ROLLOUT_DT = 200, (3, 9), 0.05  # features and hidden units


# The cases of the picture, in their order.
SHORT = (
    Case("npu-nau", TRAIN, Size(100, 2, 4, 1), "positive"),
    Case("npu-nau", TRAIN, Size(100, 2, 4, 20), "positive"),
    Case("npu-nau", RUN, Size(100, 2, 4, 1), "positive"),
    Case("npu-nau", RUN, Size(100, 2, 4, 20), "positive"),
    Case("npu", STEP, Size(100, 6, 2)),
    Case("npu", STEP, Size(100, 6, 2, 1000)),
    Case("npu", STEP, Size(1024, 64, 64)),
    Case("npu", STEP, Size(2048, 1024, 1024)),
    Case("npu-nau", ROLLOUT, Size(200, 3, 9, 1), "positive"),
)
PASS_NAMES = {
    FORWARD: "forward", STEP: "forward and backward", TRAIN: "training step",
    RUN: "100 training steps", ROLLOUT: "rollout", ADAPTIVE: "adaptive rollout",
    DOUBLE_BACKWARD: "gradient of a loss with dy/dx", HVP: "Hessian-vector product",
    JVP: "JVP (tangent of y)",
}  # fmt: skip


def all_cases(sizes: Sequence[Size] | None = None) -> list[Case]:
    """The suite, or NPU and RealNPU at these sizes: random signs, then no negative inputs."""
    chosen, passes = SIZES if sizes is None else sizes, (FORWARD, STEP)
    cases = [Case(n, kind, size) for size in chosen for n in ("npu", "realnpu") for kind in passes]
    cases += _cases("npu", passes, chosen, "positive")
    if sizes is None:
        cases += training_cases() + _cases("npu-nau", [TRAIN], WIDE_TRAINING, "positive")
        cases += rollout_cases() + adaptive_cases() + product_cases()
        for name in SIBLINGS:
            cases += _cases(name, passes, SIBLING_SIZES)
        # No negative values, as where powers are physics.
        cases += _cases("npu", DERIVATIVES, SIBLING_SIZES, "positive")
    return cases


def _cases(
    layer: str, kinds: Sequence[str], sizes: Sequence[Size], signs: str = "random"
) -> list[Case]:
    return [Case(layer, kind, size, signs) for size in sizes for kind in kinds]


def product_cases() -> list[Case]:
    """The layers whose eager form builds a factor for each row, output and input: NMU, NMRU, iNALU.

    A layer that divides gets inputs without signs: else products of 200 factors are subnormal,
    which makes them slow.
    """
    signs = {layer: "positive" if ops.LAYERS[layer].min_input else "random" for layer in PRODUCTS}
    pairs = [(layer, kind) for layer in PRODUCTS for kind in (FORWARD, STEP)]
    return [Case(layer, kind, PRODUCTS_SIZE, signs[layer]) for layer, kind in pairs]


def hidden(size: Size) -> int:
    """The power units of a model in training."""
    return 6 if size.inputs == 2 else size.inputs


def training_cases() -> list[Case]:
    """The paper's simple arithmetic model, one and as many as it has seeds: a step, and a run."""
    sizes = [Size(TRAINING_ROWS, 2, 4, models) for models in TRAINING_MODELS]
    return [Case("npu-nau", kind, size, "positive") for kind in (TRAIN, RUN) for size in sizes]


def rollout_cases() -> list[Case]:
    """The paper's neural ODE: one model, the runs of a grid's cell, and those of a whole grid."""
    sizes = [Size(ROLLOUT_STEPS, *ROLLOUT_SHAPE, models) for models in ROLLOUT_MODELS]
    return _cases("npu-nau", [ROLLOUT], sizes, "positive")


def adaptive_cases() -> list[Case]:
    """A cycle of three species, one model and as many as for the fixed steps."""
    sizes = [Size(ADAPTIVE_TIMES, *ROLLOUT_SHAPE, models) for models in ROLLOUT_MODELS]
    return _cases("npu-nau", [ADAPTIVE], sizes, "positive")


@dataclass(frozen=True)
class Operands:
    """x ``[B, I]`` or ``[K, B, I]``, the parameters as in the formula, grad of y or target."""

    x: Tensor
    parameters: tuple[Tensor, ...]
    grad_y: Tensor

    def to(self, where: torch.dtype | str) -> Operands:
        """The operands in another dtype, or on another device."""
        parameters = tuple(parameter.to(where) for parameter in self.parameters)
        return Operands(self.x.to(where), parameters, self.grad_y.to(where))


def draw(case: Case, seed: int = 0) -> Operands:
    """Float32: x standard normal (or its size), weights Glorot uniform, those in [0, 1] U(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    size = case.size
    lead = () if size.models == 1 else (size.models,)
    matrix = (*lead, size.outputs, size.inputs)

    def glorot(*shape: int) -> Tensor:
        shape = shape or matrix
        bound = math.sqrt(6 / (shape[-1] + shape[-2]))
        return torch.empty(shape).uniform_(-bound, bound, generator=generator)

    if case.kind in (TRAIN, RUN):
        x = torch.empty(*lead, size.rows, size.inputs).uniform_(0.1, 2, generator=generator)
        a, b = x[..., 0], x[..., 1]
        units, gate = hidden(size), torch.full((*lead, size.inputs), 0.5)
        first, targets = (*lead, units, size.inputs), [a + b, a * b, a / b, a.sqrt()]
        parameters: tuple[Tensor, ...] = (glorot(*first), torch.zeros(first), gate)
        parameters += (glorot(*lead, size.outputs, units),)
        columns = [targets[n % len(targets)] for n in range(size.outputs)]
        return Operands(x, parameters, torch.stack(columns, -1))
    if case.kind == ROLLOUT:  # rows are steps
        u0 = torch.rand(*lead, size.inputs, generator=generator) + 0.5
        parameters = (0.2 * glorot(), 0.2 * glorot(), torch.full((*lead, size.inputs), 0.5))
        parameters += (0.2 * glorot(*lead, size.inputs, size.outputs),)
        grad_y = torch.randn(*lead, size.rows + 1, size.inputs, generator=generator)
        return Operands(u0, parameters, grad_y).to(torch.float64)
    if case.kind == ADAPTIVE:
        return _cycle(size, lead, generator)
    x = torch.randn(*lead, size.rows, size.inputs, generator=generator)
    if case.signs == "positive":
        x = x.abs()
    gate = torch.rand(*lead, size.inputs, generator=generator)
    if case.layer == "naivenpu":
        parameters = (glorot(), glorot())
    elif case.layer in ("npu", "realnpu"):
        parameters = (glorot(), glorot(), gate) if case.layer == "npu" else (glorot(), gate)
    else:
        intervals, weights = UNITS[case.layer].parameter_bounds, ops.WEIGHTS[case.layer].items()
        # Without a bias, as the modules' default.
        widths = {n: size.inputs * (1 + (s == "OJ")) for n, s in weights if s != "O"}
        shapes = {n: (*matrix[:-1], width) for n, width in widths.items()}

        def weight(name: str, shape: tuple[int, ...]) -> Tensor:
            if intervals.get(name) == (0, 1):
                return torch.rand(shape, generator=generator)
            return glorot(*shape)

        parameters = tuple(weight(name, shape) for name, shape in shapes.items())
    return Operands(x, parameters, torch.randn(*lead, size.rows, size.outputs, generator=generator))


def _cycle(size: Size, lead: tuple[int, ...], generator: torch.Generator) -> Operands:
    """u_d' = r_d u_d (u_{d-1} - u_{d+1}), r_d in [0.5, 1], and more units with small weights."""
    d, h = size.inputs, size.outputs
    u0 = torch.rand(*lead, d, generator=generator) + 0.5
    rates = torch.rand(*lead, d, 1, generator=generator) / 2 + 0.5
    weight_re = 0.1 * torch.randn(*lead, h, d, generator=generator)
    weight_im = 0.01 * torch.randn(*lead, h, d, generator=generator)
    weight = 0.001 * torch.randn(*lead, d, h, generator=generator)
    eye = torch.eye(d)
    units = min(d, h)
    weight_re[..., :units, :] = (eye + eye.roll(1, 1))[:units]  # unit j: u_j u_{j+1}
    weight[..., :, :units] = rates * (eye.roll(1, 0) - eye)[:, :units]
    grad_y = torch.randn(*lead, size.rows, d, generator=generator)
    gate = torch.full((*lead, d), 0.99)  # at 1 torch and JAX disagree about the clip's derivative
    return Operands(u0, (weight_re, weight_im, gate, weight), grad_y).to(torch.float64)


def cost(case: Case) -> tuple[float, float] | None:
    """(floating-point operations, bytes) that none can avoid; None where no bound is known.

    Operations: the real products of B x I x O (NPU 2 forward, 4 backward; RealNPU 1 and 2), mask
    products not counted. Bytes: the layer's inputs and outputs once per pass, in float32, y and s
    saved between the passes.
    """
    if case.layer not in ("npu", "realnpu") or case.kind not in (FORWARD, STEP):
        return None
    size = case.size
    matrices = 2 if case.layer == "npu" else 1
    x, y = size.rows * size.inputs, size.rows * size.outputs
    w = size.outputs * size.inputs * matrices
    products, floats = matrices, x + w + y
    if case.kind == STEP:
        products, floats = 3 * matrices, floats + y + (x + w + 3 * y) + (x + w)
    operations = 2.0 * products * size.rows * size.inputs * size.outputs
    return operations * size.models, 4.0 * floats * size.models


@dataclass(frozen=True)
class Workload:
    """run: one pass, timed. results: outputs and gradients, for the error; None: a yardstick."""

    run: Callable[[], object]
    results: Callable[[], Sequence[Tensor]] | None
    clear: Callable[[], object] = lambda: None  # frees what a pass leaves: the gradients
    keeps: object = None  # has the operands whose addresses are in a graph


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def filled(module: nn.Module, parameters: Sequence[Tensor]) -> nn.Module:
    """The module on the values' device with these values, in the order of its parameters."""
    module.to(parameters[0].device)
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), parameters, strict=True):
            parameter.copy_(value)
    return module


def both_ways(
    forward: Callable[[], Tensor], leaves: Sequence[Tensor], grad_y: Tensor, compare: bool = True
) -> Workload:
    """Forward and backward, with gradients for all leaves."""

    def clear() -> None:
        for tensor in leaves:
            tensor.grad = None

    def step() -> Tensor:
        clear()
        y = forward()
        y.backward(grad_y)
        return y

    def results() -> list[Tensor]:
        y = step()
        return [y.detach(), *(tensor.grad for tensor in leaves if tensor.grad is not None)]

    return Workload(step, results if compare else None, clear)
