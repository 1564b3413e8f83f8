"""``python -m npu_kernels.law``: tables of many forms, and what is no table."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

from npu_kernels._laws.table import estimator
from npu_kernels.equations import NPURegressor
from npu_kernels.law import _table, main
from tests.support.building import ROOT

rng = np.random.default_rng(0)
NUMBERS = [(a, b, 3 * a * a / b) for a, b in rng.uniform(1, 2, (60, 2)).round(4).tolist()]
FAST = ["--starts", "8", "--max-terms", "1"]


def text(delimiter: str = ",", header: str = "a,b,c", decimal: str = ".") -> str:
    rows = [delimiter.join(f"{v:.9f}".replace(".", decimal) for v in row) for row in NUMBERS]
    return "\n".join([header.replace(",", delimiter), *rows]) + "\n"


def law_of(
    content: str | bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    path = tmp_path / "data.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    few_terms = [] if "--no-law" in words else ["--max-terms", "1"]
    assert main([str(path), "--starts", "8", *few_terms, *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("content", [
    text(), text(";"), text("\t"), text("|"), text(" "), text(";", decimal=","),
    text("\t", decimal=","), text("   "), "# a comment\n\n" + text(), text().encode("utf-16"),
    text().encode("utf-8-sig"), text().replace("\n", "\r\n")
])  # fmt: skip
def test_delimiters_and_encodings(content, tmp_path, capsys):
    lines = law_of(content, tmp_path, capsys).splitlines()
    assert lines[0] == "60 rows of a, b"
    assert lines[1] in ("c = 3*a**2/b", "c = 3.000*a**2/b")


def test_names_that_are_not_ascii(tmp_path, capsys):
    content = text(header="höhe,b,größe").encode("cp1252")
    assert "größe = 3*höhe**2/b" in law_of(content, tmp_path, capsys)


def test_a_file_without_a_header(tmp_path, capsys):
    content = text().partition("\n")[2]
    assert "y = 3*x0**2/x1" in law_of(content, tmp_path, capsys)


def test_target_and_inputs(tmp_path, capsys):
    said = law_of(text(), tmp_path, capsys, "--target", "b", "--inputs", "c", "a")
    assert said.startswith("60 rows of c, a\nb = 3*a**2/c\n")


@pytest.mark.filterwarnings("ignore:NPURegressor. It is an approximation")
def test_ratios_and_a_known_part(tmp_path, capsys):
    rows = "".join(f"{a},{b},{(3 * a + b) / (a + b):.12g}\n" for a, b, _ in NUMBERS)
    words = ["--max-terms", "2"]
    assert "/(" in law_of(f"a,b,c\n{rows}", tmp_path, capsys, *words, "--ratios", "yes")
    assert "/(" not in law_of(f"a,b,c\n{rows}", tmp_path, capsys, *words, "--ratios", "no")
    said = law_of(text(), tmp_path, capsys, "--known", "a**2/b")
    assert "c = a**2/b + 2*a**2/b" in said


def test_a_table_without_a_law(tmp_path, capsys):
    said = law_of(text(), tmp_path, capsys, "--no-law")
    assert "Error of 60 rows that were not fitted" in said


def test_functions(tmp_path, capsys):
    rows = "".join(f"{a},{b},{3 * a * np.sin(b):.12g}\n" for a, b, _ in NUMBERS)
    content = f"a,angle,c\n{rows}"
    for words in (["sin", "cos"], ["angle=sin,cos"], ["a=log", "angle=sin"]):
        assert "c = 3*a*sin(angle)\n" in law_of(content, tmp_path, capsys, "--functions", *words)
    rows = "".join(f"{a},{b},{np.exp(3 * a / b):.12g}\n" for a, b, _ in NUMBERS)
    for words in (["auto"], ["identity", "log"]):
        said = law_of(f"a,b,c\n{rows}", tmp_path, capsys, "--output-functions", *words)
        assert "c = exp(3*a/b)\n" in said
    with pytest.raises(SystemExit):
        law_of(content, tmp_path, capsys, "--functions", "sin", "angle=cos")
    assert "--functions must be functions, or COLUMN=FUNCTION,..." in capsys.readouterr().err


def test_units_of_the_header_and_of_the_command(tmp_path, capsys):
    pytest.importorskip("pint", reason="pint is not installed")
    said = law_of(text("  ", "a [m],b (s),c [m^2/s]"), tmp_path, capsys)
    assert said.startswith("60 rows of a, b, with units\nc = 3*a**2/b\n")
    said = law_of(text(header="f(x) [m],b [s],c [m]"), tmp_path, capsys, "--no-units")
    assert said.startswith("60 rows of f(x), b\nc = 3*`f(x)`**2/b\n")
    law_of(text(header="a [m],b (s),c [m^2/s]"), tmp_path, capsys)
    path = str(tmp_path / "data.csv")
    with pytest.raises(SystemExit):
        main([path, *FAST, "--units", "c=kg"])
    assert "units" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([path, *FAST, "--units", "d=kg"])
    assert "--units must be NAME=UNIT of a, b, c, got d=kg" in capsys.readouterr().err


def test_columns_of_labels_are_named_and_not_used(tmp_path, capsys):
    header, *rows = text().splitlines()
    content = "\n".join([f"who,{header}", *(f"somebody,{row}" for row in rows)])
    assert law_of(content, tmp_path, capsys).startswith(
        "60 rows of a, b; no numbers in who\nc = 3*"
    )


def test_cells_without_numbers_are_named(tmp_path, capsys):
    rows = text().splitlines()
    for line, cell in ((3, ""), (5, "n.a."), (7, "about 3"), (9, "inf")):
        rows[line - 1] = f"{cell},{rows[line - 1].partition(',')[2]}"
    path = tmp_path / "data.csv"
    path.write_text("\n".join(rows))
    with pytest.raises(SystemExit) as stop:
        main([str(path), *FAST])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert (
        "line 3, column a is empty; line 5, column a has 'n.a.'; line 7, column a has 'about 3'; and 1 more"
        in said
    )
    assert "--skip-rows leaves such rows out" in said
    assert main([str(path), *FAST, "--skip-rows"]) == 0
    assert capsys.readouterr().out.startswith("56 rows of a, b; 4 rows left out\nc = 3*a**2/b\n")


@pytest.mark.parametrize("date", ["2024-03-01", "1.3.2024", "03/01/24 12:00"])
def test_dates_get_the_line_to_write(date, tmp_path, capsys):
    rows = text().splitlines()
    path = tmp_path / "data.csv"
    path.write_text("\n".join(["day," + rows[0], *(f"{date},{row}" for row in rows[1:])]))
    with pytest.raises(SystemExit):
        main([str(path), *FAST, "--skip-rows"])
    said = capsys.readouterr().err
    assert "column day has dates" in said
    assert 'table["day"] = (pandas.to_datetime(table["day"])' in said


@pytest.mark.parametrize(("content", "message"), [
    (b"PK\3\4 a sheet", "is a workbook; save the sheet as CSV"),
    (b"\1\0\2\0", "is no text file"),
    (b"a,b,c\n", "must have a header and rows, got 1 lines"),
    (b"a,b,c\n1,2,3\n1,2\n", "must have 3 cells in each line, as in its first, got 2 in line 3"),
    (
        b"a [m],b [s],v [m/s]\n1,2,3\n4,5,6\n7,8,9,1\n2,3,4\n",
        "must have 3 cells in each line, as in its first, got 4 in line 4",
    ),
    (b"a,a,c\n1,2,3\n4,5,6\n", "must have different names of columns, got a, a, c"),
    (b"a,,c\n1,2,3\n4,5,6\n", "must have a name of every column, got column 2 without one"),
    (b"a,b,\n1,2,\n4,5,\n", "got column 3 without one (a delimiter too many in each line?)"),
    (b"a\n1\n2\n", "columns that tabs, ; , | or blanks separate, the target and an input at least"),
    (b"a~b\n1~2\n3~4\n", "got lines such as 'a~b'"),
    (b"a,b\nNA,2\n3,4\n", "line 2, column a has 'NA'"),
    (b"a,b\nx,y\nz,w\n", "--target and --inputs must be different columns of a, b; got b"),
    (b"a,b,c\n1,2,yes\n3,4,no\n", "line 2, column c has 'yes'; line 3, column c has 'no'"),
    (b"a,b,c\n5%,2,3\n6%,4,5\n", "line 2, column a has '5%'; line 3, column a has '6%'"),
    (b'a,b,c\n"1,000.5",2,3\n', "line 2, column a has '1,000.5'"),
    (b"a;b\n1,500;2\n2,500;3\n", "line 2, column a has '1,500'"),
    (b'a,b,"c\nd"\n1,2,3\n4,5,6\n', "must have no cell with a line break"),
])  # fmt: skip
def test_what_is_no_table(content, message, tmp_path, capsys):
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(SystemExit):
        main([str(path)])
    assert message in capsys.readouterr().err


def test_an_absent_file_and_an_absent_column(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path / "absent.csv")])
    assert "absent.csv" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        law_of(text(), tmp_path, capsys, "--target", "d")
    assert "--target must be of a, b, c, got d" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        law_of(text(), tmp_path, capsys, "--inputs", "a", "e")
    assert "--inputs must be of a, b, c, got e" in capsys.readouterr().err


def test_packages_that_are_not_installed_are_named(tmp_path, capsys, monkeypatch):
    path = tmp_path / "data.csv"
    path.write_text(text())
    for error, message in (
        (ImportError(estimator.INSTALL), estimator.INSTALL),
        (ModuleNotFoundError("no pint", name="pint"), "pint is not installed: pip install"),
    ):
        monkeypatch.setattr(NPURegressor, "__init__", Mock(side_effect=error))
        with pytest.raises(SystemExit):
            main([str(path)])
        said = capsys.readouterr().err
        assert message in said
        assert "None" not in said


@pytest.mark.parametrize(("words", "message"), [
    (["--no-law", "--max-terms", "3"], "--max-terms must not be given with --no-law, got 3"),
    (["--units", "a=m"], "so that every column has one, got none of b, c"),
    (["--units", "a=m", "--no-units"], "so that every column has one, got --no-units"),
    (["--seed", "-1"], "--seed must be from 0 to 2**32 - 1, got -1"),
    (["--plot", "law.xyz"], "--plot must end in one of ."),
])  # fmt: skip
def test_words_that_cannot_be(words, message, tmp_path, capsys, monkeypatch):
    """They are refused before the search."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(NPURegressor, "fit", None)
    (tmp_path / "data.csv").write_text(text())
    with pytest.raises(SystemExit):
        main(["data.csv", *words])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("cell", "decimal_comma", "value"), [
    ("1.5", False, 1.5), (" -2e3 ", False, -2000.0), ("\N{MINUS SIGN}1", False, -1.0),
    ("1,5", True, 1.5), ("1,5", False, None), ("1_000", False, None), ("nan", False, None),
    ("1e999", False, None), ("1,000.5", True, None), ("", True, None), (",5e-1", True, 0.05),
])  # fmt: skip
def test_numbers(cell, decimal_comma, value):
    assert _table.number(cell, decimal_comma) == value


