"""The paper's numbers, as printed or plotted: published/*.csv; each file names its source."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from benchmarks.paper import tables

FOLDER = Path(__file__).parent / "published"


def load(name: str) -> list[dict[str, Any]]:
    """A file's rows: "simple", "large", "pareto", "test_sets" and others."""
    return [dict(row) for row in _read(name)]


@functools.cache
def _read(name: str) -> tables.Rows:
    return tables.read(FOLDER / f"{name}.csv")[1]
