"""The equation behind the columns of a CSV file.

    python examples/equation_from_csv.py                             # Kepler's third law from
    measured orbits
    python examples/equation_from_csv.py FILE --target COLUMN [--inputs COLUMN...] [--terms N]

The last column is the target unless another is named; all others are inputs. Lines that start with
# are left out.
Where every column names a unit, as in ``speed [m/s]``, the equation agrees with the units. Needs
pandas, scikit-learn
(``pip install 'npu_kernels[sklearn]'``), and for units pint (``pip install 'npu_kernels[units]'``).
"""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path

import pandas

from npu_kernels import NPURegressor

KEPLER = Path(__file__).resolve().parents[1] / "benchmarks" / "demo" / "kepler.csv"


def read(path: Path) -> tuple[pandas.DataFrame, dict[str, str]]:
    """The columns of numbers, and their units where the header has them."""
    lines = [
        line for line in path.read_text().splitlines(keepends=True) if not line.startswith("#")
    ]
    table = pandas.read_csv(io.StringIO("".join(lines))).select_dtypes("number").dropna(axis=1)
    titles = {title: re.fullmatch(r"(.*?)\s*\[(.*)\]", title) for title in table}
    units = {match[1]: match[2] for match in titles.values() if match}
    return table.rename(
        columns={title: match[1] for title, match in titles.items() if match}
    ), units


def main() -> None:
    """Find the equation and report on it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=KEPLER)
    parser.add_argument("--target", help="column to explain; default: the last one")
    parser.add_argument("--inputs", nargs="+", help="columns to explain it by; default: all others")
    parser.add_argument(
        "--terms", type=int, default=4, help="how many products the equation may add up"
    )
    parser.add_argument("--starts", type=int, default=64)
    arguments = parser.parse_args()

    table, units = read(arguments.file)
    target = arguments.target or table.columns[-1]
    inputs = arguments.inputs or [name for name in table if name != target]
    with_units = all(name in units for name in [*inputs, target])
    model = NPURegressor(
        arguments.terms,
        units=[units[name] for name in inputs] if with_units else None,
        y_units=units[target] if with_units else None,
        starts=arguments.starts,
        random_state=0,
    )
    model.fit(table[inputs], table[target])
    print(f"{len(table)} rows of {', '.join(inputs)}" + (", with units" if with_units else ""))
    print(model.report())


if __name__ == "__main__":
    main()
