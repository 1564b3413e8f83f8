"""Makes the table of docs/install.md: what was run, what was only built, and what neither.

    python -m release.support [--wheels dist/npu_kernels-*.whl]

It reads release/runs.jsonl, which check_install.py writes, release/built.txt, the fast paths in the
wheels last named here, and release/pairs.txt, what a release's wheels are to hold.
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from release.pairs import by_torch

ROOT = Path(__file__).resolve().parents[1]
RELEASE = ROOT / "release"
PAGE = ROOT / "docs" / "install.md"
BEGIN, END = "<!-- support:begin -->\n", "<!-- support:end -->\n"
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
PROCESSORS = {"x86_64": "x86-64", "aarch64": "arm64"}
LEGEND = """
The wheels for Linux, by releases of torch and versions of Python: **run**, installed and tested with its fast path;
*emulated*, the same, in an emulator of the processor; *built*, the fast path was compiled and not run; "listed", for
the next wheel, not compiled yet; "-", torch does not support it.
"""


def fast_paths(wheel: Path) -> list[str]:
    """processor torch:Python of every fast path in a wheel."""
    names = " ".join(zipfile.ZipFile(wheel).namelist())
    (processor,) = (name for name in PROCESSORS if wheel.stem.endswith(name))
    found = re.findall(r"fast_path-torch([^ ]+)-cpython-3(\d+)\.so", names)
    return [f"{processor} {torch}:3.{minor}" for torch, minor in found]


def table(
    processor: str, runs: list[dict[str, Any]], pairs: dict[str, list[str]], built: list[str]
) -> list[str]:
    """Lines for one processor.

    runs: rows of check_install.py. pairs: Pythons of each release of torch. built: as `fast_paths`
    has it.
    """
    # With a wheel: a build from source on the machine that it is tested on says nothing about
    # others.
    ran = {
        (str(run["torch"]).partition("+")[0], run["python"]): "*emulated*"
        if run.get("emulated")
        else "**run**"
        for run in runs
        if run["fast path"] and "manylinux" in run["wheel"] and run["wheel"].endswith(processor)
    }
    head = f"| torch, {PROCESSORS[processor]} | " + " | ".join(PYTHONS) + " |"
    lines = [head, "| --- |" + " --- |" * len(PYTHONS)]
    for torch, pythons in pairs.items():
        states = [
            ran.get((torch, python))
            or (
                "*built*"
                if f"{processor} {torch}:{python}" in built
                else "listed"
                if python in pythons
                else "-"
            )
            for python in PYTHONS
        ]
        lines.append(f"| {torch} | " + " | ".join(states) + " |")
    return lines


def section(runs: list[dict[str, Any]], pairs: dict[str, list[str]], built: list[str]) -> str:
    """The text between the markers."""
    tables = [
        line for processor in PROCESSORS for line in (*table(processor, runs, pairs, built), "")
    ]
    how = sorted(
        f"{run['wheel']} on {run['system']}, {run['libc']}, torch {run['torch']}, Python {run['python']}, "
        f"{'with' if run['fast path'] else 'without'} the fast path{', emulated' if run.get('emulated') else ''}"
        for run in runs
    )
    return "\n".join(
        [LEGEND, *tables, "The runs:", "", *(f"- {row}" for row in dict.fromkeys(how)), ""]
    )


def current() -> str:
    """The text between the markers, from the files of this folder."""
    runs = [json.loads(line) for line in (RELEASE / "runs.jsonl").read_text().splitlines()]
    built = (RELEASE / "built.txt").read_text().splitlines()
    return section(runs, by_torch(), built)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m release.support",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--wheels", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.wheels:
        found = sorted(path for wheel in arguments.wheels for path in fast_paths(wheel))
        (RELEASE / "built.txt").write_text("\n".join(found) + "\n")
    head, rest = PAGE.read_text().split(BEGIN)
    _, tail = rest.split(END)
    PAGE.write_text(head + BEGIN + current() + END + tail)


if __name__ == "__main__":
    main()
