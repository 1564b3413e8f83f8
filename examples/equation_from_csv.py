"""Neural Power Unit, a layer: the equation behind the columns of a CSV file.

    python examples/equation_from_csv.py                             # Kepler's third law from measured orbits
    python examples/equation_from_csv.py FILE --target COLUMN [--inputs COLUMN...]

The last column is the target unless another is named; all others are inputs. Lines that start with # are left out.
Needs sympy (``pip install 'npu_kernels[formula]'``).
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from torch import Tensor, nn

from npu_kernels import NAU, RealNPU, fit, formula

KEPLER = Path(__file__).resolve().parents[1] / "benchmarks" / "demo" / "kepler.csv"


def read(path: Path) -> dict[str, Tensor]:
    """The columns of numbers, by name."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    columns = {}
    for name in rows[0]:
        try:
            columns[name] = torch.tensor([float(row[name]) for row in rows], dtype=torch.float64)
        except ValueError:  # text
            continue
    return columns


def main() -> None:
    """Fit `terms` products of powers and print their sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=KEPLER)
    parser.add_argument("--target", help="column to explain; default: the last one")
    parser.add_argument("--inputs", nargs="+", help="columns to explain it by; default: all others")
    parser.add_argument("--terms", type=int, default=1, help="how many products the equation may add up")
    parser.add_argument("--starts", type=int, default=64)
    arguments = parser.parse_args()

    columns = read(arguments.file)
    target = arguments.target or list(columns)[-1]
    inputs = arguments.inputs or [name for name in columns if name != target]
    x, y = torch.stack([columns[name] for name in inputs], 1), columns[target].unsqueeze(1)
    models = {"num_models": arguments.starts}
    model = nn.Sequential(
        RealNPU(len(inputs), arguments.terms, **models), NAU(arguments.terms, 1, clip=False, **models)
    ).double()
    found = fit(model, x, y)
    print(f"{len(x)} rows, error on the rows that were held out: {found.score:.2e}")
    print(formula.read(found.model, inputs, outputs=[target], positive=bool((x > 0).all())))


if __name__ == "__main__":
    main()
