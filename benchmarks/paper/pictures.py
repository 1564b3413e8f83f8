"""The figures, made only from the tables and models of a folder, where matplotlib is installed.

Every figure has a title, the units of its axes, and a line that says what to look for.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.drawing import SUFFIXES, available
from benchmarks.paper import tables
from benchmarks.paper.experiment import Sources, Table
from benchmarks.paper.registry import TABLES


def draw(table: Table, folder: Path, suffix: str = "png") -> Path | None:
    """Draw a table's picture; None where it has none, or the files are not there."""
    models = folder / table.models_file
    missing = not (folder / table.file).exists() or (table.keep and not models.exists())
    if table.picture is None or missing:
        return None
    comments, rows = tables.read(folder / table.file)
    path = folder / table.picture_file(suffix)
    return path if table.picture(Sources(comments, rows, models), path) else None


def draw_all(folder: Path, suffix: str) -> list[Path]:
    """All pictures that the folder has the numbers for; none without matplotlib."""
    if not available():
        return []
    return [path for table in TABLES.values() if (path := draw(table, folder, suffix)) is not None]


def drawn(table: Table, folder: Path) -> str | None:
    """The file name of a table's picture in the folder, if there is one."""
    names = [table.picture_file(suffix) for suffix in SUFFIXES] if table.picture else []
    return next((name for name in names if (folder / name).exists()), None)
