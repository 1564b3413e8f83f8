"""The paper's numbers, as printed or plotted: published/*.csv; each file names its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.paper import tables


def load(name: str) -> list[dict[str, Any]]:
    """A file's rows: "simple", "large", "pareto", "test_sets" and others."""
    return tables.read(Path(__file__).parent / "published" / f"{name}.csv")[1]
