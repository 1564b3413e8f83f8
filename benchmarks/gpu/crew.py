"""Worker processes with limits of time, and the files of their rows; standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
ROWS, LOG = "rows.jsonl", "log.txt"
PROGRAM = ("-m", "benchmarks.gpu.worker")
START_SECONDS = 120.0  # for a worker to import torch and to find the device
SHORTEST = 5.0  # seconds: with less left no item is begun
MOST_FAILURES = 2  # of an item, which would cost other parts their time
TOO_LONG = "took longer than"


def _copy_files(source: Path, target: Path) -> None:
    for path in source.iterdir():
        if path.is_file():
            shutil.copy2(path, target / path.name)


class Record:
    """Rows of results, written as they come into one folder or two.

    Args:
        out: the folder that later commands go on from. Where it has no rows, it begins as `copy`.
        copy: another folder, for a machine that does not keep the first one; or None.
    """

    def __init__(self, out: Path, copy: Path | None = None) -> None:
        self.out = out
        self.folders = [out] if copy is None or copy.resolve() == out.resolve() else [out, copy]
        self._lock = threading.Lock()
        for folder in self.folders:
            folder.mkdir(parents=True, exist_ok=True)
        if len(self.folders) > 1 and not (out / ROWS).exists():  # go on from an earlier machine's
            _copy_files(self.folders[1], out)
        self.mirror()

    def mirror(self) -> None:
        """Copy what is new to the other folder."""
        for folder in self.folders[1:]:
            _copy_files(self.out, folder)

    def add(self, row: Row) -> None:
        """Write a row into the file that it names, without one into the common file."""
        name = row.pop("file", ROWS)
        with self._lock:
            for folder in self.folders:
                with open(folder / name, "a") as file:
                    file.write(json.dumps(row) + "\n")

    def attempts(self, part: str, machine: Row) -> tuple[set[str], Counter[str]]:
        """A part's items that are done on this device and versions; how often each has failed."""
        done, failed = set(), Counter[str]()
        path = self.out / ROWS
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # cut off by a kill
                continue
            if row.get("part") != part or "end" not in row or not machine.items() <= row.items():
                continue
            if not row["end"]:
                done.add(row["item"])
            elif not row.get("cut_off"):
                failed[row["item"]] += 1
        return done, failed


