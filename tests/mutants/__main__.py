"""The command: see `tests.mutants`."""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from tests.mutants.cpp import CPP
from tests.mutants.mutant import Mutant
from tests.mutants.triton import TRITON
from tests.mutants.workplace import BrokenError, Workplace, isa_of
from tests.support.building import ROOT
from tests.support.machine import ISAS

MUTANTS = [*CPP, *TRITON]


def try_all(root: Path, folder: Path, mutants: list[Mutant], again: bool = False) -> int:
    """Try what has no result yet; 0 where a test notices every one."""
    for mutant in mutants:
        mutant.check(root)
    # One file after the other: a change then costs that file's compilation, and not that of the
    # one before too.
    mutants = sorted(mutants, key=lambda m: (m.language, m.isa, m.file, m.tests))
    place, file = Workplace(root, folder), folder / "results.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    keys = {_key(root, mutant): mutant for mutant in mutants}
    results = {row["key"]: row for row in rows if row["key"] in keys and not again}
    if results:
        print(f"{len(results)} of {len(mutants)} were tried before")
    if len(results) < len(keys):
        place.synchronise()
    for key, mutant in keys.items():
        if key in results:
            continue
        begin = time.monotonic()
        try:
            by = place.noticed_by(mutant)
            verdict = "killed" if by else "survived"
        except BrokenError as error:
            verdict, by = "broken", str(error)
        results[key] = {"key": key, "name": mutant.name, "verdict": verdict, "by": by}
        if verdict != "broken":
            with file.open("a") as out:
                out.write(json.dumps(results[key]) + "\n")
        took = f"{time.monotonic() - begin:.1f} s"
        print(
            f"{len(results)}/{len(keys)}  {verdict:<8}  {mutant.name}  ({took}; {by})", flush=True
        )
    counts = Counter(row["verdict"] for row in results.values())
    print("\n" + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    for row in results.values():
        if row["verdict"] != "killed":
            print(f"{row['verdict']}: {row['name']} {row['by']}".rstrip())
    return 0 if counts.keys() <= {"killed"} else 1


def _key(root: Path, mutant: Mutant) -> str:
    """What a result belongs to: the mutant, its file and the files of its tests."""
    digest = hashlib.blake2b(repr(mutant).encode(), digest_size=12)
    words = [word.partition("::")[0] for test in mutant.tests for word in test.split()]
    for name in sorted({mutant.file, *(word for word in words if word.startswith("tests/"))}):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """Try them; 0 where a test notices every one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Wrong changes that a test must notice."
    )
    parser.add_argument("--language", choices=("cpp", "triton"))
    only = "those whose name contains this, also if they were tried before"
    parser.add_argument("--only", metavar="NAME", help=only)
    parser.add_argument("--again", action="store_true", help="also those that were tried before")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build/mutants", help="of the copy and the results"
    )
    options = parser.parse_args(arguments)
    chosen = [
        mutant
        for mutant in MUTANTS
        if options.language in (None, mutant.language) and (options.only or "") in mutant.name
        # AMX's instructions are emulated where there are none.
        if mutant.language != "cpp" or isa_of(mutant) in (*ISAS, "amx")
    ]
    if not chosen:
        parser.error(f"no mutant's name contains {options.only!r}")
    # A time limit (`timeout`) ends it as Ctrl-C does: the tests at work end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return try_all(ROOT, options.folder, chosen, options.again or options.only is not None)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here")
        return 130


if __name__ == "__main__":
    sys.exit(main())
