"""ODEBench and Strogatz: how well equations reconstruct a series and another of the same system.

Each system has two starts. An equation is fitted to the series of one of them. "Reconstruction":
the equation from that start follows the true trajectory with R2 above 0.9 (columns weighted by
their variances); "generalisation": so does the equation from the other start. "Form right", of the
systems whose right sides are sums of products of powers: exactly the true coefficients and
exponents are not 0. Noise is multiplicative, as in the published benchmark, and `ode.fit` is told
so (`sigma="proportional"`). The equations are those of `ode.fit`, or of pysindy.

pysindy is sparse regression of derivatives on products (Brunton, Proctor and Kutz 2016). It is not
needed otherwise: ``pip install pysindy``. Its settings are those of `GRID`, in which the
Bayesian information criterion of the trajectory from the first measured state chooses.
"""

from __future__ import annotations

import collections
import itertools
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sympy
import torch
from torch import nn

from benchmarks.marked_blocks import table as markdown_table
from benchmarks.rows_command import Row
from benchmarks.time_series.systems import ALL, SYSTEMS, System
from npu_kernels import NAU, RealNPU, ode
from npu_kernels.env import processor

MODEL_STARTS = 24
TERMS = {1: 3, 2: 6, 3: 8, 4: 6}  # of the model, by the number of states
METHODS = ("ode.fit", "pysindy")
KEYS = "system", "start", "noise", "dropped", "method"  # of a row
# Method, shares of series reconstructed and generalised to without noise, in %; 126 series.
PUBLISHED = ("ODEFormer, published", 66.4, 32.8)
POINTS_OF_SERIES = 150  # of a series of ODEBench
MIN_R2 = 0.9
MAX_EVALUATIONS = 60_000  # of an equation, whose trajectory may come near a pole
MAX_TRIAL_EVALUATIONS = 6000  # of an equation of pysindy's grid
MAX_SIZE = 1e15  # of its states
Numbers = tuple[np.ndarray, np.ndarray]  # exponents [h, D] and coefficients [D, h] of an equation


def expressions(system: System) -> tuple[list[sympy.Symbol], list[sympy.Expr]]:
    """Return the states, and the right-hand sides with the constants' values."""
    states = list(sympy.symbols(f"x:{len(system.starts[0])}", positive=True))
    names = {str(state): state for state in states}
    names |= {f"c{n}": sympy.Float(value, 30) for n, value in enumerate(system.constants)}
    return states, [sympy.sympify(text, locals=names) for text in system.equations.split(";")]


def terms(system: System) -> tuple[np.ndarray, np.ndarray] | None:
    """Return exponents ``[h, D]`` and coefficients ``[D, h]``; None for other equations."""
    states, sides = expressions(system)
    rows: dict[tuple[float, ...], np.ndarray] = collections.defaultdict(
        lambda: np.zeros(len(sides))
    )
    for equation, side in enumerate(sides):
        for term in sympy.Add.make_args(sympy.expand(side)):
            number, product = term.as_independent(*states)
            powers = product.as_powers_dict() if product != 1 else {}
            if any(base not in states or power.free_symbols for base, power in powers.items()):
                return None
            rows[tuple(float(powers.get(state, 0)) for state in states)][equation] += float(number)
    return np.array(list(rows)), np.array(list(rows.values())).T


def solved(
    rhs: Any, start: Any, times: np.ndarray, limit: int = MAX_EVALUATIONS, rtol: float = 1e-9
) -> np.ndarray | None:
    """Return the states ``[M, D]`` at the times, None where the trajectory ends before.

    limit: evaluations of the rhs. rtol: relative tolerance; the absolute one is a hundredth.
    """
    from scipy.integrate import solve_ivp

    count = 0

    def limited(t: float, state: np.ndarray) -> Any:
        nonlocal count
        count += 1
        if count > limit:
            raise FloatingPointError
        return rhs(t, state)

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            path = solve_ivp(
                limited, (times[0], times[-1]), start, t_eval=times, method="LSODA",
                rtol=rtol, atol=rtol / 100,
            ).y.T  # fmt: skip
    except (FloatingPointError, ZeroDivisionError, OverflowError, ValueError):
        return None
    is_usable = path.shape[0] == len(times) and bool((np.abs(path) < MAX_SIZE).all())
    return path if is_usable else None


