"""``python -m benchmarks.gpu [PART ...]``: right results, and then speed, on a machine with a GPU.

Needs Python with torch and triton: no network, no pip, no C++ library. Two commands do the parts
until "huge", a quarter of an hour with the starts of a rented machine. Every part and every item of
it has its own limit of time; rows are written as they come; an item that fails does not stop the
next; the same command goes on where an earlier one ended, on another machine too if it has the
folder of rows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.arguments import command, positive, seconds

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
ROWS, LOG, MACHINE = "rows.jsonl", "log.txt", "machine.json"
PROGRAM = ("-m", "benchmarks.gpu.work")
FIRST_SECONDS, NEXT_SECONDS = 350.0, 430.0  # of a command: without earlier rows, and with them
SHORTEST = 5.0  # seconds: with less left no item is begun
MAX_FAILURES = 2  # of an item, which would cost others their time


class Part(NamedTuple):
    """Items in their order, or at once in several `jobs`. The limits are seconds."""

    title: str
    seconds: float  # for the part
    item_seconds: float  # for one of its items
    items: tuple[str, ...]
    jobs: int = 1  # processes at most


# ---- the plan ------------------------------------------------------------------------------------
# An item's first word names its function in `benchmarks.gpu.work`. The others are a layer, sizes
# BxIxO or BxIxOxK, and what is not as usual: a dtype, a precision, a shared x, or what has a name.

SMALL, MEDIUM, LARGE = "100x6x2", "100x100x100", "1024x192x192"
# First those of the kernels on planes, in each of their forms.
LAUNCHES = (
    "npu 1024x512x512", "npu 1024x512x512 high", "npu 300x513x521",
    "npu 1024x512x512 without=gate", "npu 300x512x480x3 shared", "npu 300x512x480x3 high",
    "npu 1024x512x512 bfloat16", "npu 128x100x100x10", f"npu {SMALL}", f"npu {LARGE}",
    "npu 300x176x176 graph", f"npu {MEDIUM}", f"npu {SMALL}x1000", f"npu {LARGE} high",
    f"npu {LARGE} medium", f"nmu {SMALL}", f"inalu {SMALL}", f"nalu {SMALL}", f"nmru {SMALL}",
    "ode 20x3x9", f"nmu {MEDIUM}", f"inalu {MEDIUM}", f"nalu {MEDIUM}", f"nmru {MEDIUM}",
    f"npu {SMALL} without=weight_im", f"npu {SMALL} without=gate", f"npu {LARGE} without=weight_im",
    f"npu {LARGE} without=gate", f"npu {SMALL}x20 shared", "npu 64x40x30x5 shared",
    "npu 256x101x3", "npu 1023x193x195", f"inalu {LARGE}", f"inalu {LARGE} high", f"nalu {LARGE}",
    f"npu {SMALL} float64", f"npu {MEDIUM} float64", f"inalu {SMALL} float64",
    f"nmu {SMALL} float64", f"npu {SMALL} bfloat16", f"npu {LARGE} bfloat16",
    f"npu {SMALL} float16", "ode 20x3x9 float64",
)  # fmt: skip
# Some 30 GiB each: one after the other, or a GPU of 80 GB has no room for them.
HUGE = "more_than_2_31"
# Files of tests and into how many items they are cut.
FIRST_TESTS = {"test_large.py": 4, "test_half.py": 2, "test_training.py": 3, "test_gpu.py": 4}
MORE_TESTS = {
    "test_kernels.py": 6, "test_special_values.py": 1, "test_precision.py": 2, "test_ode.py": 2,
    "test_tuning.py": 1,
}  # fmt: skip
# First those whose kernels have changed since they were measured.
CASES = (
    "4096x256x256", f"{SMALL}x1000", "128x100x100x100", "4096x512x512", "65536x512x512",
    "16384x1024x1024", SMALL, "65536x512x512 high", "16384x1024x1024 high",
)  # fmt: skip
# The package is always timed. Compilers are slow: what they make is timed in a part of its own.
GRAPHS, COMPILED = "eager,graph,eager-graph,linear,linear-graph", "compile,compile-graph"
COMPILE = tuple(f"npu {case} rivals=eager,{COMPILED},hand-written" for case in CASES)
# What must gain: the kernels of other layers over compiled code, the tape over Triton's launches.
OTHER_LAYERS = tuple(
    f"{layer} {size} rivals=eager,{COMPILED}"
    for size in ("128x100x100", "4096x256x256") for layer in ("nmu", "nalu", "inalu", "nmru")
)  # fmt: skip
# Large layers by other tiles than the shipped ones.
TILES = (
    "4096x256x256", "128x100x100x100", "4096x512x512", "65536x512x512", "65536x512x512 high",
    "4096x512x512 high",
)  # fmt: skip
# Layers by the one-pass kernels and by those on planes, among them sizes around the threshold.
CROSSOVER = (
    "4096x256x256", "128x100x100x100", "4096x512x512", "4096x192x192", "4096x128x128", "4096x64x64",
    "128x100x100x20", "4096x256x256 high", "16384x1024x1024", "65536x512x512",
    "65536x512x512 high", "4096x2048x2048",
)  # fmt: skip
# Rollouts of a neural ODE: steps x D x h x K.
LOOPS = (
    "training 100x2x4 optimizer=named", "training 100x2x4x1000 optimizer=named",
    "training 1024x64x64 optimizer=named", "training 100x2x4 optimizer=fused-decay",
    "rollout 200x3x9", "rollout 200x3x9x100", "training 100x2x4", "training 100x2x4x1000",
)  # fmt: skip


def _shards(files: dict[str, int], more: str = "") -> tuple[str, ...]:
    return tuple(f"{file} {n}/{count}{more}" for file, count in files.items() for n in range(count))


def _each(word: str, items: Sequence[str], more: str = "") -> tuple[str, ...]:
    return tuple(f"{word} {item}{more}" for item in items)


ENV = Part("versions, the GPU, what runs on it", 30, 30, ("env",))  # before each command's parts
# Right results first; then the times that count, in the order in which they decide something.
PARTS = {
    "smoke": Part("first launch of every kernel, its error against float64", 90, 60,
                  _each("smoke", LAUNCHES), 14),
    "check": Part("pytest -m gpu, code of torch.compile", 230, 220, (
        *_each("tests", _shards(FIRST_TESTS, f" without={HUGE}")),
        *_each("warm tiles npu", TILES),
        *_each("warm", (*COMPILE, *OTHER_LAYERS)),
    ), 14),
    "bench": Part("the main sizes against eager, and in CUDA graphs", 55, 40,
                  _each("bench npu", CASES, f" rivals={GRAPHS}")),
    "tiles": Part("large layers by other tiles", 30, 20, _each("tiles npu", TILES)),
    "loops": Part("trainings in CUDA graphs, rollouts beside torchdiffeq", 80, 40, LOOPS),
    "compile": Part("the main sizes against compiled code", 70, 60, _each("bench", COMPILE)),
    "gains": Part("launches with the tape, other layers against compiled code", 55, 40, (
        *_each("compare npu", (SMALL, "4096x256x256", f"{SMALL}x1000"), " of=tape"),
        *_each("bench", OTHER_LAYERS),
    )),
    "crossover": Part("one-pass kernels and planes, in graphs and without", 60, 50,
                      _each("compare npu", CROSSOVER, " of=planes")),
    "huge": Part("pytest -m gpu, tensors of more than 2^31 elements", 80, 75,
                 (f"tests test_gpu.py 0/1 only={HUGE}",)),
    "more": Part("pytest -m gpu, the other tests", 150, 140,
                 _each("tests", _shards(MORE_TESTS)), 12),
    "autotune": Part("the main sizes against torch.compile's max-autotune", 280, 95,
                     _each("bench npu", CASES, " rivals=compile-autotune")),
}  # fmt: skip
FIRST, NEXT = tuple(PARTS)[:2], tuple(PARTS)[2:9]  # of the two commands
# Each kind of item on the CPU, in Triton's interpreter, by few processes: whether all of it runs.
REHEARSED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(PARTS, ()),
    "smoke": ("smoke nmu 5x3x2x2 shared", "smoke ode 3x2x2", "smoke npu 3x17x18 graph"),
    "check": (
        f"tests test_tuning.py 0/40 without={HUGE}", *PARTS["huge"].items,
        "warm npu 2x3x2 rivals=eager",
    ),
    "bench": (
        "bench npu 2x3x2 rivals=eager,graph,linear", "bench npu 2x3x2 high rivals=eager",
        "tiles npu 3x20x17", "training 5x2x4", "rollout 3x2x2", "compare npu 2x3x2 of=tape",
        "bench nmu 2x3x2 rivals=eager", "compare npu 3x20x17 of=planes",
    ),
}  # fmt: skip


# ---- the processes -------------------------------------------------------------------------------


class Run:
    """A command: the folder of its rows, and the processes that write them."""

    def __init__(self, out: Path, rehearsal: bool) -> None:
        self.out, self.rehearsal, self.machine = out, rehearsal, Row()
        out.mkdir(parents=True, exist_ok=True)

    def begin(self) -> bool:
        """Whether the device works here: then its facts are known, by which rows are chosen."""
        (self.out / MACHINE).unlink(missing_ok=True)
        self._run("env", ENV, [ENV.items], time.monotonic() + ENV.seconds)
        if (self.out / MACHINE).exists():
            self.machine = json.loads((self.out / MACHINE).read_text())
        return bool(self.machine)

    def rows(self) -> list[Row]:
        """The rows of such a device, these versions and these sources."""
        path, rows = self.out / ROWS, []
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(json.JSONDecodeError):  # cut off by a kill
                rows.append(json.loads(line))
        return [row for row in rows if self.machine.items() <= row.items()]

    def part(self, name: str, part: Part, jobs: int, limit: float) -> tuple[int, int, int]:
        """(done, failed, left) of a part's items that are not done yet.

        An item that has failed before comes late, and no more after MAX_FAILURES times. An item
        that the part's end cuts off is left. Compiled code is made anew, on another machine too.
        """
        deadline, before = time.monotonic() + limit, [r for r in self.rows() if "end" in r]
        done = {row["item"] for row in before if not row["end"]}
        failed = Counter(row["item"] for row in before if row["end"] and not row.get("cut_off"))
        missing = [item for item in part.items if item not in done or item.startswith("warm")]
        waiting = sorted((i for i in missing if failed[i] < MAX_FAILURES), key=lambda i: failed[i])
        count = Counter(failed=len(missing) - len(waiting))
        while waiting and deadline - time.monotonic() > SHORTEST:
            ended = self._round(name, part, waiting, jobs, deadline)
            waiting = [item for item in waiting if ended.get(item, "left") == "left"]
            count.update(ended.values())
            if not ended:
                print(f"{name}: no process starts, see {LOG}", flush=True)
                break
        return count["done"], count["failed"], len(waiting)

    def _round(
        self, name: str, part: Part, items: Sequence[str], jobs: int, deadline: float
    ) -> dict[str, str]:
        """Share items among processes: those that ended, done or failed, or are left.

        A process that an item takes along, or that takes too long for one, leaves its other items
        to the next round.
        """
        earlier, shares = len(self.rows()), [items[job::jobs] for job in range(jobs)]
        self._run(name, part, [share for share in shares if share], deadline)
        late, rows = time.monotonic() >= deadline, self.rows()[earlier:]
        ended = {row["item"]: "failed" if row["end"] else "done" for row in rows if "end" in row}
        why = "cut off by the part's end" if late else f"too long, or its process died: see {LOG}"
        for item in [row["item"] for row in rows if "begin" in row and row["item"] not in ended]:
            row = {"part": name, "item": item, **self.machine, "end": why, "cut_off": late}
            with open(self.out / ROWS, "a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{item}: {why}", flush=True)
            ended[item] = "left" if late else "failed"
        return ended

    def _run(self, name: str, part: Part, shares: Sequence[Sequence[str]], deadline: float) -> None:
        """A process for each share of the items, until it ends or the time is over."""
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths)}
        environment |= {"TRITON_INTERPRET": "1"} if self.rehearsal else {}
        environment.setdefault("OMP_NUM_THREADS", "4")
        words = ["--out", str(self.out), "--part", name, "--seconds", str(part.item_seconds)]
        program = [sys.executable, *PROGRAM, *words, *["--rehearse"][: self.rehearsal]]
        with open(self.out / LOG, "a") as log:
            settings: Any = {"stderr": log, "cwd": ROOT, "env": environment}
            processes = [
                subprocess.Popen([*program, *share], start_new_session=True, **settings)
                for share in shares
            ]
        try:
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):  # also those that it has started
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


# ---- the command ---------------------------------------------------------------------------------


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    listed = "; ".join(
        f"{name} ({part.seconds:.0f} s): {part.title}" for name, part in PARTS.items()
    )
    parser = command("benchmarks.gpu", __doc__)
    add, parts = parser.add_argument, f"all, in this order, or some of: {listed}"
    add("parts", nargs="*", metavar="PART", help=parts)
    folder = "of rows and the log (default build/gpu); $OUT names one that gets copies"
    add("--out", type=Path, default=ROOT / "build" / "gpu", help=folder)
    limit = f"default {FIRST_SECONDS:.0f}, and {NEXT_SECONDS:.0f} where there are rows already"
    add("--seconds", type=seconds, help=f"for this command; {limit}")
    add("--jobs", type=positive, help="processes at most, default all cores but two")
    add("--rehearse", action="store_true", help="tiny, on the CPU in Triton's interpreter")
    options = parser.parse_args(argv)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"PART must be one of {', '.join(PARTS)}, got {', '.join(unknown)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; return the exit status: 1 if an item failed or is left."""
    options, begin = arguments(argv), time.monotonic()
    limit = NEXT_SECONDS if (options.out / ROWS).exists() else FIRST_SECONDS
    limit = options.seconds or limit
    run, lines, bad = Run(options.out, options.rehearse), [], False
    if not run.begin():
        print(f"the device cannot be used, see {options.out / LOG}")
        return 1
    for name in options.parts or PARTS:
        part, start = PARTS[name], time.monotonic()
        if options.rehearse:
            part = part._replace(seconds=120, item_seconds=90, items=REHEARSED[name])
        of_part = min(part.seconds, limit - (start - begin))
        print(f"{start - begin:5.0f} s  {name}: {part.title}, at most {of_part:.0f} s", flush=True)
        jobs = min(part.jobs, options.jobs or max(1, (os.cpu_count() or 1) - 2))
        done, failed, waiting = run.part(name, part, jobs, of_part)
        bad = bad or bool(failed or waiting)
        duration = time.monotonic() - start
        lines.append(f"{name:<9} {duration:4.0f} s: {done} done, {failed} failed, {waiting} left")
        if copies := os.environ.get("OUT"):
            shutil.copytree(options.out, copies, dirs_exist_ok=True)
    print("  " + "\n  ".join(lines))
    advice = "the same command does what is left, and once more what failed once"
    print(f"  rows: {options.out / ROWS}; {advice}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
