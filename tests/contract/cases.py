"""Seeded calls of all that searches, trains and computes; each takes a second or less."""

import contextlib
import copy
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from npu_kernels import NAU, NPU, NPURegressor, RealNPU, formula, interop, layers, ode, training
from npu_kernels import fitting as fits
from npu_kernels.equations import __main__ as equations_command
from npu_kernels.equations import fit_many as fit_tables
from npu_kernels.interop import reference_layers
from npu_kernels.optim import Adam, lbfgs, least_squares
from tests.support.time_series import T, known, model, noise, numbers, predators, solution

# Name to value: numbers, text, or lines of text. What begins with "bits" may depend on the last
# bits of the data, such as equations that were not chosen, and is kept as a digest alone.
Values = dict[str, Any]
CASES: dict[str, Callable[[], Values]] = {}
# Those that continue from a checkpoint, the argument.
RESUMED: dict[str, Callable[[Path | None], Values]] = {}


def case(function: Callable[[], Values]) -> Callable[[], Values]:
    CASES[function.__name__.replace("_", " ")] = function
    return function


def resumed(name: str, call: Callable[[Path | None], Any], read: Callable[[Any], Values]) -> None:
    """Add a call, and what is read of its result."""
    RESUMED[name] = lambda checkpoint: read(call(checkpoint))
    CASES[name] = lambda: RESUMED[name](None)


# ---- tables --------------------------------------------------------------------------------------

ROWS = np.random.default_rng(0).uniform(0.5, 3, (60, 3))
E = np.random.default_rng(1).standard_normal(60)
LABELS = np.arange(60) % 3
(A, B, C), TWO = ROWS.T, ROWS[:, :2]
SIGNED = np.column_stack([A * (1 - 2 * (LABELS == 1)), B])
ZEROS = np.column_stack([A, np.where(LABELS == 0, 0.0, B)])
WILD = 3 * A / B + 0.05 * E + 8.0 * (np.arange(60) == 5)
SUM = 3.7 * A**2 / B - 12.5 * C + 0.2 * E
LONG = {"n_init": 64, "max_terms": 4}


def regressor(**options: Any) -> NPURegressor:
    return NPURegressor(**{"random_state": 0, "n_init": 8, "max_terms": 2} | options)


def equation_values(fitted: NPURegressor) -> Values:
    """The best equations, and how sure they are; deviations of exact data are rounding."""
    best, tables = fitted.best_equation_, fitted.equations_
    best, tables = (best, tables) if isinstance(best, list) else ([best], [tables])
    values: Values = {"complete": all(table.complete for table in tables)}
    values["law"] = [str(equation) for equation in best]
    for o, (equation, table) in enumerate(zip(best, tables, strict=True)):
        names = ["coef", "exponents"]
        names += (
            []
            if equation.exact
            else ["coef_stderr", "exponents_stderr", "holdout_nrmse", "nrmse", "bic"]
        )
        values |= {f"{name} {o}": getattr(equation, name) for name in names}
        values[f"bits of candidates {o}"] = [
            [tried.coef, tried.exponents, tried.bic] for tried in table
        ]
    return values


def table(name: str, X: Any, y: Any, data: dict[str, Any] | None = None, **options: Any) -> None:
    """data: further arguments of `fit`."""

    def call(checkpoint: Path | None) -> NPURegressor:
        return regressor(**options).fit(X, y, checkpoint=checkpoint, **data or {})

    resumed(f"table, {name}", call, equation_values)


