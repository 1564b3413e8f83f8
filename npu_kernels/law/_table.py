"""Tables of text files: any delimiter and encoding, units in the header, cells without numbers."""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMED_CELLS = 3  # in a message
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?")
COMMA = re.compile(r"[-+]?\d*,\d+([eE][-+]?\d+)?")
UNIT = re.compile(r"(.*?)(?:\s*\[([^\[\]]*)\]|\s+\(([^()]*)\))")  # speed [m/s], speed (m/s)


@dataclass(frozen=True)
class Cell:
    """A cell without a number."""

    line: int  # of the file, from 1
    column: str
    text: str

    def __str__(self) -> str:
        content = f"has {self.text!r}" if self.text.strip() else "is empty"
        return f"line {self.line}, column {self.column} {content}"


@dataclass(frozen=True)
class Table:
    """The columns of a file, as text.

    Attributes:
        columns: the cells of each column, by its name without the unit.
        units: of the columns whose header has one.
        lines: the line of each row in the file, from 1.
        decimal_comma: whether numbers have one.
    """

    columns: dict[str, list[str]]
    units: dict[str, str]
    lines: list[int]
    decimal_comma: bool

    def _column(self, name: str) -> list[float | None]:
        return [number(cell, self.decimal_comma) for cell in self.columns[name]]

    def numbers(self, names: list[str], skip_rows: bool) -> Any:
        """A DataFrame of these columns.

        skip_rows: leave out rows that have a cell without a number; else it is a ValueError.
        """
        import pandas

        table = pandas.DataFrame({name: self._column(name) for name in names}, dtype=float)
        rows, columns = table.isna().to_numpy().nonzero()
        wrong = [
            Cell(self.lines[row], names[column], self.columns[names[column]][row])
            for row, column in zip(rows, columns, strict=True)
        ]
        if not wrong:
            return table
        dates = [cell.column for cell in wrong if is_date(cell.text)]
        if dates:
            raise ValueError(_rule_for_dates(dates[0]))
        if not skip_rows:
            cells = "; ".join(map(str, wrong[:NAMED_CELLS]))
            more = f"; and {len(wrong) - NAMED_CELLS} more" if len(wrong) > NAMED_CELLS else ""
            ways = "--skip-rows leaves such rows out, --inputs names the columns to use"
            raise ValueError(f"every cell must be a number: {cells}{more} ({ways})")
        return table.dropna()

    def texts(self, name: str, rows: Iterable[int]) -> list[str]:
        """The cells of a column in some rows; ValueError for one that is empty."""
        cells = [(self.lines[row], self.columns[name][row].strip()) for row in rows]
        for line, text in cells:
            if not text:
                raise ValueError(f"every cell of groups must be a label: {Cell(line, name, text)}")
        return [text for _, text in cells]

    def labels(self) -> list[str]:
        """The columns of text in which no cell begins as a number does."""
        return [
            name
            for name, cells in self.columns.items()
            if not any(re.match(r"[-+\N{MINUS SIGN}.,]?\d", cell.strip()) for cell in cells)
        ]


def is_date(cell: str) -> bool:
    return DATE.fullmatch(cell.strip()) is not None


def _rule_for_dates(column: str) -> str:
    days = f'(pandas.to_datetime(table["{column}"]) - pandas.Timestamp("2000-01-01")).dt.days'
    return (
        f"column {column} has dates, and a law needs numbers: write days or years into the file, "
        f'in Python table["{column}"] = {days}'
    )


def number(cell: str, decimal_comma: bool) -> float | None:
    """The number in a cell; None without one."""
    text = cell.strip().replace("\N{MINUS SIGN}", "-")
    if decimal_comma and COMMA.fullmatch(text):
        text = text.replace(",", ".")
    try:
        value = float(text) if "_" not in text else math.inf
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def has_decimal_commas(rows: list[list[str]]) -> bool:
    """Whether commas stand for decimal points: no cell has a point, and none may be thousands."""
    cells = [cell.strip() for row in rows for cell in row]
    commas = [cell for cell in cells if COMMA.fullmatch(cell)]
    points = any("." in cell and number(cell, False) is not None for cell in cells)
    thousands = all(re.fullmatch(r"[-+]?[1-9]\d{0,2},\d{3}", cell) for cell in commas)
    return not points and not thousands


