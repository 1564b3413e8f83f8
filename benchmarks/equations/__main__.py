"""The share of known equations found in data: by `NPURegressor`, logarithms, and other programs.

    python -m benchmarks.equations                                    # the rows that the file lacks
    python -m benchmarks.equations --classes b --noise 0.01 --seeds 1 # a part of them
    python -m benchmarks.equations --methods pysindy,gplearn,pyoperon # those that are installed
    python -m benchmarks.equations --report docs/how-well.md --picture docs/images/equations.png

Noise is normal, equal for all rows, in units of y's root mean square. An equation is found if at
400 points, each input drawn over four decades around the middle of its range with the signs that it
has, the sum of its terms is within 2 % of the sum of the true terms' sizes. A ratio is judged by
the sizes of the terms of both of its sums. "error" is the root
mean square deviation from the true equation on 1000 other rows of the same ranges, over that of y.
Where `NPURegressor` finds another equation, "bic" and "truth_bic" are its criterion and the true
equation's: see criterion.py. A run can be interrupted and started again; all of it takes days.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import command, listed
from benchmarks.equations import criterion
from benchmarks.equations.baselines import BASELINES, installed, powers
from benchmarks.equations.known_equations import EQUATIONS, KnownEquation, equations_of
from benchmarks.equations.report import METHODS, PLANNED_SEEDS, page, picture
from benchmarks.rows_command import Row, complete, read, told
from npu_kernels._jobs import files
from npu_kernels.env import processor

OUT = Path(__file__).parents[1] / "results" / "equations.jsonl"
CLASSES = "a,b,c1,sum,ratio,dratio,srsd,srsdf,srsdr,srsdm,ad,bd,c1d,srsdd,wild"
NOISES = "0,0.001,0.01,0.1"


def same(equation: KnownEquation, power: float, sums: Any, function: str = "") -> bool:
    """Whether `sums`, a function of X that gives the sum of the terms, is the equation's.

    power, function: of y, whose value the sum is.
    """
    if function != equation.function:
        return False
    generator = np.random.default_rng(5)
    X = equation.around(400, generator)
    terms = equation.products(X)
    with np.errstate(all="ignore"):
        true, values, sizes = terms.sum(1), sums(X), equation.sizes(X)
        if power != equation.power:
            odd = abs(power) == abs(equation.power) == 1  # y has both signs
            keep = ((true > 0) & (values > 0)) | odd
            if keep.sum() < 40:
                return False
            values = np.sign(values) * np.abs(values) ** (equation.power / power)
            true, values, sizes = true[keep], values[keep], sizes[keep]
    return bool((np.abs(values - true) <= 0.02 * sizes).all())


Outcome = tuple[bool, int, str, Any, Row]  # right, size, formula, predict, more of the row


def best_equation(equation: KnownEquation, X: np.ndarray, y: np.ndarray, seed: int) -> Any:
    """That of `NPURegressor`, told of functions of inputs and of y, and of many terms."""
    from pandas import DataFrame

    from npu_kernels import NPURegressor

    of_y = "auto" if equation.function else None
    with_names = DataFrame(X, columns=equation.inputs) if equation.functions else X
    model = NPURegressor(
        random_state=seed,
        functions=equation.functions or None,
        target_transforms=of_y,
        max_terms=max(4, len(equation.terms)),
    )
    return model.fit(with_names, y).best_equation_


def regressor(equation: KnownEquation, X: np.ndarray, y: np.ndarray, seed: int) -> Outcome:
    """The outcome of `NPURegressor`."""
    best = best_equation(equation, X, y, seed)

    def sums(points: np.ndarray) -> Any:  # of any sign, where y itself may not exist
        terms = powers(best.functions.expand(points), best.exponents) * best.coef
        above = best.n_terms - best.n_denominator_terms
        return terms[:, :above].sum(1) / (1 + terms[:, above:].sum(1))

    right = same(
        equation,
        best.target_power,
        sums,
        best.target_transform.name if best.target_transform else "",
    )
    criteria = {} if right else {"bic": criterion.of(best, X, y)}
    more = criteria if right else criteria | {"truth_bic": criterion.of_equation(equation, X, y)}
    return right, best.n_terms, str(best), best.predict, more


def logarithms(equation: KnownEquation, X: np.ndarray, y: np.ndarray, seed: int) -> Outcome:
    """Least squares of logarithms; exponents multiples of 1/4, or whole for negative inputs."""
    negative = (X < 0).any(0)
    keep = (y != 0) & (X != 0).all(1)
    if not negative.any():
        keep &= np.sign(y) == np.sign(np.median(y))
    A = np.column_stack([np.ones(keep.sum()), np.log(np.abs(X[keep]))])
    w = np.linalg.lstsq(A, np.log(np.abs(y[keep])), rcond=None)[0][1:]
    w = np.where(negative, np.round(w), np.round(4 * w) / 4)
    product = powers(X, w[None])[:, 0]
    c = float(product @ y / (product @ product))

    def predict(points: np.ndarray) -> Any:
        return c * powers(points, w[None])[:, 0]

    return same(equation, 1.0, predict), 1, f"{c:.4g} * powers {w.tolist()}", predict, {}


def run_baseline(
    equation: KnownEquation, X: np.ndarray, y: np.ndarray, seed: int, method: str
) -> Outcome:
    """Another program. Where it fails, it has found nothing."""
    try:
        predict, size, formula = BASELINES[method](X, y, seed)
    except Exception as error:  # of any kind: the rows of the others shall be made
        message = f"{type(error).__name__}: {error}".partition("\n")[0]
        return False, 0, message, lambda points: np.full(len(points), np.nan), {}
    return same(equation, 1.0, predict), size, formula, predict, {}


def measure(equation: KnownEquation, noise: float, seed: int, method: str, rows: int) -> Row:
    """One row of results."""
    generator = np.random.default_rng([seed, len(equation.name), *equation.name.encode()])
    X = equation.draw(rows, generator)
    y = equation.measured(X, noise, generator)
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method in BASELINES:
            outcome = run_baseline(equation, X, y, seed, method)
        else:
            outcome = (regressor if method == "NPURegressor" else logarithms)(equation, X, y, seed)
        right, terms, formula, predict, more = outcome
        seconds = round(time.process_time() - begin, 3)
        fresh = equation.draw(1000, generator)
        with np.errstate(all="ignore"):
            true = equation(fresh)
            error = float(np.sqrt(np.mean((predict(fresh) - true) ** 2) / np.mean(true**2)))
    return {
        "equation": equation.name, "class": equation.kind, "noise": noise, "seed": seed,
        "method": method, "rows": rows, **({"set": equation.source} if equation.source else {}),
        "found": right, "terms": terms, "formula": formula,
        "error": error if np.isfinite(error) else None, **more,
        "seconds": seconds, "processor": processor(),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Run what the file lacks, or write the table."""
    parser = command("benchmarks.equations", __doc__)
    add, page_help = parser.add_argument, "write the tables into this page, and run nothing"
    add("--classes", type=listed(), default=CLASSES, help=f"of {CLASSES}")
    add("--methods", type=listed(), default=",".join(METHODS[:2]), help=f"of {', '.join(METHODS)}")
    add("--noise", type=listed(float), default=NOISES)
    add("--seeds", type=int, default=PLANNED_SEEDS)
    add("--rows", type=int, default=1000)
    add("--out", type=files.output, default=OUT)
    add("--report", type=Path, metavar="PAGE", help=page_help)
    add("--picture", type=files.output, help="draw the shares over the noise, and run nothing")
    options = parser.parse_args(argv)
    if options.report or options.picture:
        with told(parser):
            rows = read(options.out, missing_ok=True)
            if options.report:
                files.write(options.report, page(options.report.read_text(), rows))
            if options.picture:
                picture(rows, options.picture)
        return
    from threadpoolctl import threadpool_limits

    absent = [m for m in options.methods if m not in (*METHODS[:2], *installed())]
    if absent:
        parser.error(f"not installed: {', '.join(absent)} (pip install {' '.join(absent)})")
    with told(parser), threadpool_limits(1):
        for method in options.methods:
            measure(EQUATIONS[0], 0.0, 0, method, 50)  # imports
        for seed in range(options.seeds):
            equations = {
                equation.name: equation
                for equation in equations_of(seed)
                if equation.kind in options.classes
            }
            planned = itertools.product(
                equations, options.noise, [seed], options.methods, [options.rows]
            )
            complete(
                options.out, ("equation", "noise", "seed", "method", "rows"), planned,
                lambda name, *settings, equations=equations: measure(equations[name], *settings),
                shown=("found", "seconds", "formula"),
            )  # fmt: skip


if __name__ == "__main__":
    main()
