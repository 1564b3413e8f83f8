"""The fractional SIR model by neural ODEs: three models learn an equation from 40 points of it.

Section 4.1 of the paper, as the published code ran it:

    data         dS/dt = -r + eta R,  dI/dt = r - alpha I,  dR/dt = alpha I - eta R,
                 r = beta I^gamma S^kappa, alpha 0.05, beta 0.06, eta 0.01, gamma = kappa = 0.5;
                 40 times from 0 to 200; no noise, no test set
    models       NPU(3, h), NAU(h, 3); RealNPU(3, h), NAU(h, 3);
                 Dense(3, h, tanh), Dense(h, h, tanh), Dense(h, 3)
    solution     200 Euler steps of 1, cubic Hermite polynomials at the save times; the exact
                 solution of the *true* equation so computed has an error of 1.08
    loss         mean squared error + beta sum |theta|, the gradient of |0| +1: an L1 norm, unlike
                 in the other tasks
    start        0.2 Glorot, imaginary parts 0, gates 1/2; Dense Glorot, biases 0
    optimizer    RMSProp 0.005 for 3,000 steps, then L-BFGS, at most 1,000 iterations, until
                 |gradient| <= 1e-8
    grid         h in 6, 9, 12, 15, 20; beta in 0, 0.01, 0.1, 1; five runs of each; float64

The gradient is that of the very loop that is computed; the authors solved the continuous adjoint
equation by the same coarse steps, which is the gradient of no loss. Their L-BFGS searches along a
line by Hager and Zhang's rules, ours by strong Wolfe conditions, at most ten evaluations a search
and 2,500 in all: at the kinks of the penalty, the gates and |x| no point satisfies them; then the
search goes on along the gradient. A model whose loss or gradient is not finite stays where it is.

`integrator` "rk4" takes the classic Runge-Kutta method with the same steps for NPU and RealNPU:
there the true parameters are the optimum.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.paper.fsir import dense
from benchmarks.paper.runner import Batch
from benchmarks.paper.streams import stream
from benchmarks.paper.tables import load
from benchmarks.paper.training import RMSProp, Rows
from npu_kernels import ode
from npu_kernels.optim.lbfgs import LBFGS

COLUMNS = ("model", "h", "beta", "run", "mse", "n_params", "first_mse", "iterations")
MODELS = ("NPU", "RealNPU", "Dense")
WIDTHS = (6, 9, 12, 15, 20)
BETAS = (0.0, 0.01, 0.1, 1.0)
RUNS = 5
STEPS, ITERATIONS = 3000, 1000  # of the first and of the second phase
EVALUATIONS, LINE_SEARCH = 2500, 10  # of the second phase, and of one of its line searches
QUICK_STEPS, QUICK_ITERATIONS, QUICK_RUNS, QUICK_WIDTHS = 60, 20, 1, (6, 9)
RATE = 0.005
START = {"NPU": 0.2, "RealNPU": 0.2, "Dense": 1.0}  # times Glorot's
NON_ZERO = 1e-3  # a parameter counts when it is larger

NAMES = ("S", "I", "R")
U0 = torch.tensor([100.0, 0.01, 0.0], dtype=torch.float64)
END, POINTS, GRID = 200.0, 40, 200  # time, save times, steps
RATES = {"alpha": 0.05, "beta": 0.06, "eta": 0.01}
POWER = 0.5

TIMES = torch.linspace(0, END, POINTS, dtype=torch.float64)


def data() -> Tensor:
    """The published training data ``[40, 3]``."""
    rows = [[row[f"{name}_true"] for name in NAMES] for row in load("fsir_series")]
    return torch.tensor(rows, dtype=torch.float64)


# ---- models as vectors ---------------------------------------------------------------------------


def shapes(model: str, h: int) -> list[tuple[int, ...]]:
    """The shapes of a model's parameters, in the order in which they lie in its vector."""
    if model == "Dense":
        return dense.shapes(h)
    return [(h, 3)] * (2 if model == "NPU" else 1) + [(3,), (3, h)]


def size(model: str, h: int) -> int:
    return sum(math.prod(shape) for shape in shapes(model, h))


