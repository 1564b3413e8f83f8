"""Whether `NPURegressor` and `ode.fit` find the same equation on every processor.

    python -m benchmarks.equations.processors [--tables N] [--rows N] [--variants ...] [--out FILE]
    python -m benchmarks.equations.processors --series N [--variants ...] [--out FILE]
    python -m benchmarks.equations.processors --page PAGE --out FILE

Every table is fitted as it is, and in each variant: with MKL, OpenBLAS, ATen and NumPy held to
AVX2 and to SSE4.2, with two threads, with the rows in another order, and with every y changed by
1e-13 of itself. Tables are those of the benchmark of equations, first seed, and 100 more drawn
equations, with noise 0 and 1 % of y's root mean square, in shuffled order: the first N are a fair
sample. Series are those of ODEBench from the first start, with noise 0 and 1 % of each value. Their
order stays. Two equations are the same if powers and functions are equal, and exponents within
0.002. "bic" is the criterion of the search. A run can be interrupted and started again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import rows_command
from benchmarks.arguments import command, listed, positive
from benchmarks.equations import criterion
from benchmarks.equations.__main__ import best_equation
from benchmarks.equations.known_equations import KnownEquation, drawn, drawn_ratio, equations_of
from benchmarks.marked_blocks import record_table, renew
from benchmarks.rows_command import Row
from benchmarks.time_series import odebench
from npu_kernels._jobs import files
from npu_kernels.env import processor

MARK = "equations-processors"
OUT = Path(__file__).parents[1] / "results" / "equation-processors.jsonl"
AS_IT_IS = "as it is"
HELD = {  # what the libraries of each name are held to
    "AVX2": {
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "SSE4.2": {
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ATEN_CPU_CAPABILITY": "default",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
}
VARIANTS = (AS_IT_IS, *HELD, "two threads", "rows shuffled", "y changed by 1e-13")
NOISES = (0.0, 0.01)
KNOWN_BY = ("equation", "noise", "rows", "variant")
ODEBENCH_NAME = "ODEBench "  # with the number of the system: the name of a series
NO_SERIES = "rows shuffled"  # the variant of tables only
CLOSE = 0.002  # the difference of exponents
MAX_DIFFERENCE = 0.01  # of a criterion


@functools.cache
def all_equations() -> list[KnownEquation]:
    """Equations in shuffled order."""
    equations = [*equations_of(0), *(drawn(1000 + k) for k in range(60))]
    equations += [drawn_ratio(1000 + k) for k in range(40)]
    return [equations[k] for k in np.random.default_rng(0).permutation(len(equations))]


def all_series() -> list[str]:
    """Names of series in shuffled order."""
    numbers = [system.number for system in odebench.SYSTEMS]
    return [f"{ODEBENCH_NAME}{number}" for number in np.random.default_rng(0).permutation(numbers)]


def environment(variant: str) -> dict[str, str]:
    """Return the environment of a variant's process."""
    threads = "2" if variant == "two threads" else "1"
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    added = dict.fromkeys(names, threads) | HELD.get(variant, {})
    if variant in HELD:
        from numpy._core._multiarray_umath import __cpu_dispatch__

        # With "AVX2", the features whose vectors have 512 bits.
        held = [f for f in __cpu_dispatch__ if variant == "SSE4.2" or "512" in f or f == "X86_V4"]
        added["NPY_DISABLE_CPU_FEATURES"] = " ".join(held)
    return {**os.environ, **added}


def measure(name: str, noise: float, rows: int, variant: str) -> Row:
    """One row of results, by the libraries of this process."""
    row = {"equation": name, "noise": noise, "rows": rows, "variant": variant}
    number = name.removeprefix(ODEBENCH_NAME)
    found = of_table(name, row) if number == name else of_series(int(number), row)
    return row | found | {"processor": processor()}


def changed(values: np.ndarray, variant: str) -> np.ndarray:
    """Values as the variant has them."""
    if variant != "y changed by 1e-13":
        return values
    return values * (1 + 1e-13 * np.random.default_rng(1).standard_normal(values.shape))


def of_table(name: str, row: Row) -> Row:
    """What is found from the table of a row."""
    equation = next(equation for equation in all_equations() if equation.name == name)
    rows, variant = row["rows"], row["variant"]
    generator = np.random.default_rng([0, len(name), *name.encode()])
    X = equation.draw(rows, generator)
    y = changed(equation.measured(X, row["noise"], generator), variant)
    if variant == "rows shuffled":
        order = np.random.default_rng(1).permutation(rows)
        X, y = X[order], y[order]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        best = best_equation(equation, X, y, seed=0)
    return {
        "class": equation.kind,
        "formula": str(best),
        "power": best.target_power,
        "below": best.n_denominator_terms,
        "function": best.target_transform.name if best.target_transform else "",
        "exponents": sorted(best.exponents.tolist()),
        "bic": criterion.of(best, X, y),
    }


