"""The law of a time series in a CSV file, by `ode.fit`.

    python examples/law_of_a_time_series.py                              # hares and lynxes: Lotka
    and Volterra
    python examples/law_of_a_time_series.py FILE [--terms N] [--starts N] [--relative] [--plot
    PICTURE]

The first column is time, the others are the states; an empty cell is a missing value. Lines that
start with # are left
out. For a file of your own nothing is assumed of the law but the greatest number of its terms.
Needs pandas, SciPy and
sympy (``pip install 'npu_kernels[sklearn]' pandas``), and matplotlib for the picture.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas
import torch
from torch import nn

from npu_kernels import NAU, RealNPU, ode

PELTS = Path(__file__).parent / "hare_lynx.csv"


def lotka_volterra() -> nn.Sequential:
    """hare' = a hare - b hare lynx, lynx' = c hare lynx - d lynx, with a guess of a, b, c, d."""
    model = nn.Sequential(RealNPU(2, 3), NAU(3, 2, clip=False)).double()
    weight_re = [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]  # hare, hare lynx, lynx
    rates = [[0.5, -0.02, 0.0], [0.0, 0.02, -0.8]]
    model.load_state_dict(
        {
            "0.weight_re": torch.tensor(weight_re),
            "0.gate": torch.ones(2),
            "1.weight": torch.tensor(rates),
        }
    )
    model[0].requires_grad_(False)  # the exponents stay
    return model


def main() -> None:
    """Fit, and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=PELTS)
    parser.add_argument("--terms", type=int, default=3, help="how many products the law may have")
    parser.add_argument("--starts", type=int, default=24)
    parser.add_argument(
        "--relative", action="store_true", help="errors are in proportion to the states"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="PICTURE", help="draw the series and the law into this file"
    )
    arguments = parser.parse_args()

    table = pandas.read_csv(arguments.file, comment="#")
    t, u = table.iloc[:, 0], table.iloc[:, 1:]
    is_shipped = arguments.file == PELTS
    sizes = u.shape[1], arguments.terms
    models = nn.Sequential(
        RealNPU(*sizes, num_models=arguments.starts), NAU(*sizes[::-1], num_models=arguments.starts)
    )
    law = ode.fit(
        lotka_volterra() if is_shipped else models,
        t,
        u,
        sigma="relative" if is_shipped or arguments.relative else None,
        start="model" if is_shipped else "search",
    )
    print(law.report())
    if arguments.plot:
        law.plot().savefig(arguments.plot)


if __name__ == "__main__":
    main()