table("product", ROWS, 70 * A * B / C**2, **LONG)
table("sum", ROWS, SUM, **LONG)
table("free exponents", ROWS, 3.7 * A**1.3 / B - 12.5 * C**0.4 + 0.02 * E, **LONG)
table("real exponents", TWO, 3 * A**1.37 / B + 0.05 * E, exponents="real")
table("bounds of exponents", TWO, 3 * A**1.5 / B + 0.05 * E, exponents=(-1, 2))
table("both signs", SIGNED, 3 * SIGNED[:, 0] ** 3 * B + 0.05 * E, integer_exponents=["x0"])
table("power of y", ROWS, np.sqrt(4 * A * B + C) * (1 + 0.01 * E), **LONG)
table("inverse of y", TWO, 1 / (1 / A + 1 / B))
table("ratio", ROWS, (2 * A * B + C) / (1 + 0.5 * B * C) * (1 + 0.001 * E), ratios=True)
table("functions", TWO, 3 * np.sin(A) * B + 0.05 * E, functions=["sin", "exp"])
table("function of y", TWO, np.exp(0.5 * A - 2 * B) * (1 + 0.02 * E), target_transforms="auto")
table("groups", TWO, (1 + LABELS) * A**2 / B + LABELS * B + 0.1 * E, {"groups": LABELS})
table("units", TWO, 6.28 * np.sqrt(A / B) * (1 + 0.01 * E), X_units=["m", "m/s**2"], y_units="s")
table("known part", TWO, A * B - 4.9 * B**2 + 0.05 * E, known_part="x0*x1")
table("given terms", TWO, 2 * A * B**2 + 1.5 + 0.1 * E, required_terms=["x0*x1**2", "1"])
table("bounds", TWO, 2 * A + B / 2 + 0.1 * E, required_terms={"x0": (0, 1.95), "x1": None, "1": 0})
table("positive", TWO, 2 * A**2 + 0.5 * B + 0.1 * E, signs="nonnegative")
table("no law", ROWS, np.sin(A * B) + C**1.3 + 0.1 * E, max_terms=None)
table("relative noise", TWO, 3 * A / B * (1 + 0.1 * E), noise="proportional")
table("noise as a factor", TWO, 3 * A / B * np.exp(0.1 * E), noise="multiplicative")
table("known noise", TWO, 3 * A / B + 2 * B + 0.2 * E, noise=0.2)
table("zeros", ZEROS, 3 * A * ZEROS[:, 1] + 2 * A + 0.1 * E)
table("wild rows", TWO, WILD)
table("robust loss", TWO, WILD, loss="huber")
table("weights", TWO, 3 * A / B + 0.05 * E / np.sqrt(C), {"sample_weight": C})
table("several outputs", TWO, np.column_stack([3 * A * B, A**2 / B + 0.05 * E]))


def evaluated(expression: Any) -> float:
    symbols = sorted(expression.free_symbols, key=str)
    return float(expression.subs(dict(zip(symbols, (1.5, 2, 0.5), strict=False))))


def bounds(intervals: Any) -> list[list[float]]:
    return [[interval.value, interval.low, interval.high] for interval in intervals]


@case
def forms_of_a_law() -> Values:
    fitted = regressor().fit(ROWS, SUM)
    module = fitted.torch_module()
    return {
        "text": [*fitted.report().splitlines(), fitted.latex(), str(module)],
        "sympy": evaluated(fitted.sympy()),
        "predictions": [fitted.predict(2 * ROWS[:3]), fitted.score(ROWS, SUM)],
        "weights": flat(module),
        "intervals": bounds(fitted.confidence_intervals()),
        "bootstrap": bounds(fitted.bootstrap(ROWS, SUM, n_resamples=20)),
        "bits of the table": str(fitted.equations_),
    }


@case
def other_data_and_many_tables() -> Values:
    refitted = equation_values(regressor().fit(ROWS, SUM).refit(ROWS[:40] + 0.1, SUM[:40]))
    outcomes = fit_tables({"p": (TWO, 3 * A / B), "q": (TWO, A**2 + 0.1 * E)}, regressor())
    return refitted | {"many": str(outcomes).splitlines()}


@case
def command() -> Values:
    said, rows = io.StringIO(), "\n".join(f"{a:.4f}, {b:.4f}, {a * a / b:.4f}" for a, b in TWO)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        file = Path(folder, "table.csv")
        file.write_text(f"a, b, c\n{rows}\n", encoding="utf-8")
        status = equations_command.main([str(file), "--target", "c", "--max-terms", "2"])
    return {"status": status, "text": said.getvalue().splitlines()}


# ---- series --------------------------------------------------------------------------------------


