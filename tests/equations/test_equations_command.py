"""``python -m npu_kernels.equations``: tables of many forms, and what is no table."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

from npu_kernels.equations import EquationWarning, NPURegressor
from npu_kernels.equations.__main__ import main
from tests.support.building import ROOT

rng = np.random.default_rng(0)
NUMBERS = [(a, b, 3 * a * a / b) for a, b in rng.uniform(1, 2, (60, 2)).round(4).tolist()]
FAST = ["--n-init", "8", "--max-terms", "1"]


def text(delimiter: str = ",", header: str = "a,b,c", decimal: str = ".") -> str:
    rows = [delimiter.join(f"{v:.9f}".replace(".", decimal) for v in row) for row in NUMBERS]
    return "\n".join([header.replace(",", delimiter), *rows]) + "\n"


def equation_of(
    content: str | bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    path = tmp_path / "data.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    few_terms = [] if "--no-equation" in words else ["--max-terms", "1"]
    assert main([str(path), "--n-init", "8", *few_terms, *words]) == 0
    return capsys.readouterr().out


def test_target_and_inputs(tmp_path, capsys):
    said = equation_of(text(), tmp_path, capsys, "--target", "b", "--inputs", "c", "a")
    assert said.startswith("60 rows of c, a\nb = 3*a**2/c\n")


@pytest.mark.filterwarnings("ignore:NPURegressor. The equation is an approximation")
def test_ratios_and_a_known_part(tmp_path, capsys):
    rows = "".join(f"{a},{b},{(3 * a + b) / (a + b):.12g}\n" for a, b, _ in NUMBERS)
    words = ["--max-terms", "2"]
    assert "/(" in equation_of(f"a,b,c\n{rows}", tmp_path, capsys, *words, "--ratios", "yes")
    assert "/(" not in equation_of(f"a,b,c\n{rows}", tmp_path, capsys, *words, "--ratios", "no")
    said = equation_of(text(), tmp_path, capsys, "--known-part", "a**2/b")
    assert "c = a**2/b + 2*a**2/b" in said


def test_a_table_without_an_equation(tmp_path, capsys):
    said = equation_of(text(), tmp_path, capsys, "--no-equation")
    assert "On 60 held-out rows" in said


def test_functions(tmp_path, capsys):
    rows = "".join(f"{a},{b},{3 * a * np.sin(b):.12g}\n" for a, b, _ in NUMBERS)
    content = f"a,angle,c\n{rows}"
    for words in (["sin", "cos"], ["angle=sin,cos"], ["a=log", "angle=sin"]):
        assert "c = 3*a*sin(angle)\n" in equation_of(
            content, tmp_path, capsys, "--functions", *words
        )
    rows = "".join(f"{a},{b},{np.exp(3 * a / b):.12g}\n" for a, b, _ in NUMBERS)
    for words in (["auto"], ["identity", "log"]):
        said = equation_of(f"a,b,c\n{rows}", tmp_path, capsys, "--target-transforms", *words)
        assert "c = exp(3*a/b)\n" in said
    with pytest.raises(SystemExit):
        equation_of(content, tmp_path, capsys, "--functions", "sin", "angle=cos")
    assert "--functions must be functions, or COLUMN=FUNCTION,..." in capsys.readouterr().err


def test_units_of_the_header_and_of_the_command(tmp_path, capsys):
    pytest.importorskip("pint", reason="pint is not installed")
    said = equation_of(text("  ", "a [m],b (s),c [m^2/s]"), tmp_path, capsys)
    assert said.startswith(
        "60 rows of a, b; units: a in meter, b in second, c in meter ** 2 / second\nc = 3*a**2/b\n"
    )
    said = equation_of(text(header="f(x) [m],b [s],c [m]"), tmp_path, capsys, "--no-units")
    assert said.startswith("60 rows of f(x), b\nc = 3*`f(x)`**2/b\n")
    equation_of(text(header="a [m],b (s),c [m^2/s]"), tmp_path, capsys)
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
    assert equation_of(content, tmp_path, capsys).startswith(
        "60 rows of a, b; no numbers in who\nc = 3*"
    )


def test_cells_without_numbers_are_named(tmp_path, capsys):
    rows = text().splitlines()
    for line, cell in ((3, "$5"), (5, "(6.5)"), (7, "about 3"), (9, "inf")):
        rows[line - 1] = f"{cell},{rows[line - 1].partition(',')[2]}"
    path = tmp_path / "data.csv"
    path.write_text("\n".join(rows))
    with pytest.raises(SystemExit) as stop:
        main([str(path), *FAST])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert (
        "line 3, column a has '$5'; line 5, column a has '(6.5)'; line 7, column a has 'about 3'; and 1 more"
        in said
    )
    assert "--skip-rows leaves such rows out" in said
    assert main([str(path), *FAST, "--skip-rows"]) == 0
    assert capsys.readouterr().out.startswith("56 rows of a, b; 4 rows left out\nc = 3*a**2/b\n")


def test_rows_with_empty_cells_are_left_out_and_counted(tmp_path, capsys):
    rows = text().splitlines()
    for line, cell in ((3, ""), (5, "NA"), (7, "#DIV/0!"), (9, "#N/A"), (11, "?"), (13, "-")):
        rows[line - 1] = f"{cell},{rows[line - 1].partition(',')[2]}"
    said = equation_of("\n".join(rows), tmp_path, capsys)
    assert said.startswith("54 rows of a, b; 6 rows left out\nc = 3*a**2/b\n")


@pytest.mark.parametrize("date", ["2024-03-01", "1.3.2024", "03/01/24 12:00"])
def test_dates_get_the_line_to_write(date, tmp_path, capsys):
    rows = text().splitlines()
    path = tmp_path / "data.csv"
    path.write_text("\n".join(["day," + rows[0], *(f"{date},{row}" for row in rows[1:])]))
    with pytest.raises(SystemExit):
        main([str(path), *FAST, "--skip-rows"])
    said = capsys.readouterr().err
    assert "column day must have numbers, such as days or years, got dates" in said
    assert 'table["day"] = (pandas.to_datetime(table["day"])' in said


@pytest.mark.parametrize(("content", "message"), [
    (b"PK\3\4 a sheet", "is a workbook; save the sheet as CSV"),
    (b"\1\0\2\0", "is no text file"),
    (b"a,b,c\n", "a header and rows without line breaks, got 1 lines such as ['a,b,c']"),
    (b"a,b,c\n1,2,3\n1,2\n", "must have 3 cells in each line, as line 1, got 2 in line 3 (--skip-rows"),
    (
        b"a [m],b [s],v [m/s]\n1,2,3\n4,5,6\n7,8,9,1\n2,3,4\n",
        "must have 3 cells in each line, as line 1, got 4 in line 4",
    ),
    (b"h,i\nj,k,l,m\n1,2,3\n4,5,6\n", "must have 3 cells in each line, as line 3, got 2 in line 1"),
    (b"a,a,c\n1,2,3\n4,5,6\n", "must have different names of its columns, got 'a', 'a', 'c'"),
    (b"a,,c\n1,2,3\n4,5,6\n", "must have different names of its columns, got 'a', '', 'c'"),
    (b"a\n1\n2\n", "columns that tabs, ; , | or blanks separate, a header"),
    (b"a~b\n1~2\n3~4\n", "got 3 lines such as ['a~b']"),
    (b'a,b,"c\nd"\n1,2,3\n4,5,6\n', "rows without line breaks"),
    (b"a,b\nx,y\nz,w\n", "--target and --inputs must be different columns of a, b; got b"),
    (b"a,b,c\n1,2,yes\n3,4,no\n", "line 2, column c has 'yes'; line 3, column c has 'no'"),
    (b"a,b\n1,2\n3,4\nMean,12.3\n", "line 4, column a has 'Mean' (--skip-rows leaves such rows out"),
    (b"a,b\n1_000,2\n3,4\n", "line 2, column a has '1_000'"),
    (b"a,b\n1e999,2\n3,4\n", "line 2, column a has '1e999'"),
    (b"a,b\n5%,2\n6,4\n", "line 2, column a has '5%'"),
    (b"a,b\nNA,2\n4,NA\n", "a row must have numbers in all of a, b, got none (--inputs names"),
    (b"a,7.62,y\n1,2,3\n4,5,6\n", "got both in line 1 (--header yes or --header no says what it is)"),
    (b"a;b\n1,500;2\n2,500;3\n", "got '1,500' in line 2, which may have thousands (--decimal"),
    (b"a;b\n1.937;9\n937;8\n", "got '1.937' in line 2, which may have thousands (--decimal"),
    (b"a\tb\n1.937\t9\n2.937\t8\n", "got '1.937' in line 2, which may have thousands"),
    (b'a,b\n"1.937",9\n937,8\n', "got '1.937' in line 2, which may have thousands"),
    (b"a;b\n1,937;8,620\n2,345;6,789\n", "--decimal , or --decimal . says which"),
    (b'a,b\n1,"2"\n2,"3"4\n', "between a cell in quotes and the delimiter, got '2,\"3\"4' in line 3"),
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
        equation_of(text(), tmp_path, capsys, "--target", "d")
    assert "--target must be of a, b, c, got d" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        equation_of(text(), tmp_path, capsys, "--inputs", "a", "e")
    assert "--inputs must be of a, b, c, got e" in capsys.readouterr().err


def test_packages_that_are_not_installed_are_named(tmp_path, capsys, monkeypatch):
    path = tmp_path / "data.csv"
    path.write_text(text())
    for error, message in (
        (ImportError("NPURegressor needs more: pip install it"), "pip install it"),
        (ModuleNotFoundError("no pint", name="pint"), "pint is not installed: pip install"),
    ):
        monkeypatch.setattr(NPURegressor, "__init__", Mock(side_effect=error))
        with pytest.raises(SystemExit):
            main([str(path)])
        said = capsys.readouterr().err
        assert message in said
        assert "None" not in said


@pytest.mark.parametrize(("words", "message"), [
    (["--no-equation", "--max-terms", "3"], "--max-terms must not be given with --no-equation, got 3"),
    (["--units", "a=m"], "so that every column has one, got none of b, c"),
    (["--units", "a=m", "--no-units"], "so that every column has one, got --no-units"),
    (["--seed", "-1"], "--seed must be from 0 to 2**32 - 1, got -1"),
    (["--plot", "equation.xyz"], "--plot must end in one of ."),
])  # fmt: skip
def test_words_that_cannot_be(words, message, tmp_path, capsys, monkeypatch):
    """They are refused before the search."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(NPURegressor, "fit", None)
    (tmp_path / "data.csv").write_text(text())
    with pytest.raises(SystemExit):
        main(["data.csv", *words])
    assert message in capsys.readouterr().err


