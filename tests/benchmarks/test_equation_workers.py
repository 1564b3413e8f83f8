"""The rows of many equations over workers: their times, their table, their command."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.equations import workers


def test_rows_of_two_numbers_of_workers(tmp_path: Path) -> None:
    file, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    sizes = ["--equations", "3", "--rows", "60"]
    assert workers.main([*sizes, "--workers", "1,2", "--json", str(file)]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["workers"] for row in rows] == [1, 2]
    assert all(row["same_equations"] and row["errors"] == 0 for row in rows)
    assert all(row["laws"] == 3 and row["rows"] == 60 for row in rows)
    page.write_text(f"<!-- {workers.MARK}:begin -->\n<!-- {workers.MARK}:end -->\n")
    assert workers.main(["--page", str(page), str(file)]) == 0
    assert (
        "| workers | equations a minute | times as fast as 1 | the same equations |"
        in page.read_text()
    )
