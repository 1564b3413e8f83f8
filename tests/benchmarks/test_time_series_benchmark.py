"""The benchmark of time series: its judge, its file and its table."""

import json
import sys

import pytest
import torch

from benchmarks.time_series import __main__ as benchmark
from npu_kernels import ode
from tests.support.examples import ROOT

pytest.importorskip("scipy", reason="scipy is not installed")
pytest.importorskip("sympy", reason="sympy is not installed")


def test_the_judge_knows_the_law_and_its_wrong_forms():
    case = benchmark.CASES["bromine"]
    fit = ode.fit(
        case.model("form"), *case.series(0.01, 0), u0=case.u0, names=case.names, start="model",
        simplify=False,
    )  # fmt: skip
    assert benchmark.judge(case, fit) == {
        "form": True,
        "exact": False,
        "inside": 2,
        "exponents": 2,
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
    }


def test_a_run_adds_what_the_file_lacks(tmp_path, monkeypatch, capsys):
    file, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    words = ["x", "--cases", "bromine", "--noise", "0.01", "--out", str(file)]
    monkeypatch.setattr(sys, "argv", words)
    benchmark.main()
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
    benchmark.main()
    assert [row["method"] for row in benchmark.read(file)] == ["search", "form"]
    marks = (benchmark.MARK, benchmark.LAWS, benchmark.WRONG)
    page.write_text(
        "".join(f"before\n<!-- {mark}:begin -->\nold\n<!-- {mark}:end -->\n" for mark in marks)
    )
    monkeypatch.setattr(sys, "argv", ["x", "--report", str(page), "--out", str(file)])
    benchmark.main()
    assert (
        "| rate law of order 3/2 | 1 % | 1 | search | 1 | 1 | 2 of 2 (100 %) | 1 |"
        in page.read_text()
    )
    assert (
        "| rate law of order 3/2 | 1 % | 1 | 1 | 1 | 2 of 2 (100 %) | 2 of 2 (100 %) | 1 |"
        in page.read_text()
    )
    assert "| --- |\n<!-- time-series-wrong:end -->" in page.read_text()


def test_the_table_is_that_of_the_rows():
    page = (ROOT / "docs" / "time-series.md").read_text()
    assert page == benchmark.page(page, benchmark.read(benchmark.OUT))


def test_the_draws_whose_form_is_wrong():
    row = {
        "case": "bromine", "noise": 0.01, "seed": 3, "form": False, "law": "a; b", "laws": 2,
        "behind": 3.14,
    }  # fmt: skip
    lines = benchmark.table_of_wrong(
        [{**row, "behind": None}, {**row, "seed": 1}, {**row, "form": True}]
    )
    assert lines.splitlines()[2:] == [
        "| rate law of order 3/2 | 1 | a<br>b | 3.1 | 2 |",
        "| rate law of order 3/2 | 3 | a<br>b | more than 6.0, or not met | 2 |",
    ]
