"""The benchmark of known equations: its equations, its judge, its file and its table."""

import json
from collections import Counter

import numpy as np
import pytest

from benchmarks.equations import __main__ as benchmark
from benchmarks.equations import baselines, criterion, report
from benchmarks.equations.known_equations import (
    EQUATIONS,
    MANY_TERMS,
    SRSD,
    SRSD_RATIOS,
    WITH_FUNCTIONS,
    drawn,
    mixed,
    with_dummies,
)
from tests.support.examples import ROOT

NAMED = {equation.name: equation for equation in (*EQUATIONS, *SRSD, *WITH_FUNCTIONS)}
SOME = [*EQUATIONS, *map(drawn, range(6)), with_dummies(EQUATIONS[40]), *SRSD, *map(mixed, SRSD)]
SOME += [*WITH_FUNCTIONS, *SRSD_RATIOS, *MANY_TERMS]


@pytest.mark.parametrize("equation", SOME, ids=lambda equation: equation.name)
def test_the_judge_knows_the_equation_and_its_wrong_forms(equation):
    def sums(points):
        return equation.products(points).sum(1)

    def more(points):
        return sums(points) + np.abs(equation.products(points)).max(1)

    assert benchmark.same(equation, equation.power, sums, equation.function)
    assert not benchmark.same(equation, equation.power, sums, "tan")
    factor = 1.5 if equation.functions or equation.below else 1.03  # their sums may nearly cancel
    for wrong in (more, lambda points: factor * sums(points)):
        assert not benchmark.same(equation, equation.power, wrong, equation.function)
    X = equation.draw(50, np.random.default_rng(0))
    assert np.isfinite(equation(X)).all()
    assert (equation(X) != 0).all() or equation.function == "log"
    for name, x in zip(equation.inputs, X.T, strict=True):
        if name in equation.ranges:
            size, bounds = np.abs(x), equation.ranges[name]
            assert (size >= max(0.0, bounds.low) * (1 - 1e-12)).all()
            assert (size <= max(-bounds.low, bounds.high) * (1 + 1e-12)).all()


def test_a_run_adds_what_the_file_lacks(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    file, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    words = [
        "--classes", "b,c1", "--noise", "0", "--rows", "100", "--seeds", "1", "--out",
        str(file),
    ]  # fmt: skip
    some = [equation for equation in EQUATIONS if equation.name in ("I.13.12", "I.10.7")]
    monkeypatch.setattr(benchmark, "equations_of", lambda seed: some)
    benchmark.main(words)
    rows = benchmark.read(file)
    assert [(r["equation"], r["method"], r["found"]) for r in rows] == [
        ("I.13.12", "NPURegressor", True),
        ("I.13.12", "logarithms", False),
        ("I.10.7", "NPURegressor", True),
        ("I.10.7", "logarithms", False),
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    benchmark.main(words)
    assert [row["equation"] for row in benchmark.read(file)] == [row["equation"] for row in rows]
    assert benchmark.read(file)[:3] == rows[:3]
    marks = "".join(
        f"<!-- {mark}:begin -->\nold\n<!-- {mark}:end -->\n" for mark in ("equations", "published")
    )
    page.write_text(f"before\n{marks}behind\n")
    benchmark.main(["--out", str(file), "--report", str(page)])
    assert "| sum | 0 | 70 | 1 of 1\\* (" in page.read_text()
    assert "| power of a sum | 0 | 150 | 1 of 1\\* (" in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("behind\n")


def test_logarithms_find_products():
    assert benchmark.measure(EQUATIONS[1], 0.01, 0, "logarithms", 500)["found"]
    for name in ("I.12.2 srsd", "III.21.20 srsd"):
        assert benchmark.measure(NAMED[name], 0.0, 0, "logarithms", 500)["found"]


@pytest.mark.parametrize("name", ["I.13.12", "II.38.14 srsd", "B19 srsd", "I.12.11 srsdf"])
def test_the_criterion_of_the_equation_is_the_search_s(name):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    from npu_kernels import NPURegressor

    equation = NAMED[name]
    X = equation.draw(300, np.random.default_rng(0))
    y = equation(X)
    y += 1e-3 * np.sqrt(np.mean(y**2)) * np.random.default_rng(1).standard_normal(300)
    functions = {
        f"x{equation.inputs.index(name)}": f for name, f in equation.functions.items()
    } or None
    names = [f"x{i}" for i in range(X.shape[1])]
    table = pandas.DataFrame(X, columns=names)
    best = (
        NPURegressor(random_state=0, noise="additive", functions=functions)
        .fit(table, y)
        .best_equation_
    )
    assert sorted(map(tuple, best.exponents)) == sorted(
        map(tuple, equation.exponents_of(equation.terms))
    )
    assert criterion.of(best, X, y) == pytest.approx(best.bic, abs=1e-3)
    assert criterion.of_equation(equation, X, y) == pytest.approx(best.bic, abs=1e-3)


def test_other_programs(monkeypatch, capsys):
    """A program that is not installed is named; the library of monomials has the true ones."""
    table = baselines.monomials(3, np.random.default_rng(0)).tolist()
    assert [1, 1, -2] in table
    assert [0, 0, 0] in table
    assert len(baselines.monomials(8, np.random.default_rng(0))) == baselines.MONOMIALS
    monkeypatch.setattr(benchmark, "installed", list)
    with pytest.raises(SystemExit):
        benchmark.main(["--methods", "gplearn"])
    assert "not installed: gplearn (pip install gplearn)" in capsys.readouterr().err


@pytest.mark.parametrize("name", baselines.BASELINES)
def test_a_program_that_is_installed_predicts(name):
    if name not in baselines.installed():
        pytest.skip(f"{name} is not installed")
    X = EQUATIONS[3].draw(100, np.random.default_rng(0))
    predict, size, formula = baselines.BASELINES[name](X, EQUATIONS[3](X), 0)
    assert np.shape(predict(X)) == (100,)
    assert size > 0
    assert formula


def test_tables_of_the_guide():
    page = (ROOT / "docs" / "how-well.md").read_text()
    assert page == report.page(page, benchmark.read(benchmark.OUT))


def test_dummies_of_srsd_are_among_the_columns():
    counts, last = Counter(), 0
    for equation in SRSD:
        more = mixed(equation)
        assert more == mixed(equation)
        assert more.kind in report.TITLES
        needed = [i for i, name in enumerate(more.inputs) if not name.startswith("dummy")]
        assert [more.inputs[i] for i in needed] == equation.inputs
        X = more.draw(20, np.random.default_rng(0))
        assert more(X) == pytest.approx(equation(X[:, needed]))
        counts[len(more.inputs) - len(needed)] += 1
        last += more.inputs[-1].startswith("dummy")
    assert set(counts) == {1, 2, 3}
    assert 0 < last < len(SRSD)
