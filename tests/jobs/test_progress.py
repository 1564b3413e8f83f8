"""How long work shows how far it is: a bar on a terminal, a few lines elsewhere, and the time left
on both."""

import io
import re
import threading

import pytest

from npu_kernels._jobs import progress
from npu_kernels._jobs.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_few_lines_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = io.StringIO(), [0.0]
    monkeypatch.setattr(progress, "LINE_SECONDS", 10.0)
    with Progress("training", 200, stream) as bar:
        bar._bar._time = lambda: clock[0]
        bar._bar.start_t = bar._bar.last_print_t = 0.0
        for done in range(1, 201):
            clock[0] = done / 4  # 50 s
            bar.update(done, "2 of 4 batches")
    lines = stream.getvalue().splitlines()
    assert "\r" not in stream.getvalue()
    assert lines[0] == "training:  20 %, 00:10 passed, 00:40 left, 2 of 4 batches"
    assert [line[10:14] for line in lines] == [" 20 ", " 40 ", " 60 ", " 80 ", "100 ", "100 "]


def test_short_work_is_one_line_in_a_log() -> None:
    stream = io.StringIO()
    with Progress("training", 1000, stream) as bar:
        for done in range(1, 1001):
            bar.update(done)
    assert stream.getvalue() == "training: 100 %, 00:00 passed, 00:00 left\n"


def test_a_bar_is_gone_at_the_end_and_where_other_lines_are_printed() -> None:
    stream, threads = Terminal(), threading.active_count()
    with Progress("training", 2, stream) as bar:
        bar.update(1, "1 model")
        with bar.aside():
            assert stream.getvalue().endswith("\r")
            stream.write("a line\n")
        shown = stream.getvalue().rpartition("a line\n")[2]
        assert re.match(r"\s*training:  50 % \|.+\| 00:00 passed, \d\d:\d\d left, 1 model", shown)
        bar.update(2)
        assert threading.active_count() == threads
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("\r")


def test_the_time_left_does_not_count_what_was_done_before() -> None:
    with Progress("large", 1.0, io.StringIO()) as bar:
        bar.update(0.6, before=0.5)
        shown = bar._bar.format_dict | {"elapsed": 10.0}
        assert "00:40 left" in bar._bar.format_meter(**shown)


def test_nothing_is_shown_where_nobody_wants_it() -> None:
    stream = Terminal()
    with Progress("fit", 10, stream, shown=False) as bar:
        bar.update(10)
        with bar.aside():
            pass
    assert stream.getvalue() == ""


def test_what_is_not_shown_makes_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar of tqdm takes as long as some steps of a small training."""
    monkeypatch.setattr("npu_kernels._jobs.progress._bar", lambda: pytest.fail("a bar was made"))
    with Progress("fit", 10, Terminal(), shown=False) as bar:
        bar.update(10)
