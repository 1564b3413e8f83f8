"""How often `ode.fit` finds the known equations of time series, with right 95 % intervals.

    python -m benchmarks.time_series --noise 0,0.01,0.05 --seeds 50 # the rows that the file lacks
    python -m benchmarks.time_series --report docs/how-well.md   # the tables of the file's rows
    python -m benchmarks.time_series --odebench --noise 0,0.01,0.05 --dropped 0,0.5
    python -m benchmarks.time_series --odebench --methods ode.fit,pysindy --systems 27,104

fsir       the fractional SIR model of the paper, 40 points from 0 to 200, first states known
bromine    2 HBr from H2 and Br2 at a rate k [H2] [Br2]^(1/2), 25 points, first states known
hunters    Lotka and Volterra's law, 40 points from 0 to 12, first states known

Noise is normal, in units of each column's root mean square. The method "search" knows nothing of
the equation but the number of terms, and has 24 starts; "form" begins with the true equation, of
which all that is not 0 is fitted. The form is right if exactly the true coefficients and exponents
are not 0. Where it is wrong no exponent counts as within its interval. "exact": every exponent is
its true fraction. A second table counts the alternatives too, the equations that the data hardly
tell from the best one: whether one of them has the right form, and whether its intervals contain
the truth. A third one has the draws in which the form is wrong. --odebench runs the 63 systems of
ODEBench, and those of SRBench (101 to 107), from both of their starts (odebench.py). A run can be
interrupted and started again.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import torch
from torch import Tensor, nn

from benchmarks.arguments import command, listed
from benchmarks.marked_blocks import insert, record_table
from benchmarks.marked_blocks import table as markdown_table
from benchmarks.rows_command import Row, complete, read, told
from benchmarks.time_series import odebench
from npu_kernels import NAU, RealNPU, ode
from npu_kernels._jobs import files
from npu_kernels.env import processor
from npu_kernels.equations._series.simplify import WINDOW

OUT = Path(__file__).parents[1] / "results" / "time-series.jsonl"
ODEBENCH_OUT = OUT.with_name("odebench.jsonl")
MARK, EQUATIONS, WRONG = "time-series", "time-series-equations", "time-series-wrong"
ODEBENCH = "odebench"
METHODS = ("search", "form")
TITLES = {
    "fsir": "fractional SIR", "bromine": "rate law of order 3/2", "hunters": "Lotka and Volterra"
}  # fmt: skip
SEARCH_STARTS = 24
NO_RATES = "exponent of", "initial "  # how the names of other parameters begin
FINE = 400  # steps between two points of the true trajectory
# Draws that were looked at when the rule for alternatives was chosen: they say nothing of it.
DESIGN = {("fsir", 0.01, seed) for seed in range(50)}


@dataclass(frozen=True)
class Case:
    """An equation and how it is measured."""

    names: tuple[str, ...]  # of the states
    exponents: tuple[tuple[float, ...], ...]  # [h, D]
    rates: tuple[tuple[float, ...], ...]  # [D, h]
    u0: tuple[float, ...]  # first states
    end: float  # of the times, which begin at 0
    points: int

    def parts(self) -> tuple[Tensor, ...]:
        parts = self.exponents, self.rates, self.u0
        return tuple(torch.tensor(part, dtype=torch.float64) for part in parts)

    def series(self, noise: float, seed: int) -> tuple[Tensor, Tensor]:
        """Times and measurements."""
        exponents, rates, u0 = self.parts()
        steps = (self.points - 1) * FINE
        path = ode.integrate(
            u0, exponents, None, None, rates, steps=steps, dt=self.end / steps, method="rk4",
            clip=False,
        )  # fmt: skip
        assert isinstance(path, Tensor)
        u, generator = path[::FINE], torch.Generator().manual_seed(seed)
        error = torch.randn(u.shape, generator=generator, dtype=torch.float64)
        times = torch.linspace(0, self.end, self.points, dtype=torch.float64)
        return times, u + noise * u.square().mean(0).sqrt() * error

    def model(self, method: str) -> nn.Sequential:
        """The model that `fit` gets."""
        exponents, rates, _ = self.parts()
        h, d = exponents.shape
        k = SEARCH_STARTS if method == "search" else None
        model = nn.Sequential(RealNPU(d, h, num_models=k), NAU(h, d, num_models=k)).double()
        if method == "form":
            state = {"0.weight_re": exponents, "0.gate": torch.ones(d), "1.weight": rates}
            model.load_state_dict(state)
        return model


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
    "hunters": Case(
        ("x", "y"),
        ((1.0, 0.0), (1.0, 1.0), (0.0, 1.0)),
        ((1.3, -0.7, 0.0), (0.0, 0.35, -0.9)),
        (2.0, 1.0),
        12.0,
        40,
    ),
}


def judge(case: Case, fit: ode.SeriesFitResult) -> dict[str, Any]:
    """Whether the form is right, and the exponents; how many numbers are in their intervals."""
    exponents, rates, _ = case.parts()
    powers, coefficients = (part[0] for part in fit.weights())
    intervals = {interval.name: interval for interval in fit.confidence_intervals()}
    rate_intervals = [one for name, one in intervals.items() if not name.startswith(NO_RATES)]
    result = {"form": False, "exact": False, "inside": 0, "exponents": int((exponents != 0).sum())}
    result |= {"inside_rates": 0, "rates": int((rates != 0).sum())}
    if powers.shape != exponents.shape:
        return result
    for order in map(list, itertools.permutations(range(len(powers)))):
        right_rates = torch.equal(coefficients[:, order] != 0, rates != 0)
        if not (torch.equal(powers[order] != 0, exponents != 0) and right_rates):
            continue
        inside = 0
        for k, i in exponents.nonzero().tolist():
            interval = intervals[f"exponent of {case.names[i]} in term {order[k] + 1}"]
            inside += interval.low <= float(exponents[k, i]) <= interval.high
        exact = torch.allclose(powers[order], exponents, rtol=0, atol=1e-12)
        true_rates = rates[:, torch.tensor(order).argsort()]  # in the order of the fit's terms
        pairs = zip(rate_intervals, true_rates[true_rates != 0].tolist(), strict=True)
        covered = sum(interval.low <= rate <= interval.high for interval, rate in pairs)
        result |= {"form": True, "exact": exact, "inside": max(inside, int(result["inside"]))}
        result["inside_rates"] = max(covered, int(result["inside_rates"]))
    return result


def measure(name: str, noise: float, seed: int, method: str) -> Row:
    """One row of results."""
    case, searching = CASES[name], method == "search"
    t, u = case.series(noise, seed)
    begin = time.process_time()
    fit = ode.fit(
        case.model(method), t, u, u0=case.u0, names=case.names,
        init="search" if searching else "model", simplify=searching, progress=False,
    )  # fmt: skip
    seconds = round(time.process_time() - begin, 2)
    key = {"case": name, "noise": noise, "seed": seed, "method": method}
    equation = str(fit.equation).replace("\n", "; ")
    row = {**key, **judge(case, fit), "law": equation, "seconds": seconds, "processor": processor()}
    return row | (judge_all(case, fit) if searching else {})


def judge_all(case: Case, fit: ode.SeriesFitResult) -> dict[str, Any]:
    """Judge the equation and its alternatives: their number, the best form and its intervals."""
    begin = time.process_time()
    equations = [fit, *fit.alternatives()]
    seconds = round(time.process_time() - begin, 2)
    judged = [judge(case, equation) for equation in equations]
    best = max(judged, key=lambda result: (result["form"], result["inside"]))
    behind = (
        round(equation.bic - fit.bic, 2)
        for equation, result in zip(equations, judged, strict=True)
        if result["form"]
    )
    return {
        "laws": len(equations), "among": best["form"], "inside_among": best["inside"],
        "behind": next(behind, None), "seconds_among": seconds,
    }  # fmt: skip


def groups(rows: list[Row], *keys: str) -> Iterator[tuple[tuple[Any, ...], pandas.DataFrame]]:
    """The rows by the values of `keys`, in the order of the cases and methods."""
    if rows:
        frame = pandas.DataFrame(rows)
        order = {name: n for n, name in enumerate((*CASES, *METHODS))}
        frame = frame.sort_values(list(keys), key=lambda c: c.replace(order), kind="stable")
        yield from frame.groupby(list(keys), sort=False)


def _of(counts: pandas.Series, totals: pandas.Series) -> str:
    count, total = int(counts.sum()), int(totals.sum())
    return f"{count} of {total} ({100 * count / total:.0f} %)" if total else "-"


def table(rows: list[Row]) -> str:
    """The shares, as Markdown."""
    records = []
    for (case, method, noise), group in groups(rows, "case", "method", "noise"):
        right = group[group.form]
        told = right[right.rates.notna()] if "rates" in right else right[:0]
        records.append({
            "system": TITLES[case], "noise": f"{100 * noise:g} %", "data sets": str(len(group)),
            "method": method, "form right": str(sum(group.form)),
            "exponents exact": str(sum(group.exact)) if method == "search" else "-",
            "true exponents in their intervals": _of(group.inside, group.exponents),
            "where the form is right": _of(right.inside, right.exponents),
            "coefficients there": _of(told.inside_rates, told.rates) if len(told) else "-",
            "all of a data set": str(sum(group.inside == group.exponents)),
            "seconds": f"{group.seconds.median():.2g}",
        })  # fmt: skip
    return record_table(records).rstrip("\n")


def table_of_equations(rows: list[Row]) -> str:
    """The shares for the equation and its alternatives, of the searches that have them."""
    searched = [r for r in rows if "laws" in r and (r["case"], r["noise"], r["seed"]) not in DESIGN]
    return record_table({
        "system": TITLES[case], "noise": f"{100 * noise:g} %", "data sets": str(len(group)),
        "form right": str(sum(group.form)),
        "form right of one of the equations": f"{sum(group.among):g}",
        "true exponents in its intervals": _of(group.inside_among, group.exponents),
        "in the intervals of the result alone": _of(group.inside, group.exponents),
        "all of a data set": str(sum(group.inside_among == group.exponents)),
        "equations: mean": f"{group.laws.mean():.1f}", "most": f"{group.laws.max():.0f}",
        "seconds for them": f"{group.seconds_among.median():.2g}",
    } for (case, noise), group in groups(searched, "case", "noise")).rstrip("\n")  # fmt: skip


def table_of_wrong(rows: list[Row]) -> str:
    """The data sets at 1 % noise with a wrong form, and by how much the BIC prefers it."""
    header = ["system", "data set", "found", "BIC of the true form, more", "equations"]
    wrong = [row for row in rows if "laws" in row and row["noise"] == 0.01 and not row["form"]]
    lines, beyond = [], f"more than {WINDOW:.1f}, or not met"
    for row in sorted(wrong, key=lambda r: (list(CASES).index(r["case"]), r["seed"])):
        behind = beyond if row["behind"] is None else f"{row['behind']:.1f}"
        equation = row["law"].replace("; ", "<br>")
        lines.append([TITLES[row["case"]], str(row["seed"]), equation, behind, str(row["laws"])])
    return markdown_table(header, lines).rstrip("\n")


def page(text: str, rows: list[Row], odebench_rows: list[Row]) -> str:
    """A page with the tables of these rows."""
    for mark, content in ((MARK, table), (EQUATIONS, table_of_equations), (WRONG, table_of_wrong)):
        text = insert(text, content(rows), mark)
    return insert(text, odebench.table(odebench_rows), ODEBENCH)


def main(argv: Sequence[str] | None = None) -> None:
    """Run what the file lacks, or write the table."""
    parser = command("benchmarks.time_series", __doc__)
    add, page_help = parser.add_argument, "write the table into this page, and run nothing"
    add("--cases", type=listed(), default=",".join(CASES), help=f"of {', '.join(CASES)}")
    of_methods = f"of {', '.join(METHODS)}; with --odebench of {', '.join(odebench.METHODS)}"
    add("--methods", type=listed(), help=of_methods)
    add("--noise", type=listed(float), default="0,0.01,0.05")
    add("--seeds", type=int, default=1)
    add("--odebench", action="store_true", help="run ODEBench instead")
    numbers = [system.number for system in odebench.ALL]
    systems = "of ODEBench and SRBench, by number; all without it"
    add("--systems", type=listed(int), default=numbers, help=systems)
    dropped = "shares of ODEBench's points that are left out"
    add("--dropped", type=listed(float), default="0", help=dropped)
    add("--out", type=files.output)
    add("--report", type=Path, metavar="PAGE", help=page_help)
    add("--picture", type=files.output, help="draw ODEBench's rows into this file, run nothing")
    options = parser.parse_args(argv)
    out = options.out or (ODEBENCH_OUT if options.odebench else OUT)
    with told(parser):
        _work(options, out)


def _work(options: argparse.Namespace, out: Path) -> None:
    if options.picture:
        odebench.picture(read(ODEBENCH_OUT), options.picture)
    if options.report:
        rows = read(out, missing_ok=True), read(ODEBENCH_OUT)
        files.write(options.report, page(options.report.read_text(), *rows))
    if options.report or options.picture:
        return
    torch.set_num_threads(1)
    if options.odebench:
        methods = options.methods or odebench.METHODS[:1]
        chosen = options.noise, options.dropped, methods, options.systems, (0, 1)
        planned = [(k[3], k[4], *k[:3]) for k in itertools.product(*chosen)]
        shown = "reconstruction", "generalisation", "form", "law"
        complete(out, odebench.KEYS, planned, odebench.measure, shown)
        print(odebench.table(read(out)))
        return
    draws = [
        (noise, seed) for noise in options.noise for seed in range(options.seeds if noise else 1)
    ]
    methods = options.methods or METHODS
    planned = [(c, *draw, m) for draw in draws for c in options.cases for m in methods]
    complete(out, ("case", "noise", "seed", "method"), planned, measure, ("form", "inside", "law"))


if __name__ == "__main__":
    main()
