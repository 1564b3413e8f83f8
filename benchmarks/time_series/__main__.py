"""How often `ode.fit` finds known laws in time series, and how often its 95 % intervals contain the true exponents.

    python -m benchmarks.time_series --noise 0,0.01,0.05 --seeds 50      # adds the rows that the file lacks
    python -m benchmarks.time_series --report docs/time-series.md        # the table of the file's rows

fsir       the fractional SIR model of the paper, 40 points from 0 to 200, first states known
bromine    2 HBr from H2 and Br2 at a rate k [H2] [Br2]^(1/2), 25 points, first states known

Noise is normal, in units of each column's root mean square. The method "search" knows nothing of the law but the number
of terms, and has 24 starts; "form" begins with the true law, of which all that is not 0 is fitted. The form is right if
exactly the true coefficients and exponents are not 0. Where it is wrong no exponent counts as within its interval.
"exact": every exponent is its true fraction. A second table counts the alternatives too, the laws that the data hardly
tell from the one that was found: whether one of them has the right form, and whether its intervals contain the truth. A
third one has the draws in which the form is wrong. A run can be interrupted and started again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.blocks import insert
from benchmarks.equations.__main__ import processor, read
from npu_kernels import NAU, RealNPU, ode
from npu_kernels._jobs import files
from npu_kernels._laws.series.alternatives import WINDOW

OUT = Path(__file__).parents[1] / "results" / "time-series.jsonl"
MARK, LAWS, WRONG = "time-series", "time-series-laws", "time-series-wrong"
METHODS = ("search", "form")
TITLES = {"fsir": "fractional SIR", "bromine": "rate law of order 3/2"}
STARTS = 24
FINE = 400  # steps between two points of the true trajectory
# Draws that were looked at when the rule for alternatives was chosen: they do not tell how well it works.
DESIGN = {("fsir", 0.01, seed) for seed in range(50)}
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A law ``[h, D]``, ``[D, h]``, its states' names, first states, and times from 0 to end."""

    names: tuple[str, ...]
    exponents: tuple[tuple[float, ...], ...]
    rates: tuple[tuple[float, ...], ...]
    u0: tuple[float, ...]
    end: float
    points: int

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return tuple(
            torch.tensor(part, dtype=torch.float64)
            for part in (self.exponents, self.rates, self.u0)
        )  # type: ignore[return-value]

    def series(self, noise: float, seed: int) -> tuple[Tensor, Tensor]:
        """Times and measurements."""
        exponents, rates, u0 = self.parts()
        steps = (self.points - 1) * FINE
        path = ode.integrate(
            u0,
            exponents,
            None,
            None,
            rates,
            steps=steps,
            dt=self.end / steps,
            method="rk4",
            clip=False,
        )
        assert isinstance(path, Tensor)
        u = path[::FINE]
        generator = torch.Generator().manual_seed(seed)
        error = torch.randn(u.shape, generator=generator, dtype=torch.float64)
        return torch.linspace(
            0, self.end, self.points, dtype=torch.float64
        ), u + noise * u.square().mean(0).sqrt() * error

    def model(self, method: str) -> nn.Sequential:
        """What `fit` gets."""
        exponents, rates, _ = self.parts()
        h, d = exponents.shape
        models = STARTS if method == "search" else None
        found = nn.Sequential(
            RealNPU(d, h, num_models=models), NAU(h, d, num_models=models)
        ).double()
        if method == "form":
            found.load_state_dict(
                {"0.weight_re": exponents, "0.gate": torch.ones(d), "1.weight": rates}
            )
        return found


