"""Commands of the benchmarks: wrong arguments, and files of rows that are cut off or damaged."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks import regression, rows_command
from benchmarks.equations import __main__ as equations
from benchmarks.equations import workers
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import report as gpu_report
from benchmarks.paper import __main__ as paper
from benchmarks.throughput import __main__ as throughput
from benchmarks.throughput import cold
from benchmarks.throughput import report as throughput_report
from benchmarks.time_series import __main__ as time_series

WRONG = [
    (cold, "--only nothing", "--only: unknown nothing; known: import, training, fit, regressor"),
    (cold, "--processes 0", "--processes: must be a whole number of at least 1, got '0'"),
    (cold, "--page page.md", "--page and files of rows belong together"),
    (workers, "--workers 0", "--workers: must be a whole number of at least 1, got '0'"),
    (workers, "--equations 0", "--equations: must be a whole number of at least 1, got '0'"),
    (workers, "--page page.md", "--page and files of rows belong together"),
    (gpu, "smoke race", f"PART must be one of {', '.join(gpu.PARTS)}, got race"),
    (gpu, "--seconds 0", "--seconds: must be greater than 0, got 0"),
    (gpu, "--jobs 0", "--jobs: must be a whole number of at least 1, got '0'"),
    (throughput, "--sizes 3x2", "a size is BxIxO or BxIxOxK in positive integers, got '3x2'"),
    (throughput, "--threads one", "--threads: must be a whole number of at least 1, got 'one'"),
    (throughput, "--baselines eager,foo", "unknown foo; known: ours, make-step, eager"),
    (throughput, "--layers gru", "unknown gru; known: npu, realnpu"),
    (throughput, "--passes backward", "unknown backward; known: forward, step, train, run"),
    (throughput, "--seconds 0", "--seconds: must be greater than 0, got 0"),
    (throughput, "--json /nonexistent/rows", "cannot write /nonexistent/rows"),
    (paper, "medium", "invalid choice: 'medium'"),
    (paper, "simple --seeds 0", "--seeds: must be a whole number of at least 1, got '0'"),
    (paper, "simple --jobs -1", "--jobs: must be a whole number of at least 1, got '-1'"),
    (paper, "simple --device nowhere", "--device: 'nowhere' does not work here"),
    (paper, "simple --insert README.md", "unrecognized arguments: --insert README.md"),
    (paper, "simple --out /dev/null/below", "--out: cannot write into /dev/null/below"),
    (paper, "report --insert no.md", "--insert: must be an existing file, got 'no.md'"),
]


@pytest.mark.parametrize(("command", "words", "message"), WRONG)
def test_wrong_arguments_are_named_before_any_work(
    command: Any, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        command.main(words.split())
    assert stop.value.code == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""


WHOLE, CUT_OFF = '{"name": "a", "value": 1}\n', '{"name": "b", "va'


@pytest.mark.parametrize(
    "command",
    [
        lambda file, page: equations.main(["--out", file, "--report", page]),
        lambda file, page: equations.main(["--out", file, "--methods", "logarithms"]),
        lambda file, page: time_series.main(["--out", file, "--report", page]),
        lambda file, page: time_series.main(["--out", file]),
        lambda file, page: regression.main(["--out", file, "--report", page]),
        lambda file, page: regression.main(["--out", file]),
        lambda file, page: cold.main(["--page", page, file]),
        lambda file, page: cold.main(["--json", file]),
        lambda file, page: workers.main(["--page", page, file]),
        lambda file, page: workers.main(["--json", file]),
        lambda file, page: gpu_report.main([file, "--page", page]),
        lambda file, page: throughput_report.main([file]),
    ],
)
def test_a_damaged_file_is_named_with_its_line(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured, and the file stays as it is."""
    file, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    file.write_text(damaged := f"\n{CUT_OFF}\n{WHOLE}")
    page.write_text("")
    try:
        status = command(str(file), str(page))
    except SystemExit as end:
        status = end.code
    message = f"{status}{capsys.readouterr().err}"
    assert f"{file}, line 2 is no JSON: Unterminated string" in message
    assert status == 1 or isinstance(status, str)  # which is printed, with status 1
    assert file.read_text() == damaged


def _run(file: Path) -> int:
    def measure(options: argparse.Namespace) -> list[rows_command.Row]:
        return [{"name": "c", "value": 3}]

    parser = argparse.ArgumentParser()
    return rows_command.run(parser, ["--json", str(file)], "mark", str, measure)


def test_a_run_adds_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows, new = [{"name": "a", "value": 1}], {"name": "c", "value": 3}

    def complete() -> None:
        rows_command.complete(file, ["name"], [("a",), ("c",)], lambda name: new)

    for add in (lambda: _run(file), complete):
        file.write_text(WHOLE)
        add()
        assert rows_command.read(file) == [*rows, new]


@pytest.mark.parametrize("content", ["[1]\n", "notes", "notes\n", "\xff\xfe"])
def test_a_file_of_something_else_is_left_alone(content: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(SystemExit, match=rf"{file}"):
        _run(file)
    assert file.read_bytes() == content.encode("latin-1")
