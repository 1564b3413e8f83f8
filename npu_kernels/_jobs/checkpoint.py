"""The file from which long work continues after an interruption."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Protocol

from npu_kernels._common.notices import warn
from npu_kernels._jobs import files, saved

FIRST_SECONDS, CHECKPOINT_SECONDS = 3.0, 30.0  # until the first saving, and between two


class Resumable(Protocol):
    """Work that can be saved: its state is a dict of tensors and numbers, with its fingerprint."""

    function: str  # what the user has called

    @property
    def fingerprint(self) -> dict[str, str]:
        """Return the facts that decide the work's numbers, as they were before the first step."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state, all of which is checked before anything changes.

        ValueError, which says what differs, for a wrong state or one of other work.
        """


class Checkpoint:
    """The file of some work, checked before the work begins.

    If the file exists, the work continues from it.

    Raises TypeError if it is no path, or for a state that it cannot hold, OSError if it cannot be
    written, ValueError if it is damaged or of other work.
    """

    def __init__(self, job: Resumable, path: str | os.PathLike[str]) -> None:
        function = job.function
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{function}: checkpoint must be a path, got {type(path).__name__}")
        self.work, self.path, self._saved = job, Path(path), time.monotonic()
        self._seconds = FIRST_SECONDS  # until the next saving
        try:
            files.check_writable(self.path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            rule = "checkpoint must be a file that can be written"
            raise _kind(error)(f"{function}: {rule}, got {str(path)!r}: {reason}") from None
        try:
            # What cannot be saved fails before any step; later settings are not in the fingerprint.
            saved.plain(job.state(), "state")
        except TypeError as error:
            raise TypeError(f"{function}: {error}") from None
        if self.path.exists():
            try:
                job.restore(files.load(self.path, ["fingerprint"]))
            except (OSError, ValueError) as error:
                raise self.refused(error) from None

    def refused(self, error: OSError | ValueError) -> Exception:
        """Return the error for a file that cannot be read or belongs to other work."""
        function = self.work.function
        rule = f"checkpoint must be a new file or one of this same {function}"
        return _kind(error)(f"{function}: {rule}, got {str(self.path)!r}: {error}")

    def keep(self) -> None:
        """Save the work if it was last saved long ago."""
        if time.monotonic() - self._saved > min(self._seconds, CHECKPOINT_SECONDS):
            self.save()

    def save(self) -> None:
        """Save the work; where this fails, warn, keep the former file and let the work go on."""
        self._saved, self._seconds = time.monotonic(), CHECKPOINT_SECONDS
        try:
            files.save(self.path, saved.plain(self.work.state(), "state"))
        except (OSError, TypeError) as error:  # the disk is full or gone; a new kind of value
            warn(
                f"{self.work.function}: checkpoint {str(self.path)!r} could not be written "
                f"({getattr(error, 'strerror', None) or error}); "
                f"the {self.work.function} goes on without",
                RuntimeWarning,
            )


def _kind(error: OSError | ValueError) -> type[Exception]:
    """Return the class to raise instead: ValueErrors of Unicode take more than a message."""
    return type(error) if isinstance(error, OSError) else ValueError