# ---- readings ------------------------------------------------------------------------------------


@pytest.fixture
def read(tmp_path, capsys, monkeypatch):
    """A function of a file's content that returns what is fitted, and the names of its columns."""
    fitted = {}
    fit = Mock(side_effect=lambda X, y, **_: fitted.update(X=X.assign(**{y.name: y})))
    monkeypatch.setattr(NPURegressor, "fit", fit)
    monkeypatch.setattr(NPURegressor, "report", lambda _: "")
    monkeypatch.setattr(NPURegressor, "equations_", Mock(outliers=()), raising=False)

    def read(content, *words):
        path = tmp_path / "data.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        assert main([str(path), *words]) == 0
        said = capsys.readouterr().out.splitlines()[0]
        return fitted["X"].to_numpy().tolist(), list(fitted["X"].columns), said

    return read


TWO = [[1.5, 2.0], [2.5, 4.0], [3.5, 8.0]]


@pytest.mark.parametrize(("content", "names"), [
    ("1.5,2\n2.5,4\n3.5,8\n", ["x0", "y"]),
    ("a,b\n1.5,2\n2.5,4\n3.5,8\n", ["a", "b"]),
    ("# a,b\n1.5,2\n2.5,4\n3.5,8\n", ["a", "b"]),
    ("# a b\n1.5,2\n2.5,4\n3.5,8\n", ["a", "b"]),
    ("% a b\n1.5 2\n2.5 4\n3.5 8\n", ["a", "b"]),
    ("// from the lab\n# a b,,\n1.5,2\n2.5,4\n3.5,8\n", ["a", "b"]),
    ("# 3 runs\n1.5,2\n2.5,4\n3.5,8\n", ["x0", "y"]),
    ("Experiment 5\nin May\na,b\n1.5,2\n2.5,4\n3.5,8\n", ["a", "b"]),
    ("sep=;\na;b\n1,5;2\n2,5;4\n3,5;8\n", ["a", "b"]),
    ('"Report": May\na,b\n1.5,2\n2.5,4\n3.5,8\n', ["a", "b"]),
    (",a,b\n0,1.5,2\n1,2.5,4\n2,3.5,8\n", ["a", "b"]),
    ('a b\n"1" 1.5 2\n"2" 2.5 4\n"3" 3.5 8\n', ["a", "b"]),  # as R writes it
    ("a,b\n1.5,2,\n2.5,4,\n3.5,8,\n", ["a", "b"]),
    ("a,b,\n1.5,2,\n2.5,4,\n,,\n3.5,8,\n", ["a", "b"]),
    ("who,a,b\nme,1.5,2\nyou,2.5,4\nus,3.5,8\n", ["a", "b"]),
    ("me,1.5,2\nyou,2.5,4\nus,3.5,8\n", ["x1", "y"]),
    ("NA,7\n1.5,2\n2.5,4\n3.5,8\n", ["x0", "y"]),
    ('1.5  2\t"a car"\n2.5  4\t"my car"\n3.5  8\t"no car"\n', ["x0", "x1"]),
    ("a,b\nkg,m\n1.5,2\n2.5,4\n3.5,8\n", ["a", "b"]),
    ("a,b\n[kg],[-]\n1.5,2\n2.5,4\n3.5,8\n", ["a", "b"]),
])  # fmt: skip
def test_headers_and_what_stands_above_them(content, names, read):
    words = ["--target", "x1", "--inputs", "x0"] if "car" in content else []
    numbers, columns, _ = read(content, *words)
    assert numbers == TWO
    assert columns == names


