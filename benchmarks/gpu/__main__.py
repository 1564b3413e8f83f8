"""``python -m benchmarks.gpu [PART ...]``: results, speed and tuned tables on a machine with a GPU.

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
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.arguments import command, positive, seconds

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
ROWS, LOG = "rows.jsonl", "log.txt"
PROGRAM = ("-m", "benchmarks.gpu.work")
FIRST_SECONDS, NEXT_SECONDS = 430.0, 350.0  # of a command: without earlier rows, and with them
START_SECONDS = 120.0  # for a worker to import torch and to find the device
SHORTEST = 5.0  # seconds: with less left no item is begun
MOST_FAILURES = 2  # of an item, which would cost others their time
# What is true of one machine, or is kept there: each command does it.
OF_MACHINE = ("env", "warm")


class Part(NamedTuple):
    """Items in their order, or at once with several `jobs`. The limits are seconds."""

    title: str
    seconds: float  # for the part
    item_seconds: float  # for one of its items
    items: tuple[str, ...]
    jobs: int = 1  # worker processes at most


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
# Large layers by other tiles than the shipped ones.
TILES = ("4096x256x256", "128x100x100x100", "4096x512x512", "65536x512x512", "65536x512x512 high",
         "4096x512x512 high")  # fmt: skip
TILED = ("npu_forward", "npu_backward_x", "npu_backward_w")
TUNED = tuple(
    f"{kernel} {size}"
    for kernels, size in (
        (TILED, "128x100x100x100"), (TILED, "128+4096x100x100"), (TILED, "4096x192x192"),
        (("npu_small_forward", "npu_small_backward"), f"{SMALL}x1000"),
        (("npu_small_forward", "npu_small_backward"), SMALL), (TILED, "4096x192x192 high"),
        (("nalu_forward", "nalu_backward_x", "nalu_backward_w"), "128+4096x100x100"),
        (("nmu_forward", "nmu_backward"), "128+4096x100x100"),
    )
    for kernel in kernels
)  # fmt: skip


def _shards(files: dict[str, int], more: str = "") -> tuple[str, ...]:
    return tuple(f"{file} {n}/{count}{more}" for file, count in files.items() for n in range(count))


def _each(word: str, items: Sequence[str], more: str = "") -> tuple[str, ...]:
    return tuple(f"{word} {item}{more}" for item in items)


QUESTIONS = ("graphs", "wrapped", "flagged", "alive")
TIMED_QUESTIONS = ("host", "rows")
# Right results first; then the times that count, in the order in which they decide something.
PARTS = {
    "env": Part("versions, the GPU, what runs on it", 30, 30, ("env",)),
    "smoke": Part("first launch of every kernel, its error against float64", 90, 60,
                  _each("smoke", LAUNCHES), 14),
    "check": Part("questions, pytest -m gpu, memory, code of torch.compile", 230, 220, (
        *_each("decide", QUESTIONS),
        *_each("tests", _shards(FIRST_TESTS, f" without={HUGE}")),
        *_each("memcheck", ("npu 256x512x512", f"npu {SMALL}")),
        *_each("warm tiles npu", TILES),
        *_each("warm", (*COMPILE, *OTHER_LAYERS)),
    ), 14),
    "decide": Part("questions about times", 40, 35, _each("decide", TIMED_QUESTIONS)),
    "tiles": Part("large layers by other tiles", 30, 20, _each("tiles npu", TILES)),
    "bench": Part("the main sizes against eager, and in CUDA graphs", 45, 40,
                  _each("bench npu", CASES, f" rivals={GRAPHS}")),
    "loops": Part("trainings in CUDA graphs, rollouts beside torchdiffeq", 70, 40, LOOPS),
    "compile": Part("the main sizes against compiled code", 60, 60, _each("bench", COMPILE)),
    "gains": Part("launches with the tape, other layers against compiled code", 45, 40, (
        *_each("compare npu", (SMALL, "4096x256x256", f"{SMALL}x1000"), " of=tape"),
        *_each("bench", OTHER_LAYERS),
    )),
    "crossover": Part("one-pass kernels and planes, in graphs and without", 55, 50,
                      _each("compare npu", CROSSOVER, " of=planes")),
    "huge": Part("pytest -m gpu, tensors of more than 2^31 elements", 75, 75,
                 (f"tests test_gpu.py 0/1 only={HUGE}",)),
    "more": Part("pytest -m gpu, the other tests", 150, 140,
                 _each("tests", _shards(MORE_TESTS)), 12),
    "tune": Part("the fastest configuration of each kernel, by priority", 150, 60,
                 _each("tune", TUNED)),
    "rebench": Part("the main sizes with the tuned tables", 60, 60,
                    _each("bench npu", CASES, " rivals=eager,graph table=tuned")),
    "autotune": Part("the main sizes against torch.compile's max-autotune", 280, 95,
                     _each("bench npu", CASES, " rivals=compile-autotune table=tuned")),
}  # fmt: skip
FIRST, NEXT = tuple(PARTS)[:5], tuple(PARTS)[5:11]  # of the two commands
# The same on the CPU, in Triton's interpreter: whether all of it runs.
REHEARSED = {
    "env": ("env",),
    "smoke": ("smoke nmu 5x3x2x2 shared", "smoke ode 3x2x2", "smoke npu 3x17x18 graph"),
    "check": (*_each("decide", QUESTIONS), f"tests test_tuning.py 0/40 without={HUGE}",
              "memcheck npu 3x2x2", "warm npu 2x3x2 rivals=eager"),
    "decide": _each("decide", TIMED_QUESTIONS),
    "tiles": ("tiles npu 3x20x17",),
    "bench": ("bench npu 2x3x2 rivals=eager,graph,linear",),
    "loops": ("training 5x2x4", "rollout 3x2x2"),
    "compile": (),
    "gains": ("compare npu 2x3x2 of=tape", "bench nmu 2x3x2 rivals=eager"),
    "crossover": ("compare npu 3x20x17 of=planes",),
    "huge": PARTS["huge"].items,
    "more": ("tests test_tuning.py 1/40",),
    "tune": ("tune nmu_forward 5+7x3x2",),
    "rebench": ("bench npu 2x3x2 high rivals=eager table=tuned",),
    "autotune": (),
}  # fmt: skip


# ---- workers -------------------------------------------------------------------------------------


class Worker:
    """A process that runs items, one after the other; `machine`: the facts of all of its rows."""

    def __init__(self, out: Path, rehearsal: bool) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths)}
        environment |= {"TRITON_INTERPRET": "1"} if rehearsal else {}
        environment.setdefault("OMP_NUM_THREADS", "4")
        program = [sys.executable, *PROGRAM, "--out", str(out), *["--rehearse"][: int(rehearsal)]]
        with open(out / LOG, "a") as log:
            self._process = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                cwd=ROOT, env=environment, start_new_session=True,
            )  # fmt: skip
        self.alive, self.machine = True, Row()
        self.problem = self.do("machine", START_SECONDS, self.machine.update)

    def do(self, item: str, seconds: float, emit: Callable[[Row], None]) -> str:
        """Run an item; return why it failed, or "". After `seconds` the process is killed."""
        orders, answers, late = self._process.stdin, self._process.stdout, threading.Event()
        assert orders is not None
        assert answers is not None

        def end() -> None:
            late.set()
            self.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            orders.write(item + "\n")
            orders.flush()
            for line in answers:
                row = json.loads(line)
                if "end" in row:
                    self.alive = not row.get("broken")
                    return str(row["end"])
                emit(row)
        except OSError:  # it is gone
            pass
        finally:
            timer.cancel()
        self.alive = False
        if late.is_set():
            return f"took longer than {seconds:.0f} s"
        return f"the process ended with status {self._process.wait()}, see {LOG}"

    def kill(self) -> None:
        """Kill the process and those that it has started."""
        self.alive = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Kill the process, and close what it was spoken to with."""
        self.kill()
        for stream in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(OSError):  # an order that nobody has read
                stream.close()


