"""The same equation on every processor: a few tables of the benchmark, its judge, its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.equations import processors
from benchmarks.rows_command import read
from tests.support.building import ROOT


def test_the_same_equation_with_fewer_instructions(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    file = tmp_path / "rows.jsonl"
    words = ["--tables", "1", "--rows", "60", "--variants", "as it is,SSE4.2", "--out", str(file)]
    assert processors.main(words) == 0
    ((base, row),) = processors.pairs(read(file))["SSE4.2"]
    assert processors.same(base, row), (base["formula"], row["formula"])


def test_the_page_has_the_table_of_the_results() -> None:
    page = (ROOT / "docs" / "how-well.md").read_text()
    assert processors.table(read(processors.OUT)) in page