def test_what_is_left_out_is_said(read):
    said = read("Experiment 5\n,a,b\n7,1.5,2\n9,2.5,4\n3,,8\n")[2]
    assert said == "2 rows of a; 1 rows left out; line 1, column 1 without a name left out"
    said = read("a,b [m]\n1,2\n3,4\n")[2]
    assert said == "2 rows of a; units not used, as a lack one"
    said = read("a,b\n1,2\n3,4\n5\n", "--skip-rows")[2]
    assert said == "2 rows of a; line 4 left out"
    said = read("id,a,b\n1,1,2\n#2,3,4\n# measured again\n3,5,6\n#4,7,8\n", "--inputs", "a")[2]
    assert said == "2 rows of a; 2 rows that begin as comments do (the first is line 3) left out"


@pytest.mark.parametrize("separator", [",", " "])
def test_a_column_of_numbers_without_a_name_is_no_index(separator, read, capsys):
    """A header that lacks the last name would give each column the name of the one before it."""
    rows = ["2.5 3.1 7.75", "1.5 2.2 3.3", "6.5 1.2 7.8"]

    def table(first: tuple[str, ...], last: str = "") -> str:
        lines = ["R I V", *(f"{a}{row}{last}" for a, row in zip(first, rows, strict=True))]
        return "\n".join(lines).replace(" ", separator)

    with pytest.raises(SystemExit):
        read(table(("", "", ""), " 0.08"))
    assert "must have 4 cells in each line, as line 2, got 3 in line 1" in capsys.readouterr().err
    for labels in (("0 ", "1 ", "2 "), ("1 ", "2 ", "3 "), ("a ", "b ", "b ")):
        assert read(table(labels))[1] == ["R", "I", "V"]


