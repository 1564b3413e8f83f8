"""ODEBench: how well laws of `ode.fit` reconstruct a series, and another one of the same system.

Each system has two starts. A law is fitted to the series of one of them. "Reconstruction": the law
from that start follows the true trajectory with R2 above 0.9 (columns weighted by their variances);
"generalisation": so does the law from the other start. "Form right", of the systems whose right
sides are sums of products of powers: exactly the true coefficients and exponents are not 0. Noise
is multiplicative, as in the published benchmark.
"""

from __future__ import annotations

import collections
import itertools
import time
import warnings
from typing import Any

import numpy as np
import sympy
import torch
from torch import nn

from benchmarks.blocks import table as markdown_table
from benchmarks.equations.__main__ import processor
from benchmarks.time_series.systems import SYSTEMS, System
from npu_kernels import NAU, RealNPU, ode

MODEL_STARTS = 24
TERMS = {1: 3, 2: 4, 3: 6, 4: 6}  # of the model, by the number of states
END, POINTS = 10.0, 150
MIN_R2 = 0.9
MAX_EVALUATIONS = 60_000  # of a law, whose trajectory may come near a pole
MAX_SIZE = 1e15  # of its states
Row = dict[str, Any]


def expressions(system: System) -> tuple[list[sympy.Symbol], list[sympy.Expr]]:
    """Return the states, and the right-hand sides with the constants' values."""
    states = list(sympy.symbols(f"x:{len(system.starts[0])}", positive=True))
    names = {str(state): state for state in states}
    names |= {f"c{n}": sympy.Float(value, 30) for n, value in enumerate(system.constants)}
    return states, [sympy.sympify(text, locals=names) for text in system.equations.split(";")]


def terms(system: System) -> tuple[np.ndarray, np.ndarray] | None:
    """Return exponents ``[h, D]`` and coefficients ``[D, h]``; None for another kind of law."""
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


def solved(slope: Any, start: Any, times: np.ndarray) -> np.ndarray | None:
    """Return the states ``[M, D]`` at the times, None where the trajectory ends before."""
    from scipy.integrate import solve_ivp

    count = 0

    def limited(t: float, state: np.ndarray) -> Any:
        nonlocal count
        count += 1
        if count > MAX_EVALUATIONS:
            raise FloatingPointError
        return slope(t, state)

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            path = solve_ivp(
                limited, (times[0], times[-1]), start, t_eval=times, method="LSODA",
                rtol=1e-9, atol=1e-11,
            ).y.T  # fmt: skip
    except (FloatingPointError, ZeroDivisionError, OverflowError, ValueError):
        return None
    is_usable = path.shape[0] == len(times) and bool((np.abs(path) < MAX_SIZE).all())
    return path if is_usable else None


def truth(system: System, start: int, times: np.ndarray) -> np.ndarray:
    states, sides = expressions(system)
    function = sympy.lambdify(states, sides, "numpy")
    path = solved(lambda _, x: [float(v) for v in function(*x)], system.starts[start], times)
    assert path is not None, system
    return path


def r2(true: np.ndarray, path: np.ndarray | None) -> float:
    """Return R2 with columns weighted by their variances; minus infinity without a path."""
    if path is None:
        return -np.inf
    return float(1 - ((true - path) ** 2).sum() / ((true - true.mean(0)) ** 2).sum())


def slope_of(fit: ode.SeriesFit) -> Any:
    """Return the law as a function of time and state."""
    exponents, coefficients = (part[0].numpy() for part in fit.weights())

    def slope(_: float, x: np.ndarray) -> np.ndarray:
        signs = np.cos(np.pi * exponents * (x < 0))
        powers = np.where(exponents == 0, 1.0, signs * (np.abs(x) + 2.2e-16) ** exponents)
        return np.asarray(coefficients @ powers.prod(1))

    return slope


def has_form(fit: ode.SeriesFit, exponents: np.ndarray, coefficients: np.ndarray) -> bool:
    """Return whether exactly the true numbers are not 0, whatever the order of the terms."""
    powers, rates = (part[0].numpy() for part in fit.weights())
    return powers.shape == exponents.shape and any(
        np.array_equal(powers[list(order)] != 0, exponents != 0)
        and np.array_equal(rates[:, list(order)] != 0, coefficients != 0)
        for order in itertools.permutations(range(len(powers)))
    )


def measure(number: int, start: int, noise: float, dropped: float) -> Row:
    """Return the row of one series of system `number`; dropped: the share of points left out."""
    system = next(system for system in SYSTEMS if system.number == number)
    generator = np.random.default_rng(1000 * start + number)
    times = np.linspace(0, END, POINTS)
    true = truth(system, start, times)
    values = true * (1 + noise * generator.normal(size=true.shape))
    rows = np.sort(generator.permutation(POINTS)[: round(POINTS * (1 - dropped))])
    d = true.shape[1]
    h = TERMS[d]
    model = nn.Sequential(
        RealNPU(d, h, num_models=MODEL_STARTS), NAU(h, d, num_models=MODEL_STARTS)
    )
    row: Row = {"system": number, "start": start, "noise": noise, "dropped": dropped}
    known = terms(system)
    row |= {"terms": None if known is None else len(known[0]), "processor": processor()}
    begin = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ode.PoorFitWarning)
        try:
            fit = ode.fit(model, times[rows], torch.from_numpy(values[rows]), progress=False)
        except RuntimeError as error:
            seconds = round(time.process_time() - begin, 2)
            failure = {"law": None, "error": str(error), "form": False, "warned": True}
            return (
                row | failure | {"reconstruction": None, "generalisation": None, "seconds": seconds}
            )
    slope, seconds = slope_of(fit), round(time.process_time() - begin, 2)
    other = truth(system, 1 - start, times)
    scores = r2(true, solved(slope, values[0], times)), r2(other, solved(slope, other[0], times))
    finite = [round(score, 4) if np.isfinite(score) else None for score in scores]
    return row | {
        "law": str(fit.equation).replace("\n", "; "), "form": bool(known and has_form(fit, *known)),
        "warned": any(issubclass(one.category, ode.PoorFitWarning) for one in caught),
        "reconstruction": finite[0], "generalisation": finite[1], "seconds": seconds,
    }  # fmt: skip


def table(rows: list[Row]) -> str:
    """Return the shares as Markdown, a line for each noise and share of dropped points."""
    header = ["noise", "points left out", "series", "reconstruction", "generalisation"]
    header += ["form right, of those that have it", "warned of", "median seconds"]
    groups: dict[tuple[float, float], list[Row]] = collections.defaultdict(list)
    for row in rows:
        groups[row["noise"], row["dropped"]].append(row)
    lines = []
    for (noise, dropped), group in sorted(groups.items()):

        def share(name: str, group: list[Row] = group) -> str:
            count = sum((row[name] or 0) > MIN_R2 for row in group)
            return f"{count} ({100 * count / len(group):.0f} %)"

        known = [row for row in group if row["terms"] is not None]
        right = f"{sum(row['form'] for row in known)} of {len(known)}"
        cells = [str(len(group)), share("reconstruction"), share("generalisation"), right]
        cells += [str(sum(row["warned"] for row in group))]
        cells += [f"{np.median([row['seconds'] for row in group]):.2g}"]
        lines.append([f"{100 * noise:g} %", f"{100 * dropped:g} %", *cells])
    return markdown_table(header, lines).rstrip("\n")