def split(model: str, h: int, parameters: Tensor) -> list[Tensor]:
    """Parameters ``[K, N]`` as tensors ``[K, ...]``."""
    wanted_shapes = shapes(model, h)
    parts = parameters.split([math.prod(shape) for shape in wanted_shapes], 1)
    return [part.reshape(-1, *shape) for part, shape in zip(parts, wanted_shapes, strict=True)]


def start(model: str, h: int, beta: float, run: int) -> Tensor:
    """A model's first parameters ``[N]``, of its stream; a RealNPU's real weights are the NPU's."""
    generator = stream(f"fsir start {h} {beta}", run)
    parts = []
    for index, shape in enumerate(shapes(model, h)):
        if len(shape) == 1:
            part = torch.full(shape, 0.0 if model == "Dense" else 0.5)
        elif model == "NPU" and index == 1:
            part = torch.zeros(shape)
        else:
            bound = START[model] * math.sqrt(6 / (shape[0] + shape[1]))
            part = torch.rand(shape, generator=generator) * (2 * bound) - bound
        parts.append(part.flatten())
    return torch.cat(parts).double()


def solve(
    model: str, h: int, parameters: Tensor, integrator: str = "euler"
) -> tuple[Tensor, Tensor]:
    """States and derivatives ``[K, 201, 3]`` at the times 0, 1, .. 200 of K models ``[K, N]``."""
    parts = split(model, h, parameters)
    u0 = U0.to(parameters.device)
    if model == "Dense":
        return dense.rollout(u0, parts, GRID, END / GRID)
    return integrate(u0.expand(len(parameters), -1), parts, GRID, END / GRID, integrator)


def integrate(
    u0: Tensor, parts: list[Tensor], steps: int, dt: float, method: str
) -> tuple[Tensor, Tensor]:
    """States and derivatives ``[K, steps + 1, 3]`` of K power models (`split`) from ``u0 [K, 3]``.

    A single trajectory has a separate loop, which rounds in another order. With a copy of itself it
    does not use that loop, and no model's numbers depend on how many are computed with it.
    """
    models = len(u0)
    if models == 1:
        u0, parts = u0.expand(2, -1), [part.expand(2, *part.shape[1:]) for part in parts]
    weight_im, gate, weight = parts[1] if len(parts) == 4 else None, *parts[-2:]
    solution = ode.integrate(
        u0, parts[0], weight_im, gate, weight, steps=steps, dt=dt, method=method, nonfinite="keep",
        return_derivatives=True, clip=False,
    )  # fmt: skip
    assert isinstance(solution, tuple)
    return solution[0][:models], solution[1][:models]


def predict(
    model: str, h: int, parameters: Tensor, integrator: str = "euler", times: Tensor = TIMES
) -> Tensor:
    """The states of K models at `times`, ``[K, M, 3]``."""
    states, derivatives = solve(model, h, parameters, integrator)
    return ode.interpolate(states, times, dt=END / GRID, method="hermite", derivatives=derivatives)


