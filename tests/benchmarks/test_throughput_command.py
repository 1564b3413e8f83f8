"""The throughput suite's command on tiny sizes: its arguments, and rows of an earlier run."""

from pathlib import Path

import pytest
import torch

from benchmarks.throughput import __main__ as suite_main
from benchmarks.throughput import devices, environment, results, suite, timing
from tests.support.throughput import all_tables, made_up

pytestmark = pytest.mark.usefixtures("one_thread")  # what they run sets another number


def run_tiny(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(devices.Device, "product_size", 64)
    monkeypatch.setattr(devices.Device, "copy_floats", 2**16)
    arguments = ["--sizes", "5x3x2,5x3x2x3", "--threads", "1", "--seconds", "0.01", "--no-memory"]
    return suite_main.main([*arguments, "--baselines", "eager,linear", "--json", str(path)])


def test_the_suite_writes_rows_that_the_report_reads(tmp_path, capsys, monkeypatch):
    path = tmp_path / "rows.jsonl"
    assert run_tiny(path, monkeypatch) == 0
    rows = results.read([path])
    assert len(rows) == 2 * 6 * 3
    assert {row["threads"] for row in rows} == {1}
    assert rows[0]["environment"]["torch"] == torch.__version__
    text = all_tables(rows)
    assert text.count("\n| NPU |") == 8
    assert text.count("\n| RealNPU |") == 4
    assert "a @ b" in capsys.readouterr().out


def test_an_interrupted_run_keeps_its_rows(tmp_path, capsys, monkeypatch):
    measured, calls = suite.measure, 0

    def interrupt(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return measured(*arguments, **options)

    monkeypatch.setattr(suite, "measure", interrupt)
    path = tmp_path / "rows.jsonl"
    assert run_tiny(path, monkeypatch) == 130
    assert len(path.read_text().splitlines()) == 3
    assert "interrupted" in capsys.readouterr().err


# ---- an earlier run's rows -----------------------------------------------------------------------


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is doubtful, however busy the machine of the tests."""
    monkeypatch.setattr(timing, "doubtful", lambda row: False)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cases that are measured, in place of their measuring, which takes no time then."""
    measured: list[str] = []

    def measure(case, names, threads, seconds, **options):
        measured.append(str(case))
        row = {
            **made_up("", 2.0),
            **case.to_dict(),
            "threads": threads,
            "ratio_p20": 2.0,
            "ratio_p80": 2.0,
        }
        return [{**row, "rival": name} for name in ("ours", *names)]

    monkeypatch.setattr(suite, "measure", measure)
    monkeypatch.setattr(environment, "measure_limits", lambda device: environment.Limits(1.0, 1.0))
    return measured


def test_a_run_goes_on_where_it_was_interrupted(tmp_path, monkeypatch, idle, calls):
    """The case of which a row is missing is measured in whole: its ratios are of one run."""
    path = tmp_path / "rows.jsonl"
    assert run_tiny(path, monkeypatch) == 0
    lines, first = path.read_text().splitlines(keepends=True), list(calls)
    # three cases and a row of the fourth
    path.write_text("".join(lines[:10]))
    calls.clear()
    assert run_tiny(path, monkeypatch) == 0
    assert calls == first[3:]
    rows = results.read([path])
    assert len(rows) == 10 + 27
    assert (
        len({(*results.Case.from_dict(row).to_dict().items(), row["rival"]) for row in rows}) == 36
    )
    assert path.read_text().startswith("".join(lines[:10]))


@pytest.mark.parametrize(
    ("field", "value"),
    [("processor", "Slide rule"), ("commit", "c0ffee"), ("changes", "other changes"),
     ("torch", "1.0"), ("instruction_set", "beads")],
)  # fmt: skip
def test_rows_of_another_machine_or_version_are_measured_anew(
    field, value, tmp_path, monkeypatch, idle, calls
):
    path = tmp_path / "rows.jsonl"
    assert run_tiny(path, monkeypatch) == 0
    before, described = path.read_text(), environment.describe()
    calls.clear()
    monkeypatch.setattr(environment, "describe", lambda device: {**described, field: value})
    assert run_tiny(path, monkeypatch) == 0
    assert len(calls) == 12
    assert path.read_text().startswith(before)
