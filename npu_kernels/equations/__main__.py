"""The equation of the columns of a text file: ``python -m npu_kernels.equations FILE``."""

from __future__ import annotations

import argparse
import codecs
import csv
import math
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_kernels._jobs import files

# ---- reading text files --------------------------------------------------------------------------
# Tables of text files, read as a person reads them. What has two readings is refused.

Frame = Any  # of pandas

NAMED_CELLS = 3  # in a message
DEFAULT_TERMS = 4
YEAR = "1[5-9][0-9]{2}|20[0-9]{2}"
MIN_NAMES, MAX_CELLS = 3, 0.8  # that are numbers, in a header; of the cells below, decimals
# Rows above their sum, and its relative rounding error. 1, 2, 3, 4, 10 may be chosen values.
MIN_ABOVE_TOTALS, SUM_ERROR = 10, 3e-6
SAMPLE = 500  # lines by which the delimiter is chosen
DELIMITERS = "\t", ";", ",", "|", "  ", " "  # the last two: two blanks or more, one or more
ERRORS = "#n/a", "#div/0!", "#ref!", "#value!", "#name?", "#num!", "#null!"  # Excel's
MISSING = {*ERRORS, *"-\u2013\u2014?.", "", "na", "n/a", "n.a.", "nan", "null", "none"}
COMMENT = re.compile(rf"\s*(?!{'|'.join(map(re.escape, ERRORS))})(?:#|%|//)[#%/\s]*", re.IGNORECASE)
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?")
# 1.2020, a month, in all cells of a column; 01.02, a day, where one begins with 0.
MONTH, DAY = re.compile(r"(0?[1-9]|1[0-2])\.(19|20)\d\d"), re.compile(r"[0-3]\d\.[01]\d\.?")
TITLE = re.compile(r"(.*?)(?:\s*\[([^\[\]]*)\]|\s+\(([^()]*)\))?")  # speed [m/s], speed (m/s)
SUFFIX = re.compile(r"(?<=[\d.])\s?([%°]\S*|(?<=\s)(?![eEdD][-+]?\d+$)[^\W\d]\S*)$")  # 12.5%, 12 V
# A number, by its decimal sign. The other sign, ' or a blank separates thousands.
NUMBERS = {
    point: re.compile(
        rf"[-+]?(?:[1-9]\d{{0,2}}([{other}'\u2019\s])\d{{3}}(?:\1\d{{3}})*"
        rf"|\d+|(?=[{point}]\d))(?:[{point}]\d{decimals})?(?:[eEdD][-+]?\d+)?"
    )
    for point, other, decimals in ((".", ",", "*"), (",", ".", "+"))
}


@dataclass(frozen=True)
class Table:
    """The columns of a file, and what was left out of it, in words.

    The frames have text, and its numbers or nan, by the line of the file from 1. A column has a
    unit where the header, the line below it or all of its numbers have one.
    """

    cells: Frame
    values: Frame
    units: dict[str, str]
    left_out: list[str]
    thousands: list[str]  # columns with commas or points in numbers that are no decimal signs

    def numbers(self, names: list[str], skip_rows: bool, groups: str | None = None) -> Frame:
        """The rows that have a number in each of these columns, and a label in that of groups.

        skip_rows: leave out rows of other cells than numbers and empty ones; else: a ValueError.
        """
        cells, values = self.cells[names], self.values[names]
        wrong = (values.isna() & ~is_missing(cells)).to_numpy().nonzero()
        texts = [(cells.index[i], names[j], cells.iat[i, j]) for i, j in zip(*wrong, strict=True)]
        for line, name, text in texts:
            if MONTH.fullmatch(text) or DAY.fullmatch(text):
                how = "--decimal . reads them as numbers, --inputs names the columns to use"
                got = f"got dates, {text!r} in line {line} ({how})"
                raise ValueError(f"column {name} must have numbers, such as days or years, {got}")
            if DATE.fullmatch(text):
                days = f'(pandas.to_datetime(table["{name}"]) - pandas.Timestamp("2000-01-01"))'
                how = f'in Python table["{name}"] = {days}.dt.days'
                got = f"got dates, {text!r} in line {line} ({how})"
                raise ValueError(f"column {name} must have numbers, such as days or years, {got}")
        if texts and not skip_rows:
            said = [f"line {n}, column {c} has {text!r}" for n, c, text in texts]
            said[NAMED_CELLS:] = [f"and {len(said) - NAMED_CELLS} more"] * (len(said) > NAMED_CELLS)
            ways = "--skip-rows leaves such rows out, --inputs names the columns to use"
            raise ValueError(f"every cell must be a number or empty: {'; '.join(said)} ({ways})")
        table = values[values.notna().all(axis=1) & (groups is None or self.cells[groups] != "")]
        if table.empty:
            rule = f"a row must have numbers in all of {', '.join(names)}"
            raise ValueError(f"{rule}, got none (--inputs names the columns to use)")
        return table

    def labels(self) -> list[str]:
        """The columns in which no cell begins as a number does, signs before it aside."""
        return [name for name, cells in self.cells.items() if not cells.str.match(r"\W*\d").any()]


