"""``python -m benchmarks.gpu [PART ...]``: results, speed and tuned tables on a machine with a GPU.

Needs Python with torch and triton: no network, no pip, no C++ library. Every part and every item of
it has its own limit of time; rows are written as they come; an item that fails does not stop the
next; the same command goes on where an earlier one ended.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import command, positive, seconds
from benchmarks.gpu import plan
from benchmarks.gpu.crew import ROOT, ROWS, SHORTEST, Crew, Record


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    listed = "; ".join(
        f"{name} ({part.seconds:.0f} s): {part.title}" for name, part in plan.PARTS.items()
    )
    parser = command("benchmarks.gpu", __doc__)
    add, parts = parser.add_argument, f"all, in this order, or some of: {listed}"
    add("parts", nargs="*", metavar="PART", help=parts)
    folder = (
        "the folder of rows, tables and the log (default build/gpu); the variable OUT names one "
        "that gets copies"
    )
    add("--out", type=Path, default=ROOT / "build" / "gpu", help=folder)
    add("--seconds", type=seconds, default=plan.COMMAND_SECONDS, help="for this command")
    add("--jobs", type=positive, help="worker processes at most, default all cores but two")
    add("--rehearse", action="store_true", help="tiny, on the CPU in Triton's interpreter")
    options = parser.parse_args(argv)
    unknown = [part for part in options.parts if part not in plan.PARTS]
    if unknown:
        parser.error(f"PART must be one of {', '.join(plan.PARTS)}, got {', '.join(unknown)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; return the exit status: 1 if an item failed or is left."""
    options = arguments(argv)
    begin = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {line}", flush=True)

    out = os.environ.get("OUT")
    record = Record(options.out, Path(out) if out else None)
    jobs = options.jobs or max(1, (os.cpu_count() or 1) - 2)
    results = []
    with Crew(record, options.rehearse, tell) as crew:
        for name in options.parts or plan.PARTS:
            part = (plan.REHEARSAL if options.rehearse else plan.PARTS)[name]
            limit = min(part.seconds, options.seconds - (time.monotonic() - begin))
            if limit < SHORTEST:
                tell(f"{name}: no time is left")
                results.append((name, (0, 0, len(part.items))))
                continue
            tell(f"{name}: {part.title}, at most {limit:.0f} s")
            # First launches and pytest leave settings behind that times depend on.
            keep = name not in ("smoke", "tests", "huge", "warm", "more")
            workers = min(jobs, part.jobs)
            counts = crew.run(name, part.items, workers, limit, part.item_seconds, keep)
            results.append((name, counts))
    tell("the end")
    for name, (done, failed, waiting) in results:
        print(f"  {name:<9} {done} done, {failed} failed, {waiting} left")
    advice = "the same command does what is left, and once more what failed once"
    print(f"  rows: {options.out / ROWS}; {advice}")
    return int(any(failed or waiting for _, (_, failed, waiting) in results))


if __name__ == "__main__":
    sys.exit(main())