def dynamics(exponents: list[list[float]], rates: list[list[float]]) -> nn.Sequential:
    """The model of equations whose exponents stay: for trajectories, and to start from."""
    power = RealNPU(len(exponents[0]), len(exponents)).double()
    sums = NAU(len(exponents), len(rates), clip=False).double()
    power.load_state_dict({"weight_re": numbers(*exponents), "gate": 0 * power.gate + 1})
    sums.load_state_dict({"weight": numbers(*rates)})
    return nn.Sequential(power.requires_grad_(False), sums)


def pair(first: type[nn.Module], last: type[nn.Module], width: int = 3) -> nn.Sequential:
    return nn.Sequential(first(2, width, num_models=12), last(width, 1, num_models=12))


TIMES = torch.linspace(0, 20, 30, dtype=torch.float64)
GUESS = (1.0, -0.5, 0.4, -1.0)  # of the rates of predators and prey
ORDER = solution([[1.5]], [[-80.0]], [0.01], TIMES / 10)
EPIDEMIC = [[1, 1, 0], [0, 1, 0]], [[-1.5, 0], [1.5, -0.5], [0, 0.5]]
PATIENTS = model(3, 2, 6), TIMES, noise(solution(*EPIDEMIC, [0.99, 0.01, 0], TIMES), 0.01)
HARES = noise(predators(T), 0.01)
GAPS = HARES.clone()
GAPS[3, 0] = GAPS[7, 1] = GAPS[5] = torch.nan
FOOD = [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]]
RATES = [[1, -0.5, 0, 0, 0], [0, 0.4, -0.3, -0.6, 0], [0, 0, 0, 0.5, -0.4]]
CHAIN = noise(solution(FOOD, RATES, [1.0, 1.5, 0.7], 0.6 * TIMES), 0.02)
DOSE = TIMES, 2 + TIMES.sin()
DRIVEN = dynamics([[1, 0], [0, 2]], [[-0.7, 1.3]])
DOSED = ode.rollout(DRIVEN, numbers(5), t=TIMES / 2, inputs=DOSE, rtol=1e-10).detach()
# The second state follows the first one within a ten-thousandth of the time.
STIFF = dynamics([[1, 0], [0, 1]], [[-1, 0], [1e4, -1e4]])
EARLY = torch.cat([numbers(0), torch.logspace(-5, 0.5, 24, dtype=torch.float64)])
FAST = ode.rollout(STIFF, numbers(1, 0.2), t=EARLY, method="kvaerno5", rtol=1e-10).detach()


def series(name: str, *data: Any, **options: Any) -> None:
    def read(result: ode.SeriesFitResult) -> Values:
        return {
            "complete": result.complete,
            "law": [
                str(result.equation),
                result.method,
                str(result.diagnostics),
                *result.unidentified,
            ],
            "weights": [*result.weights(), result.u0],
            "standard errors": [*result.stderr.values()],
            "fit": [result.nrmse, result.bic, result.df_resid],
        }

    resumed(f"series, {name}", lambda file: ode.fit(*data, checkpoint=file, **options), read)


series("order of a rate", model(1, 1, 4), TIMES / 10, noise(ORDER, 0.01))
series("searched", model(2, 3, 8), T, HARES, names=["x", "y"])
series("food chain", model(3, 5, 8), 0.6 * TIMES, CHAIN)
series("not simplified", known(GUESS), T, HARES, init="model", simplify=False)
series("gaps", known(GUESS), [T, T], [GAPS, predators(T, (1, 2.5))], init="model")
START = [torch.nan, 1.0]
series("unobserved", known(GUESS), T, HARES[:, :1], observed=[0], u0=START, init="model")
ERRORS = 1 + torch.from_numpy(E[:30, None]) / 50
series("relative", model(1, 1, 4), TIMES / 10, ORDER * ERRORS, sigma="proportional")
series("inputs", pair(RealNPU, NAU), TIMES / 2, noise(DOSED, 0.005), inputs=DOSE)
series("reactions", *PATIENTS, stoichiometry=[[-1, 0], [1, -1], [0, 1]], signs="nonnegative")
series(
    "conserved", *PATIENTS, conserved=[[1, 1, 1]], required_terms=["x0*x1"], integer_exponents=True
)
series("stiff", STIFF, EARLY, noise(FAST, 0.001), init="model", simplify=False)


