"""The rows of cold starts: their children, their table, their command."""

import json
from pathlib import Path

import pytest

from benchmarks.throughput import cold


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


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[cold.Row]:
    times = iter([9.0, 9.0, *(0.25, 2.0), *(0.35, 3.0), *(0.3, 1.0)])  # the first round is left out

    def seconds(question: str, rival: str) -> dict[str, float]:
        return {"torch": 1.0, "first": next(times), "second": 0.0125}

    monkeypatch.setattr(cold, "seconds", seconds)
    monkeypatch.setattr(cold, "missing", lambda rival: rival in ("sklearn", "compile"))
    return cold.measure(["training"], 3)


def test_rows_are_medians_without_the_first_round(rows: list[cold.Row]) -> None:
    assert [(row["cold"], row["rival"]) for row in rows] == [
        ("training", "ours"),
        ("training", "eager"),
    ]
    assert [row["first"]["median"] for row in rows] == [0.3, 2.0]
    assert [row["processes"] for row in rows] == [3, 3]


def test_the_page_gets_the_table(rows: list[cold.Row], tmp_path: Path) -> None:
    page, file = tmp_path / "page.md", tmp_path / "rows.jsonl"
    page.write_text("<!-- throughput-cold:begin -->\n<!-- throughput-cold:end -->\n")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cold.main(["--page", str(page), str(file)]) == 0
    lines = page.read_text().splitlines()
    assert "medians of 3 processes" in lines[1]
    assert lines[5:7] == [
        f"| {cold.QUESTIONS['training']} | ours | 0.3 s | 12 ms | 1 s |",
        f"| {cold.QUESTIONS['training']} | {cold.RIVALS['eager']} | 2 s | 12 ms | 1 s |",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "--only: unknown nothing; known: import, training, fit, regressor"),
        (["--processes", "0"], "--processes: must be a whole number of at least 1, got '0'"),
        (["--page", "page.md"], "--page and files of rows belong together"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cold.main(arguments)
    assert message in capsys.readouterr().err
