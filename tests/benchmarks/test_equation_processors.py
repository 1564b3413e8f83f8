"""The same equation on every processor: a few tables of the benchmark, its judge, its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.equations import processors
from benchmarks.rows_command import read
from tests.support.building import ROOT

ROW = {
    "equation": "law", "noise": 0.0, "rows": 300, "power": 1.0, "below": 0, "function": "",
    "exponents": [[1.0, 0.5]], "bic": 100.0, "processor": "P",
}  # fmt: skip


def test_the_same_equation_with_fewer_instructions(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    file = tmp_path / "rows.jsonl"
    words = ["--tables", "1", "--rows", "60", "--variants", "as it is,SSE4.2", "--out", str(file)]
    assert processors.main(words) == 0
    ((base, row),) = processors.pairs(read(file))["SSE4.2"]
    assert processors.same(base, row), (base["formula"], row["formula"])


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"exponents": [[1.0, 0.501]]}, True),
        ({"exponents": [[1.0, 0.51]]}, False),
        ({"exponents": [[1.0, 0.5], [0.0, 0.0]]}, False),
        ({"power": 2.0}, False),
        ({"function": "log"}, False),
    ],
)
def test_the_judge(change: dict[str, object], is_same: bool) -> None:
    assert processors.same(ROW, ROW | change) is is_same


def test_the_page_has_the_table_of_the_results() -> None:
    page = (ROOT / "docs" / "how-well.md").read_text()
    assert processors.table(read(processors.OUT)) in page


def test_the_table(tmp_path: Path) -> None:
    first, second = ROW | {"variant": "as it is"}, ROW | {"variant": "as it is", "noise": 0.01}
    third = ROW | {"variant": "AVX2", "power": 2.0, "bic": 102.0}
    rows = [first, second, third, second | {"variant": "AVX2"}]
    assert processors.table(rows).splitlines()[-1] == "| AVX2 | 2 | 50.0 % | 1 | 1 |"
    assert not processors.criteria_differ(first, third | {"bic": 100.5})
    assert processors.criteria_differ(first, third | {"bic": None})
