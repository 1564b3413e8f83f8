"""Commands that measure rows into files of JSON lines, or write tables of rows into pages."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.marked_blocks import MarksError, renew
from npu_kernels._jobs import files

Row = dict[str, Any]


def read(*paths: Path, missing_ok: bool = False) -> list[Row]:
    """Return the rows of files of JSON lines; missing_ok: a file that is not there has none."""
    existing = [path for path in paths if path.exists() or not missing_ok]
    lines = [line for path in existing for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.strip()]


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
            files.write(path, "".join(json.dumps(row) + "\n" for row in rows))
            print(*key, *(rows[-1][name] for name in shown), flush=True)


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
        except (MarksError, OSError) as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 1
        return 0
    rows = measure(options)
    if options.json:
        with options.json.open("a") as output:
            output.writelines(json.dumps(row) + "\n" for row in rows)
    print(table(rows))
    return 0
