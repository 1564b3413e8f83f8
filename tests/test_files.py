"""Files that a kill, a full disk or a wrong name must not cost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.paper import __main__ as paper
from benchmarks.paper import session
from benchmarks.paper.runner import Folder, complete
from benchmarks.throughput import tune
from npu_kernels import certify, files
from npu_kernels.certify.command import JSON, MARKDOWN
from tests.test_paper_runner import plan, quietly, stop_after
from tools.aot import __main__ as aot

STATE = {"a": torch.arange(9.0), "b": [1.5, "text", None], "c": {"d": torch.ones(2, 3)}}


def _dead() -> int:
    """The number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def _refuse(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


# ---- what is written ---------------------------------------------------------------------------------------------


def test_a_state_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "state"
    files.save(path, STATE)
    found = files.load(path, STATE)
    assert torch.equal(found["a"], STATE["a"])  # type: ignore[arg-type]
    assert found["b"] == STATE["b"]
    assert os.listdir(tmp_path) == ["state"]


def test_every_changed_or_missing_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "state"
    files.save(path, STATE)
    whole = path.read_bytes()
    for at in range(0, len(whole), 17):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        for content in (changed, whole[:at]):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"^it is (empty|damaged|no file that npu_kernels saved)"):
                files.load(path, STATE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", r"^it is no file that npu_kernels saved$"),
        (b"PK\x03\x04 a zip file", r"^it is damaged or no file that npu_kernels saved$"),
        (torch.nn.Linear(1, 1), r"^it is damaged or no file that npu_kernels saved$"),  # no advice to unpickle it
        ([1, 2], r"^it holds something else: list$"),
        (torch.ones(2), r"^it holds something else: Tensor$"),
        ({"a": 1, "x": 2}, r"^it holds something else: a dict without b, c$"),
    ],
    ids=["text", "zip", "module", "list", "tensor", "dict"],
)
def test_other_files_are_named(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=message):
        files.load(path, STATE)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report"
    files.write(path, "old")
    monkeypatch.setattr(os, "fsync", _refuse)
    with pytest.raises(OSError, match="No space left"):
        files.write(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report"]


def test_leftovers_of_dead_processes_go_and_others_stay(tmp_path: Path) -> None:
    host, dead = files._host(), _dead()
    own = [f"state.{host}.{dead}.tmp", f"state.{dead}.tmp", f"other.{host}.{dead}.tmp"]
    kept = [f"state.{host}.{os.getpid()}.tmp", f"state.elsewhere.{dead}.tmp", f"mine.{dead}.tmp", "notes.tmp"]
    for name in [*own, *kept]:
        (tmp_path / name).touch()
    files.check_writable(tmp_path / "state")
    assert sorted(os.listdir(tmp_path)) == sorted([own[2], *kept[1:]])  # that of this process was written over
    files.remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept[1:])


def test_what_cannot_be_written_is_said_before(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.check_writable(tmp_path / "missing" / "file")
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        files.check_writable(tmp_path)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(NotADirectoryError):
        files.check_writable(tmp_path / "file" / "file")
    files.check_writable(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


# ---- who writes --------------------------------------------------------------------------------------------------


def test_the_paper_goes_on_without_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk costs a batch no work while it runs; at its end the error says what to do."""
    folder, (batch,) = Folder(tmp_path / "work"), plan(tmp_path / "trace", 1)
    folder.create()
    (folder.path / f"x.{files._host()}.{_dead()}.tmp").touch()
    folder.create()
    assert not list(folder.path.glob("*.tmp"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _refuse)
        assert not complete(batch, folder, quietly, stop_after(2))
        assert "checkpoint could not be written: No space left on device" in capsys.readouterr().err
        with pytest.raises(RuntimeError, match=r"done could not be written: No space left .* the same command continu"):
            complete(batch, folder, quietly, lambda: False)
    assert complete(batch, folder, quietly, lambda: False)
    torch.save({"weight": torch.ones(2)}, folder.done_path(batch))
    with pytest.raises(RuntimeError, match=r"done cannot be read: it holds something else: a dict without rows"):
        folder.result(batch)


def test_the_papers_table_waits_for_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = object.__new__(session.Session)
    made.folder = Folder(tmp_path)
    made._try(_refuse)
    assert f"{tmp_path} could not be written: No space left on device" in capsys.readouterr().err


def test_the_paper_names_a_folder_that_it_cannot_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / paper.WORK).touch()
    assert paper.main(["gradient-surface", "--quick", "--out", str(tmp_path)]) == 1
    assert "benchmarks.paper: [Errno 17] File exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "arguments"), [(certify.main, ["--json"]), (certify.main, ["--markdown"]), (aot.main, ["--table"])]
)
def test_a_report_that_cannot_be_written_is_named_before_any_work(
    main: object, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*arguments, str(tmp_path / "missing" / "file")])  # type: ignore[operator]
    assert stop.value.code == 2
    assert "cannot write" in capsys.readouterr().err


def test_tuning_names_a_file_that_is_no_table_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That each entry is in the file as soon as it is found: `tests/test_tune.py`."""
    pytest.importorskip("triton")
    path = tmp_path / "table.json"
    path.write_text("{")
    monkeypatch.setattr(tune, "place", lambda: ({"gpu": "made up"}, "sm_90", ("cuda", 90, 32)))
    monkeypatch.setattr(tune, "tasks", lambda *arguments: pytest.fail("the work has begun"))
    assert tune.main([], "highest", 1.0, path) == 2
    assert f"--tune: {path} cannot be used" in capsys.readouterr().err
    assert path.read_text() == "{"


def test_only_a_part_of_the_certificate_never_replaces_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (JSON, MARKDOWN):
        name.write_text("whole")
    part = ["--only", "empty", "--column", "reference"]
    assert certify.main(part) == 0
    assert "1 cells, 0 failed; no file written" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        certify.main([*part, "--json", str(tmp_path / JSON)])
    assert "is the file of whole certificates" in capsys.readouterr().err
    assert certify.main([*part, "--json", "part.json"]) == 0
    assert "part.json written" in capsys.readouterr().out
    assert all(name.read_text() == "whole" for name in (JSON, MARKDOWN))


def test_a_certificate_that_cannot_be_written_any_more_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "write", _refuse)
    path = tmp_path / "part.md"
    assert certify.main(["--only", "empty", "--column", "reference", "--markdown", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "# Compatibility" in printed
    assert f"{path} could not be written: No space left on device; it is printed above" in printed