class Run:
    """A command: its rows, and the workers that do the items.

    Args:
        out: the folder of rows, from which later commands go on.
        copies: another folder, or None, that has all files after each item.
        rehearsal: on the CPU, in Triton's interpreter.
        tell: gets a line for the screen.
    """

    def __init__(
        self, out: Path, copies: Path | None, rehearsal: bool, tell: Callable[[str], None]
    ) -> None:
        self.out, self.rehearsal, self.tell = out, rehearsal, tell
        self.copies = None if copies is None or copies.resolve() == out.resolve() else copies
        for folder in filter(None, (out, self.copies)):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        self._done: set[str] = set()  # by this command

    def add(self, row: Row) -> None:
        """Write a row into the file that it names, without one into the common file."""
        with self._lock:
            with open(self.out / row.pop("file", ROWS), "a") as file:
                file.write(json.dumps(row) + "\n")
            if self.copies is not None and "end" in row:
                for path in filter(Path.is_file, self.out.iterdir()):
                    shutil.copy2(path, self.copies / path.name)

    def attempts(self, machine: Row) -> tuple[set[str], Counter[str]]:
        """The items that are done on such a device and these versions; how often others failed."""
        done, failed, path = set(self._done), Counter[str](), self.out / ROWS
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # cut off by a kill
                continue
            if "end" not in row or not machine.items() <= row.items():
                continue
            if row["end"]:
                failed[row["item"]] += not row.get("cut_off")
            elif row["item"].split()[0] not in OF_MACHINE:
                done.add(row["item"])
        return done, failed

    def part(self, name: str, part: Part, jobs: int, seconds: float) -> tuple[int, int, int]:
        """(done, failed, left) of a part's items that are not done yet.

        An item that has failed before comes late, and no more after MOST_FAILURES times. An item
        that the part's end cuts off is left.
        """
        deadline = time.monotonic() + seconds
        first = self._worker(name)
        if first is None:
            return 0, 1, len(part.items)
        done, failed = self.attempts(first.machine)
        missing = sorted((i for i in part.items if i not in done), key=lambda i: failed[i])
        waiting = deque(item for item in missing if failed[item] < MOST_FAILURES)
        count = Counter(failed=len(missing) - len(waiting))
        if len(missing) < len(part.items):
            self.tell(f"{name}: {len(part.items) - len(missing)} items are done already")

        def serve(worker: Worker | None) -> None:
            while waiting and deadline - time.monotonic() > SHORTEST:
                worker = worker if worker is not None and worker.alive else self._worker(name)
                if worker is None:
                    count["failed"] += 1
                    return
                with contextlib.suppress(IndexError):  # another worker had the last one
                    item = waiting.popleft()
                    remaining = deadline - time.monotonic()
                    count[self._item(worker, name, item, part.item_seconds, remaining)] += 1

        more = range(min(jobs, len(waiting)) - 1)
        threads = [threading.Thread(target=serve, args=(None,)) for _ in more]
        for thread in threads:
            thread.start()
        serve(first)
        for thread in threads:
            thread.join()
        if part.jobs > 1:  # first launches and pytest leave settings behind that times depend on
            self.close()
        return count["done"], count["failed"], len(waiting) + count["left"]

    def _worker(self, part: str) -> Worker | None:
        """A worker that nobody uses, from the part before: it knows torch and the device."""
        if threading.current_thread() is threading.main_thread():
            for worker in self._workers:
                if worker.alive:
                    return worker
        worker = Worker(self.out, self.rehearsal)
        self._workers.append(worker)
        if not worker.problem:
            return worker
        why = f"a worker does not start: {worker.problem}"
        self.add({"part": part, "item": "start", "end": why})
        self.tell(f"{part}: {why}")
        return None

    def _item(self, worker: Worker, part: str, item: str, limit: float, remaining: float) -> str:
        """Do an item, at most `limit` or the part's `remaining` seconds; done, failed or left."""
        common = {"part": part, "item": item, **worker.machine}
        begin = time.monotonic()

        def emit(row: Row) -> None:
            self.add({**common, **row})
            if told(row):
                self.tell(f"{item}: {told(row)}")

        why = worker.do(item, min(limit, remaining), emit)
        duration = time.monotonic() - begin
        cut_off = bool(why) and duration >= remaining
        row = {**common, "end": why, "seconds": round(duration, 2)}
        self.add({**row, "cut_off": True} if cut_off else row)
        end = "cut off" if cut_off else f"FAILED: {why}" if why else "done"
        self.tell(f"{item}: {end} in {duration:.1f} s")
        if not why:
            self._done.add(item)
        return "left" if cut_off else "failed" if why else "done"

    def close(self) -> None:
        """End all workers."""
        while self._workers:
            self._workers.pop().close()