DECIMALS = "0.5,1.25,2.5\n1.5,2.25,4.5\n2.5,3.75,8.5\n"
TWO_COLUMNS = "0.5,1.25\n1.5,2.25\n2.5,3.75\n"
MONTHS = "".join(f"{month}.2020;{month}.5\n" for month in (1, 2, 11, 12))


@pytest.mark.parametrize(("content", "message", "words", "numbers"), [
    (f"400,500,600\n{DECIMALS}", "got years or rising integers above other numbers in line 1 (--header yes or "
     "--header no says what they are)", ["--header", "yes"], [0.5, 1.5, 2.5]),
    (f"1,2,3\n{DECIMALS}", "got years or rising integers above other numbers in line 1", ["--header", "no"],
     [1, 0.5, 1.5, 2.5]),
    (f"1990,2000\n{TWO_COLUMNS}", "got years or rising integers above other numbers in line 1",
     ["--header", "yes"], [0.5, 1.5, 2.5]),
    ("city,1990,2000\na,310,420\nb,25,34\nc,7,9\n", "got years or rising integers above",
     ["--header", "yes", "--target", "2000"], [310, 25, 7]),
    ("g;y\n99,1;1\n50.234;2\n53,2;3\n", "got '50.234' in line 3 and '99,1' (--decimal , reads it "
     "as thousands)", ["--decimal", ","], [99.1, 50234, 53.2]),
    ("g;y\n9.123;1\n5,234;2\n53,2;3\n", "got '9.123' in line 2 and '5,234'", ["--decimal", ","],
     [9123, 5.234, 53.2]),
    ('g\ty\n99.1\t1\n"50,234"\t2\n53.2\t3\n', "got '50,234' in line 3 and '99.1'",
     ["--decimal", "."], [99.1, 50234, 53.2]),
    (f"month;y\n{MONTHS}", "column month must have numbers, such as days or years, got dates, "
     "'1.2020' in line 2 (--decimal . reads them as numbers", ["--decimal", "."],
     [1.202, 2.202, 11.202, 12.202]),
    ("day;y\n01.02;1.5\n15.02;2\n03.11;3\n", "got dates, '01.02' in line 2 (--decimal . reads",
     ["--decimal", "."], [1.02, 15.02, 3.11]),
])  # fmt: skip
def test_numbers_that_are_names_thousands_or_dates(
    content, message, words, numbers, read, tmp_path, capsys
):
    path = tmp_path / "two.csv"
    path.write_text(content)
    with pytest.raises(SystemExit, match="2"):
        main([str(path)])
    assert message in capsys.readouterr().err
    assert [row[0] for row in read(content, *words)[0]] == pytest.approx(numbers)


