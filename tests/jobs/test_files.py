"""Files that a kill, a full disk or a wrong name must not cost."""

import errno
import fcntl
import os
import platform
import re
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.paper.runner import Folder, complete
from npu_kernels._jobs import files
from tests.benchmarks.test_paper_runner import plan
from tests.support.building import run_forked
from tools.aot import __main__ as aot
from tools.certify import command as certificate

HOST = re.sub("[^A-Za-z0-9-]", "-", platform.node()) or "host"
JSON, MARKDOWN = Path("npu_kernels_certificate.json"), Path("npu_kernels_certificate.md")
STATE = {"a": torch.arange(9.0), "b": [1.5, "text", None], "c": {"d": torch.ones(2, 3)}}


# A process that says when the temporary file is written, and then waits.
WRITES_UNTIL_TOLD = """
import os, sys
from pathlib import Path
from npu_kernels._jobs import files
sync = os.fsync
def wait(descriptor):
    sync(descriptor)
    print("writes", flush=True)
    sys.stdin.readline()
os.fsync = wait
files.write(Path(sys.argv[1]), "theirs")
"""


def _killed(path: Path) -> None:
    """Kill a process while it writes a file."""
    script = [sys.executable, "-c", WRITES_UNTIL_TOLD, str(path)]
    with subprocess.Popen(
        script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writes\n"
        child.kill()


def _leftover(path: Path) -> Path:
    """The name of a file that a killed process left."""
    return path.with_name(f"{path.name}.{HOST}.{'0' * 16}.tmp")


def _refuse(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


def _no_process(*arguments: object) -> None:
    raise ProcessLookupError


# ---- what is written -----------------------------------------------------------------------------


def test_a_state_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "state"
    files.save(path, STATE)
    loaded = files.load(path, STATE)
    assert torch.equal(loaded["a"], STATE["a"])  # type: ignore[arg-type]
    assert loaded["b"] == STATE["b"]
    assert os.listdir(tmp_path) == ["state"]


def test_every_changed_or_missing_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "state"
    files.save(path, STATE)
    complete = path.read_bytes()
    for position in range(0, len(complete), 17):
        changed = bytearray(complete)
        changed[position] ^= 1 << position % 8
        for content in (changed, complete[:position]):
            path.write_bytes(content)
            with pytest.raises(
                ValueError, match=r"^it is (empty|damaged|no file that npu_kernels saved)"
            ):
                files.load(path, STATE)


@pytest.mark.parametrize(("content", "message"), [
    (b"hello", r"^it is no file that npu_kernels saved$"),
    (b"PK\x03\x04 a zip file", r"^it is no file that npu_kernels saved$"),
    # no advice to unpickle it
    (torch.nn.Linear(1, 1), r"^it is damaged or no file that npu_kernels saved$"),
    ([1, 2], r"^it holds something else: list$"),
    (torch.ones(2), r"^it holds something else: Tensor$"),
    ({"a": 1, "x": 2}, r"^it holds something else: a dict without b, c$"),
], ids=["text", "zip", "module", "list", "tensor", "dict"])  # fmt: skip
def test_other_files_are_named(content: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        files.save(path, content)
    with pytest.raises(ValueError, match=message):
        files.load(path, STATE)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report"
    files.write(path, "old")
    monkeypatch.setattr(os, "fsync", _refuse)
    with pytest.raises(OSError, match="No space left"):
        files.write(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report"]


def test_leftovers_of_killed_processes_go_and_others_stay(tmp_path: Path) -> None:
    for name in ("state", "other"):
        _killed(tmp_path / name)
    leftovers = sorted(os.listdir(tmp_path))
    assert len(leftovers) == 2, "the files of the killed processes"
    assert all(
        re.fullmatch(rf"(state|other)\.{HOST}\.[0-9a-f]{{16}}\.tmp", name) for name in leftovers
    )
    foreign = [name.replace(HOST, "elsewhere") for name in leftovers]
    foreign += [
        "notes.tmp",
        f"state.{HOST}.{'0' * 16}.tmp.old",
        f"state.{HOST}.{'0' * 15}.tmp",
    ]
    for name in foreign:
        (tmp_path / name).touch()
    files.check_writable(tmp_path / "state")
    assert sorted(os.listdir(tmp_path)) == sorted([leftovers[0], *foreign])
    files.remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(foreign)


@pytest.mark.parametrize("path", ["state", "a.b", "a[b]*", "x" * 200])
def test_leftovers_are_removed_whatever_the_name(path: str, tmp_path: Path) -> None:
    _leftover(tmp_path / path).touch()
    _leftover(tmp_path / path.replace(".", "-").replace("[b]*", "b")).touch()
    files.check_writable(tmp_path / path)
    assert not _leftover(tmp_path / path).exists()
    assert len(os.listdir(tmp_path)) == (1 if path in ("a.b", "a[b]*") else 0)


def test_a_file_that_another_process_writes_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers of one host name do not see each other's processes."""
    monkeypatch.setattr(os, "kill", _no_process)
    path, script = (
        tmp_path / "state",
        [sys.executable, "-c", WRITES_UNTIL_TOLD, str(tmp_path / "state")],
    )
    with subprocess.Popen(
        script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "writes\n"
        files.check_writable(path)
        files.remove_leftovers(tmp_path)
        files.write(path, "ours")
        assert len(os.listdir(tmp_path)) == 2
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.wait() == 0
    assert path.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["state"]


def test_a_file_that_was_removed_before_it_was_locked_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, turns = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not turns:  # the other process comes between
            turns.append(1)
            files.remove_leftovers(tmp_path)
            assert not os.listdir(tmp_path)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    files.write(tmp_path / "state", "new")
    assert turns
    assert (tmp_path / "state").read_text() == "new"
    assert os.listdir(tmp_path) == ["state"]


def test_a_disk_without_locks_takes_files_and_keeps_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = _leftover(tmp_path / "state")
    leftover.touch()
    monkeypatch.setattr(fcntl, "flock", _refuse)
    files.check_writable(tmp_path / "state")
    files.write(tmp_path / "state", "new")
    assert (tmp_path / "state").read_text() == "new"
    assert leftover.exists()


@pytest.mark.parametrize("write", [files.check_writable, lambda path: files.write(path, "new")])
def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names = [
        f"state.{HOST}.{os.getpid()}.tmp",
        f"state.{os.getpid()}.tmp",
        _leftover(Path("state")).name,
    ]
    links = [tmp_path / name for name in names]
    for link in links:
        link.symlink_to(victim)
    write(tmp_path / "state")  # the name cannot be guessed
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
    with pytest.raises(FileExistsError):  # and if it could
        write(tmp_path / "state")
    files.remove_leftovers(tmp_path)
    assert victim.read_text() == "precious"
    assert all(link.readlink() == victim for link in links)


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_a_link(exists: bool, tmp_path: Path) -> None:
    folder, link = tmp_path / "scratch", tmp_path / "state"
    folder.mkdir()
    target = folder / "target"
    if exists:
        target.write_text("old")
    (folder / "between").symlink_to("target")
    link.symlink_to(folder / "between")
    _leftover(target).touch()
    files.check_writable(link)
    assert sorted(os.listdir(folder)) == (["between", "target"] if exists else ["between"])
    files.save(link, STATE)
    assert files.load(link, STATE)["b"] == STATE["b"]
    assert link.readlink() == folder / "between"
    assert target.read_bytes() == link.read_bytes()
    assert sorted(os.listdir(folder)) == ["between", "target"]
    assert sorted(os.listdir(tmp_path)) == ["scratch", "state"]


@pytest.mark.parametrize("write", [files.check_writable, lambda path: files.write(path, "new")])
def test_what_is_no_file_is_not_replaced(write: Callable[[Path], None], tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).symlink_to(other)
    with pytest.raises(OSError, match="Too many levels of symbolic links") as loop:
        write(tmp_path / "a")
    assert loop.value.errno == errno.ELOOP
    (tmp_path / "folder").symlink_to(tmp_path)
    with pytest.raises(IsADirectoryError, match="it is a folder"):
        write(tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a device, a pipe or a socket"):
        write(tmp_path / "pipe")
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "folder", "pipe"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o666, 0o400, 0o755, 0o2664])
def test_a_file_keeps_its_mode(mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sync, modes = tmp_path / "state", os.fsync, []

    def look(descriptor: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        sync(descriptor)

    path.write_text("old")
    path.chmod(mode)
    monkeypatch.setattr(os, "fsync", look)
    files.write(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert modes[0] & 0o600 == 0o600, "what a killed process leaves can be locked, and removed"
    assert modes[0] & 0o077 & ~mode == 0, "nobody else could read it, at any moment"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_a_new_file_has_the_umasks_mode(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        files.write(tmp_path / "state", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o666 & ~mask


def test_a_disk_without_modes_takes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fchmod", _refuse)
    for content in ("old", "new"):
        files.write(tmp_path / "state", content)
    assert (tmp_path / "state").read_text() == "new"


def test_without_locks_and_modes_as_on_windows(tmp_path: Path) -> None:
    code = """
import os, sys
sys.modules["fcntl"] = None
del os.fchmod, os.O_NOFOLLOW
from pathlib import Path
from npu_kernels._jobs import files
path, replace = Path(sys.argv[1]), os.replace
def closed(source, target):
    assert not [name for name in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{name}") == str(source)]
    replace(source, target)
os.replace = closed
files.check_writable(path)
for content in ("old", "new"):
    files.write(path, content)
files.remove_leftovers(path.parent)
"""
    leftover = _leftover(tmp_path / "state")
    leftover.touch()
    run = run_forked(code, str(tmp_path / "state"))
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "state").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["state", leftover.name]


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


# ---- who writes ----------------------------------------------------------------------------------


def test_the_paper_goes_on_without_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk costs a batch no work while it runs."""
    folder, (batch,) = Folder(tmp_path / "work"), plan(tmp_path / "trace", 1)
    folder.create()
    _leftover(folder.path / "x").touch()
    folder.create()
    assert not list(folder.path.glob("*.tmp"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _refuse)
        with (
            pytest.warns(
                RuntimeWarning, match=r"checkpoint .* could not be written \(No space left"
            ),
            pytest.raises(OSError, match="No space left"),
        ):
            complete(batch, folder)
    assert complete(batch, folder)
    files.save(folder.done_path(batch), {"weight": torch.ones(2)})
    with pytest.raises(
        RuntimeError, match=r"done cannot be read: it holds something else: a dict without rows"
    ):
        folder.result(batch)


@pytest.mark.parametrize(
    ("main", "arguments"),
    [(certificate.main, ["--json"]), (certificate.main, ["--markdown"]), (aot.main, ["--table"])],
)
def test_a_report_that_cannot_be_written_is_named_before_any_work(
    main: object, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*arguments, str(tmp_path / "missing" / "file")])  # type: ignore[operator]
    assert stop.value.code == 2
    assert "cannot write" in capsys.readouterr().err


def test_only_a_part_of_the_certificate_never_replaces_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (JSON, MARKDOWN):
        name.write_text("whole")
    part = ["--only", "empty", "--column", "reference"]
    assert certificate.main(part) == 0
    assert "1 cells, 0 failed; no file written" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        certificate.main([*part, "--json", str(tmp_path / JSON)])
    assert "is the file of whole certificates" in capsys.readouterr().err
    assert certificate.main([*part, "--json", "part.json"]) == 0
    assert "part.json written" in capsys.readouterr().out
    assert all(name.read_text() == "whole" for name in (JSON, MARKDOWN))


def test_a_certificate_that_cannot_be_written_any_more_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "write", _refuse)
    path = tmp_path / "part.md"
    assert (
        certificate.main(["--only", "empty", "--column", "reference", "--markdown", str(path)]) == 1
    )
    printed = capsys.readouterr().out
    assert "# Compatibility" in printed
    assert f"{path} could not be written: No space left on device; it is printed above" in printed
