"""Files of results and checkpoints that outlast a kill and a full disk.

A file is written under a new name in its folder (``NAME.HOST.RANDOM.tmp``), flushed to the disk and
renamed: at any moment there is the whole old file or the whole new one. The new file is locked
until it has its name; so one that no process has locked was left by a killed one.
"""

from __future__ import annotations

import argparse
import errno
import functools
import hashlib
import io
import os
import platform
import re
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and what killed processes left stays
    fcntl = None  # type: ignore[assignment]

# Before the content of a saved state: this line, and a checksum of so many bytes.
_HEAD, _SIZE = b"npu_kernels state 1\n", 32
# Random bytes in the name of a temporary file: nobody can put a link there before it is opened.
_TOKEN = 8


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", platform.node()) or "host"


def _target(path: Path) -> Path:
    """Return the file that a path names, its links followed; OSError where no file can be."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket", str(path))
    return target


@contextmanager
def _temporary(target: Path, mode: int) -> Iterator[tuple[Path, BinaryIO]]:
    """Yield a new, locked file of that mode next to the target, removed unless it is renamed."""
    while True:
        path = target.with_name(f"{target.name}.{_host()}.{secrets.token_hex(_TOKEN)}.tmp")
        opener = functools.partial(os.open, mode=mode)
        file = open(path, "xb", opener=opener)  # noqa: SIM115  # closed below
        try:
            with file:
                if _lock(file.fileno(), wait=True) and not path.exists():
                    continue  # another process took it for a leftover before it was locked
                yield path, file
                return
        finally:
            path.unlink(missing_ok=True)


def _lock(descriptor: int, wait: bool = False) -> bool:
    """Lock an open file until it is closed; false if another process has it, or without locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes of this machine left of one file in a folder, or of all."""
    if fcntl is None:
        return
    pattern = (
        rf"{'.+' if name is None else re.escape(name)}\.{_host()}\.[0-9a-f]{{{2 * _TOKEN}}}\.tmp"
    )
    for path in folder.glob("*.tmp"):
        if re.fullmatch(pattern, path.name) is None:
            continue
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # a link, another user's, or gone
            continue
        try:
            if _lock(descriptor):
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def check_writable(path: Path) -> None:
    """Raise OSError if the file could not be written; an existing file stays as it is."""
    target = _target(path)
    with _temporary(target, 0o600):
        pass
    remove_leftovers(target.parent, target.name)


def output(text: str) -> Path:
    """Return the path of a command's argument that names a file to write, tried at once."""
    path = Path(text)
    try:
        check_writable(path)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"cannot write {text}: {error.strerror or error}"
        ) from None
    return path


def write(path: Path, content: bytes | str) -> None:
    """Replace a file as a whole, with its mode; through a link, the file that it names.

    Raises OSError, and leaves the old file then.
    """
    target = _target(path)
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    with _temporary(target, 0o666 if mode is None else mode & 0o777 | 0o600) as (aside, file):
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
        if fcntl is None:  # Windows renames no open file
            file.close()
        elif mode not in (None, stat.S_IMODE(os.fstat(file.fileno()).st_mode)):
            os.fchmod(file.fileno(), mode)
        os.replace(aside, target)


def save(path: Path, state: Any) -> None:
    """Write a state of tensors and numbers as `write` does, with a checksum for `load`."""
    content = dumped(state)
    write(path, _HEAD + _checksum(content) + content)


def dumped(state: Any) -> bytes:
    """Return what `torch.save` writes for a state."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def loaded(content: bytes) -> Any:
    """Return the state of `dumped`, on the CPU: tensors, numbers and text, no code."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def load(path: Path, keys: Collection[str]) -> dict[str, Any]:
    """Return the dictionary that `save` wrote, on the CPU; it must have these keys.

    Raises ValueError, which says what the file is, for any other content: empty, cut off, changed,
    or somebody else's.
    """
    content = path.read_bytes()
    if not content:
        raise ValueError("it is empty")
    if not content.startswith(_HEAD):
        raise ValueError("it is no file that npu_kernels saved")
    checksum, content = content[len(_HEAD) : len(_HEAD) + _SIZE], content[len(_HEAD) + _SIZE :]
    if checksum != _checksum(content):
        raise ValueError("it is damaged: cut off or changed")
    try:
        state = loaded(content)
    except Exception:  # what other content makes torch.load raise depends on where it is wrong
        raise ValueError("it is damaged or no file that npu_kernels saved") from None
    missing = sorted(set(keys) - state.keys()) if isinstance(state, dict) else None
    if missing is None or missing:
        kind = (
            type(state).__name__ if missing is None else f"a dict without {', '.join(missing[:3])}"
        )
        raise ValueError(f"it holds something else: {kind}")
    entries: dict[str, Any] = state
    return entries


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SIZE).digest()
