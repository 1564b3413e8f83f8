"""The systems of ODEBench and of SRBench's Strogatz part (systems.csv), their constants and starts.

Equations are those of textbooks: pages are of S. H. Strogatz, "Nonlinear Dynamics and Chaos".
Numbers and starts are those of S. d'Ascoli, S. Becker, A. Mathis, P. Schwaller and N. Kilbertus,
"ODEFormer: Symbolic Regression of Dynamical Systems with Transformers" (ICLR 2024), whose
repository sdascoli/odeformer has them in odeformer/odebench/strogatz_equations.py. Each system is
solved from each of its two starts at 150 times from 0 to 10.

SRBench's seven systems are those that W. La Cava, K. Danai and L. Spector ("Inference of compact
nonlinear dynamic models by epigenetic local search", 2016) took from the same book: the repository
lacava/ode-strogatz has the data, at 100 times from 0 to 9.9, of whose four series the first two
begin at the starts here. Their numbers here begin at 101.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple


class System(NamedTuple):
    """A system of differential equations."""

    number: int  # in ODEBench, or above 100
    source: str  # a page of Strogatz's book, or an address
    equations: str  # right-hand sides, with the states x0, x1, .. and the constants c0, c1, ..
    constants: tuple[float, ...]
    starts: tuple[tuple[float, ...], ...]


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


def _read(path: Path) -> list[System]:
    systems = []
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        starts = tuple(map(_numbers, row["starts"].split(";")))
        facts = int(row["number"]), row["source"], row["equations"]
        systems.append(System(*facts, _numbers(row["constants"]), starts))
    return systems


ALL = _read(Path(__file__).with_suffix(".csv"))
SYSTEMS = [system for system in ALL if system.number < 100]
STROGATZ = [system for system in ALL if system.number > 100]
