"""Many equations over workers: the time of `fit_many` over 1, 2 and 4 processes.

    python -m benchmarks.equations.workers [--laws N] [--workers 1,2,4] [--json FILE]
    python -m benchmarks.equations.workers --page PAGE FILE...

The first form measures; rows go to FILE. The laws are those of the benchmark of equations, then
drawn sums, with noise of 1 % of y's root mean square. joblib's processes fit them; the time that
the processes take to start is counted. The second form writes a table of rows between the marks of
a page.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.equations.laws import LAWS, drawn
from benchmarks.equations.srsd import SRSD
from benchmarks.marked_blocks import MarksError, record_table, renew
from benchmarks.throughput import cold, environment, results
from npu_kernels._jobs import files
from npu_kernels.equations import NPURegressor, fit_many

MARK = "equations-workers"
NOISE = 0.01  # of y's root mean square
Row = dict[str, Any]


def tables(count: int, rows: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the data of the first laws, by the laws' names."""
    known = [*LAWS, *SRSD]
    laws = [*known, *(drawn(k) for k in range(max(0, count - len(known))))][:count]
    problems = {}
    for law in laws:
        generator = np.random.default_rng([len(law.name), *law.name.encode()])
        X = law.draw(rows, generator)
        y = law(X)
        y = y + NOISE * np.sqrt(np.mean(y**2)) * generator.standard_normal(rows)
        problems[law.name] = (X, y)
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
    """Return a Markdown table for each processor; the first row of a processor is its unit."""
    texts = []
    for where in dict.fromkeys(_place(row) for row in rows):
        lines = [row for row in rows if _place(row) == where]
        records = [
            {
                "workers": str(row["workers"]),
                "laws a minute": f"{60 * row['laws'] / row['seconds']:.3g}",
                f"beside {lines[0]['workers']}": f"{lines[0]['seconds'] / row['seconds']:.2f}",
                "the same equations": "yes" if row["same_equations"] else "no",
            }
            for row in lines
        ]
        texts.append(f"{where}:\n\n{record_table(records)}")
    return "\n".join(texts).strip()


def _place(row: Row) -> str:
    where = row["environment"]
    name = where["processor"]
    processor = results.PROCESSORS.get((name, where.get("processor_model")), name)
    size = f"{row['laws']} tables of {row['rows']} rows"
    return f"{size}, {where['cores']} cores of {processor}, npu_kernels at {where['commit']}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    name, description = "python -m benchmarks.equations.workers", (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog=name, description=description)
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="rows for the table")
    add("--page", type=Path, help="put a table of the rows there, and measure nothing")
    add("--laws", type=int, default=200, help="number of laws")
    add("--rows", type=int, default=500, help="rows of each table")
    add("--workers", default="1,2,4", help="numbers of processes, with commas between")
    add("--json", type=files.output, metavar="FILE", help="add the rows, as JSON lines")
    options = parser.parse_args(argv)
    if bool(options.page) != bool(options.files):
        parser.error("--page and files of rows belong together")
    numbers = options.workers.split(",")
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        parser.error(f"--workers must be whole numbers of at least 1, got {options.workers}")
    if options.laws < 1 or options.rows < 1:
        parser.error(f"--laws and --rows must be at least 1, got {options.laws}, {options.rows}")
    if options.page:
        try:
            renew(options.page, {MARK: table(cold.read(options.files))})
        except (MarksError, OSError) as error:
            print(f"workers: {error}", file=sys.stderr)
            return 1
        return 0
    rows = measure(options.laws, options.rows, [int(number) for number in numbers])
    if options.json:
        with options.json.open("a") as output:
            output.writelines(json.dumps(row) + "\n" for row in rows)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
