"""Other programs on the same rows. Each gives (predict, size in terms or nodes of a tree, formula).

pysindy      STLSQ on a library of all monomials of at most three inputs with exponents from -2 to
             2; the threshold with the least error on a fifth of the rows
gplearn      genetic programming, 500 programs, 10 generations
pyoperon     Operon's genetic programming, 100,000 evaluations

They are not tuned. ``pip install pysindy gplearn pyoperon``; a program that is not installed has no
rows.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable

import numpy as np

Predict = Callable[[np.ndarray], np.ndarray]
Model = tuple[Predict, int, str]

EXPONENTS = (-2, -1, 1, 2)
MONOMIALS = 2000
THRESHOLDS = (0.02, 0.05, 0.1, 0.2)


def monomials(inputs: int, generator: np.random.Generator) -> np.ndarray:
    """Exponents ``[M, n]`` of at most three inputs; at most `MONOMIALS` of them, drawn."""
    rows = [np.zeros(inputs)]
    for count in range(1, min(inputs, 3) + 1):
        for some in itertools.combinations(range(inputs), count):
            for powers in itertools.product(EXPONENTS, repeat=count):
                row = np.zeros(inputs)
                row[list(some)] = powers
                rows.append(row)
    table = np.array(rows)
    if len(table) > MONOMIALS:
        table = table[np.sort(generator.permutation(len(table))[:MONOMIALS])]
    return table


def powers(X: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The products ``[N, M]`` for exponents ``[M, n]``, whole ones of negative inputs."""
    size = np.exp(np.log(np.maximum(np.abs(X), 1e-100)) @ w.T)
    return size * (1 - 2 * (((X < 0) @ np.abs(np.round(w)).T) % 2))


def pysindy(X: np.ndarray, y: np.ndarray, seed: int) -> Model:
    """Sparse regression on monomials."""
    from pysindy.optimizers import STLSQ

    generator = np.random.default_rng(seed)
    w = monomials(X.shape[1], generator)
    scale = np.sqrt(np.mean(X**2, 0))
    w = w[~((w < 0) & (X == 0).any(0)).any(1)]
    A = powers(X / scale, w)
    order = generator.permutation(len(y))
    held, used = order[: len(y) // 5], order[len(y) // 5 :]
    size = np.sqrt(np.mean(y**2))
    best, best_error = np.zeros(len(w)), np.inf
    for threshold in THRESHOLDS:
        optimizer = STLSQ(threshold=threshold, alpha=1e-6, normalize_columns=True)
        optimizer.fit(A[used], y[used, None] / size)
        c = np.asarray(optimizer.coef_).ravel()
        error = float(np.mean((A[held] @ c - y[held] / size) ** 2))
        if error < best_error:
            best, best_error = c, error
    terms = np.flatnonzero(best)
    text = " + ".join(f"{size * best[k]:.4g} * powers {w[k].tolist()}" for k in terms[:6])
    return lambda points: size * (powers(points / scale, w[terms]) @ best[terms]), len(terms), text


def gplearn(X: np.ndarray, y: np.ndarray, seed: int) -> Model:
    """Genetic programming with gplearn."""
    from gplearn.genetic import SymbolicRegressor

    model = SymbolicRegressor(
        population_size=500, generations=10, parsimony_coefficient=1e-3, random_state=seed,
        function_set=("add", "sub", "mul", "div", "sqrt", "inv"),
    )  # fmt: skip
    model.fit(X, y)
    return model.predict, len(model._program.program), str(model._program)[:300]


def pyoperon(X: np.ndarray, y: np.ndarray, seed: int) -> Model:
    """Genetic programming with Operon."""
    from pyoperon.sklearn import SymbolicRegressor

    model = SymbolicRegressor(
        allowed_symbols="add,sub,mul,div,sqrt,square,constant,variable", max_evaluations=100_000,
        n_threads=1, random_state=seed,
    )  # fmt: skip
    model.fit(X, y)
    text = model.get_model_string(model.model_, 6)[:300]
    predict = lambda points: np.asarray(model.predict(points), dtype=float)  # noqa: E731
    return predict, int(model.model_.Length), text


BASELINES: dict[str, Callable[[np.ndarray, np.ndarray, int], Model]] = {
    "pysindy": pysindy, "gplearn": gplearn, "pyoperon": pyoperon,
}  # fmt: skip


def installed() -> list[str]:
    """The programs that can be imported."""
    return [name for name in BASELINES if importlib.util.find_spec(name) is not None]