def test_separators_of_thousands_are_said(read):
    for content, said in (
        ('a,b\n"5,095",1.5\n"6,195",2.5\n"7,295",3.5\n', True),
        ("a;b\n1.937;0,5\n2.500;1,5\n8.620;2\n", True),
        ("a,b\n5.095,1.5\n6.195,2.5\n7.295,3.5\n", False),
        ("a;b\n5 095;1,5\n6 195;2,5\n7 295;3,5\n", False),
    ):
        assert read(content)[2].endswith("; separators of thousands in a") == said


def test_numbers_with_one_reading(read):
    """First rows of whole numbers, thousands that show what they are, four decimals."""
    assert read("0,0,0\n0.5,1.5,2.5\n1.5,2.5,3.5\n")[0][0] == [0, 0, 0]
    assert read("1,2,3\n1.5,2,3\n2.5,4,6\n")[0][0] == [1, 2, 3]
    assert read("a;b\n1.937;0,5\n2.500;1,5\n8.620;2\n")[0][0] == [1937, 0.5]
    assert read("a;b\n1.937;1\n2.500,5;2\n620;3\n")[0][0] == [1937, 1]
    assert read("a,b\n1.2020,1\n2.2520,2\n12.9,3\n")[0][0] == [1.202, 1]
    assert read("a,b\n10.02,1\n12.10,2\n")[0][0] == [10.02, 1]
    kelvins = "".join(f"{n} {300 + n}  {0.3 * n:.2f}\n" for n in range(1, 9))  # no thousands
    assert read(kelvins)[0][0] == [1, 301, 0.3]
    months = f"month;x;y\n{MONTHS.replace(';', ';2;')}"
    assert read(months, "--inputs", "x")[0][0] == [2, 1.5]


def test_an_exponent_behind_a_blank_is_no_unit(tmp_path, capsys):
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,0.5 E+05\n2,0.7 E+05\n3,0.9 E+05\n")
    with pytest.raises(SystemExit, match="2"):
        main([str(path)])
    assert "column b has '0.5 E+05'" in capsys.readouterr().err


def test_words_that_choose_a_reading(read):
    assert read("a,7.62\n1.5,2\n2.5,4\n3.5,8\n", "--header", "yes")[:2] == (TWO, ["a", "7.62"])
    assert read("7,7.62\n1.5,2\n2.5,4\n3.5,8\n", "--header", "yes")[:2] == (TWO, ["7", "7.62"])
    numbers = read("a,7\n1.5,2\n2.5,4\n3.5,8\n", "--header", "no", "--skip-rows")[0]
    assert numbers == TWO
    content = "a;b\n1.937;9\n937;8\n"
    assert read(content, "--decimal", ",")[0] == [[1937, 9], [937, 8]]
    assert read(content, "--decimal", ".")[0] == [[1.937, 9], [937, 8]]


