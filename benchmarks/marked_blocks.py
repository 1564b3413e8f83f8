"""Tables, and generated blocks of documents: ``<!-- NAME:begin -->`` to ``<!-- NAME:end -->``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from npu_kernels._jobs import files


class MarksError(ValueError):
    """A document without the marks of a block, or with several of them."""


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *lines]) + "\n"


def record_table(records: Iterable[Mapping[str, str]]) -> str:
    """Return a Markdown table of records, whose keys are its header.

    A cell without a record is empty. A column that is empty in all records is left out.
    """
    lines = list(records)
    keys = dict.fromkeys(key for line in lines for key in line)
    header = [key for key in keys if any(line.get(key) for line in lines)]
    return table(header, ([line.get(key, "") for key in header] for line in lines))


def crossed(
    records: Iterable[Mapping[str, str]], rows: Sequence[str], across: str, cell: str
) -> str:
    """Return a table of one cell of each record: a column for each value of `across`."""
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for record in records:
        line = {name: record[name] for name in rows}
        lines.setdefault(tuple(line.values()), line)[record[across]] = record[cell]
    return record_table(lines.values())


def insert(text: str, block: str, name: str) -> str:
    """Return the text with the block between its marks.

    Raises MarksError unless each mark stands there once, in order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise MarksError(f"needs {begin} and after it {end}, each once")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{block}\n{end}{rest.split(end)[1]}"


def renew(path: Path, blocks: Mapping[str, str]) -> None:
    """Replace blocks of a file, by their names; MarksError names the file."""
    text = path.read_text(encoding="utf-8")
    try:
        for name, block in blocks.items():
            text = insert(text, block, name)
    except MarksError as error:
        raise MarksError(f"{path} {error}") from None
    files.write(path, text)