def told(row: Row) -> str:
    """A row as a line for the screen; empty for a row that is only for the file."""
    if "median_us" in row:
        return f"{row['rival']} {row['median_us']:.1f} us, {row['ratio']:.2f} of ours"
    if "errors" in row:
        ours, eager = (max(row[name], default=0) for name in ("errors", "eager_errors"))
        return f"error {ours:.1e}, eager's {eager:.1e}"
    if row.get("outcome") == "failed":
        return f"{row['test']} failed"
    if "environment" in row:
        facts = ((key, value) for key, value in row["environment"].items() if value is not None)
        return ", ".join(f"{key} {value}" for key, value in facts)
    return str(row.get("told") or row.get("note") or row.get("skipped") or "")


# ---- the command ---------------------------------------------------------------------------------


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    listed = "; ".join(
        f"{name} ({part.seconds:.0f} s): {part.title}" for name, part in PARTS.items()
    )
    parser = command("benchmarks.gpu", __doc__)
    add, parts = parser.add_argument, f"all, in this order, or some of: {listed}"
    add("parts", nargs="*", metavar="PART", help=parts)
    folder = "of rows, tables and the log (default build/gpu); $OUT names one that gets copies"
    add("--out", type=Path, default=ROOT / "build" / "gpu", help=folder)
    limit = f"default {FIRST_SECONDS:.0f}, and {NEXT_SECONDS:.0f} where there are rows already"
    add("--seconds", type=seconds, help=f"for this command; {limit}")
    add("--jobs", type=positive, help="worker processes at most, default all cores but two")
    add("--rehearse", action="store_true", help="tiny, on the CPU in Triton's interpreter")
    options = parser.parse_args(argv)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"PART must be one of {', '.join(PARTS)}, got {', '.join(unknown)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; return the exit status: 1 if an item failed or is left."""
    options = arguments(argv)
    begin = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begin:5.0f} s  {line}", flush=True)

    copies = os.environ.get("OUT")
    limit = NEXT_SECONDS if (options.out / ROWS).exists() else FIRST_SECONDS
    limit = options.seconds or limit
    run = Run(options.out, Path(copies) if copies else None, options.rehearse, tell)
    lines, bad = [], False
    try:
        for name in options.parts or PARTS:
            part, start = PARTS[name], time.monotonic()
            if options.rehearse:
                part = part._replace(seconds=120, item_seconds=90, items=REHEARSED[name])
            part_seconds = min(part.seconds, limit - (start - begin))
            if part_seconds < SHORTEST or not part.items:
                done, failed, waiting = 0, 0, len(part.items)
            else:
                tell(f"{name}: {part.title}, at most {part_seconds:.0f} s")
                jobs = min(part.jobs, options.jobs or max(1, (os.cpu_count() or 1) - 2))
                done, failed, waiting = run.part(name, part, jobs, part_seconds)
            bad = bad or bool(failed or waiting)
            duration = time.monotonic() - start
            lines.append(
                f"{name:<9} {duration:4.0f} s: {done} done, {failed} failed, {waiting} left"
            )
    finally:
        run.close()
    tell("the end")
    print("  " + "\n  ".join(lines))
    advice = "the same command does what is left, and once more what failed once"
    print(f"  rows: {options.out / ROWS}; {advice}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
