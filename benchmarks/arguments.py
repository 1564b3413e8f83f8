"""Types of arguments that several commands have."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path


def positive(text: str) -> int:
    """An integer of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value


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
