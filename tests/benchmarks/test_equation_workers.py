"""The rows of many equations over workers: their times, their table, their command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.equations import workers


def test_rows_of_two_numbers_of_workers(tmp_path: Path) -> None:
    file, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    sizes = ["--laws", "3", "--rows", "60"]
    assert workers.main([*sizes, "--workers", "1,2", "--json", str(file)]) == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["workers"] for row in rows] == [1, 2]
    assert all(row["same_equations"] and row["errors"] == 0 for row in rows)
    assert all(row["laws"] == 3 and row["rows"] == 60 for row in rows)
    page.write_text(f"<!-- {workers.MARK}:begin -->\n<!-- {workers.MARK}:end -->\n")
    assert workers.main(["--page", str(page), str(file)]) == 0
    assert (
        "| workers | laws a minute | times as fast as 1 | the same equations |" in page.read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "--workers: must be a whole number of at least 1, got '0'"),
        (["--laws", "0"], "--laws: must be a whole number of at least 1, got '0'"),
        (["--page", "page.md"], "--page and files of rows belong together"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        workers.main(arguments)
    assert message in capsys.readouterr().err