def truth() -> Tensor:
    """The true equation as a RealNPU of width 3, ``[1, N]``: I^0.5 S^0.5, I, R."""
    alpha, beta, eta = RATES.values()
    weight_re = torch.tensor([[POWER, POWER, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    weight = torch.tensor([[-beta, 0.0, eta], [beta, -alpha, 0.0], [0.0, alpha, -eta]])
    return torch.cat([weight_re.flatten(), torch.ones(3), weight.flatten()]).double().unsqueeze(0)


# ---- work ----------------------------------------------------------------------------------------


def plan(options: Namespace, integrator: str) -> list[Batch]:
    """The batches of a command; `seeds` are the runs of each model, width and beta."""
    steps, iterations = (QUICK_STEPS, QUICK_ITERATIONS) if options.quick else (STEPS, ITERATIONS)
    widths = QUICK_WIDTHS if options.quick else WIDTHS
    runs = options.seeds or (QUICK_RUNS if options.quick else RUNS)
    numbers = runs, steps, iterations
    return batches(MODELS, widths, *numbers, integrator, options.device)


def batches(
    models: Sequence[str], widths: Sequence[int], runs: int, steps: int, iterations: int,
    integrator: str, device: str,
) -> list[Batch]:  # fmt: skip
    """The work: one batch for each model and width, of all its betas and runs."""
    common = {"steps": steps, "iterations": iterations, "integrator": integrator, "device": device}
    return [
        Batch(
            experiment="fsir",
            label=f"{model}-{h}-{integrator}",
            settings={"model": model, "h": h, **common},
            runs=tuple({"beta": beta, "run": run} for beta in BETAS for run in range(runs)),
            cost=1.5e-3 * COSTS[model](h) * (steps + 2 * iterations),
            make=Training,
        )
        for model in models
        if integrator != "rk4" or model != "Dense"
        for h in widths
    ]


# Expected milliseconds of an evaluation of 20 models; for the order and the time left only.
COSTS = {"NPU": lambda h: 0.15 * h, "RealNPU": lambda h: 0.1 * h, "Dense": lambda h: 4 + 0.2 * h}


class Training:
    """RMSProp, then L-BFGS; its step is an iteration of the problem that is furthest behind."""

    def __init__(self, batch: Batch) -> None:
        settings, self.runs = batch.settings, batch.runs
        self.model, self.h, self.integrator, self.steps, self.iterations = (
            settings[name] for name in ("model", "h", "integrator", "steps", "iterations")
        )
        self.total, self.done = self.steps + self.iterations, 0
        device = torch.device(settings["device"])
        self.target, self.times = data().to(device), TIMES
        betas = [run["beta"] for run in batch.runs]
        self.beta = torch.tensor(betas, dtype=torch.float64, device=device)
        starts = [start(self.model, self.h, run["beta"], run["run"]) for run in batch.runs]
        self.parameters = torch.stack(starts).to(device)
        self.optimizer = RMSProp(self.parameters, RATE)
        self.problems: LBFGS | None = None

    def errors(self, parameters: Tensor) -> Tensor:
        """The mean squared error of K models ``[K]``."""
        predicted = predict(self.model, self.h, parameters, self.integrator, self.times)
        return (predicted - self.target).square().mean((1, 2))

    def closure(self, parameters: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
        """The loss ``[A]`` and its gradient ``[A, N]``."""
        with torch.enable_grad():
            parameters = parameters.detach().requires_grad_()
            error = self.errors(parameters)
            (gradient,) = torch.autograd.grad(error.sum(), parameters)
        beta = self.beta[active]
        parameters = parameters.detach()
        loss = error.detach() + beta * parameters.abs().sum(1)
        return loss, gradient + torch.copysign(beta.unsqueeze(1), parameters)

    def advance(self, steps: int) -> None:
        active = torch.arange(len(self.runs), device=self.parameters.device)
        for step in range(self.done + 1, self.done + steps + 1):
            if step <= self.steps:
                _, gradient = self.closure(self.parameters, active)
                gradient.masked_fill_(~gradient.isfinite().all(1, keepdim=True), 0.0)
                self.optimizer.update(self.parameters, gradient, step)
                continue
            problems, iterations = self._second(), step - self.steps
            while len(running := problems.running):
                if int(problems.iterations[running].min()) >= iterations:
                    break
                problems.round()
        self.done += steps

    def _second(self) -> LBFGS:
        if self.problems is None:
            self.problems = LBFGS(
                self.closure, self.parameters, max_iterations=self.iterations,
                max_evaluations=EVALUATIONS, max_line_search=LINE_SEARCH, restart=True,
            )  # fmt: skip
        return self.problems

    def state(self) -> dict[str, Any]:
        second = None if self.problems is None else self.problems.state_dict()
        tensors = [self.parameters, *self.optimizer.state]
        return {"done": self.done, "tensors": tensors, "second": second}

    def restore(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        tensors = [self.parameters, *self.optimizer.state]
        for tensor, saved in zip(tensors, state["tensors"], strict=True):
            tensor.copy_(saved)
        if state["second"] is not None:
            self._second().load_state_dict(state["second"])

    @torch.no_grad()
    def results(self) -> tuple[Rows, dict[str, Tensor]]:
        result = self._second().result()
        counts = (result.x.abs() > NON_ZERO).sum(1)
        numbers = self.errors(result.x), counts, self.errors(self.parameters), result.n_iterations
        values = zip(*(column.tolist() for column in numbers), strict=True)
        rows = [
            dict(zip(COLUMNS, (self.model, self.h, run["beta"], run["run"], *of_run), strict=True))
            for run, of_run in zip(self.runs, values, strict=True)
        ]
        return rows, {"parameters": result.x.cpu(), "status": result.status.cpu()}