def decoded(content: bytes) -> str:
    """The text of a file in UTF-8, UTF-16 or UTF-32 with a mark, or else Western European."""
    if content[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        return content.decode("utf-32")
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def read(path: Path) -> Table:
    """Read a table; ValueError for a file that has none.

    Lines that start with # and empty lines are left out. Without a header the columns are x0, x1,
    ... and y, the last one.
    """
    content = path.read_bytes()
    if content[:2] == b"PK":
        raise ValueError(f"{path} is a workbook; save the sheet as CSV")
    marks = b"\xff\xfe", b"\xfe\xff", codecs.BOM_UTF32_BE
    if b"\0" in content and not content.startswith(marks):
        raise ValueError(f"{path} is no text file")
    text = decoded(content).splitlines()
    numbered = [(n, line) for n, line in enumerate(text, 1) if line.strip() and line[0] != "#"]
    if len(numbered) < 2:
        raise ValueError(f"{path} must have a header and rows, got {len(numbered)} lines")
    lines = [n for n, _ in numbered]
    rows = _split([line for _, line in numbered])
    if len(rows) != len(lines):
        raise ValueError(f"{path} must have no cell with a line break")
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        width = len(rows[0])
        wrong = next(n for n, row in enumerate(rows) if len(row) != width)
        actual = f"got {len(rows[wrong])} in line {lines[wrong]}"
        raise ValueError(f"{path} must have {width} cells in each line, as in its first, {actual}")
    if widths == {1}:
        rule = "columns that tabs, ; , | or blanks separate, the target and an input at least"
        raise ValueError(f"{path} must have {rule}, got lines such as {rows[0][0]!r}")
    header, units, decimal_comma = rows[0], {}, has_decimal_commas(rows)
    if all(number(title, decimal_comma) is not None for title in header):
        header = [f"x{i}" for i in range(len(header) - 1)] + ["y"]
    else:
        rows, lines = rows[1:], lines[1:]
    names = []
    for title in header:
        match = UNIT.fullmatch(title.strip())
        names.append((match[1] if match else title).strip())
        if match:
            units[names[-1]] = (match[2] or match[3] or "").strip()
    if not all(names):
        unnamed = ", ".join(str(n) for n, name in enumerate(names, 1) if not name)
        reason = f"column {unnamed} without one (a delimiter too many in each line?)"
        raise ValueError(f"{path} must have a name of every column, got {reason}")
    if len(set(names)) < len(names):
        raise ValueError(f"{path} must have different names of columns, got {', '.join(names)}")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    return Table(columns, units, lines, decimal_comma)


def _split(lines: list[str]) -> list[list[str]]:
    """The cells of lines, at the delimiter that cuts all of them into as many."""

    def cells(delimiter: str) -> list[list[str]]:
        if delimiter.isspace() and delimiter != "\t":
            return [re.split(f"{delimiter}+", line.strip()) for line in lines]
        return list(csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter))

    candidates = [cells(delimiter) for delimiter in ("\t", ";", ",", "|", "  ", " ")]
    fitting = [
        rows
        for rows in candidates
        if len(rows) == len(lines) and len(rows[0]) > 1 and len({len(row) for row in rows}) == 1
    ]
    if fitting:
        return fitting[0]

    def like_others(rows: list[list[str]]) -> tuple[int, int]:
        """How many lines have the most frequent number of cells, unless it is 1."""
        [(width, count)] = Counter(map(len, rows)).most_common(1)
        return count * (width > 1), len(rows[0])

    return max(candidates, key=like_others)
