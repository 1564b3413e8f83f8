"""Commands that measure rows into files of JSON lines, or write tables of rows into pages."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.marked_blocks import MarksError, renew
from npu_kernels._jobs import files

Row = dict[str, Any]


class ReportError(Exception):
    """A file that cannot be used, named."""


def read(*paths: Path, missing_ok: bool = False, needed: Sequence[str] = ()) -> list[Row]:
    """Return the rows of files of JSON lines; ReportError names file and line.

    missing_ok: a file that is not there has no rows. needed: keys that every row has.
    """
    existing = [path for path in paths if path.exists() or not missing_ok]
    return [row for path in existing for row in _rows(path, needed)]


def _rows(path: Path, needed: Sequence[str]) -> list[Row]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"cannot read {path}: {error}") from None
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number} is no"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ReportError(f"{where} JSON: {error}") from None
        if not isinstance(row, dict):
            raise ReportError(f"{where} row: {line[:80]}")
        missing = [key for key in needed if key not in row]
        if missing:
            raise ReportError(f"{where} row of these: without {', '.join(missing)}")
        rows.append(row)
    return rows


def complete(
    path: Path, names: Sequence[str], planned: Iterable[tuple[Any, ...]],
    measure: Callable[..., Row], shown: Sequence[str] = (),
) -> None:  # fmt: skip
    """Measure the rows that a file lacks, each written at once and printed.

    names: of the columns that a row is known by, whose values `planned` has and `measure` gets.
    shown: the columns that are printed as well.
    """
    rows = read(path, missing_ok=True)
    done = {tuple(row.get(name) for name in names) for row in rows}
    for key in planned:
        if key not in done:
            rows.append(measure(*key))
            write(path, rows)
            print(*key, *(rows[-1][name] for name in shown), flush=True)


def write(path: Path, rows: Iterable[Row]) -> None:
    """Replace a file as a whole: a kill leaves the old one or the new one."""
    files.write(path, "".join(json.dumps(row) + "\n" for row in rows))


@contextmanager
def told(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End the command with a message, and status 1, where a file of rows or a page is unusable."""
    try:
        yield
    except (ReportError, MarksError) as error:
        sys.exit(f"{parser.prog}: {error}")


def run(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    mark: str,
    table: Callable[[Sequence[Row]], str],
    measure: Callable[[argparse.Namespace], list[Row]],
) -> int:
    """Run the command; return the exit status.

    parser: with the arguments of `measure`. mark: of the table's block in the page.
    """
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="rows for the table")
    page_help = "put a table of the rows there, and measure nothing"
    parser.add_argument("--page", type=Path, help=page_help)
    json_help = "add the rows, as JSON lines"
    parser.add_argument("--json", type=files.output, metavar="FILE", help=json_help)
    options = parser.parse_args(argv)
    if bool(options.page) != bool(options.files):
        parser.error("--page and files of rows belong together")
    if options.page:
        try:
            renew(options.page, {mark: table(read(*options.files))})
        except (MarksError, ReportError, OSError) as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 1
        return 0
    with told(parser):
        before = read(options.json, missing_ok=True) if options.json else []
        rows = measure(options)
        if options.json:
            write(options.json, before + rows)
    print(table(rows))
    return 0
