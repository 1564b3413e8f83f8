"""``python -m npu_kernels.certify``, ``python -m tools.certify``, and the table made from that."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from npu_kernels import certify, functional, reference
from npu_kernels._operators import cpu, dispatch
from tests.support.building import ROOT, run_python
from tools.certify import command, matrix

TABLE = ROOT / "benchmarks" / "results" / "compatibility.md"


def test_of_an_installation(capsys: pytest.CaptureFixture[str]) -> None:
    """Every layer on every backend of this machine; who reads it sees what did not run, and why."""
    assert certify.main([]) == 0, capsys.readouterr().out
    *lines, end = capsys.readouterr().out.splitlines()
    runs, absent = certify.places()
    checked = [line for line in lines if line.startswith("ok ")]
    assert len(checked) == 7 * len(runs)
    assert end == f"{len(checked)} checked, 0 failed"
    assert {f"not run: {name}: {reason}" for name, reason in absent.items()} <= set(lines)
    for isa in cpu.supported_isas() if cpu.available()[0] else ():
        assert any(line.startswith(f"ok    inalu by cpu {isa}: ") for line in checked)


def test_an_installation_that_computes_something_else_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value that is wrong by a hundred-thousandth, and a gradient behind a right value."""
    nmu, nau = functional.nmu, functional.nau

    def wrong_gradient(*arguments: Any, **options: Any) -> Tensor:
        y = nau(*arguments, **options)
        return y + 1e-5 * (y - y.detach())

    monkeypatch.setattr(functional, "nmu", lambda *a, **options: (1 + 1e-5) * nmu(*a, **options))
    monkeypatch.setattr(functional, "nau", wrong_gradient)
    monkeypatch.setattr(certify, "places", lambda: ([certify.Place("reference")], {}))
    assert certify.main([]) == 1
    output = capsys.readouterr().out
    assert "FAIL  nmu by reference on cpu: AssertionError: shapes " in output
    assert "FAIL  nau by reference on cpu: AssertionError: shapes " in output
    assert "7 checked, 2 failed" in output


def test_the_quick_form_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every layer by the formulas and by the kernels; tests/triton has the interpreted ones."""
    arguments = ["--quick", "--column", "cpu", "--json", str(tmp_path / "quick.json")]
    assert command.main(arguments) == 0, capsys.readouterr().out
    results = json.loads((tmp_path / "quick.json").read_text())["results"]
    names = {column.name for column in matrix.columns(quick=True)}
    assert {result["column"] for result in results} == {name for name in names if "cpu" in name}
    checks = [title for title in matrix.CHECKS if not title.startswith(matrix.SLOW)]
    assert list(dict.fromkeys(result["check"] for result in results)) == checks


def test_all_of_the_table_is_measured() -> None:
    """The documentation has every check, a measured cell for each, and nothing that failed."""
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    head, _, *body = cells
    assert [row[0] for row in body] == list(matrix.CHECKS)
    assert "reference on cpu" in head
    assert any(name.startswith("cpu ") for name in head)
    for row in body:
        assert len(row) == len(head)
        assert all(cell and "FAIL" not in cell and not cell.startswith("n/a") for cell in row), row
    assert "triton interpreted" in head
    for name in ("triton on cuda", "reference on cuda"):  # measured, or said to be not
        assert (name in head) != (
            f"\nNot run, and so not in the table: {name}: " in TABLE.read_text()
        )
    assert "\nMeasured with npu_kernels " in TABLE.read_text()
    assert TABLE.read_text().endswith(command.NOTES)


def test_a_failure_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A backward that is wrong by a thousandth: exit status 1, and the report says where."""

    def wrong(*arguments: object) -> tuple[torch.Tensor, ...]:
        first, second, *rest = reference.npu_backward(*arguments)
        return first, 1.001 * second, *rest

    arguments = [
        "--json", str(tmp_path / "c.json"), "--markdown", str(tmp_path / "c.md"), "--only",
        "gradcheck, batched",
    ]  # fmt: skip
    arguments += ["--column", "cpu " if cpu.available()[0] else "reference"]
    assert command.main(arguments) == 0
    report = json.loads((tmp_path / "c.json").read_text())
    assert report["passed"]
    assert report["versions"]["torch"] == torch.__version__
    assert len(report["results"]) == len(
        [c for c in matrix.columns() if c.name.startswith(arguments[-1])]
    )
    if cpu.available()[0]:
        library = torch.library.Library("npu_kernels", "IMPL", "CPU")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            library.impl("npu_backward", wrong, allow_override=True)
        try:
            assert command.main(arguments) == 1
        finally:
            library._destroy()
        assert not json.loads((tmp_path / "c.json").read_text())["passed"]
        assert "**FAIL** GradcheckError" in (tmp_path / "c.md").read_text()
        assert "failed" in capsys.readouterr().out


def test_what_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    result = matrix.run("torch.compile, inductor: the same", matrix.Column("reference"))
    assert (result.status, result.detail) == ("n/a", "no C++ compiler")
    assert "n/a: no C++ compiler" in command.markdown([result], {"torch": "x"}, {})
    monkeypatch.setattr(
        dispatch, "reasons", lambda device_type: {"triton": (False, "no such thing")}
    )
    for name in ("triton interpreted", "triton on cuda"):
        assert name not in [column.name for column in matrix.columns()]
        assert matrix.not_run()[name] == "no such thing"
        text = command.markdown([result], {"torch": "x"}, matrix.not_run())
        assert f"\nNot run, and so not in the table: {name}: no such thing." in text
    with pytest.raises(SystemExit):
        command.main(["--only", "no such check"])


def test_interpreted_kernels_in_a_process_of_their_own() -> None:
    """The report of a run without TRITON_INTERPRET=1; what fails there arrives here."""
    pytest.importorskip("triton")
    column = matrix.Column("triton")
    assert column in matrix.columns()
    results = matrix.measure(["an empty batch", "no such check"], [column])
    assert [(result.column, result.status) for result in results] == [
        ("triton interpreted", "ok"),
        ("triton interpreted", "fail"),
    ]
    assert results[1].detail.startswith("KeyError")
    assert "TRITON_INTERPRET" not in os.environ


def test_command(tmp_path: Path) -> None:
    """The command as a user calls it; no warnings, no path of this machine in the report."""
    child = run_python(
        "-m", "tools.certify", "--only", "empty", "--column", "reference", "--json",
        "part.json", "--markdown", "part.md", cwd=tmp_path, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert "1 cells, 0 failed" in child.stdout
    assert not child.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part.json", "part.md"]
    for name in ("part.json", "part.md"):
        assert str(ROOT) not in (tmp_path / name).read_text()
