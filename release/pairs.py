"""The releases of torch, and the Pythons, that a release's wheels hold the fast path for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

FILE = Path(__file__).with_name("pairs.txt")
FLAGS = "import sys, sysconfig; print(sys.implementation.cache_tag + sys.abiflags, sysconfig.get_path('include'))"


def by_torch() -> dict[str, list[str]]:
    """The versions of Python of every release of torch, as release/pairs.txt lists them."""
    rows = [
        line.split() for line in FILE.read_text().splitlines() if line and not line.startswith("#")
    ]
    return {torch: pythons for torch, *pythons in rows}


def of_the_release() -> list[str]:
    """torch:Python."""
    return [f"{torch}:{python}" for torch, pythons in by_torch().items() for python in pythons]


def interpreter(python: str) -> tuple[str, Path] | None:
    """The tag of its extensions, and the folder of its headers; None where this Python is not
    here."""
    command = shutil.which(f"python{python}")
    if command is None:
        return None
    asked = subprocess.run([command, "-c", FLAGS], capture_output=True, text=True)
    if (
        asked.returncode != 0
    ):  # pyenv has a command for every version, also for those that are not chosen
        return None
    tag, include = asked.stdout.split()
    return tag, Path(include)