@case
def forms_of_dynamics() -> Values:
    result = ode.fit(model(2, 3, 4), T, HARES, names=["x", "y"])
    return {
        "text": [*result.report().splitlines(), *result.latex()],
        "sympy": [evaluated(expression) for expression in result.sympy()],
        "intervals": bounds(result.confidence_intervals()),
        "predictions": result.predict(T[:3] + 7),
        "bits of alternatives": [str(other.equation) for other in result.alternatives()],
    }


# ---- training ------------------------------------------------------------------------------------

X = torch.rand(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
Y = torch.stack([X.prod(1), X[:, 0] / X[:, 1]], 1)
SHORT = fits.Recipe(rungs=((60, 1.0), (60, 0.5)), refine=60, settle=20, denominators=(1, 2))


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def fitted(name: str, start: nn.Module, y: Tensor, **options: Any) -> None:
    def call(checkpoint: Path | None) -> fits.FitResult:
        return fits.fit(start.double(), X, y, checkpoint=checkpoint, **options)

    def read(result: fits.FitResult) -> Values:
        return {
            "complete": result.complete,
            "law": [str(formula.extract(result.model)), result.chosen.kind],
            "weights": flat(result.model),
            "bits of scores": [result.n_steps, result.n_rows, result.init_losses, result.n_stages],
        }

    resumed(f"fit, {name}", call, read)


fitted("power", RealNPU(2, 1, num_models=12), Y[:, 1:], recipe=SHORT)
fitted("coefficient", RealNPU(2, 1, num_models=12), 3.5 * noise(Y[:, :1], 0.01), recipe=SHORT)
fitted("sum of products", pair(NPU, NAU), noise(Y.sum(1, keepdim=True), 0.01))
fitted("product of sums", pair(NAU, layers.NMU, 2), (X[:, :1] - X[:, 1:]) * X[:, 1:], seed=3)


@case
def fits_of_several_problems() -> Values:
    x, start = torch.stack([X, X + 0.5]), RealNPU(2, 1, num_models=16).double()
    result = fits.fit_batch(start, x, x[..., :1] / x[..., 1:], seeds=[1, 2], recipe=SHORT)
    chosen = [candidate.kind for candidate in result.chosen]
    return {"weights": flat(result.models), "chosen": chosen}


def chain(*modules: nn.Module) -> nn.Sequential:
    """The modules in float64, with drawn parameters whose bits no processor changes."""
    generator, chained = torch.Generator().manual_seed(5), nn.Sequential(*modules).double()
    for parameter in chained.parameters():
        drawn = torch.randint(7, 58, parameter.shape, generator=generator)
        parameter.data.copy_(drawn / 64)
    return chained


def trained(name: str, module: nn.Module, optimizer: Any = "adam", **options: Any) -> None:
    """optimizer: a name, or a function of the parameters.

    A run that begins a checkpoint ends after 20 steps.
    """

    def call(checkpoint: Path | None) -> training.TrainingResult:
        end = 60 if checkpoint is None or checkpoint.exists() else 20
        # A schedule has a state.
        model, settings = copy.deepcopy((module, {"lr": 0.01, "steps": 60} | options))
        chosen = optimizer if isinstance(optimizer, str) else optimizer(model.parameters())
        settings |= {"callback_every": 10, "callbacks": lambda run: run.n_steps == end}
        torch.manual_seed(3)
        return training.run(model, X, Y, optimizer=chosen, checkpoint=checkpoint, **settings)

    def read(run: training.TrainingResult) -> Values:
        return {"complete": run.complete, "losses": run.losses[::19], "weights": flat(run.model)}

    resumed(f"run, {name}", call, read)


MODEL, MODELS = (chain(NPU(2, 3, num_models=k), NAU(3, 2, num_models=k)) for k in (None, 3))
SCHEDULES = {"l1": training.SteppedSchedule(1e-3, 0.1, 20), "frobenius": lambda step: 0.1 / step}
WHOLE = {"penalties": {"madsen": 0.1, "integer": 0.01}, "project": 0.7, "nonfinite": "zero"}
RECIPROCALS = chain(layers.NMRU(2, 3), layers.NaiveNPU(3, 2))
trained("adam", MODEL)
trained("models", MODELS, "rmsprop", batch_size=8)
trained("sgd", MODEL, lambda parameters: torch.optim.SGD(parameters, 0.01, 0.9), lr=None)
trained("schedules", MODEL, Adam, lr=lambda step: 0.1 / step, penalties=SCHEDULES)
trained("whole weights", chain(layers.NMU(2, 3), NAU(3, 2)), **WHOLE)
trained("weights of rows", RECIPROCALS, sample_weight=X, project=False)
trained("other layers", chain(nn.Linear(2, 3), layers.iNALU(3, 3), layers.NALU(3, 2)))


@case
def parts_of_a_step() -> Values:
    module, losses = copy.deepcopy(MODEL), []
    optimizer, schedule = Adam(module.parameters(), 0.1), training.SteppedSchedule(1e-3, 0.1, 2)
    for _ in range(4):
        optimizer.zero_grad()
        penalty = training.l1(module, schedule.step()) + training.regularizer(module)
        loss = training.mse_loss(module(X), Y) + penalty
        loss.backward()
        optimizer.step()
        training.project_(module, weight_bound=1.0)
        losses.append(loss.item())
    return {"losses": losses, "weights": flat(module)}


@case
def minimisers() -> Values:
    def valley(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        residual = x[:, 1] - x[:, 0] ** 2
        gradient = torch.stack([2 * (x[:, 0] - 1) - 400 * x[:, 0] * residual, 200 * residual], 1)
        return (1 - x[:, 0]) ** 2 + 100 * residual**2, gradient

    def jacobian(x: Tensor) -> tuple[Tensor, Tensor]:
        growth = (x[:, 1:] * T).exp()
        residual = x[:, :1] * growth - 2 * (-0.3 * T).exp()
        return residual, torch.stack([growth, x[:, :1] * T * growth], 2)

    descent = lbfgs.lbfgs(valley, 2 * X[:3], max_iterations=12)
    x, free = X[:3] * numbers(1, -1), torch.ones(3, 2, dtype=torch.bool)
    squares = least_squares.fit(x, free, lambda x: jacobian(x)[0], jacobian, 4)
    return {"lbfgs": descent.x, "iterations": descent.n_iterations, "least squares": [*squares]}


# ---- time loops ----------------------------------------------------------------------------------


def rollout(name: str, module: nn.Sequential, u0: Tensor, **options: Any) -> None:
    """A trajectory, and the gradients of its sum of squares."""

    def of() -> Values:
        start = u0.clone().requires_grad_()
        result = ode.rollout(module, start, **options)
        path, *more = result if isinstance(result, tuple) else (result,)
        tensors = [start, *(p for p in module.parameters() if p.requires_grad)]
        gradients = torch.autograd.grad(path.square().sum(), tensors)
        more = [tensor[..., -1, :] for tensor in more]
        return {"path": path[..., ::8, :], "gradients": gradients, "more": more}

    CASES[f"rollout, {name}"] = of


PREY = dynamics([[1, 0], [1, 1], [0, 1]], [[1.2, -0.6, 0], [0, 0.5, -0.8]])
HERDS, SAVING = numbers([2, 1], [1, 2.5]), {"method": "midpoint", "memory": "checkpointed"}
rollout("euler", MODEL, numbers(2, 1), steps=40, dt=0.05)
rollout("midpoint", MODELS, HERDS.expand(3, 2, 2), steps=16, dt=0.05, **SAVING)
rollout(
    "rk4", PREY, HERDS, steps=40, dt=0.1, method="rk4", return_derivatives=True, return_error=True
)
rollout("tsit5", PREY, HERDS, t=T)
rollout("dopri5", MODEL, numbers(1, 0.5), t=T / 6, method="dopri5", rtol=1e-8)
rollout("kvaerno5", PREY, numbers(2, 1), t=T, method="kvaerno5")
rollout("auto", STIFF, numbers(1, 0.2), t=EARLY, method="auto")
rollout("inputs", DRIVEN, numbers(5), t=TIMES / 2, inputs=DOSE)


@case
def other_time_loops() -> Values:
    weights = PREY[0].weight_re, None, None, PREY[1].weight
    steps = {"dt": -0.05, "return_derivatives": True, "clip": False, "method": "rk4_38"}
    path, derivatives = ode.integrate(HERDS, *weights, steps=20, **steps)
    between = ode.interpolate(
        path, -T[:4] / 10, dt=-0.05, method="hermite", derivatives=derivatives
    )
    return {"path": path[:, ::5], "between": between}


# ---- layers, formulas, exchange with other code --------------------------------------------------

LAYERS = ["NAC", "NALU", "NAU", "NMRU", "NMU", "NPU", "NaiveNPU", "RealNPU", "iNALU"]


@case
def new_layers() -> Values:
    values: Values = {}
    for name in LAYERS:
        layer = getattr(layers, name)(3, 2, num_models=2, dtype=torch.float64)
        values |= {name: [str(layer), *layer.state_dict()], f"{name}, weights": flat(layer)}
    return values


@case
def formulas() -> Values:
    values: Values = {}
    for name in LAYERS:
        read = formula.extract(chain(getattr(layers, name)(3, 1)), ["a", "b", "c"])
        values[name] = [read.text(6), *read.latex(), read.note]
        values[f"{name}, values"] = read(2 * X[:6].reshape(4, 3) - 2)
    two = formula.extract(MODELS, model_index=1, eps=True, nonnegative=X)
    return values | {"chain": [str(two), str(two.torch_function)]}


@case
def simplified() -> Values:
    module, y = chain(RealNPU(2, 2), NAU(2, 1)), noise(Y.sum(1, keepdim=True), 0.001)
    powers = {"weight_re": numbers([1.01, 0.98], [1.02, -0.99]), "gate": numbers(0.98, 1)}
    module[0].load_state_dict(powers)
    module[1].load_state_dict({"weight": numbers([0.99, 1.01])})
    result = formula.simplify(module, X, y, tolerance=0.05)
    shares = formula.nearest_fraction(numbers(0.3333, 0.74, -1.6667, 2.51), 4)
    return {
        "text": [*result.details().splitlines(), str(formula.extract(result.module))],
        "numbers": [shares, formula.relative_error(module(X), y)],
    }


class Published(nn.Module):
    """A power unit of other code, with weights ``[I, O]``."""

    def __init__(self) -> None:
        super().__init__()
        self.W_real, self.W_im = (nn.Parameter(X[k : k + 3].T.clone() - 1) for k in (0, 3))
        self.G, self.eps = nn.Parameter(numbers(0.3, 0.8)), 1e-5

    def forward(self, x: Tensor) -> Tensor:
        g = self.G.clamp(0, 1)
        r, k = g * (x.abs() + self.eps) + 1 - g, torch.pi * g * (x < 0)
        size = (r.log() @ self.W_real - k @ self.W_im).exp()
        return size * (r.log() @ self.W_im + k @ self.W_real).cos()


@case
def exchange() -> Values:
    eager = chain(reference_layers.NPU(2, 3), reference_layers.iNALU(3, 2))
    other = interop.swap(Published())
    modules = {"ours": interop.swap(eager), "other": other}
    for layout in ("reference", "julia", "pytorch"):
        modules[layout] = interop.to_reference(other, layout)
    modules["parameters"] = interop.from_parameters({"Re": np.ones((1, 2)), "g": np.full(2, 0.5)})
    texts = {name: [str(module), *module.state_dict()] for name, module in modules.items()}
    return texts | {f"{name}, values": module(3 * X[:4] - 3) for name, module in modules.items()}
