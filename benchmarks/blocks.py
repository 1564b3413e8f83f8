"""Generated blocks of documents, between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``."""

from __future__ import annotations


class MarksError(ValueError):
    """A document without the marks of a block, or with several of them."""


def insert(text: str, block: str, name: str) -> str:
    """Return the text with the block between its marks.

    Raises MarksError unless each mark stands there once, in order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise MarksError(f"needs {begin} and behind it {end}, each once")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{block}\n{end}{rest.split(end)[1]}"
