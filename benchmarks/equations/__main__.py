"""How often known equations are found in data: by `NPURegressor`, and by least squares of logarithms.

    python -m benchmarks.equations --classes a,b,c1,sum --noise 0,0.01 --seeds 1     # adds the rows that the file lacks
    python -m benchmarks.equations --report docs/equations.md                        # the table of the file's rows

Noise is normal, equal for all rows, in units of y's root mean square. An equation is found if at 400 points, each
input drawn over four decades, the sum of its terms is within 2 % of the sum of the true terms' sizes. A run can be
interrupted and started again.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.equations.laws import LAWS, Law, drawn
from npu_kernels import files

OUT = Path(__file__).parents[1] / "results" / "equations.jsonl"
BEGIN, END = "<!-- equations:begin -->", "<!-- equations:end -->"
METHODS = ("NPURegressor", "logarithms")
TITLES = {"a": "one product", "b": "sum", "c1": "power of a sum", "sum": "drawn sum"}
SUMS = 24  # drawn sums of a seed
Row = dict[str, Any]


def processor() -> str:
    """The machine's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def same(law: Law, power: float, sums: Any) -> bool:
    """Whether `sums`, a function of X that gives the sum of the terms, is the law's."""
    generator = np.random.default_rng(5)
    X = 10 ** generator.uniform(-2, 2, (400, len(law.inputs)))
    terms = law.products(X)
    with np.errstate(all="ignore"):
        wanted, found = terms.sum(1), sums(X)
        if power != law.power:
            keep = (wanted > 0) & (found > 0)
            if keep.sum() < 40:
                return False
            wanted, found, terms = wanted[keep], found[keep] ** (law.power / power), terms[keep]
    return bool((np.abs(found - wanted) <= 0.02 * np.abs(terms).sum(1)).all())


def regressor(law: Law, X: np.ndarray, y: np.ndarray, seed: int) -> tuple[bool, int, str]:
    """(found, terms, formula) of `NPURegressor`."""
    from npu_kernels import NPURegressor

    best = NPURegressor(random_state=seed).fit(X, y).best_

    def sums(points: np.ndarray) -> Any:
        sign = best.sign if best.power != 1 else 1.0
        values = sign * best.predict(points)
        return np.sign(values) * np.abs(values) ** best.power

    return same(law, best.power, sums), best.terms, str(best)


def logarithms(law: Law, X: np.ndarray, y: np.ndarray, seed: int) -> tuple[bool, int, str]:
    """(found, terms, formula) of least squares of the logarithms, exponents rounded to multiples of 1/4."""
    keep = (y != 0) & (np.sign(y) == np.sign(np.median(y)))
    A = np.column_stack([np.ones(keep.sum()), np.log(X[keep])])
    w = np.round(4 * np.linalg.lstsq(A, np.log(np.abs(y[keep])), rcond=None)[0][1:]) / 4
    product = np.prod(X**w, 1)
    c = float(product @ y / (product @ product))
    return same(law, 1.0, lambda points: c * np.prod(points**w, 1)), 1, f"{c:.4g} * powers {w.tolist()}"


def measure(law: Law, noise: float, seed: int, method: str, rows: int) -> Row:
    """One row of results."""
    generator = np.random.default_rng([seed, len(law.name), *law.name.encode()])
    X = law.draw(rows, generator)
    y = law(X)
    y = y + noise * np.sqrt(np.mean(y**2)) * generator.standard_normal(rows)
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, terms, formula = (regressor if method == "NPURegressor" else logarithms)(law, X, y, seed)
    seconds = round(time.process_time() - begin, 3)
    key = {"equation": law.name, "class": law.kind, "noise": noise, "seed": seed, "method": method, "rows": rows}
    return {**key, "found": found, "terms": terms, "formula": formula, "seconds": seconds, "processor": processor()}


def read(path: Path) -> list[Row]:
    """The rows of a file, none if there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(rows: list[Row]) -> str:
    """The share found and the median processor time, as Markdown."""
    sizes = " or ".join(map(str, sorted({row["rows"] for row in rows})))
    seeds = ", ".join(map(str, sorted({row["seed"] for row in rows})))
    lines = [
        f"{sizes} rows; seeds: {seeds}; one thread.",
        "",
        "| | noise | `NPURegressor` finds | seconds, median | least squares of logarithms finds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind, noise in sorted({(row["class"], row["noise"]) for row in rows}):
        group = {m: [r for r in rows if (r["class"], r["noise"], r["method"]) == (kind, noise, m)] for m in METHODS}
        cells = [f"{sum(r['found'] for r in group[m])} of {len(group[m])}" for m in METHODS]
        seconds = [row["seconds"] for row in group["NPURegressor"]]
        median = f"{statistics.median(seconds):.2g}" if seconds else ""
        lines.append(f"| {TITLES[kind]} | {noise:g} | {cells[0]} | {median} | {cells[1]} |")
    return "\n".join(lines)


def insert(text: str, block: str) -> str:
    """The text with the block between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"needs {BEGIN} and behind it {END}")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def main() -> None:
    """Run what the file lacks, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", default="a,b,c1,sum", help="of a, b, c1, sum")
    parser.add_argument("--noise", default="0,0.01")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--out", type=files.output, default=OUT)
    parser.add_argument("--report", type=Path, metavar="PAGE", help="write the table into this page, and run nothing")
    arguments = parser.parse_args()
    found = read(arguments.out)
    if arguments.report:
        files.write(arguments.report, insert(arguments.report.read_text(), table(found)))
        return
    from threadpoolctl import threadpool_limits

    keys = ("equation", "noise", "seed", "method", "rows")
    done = {tuple(row[key] for key in keys) for row in found}
    with threadpool_limits(1):
        measure(LAWS[0], 0.0, 0, METHODS[0], 50)  # imports
        for seed in range(arguments.seeds):
            laws = [*LAWS, *(drawn(SUMS * seed + k) for k in range(SUMS))]
            for law in (law for law in laws if law.kind in arguments.classes.split(",")):
                for noise in map(float, arguments.noise.split(",")):
                    for method in METHODS:
                        if (law.name, noise, seed, method, arguments.rows) in done:
                            continue
                        row = measure(law, noise, seed, method, arguments.rows)
                        found.append(row)
                        files.write(arguments.out, "".join(json.dumps(r) + "\n" for r in found))
                        words = f"{law.name:<12}{noise:<8g}{method:<14}{row['found']!s:<7}{row['seconds']:<8}"
                        print(words + row["formula"], flush=True)


if __name__ == "__main__":
    main()