class Worker:
    """A process that runs items, one after the other."""

    def __init__(self, out: Path, rehearsal: bool) -> None:
        command = [sys.executable, *PROGRAM, "--out", str(out)]
        environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths)}
        environment.setdefault("OMP_NUM_THREADS", "4")
        if rehearsal:
            command.append("--rehearse")
            environment["TRITON_INTERPRET"] = "1"
        self._log = open(out / LOG, "a")  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            cwd=ROOT, env=environment, start_new_session=True,
        )  # fmt: skip
        self._answers: queue.Queue[Row | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.place: Row = {}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def start(self, seconds: float) -> str:
        """Wait until the process is ready. Returns why it is not, or an empty text."""
        return self._follow(seconds, lambda row: self.place.update(row["place"]), "place")

    def do(self, part: str, item: str, seconds: float, emit: Callable[[Row], None]) -> str:
        """Run an item; return why it failed, or "". After `seconds` the process is killed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"part": part, "item": item}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            return f"the worker is gone: {error}"
        return self._follow(seconds, emit, "end")

    def _follow(self, seconds: float, emit: Callable[[Row], None], last: str) -> str:
        deadline = time.monotonic() + seconds
        while True:
            try:
                row = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self.kill()
                return f"{TOO_LONG} {seconds:.0f} s"
            if row is None:
                return f"the process ended with status {self._process.wait()}, see {LOG}"
            if last == "end" and "end" in row:
                if row.get("broken"):
                    self.kill()  # before it takes the next item into its end, which may be slow
                return str(row["end"])
            emit(row)
            if last in row:
                return ""

    @property
    def lives(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process and those that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):  # an order that nobody has read
                    stream.close()


class Crew:
    """Does the items of a part in up to so many workers.

    Args:
        record: where the rows go.
        rehearsal: on the CPU, in Triton's interpreter.
        tell: gets a line for the screen.
    """

    def __init__(self, record: Record, rehearsal: bool, tell: Callable[[str], None]) -> None:
        self.record, self.rehearsal, self.tell = record, rehearsal, tell
        self._workers: list[Worker] = []
        self._idle: Worker | None = None  # of the part before: it knows torch and the device

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.kill()

    def run(
        self, part: str, items: Iterable[str], jobs: int, seconds: float, item_seconds: float,
        keep: bool = True,
    ) -> tuple[int, int, int]:  # fmt: skip
        """(done, failed, left) of a part's items that earlier commands have not done.

        An item that has failed before comes late, and no more after MOST_FAILURES times. An item
        that the part's end cut off is left. keep: a worker may go on with the next part.
        """
        deadline = time.monotonic() + seconds
        waiting: queue.Queue[str] = queue.Queue()
        count: Counter[str] = Counter()
        first, self._idle = self._idle, None
        if first is not None and not first.lives:
            first.kill()
            first = None
        first = first or self._worker(part, deadline)
        if first is None:
            return 0, 1, len(list(items))
        done, failed = self.record.attempts(part, first.place)
        missing = sorted(
            (item for item in items if item not in done), key=lambda item: failed[item]
        )
        chosen = [item for item in missing if failed[item] < MOST_FAILURES]
        count["failed"] = len(missing) - len(chosen)
        for item in chosen:
            waiting.put(item)
        if done:
            self.tell(f"{part}: {len(done)} items are done already")

        def work(worker: Worker | None, keep: bool) -> None:
            while not waiting.empty() and deadline - time.monotonic() > SHORTEST:
                if worker is None or not worker.lives:
                    if worker is not None:
                        worker.kill()
                    worker = self._worker(part, deadline)
                if worker is None:
                    count["failed"] += 1
                    return
                try:
                    item = waiting.get_nowait()
                except queue.Empty:
                    break
                remaining = deadline - time.monotonic()
                limit = min(item_seconds, remaining)
                outcome = self._item(worker, part, item, limit, remaining)
                count[outcome] += 1
            if worker is not None and worker.lives and keep:
                self._idle = worker
            elif worker is not None:
                worker.kill()

        extra = range(min(jobs, len(chosen)) - 1)
        more = [threading.Thread(target=work, args=(None, False)) for _ in extra]
        for thread in more:
            thread.start()
        work(first, keep)
        for thread in more:
            thread.join()
        self.record.mirror()
        return count["done"], count["failed"], waiting.qsize() + count["left"]

    def _worker(self, part: str, deadline: float) -> Worker | None:
        worker = Worker(self.record.out, self.rehearsal)
        self._workers.append(worker)
        why = worker.start(min(START_SECONDS, max(SHORTEST, deadline - time.monotonic())))
        if why:
            worker.kill()
            self.record.add({"part": part, "item": "", "end": f"a worker does not start: {why}"})
            self.tell(f"{part}: a worker does not start: {why}")
            return None
        return worker

    def _item(
        self, worker: Worker, part: str, item: str, seconds: float, part_seconds: float
    ) -> str:
        """Do an item and record its end; return done, failed or left.

        seconds: of this item; part_seconds: that are left of the part.
        """
        common = {"part": part, "item": item, **worker.place}
        begin = time.monotonic()

        def emit(row: Row) -> None:
            self.record.add({**common, **row})
            line = told(row)
            if line:
                self.tell(f"{part}: {item}: {line}")

        why = worker.do(part, item, seconds, emit)
        taken_seconds = time.monotonic() - begin
        cut_off = seconds == part_seconds and why.startswith(TOO_LONG)
        row = {**common, "end": why, "seconds": round(taken_seconds, 2)}
        self.record.add({**row, "cut_off": True} if cut_off else row)
        end = "cut off" if cut_off else f"FAILED: {why}" if why else "done"
        self.tell(f"{part}: {item}: {end} in {taken_seconds:.1f} s")
        return "left" if cut_off else "failed" if why else "done"


def told(row: Row) -> str:
    """A row as a line for the screen; empty for a row that is only for the file."""
    if "rival" in row:
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