def is_missing(cells: Frame) -> Frame:
    return cells.map(str.lower).isin(MISSING)


def number(cell: str, point: str) -> float | None:
    """The number in a cell with this decimal sign; None without one."""
    match = NUMBERS[point].fullmatch(cell.replace("\u2212", "-").replace("\u2013", "-"))
    if match is None:
        return None
    text = match[0].replace(match[1] or " ", "").replace(",", ".").lower().replace("d", "e")
    return float(text) if math.isfinite(float(text)) else None


def is_number(cell: str) -> bool:
    return any(number(cell, point) is not None for point in NUMBERS)


def decoded(content: bytes) -> str:
    """The text of a file in UTF-8 or UTF-16, which may lack its mark, or else Western European."""
    zeros = [content[n::2].count(0) for n in (0, 1)]
    encoding = ("utf-16-be" if zeros[0] > zeros[1] else "utf-16-le") if any(zeros) else "utf-8-sig"
    is_marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if is_marked else encoding)
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def _split(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """The cells of lines; nothing where a cell goes beyond its line."""
    if delimiter == "  ":
        return [re.split(r"\s{2,}", line.strip()) for line in lines]
    if delimiter == " ":
        lines = [re.sub(r"\s+", " ", line.strip()) for line in lines]
    try:
        rows = list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        return []
    return [[c.strip() for c in row] for row in rows] if len(rows) == len(lines) else []


def _quality(lines: Sequence[str], delimiter: str) -> tuple[float, int]:
    """How well a delimiter cuts lines: the share of numbers in lines of one width, their number.

    Numbers may have commas and blanks. Any other delimiter that cuts all lines alike is better.
    """
    rows = _split(lines[:SAMPLE], delimiter)
    width, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
    if width < 2:
        return 0.0, 0
    cells = [c for row in [row for row in rows if len(row) == width][1:] or rows for c in row]
    if delimiter == "," and '"' not in "".join(lines[:SAMPLE]):  # 20,5 101,3 has no thousands
        cells = [re.sub(r"\s+(?=\d)", "*", cell) for cell in cells]
    if delimiter == "  ":  # 1 377 may be two columns
        cells = [re.sub(r"(?<=\d)\s(?=\d)", "*", cell) for cell in cells]
    numbers = sum(cell.lower() in MISSING or is_number(SUFFIX.sub("", cell)) for cell in cells)
    share = numbers / len(cells) * count / len(rows)
    return share + (count == len(rows) and share > 0.25 and delimiter in "\t;|"), count


def _cells(path: Path) -> tuple[dict[int, list[str]], list[str], dict[int, str], str]:
    """The cells of a file by their lines, the comments before and among them, and the delimiter."""
    content = path.read_bytes()
    if content[:2] == b"PK":
        raise ValueError(f"{path} is a workbook; save the sheet as CSV")
    text = decoded(content)
    if re.search(r"[\0-\x08\x0e-\x1f]", text):
        raise ValueError(f"{path} is no text file")
    lines = {n: t for n, t in enumerate(text.splitlines(), 1) if t.strip("\t ;,|")}
    separator = re.fullmatch(r'"?sep=(.)\W*', next(iter(lines.values()), ""), re.IGNORECASE)
    if separator:
        del lines[min(lines)]
    kept = {n: t for n, t in lines.items() if not COMMENT.match(t)}
    texts, start = list(kept.values()), min(kept, default=0)
    comments = [COMMENT.sub("", t, 1) for n, t in lines.items() if n < start]
    among = {n: t for n, t in lines.items() if n > start and n not in kept}
    delimiter = max(separator[1] if separator else DELIMITERS, key=lambda d: _quality(texts, d))
    rows = _split(texts, delimiter)
    split = re.escape(delimiter[0])
    behind = re.compile(rf'(?:^|{split})\s*"(?:[^"]|"")*"(?!["\s]|{split}|$)')
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    for (n, line), row in zip(kept.items(), rows, strict=False):  # text above the table may be so
        if len(row) == width and behind.search(line):
            rule = "nothing between a cell in quotes and the delimiter"
            raise ValueError(f"{path} must have {rule}, got {line!r} in line {n}")
    if len(rows) < 2 or max(map(len, rows)) < 2:
        rule = "columns that tabs, ; , | or blanks separate, a header and rows without line breaks"
        raise ValueError(f"{path} must have {rule}, got {len(texts)} lines such as {texts[:1]}")
    return dict(zip(kept, rows, strict=True)), comments, among, delimiter


def _values(path: Path, cells: Frame, delimiter: str, decimal: str | None) -> Frame:
    """The numbers in cells, by the decimal sign that reads most of them; ValueError for a tie."""
    both = {point: cells.map(number, point=point).astype(float) for point in NUMBERS}
    point, comma = both.values()
    counts = [int(values.count().sum()) for values in both.values()]
    if decimal is not None:
        return both[decimal]
    if counts[0] != counts[1]:
        sign = (",", ".")[counts[0] > counts[1]]
        _check_decimals(path, cells, both[sign], sign)
        return both[sign].mask(cells.apply(_are_dates))
    differ = (point != comma) & point.notna()
    has_point = cells.map(lambda cell: "." in cell)
    # A column of thousands has points in some numbers, a column of decimals has them in all.
    mixed = (differ.any() & (point.notna() & ~has_point).any()).any() or delimiter in "\t;"
    unclear = (differ & (~has_point | mixed)).to_numpy().nonzero()
    for row, column in zip(*unclear, strict=True):
        got = f"got {cells.iat[row, column]!r} in line {cells.index[row]}, which may have thousands"
        how = "--decimal , or --decimal . says which"
        raise ValueError(f"{path} must have a number that shows its decimal sign, {got} ({how})")
    return point.mask(cells.apply(_are_dates))


def _has_thousands(cells: Frame, values: Frame) -> bool:
    """Whether a comma or a point that is no decimal sign is in a number that was read."""
    matches = [
        NUMBERS[point].fullmatch(cell)
        for cell, value in zip(cells, values, strict=True)
        for point in NUMBERS
        if number(cell, point) == value
    ]
    return any(match is not None and match[1] in {",", "."} for match in matches)


def _are_dates(column: Frame) -> Frame:
    """Whether the cells of a column are months of years, or days of months, such as 01.02."""
    written = column[column.str.contains(r"\d")].iloc[1:]  # the first may be a header
    days = written.str.fullmatch(DAY).all() and written.str.match("0").any()
    are_dates = len(written) > 1 and (days or written.str.fullmatch(MONTH).all())
    return are_dates & column.str.fullmatch(rf"{MONTH.pattern}|{DAY.pattern}")


def _check_decimals(path: Path, cells: Frame, values: Frame, sign: str) -> None:
    """ValueError for a column of decimals with a number whose other sign may be one as well.

    sign: of decimals. Where a number has both signs, or the other one twice, it is of thousands.
    """
    other = "," if sign == "." else "."
    for _, column in cells.where(values.notna(), "").items():
        decimals = column[column.str.contains(sign, regex=False)]
        unclear = column[column.str.fullmatch(rf"[-+]?[1-9]\d{{0,2}}[{other}]\d{{3}}")]
        is_shown = (
            decimals.str.contains(other, regex=False).any()
            or (column.str.count(f"[{other}]") > 1).any()
        )
        if len(decimals) and len(unclear) and not is_shown:
            got = f"got {unclear.iloc[0]!r} in line {unclear.index[0]} and {decimals.iloc[0]!r}"
            how = f"--decimal {sign} reads it as thousands"
            raise ValueError(f"{path} must have one decimal sign in a column, {got} ({how})")


def _without_unit(cells: Frame, column: int) -> str | None:
    """Take the unit out of the cells of a column in which all numbers have it, and return it."""
    below = cells.loc[cells.index[1:], column]
    units = below[~is_missing(below)].str.extract(SUFFIX)[0].unique()
    if len(units) != 1 or not isinstance(units[0], str):
        return None
    cells[column] = cells[column].str.removesuffix(units[0]).str.strip()
    return units[0]


def _titles_above(above: list[list[str]], comment: str, cells: Frame, delimiter: str) -> list[str]:
    """The names in the line or the comment above a table; nothing where it has none."""
    options = [*_split([comment], delimiter), re.split(r"[\s,;|]+", comment.strip("\t ,;|"))]
    if above:  # rows begin with an index without a name, or end with a delimiter
        is_empty = is_missing(cells.iloc[:, -1]).all()
        options = [[*above[-1], ""]] if is_empty else []
        options += [["", *above[-1]]] if _is_index(cells.iloc[:, 0]) else []
    for titles in options:
        if len(titles) == cells.shape[1] and titles.count("") == bool(above):
            return [] if any(map(is_number, titles)) else titles
    return []


def _is_index(column: Frame) -> bool:
    """Whether the cells of a column without a name are labels or count the rows."""
    if not column.map(is_number).any():
        return True
    numbers = column.str.fullmatch(r"\d{1,15}")
    return bool(numbers.all() and column.astype(int).diff().iloc[1:].eq(1).all())


def _kinds_of_lines(
    path: Path, cells: Frame, values: Frame, header: str
) -> tuple[bool, list[bool]]:
    """Whether the first line is a header, and which lines have text in place of all numbers."""
    is_numeric = 2 * values.iloc[1:].count() > (~is_missing(cells.iloc[1:])).sum()
    has_text = (values.isna() & ~is_missing(cells) & is_numeric).any(axis=1)
    has_number = (values.notna() & is_numeric).any(axis=1)
    begin = cells.index[0]
    if header == "auto" and has_text[begin] and has_number[begin]:
        got = f"got both in line {begin} (--header yes or --header no says what it is)"
        raise ValueError(f"{path} must begin with names or with numbers, {got}")
    if header == "auto" and not has_text[begin] and _are_names(cells.loc[:, is_numeric]):
        got = f"got years or rising integers above other numbers in line {begin}"
        how = "--header yes or --header no says what they are"
        raise ValueError(f"{path} must begin with names or with numbers, {got} ({how})")
    is_header = bool(has_text[begin]) or not is_numeric.any()
    return {"yes": True, "no": False}.get(header, is_header), list(has_text & ~has_number)


def _are_names(cells: Frame) -> bool:
    """Whether the first line may have names that are numbers, such as wavelengths or years.

    They are integers that rise, at least three of them, above numbers with decimals; or at least
    two years, where no other line has years alone. cells: of the columns of numbers.
    """
    first, below = cells.iloc[0], cells.iloc[1:]
    are_years = cells.apply(lambda column: column.str.fullmatch(YEAR)).all(axis=1)
    if len(first) > 1 and are_years.iloc[0] and not are_years.iloc[1:].any():
        return True
    if len(first) < MIN_NAMES or not first.str.fullmatch(r"\d+").all():
        return False
    are_rising = first.astype(float).diff().iloc[1:].gt(0).all()
    has_decimals = below.apply(lambda column: column.str.contains(r"\d[.,]\d").mean() > MAX_CELLS)
    return bool(are_rising and has_decimals.all())


def read(path: Path, header: str, decimal: str | None, skip_rows: bool) -> Table:
    """Read a table; ValueError for a file that has none, or more than one reading.

    Comments, empty lines and text above the table are left out. Without a header, which may be in
    the last comment, the columns are x0, x1, ... and y, the last one.

    header: whether the first line is one, "yes", "no" or "auto". decimal: the sign before decimals.
    skip_rows: leave out lines of another number of cells; else: a ValueError.
    """
    import pandas

    rows, comments, among, delimiter = _cells(path)
    width = Counter(map(len, rows.values())).most_common(1)[0][0]
    begin = next(n for n, row in rows.items() if len(row) == width)
    above = [row for n, row in rows.items() if n < begin]
    table = {n: row for n, row in rows.items() if n >= begin and len(row) == width}
    cells = pandas.DataFrame(list(table.values()), list(table), dtype=object)
    suffixes = [_without_unit(cells, column) for column in cells]
    values = _values(path, cells, delimiter, decimal)
    titled, is_text = _kinds_of_lines(path, cells, values, header)
    titles = list(cells.loc[begin]) if titled else []
    if header == "auto" and not titled:
        titles = _titles_above(above, "".join(comments[-1:]), cells, delimiter)
    others = [n for n in rows if n not in table]
    wrong = [n for n in others if n > begin or not titles]
    if wrong and not skip_rows:
        got = f"got {len(rows[wrong[0]])} in line {wrong[0]} (--skip-rows leaves such lines out)"
        raise ValueError(f"{path} must have {width} cells in each line, as line {begin}, {got}")
    if above and titles and not titled:
        others.remove(max(n for n in others if n < begin))
    has_units = bool(titles) and any(is_text[titled : titled + 1])
    below = list(cells.iloc[int(titled)].str.strip("[]()")) if has_units else [""] * width
    cells, left_out = cells.iloc[titled + has_units :], [f"line {n}" for n in others]
    split = {n: _split([line], delimiter) for n, line in among.items()}
    if rows_as_comments := [n for n, row in split.items() if row and len(row[0]) == width]:
        count, first = len(rows_as_comments), rows_as_comments[0]
        left_out += [f"{count} rows that begin as comments do (the first is line {first})"]
    names: dict[int, str] = {}
    units: dict[str, str] = {}
    for column, title in enumerate(titles or [*(f"x{i}" for i in range(width - 1)), "y"]):
        name, *in_title = TITLE.fullmatch(title).groups()  # type: ignore[union-attr]
        is_empty = is_missing(cells[column]).all()
        if name in ("", "Unnamed: 0") and (is_empty or column == 0):
            left_out += ["column 1 without a name"] * (not is_empty)
            continue
        if not name or name in names.values():
            got = ", ".join(map(repr, titles))
            raise ValueError(f"{path} must have different names of its columns, got {got}")
        names[column] = name
        unit = [u for u in (*in_title, below[column] or None, suffixes[column]) if u is not None]
        if len({u.strip() for u in unit} - {"", "-"}) > 1:
            got = " and ".join(repr(u) for u in unit)
            how = "convert the numbers, and write the unit in the header or in the cells"
            raise ValueError(f"column {name} must have one unit in {path}, got {got} ({how})")
        units.update(zip([name], unit, strict=False))
    cells = cells[list(names)].rename(columns=names)
    values = values.rename(columns=names).loc[cells.index, cells.columns]
    thousands = [name for name in cells if _has_thousands(cells[name], values[name])]
    return Table(cells, values, units, left_out, thousands)


# ---- the command ---------------------------------------------------------------------------------

INSTALL = "pip install 'npu_kernels[equations]'"


def main(arguments: list[str] | None = None) -> int:
    """Find the equation of a file's columns and print its report; return the exit status.

    arguments: of the command line; None: those of this process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m npu_kernels.equations",
        description="Find the equation of the columns of a text file, with NPURegressor.",
        epilog="Units in the header, as in 'speed [m/s]', are used if every column has one. "
        "Ctrl-C returns the best equation so far.",
    )
    parser.add_argument(
        "file", type=Path, help="columns between tabs, ; , | or blanks; # %% // begin a comment"
    )
    parser.add_argument("--target", metavar="NAME", help="the column to explain; default: the last")
    parser.add_argument(
        "--inputs", nargs="+", metavar="NAME", help="columns of the equation; default: all others"
    )
    parser.add_argument(
        "--units", nargs="+", metavar="NAME=UNIT", default=[], help="replace units of the header"
    )
    parser.add_argument("--no-units", action="store_true", help="ignore the units of the header")
    parser.add_argument(
        "--skip-rows", action="store_true", help="leave out rows with text or other widths"
    )
    parser.add_argument(
        "--header", choices=("yes", "no"), default="auto", help="whether line 1 has names"
    )
    parser.add_argument("--decimal", choices=(".", ","), help="decimal sign; default: detected")
    parser.add_argument(
        "--functions",
        nargs="+",
        metavar="NAME",
        help="sin, cos, log, exp of all inputs, or COLUMN=sin,cos of one column",
    )
    parser.add_argument(
        "--target-transforms", nargs="+", metavar="NAME", help="functions of the target, or auto"
    )
    parser.add_argument(
        "--ratios", choices=("auto", "yes", "no"), default="auto", help="try ratios of two sums"
    )
    parser.add_argument(
        "--groups", metavar="NAME", help="a column of labels; each label has its own coefficients"
    )
    parser.add_argument("--known-part", metavar="TEXT", help="known terms, such as '9.81*t**2/2'")
    parser.add_argument(
        "--max-terms", type=int, help=f"maximum number of terms; default: {DEFAULT_TERMS}"
    )
    parser.add_argument(
        "--no-equation", action="store_true", help="up to 10 terms, as many as predict best"
    )
    parser.add_argument("--n-init", type=int, default=64, help="initialisations; default: 64")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search; default: 0")
    parser.add_argument("--checkpoint", type=Path, help="a file from which the search continues")
    parser.add_argument("--plot", type=files.output, metavar="FILE", help="file for a picture")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except ImportError as error:  # of the package itself it has no name, and says what to install
        reason = f"{error.name} is not installed: {INSTALL}" if error.name else str(error)
        parser.exit(2, f"{parser.prog}: {reason}\n")
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


def _run(options: argparse.Namespace) -> int:
    table = read(options.file, options.header, options.decimal, options.skip_rows)
    labels = table.labels()
    inputs, target = _columns(options, table, labels)
    names = [*inputs, target]
    if options.no_equation and options.max_terms is not None:
        rule = "--max-terms must not be given with --no-equation"
        raise ValueError(f"{rule}, got {options.max_terms}")
    if not 0 <= options.seed < 2**32:
        raise ValueError(f"--seed must be from 0 to 2**32 - 1, got {options.seed}")
    if options.plot is not None:
        _check_picture(options.plot)
    numbers = table.numbers(names, options.skip_rows, options.groups)
    left_out, lines = len(table.cells) - len(numbers), list(table.left_out)
    if _ends_with_totals(numbers):
        lines.append(f"line {numbers.index[-1]}, the sum of the lines above,")
        numbers = numbers.iloc[:-1]
    labels_of_rows = table.cells.loc[numbers.index]
    groups = None if options.groups is None else list(labels_of_rows[options.groups])
    units = _units(options, table, names)

    from npu_kernels.equations import NPURegressor
    from npu_kernels.equations._units import full_unit

    of_target = "auto" if options.target_transforms == ["auto"] else options.target_transforms
    max_terms = DEFAULT_TERMS if options.max_terms is None else options.max_terms
    model = NPURegressor(
        None if options.no_equation else max_terms,
        X_units=None if units is None else [units[name] for name in inputs],
        y_units=None if units is None else units[target],
        n_init=options.n_init,
        random_state=options.seed,
        verbose=int(sys.stderr.isatty()),
        functions=_functions(options.functions),
        target_transforms=of_target,
        ratios={"yes": True, "no": False}.get(options.ratios, options.ratios),
        known_part=options.known_part,
    )
    X, y = numbers[inputs], numbers[target]
    model.fit(X, y, checkpoint=options.checkpoint, groups=groups)
    facts = [f"{len(numbers)} rows of {', '.join(inputs)}"]
    if units is not None:
        facts.append(f"units: {', '.join(f'{name} in {full_unit(units[name])}' for name in names)}")
    facts += [f"{left_out} rows left out"] * bool(left_out)
    facts += [f"{', '.join(lines)} left out"] * bool(lines)
    facts += [f"groups by {options.groups}"] * (groups is not None)
    facts += _unused(options, table, names, units, labels_of_rows[labels])
    outliers = [str(numbers.index[row]) for row in model.equations_.outliers]
    facts += [f"outliers: line {', line '.join(outliers)} of the file"] * bool(outliers)
    print("; ".join(facts))
    print(model.report())
    if options.plot is not None:
        model.plot(X, y, groups=groups).savefig(options.plot)
        print(f"{options.plot} written")
    return 0


def _unused(
    options: argparse.Namespace,
    table: Table,
    names: Sequence[str],
    units: Mapping[str, str] | None,
    labels: Frame,
) -> list[str]:
    """What the file has and the equation does not use: separators, units, columns of labels."""
    thousands = [name for name in names if name in table.thousands]
    facts = [f"separators of thousands in {', '.join(thousands)}"] * bool(thousands)
    unitless = [name for name in names if name not in table.units]
    if table.units and units is None and not options.no_units:
        facts.append(f"units not used, as {', '.join(unitless)} lack one")
    unused = [name for name in labels if name not in (*names, options.groups)]
    facts += [f"no numbers in {', '.join(unused)}"] * bool(unused)
    possible = [name for name in unused if not options.groups and _are_groups(labels[name])]
    facts += [f"--groups {name} gives each label coefficients of its own" for name in possible[:1]]
    return facts


def _columns(
    options: argparse.Namespace, table: Table, labels: Collection[str]
) -> tuple[list[str], str]:
    """Return the inputs and the target; ValueError for columns that the table lacks."""
    target: str = options.target or list(table.cells)[-1]
    aside = {target, options.groups, *labels}
    inputs = options.inputs or [n for n in table.cells if n not in aside]
    columns = ", ".join(table.cells)
    for option, names in (("--target", [target]), ("--inputs", inputs)):
        unknown = [name for name in names if name not in table.cells]
        if unknown:
            raise ValueError(f"{option} must be of {columns}, got {', '.join(unknown)}")
    names = [*inputs, target]
    if len(names) < 2 or len(set(names)) < len(names):
        rule = f"--target and --inputs must be different columns of {columns}"
        raise ValueError(f"{rule}; got {', '.join(names)}")
    if options.groups is not None and options.groups not in set(table.cells) - set(names):
        raise ValueError(f"--groups must be another column of {columns}; got {options.groups}")
    return inputs, target


def _are_groups(labels: Frame) -> bool:
    """Whether there are two labels or more, each of enough rows for coefficients of its own."""
    counts = labels.value_counts()
    return len(counts) > 1 and bool(counts.min() > DEFAULT_TERMS)


def _ends_with_totals(numbers: Frame) -> bool:
    """Whether each number of the last row is the sum of its column, up to six digits."""
    above, last = numbers.iloc[:-1], numbers.iloc[-1]
    is_sum = (last - above.sum()).abs() <= SUM_ERROR * above.abs().sum()
    return bool(len(above) >= MIN_ABOVE_TOTALS and is_sum.all() and last.all())


def _units(
    options: argparse.Namespace, table: Table, names: Sequence[str]
) -> Mapping[str, str] | None:
    """Return the unit of each column; None without them."""
    units = table.units | _given_units(options.units, names)
    without = [name for name in names if name not in units]
    if options.units and (without or options.no_units):
        rule = "--units must complete the header's, so that every column has one"
        reason = "--no-units" if options.no_units else f"none of {', '.join(without)}"
        raise ValueError(f"{rule}, got {reason}")
    if without or options.no_units:
        return None
    from npu_kernels.equations._units import dimensions

    try:
        dimensions(names, [units[name] for name in names], "the table")
    except ValueError as error:
        ways = "--units NAME=UNIT gives another unit, --no-units ignores all units, and"
        raise ValueError(f"{error} ({ways} # before a second line of names)") from None
    return units


def _check_picture(path: Path) -> None:
    """ValueError for an ending that is none of matplotlib's pictures."""
    from matplotlib.figure import Figure

    endings = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in endings:
        raise ValueError(f"--plot must end in one of .{', .'.join(endings)}, got {path}")


def _functions(texts: list[str] | None) -> list[str] | dict[str, list[str]] | None:
    """The argument `functions` of the estimator."""
    if texts is None or not any("=" in text for text in texts):
        return texts
    pairs = [text.partition("=") for text in texts]
    if not all(equals for _, equals, _ in pairs):
        rule = "--functions must be functions, or COLUMN=FUNCTION,... of each column"
        raise ValueError(f"{rule}; got {' '.join(texts)}")
    return {name: functions.split(",") for name, _, functions in pairs}


def _given_units(texts: list[str], names: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for text, (name, equals, _) in zip(texts, pairs, strict=True):
        if not equals or name not in names:
            raise ValueError(f"--units must be NAME=UNIT of {', '.join(names)}, got {text}")
    return {name: unit for name, _, unit in pairs}


if __name__ == "__main__":
    sys.exit(main())