CASES = {
    "fsir": Case(
        ("S", "I", "R"),
        ((0.5, 0.5, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
        ((-0.06, 0.0, 0.01), (0.06, -0.05, 0.0), (0.0, 0.05, -0.01)),
        (100.0, 0.01, 0.0),
        200.0,
        40,
    ),
    "bromine": Case(
        ("H2", "Br2", "HBr"),
        ((1.0, 0.5, 0.0),),
        ((-0.15,), (-0.15,), (0.3,)),
        (1.0, 0.8, 0.0),
        20.0,
        25,
    ),
}


def judge(case: Case, found: ode.SeriesFit) -> dict[str, Any]:
    """Whether the form is right, every exponent its fraction, and how many exponents are within their intervals."""
    exponents, rates, _ = case.parts()
    own, coefficients = (part[0] for part in found.weights())
    intervals = {one.name: one for one in found.intervals()}
    result = {"form": False, "exact": False, "inside": 0, "exponents": int((exponents != 0).sum())}
    if own.shape != exponents.shape:
        return result
    for order in map(list, itertools.permutations(range(len(own)))):
        if not torch.equal(own[order] != 0, exponents != 0) or not torch.equal(
            coefficients[:, order] != 0, rates != 0
        ):
            continue
        inside = 0
        for k, i in exponents.nonzero().tolist():
            interval = intervals[f"exponent of {case.names[i]} in term {order[k] + 1}"]
            inside += interval.low <= float(exponents[k, i]) <= interval.high
        exact = torch.allclose(own[order], exponents, rtol=0, atol=1e-12)
        result |= {"form": True, "exact": exact, "inside": max(inside, int(result["inside"]))}
    return result


def measure(name: str, noise: float, seed: int, method: str) -> Row:
    """One row of results."""
    case = CASES[name]
    t, u = case.series(noise, seed)
    begin = time.process_time()
    found = ode.fit(
        case.model(method), t, u, u0=case.u0, names=case.names, start="search" if method == "search" else "model",
        simplify=method == "search", progress=False,
    )  # fmt: skip
    seconds = round(time.process_time() - begin, 2)
    key = {"case": name, "noise": noise, "seed": seed, "method": method}
    law = str(found.equation).replace("\n", "; ")
    row = {**key, **judge(case, found), "law": law, "seconds": seconds, "processor": processor()}
    return row | (judge_all(case, found) if method == "search" else {})


def judge_all(case: Case, found: ode.SeriesFit) -> dict[str, Any]:
    """Of the law and its alternatives: how many, whether one has the right form, and what its intervals contain."""
    begin = time.process_time()
    others = found.alternatives()
    seconds = round(time.process_time() - begin, 2)
    each = [judge(case, one) for one in (found, *others)]
    best = max(each, key=lambda one: (one["form"], one["inside"]))
    away = next(
        (
            round(o.bic - found.bic, 2)
            for o, one in zip(others, each[1:], strict=True)
            if one["form"]
        ),
        None,
    )
    return {
        "laws": len(each), "among": best["form"], "inside_among": best["inside"],
        "behind": 0.0 if each[0]["form"] else away, "seconds_among": seconds,
    }  # fmt: skip


def table(rows: list[Row]) -> str:
    """The shares, as Markdown."""
    head = [
        "law",
        "noise",
        "draws",
        "method",
        "form right",
        "exponents exact",
        "true exponents in their intervals",
    ]
    head += ["all of a draw", "seconds"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    order = {name: n for n, name in enumerate((*CASES, *METHODS))}
    keys = sorted(
        {(r["case"], r["method"], r["noise"]) for r in rows},
        key=lambda k: (order[k[0]], order[k[1]], k[2]),
    )
    for case, method, noise in keys:
        group = [r for r in rows if (r["case"], r["method"], r["noise"]) == (case, method, noise)]
        n, inside, every = (
            len(group),
            sum(r["inside"] for r in group),
            sum(r["exponents"] for r in group),
        )
        exact = f"{sum(r['exact'] for r in group)}" if method == "search" else "-"
        whole = sum(r["inside"] == r["exponents"] for r in group)
        seconds = statistics.median(r["seconds"] for r in group)
        lines.append(
            f"| {TITLES[case]} | {100 * noise:g} % | {n} | {method} | {sum(r['form'] for r in group)} | {exact} | "
            f"{inside} of {every} ({100 * inside / every:.0f} %) | {whole} | {seconds:.2g} |"
        )
    return "\n".join(lines)


def table_of_laws(rows: list[Row]) -> str:
    """The same for the law and its alternatives, of the searches that have them."""
    head = [
        "law",
        "noise",
        "draws",
        "form right",
        "form right of one of the laws",
        "true exponents in its intervals",
    ]
    head += [
        "in those of the law found alone",
        "all of a draw",
        "laws: mean",
        "most",
        "seconds for them",
    ]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    searched = [
        row
        for row in rows
        if "laws" in row and (row["case"], row["noise"], row["seed"]) not in DESIGN
    ]
    order = list(CASES)
    for case, noise in sorted(
        {(r["case"], r["noise"]) for r in searched}, key=lambda k: (order.index(k[0]), k[1])
    ):
        group = [r for r in searched if (r["case"], r["noise"]) == (case, noise)]
        n, every = len(group), sum(r["exponents"] for r in group)
        inside, alone = (sum(r[key] for r in group) for key in ("inside_among", "inside"))
        whole = sum(r["inside_among"] == r["exponents"] for r in group)
        laws = [r["laws"] for r in group]
        lines.append(
            f"| {TITLES[case]} | {100 * noise:g} % | {n} | {sum(r['form'] for r in group)} | "
            f"{sum(r['among'] for r in group)} | {inside} of {every} ({100 * inside / every:.0f} %) | "
            f"{alone} of {every} ({100 * alone / every:.0f} %) | {whole} | "
            f"{sum(laws) / n:.1f} | {max(laws)} | {statistics.median(r['seconds_among'] for r in group):.2g} |"
        )
    return "\n".join(lines)


def table_of_wrong(rows: list[Row]) -> str:
    """The draws at 1 % noise whose form is wrong, and by how much the criterion prefers it to the true one."""
    lines = [
        "| law | draw | found | criterion of the true form, more | laws |",
        "| --- | --- | --- | --- | --- |",
    ]
    wrong = [row for row in rows if "laws" in row and row["noise"] == 0.01 and not row["form"]]
    for row in sorted(wrong, key=lambda r: (list(CASES).index(r["case"]), r["seed"])):
        behind = (
            f"more than {WINDOW:.1f}, or not met"
            if row["behind"] is None
            else f"{row['behind']:.1f}"
        )
        found = row["law"].replace("; ", "<br>")
        lines.append(
            f"| {TITLES[row['case']]} | {row['seed']} | {found} | {behind} | {row['laws']} |"
        )
    return "\n".join(lines)


def page(text: str, rows: list[Row]) -> str:
    """A page with the tables of these rows."""
    for mark, content in ((MARK, table), (LAWS, table_of_laws), (WRONG, table_of_wrong)):
        text = insert(text, content(rows), mark)
    return text


def main() -> None:
    """Run what the file lacks, or write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--noise", default="0,0.01,0.05")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=files.output, default=OUT)
    parser.add_argument(
        "--report",
        type=Path,
        metavar="PAGE",
        help="write the table into this page, and run nothing",
    )
    arguments = parser.parse_args()
    found = read(arguments.out)
    if arguments.report:
        files.write(arguments.report, page(arguments.report.read_text(), found))
        return
    torch.set_num_threads(1)
    done = {tuple(row[key] for key in ("case", "noise", "seed", "method")) for row in found}
    for noise, seed in itertools.product(
        map(float, arguments.noise.split(",")), range(arguments.seeds)
    ):
        for case, method in itertools.product(
            arguments.cases.split(","), arguments.methods.split(",")
        ):
            if (case, noise, seed, method) in done or (noise == 0 and seed > 0):
                continue
            row = measure(case, noise, seed, method)
            found.append(row)
            files.write(arguments.out, "".join(json.dumps(r) + "\n" for r in found))
            print(
                f"{case:<9}{noise:<6g}{seed:<4}{method:<8}{row['form']!s:<6}{row['inside']} {row['law']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
