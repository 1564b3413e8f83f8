"""The demonstration: Kepler's law, the paper's arithmetic, the speed here, a table's equation.

``python -m benchmarks.demo`` takes a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.arguments import command, writable_folder
from benchmarks.demo import arithmetic, equation, kepler, speed

DEFAULT_FOLDER = Path("benchmarks/out")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command("benchmarks.demo", __doc__)
    add, folder = parser.add_argument, "for the picture, default %(default)s"
    add("--quick", action="store_true", help="short trainings and small sizes: does it run?")
    default = str(DEFAULT_FOLDER)
    add("--out", type=writable_folder, default=default, metavar="DIR", help=folder)
    add("--skip-compile", action="store_true", help="compare speeds without torch.compile")
    return parser.parse_args(argv)


def demonstrate(options: argparse.Namespace) -> None:
    """The four parts."""
    start = time.monotonic()
    threads = torch.get_num_threads()
    # Layers this small do not fill two cores, and a second thread only takes time from the first.
    torch.set_num_threads(1)
    try:
        kepler.run(steps=500 if options.quick else kepler.ADAM_STEPS)
        print()
        arithmetic.run(options.out, steps=500 if options.quick else arithmetic.simple.STEPS)
    finally:
        torch.set_num_threads(threads)
    print()
    speed.run(quick=options.quick, skip_compile=options.skip_compile)
    print()
    equation.run()
    print(f"\nDone in {time.monotonic() - start:.0f} s.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; return the exit status."""
    options = arguments(argv)
    try:
        demonstrate(options)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