def is_strogatz(system: System | Row) -> bool:
    """Return whether a system, or the system of a row, is of SRBench's Strogatz part."""
    number: int = system.number if isinstance(system, System) else system["system"]
    return number > len(SYSTEMS)


def sample_times(system: System) -> np.ndarray:
    return np.linspace(0, 9.9, 100) if is_strogatz(system) else np.linspace(0, 10, POINTS_OF_SERIES)


def truth(system: System, start: int, times: np.ndarray) -> np.ndarray:
    states, sides = expressions(system)
    function = sympy.lambdify(states, sides, "numpy")
    path = solved(lambda _, x: [float(v) for v in function(*x)], system.starts[start], times)
    assert path is not None, system
    return path


def series(
    system: System, start: int, noise: float, dropped: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return times and measurements ``[M, D]``; dropped: the share of points left out."""
    generator = np.random.default_rng(1000 * start + system.number)
    times = sample_times(system)
    true = truth(system, start, times)
    values = true * (1 + noise * generator.normal(size=true.shape))
    order = generator.permutation(len(times))
    rows = np.sort(order[: round(len(times) * (1 - dropped))])
    return times[rows], values[rows]


def r2(true: np.ndarray, path: np.ndarray | None) -> float:
    """Return R2 with columns weighted by their variances; minus infinity without a path."""
    if path is None:
        return -np.inf
    return float(1 - ((true - path) ** 2).sum() / ((true - true.mean(0)) ** 2).sum())


def rhs_of(exponents: np.ndarray, coefficients: np.ndarray) -> Any:
    """Return the equation of time and state; exponents ``[h, D]``, coefficients ``[D, h]``."""

    def rhs(_: float, x: np.ndarray) -> np.ndarray:
        signs = np.cos(np.pi * exponents * (x < 0))
        powers = np.where(exponents == 0, 1.0, signs * (np.abs(x) + 2.2e-16) ** exponents)
        return np.asarray(coefficients @ powers.prod(1))

    return rhs


def has_form(equation: Numbers, known: Numbers) -> bool:
    """Return whether exactly the true numbers are not 0, whatever the order of the terms."""
    (powers, rates), (exponents, coefficients) = equation, known
    return powers.shape == exponents.shape and any(
        np.array_equal(powers[list(order)] != 0, exponents != 0)
        and np.array_equal(rates[:, list(order)] != 0, coefficients != 0)
        for order in itertools.permutations(range(len(powers)))
    )


def fit(times: np.ndarray, values: np.ndarray, has_noise: bool = False) -> ode.SeriesFitResult:
    """Return the result of `ode.fit`. has_noise: in proportion to the values."""
    d = values.shape[1]
    h = TERMS[d]
    model = nn.Sequential(
        RealNPU(d, h, num_models=MODEL_STARTS), NAU(h, d, num_models=MODEL_STARTS)
    )
    sigma = "proportional" if has_noise else None
    return ode.fit(model, times, torch.from_numpy(values), sigma=sigma, progress=False)


def fitted(
    times: np.ndarray, values: np.ndarray, has_noise: bool = False
) -> tuple[Numbers, str, bool]:
    """Return the equation of `fit`: its numbers, its text, and whether it warned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ode.PoorFitWarning)
        result = fit(times, values, has_noise)
    exponents, coefficients = (part[0].numpy() for part in result.weights())
    warned = any(issubclass(one.category, ode.PoorFitWarning) for one in caught)
    return (exponents, coefficients), str(result.equation).replace("\n", "; "), warned


def sindy(times: np.ndarray, values: np.ndarray) -> tuple[Numbers, str, bool]:
    """Return the equation of pysindy, as `fitted` does; it never warns."""

    def path(exponents: np.ndarray, coefficients: np.ndarray) -> np.ndarray | None:
        rhs = rhs_of(exponents, coefficients)
        return solved(rhs, values[0], times, MAX_TRIAL_EVALUATIONS, 1e-6)

    return *sparse(times, values, path), False


