"""How far a long part is and how long it will still take: one changing line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

PLAIN_STEPS = 5  # lines of a part where the output is no terminal
INTERVAL = 0.1  # seconds between changes on a terminal


def duration(seconds: float) -> str:
    """ "8 s", "1 min 20 s"."""
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


class Progress:
    """``with Progress("training", 20_000) as progress: ... progress.update(n)``: n of the total are done."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self.label, self.total = label, total
        self.stream = sys.stdout if stream is None else stream
        self.terminal = self.stream.isatty()
        self.width = 0
        self.shown = 0.0  # the time of the last change, or the last plain step

    def __enter__(self) -> Progress:
        self.start = time.monotonic()
        return self

    def update(self, done: int, note: str = "") -> None:
        """Show that `done` of the total are done; cheap enough for every training step."""
        now = time.monotonic()
        if self.terminal:
            if now - self.shown < INTERVAL and done < self.total:
                return
            self.shown = now
        else:
            step = done * PLAIN_STEPS // self.total
            if step <= self.shown or done == 0:
                return
            self.shown = step
        elapsed = now - self.start
        left = f", {duration(elapsed / done * (self.total - done))} left" if 0 < done < self.total else ""
        self._write(f"  {self.label}: {done:,} of {self.total:,} ({duration(elapsed)}{left}){note}")

    def _write(self, line: str) -> None:
        if self.terminal:
            self.stream.write("\r" + line.ljust(self.width))
            self.width = len(line)
        else:
            self.stream.write(line + "\n")
        self.stream.flush()

    def __exit__(self, *error: object) -> None:
        if self.terminal:
            if error[0] is None:
                self.stream.write("\r" + " " * self.width + "\r")  # what follows replaces it
            else:
                self.stream.write("\n")
            self.stream.flush()
