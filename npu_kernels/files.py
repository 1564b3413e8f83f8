"""Files of results and checkpoints that outlast a kill and a full disk.

A file is written under another name beside its own (``NAME.HOST.PID.tmp``), flushed to the disk and renamed: at any
moment there is the whole old file or the whole new one.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import io
import os
import platform
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

_HEAD, _SIZE = b"npu_kernels state 1\n", 32  # before the content of a saved state: this, and the bytes of a checksum


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", platform.node()) or "host"


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.{_host()}.{os.getpid()}.tmp")


def _lives(pid: int) -> bool:
    """Whether a process of this machine has that number; true where that cannot be asked."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # another user's
    return True


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes of this machine left in a folder, of one file or of all: their ``*.tmp`` files."""
    names = rf".+\.{_host()}" if name is None else rf"{re.escape(name)}(\.{_host()})?"
    for path in folder.glob("*.tmp"):
        found = re.fullmatch(rf"{names}\.(?P<pid>\d+)\.tmp", path.name)
        if found is not None and not _lives(int(found["pid"])):
            path.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise OSError if the file could not be written; nothing is left behind, and an existing file stays as it is."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    aside = _aside(path)
    with open(aside, "wb"):
        pass
    aside.unlink()
    remove_leftovers(path.parent, path.name)


def output(text: str) -> Path:
    """The type of an argument of a command that names a file to write: it is tried before the work begins."""
    path = Path(text)
    try:
        check_writable(path)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text}: {error.strerror or error}") from None
    return path


def write(path: Path, content: bytes | str) -> None:
    """Replace a file as a whole. Raises OSError, and leaves the old file then."""
    aside = _aside(path)
    try:
        with open(aside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def save(path: Path, state: Any) -> None:
    """A state of tensors and numbers into a file, as `write`, with a checksum for `load`."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    write(path, _HEAD + _checksum(content) + content)


def load(path: Path, keys: Collection[str]) -> dict[str, Any]:
    """The dictionary with these keys that `save` wrote, on the CPU.

    Raises ValueError, which says what the file is, for any other content: empty, cut off, changed, or somebody else's.
    A file of plain `torch.save` is taken too; it has no checksum.
    """
    content = path.read_bytes()
    if not content:
        raise ValueError("it is empty")
    if content.startswith(_HEAD):
        found, content = content[len(_HEAD) : len(_HEAD) + _SIZE], content[len(_HEAD) + _SIZE :]
        if found != _checksum(content):
            raise ValueError("it is damaged: cut off or changed")
    elif not content.startswith(b"PK"):
        raise ValueError("it is no file that npu_kernels saved")
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # what other content makes torch.load raise depends on where it is wrong
        raise ValueError("it is damaged or no file that npu_kernels saved") from None
    missing = sorted(set(keys) - state.keys()) if isinstance(state, dict) else None
    if missing is None or missing:
        what = type(state).__name__ if missing is None else f"a dict without {', '.join(missing[:3])}"
        raise ValueError(f"it holds something else: {what}")
    loaded: dict[str, Any] = state
    return loaded


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SIZE).digest()
