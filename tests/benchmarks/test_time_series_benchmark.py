"""The benchmark of time series: its judge, its file and its table."""

import json

import pytest
import torch

from benchmarks.time_series import __main__ as benchmark
from benchmarks.time_series import odebench, systems
from npu_kernels import ode
from tests.support.examples import ROOT

pytest.importorskip("scipy", reason="scipy is not installed")
pytest.importorskip("sympy", reason="sympy is not installed")


def test_the_judge_knows_the_equation_and_its_wrong_forms():
    case = benchmark.CASES["bromine"]
    fit = ode.fit(
        case.model("form"), *case.series(0.01, 0), u0=case.u0, names=case.names, init="model",
        simplify=False,
    )  # fmt: skip
    assert benchmark.judge(case, fit) == {
        "form": True,
        "exact": False,
        "inside": 2,
        "exponents": 2,
        "inside_rates": 3,
        "rates": 3,
    }
    power, nau = fit.model
    with torch.no_grad():
        power.weight_re.copy_(torch.tensor([[1.0, 0.5, 0.0]]))
    assert benchmark.judge(case, fit)["exact"]
    with torch.no_grad():
        nau.weight[2] = 0
    assert benchmark.judge(case, fit) == {
        "form": False,
        "exact": False,
        "inside": 0,
        "exponents": 2,
        "inside_rates": 0,
        "rates": 3,
    }


def test_a_run_adds_what_the_file_lacks(tmp_path, monkeypatch, capsys):
    file, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    words = ["--cases", "bromine", "--noise", "0.01", "--out", str(file)]
    benchmark.main(words)
    rows = benchmark.read(file)
    assert [(row["method"], row["form"], row["exact"]) for row in rows] == [
        ("search", True, True),
        ("form", True, False),
    ]
    assert rows[0]["law"].startswith("H2' = -0.15")
    file.write_text(json.dumps(rows[0]) + "\n")
    monkeypatch.setattr(
        benchmark, "measure", lambda *key: {**rows[1], "seed": key[2], "method": key[3]}
    )
    benchmark.main(words)
    assert [row["method"] for row in benchmark.read(file)] == ["search", "form"]
    marks = (benchmark.MARK, benchmark.EQUATIONS, benchmark.WRONG, benchmark.ODEBENCH)
    page.write_text(
        "".join(f"before\n<!-- {mark}:begin -->\nold\n<!-- {mark}:end -->\n" for mark in marks)
    )
    benchmark.main(["--report", str(page), "--out", str(file)])
    assert (
        "| rate law of order 3/2 | 1 % | 1 | search | 1 | 1 | 2 of 2 (100 %) | 2 of 2 (100 %) | 3 of 3 (100 %) | 1 |"
        in page.read_text()
    )
    assert (
        "| rate law of order 3/2 | 1 % | 1 | 1 | 1 | 2 of 2 (100 %) | 2 of 2 (100 %) | 1 |"
        in page.read_text()
    )
    assert "| --- |\n<!-- time-series-wrong:end -->" in page.read_text()


def test_the_table_is_that_of_the_rows():
    page = (ROOT / "docs" / "how-well.md").read_text()
    rows = benchmark.read(benchmark.OUT), benchmark.read(benchmark.ODEBENCH_OUT)
    assert page == benchmark.page(page, *rows)


def test_systems_of_odebench_are_sums_of_products_or_not():
    by_number = {system.number: system for system in odebench.SYSTEMS}
    assert sorted(by_number) == list(range(1, 64))
    assert sum(odebench.terms(system) is not None for system in odebench.SYSTEMS) == 37
    exponents, coefficients = odebench.terms(by_number[27])  # Lotka and Volterra
    order = [exponents.tolist().index(row) for row in ([1, 0], [1, 1], [0, 1])]
    assert coefficients[:, order].tolist() == [[1.84, -1.45, 0], [0, 1.62, -3.0]]
    assert odebench.terms(by_number[4]) is None
    strogatz = {system.number: system for system in systems.STROGATZ}
    assert sorted(strogatz) == list(range(101, 108))
    known = [number for number, system in strogatz.items() if odebench.terms(system) is not None]
    assert known == [104, 107]


def test_odebench_adds_what_the_file_lacks(tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    words = ["--odebench", "--systems", "11", "--noise", "0", "--out", str(file)]
    benchmark.main(words)
    rows = benchmark.read(file)
    assert [(row["system"], row["start"], row["form"]) for row in rows] == [
        (11, 0, True),
        (11, 1, True),
    ]
    assert all(row["reconstruction"] > 0.999 < row["generalisation"] for row in rows)
    assert all(row["law"] == "x0' = -1.0*x0**3" for row in rows)
    lines = capsys.readouterr().out.splitlines()
    cells = "| ODEBench | 0 % | 0 % | ode.fit | 2 | 2 (100 %) | 2 (100 %) | 2 of 2 | 0 |"
    assert lines[-1].startswith(cells)
    before = file.read_bytes()
    benchmark.main(words)
    assert file.read_bytes() == before


def test_pysindy_finds_a_decay():
    pytest.importorskip("pysindy", reason="pysindy is not installed")
    row = odebench.measure(2, 0, 0.0, 0.0, "pysindy")
    assert row["form"]
    assert row["generalisation"] > 0.99
