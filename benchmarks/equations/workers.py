"""Many equations over workers: the time of `fit_many` over 1, 2 and 4 processes.

    python -m benchmarks.equations.workers [--equations N] [--workers 1,2,4] [--json FILE]
    python -m benchmarks.equations.workers --page PAGE FILE...

The first form measures; rows go to FILE. The equations are those of the benchmark of equations,
then drawn sums, with noise of 1 % of y's root mean square. joblib's processes fit them; the time
that the processes take to start is counted. The second form writes a table of rows between the
marks of a page.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence

import numpy as np

from benchmarks import rows_command
from benchmarks.arguments import command, listed, positive
from benchmarks.equations.known_equations import EQUATIONS, SRSD, drawn
from benchmarks.marked_blocks import record_table
from benchmarks.rows_command import Row
from benchmarks.throughput import environment, results
from npu_kernels.equations import NPURegressor, fit_many

MARK = "equations-workers"
NOISE = 0.01  # of y's root mean square


def tables(count: int, rows: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the data of the first equations, by the equations' names."""
    known = [*EQUATIONS, *SRSD]
    equations = [*known, *(drawn(k) for k in range(max(0, count - len(known))))][:count]
    problems = {}
    for equation in equations:
        generator = np.random.default_rng([len(equation.name), *equation.name.encode()])
        X = equation.draw(rows, generator)
        problems[equation.name] = (X, equation.measured(X, NOISE, generator))
    return problems


def measure(count: int, rows: int, workers: Sequence[int]) -> list[Row]:
    """Return a row for each number of workers."""
    problems = tables(count, rows)
    measured: list[Row] = []
    equations: list[str] = []
    for number in workers:
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcomes = fit_many(problems, NPURegressor(random_state=0), n_jobs=number)
        seconds = time.perf_counter() - begin
        texts = [str(outcome) for outcome in outcomes]
        equations = equations or texts
        measured.append(
            {
                "workers": number,
                "laws": len(problems),
                "rows": rows,
                "seconds": round(seconds, 2),
                "same_equations": texts == equations,
                "errors": sum(outcome.error is not None for outcome in outcomes),
                "environment": environment.describe(),
            }
        )
    return measured


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table for each processor; its first row is the unit of the others."""
    texts = []
    for where in dict.fromkeys(_facts(row) for row in rows):
        lines = [row for row in rows if _facts(row) == where]
        first = lines[0]
        records = [
            {
                "workers": str(row["workers"]),
                "equations a minute": f"{60 * row['laws'] / row['seconds']:.3g}",
                f"times as fast as {first['workers']}": f"{first['seconds'] / row['seconds']:.2f}",
                "the same equations": "yes" if row["same_equations"] else "no",
            }
            for row in lines
        ]
        texts.append(f"{where}:\n\n{record_table(records)}")
    return "\n".join(texts).strip()


def _facts(row: Row) -> str:
    """The tables and the machine of a row."""
    where = row["environment"]
    size = f"{row['laws']} tables of {row['rows']} rows"
    machine = f"{where['cores']} cores of {results.processor_of(where)}"
    return f"{size}, {machine}, npu_kernels at {where['commit']}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = command("benchmarks.equations.workers", __doc__)
    add, several = parser.add_argument, "numbers of processes, with commas between"
    add("--equations", type=positive, default=200, help="number of equations")
    add("--rows", type=positive, default=500, help="rows of each table")
    add("--workers", type=listed(positive), default="1,2,4", help=several)
    measured = lambda options: measure(options.equations, options.rows, options.workers)  # noqa: E731
    return rows_command.run(parser, argv, MARK, table, measured)


if __name__ == "__main__":
    sys.exit(main())
