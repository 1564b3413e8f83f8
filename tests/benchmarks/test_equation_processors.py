"""The same equation on every processor: a few tables and a series, their judge, their page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.equations import processors
from benchmarks.rows_command import read
from tests.support.building import ROOT


@pytest.mark.parametrize(
    "words", [["--tables", "2", "--rows", "60"], ["--series", "1"]], ids=["tables", "series"]
)
def test_the_same_equation_with_fewer_instructions(words: list[str], tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    file = tmp_path / "rows.jsonl"
    assert processors.main([*words, "--variants", "as it is,SSE4.2", "--out", str(file)]) == 0
    pairs = processors.pairs(read(file))["SSE4.2"]
    assert len(pairs) == int(words[1])
    for base, row in pairs:
        assert processors.same(base, row), (base["formula"], row["formula"])
        assert not processors.criteria_differ(base, row)


def test_the_page_has_the_table_of_the_results() -> None:
    page = (ROOT / "docs" / "how-well.md").read_text()
    assert processors.table(read(processors.OUT)) in page
