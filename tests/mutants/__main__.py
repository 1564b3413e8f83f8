"""The command: see `tests.mutants`."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.mutants.cpp import CPP
from tests.mutants.session import Session
from tests.mutants.triton import TRITON
from tests.support.building import ROOT

MUTANTS = [*CPP, *TRITON]


def main(arguments: list[str] | None = None) -> int:
    """Try them; 0 where a test notices every one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Wrong changes that a test must notice."
    )
    parser.add_argument("--language", choices=("cpp", "triton"))
    parser.add_argument(
        "--only",
        metavar="NAME",
        help="those whose name contains this, also if they were tried before",
    )
    parser.add_argument("--again", action="store_true", help="also those that were tried before")
    parser.add_argument(
        "--summary", action="store_true", help="try nothing; print what was tried and what is left"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "mutants",
        help="of the copy and the results",
    )
    options = parser.parse_args(arguments)
    chosen = [
        mutant
        for mutant in MUTANTS
        if (options.language in (None, mutant.language)) and (options.only or "") in mutant.name
    ]
    if not chosen:
        parser.error(f"no mutant's name contains {options.only!r}")
    session = Session(ROOT, options.folder, chosen)
    if options.summary:
        return session.summary()
    # A time limit (`timeout`) ends it as Ctrl-C does: the tests at work end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return session.run(again=options.again or options.only is not None)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here")
        return 130


if __name__ == "__main__":
    sys.exit(main())
