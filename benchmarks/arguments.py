"""Parsers of commands, and types of arguments that several of them have."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any


def command(name: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of ``python -m NAME``. description: the docstring of its module."""
    raw = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(f"python -m {name}", None, description, formatter_class=raw)


def positive(text: str) -> int:
    """An integer of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


def seconds(text: str) -> float:
    """A duration of more than 0."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be greater than 0, got {text}")
    return value


def listed(
    convert: Callable[[str], Any] = str, choice: Collection[str] = ()
) -> Callable[[str], list[Any]]:
    """A reader of values with commas between them. choice: the words that there are, if given."""

    def read(text: str) -> list[Any]:
        words = text.split(",")
        unknown = ", ".join(word for word in words if choice and word not in choice)
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown {unknown}; known: {', '.join(choice)}")
        try:
            return [convert(word) for word in words]
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{error}, in {text!r}") from None

    return read


def writable_folder(text: str) -> Path:
    """A folder in which a file can be made: better refused before the work than after it."""
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise argparse.ArgumentTypeError(f"cannot write into {text}: {reason}") from None
    return folder