def measure(number: int, start: int, noise: float, dropped: float, method: str = METHODS[0]) -> Row:
    """Return the row of one series of system `number`; dropped: the share of points left out."""
    system = next(system for system in ALL if system.number == number)
    times = sample_times(system)
    true = truth(system, start, times)
    first = series(system, start, noise)[1][0]
    points = series(system, start, noise, dropped)
    row: Row = {"system": number, "start": start, "noise": noise, "dropped": dropped}
    known = terms(system)
    row |= {"method": method, "terms": None if known is None else len(known[0])}
    begin = time.process_time()
    try:
        is_ours = method == METHODS[0]
        equation, text, warned = fitted(*points, noise > 0) if is_ours else sindy(*points)
    except (RuntimeError, NoEquationError) as error:
        row |= {"law": None, "error": str(error), "form": False, "warned": True}
        scores: list[float | None] = [None, None]
        seconds = round(time.process_time() - begin, 2)
    else:
        seconds = round(time.process_time() - begin, 2)
        row |= {"law": text, "form": bool(known and has_form(equation, known)), "warned": warned}
        other, rhs = truth(system, 1 - start, times), rhs_of(*equation)
        exact = r2(true, solved(rhs, first, times)), r2(other, solved(rhs, other[0], times))
        scores = [round(score, 4) if np.isfinite(score) else None for score in exact]
    row |= {"reconstruction": scores[0], "generalisation": scores[1], "seconds": seconds}
    return row | {"processor": processor()}


def share(name: str, group: list[Row]) -> float:
    """Return the share of rows whose score is above `MIN_R2`."""
    return sum((row[name] or 0) > MIN_R2 for row in group) / len(group)


def groups(rows: list[Row]) -> dict[tuple[bool, float, float, str], list[Row]]:
    """Return the rows by suite, noise, share of dropped points and method."""
    key = lambda row: (is_strogatz(row), row["noise"], row["dropped"], row["method"])  # noqa: E731
    return {name: list(group) for name, group in itertools.groupby(sorted(rows, key=key), key)}


def table(rows: list[Row]) -> str:
    """Return the shares as Markdown: a line for each suite, noise, dropped share and method."""
    header = ["systems", "noise", "points left out", "method", "series", "reconstruction"]
    header += ["generalisation", "form right, of those that have it", "warned of", "median seconds"]
    name, *rates = PUBLISHED
    published = [name, "126", *(f"{rate:g} %" for rate in rates), "-", "-", "-"]
    lines = [["ODEBench", "0 %", "0 %", *published]]
    for (strogatz, noise, dropped, method), group in groups(rows).items():
        known = [row for row in group if row["terms"] is not None]
        right = f"{sum(row['form'] for row in known)} of {len(known)}"
        scores = [share(name, group) for name in ("reconstruction", "generalisation")]
        cells = [f"{score * len(group):.0f} ({100 * score:.0f} %)" for score in scores]
        warned = str(sum(row["warned"] for row in group)) if method == METHODS[0] else "-"
        suite = "Strogatz" if strogatz else "ODEBench"
        condition = [suite, f"{100 * noise:g} %", f"{100 * dropped:g} %", method, str(len(group))]
        seconds = f"{np.median([row['seconds'] for row in group]):.2g}"
        lines.append([*condition, *cells, right, warned, seconds])
    return markdown_table(header, lines).rstrip("\n")


