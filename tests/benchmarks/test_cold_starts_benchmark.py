"""The rows of cold starts: their children, their table, their command."""

from pathlib import Path

import pytest

from benchmarks.throughput import cold
from tests.support.examples import ROOT


def test_a_process_tells_a_first_from_a_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "n = 10 if 'n' in globals() else 1_000_000\nsum(range(n))"
    monkeypatch.setitem(cold.CALLS, "import", {"ours": ("", slow)})
    times = cold.seconds("import", "ours")
    assert times["torch"] > 0.1
    assert times["first"] > 10 * times["second"] > 0


def test_a_child_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cold.CALLS, "import", {"ours": ("", "raise ValueError('no such thing')")})
    with pytest.raises(RuntimeError, match=r"(?s)cold: import of ours failed: .*no such thing"):
        cold.seconds("import", "ours")


def test_the_page_has_the_table_of_the_results(tmp_path: Path) -> None:
    page, copy = ROOT / "docs" / "performance.md", tmp_path / "page.md"
    copy.write_text(page.read_text())
    rows = sorted(map(str, (ROOT / "benchmarks" / "results").glob("cold-*.jsonl")))
    assert cold.main(["--page", str(copy), *rows]) == 0
    assert copy.read_text() == page.read_text()
