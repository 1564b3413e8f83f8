"""The equations of a time series in a CSV file, by `ode.fit`.

    python examples/law_of_a_time_series.py [--plot PICTURE]       # hares and lynxes
    python examples/law_of_a_time_series.py --influenza [--plot PICTURE]
    python examples/law_of_a_time_series.py FILE [--max-terms N] [--n-init N] [--proportional]

The first column is time, the others are the states; an empty cell is a missing value. Lines that
start with # are left out. The hares have Lotka and Volterra's law, the influenza in a boarding
school that of Kermack and McKendrick, with one rate of infection in both equations. For a file of
your own nothing is assumed but the largest number of terms: examples/sunspots.csv
is one that no equation of one state explains. Needs pandas, SciPy and sympy
(``pip install '.[sklearn]' pandas`` in a clone), and matplotlib for the picture.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas
import torch
from torch import nn

from npu_kernels import NAU, RealNPU, ode

PELTS = Path(__file__).parent / "hare_lynx.csv"
IN_BED = PELTS.with_name("influenza.csv")


def lotka_volterra() -> nn.Sequential:
    """hare' = a hare - b hare lynx, lynx' = c hare lynx - d lynx, with a guess of a, b, c, d."""
    weight_re = [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]  # hare, hare lynx, lynx
    return known(weight_re, [[0.5, -0.02, 0.0], [0.0, 0.02, -0.8]])


def kermack_mckendrick() -> nn.Sequential:
    """S' = -b S I, I' = b S I - g I, with a guess of b and g."""
    return known([[1.0, 1.0], [0.0, 1.0]], [[-0.002, 0.0], [0.002, -0.5]])  # S I, I


def known(weight_re: list[list[float]], rates: list[list[float]]) -> nn.Sequential:
    """A model with these exponents, which stay, and a guess of its coefficients."""
    terms = len(weight_re)
    model = nn.Sequential(RealNPU(2, terms), NAU(terms, 2, clip=False)).double()
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
    parser.add_argument("--influenza", action="store_true", help="instead of hares and lynxes")
    parser.add_argument("--max-terms", type=int, default=3, help="largest number of products")
    parser.add_argument("--n-init", type=int, default=24)
    parser.add_argument(
        "--proportional", action="store_true", help="errors are in proportion to the states"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="PICTURE",
        help="draw the series and the equations into this file",
    )
    arguments = parser.parse_args()

    file = IN_BED if arguments.influenza else arguments.file
    table = pandas.read_csv(file, comment="#")
    t, u = table.iloc[:, 0], table.iloc[:, 1:]
    options: dict[str, Any] = {"sigma": "proportional" if arguments.proportional else None}
    if arguments.influenza:
        model = kermack_mckendrick()
        # Infection takes boys from S to I, recovery takes them away; S begins with all but one.
        options = {"stoichiometry": [[-1, 0], [1, -1]], "init": "model"}
        options["u0"] = [762, float("nan")]
    elif file == PELTS:
        model = lotka_volterra()
        options = {"sigma": "proportional", "init": "model"}
    else:
        sizes, starts = (u.shape[1], arguments.max_terms), arguments.n_init
        model = nn.Sequential(
            RealNPU(*sizes, num_models=starts), NAU(*sizes[::-1], num_models=starts)
        )
    result = ode.fit(model, t, u, **options)
    print(result.report())
    if arguments.plot:
        result.plot().savefig(arguments.plot)


if __name__ == "__main__":
    main()
