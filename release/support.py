"""Makes the table of docs/install.md: what was run, what was only built, and what neither.

    python release/support.py [--wheel dist/npu_kernels-*.whl]

It reads release/runs.jsonl, which check_install.py writes, release/built.txt, the fast paths in the wheel last named
here, and release/pairs.txt, what a release's wheel is to hold.
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RELEASE = ROOT / "release"
PAGE = ROOT / "docs" / "install.md"
BEGIN, END = "<!-- support:begin -->\n", "<!-- support:end -->\n"
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
LEGEND = """
The wheel for Linux, x86-64, by releases of torch and versions of Python: **run**, installed and tested with its fast
path; *built*, the fast path was compiled and not run; "listed", for the next wheel, not compiled yet; "-", torch does
not support it.
"""


def fast_paths(wheel: Path) -> list[str]:
    """torch:Python of every fast path in a wheel."""
    names = " ".join(zipfile.ZipFile(wheel).namelist())
    return [f"{torch}:3.{minor}" for torch, minor in re.findall(r"direct-torch([^ ]+)-cpython-3(\d+)\.so", names)]


def table(runs: list[dict], pairs: dict[str, list[str]], built: list[str]) -> str:
    """The text between the markers.

    runs: rows of check_install.py. pairs: Pythons of each release of torch. built: as `fast_paths` has it.
    """
    # With a wheel: a build from source on the machine that it is tested on says nothing about others.
    ran = {
        (str(run["torch"]).partition("+")[0], run["python"])
        for run in runs
        if run["fast path"] and "manylinux" in run["wheel"]
    }
    lines = [LEGEND, "| torch | " + " | ".join(PYTHONS) + " |", "| --- |" + " --- |" * len(PYTHONS)]
    for torch, pythons in pairs.items():
        states = [
            "**run**" if (torch, python) in ran
            else "*built*" if f"{torch}:{python}" in built
            else "listed" if python in pythons
            else "-"
            for python in PYTHONS
        ]  # fmt: skip
        lines.append(f"| {torch} | " + " | ".join(states) + " |")
    how = sorted({f"{run['wheel']} on {run['system']}, {run['libc']}, torch {run['torch']}" for run in runs})
    return "\n".join([*lines, "", "The runs:", "", *(f"- {row}" for row in how), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path)
    arguments = parser.parse_args()
    if arguments.wheel:
        (RELEASE / "built.txt").write_text("\n".join(sorted(fast_paths(arguments.wheel))) + "\n")
    runs = [json.loads(line) for line in (RELEASE / "runs.jsonl").read_text().splitlines()]
    rows = [line.split() for line in (RELEASE / "pairs.txt").read_text().splitlines() if not line.startswith("#")]
    built = (RELEASE / "built.txt").read_text().split()
    head, rest = PAGE.read_text().split(BEGIN)
    _, tail = rest.split(END)
    PAGE.write_text(head + BEGIN + table(runs, {row[0]: row[1:] for row in rows}, built) + END + tail)


if __name__ == "__main__":
    main()