def picture(rows: list[Row], path: Path) -> None:
    """Draw the shares of ODEBench, a panel for each score, a group of bars for each condition."""
    from benchmarks.drawing import COLORS, figure, headline, legend, save

    shown = [(key[1:], group) for key, group in groups(rows).items() if not key[0]]
    conditions = list(dict.fromkeys(key[:2] for key, _ in shown))
    labels = [
        f"noise {100 * noise:g} %" + (f",\n{100 * dropped:g} % left out" if dropped else "")
        for noise, dropped in conditions
    ]
    drawing, axes = figure(2, 1, 5.2, share="all")
    scores = ("reconstruction", "generalisation")
    for axis, score, published in zip(axes[:, 0], scores, PUBLISHED[1:], strict=True):
        for n, method in enumerate(METHODS):
            bars = [(key, group) for key, group in shown if key[2] == method]
            x = [conditions.index(key[:2]) + 0.38 * (n - 0.5) for key, _ in bars]
            shares = [100 * share(score, group) for _, group in bars]
            drawn = axis.bar(x, shares, 0.36, label=method, color=COLORS[method])
            axis.bar_label(drawn, fmt="%.0f")
        axis.plot([-0.45, 0.45], [published] * 2, "k--", label=PUBLISHED[0])
        axis.set_xticks(range(len(labels)), labels)
        axis.set(title=score, ylim=(0, 110), ylabel="R2 above 0.9 (%)")
    legend(axes[0][0], 3)
    headline(
        drawing, "Equations of ODEBench's series", "generalisation: from the system's other start"
    )
    save(drawing, path)


# Degrees of the polynomials; shares of a coefficient's unit below which it is set to 0; methods of
# differentiation.
GRID = (2, 3), (0.01, 0.05, 0.1, 0.5), ("fourth order", "Savitzky-Golay")
WINDOW = 4  # times the median distance of the times: half of the window of Savitzky and Golay


class NoEquationError(RuntimeError):
    """No setting gave an equation whose trajectory ends at the last time."""


def sparse(
    times: np.ndarray,
    values: np.ndarray,
    path: Callable[[np.ndarray, np.ndarray], np.ndarray | None],
) -> tuple[Numbers, str]:
    """Return exponents and coefficients of the best equation of `GRID`, and its text.

    path: from exponents and coefficients to the states at the times, None without a trajectory.
    """
    best: tuple[float, Numbers] = math.inf, (np.zeros((0, 0)), np.zeros((0, 0)))
    for setting in itertools.product(*GRID):
        equation = _equation(times, values, *setting)
        states = path(*equation)
        if states is None:
            continue
        squares = np.maximum(((states - values) ** 2).mean(0), 1e-12 * values.var(0) + 1e-300)
        likelihood = len(values) * float(np.log(squares).sum())
        criterion = likelihood + math.log(values.size) * int((equation[1] != 0).sum())
        best = min(best, (criterion, equation), key=lambda pair: pair[0])
    if not math.isfinite(best[0]):
        raise NoEquationError("pysindy: no equation of the grid has a trajectory to the last time")
    return best[1], _text(*best[1])


def _equation(
    times: np.ndarray, values: np.ndarray, degree: int, threshold: float, kind: str
) -> Numbers:
    """Return exponents ``[h, D]`` and coefficients ``[D, h]`` of one setting."""
    import pysindy

    half = WINDOW * float(np.median(np.diff(times)))
    derivatives: Any = pysindy.FiniteDifference(order=4)
    if kind == "Savitzky-Golay":
        derivatives = pysindy.SINDyDerivative(
            kind="savitzky_golay", left=half, right=half, order=3, periodic=False
        )
    model = pysindy.SINDy(
        optimizer=pysindy.STLSQ(threshold=threshold),
        feature_library=pysindy.PolynomialLibrary(degree),
        differentiation_method=derivatives,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(values, t=times)
    exponents = np.asarray(model.feature_library.powers_, dtype=float)
    coefficients = np.asarray(model.coefficients())
    used = (coefficients != 0).any(0)
    return exponents[used], coefficients[:, used]


def _text(exponents: np.ndarray, coefficients: np.ndarray) -> str:
    """Return the equation in one line."""
    products = [
        "".join(f"*x{i}" + (f"**{w:g}" if w != 1 else "") for i, w in enumerate(row) if w)
        for row in exponents
    ]
    sides = (
        " + ".join(f"{c:.4g}{product}" for c, product in zip(row, products, strict=True) if c)
        for row in coefficients
    )
    return "; ".join(f"x{i}' = {side or 0}" for i, side in enumerate(sides))
