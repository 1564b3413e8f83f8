"""A plugin of pytest that marks the slow tests, and measures which they are.

`slow.txt` has the tests that take more than `LISTED` seconds of a processor: a line is a test, a
function with all of its cases, or a file. ``-m "not slow"`` leaves them out. A line that begins
with "+" is a slow test that stays, since its file has no quick one.

--measure-slow  writes the lines of the files that run, and keeps the lines of all others; where -m
                or -k choose tests of a file it writes nothing
--check-slow    fails if a test takes more than `FAILS` seconds and is not in the list
"""

import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.building import seconds_of_forks

LIST = Path(__file__).with_suffix(".txt")
LISTED = 0.4  # seconds of a processor
FAILS = 6.0
STAYS = 6.0  # the most that the only test of a file may take
IMPORTS = 30  # modules: a test that imports more is measured by its next run
PROPERTY = "seconds of a processor"
BEGIN = pytest.StashKey[tuple[float, float, int]]()
# What the fixtures of a whole module or run have taken: whichever test is the first pays for them.
of_fixtures = defaultdict[pytest.FixtureDef, float](float)  # type: ignore[type-arg]
paid = list[float]()  # of them, by the test that runs


def seconds() -> float:
    """The time of processors that this process and those that it waited for have used."""
    return sum(os.times()[:4]) + sum(seconds_of_forks)


def read() -> tuple[set[str], set[str]]:
    """Return the slow tests, functions and files, and the slow tests that stay."""
    lines = LIST.read_text().split("\n")
    return {line for line in lines if line[:1] not in ("", "+")}, {
        line[1:] for line in lines if line.startswith("+")
    }


def prefixes(name: str) -> Iterable[str]:
    """Return the test of an id, its function and its file."""
    return name, name.split("[")[0], name.split("::")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slow tests")
    group.addoption("--measure-slow", action="store_true", help="write tests/slow.txt anew")
    group.addoption("--check-slow", action="store_true", help="fail if tests/slow.txt lacks a test")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Times(config), "times of tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow, stay = read()
    for item in items:
        if item.nodeid not in stay and not slow.isdisjoint(prefixes(item.nodeid)):
            item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[BEGIN] = seconds(), time.monotonic(), len(sys.modules)
    paid.clear()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    begin = seconds()
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            of_fixtures[fixturedef] = seconds() - begin
            paid.append(of_fixtures[fixturedef])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.when == "teardown" and BEGIN in item.stash:
        begin, clock, modules = item.stash[BEGIN]
        imported = len(sys.modules) - modules
        # A process that an earlier test began may end here, and bring its time.
        limit = (os.cpu_count() or 1) * (time.monotonic() - clock)
        duration = min(seconds() - begin, limit) if imported <= IMPORTS else math.nan
        fixtures = cast(pytest.Function, item)._fixtureinfo.name2fixturedefs.values()
        duration += sum(of_fixtures.get(each[-1], 0) for each in fixtures) - sum(paid)
        item.user_properties.append((PROPERTY, duration))
    return (yield)


class _Times:
    """What tests take, in the process that has the reports of all."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seconds = dict[str, float]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.seconds[report.nodeid] = dict(report.user_properties).get(PROPERTY, math.nan)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        chosen = self.config.option.markexpr or self.config.option.keyword  # not whole files
        if self.config.getoption("--measure-slow") and not chosen:
            LIST.write_text("\n".join(lines(self.seconds, *read())) + "\n")
        if self.config.getoption("--check-slow") and self._missing():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name in self._missing() if self.config.getoption("--check-slow") else []:
            rule = f"takes {self.seconds[name]:.1f} s, and is not in tests/slow.txt"
            terminalreporter.write_line(f"ERROR {name} - {rule}")

    def _missing(self) -> list[str]:
        listed = set.union(*read())
        long = (name for name, seconds in self.seconds.items() if seconds > FAILS)
        return sorted(name for name in long if listed.isdisjoint(prefixes(name)))


def lines(seconds: dict[str, float], slow: set[str], stay: set[str]) -> list[str]:
    """Return the list with what tests took, and the entries of those that did not run."""
    files = {name.split("::")[0] for name in seconds}
    parts = defaultdict(dict[str, float])  # of each file that ran
    for name, of_test in seconds.items():
        was = LISTED if slow.isdisjoint(prefixes(name)) else math.inf
        parts[name.split("::")[0]][name] = was if math.isnan(of_test) else of_test
    result = [entry for entry in slow if entry.split("::")[0] not in files]
    result += [f"+{name}" for name in stay if name.split("::")[0] not in files]
    for file, times in parts.items():
        long = {name for name, of_test in times.items() if of_test > LISTED}
        if len(long) == len(times):
            name = min(times, key=times.__getitem__)
            result += [file] + [f"+{name}"] * (times[name] <= STAYS)
            continue
        cases = defaultdict(set[str])
        for name in times:
            cases[name.split("[")[0]].add(name)
        for function, names in cases.items():
            result += [function] if names <= long else names & long
    return sorted(result, key=lambda entry: (entry.lstrip("+"), entry))
