"""Installs a wheel or an sdist as a user would, into an empty environment, and checks what is there
then.

    python -m release.try_install dist/npu_kernels-*.whl --pairs 2.10.0:python3.10 --fast-path
    python -m release.try_install dist/npu_kernels-*.tar.gz --pairs 2.13.0:python3.12
    python -m release.try_install dist/npu_kernels-*_x86_64.whl --fast-path --row release/runs.jsonl

Without --pairs: every pair in release/pairs.txt whose Python is here. Pairs that the file of rows
has for this very wheel are left out, so an interrupted run goes on where it stopped. The
environment gets torch, then the file by `pip install`, in pip's isolated build where it is an
sdist. What runs then is release/check_install.py, which gets the further arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from release.pairs import interpreter, of_the_release

CHECK = Path(__file__).resolve().with_name("check_install.py")


@contextlib.contextmanager
def in_a_new_environment(python: str, torch: str) -> Iterator[Callable[..., None]]:
    """Gives a function that calls the Python of a new environment, which has torch and nothing
    else. It raises subprocess.CalledProcessError where a call fails."""
    environment = {**os.environ, "PYTHONPATH": "", "NPU_KERNELS_BUILD": ""}
    with tempfile.TemporaryDirectory() as folder:

        def run(*command: object) -> None:
            print("+", *command, flush=True)
            subprocess.run([str(word) for word in command], check=True, cwd=folder, env=environment)

        run(python, "-m", "venv", "environment")
        call = functools.partial(run, Path(folder) / "environment" / "bin" / "python")
        call("-m", "pip", "install", "-q", f"torch=={torch}")
        yield call


def try_install(file: Path, torch: str, python: str, arguments: list[str]) -> None:
    """Raises subprocess.CalledProcessError where a step fails. python: the interpreter of the new
    environment."""
    with in_a_new_environment(python, torch) as call:
        call("-m", "pip", "install", "-v" if file.suffix == ".gz" else "-q", file)
        call(CHECK, *arguments)


def tried(rows: Path | None, sha256: str) -> set[tuple[str, str]]:
    """torch and Python of the rows about this wheel."""
    lines = rows.read_text().splitlines() if rows and rows.exists() else []
    found = [row for row in map(json.loads, lines) if row.get("sha256") == sha256]
    return {(row["torch"].partition("+")[0], row["python"]) for row in found}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m release.try_install",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--pairs", nargs="+", metavar="TORCH:PYTHON", help="releases of torch and interpreters"
    )
    parser.add_argument(
        "--row", type=Path, help="where to append what was run; see release/check_install.py"
    )
    arguments, rest = parser.parse_known_args()
    file = arguments.file.resolve(strict=True)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    if arguments.row:
        rest += ["--row", str(arguments.row.resolve()), "--sha256", sha256]
    wanted = arguments.pairs
    if wanted is None:
        done = tried(arguments.row, sha256)
        left = [pair for pair in of_the_release() if tuple(pair.split(":")) not in done]
        wanted = [pair.replace(":", ":python") for pair in left if interpreter(pair.split(":")[1])]
    failed = []
    for number, pair in enumerate(wanted, 1):
        torch, _, python = pair.partition(":")
        print(f"{number} of {len(wanted)}: torch {torch}, {python}", flush=True)
        try:
            try_install(file, torch, shutil.which(python) or python, rest)
        except (subprocess.CalledProcessError, OSError) as error:
            print(error, file=sys.stderr, flush=True)
            failed.append(pair)
    if failed:
        sys.exit(f"release.try_install: failed with {', '.join(failed)}")
    print(f"{file.name}: {len(wanted)} installed and checked")


if __name__ == "__main__":
    main()
