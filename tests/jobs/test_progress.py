"""How long work shows how far it is: a bar on a terminal, a few lines elsewhere, and the time left
on both."""

import io
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from npu_kernels import training
from npu_kernels._jobs.driver import Progress
from tests.jobs.runs import X, Y, chain


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, seconds: float = 0.0, **settings: Any
) -> str:
    """What a run of 200 steps, each of which takes so long, writes to stderr."""
    clock = [0.0]
    options = {"steps": 200, "lr": 0.01, "callback_every": 1, "progress": True, **settings}
    with monkeypatch.context() as patch:
        patch.setattr("tqdm.std.time", lambda: clock[-1])
        patch.setattr(sys, "stderr", stream)
        training.run(
            chain(),
            X,
            Y,
            callbacks=lambda part: clock.append(clock[-1] + seconds) and False,
            **options,
        )
    return stream.getvalue()


def test_a_log_gets_few_lines_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One every half a minute."""
    said = shown(monkeypatch, io.StringIO(), 1.0)
    assert "\r" not in said
    lines = [re.fullmatch(r"run: +(\d+) %, (\d+):(\d+) passed, (\d+):(\d+) left", line)
             for line in said.splitlines()]  # fmt: skip
    numbers = [tuple(map(int, line.groups())) for line in lines if line]
    assert len(numbers) == len(lines) == 7
    for percent, *times in numbers:
        before, after = (60 * times[n] + times[n + 1] for n in (0, 2))
        assert before + after == pytest.approx(200, abs=8)
        assert percent == pytest.approx(before / 2, abs=1)
    assert numbers[-1][0] == 100


def test_short_work_is_one_line_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown(monkeypatch, io.StringIO(), 1e-9)
    assert said == "run: 100 %, 00:00 passed, 00:00 left\n"


def test_the_time_left_does_not_count_what_was_done_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"steps": 200, "lr": 0.01, "checkpoint": tmp_path / "run"}
    training.run(
        chain(), X, Y, callback_every=100, callbacks=lambda part: True, progress=False, **settings
    )
    said = shown(monkeypatch, io.StringIO(), 1.0, **settings).splitlines()
    assert re.fullmatch(r"run: +6\d %, 00:3\d passed, 01:[01]\d left", said[0]), said


@pytest.mark.parametrize(
    ("asked", "terminal", "seen"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_whether_it_is_shown(
    asked: Any, terminal: bool, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = shown(monkeypatch, Terminal() if terminal else io.StringIO(), progress=asked)
    assert ("100 %" in said or "%" in said) == seen


def test_a_bar_is_gone_at_the_end_and_where_other_lines_are_printed() -> None:
    stream, threads = Terminal(), threading.active_count()
    with Progress("training", 2, stream) as bar:
        bar.update(1, "1 model")
        with bar.aside():
            assert stream.getvalue().endswith("\r")
            stream.write("a line\n")
        line = stream.getvalue().rpartition("a line\n")[2]
        assert re.match(r"\s*training:  50 % \|.+\| 00:00 passed, \d\d:\d\d left, 1 model", line)
        bar.update(2)
        assert threading.active_count() == threads
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("\r")


def test_what_is_not_shown_makes_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar of tqdm takes as long as some steps of a small training."""
    monkeypatch.setattr("tqdm.std.tqdm.__init__", lambda *_, **__: pytest.fail("a bar was made"))
    assert shown(monkeypatch, Terminal(), progress=False) == ""
    with Progress("fit", 10, Terminal(), shown=False) as bar, bar.aside():
        bar.update(10)