@pytest.mark.parametrize(("cells", "commas"), [
    (["1,5", "2"], True), (["1,500", "2"], False), (["1,500", "2,75"], True),
    (["1,5", "2.5"], False), (["0,500", "2"], True), (["1,5", "a.b"], True),
])  # fmt: skip
def test_a_comma_that_may_stand_for_thousands_is_no_point(cells, commas):
    assert _table.has_decimal_commas([cells]) is commas


def test_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture = tmp_path / "law.png"
    assert f"{picture} written" in law_of(text(), tmp_path, capsys, "--plot", str(picture))
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.filterwarnings("ignore:NPURegressor. 34 rows are too few")
def test_the_planets(capsys):
    inputs = ["--inputs", "axis_au", "--target", "period_days"]
    assert main([str(ROOT / "benchmarks/demo/kepler.csv"), *inputs]) == 0
    assert "*axis_au**(3/2)\n" in capsys.readouterr().out


def test_groups(tmp_path, capsys):
    draw = np.random.default_rng(1)
    rows = [(draw.uniform(1, 2), ("oak", "elm")[i % 2]) for i in range(60)]
    lines = [f"{x:.6f},{tree},{(3 if tree == 'oak' else 5) * x * x:.9f}" for x, tree in rows]
    content = "\n".join(["d,tree,v", *lines]) + "\n"
    said = law_of(content, tmp_path, capsys, "--groups", "tree")
    assert said.startswith("60 rows of d; groups by tree\nv = c1[group]*d**2\n")
    assert "coefficient c1[elm] = 5" in said
    path = tmp_path / "data.csv"
    for words, message in (
        (["--groups", "v"], "--groups must be another column of d, tree, v; got v"),
        (["--groups", "wood"], "--groups must be another column of d, tree, v; got wood"),
    ):
        with pytest.raises(SystemExit):
            main([str(path), *FAST, *words])
        assert message in capsys.readouterr().err
    path.write_text(content.replace("oak", " ", 1))
    with pytest.raises(SystemExit):
        main([str(path), *FAST, "--groups", "tree"])
    assert "every cell of groups must be a label: line 2, column tree is empty" in (
        capsys.readouterr().err
    )