@pytest.mark.parametrize(("cells", "numbers"), [
    (["1.5", " -2e3 "], [1.5, -2000]), (["\N{MINUS SIGN}1", "\N{EN DASH}2.5"], [-1, -2.5]),
    (["1.5D+03", "2d0"], [1500, 2]), ([".5", "-.25"], [0.5, -0.25]), (["3504.", "+7"], [3504, 7]),
    (["1,5", "2"], [1.5, 2]), ([",5e-1", "0,500"], [0.05, 0.5]), (["1,500", "2,75"], [1.5, 2.75]),
    (["1.500,5", "2"], [1500.5, 2]), (["1,500.5", "2"], [1500.5, 2]), (["1 500,5", "2"], [1500.5, 2]),
    (["1'500.5", "2"], [1500.5, 2]), (["1\N{NO-BREAK SPACE}234\N{NO-BREAK SPACE}567", "2"], [1234567, 2]),
    (["1.234.567", "1.234"], [1234567, 1234]), (["12.5%", "3 %"], [12.5, 3]),
    (["12 V", "3.5 V"], [12, 3.5]), (["20 °C", "3 °C"], [20, 3]),
])  # fmt: skip
@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_numbers(cells, numbers, delimiter, read):
    rows = "".join(f"{cell}{delimiter}{n}\n" for n, cell in enumerate(cells))
    assert read(f"a{delimiter}b\n{rows}")[0] == [[v, n] for n, v in enumerate(numbers)]


@pytest.mark.parametrize("rows", ["20,5 101,3\n21,5 102,3\n", "20,5  101,3\n21,5  102,3\n",
                                  '"20,5","101,3"\n"21,5","102,3"\n'])  # fmt: skip
def test_decimal_commas_are_no_delimiters(rows, read):
    assert read(rows)[0] == [[20.5, 101.3], [21.5, 102.3]]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-8-sig", "cp1252"])
def test_encodings(encoding, read):
    content = "höhe,b\r\n1.5,2\r\n2.5,4\r\n3.5,8\r\n".encode(encoding)
    assert read(content)[:2] == (TWO, ["höhe", "b"])


def test_a_row_of_totals(read):
    lines = ["a,b,y", *(f"{n}.5,{n * n},{20 - n}" for n in range(10))]
    rows, _, said = read("\n".join([*lines, "50,285,155"]))
    assert rows[-1] == [9.5, 81, 11]
    assert said == "10 rows of a, b; line 12, the sum of the lines above, left out"
    assert len(read("\n".join([*lines, "50,285,156"]))[0]) == 11
    assert len(read("a,b,y\n1,1,3\n2,1,6\n3,1,9\n4,1,12\n10,4,30\n")[0]) == 5


def test_units_of_cells_and_unknown_ones(read, capsys):
    pytest.importorskip("pint", reason="pint is not installed")
    said = read("a;b [V];y [-]\n12%;2;3\n13%;4;5\n", "--units", "a=%")[2]
    assert said == "2 rows of a, b; units: a in percent, b in volt, y in 1"
    assert read("a;b [V];y [-]\n12%;2;3\n13%;4;5\n")[2] == said
    with pytest.raises(SystemExit):
        read("a [Stk],b [m]\n1,2\n3,4\n")
    said = capsys.readouterr().err
    assert "has 'Stk', which is not a unit" in said
    assert "--no-units ignores all units" in said
    assert read("a [Stk],b [m]\n1,2\n3,4\n", "--no-units")[1] == ["a", "b"]
    with pytest.raises(SystemExit):
        read("first,second\nleft,right\n1,2\n3,4\n")
    assert "# before a second line of names" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        read("L [m],y [s]\n3.1 cm,2\n4 cm,3\n")
    assert "column L must have one unit in" in (said := capsys.readouterr().err)
    assert "got 'm' and 'cm'" in said


def test_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture = tmp_path / "equation.png"
    assert f"{picture} written" in equation_of(text(), tmp_path, capsys, "--plot", str(picture))
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
    said = equation_of(content, tmp_path, capsys, "--groups", "tree")
    assert said.startswith("60 rows of d; groups by tree\nv = c1[group]*d**2\n")
    assert "coefficient c1[elm] = 5" in said
    with pytest.warns(EquationWarning, match="two clusters"):
        said = equation_of(content, tmp_path, capsys)
    assert "; no numbers in tree; --groups tree gives each label coefficients of its own\n" in said
    path = tmp_path / "data.csv"
    for words, message in (
        (["--groups", "v"], "--groups must be another column of d, tree, v; got v"),
        (["--groups", "wood"], "--groups must be another column of d, tree, v; got wood"),
    ):
        with pytest.raises(SystemExit):
            main([str(path), *FAST, *words])
        assert message in capsys.readouterr().err
    said = equation_of(content.replace("oak", " ", 1), tmp_path, capsys, "--groups", "tree")
    assert said.startswith("59 rows of d; 1 rows left out; groups by tree\n")