def of_series(number: int, row: Row) -> Row:
    """What is found from the series of a row: exponents, and the states whose slopes have them."""
    system = next(system for system in odebench.SYSTEMS if system.number == number)
    times, values = odebench.series(system, 0, row["noise"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = odebench.fit(times, changed(values, row["variant"]), row["noise"] > 0)
    exponents, coefficients = (part[0].numpy() for part in result.weights())
    terms = np.column_stack([exponents, (coefficients != 0).T])
    return {
        "class": "series",
        "formula": str(result.equation).replace("\n", "; "),
        "power": 1.0,
        "below": 0,
        "function": "",
        "exponents": sorted(terms.tolist()),
        "bic": result.bic,
    }


def same(base: Row, other: Row) -> bool:
    """Whether two rows have the same equation."""
    names = ("power", "below", "function")
    a, b = np.array(base["exponents"]), np.array(other["exponents"])
    return (
        all(base[name] == other[name] for name in names)
        and a.shape == b.shape
        and bool(np.allclose(a, b, rtol=0, atol=CLOSE))
    )


def pairs(rows: Sequence[Row]) -> dict[str, list[tuple[Row, Row]]]:
    """Return the rows of each variant, with the row of the same table as it is."""
    tables = {tuple(row[name] for name in KNOWN_BY): row for row in rows}
    found: dict[str, list[tuple[Row, Row]]] = {variant: [] for variant in VARIANTS[1:]}
    for row in rows:
        base = tables.get((*(row[name] for name in KNOWN_BY[:-1]), AS_IT_IS))
        if row["variant"] != AS_IT_IS and base:
            found[row["variant"]].append((base, row))
    return {variant: both for variant, both in found.items() if both}


def criteria_differ(base: Row, row: Row) -> bool:
    """Whether the criteria of two equations differ by more than 1 %."""
    a, b = base["bic"], row["bic"]
    if a is None or b is None:
        return a is not b
    return bool(abs(a - b) > MAX_DIFFERENCE * max(abs(a), abs(b)))


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table: for each variant, how many equations stay the same."""
    records = []
    for kind, (variant, both) in itertools.product(("tables", "series"), pairs(rows).items()):
        both = [pair for pair in both if (pair[0]["class"] == "series") == (kind == "series")]
        if not both:
            continue
        differing = [pair for pair in both if not same(*pair)]
        far = sum(criteria_differ(*pair) for pair in differing)
        records.append(
            {
                "changed": variant,
                "of": f"{len(both)} {kind}",
                "the same equation": f"{100 * (1 - len(differing) / len(both)):.1f} %",
                "others": str(len(differing)),
                "whose BIC differs by more than 1 %": str(far),
            }
        )
    where = ", ".join(dict.fromkeys(row["processor"] for row in rows))
    return f"{where}:\n\n{record_table(records)}"


def planned(options: argparse.Namespace) -> list[tuple[str, float, int, str]]:
    """What the rows of a run are known by."""
    if options.series:
        names, count, rows = all_series(), options.series, odebench.POINTS_OF_SERIES
    else:
        names = [equation.name for equation in all_equations()]
        count, rows = options.tables, options.rows
    first = itertools.islice(itertools.product(names, NOISES), count)
    return [(*one, rows, variant) for one in first for variant in options.variants]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the file lacks, or write the table; return the exit status."""
    parser = command("benchmarks.equations.processors", __doc__)
    add = parser.add_argument
    add("--tables", type=positive, default=1000, help="number of tables: the first of all")
    add("--series", type=positive, help="number of series, in place of tables: the first of all")
    add("--rows", type=positive, default=300, help="rows of each table")
    add("--variants", type=listed(str, VARIANTS), default=",".join(VARIANTS))
    add("--out", type=files.output, default=OUT)
    add("--page", type=Path, help="put a table of the rows there, and measure nothing")
    add("--here", action="store_true", help="in this process, whatever its libraries do")
    options = parser.parse_args(argv)
    if options.series:
        options.variants = [variant for variant in options.variants if variant != NO_SERIES]
    if options.page:
        with rows_command.told(parser):
            renew(options.page, {MARK: table(rows_command.read(options.out))})
        return 0
    if not options.here:
        for variant in options.variants:
            words = ["--tables", str(options.tables), "--rows", str(options.rows), "--here"]
            words += ["--series", str(options.series)] if options.series else []
            words += ["--variants", variant, "--out", str(options.out)]
            run = [sys.executable, "-m", "benchmarks.equations.processors", *words]
            if status := subprocess.run(run, env=environment(variant), check=False).returncode:
                return status
        print(table(rows_command.read(options.out)))
        return 0
    with rows_command.told(parser):
        rows_command.complete(options.out, KNOWN_BY, planned(options), measure, ("formula",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
